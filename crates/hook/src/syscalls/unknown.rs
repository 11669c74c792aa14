//! The `syscall` instructions of code with unknown function starts. Such code was written at run
//! time, or comes from a file that is gone or has been stripped of everything that names its
//! functions; functions that hold data are treated in the same way.
//!
//! It is not certain where instructions begin there, nor what branches to them, and some bytes are
//! data. Only bytes that cannot be anything else are hooked: an instruction that loads the number
//! of a call, with the `syscall` right behind it. A jump takes the place of that instruction only,
//! so it does not matter what branches there. The `syscall` stays for code that reaches it in
//! another way; that call is made, and not seen.

use memchr::memmem;

use super::numbers::{EXIT, MUNMAP, RT_SIGRETURN};
use super::{CallPlan, CallSites, Shape, Unhookable, UnhookableCall};
use crate::arch::{self, Instruction, SYSCALL, SYSCALL_LEN};
use crate::flags::Flags;
use crate::plan::{Function, Reason};
use crate::survey::Survey;

/// The most calls that are found in one piece of code. Each takes some hundreds of bytes of memory.
const MOST_CALLS: usize = 1 << 16;
/// Bytes behind a `syscall` that are checked for a use of the flags.
const LOOKED_AT: usize = 64;

impl CallSites {
    /// Finds and plans the system calls in bytes that are mapped at `start`. A call that is not
    /// hooked is listed only if it is as certainly a call.
    pub fn of_unknown(start: u64, code: &[u8]) -> Self {
        let mut sites = Self::default();
        for call in memmem::find_iter(code, &SYSCALL) {
            sites.add_unknown(start, code, call);
            if sites.plans.len() + sites.unhookable.len() >= MOST_CALLS {
                sites.is_partial = true;
                break;
            }
        }
        sites
    }

    /// Adds the bytes of a `syscall` at that offset, hooked or not, if they are certainly an
    /// instruction. Returns false otherwise.
    pub(super) fn add_unknown(&mut self, start: u64, code: &[u8], call: usize) -> bool {
        let Some((first, number)) = arch::call_number_right_before(code, call) else {
            return false;
        };
        match plan(start, code, first, call, number) {
            Ok(plan) => self.plans.push(plan),
            Err(why) => self.unhookable.push(UnhookableCall {
                call: start.wrapping_add(call as u64),
                why,
            }),
        }
        true
    }
}

fn plan(
    start: u64,
    code: &[u8],
    first: usize,
    call: usize,
    number: u32,
) -> Result<CallPlan, Unhookable> {
    match number {
        RT_SIGRETURN => return Err(Unhookable::Restorer),
        // The thread may have no stack then, and that is unknown.
        EXIT | MUNMAP => return Err(Unhookable::WithoutStack),
        _ => {}
    }
    let behind = call + SYSCALL_LEN as usize;
    let function = Function {
        start: start.wrapping_add(first as u64),
        code: code
            .get(first..code.len().min(behind + LOOKED_AT))
            .unwrap_or_default(),
    };
    let survey = Survey::of(&function);
    let undecodable = Unhookable::CannotHook(Reason::Undecodable { offset: 0 });
    let second = survey.instructions.get(1);
    let is_call = second.is_some_and(Instruction::is_system_call);
    let before = survey.displaced(0, &function).filter(|_| is_call);
    let before = before.ok_or(undecodable)?;
    let flags = arch::flags_wanted_behind_call(&survey, 1);
    if flags == Flags::All {
        return Err(Unhookable::CannotHook(Reason::FlagsWanted));
    }
    Ok(CallPlan {
        call: start.wrapping_add(call as u64),
        number: Some(number),
        keeps_flags: flags.live(),
        is_markable: false,
        shape: Shape::Moved {
            before: vec![before],
            behind: Vec::new(),
            start: function.start,
            original: function.code[..behind - first].into(),
            stays: true,
        },
    })
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use crate::arch::{CommonCode, JUMP_OPCODE};
    use crate::syscalls::CallSpec;

    const START: u64 = 0x7000_0000;
    const SHORT: &[u8] = b"\xb8\x6e\0\0\0\x0f\x05";
    const LONG: &[u8] = b"\x48\xc7\xc0\x6e\0\0\0\x0f\x05";

    fn sites(parts: &[&[u8]]) -> CallSites {
        CallSites::of_unknown(START, &parts.concat())
    }

    fn why(parts: &[&[u8]]) -> Vec<Unhookable> {
        let sites = sites(parts);
        assert!(sites.plans.is_empty(), "{parts:?}");
        sites.unhookable.into_iter().map(|one| one.why).collect()
    }

    #[test]
    fn calls_with_their_number_are_found_among_anything() {
        let sites = sites(&[
            b"\x06\x0f\x05\x90",
            SHORT,
            b"\xc3\xff\xff",
            LONG,
            b"\xc3\x0f\x05",
        ]);
        let found: Vec<_> = sites
            .plans
            .iter()
            .map(|plan| (plan.call, plan.number))
            .collect();
        assert_eq!(found, [(START + 9, Some(110)), (START + 21, Some(110))]);
        assert!(sites.unhookable.is_empty());
    }

    #[test]
    fn possible_data_is_not_touched() {
        let too_great: &[u8] = b"\xb8\0\x02\0\0\x0f\x05\xc3";
        let of_another: &[u8] = b"\xb8\x6e\0\0\0\x90\x0f\x05\xc3";
        let alone: &[u8] = b"\x0f\x05\xc3";
        for bytes in [too_great, of_another, alone, b"\x0f", b""] {
            assert_eq!(why(&[bytes]), []);
        }
    }

    /// These are `mov r8d, 8; syscall`, `movabs rax, ...` and `mov ax, 8; syscall`.
    #[test]
    fn a_move_to_another_register_is_no_call_number() {
        for code in [
            &b"\x41\xb8\x08\0\0\0\x0f\x05"[..],
            b"\x48\xb8\x08\0\0\0\x0f\x05\0\0",
            b"\x66\xb8\x08\0\0\0\x0f\x05",
        ] {
            let sites = sites(&[code]);
            assert_eq!(
                (sites.plans.len(), sites.unhookable.len()),
                (0, 0),
                "{code:x?}"
            );
        }
    }

    #[test]
    fn calls_that_no_hook_survives_are_spared() {
        assert_eq!(why(&[b"\xb8\x0f\0\0\0\x0f\x05"]), [Unhookable::Restorer]);
        assert_eq!(
            why(&[b"\xb8\x3c\0\0\0\x0f\x05"]),
            [Unhookable::WithoutStack]
        );
        assert_eq!(
            why(&[b"\xb8\x0b\0\0\0\x0f\x05"]),
            [Unhookable::WithoutStack]
        );
    }

    #[test]
    fn flags_that_are_wanted_behind_are_kept() {
        // A jump if zero.
        let [wanted, not] = [&b"\x74\x10\xc3"[..], b"\xc3"].map(|behind| sites(&[SHORT, behind]));
        assert!(wanted.plans[0].keeps_flags);
        assert!(!not.plans[0].keeps_flags);
    }

    #[test]
    fn the_call_itself_stays() {
        let spec = CallSpec {
            enter: START,
            exit: START,
            compact_enter: START,
            compact_exit: START,
            watched: START,
        };
        let common = CommonCode::emit(START + 0x1000, &spec).unwrap();
        for code in [SHORT, LONG] {
            let sites = sites(&[code, b"\xc3"]);
            let stub = sites.plans[0].emit(START + 0x2000, &common, 0).unwrap();
            let [patch] = stub.patches.as_slice() else {
                panic!("{:?}", stub.patches);
            };
            assert_eq!(patch.original, code);
            assert_eq!(patch.bytes[0], JUMP_OPCODE);
            assert!(patch.bytes.ends_with(&SYSCALL), "{:x?}", patch.bytes);
            assert_eq!(patch.bytes.len(), code.len());
            assert!(!stub.feigns_a_call());
            // The displacement is 0x50f, which has the bytes of a `syscall`, and then has them in
            // its middle.
            for far in [0x50f + 5, 0x5_0f00 + 5] {
                let stub = sites.plans[0].emit(START + far, &common, 0).unwrap();
                assert!(stub.feigns_a_call());
            }
        }
    }
}

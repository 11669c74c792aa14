//! The liveness of the register of a system call's sixth argument.

use iced_x86::{
    FlowControl, Instruction as Decoded, InstructionInfoFactory, Mnemonic, OpAccess, Register,
    UsedRegister,
};

use super::instruction::Instruction;
use crate::survey::Survey;

/// The register of the sixth argument.
const LAST: Register = Register::R9;

/// True if it seems that no code behind the `syscall` of that index reads what the register of a
/// sixth argument holds before it. `is_always_same` says that the call's number is.
///
/// Only the function itself is searched. What it calls, or returns to, may read the register: a
/// compiler that knows both sides of a call may ignore the calling convention. So a value in the
/// register has to be restored in any case.
pub(crate) fn is_last_argument_dead_behind(
    survey: &Survey,
    index: usize,
    is_always_same: bool,
) -> bool {
    let mut seen = vec![false; survey.instructions.len()];
    let mut open = vec![index + 1];
    let mut factory = InstructionInfoFactory::new();
    while let Some(at) = open.pop() {
        // A loop leads back to the call itself.
        if at == index && is_always_same {
            continue;
        }
        let Some(instruction) = survey.instructions.get(at) else {
            match ends_with_call(survey) {
                // What is called does not return.
                true => continue,
                false => return false,
            }
        };
        if std::mem::replace(&mut seen[at], true) {
            continue;
        }
        if instruction.is_system_call() {
            return false;
        }
        let decoded = instruction.decoded();
        let used = factory.info(decoded).used_registers();
        if is_used(used, reads) {
            return false;
        }
        if is_used(used, replaces) {
            continue;
        }
        let next = match decoded.flow_control() {
            FlowControl::Return | FlowControl::Exception => [None, None],
            FlowControl::Next | FlowControl::Call | FlowControl::IndirectCall => {
                [Some(at + 1), None]
            }
            FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch => {
                let taken = survey.index_of(decoded.near_branch_target());
                // A jump to another function is a call of it. A branch leads to a part of this one
                // that stands elsewhere.
                if taken.is_none() && (instruction.goes_on() || is_inside(survey, decoded)) {
                    return false;
                }
                [taken, instruction.goes_on().then_some(at + 1)]
            }
            _ => return false,
        };
        open.extend(next.into_iter().flatten());
    }
    true
}

/// True if the last instruction of a function calls another one, but for padding.
fn ends_with_call(survey: &Survey) -> bool {
    let is_filler = |one: &&Instruction| one.decoded().mnemonic() == Mnemonic::Nop;
    let mut backwards = survey.instructions.iter().rev();
    let last = backwards.find(|one| !is_filler(one));
    last.is_some_and(|last| last.is_call() && !last.is_system_call())
}

/// True if a branch leads into the function's code, at an instruction's start or not.
fn is_inside(survey: &Survey, branch: &Decoded) -> bool {
    let start = survey.instructions.first().map_or(0, Instruction::address);
    (start..survey.end).contains(&branch.near_branch_target())
}

/// True if an instruction uses any part of the register in this way.
fn is_used(used: &[UsedRegister], way: fn(&UsedRegister) -> bool) -> bool {
    let mut used = used.iter();
    used.any(|used| used.register().full_register() == LAST && way(used))
}

fn reads(used: &UsedRegister) -> bool {
    !matches!(
        used.access(),
        OpAccess::None | OpAccess::Write | OpAccess::CondWrite | OpAccess::NoMemAccess
    )
}

/// True if nothing of the register's value is left. A write of 32 bits clears the others.
fn replaces(used: &UsedRegister) -> bool {
    used.access() == OpAccess::Write && matches!(used.register().size(), 4 | 8)
}

#[cfg(test)]
mod tests {
    use iced_x86::IcedError;
    use iced_x86::code_asm::{CodeAssembler, eax, edi, ptr, r9, r9b, r9d, rax, rbx, rsp};

    use super::*;
    use crate::plan::Function;

    const AT: u64 = 0x1000;
    const ELSEWHERE: u64 = 0x9000;

    /// Looks behind the first `syscall` of a function, which always makes the same call.
    fn is_dead(write: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>) -> bool {
        is_dead_behind(write, true)
    }

    fn is_dead_behind(
        write: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>,
        is_always_same: bool,
    ) -> bool {
        let mut asm = CodeAssembler::new(64).unwrap();
        write(&mut asm).unwrap();
        let code = asm.assemble(AT).unwrap();
        let survey = Survey::of(&Function {
            start: AT,
            code: &code,
        });
        let mut calls = survey.instructions.iter();
        let index = calls.position(Instruction::is_system_call).unwrap();
        is_last_argument_dead_behind(&survey, index, is_always_same)
    }

    #[test]
    fn it_is_dead_where_nothing_reads_it() {
        assert!(is_dead(|asm| {
            asm.syscall()?;
            asm.ret()
        }));
        assert!(is_dead(|asm| {
            asm.syscall()?;
            asm.xor(r9d, r9d)?;
            asm.mov(rax, r9)?;
            asm.ret()
        }));
        assert!(!is_dead(|asm| {
            asm.syscall()?;
            asm.mov(rbx, r9)?;
            asm.ret()
        }));
        assert!(!is_dead(|asm| {
            asm.syscall()?;
            asm.mov(eax, ptr(rsp + r9 * 4))?;
            asm.ret()
        }));
        // Seven bytes of it are left.
        assert!(!is_dead(|asm| {
            asm.syscall()?;
            asm.mov(r9b, 1)?;
            asm.mov(rax, r9)?;
            asm.ret()
        }));
    }

    #[test]
    fn both_ways_of_a_branch_count() {
        let branch = |reads: bool| {
            is_dead(move |asm| {
                let mut failed = asm.create_label();
                asm.syscall()?;
                asm.cmp(rax, -4095)?;
                asm.jae(failed)?;
                asm.ret()?;
                asm.set_label(&mut failed)?;
                if reads {
                    asm.mov(rbx, r9)?;
                }
                asm.ret()
            })
        };
        assert!(branch(false));
        assert!(!branch(true));
        // Such a branch leads to a part of the function, out of its way.
        assert!(!is_dead(|asm| {
            asm.syscall()?;
            asm.test(rax, rax)?;
            asm.js(ELSEWHERE)?;
            asm.ret()
        }));
    }

    #[test]
    fn the_same_call_again_reads_nothing_and_another_may() {
        for is_always_same in [false, true] {
            let again = |asm: &mut CodeAssembler| {
                let mut again = asm.create_label();
                asm.set_label(&mut again)?;
                asm.mov(eax, edi)?;
                asm.syscall()?;
                asm.cmp(rax, -4)?;
                asm.je(again)?;
                asm.ret()
            };
            assert_eq!(is_dead_behind(again, is_always_same), is_always_same);
        }
        assert!(!is_dead(|asm| {
            asm.syscall()?;
            asm.mov(eax, 9)?;
            asm.syscall()?;
            asm.ret()
        }));
    }

    #[test]
    fn other_functions_are_not_searched() {
        assert!(is_dead(|asm| {
            asm.syscall()?;
            asm.mov(edi, eax)?;
            asm.call(ELSEWHERE)?;
            asm.ret()
        }));
        assert!(is_dead(|asm| {
            asm.syscall()?;
            asm.mov(edi, eax)?;
            asm.jmp(ELSEWHERE)
        }));
        // The call may leave it alone.
        assert!(!is_dead(|asm| {
            asm.syscall()?;
            asm.call(ELSEWHERE)?;
            asm.mov(rax, r9)?;
            asm.ret()
        }));
        // A register-indirect jump may stay in the function.
        assert!(!is_dead(|asm| {
            asm.syscall()?;
            asm.jmp(rax)
        }));
    }

    #[test]
    fn a_function_may_end_with_a_call_that_does_not_return() {
        assert!(is_dead(|asm| {
            asm.syscall()?;
            asm.call(ELSEWHERE)?;
            asm.nop()
        }));
        assert!(!is_dead(|asm| {
            asm.syscall()?;
            asm.nop()
        }));
    }
}

//! Analysis of seccomp filters without running them: the calls of those that Beeline foresees which
//! they would not let pass.

use std::collections::BTreeMap;
use std::mem::offset_of;

use beeline_inject::{Errno, Process, Verdict};
use beeline_uapi::foreseen::ForeseenCall;
use beeline_uapi::linux::{BPF_MAXINSNS, SECCOMP_ARCH_NATIVE, bpf_class, bpf_op};
use libc::{seccomp_data, sock_filter};

/// The highest error number of the kernel (`linux/err.h`).
const MAX_ERRNO: u32 = 4095;
/// The size of an instruction in bytes.
const LEN: usize = size_of::<sock_filter>();

/// Returns the filter that a process is about to install, given the address of its `struct
/// sock_fprog`. `None` if the kernel would not take it either.
pub fn filter_at(process: &Process, address: u64) -> Option<Vec<sock_filter>> {
    let mut head = [0; 16];
    process.read_memory(address, &mut head).ok()?;
    let len = usize::from(u16::from_ne_bytes([head[0], head[1]]));
    let place = u64::from_ne_bytes(head[8..].try_into().ok()?);
    if !(1..=BPF_MAXINSNS).contains(&len) {
        return None;
    }
    let mut bytes = vec![0; len * LEN];
    process.read_memory(place, &mut bytes).ok()?;
    Some(decoded(&bytes))
}

/// Returns the instructions in the bytes of some `struct sock_filter`.
pub fn decoded(bytes: &[u8]) -> Vec<sock_filter> {
    let instructions = bytes.chunks_exact(LEN).map(|one| sock_filter {
        code: u16::from_ne_bytes([one[0], one[1]]),
        jt: one[2],
        jf: one[3],
        k: u32::from_ne_bytes([one[4], one[5], one[6], one[7]]),
    });
    instructions.collect()
}

/// Returns a filter's answer to a call if it does not let the call pass, whatever the unknown
/// arguments are and wherever the call is made. `None` if it does.
///
/// Every way through the filter that the call can take has to end by letting it pass. An
/// instruction that is not understood does not.
pub fn objection(filter: &[sock_filter], call: &ForeseenCall) -> Option<Verdict> {
    // Branches lead forwards only, so all ways to an instruction are known when its turn comes.
    let mut waiting = BTreeMap::from([(0, State::default())]);
    let (mut found, mut passes) = (None, false);
    while let Some((at, mut state)) = waiting.pop_first() {
        let Some(instruction) = filter.get(at) else {
            return Some(Verdict::Depends);
        };
        let next = match step(instruction, &mut state, call) {
            Step::On => vec![0],
            Step::Jump(distances) => distances,
            Step::Ends(None) => {
                passes = true;
                continue;
            }
            Step::Ends(Some(verdict)) => {
                found = match found {
                    None => Some(verdict),
                    Some(other) if other == verdict => found,
                    Some(_) => Some(Verdict::Depends),
                };
                continue;
            }
        };
        for distance in next {
            let known = waiting.entry(at + 1 + distance).or_insert(state);
            *known = known.joined(state);
        }
    }
    match found {
        Some(_) if passes => Some(Verdict::Depends),
        found => found,
    }
}

/// Registers, as far as they are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct State {
    a: Option<u32>,
    x: Option<u32>,
}

impl State {
    /// Returns what is known regardless of which of the two ways is taken.
    fn joined(self, other: Self) -> Self {
        Self {
            a: self.a.filter(|_| self.a == other.a),
            x: self.x.filter(|_| self.x == other.x),
        }
    }
}

/// The continuation of a filter after an instruction.
enum Step {
    On,
    /// Skips one of these numbers of instructions.
    Jump(Vec<usize>),
    /// This is the answer; `None`: the call is made.
    Ends(Option<Verdict>),
}

/// As `linux/filter.h` and seccomp(2) have it.
fn step(instruction: &sock_filter, state: &mut State, call: &ForeseenCall) -> Step {
    use libc::{
        BPF_A, BPF_ABS, BPF_ALU, BPF_IMM, BPF_JMP, BPF_K, BPF_LD, BPF_LDX, BPF_LEN, BPF_MEM,
        BPF_MISC, BPF_RET, BPF_ST, BPF_STX, BPF_TAX, BPF_TXA, BPF_W, BPF_X,
    };
    let code = u32::from(instruction.code);
    let is = |parts: &[u32]| code == parts.iter().fold(0, |all, part| all | part);
    let k = instruction.k;
    match bpf_class(code) {
        BPF_RET if is(&[BPF_RET, BPF_K]) => return Step::Ends(verdict(k)),
        BPF_RET if is(&[BPF_RET, BPF_A]) => {
            return Step::Ends(state.a.map_or(Some(Verdict::Depends), verdict));
        }
        BPF_LD if is(&[BPF_LD, BPF_W, BPF_ABS]) => state.a = word_of(call, k),
        BPF_LD if is(&[BPF_LD, BPF_W, BPF_LEN]) => {
            state.a = Some(size_of::<seccomp_data>() as u32);
        }
        BPF_LD if is(&[BPF_LD, BPF_IMM]) => state.a = Some(k),
        BPF_LD if is(&[BPF_LD, BPF_MEM]) => state.a = None,
        BPF_LDX if is(&[BPF_LDX, BPF_W, BPF_IMM]) => state.x = Some(k),
        BPF_LDX => state.x = None,
        BPF_ST | BPF_STX => {}
        BPF_MISC if is(&[BPF_MISC, BPF_TAX]) => state.x = state.a,
        BPF_MISC if is(&[BPF_MISC, BPF_TXA]) => state.a = state.x,
        BPF_ALU => {
            let with = if code & BPF_X == 0 { Some(k) } else { state.x };
            // The kernel takes a division by zero for `SECCOMP_RET_KILL_THREAD`.
            if bpf_op(code) == libc::BPF_DIV && with.is_none_or(|by| by == 0) {
                return Step::Ends(Some(with.map_or(Verdict::Depends, |_| Verdict::Kills)));
            }
            state.a = computed(bpf_op(code), state.a, with);
        }
        BPF_JMP => return jump(instruction, *state),
        _ => return Step::Ends(Some(Verdict::Depends)),
    }
    Step::On
}

fn jump(instruction: &sock_filter, state: State) -> Step {
    use libc::{BPF_JA, BPF_JEQ, BPF_JGE, BPF_JGT, BPF_JSET, BPF_X};
    let code = u32::from(instruction.code);
    let ways = [instruction.jt, instruction.jf].map(usize::from);
    let with = match code & BPF_X {
        0 => Some(instruction.k),
        _ => state.x,
    };
    let compare: fn(u32, u32) -> bool = match bpf_op(code) {
        BPF_JA => return Step::Jump(vec![instruction.k as usize]),
        BPF_JEQ => |a, b| a == b,
        BPF_JGT => |a, b| a > b,
        BPF_JGE => |a, b| a >= b,
        BPF_JSET => |a, b| a & b != 0,
        _ => return Step::Ends(Some(Verdict::Depends)),
    };
    match state.a.zip(with) {
        Some((a, b)) if compare(a, b) => Step::Jump(vec![ways[0]]),
        Some(_) => Step::Jump(vec![ways[1]]),
        None => Step::Jump(ways.into()),
    }
}

/// Returns the word of `struct seccomp_data` at an offset, as far as it is known of a call. The
/// address of the instruction that makes it is not.
fn word_of(call: &ForeseenCall, offset: u32) -> Option<u32> {
    const ARGUMENTS: usize = offset_of!(seccomp_data, args);
    const WORDS: usize = size_of::<u64>() / size_of::<u32>();
    let at = offset as usize;
    if at == offset_of!(seccomp_data, nr) {
        return Some(call.number as u32);
    }
    if at == offset_of!(seccomp_data, arch) {
        return Some(SECCOMP_ARCH_NATIVE);
    }
    let word = at.checked_sub(ARGUMENTS)? / size_of::<u32>();
    let argument = (*call.arguments.get(word / WORDS)?)?;
    // The low word comes first, as on all machines that Beeline serves.
    Some((argument >> (u32::BITS as usize * (word % WORDS))) as u32)
}

/// Returns what an answer of a filter means; `None` if the call is made.
fn verdict(answer: u32) -> Option<Verdict> {
    Some(match answer & libc::SECCOMP_RET_ACTION_FULL {
        libc::SECCOMP_RET_ALLOW | libc::SECCOMP_RET_LOG => return None,
        libc::SECCOMP_RET_ERRNO => {
            // As the kernel does. Without a number, the call is not made and seems to succeed.
            match (answer & libc::SECCOMP_RET_DATA).min(MAX_ERRNO) {
                0 => Verdict::Depends,
                errno => Verdict::Fails(Errno::from_raw_os_error(errno.cast_signed())),
            }
        }
        libc::SECCOMP_RET_TRAP => Verdict::Traps,
        libc::SECCOMP_RET_TRACE | libc::SECCOMP_RET_USER_NOTIF => Verdict::Asks,
        // The kernel takes an action that it does not know for this one, too.
        _ => Verdict::Kills,
    })
}

/// Returns the result of an operation of a filter, where that is known.
fn computed(operation: u32, a: Option<u32>, b: Option<u32>) -> Option<u32> {
    let (a, b) = a.zip(b)?;
    Some(match operation {
        libc::BPF_ADD => a.wrapping_add(b),
        libc::BPF_SUB => a.wrapping_sub(b),
        libc::BPF_AND => a & b,
        libc::BPF_OR => a | b,
        libc::BPF_XOR => a ^ b,
        libc::BPF_LSH => a.checked_shl(b)?,
        libc::BPF_RSH => a.checked_shr(b)?,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W};

    use super::*;

    const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
    const ERRNO: u32 = libc::SECCOMP_RET_ERRNO | 1;
    const NUMBER: u32 = 0;
    const FIRST_ARGUMENT: u32 = 16;

    /// True if all calls with these numbers pass.
    fn lets_us_pass(filter: &[sock_filter]) -> bool {
        let numbers = [libc::SYS_mmap, libc::SYS_futex, libc::SYS_process_vm_readv];
        let calls = numbers.map(|number| ForeseenCall::new("", number as u64, ""));
        calls.iter().all(|call| objection(filter, call).is_none())
    }

    fn instruction(code: u32, value: u32, if_true: u8, if_false: u8) -> sock_filter {
        sock_filter {
            code: code as u16,
            jt: if_true,
            jf: if_false,
            k: value,
        }
    }

    fn load(offset: u32) -> sock_filter {
        instruction(BPF_LD | BPF_W | BPF_ABS, offset, 0, 0)
    }

    fn is(value: u32, if_true: u8, if_false: u8) -> sock_filter {
        instruction(BPF_JMP | BPF_JEQ | BPF_K, value, if_true, if_false)
    }

    fn end(action: u32) -> sock_filter {
        instruction(BPF_RET | BPF_K, action, 0, 0)
    }

    #[test]
    fn any_error_number_is_taken_as_the_kernel_takes_it() {
        for (number, passes) in [(0, false), (1, false), (4095, false), (0xffff, false)] {
            let filter = [end(libc::SECCOMP_RET_ERRNO | number)];
            assert_eq!(lets_us_pass(&filter), passes, "{number}");
        }
    }

    #[test]
    fn a_filter_that_may_divide_by_zero_does_not_let_pass() {
        let one = |code, k| sock_filter {
            code: code as u16,
            jt: 0,
            jf: 0,
            k,
        };
        let divide = one(libc::BPF_ALU | libc::BPF_DIV | libc::BPF_X, 0);
        let by = |value| one(libc::BPF_LDX | BPF_W | libc::BPF_IMM, value);
        assert!(lets_us_pass(&[by(2), divide, end(ALLOW)]));
        assert!(!lets_us_pass(&[by(0), divide, end(ALLOW)]));
        let unknown = [
            one(
                BPF_LD | BPF_W | BPF_ABS,
                offset_of!(seccomp_data, instruction_pointer) as u32,
            ),
            one(libc::BPF_MISC | libc::BPF_TAX, 0),
        ];
        assert!(!lets_us_pass(
            &[&unknown[..], &[divide, end(ALLOW)]].concat()
        ));
    }

    #[test]
    fn filters_of_what_we_do_not_need_let_us_pass() {
        let fork = libc::SYS_fork as u32;
        assert!(lets_us_pass(&[end(ALLOW)]));
        assert!(lets_us_pass(&[end(libc::SECCOMP_RET_LOG)]));
        let but_fork = [load(NUMBER), is(fork, 0, 1), end(ERRNO), end(ALLOW)];
        assert!(lets_us_pass(&but_fork));
    }

    #[test]
    fn filters_of_what_we_need_do_not() {
        let read = libc::SYS_process_vm_readv as u32;
        for action in [
            ERRNO,
            libc::SECCOMP_RET_TRAP,
            libc::SECCOMP_RET_KILL_PROCESS,
            libc::SECCOMP_RET_TRACE,
            libc::SECCOMP_RET_USER_NOTIF,
        ] {
            assert!(!lets_us_pass(&[end(action)]));
            let one = [load(NUMBER), is(read, 0, 1), end(action), end(ALLOW)];
            assert!(!lets_us_pass(&one));
        }
    }

    /// Some of its arguments may be Beeline's.
    #[test]
    fn calls_judged_by_arguments_count_as_forbidden() {
        let filter = [load(FIRST_ARGUMENT), is(0, 1, 0), end(ALLOW), end(ERRNO)];
        assert!(!lets_us_pass(&filter));
        let either = [load(FIRST_ARGUMENT), is(0, 1, 0), end(ALLOW), end(ALLOW)];
        assert!(lets_us_pass(&either));
    }

    #[test]
    fn calls_judged_by_known_arguments() {
        let mmap = |protection: i32| {
            let number = libc::SYS_mmap as u64;
            ForeseenCall::new("mmap", number, "").with(2, protection as u64)
        };
        const PROTECTION: u32 = 32;
        let writes_and_runs = (libc::PROT_WRITE | libc::PROT_EXEC) as u32;
        // As systemd's MemoryDenyWriteExecute=.
        let filter = [
            load(NUMBER),
            is(libc::SYS_mmap as u32, 0, 4),
            load(PROTECTION),
            instruction(libc::BPF_ALU | libc::BPF_AND, writes_and_runs, 0, 0),
            is(writes_and_runs, 0, 1),
            end(ERRNO),
            end(ALLOW),
        ];
        let read_execute = mmap(libc::PROT_READ | libc::PROT_EXEC);
        assert_eq!(objection(&filter, &read_execute), None);
        let fails = Some(Verdict::Fails(Errno::PERM));
        let all = mmap(libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC);
        assert_eq!(objection(&filter, &all), fails);
        let unknown = ForeseenCall::new("mmap", libc::SYS_mmap as u64, "");
        assert_eq!(objection(&filter, &unknown), Some(Verdict::Depends));
        // The upper half counts as well.
        let upper = [load(PROTECTION + 4), is(0, 0, 1), end(ALLOW), end(ERRNO)];
        assert_eq!(objection(&upper, &read_execute), None);
        assert_eq!(objection(&upper, &unknown), Some(Verdict::Depends));
    }

    #[test]
    fn answers_are_told_apart() {
        let call = ForeseenCall::new("", 1, "");
        for (answer, verdict) in [
            (ERRNO, Verdict::Fails(Errno::PERM)),
            (libc::SECCOMP_RET_TRAP, Verdict::Traps),
            (libc::SECCOMP_RET_KILL_THREAD, Verdict::Kills),
            (libc::SECCOMP_RET_KILL_PROCESS, Verdict::Kills),
            (libc::SECCOMP_RET_USER_NOTIF, Verdict::Asks),
            (libc::SECCOMP_RET_TRACE, Verdict::Asks),
        ] {
            assert_eq!(objection(&[end(answer)], &call), Some(verdict));
            let register = [
                instruction(BPF_LD, answer, 0, 0),
                instruction(BPF_RET | libc::BPF_A, 0, 0, 0),
            ];
            assert_eq!(objection(&register, &call), Some(verdict));
        }
    }

    /// A register is known after a join only as far as both paths agree.
    #[test]
    fn ways_that_meet_forget_where_they_differ() {
        let set = |value| instruction(BPF_LD, value, 0, 0);
        let skip = |count| instruction(BPF_JMP, count, 0, 0);
        let filter = |other| {
            [
                load(FIRST_ARGUMENT),
                is(0, 0, 2),
                set(1),
                skip(1),
                set(other),
                is(1, 0, 1),
                end(ALLOW),
                end(ERRNO),
            ]
        };
        assert!(lets_us_pass(&filter(1)));
        assert!(!lets_us_pass(&filter(2)));
    }

    #[test]
    fn any_bytes_end() {
        let mut seed = 1u64;
        for _ in 0..20_000 {
            let mut next = || {
                seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1);
                (seed >> 33) as u32
            };
            let len = 1 + next() as usize % 20;
            let any = (0..len).map(|_| {
                let (code, jumps) = (next() % 0x100, next());
                instruction(code, next() % 20, jumps as u8 % 8, (jumps >> 8) as u8 % 8)
            });
            let mut filter: Vec<_> = any.collect();
            let _ = lets_us_pass(&filter);
            filter.push(end(ERRNO));
            assert!(!lets_us_pass(&filter[len..]));
        }
        assert!(!lets_us_pass(&[]));
        assert!(!lets_us_pass(&[instruction(BPF_JMP, u32::MAX, 0, 0)]));
    }
}

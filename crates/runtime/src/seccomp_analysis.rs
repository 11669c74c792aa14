//! Analysis of a seccomp filter without running it: which of Beeline's own system calls it would
//! harm.

use std::collections::BTreeMap;

use beeline_inject::Process;
use beeline_uapi::linux::{BPF_MAXINSNS, SECCOMP_ARCH_NATIVE, bpf_class, bpf_op};

/// A `struct sock_filter` of `linux/filter.h`.
#[derive(Debug, Clone, Copy)]
pub struct Instruction {
    code: u16,
    if_true: u8,
    if_false: u8,
    value: u32,
}

/// The size of an instruction in bytes.
const LEN: usize = size_of::<libc::sock_filter>();

/// The calls that Beeline makes in a target: those of its agent, and those that it runs there to
/// attach and to leave.
const OWN_CALLS: &[libc::c_long] = &[
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_close,
    libc::SYS_futex,
    libc::SYS_getcpu,
    libc::SYS_getegid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_getuid,
    libc::SYS_madvise,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_munmap,
    libc::SYS_nanosleep,
    libc::SYS_prctl,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_recvmsg,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_sched_yield,
    libc::SYS_sigaltstack,
    libc::SYS_socket,
];

/// Returns the filter that a process is about to install, given the address of its `struct
/// sock_fprog`. `None` if the kernel would not take it either.
pub fn filter_at(process: &Process, address: u64) -> Option<Vec<Instruction>> {
    let mut head = [0; 16];
    process.read_memory(address, &mut head).ok()?;
    let len = usize::from(u16::from_ne_bytes([head[0], head[1]]));
    let place = u64::from_ne_bytes(head[8..].try_into().ok()?);
    if !(1..=BPF_MAXINSNS).contains(&len) {
        return None;
    }
    let mut bytes = vec![0; len * LEN];
    process.read_memory(place, &mut bytes).ok()?;
    let instructions = bytes.chunks_exact(LEN).map(|one| Instruction {
        code: u16::from_ne_bytes([one[0], one[1]]),
        if_true: one[2],
        if_false: one[3],
        value: u32::from_ne_bytes([one[4], one[5], one[6], one[7]]),
    });
    Some(instructions.collect())
}

/// True if it lets all calls pass that Beeline makes in a target, whatever their arguments are and
/// wherever they are made.
pub fn lets_us_pass(filter: &[Instruction]) -> bool {
    let numbers = OWN_CALLS.iter().map(|number| *number as u32);
    numbers.into_iter().all(|number| lets_pass(filter, number))
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

/// True if every way through the filter that a call with this number can take ends by letting it
/// pass. An instruction that is not understood does not.
fn lets_pass(filter: &[Instruction], number: u32) -> bool {
    // Branches lead forwards only, so all ways to an instruction are known when its turn comes.
    let mut waiting = BTreeMap::from([(0, State::default())]);
    while let Some((at, mut state)) = waiting.pop_first() {
        let Some(instruction) = filter.get(at) else {
            return false;
        };
        let next = match instruction.step(&mut state, number) {
            Step::On => vec![0],
            Step::Jump(distances) => distances,
            Step::Passes => continue,
            Step::Other => return false,
        };
        for distance in next {
            let known = waiting.entry(at + 1 + distance).or_insert(state);
            *known = known.joined(state);
        }
    }
    true
}

/// The continuation of a filter after an instruction.
enum Step {
    On,
    /// Skips one of these numbers of instructions.
    Jump(Vec<usize>),
    /// The call is made.
    Passes,
    /// The call is not made, or that is not known.
    Other,
}

impl Instruction {
    /// As `linux/filter.h` and seccomp(2) have it.
    fn step(&self, state: &mut State, number: u32) -> Step {
        use libc::{
            BPF_ABS, BPF_ALU, BPF_IMM, BPF_JMP, BPF_K, BPF_LD, BPF_LDX, BPF_LEN, BPF_MEM, BPF_MISC,
            BPF_RET, BPF_ST, BPF_STX, BPF_TAX, BPF_TXA, BPF_W, BPF_X,
        };
        const NUMBER: u32 = std::mem::offset_of!(libc::seccomp_data, nr) as u32;
        const ARCH: u32 = std::mem::offset_of!(libc::seccomp_data, arch) as u32;
        let code = u32::from(self.code);
        let is = |parts: &[u32]| code == parts.iter().fold(0, |all, part| all | part);
        let k = self.value;
        if is(&[BPF_RET, BPF_K]) {
            return match k & libc::SECCOMP_RET_ACTION_FULL {
                libc::SECCOMP_RET_ALLOW | libc::SECCOMP_RET_LOG => Step::Passes,
                _ => Step::Other,
            };
        }
        match bpf_class(code) {
            BPF_LD if is(&[BPF_LD, BPF_W, BPF_ABS]) => {
                state.a = match k {
                    NUMBER => Some(number),
                    ARCH => Some(SECCOMP_ARCH_NATIVE),
                    _ => None,
                }
            }
            BPF_LD if is(&[BPF_LD, BPF_W, BPF_LEN]) => {
                state.a = Some(size_of::<libc::seccomp_data>() as u32);
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
                state.a = computed(bpf_op(code), state.a, with);
            }
            BPF_JMP => return self.jump(*state),
            _ => return Step::Other,
        }
        Step::On
    }

    fn jump(&self, state: State) -> Step {
        use libc::{BPF_JA, BPF_JEQ, BPF_JGE, BPF_JGT, BPF_JSET, BPF_X};
        let code = u32::from(self.code);
        let ways = [self.if_true, self.if_false].map(usize::from);
        let with = match code & BPF_X {
            0 => Some(self.value),
            _ => state.x,
        };
        let compare: fn(u32, u32) -> bool = match bpf_op(code) {
            BPF_JA => return Step::Jump(vec![self.value as usize]),
            BPF_JEQ => |a, b| a == b,
            BPF_JGT => |a, b| a > b,
            BPF_JGE => |a, b| a >= b,
            BPF_JSET => |a, b| a & b != 0,
            _ => return Step::Other,
        };
        match state.a.zip(with) {
            Some((a, b)) if compare(a, b) => Step::Jump(vec![ways[0]]),
            Some(_) => Step::Jump(vec![ways[1]]),
            None => Step::Jump(ways.into()),
        }
    }
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

    fn instruction(code: u32, value: u32, if_true: u8, if_false: u8) -> Instruction {
        Instruction {
            code: code as u16,
            if_true,
            if_false,
            value,
        }
    }

    fn load(offset: u32) -> Instruction {
        instruction(BPF_LD | BPF_W | BPF_ABS, offset, 0, 0)
    }

    fn is(value: u32, if_true: u8, if_false: u8) -> Instruction {
        instruction(BPF_JMP | BPF_JEQ | BPF_K, value, if_true, if_false)
    }

    fn end(action: u32) -> Instruction {
        instruction(BPF_RET | BPF_K, action, 0, 0)
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

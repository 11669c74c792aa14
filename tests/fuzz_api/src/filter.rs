//! The seccomp filters of hostile processes.

use beeline_runtime::fuzz_api::verdicts;
use beeline_uapi::foreseen::ForeseenCall;
use beeline_uapi::linux::{SECCOMP_ARCH_NATIVE, bpf_class, bpf_op};

/// Bytes of a `struct sock_filter`.
const LEN: usize = size_of::<libc::sock_filter>();
/// Bytes of a `struct seccomp_data`, as words of 32 bits.
const WORDS: usize = size_of::<libc::seccomp_data>() / 4;
/// The most instructions.
const MOST: usize = 256;

/// A filter. Calls that it is said to let pass do pass.
pub fn seccomp_filter(data: &[u8]) {
    passes(data);
}

/// Does the same, and returns whether it lets all of Beeline's calls pass.
pub fn passes(data: &[u8]) -> bool {
    let data = &data[..data.len().min(MOST * LEN)];
    let filter: Vec<_> = data.chunks_exact(LEN).map(decoded).collect();
    let verdicts = verdicts(data);
    for (call, _) in verdicts.iter().filter(|(_, passes)| *passes) {
        for unknown in [0, 1, u64::MAX, 0x5555_5555_5555_5555] {
            let words = words_of(call, unknown);
            let action = run(&filter, &words).map(|result| result & libc::SECCOMP_RET_ACTION_FULL);
            let is_passed = matches!(
                action,
                None | Some(libc::SECCOMP_RET_ALLOW | libc::SECCOMP_RET_LOG)
            );
            assert!(is_passed, "{call:?} gets {action:x?}");
        }
    }
    verdicts.iter().all(|(_, passes)| *passes)
}

/// Returns the `struct seccomp_data` of a call, with the same value for all that is not known of it.
fn words_of(call: &ForeseenCall, unknown: u64) -> [u32; WORDS] {
    let halves = |value: u64| [value as u32, (value >> u32::BITS) as u32];
    let arguments = call.arguments.map(|known| halves(known.unwrap_or(unknown)));
    let mut words = [0; WORDS];
    (words[0], words[1]) = (call.number as u32, SECCOMP_ARCH_NATIVE);
    words[2..4].copy_from_slice(&halves(unknown));
    words[4..].copy_from_slice(arguments.as_flattened());
    words
}

fn decoded(bytes: &[u8]) -> libc::sock_filter {
    libc::sock_filter {
        code: u16::from_ne_bytes([bytes[0], bytes[1]]),
        jt: bytes[2],
        jf: bytes[3],
        k: u32::from_ne_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
    }
}

/// Runs a filter on a `struct seccomp_data`, as bpf(4) and seccomp(2) say. `None` if it does what
/// the kernel would not take.
fn run(filter: &[libc::sock_filter], data: &[u32; WORDS]) -> Option<u32> {
    use libc::*;
    let (mut a, mut x, mut memory) = (0u32, 0u32, [None; 16]);
    let mut at = 0;
    loop {
        let one = filter.get(at)?;
        at += 1;
        let (code, k) = (u32::from(one.code), one.k);
        let is = |parts: u32| code == parts;
        let slot = k as usize;
        match bpf_class(code) {
            BPF_RET if is(BPF_RET | BPF_K) => return Some(k),
            BPF_RET if is(BPF_RET | BPF_A) => return Some(a),
            BPF_LD if is(BPF_LD | BPF_W | BPF_ABS) && k.is_multiple_of(4) => {
                a = *data.get(slot / 4)?
            }
            BPF_LD if is(BPF_LD | BPF_W | BPF_LEN) => a = 4 * WORDS as u32,
            BPF_LD if is(BPF_LD | BPF_IMM) => a = k,
            BPF_LD if is(BPF_LD | BPF_MEM) => a = (*memory.get(slot)?)?,
            BPF_LDX if is(BPF_LDX | BPF_W | BPF_LEN) => x = 4 * WORDS as u32,
            BPF_LDX if is(BPF_LDX | BPF_W | BPF_IMM) => x = k,
            BPF_LDX if is(BPF_LDX | BPF_W | BPF_MEM) => x = (*memory.get(slot)?)?,
            BPF_ST if is(BPF_ST) => *memory.get_mut(slot)? = Some(a),
            BPF_STX if is(BPF_STX) => *memory.get_mut(slot)? = Some(x),
            BPF_MISC if is(BPF_MISC | BPF_TAX) => x = a,
            BPF_MISC if is(BPF_MISC | BPF_TXA) => a = x,
            BPF_ALU => {
                let by = if code & BPF_X == 0 { k } else { x };
                a = match bpf_op(code) {
                    BPF_ADD => a.wrapping_add(by),
                    BPF_SUB => a.wrapping_sub(by),
                    BPF_MUL => a.wrapping_mul(by),
                    BPF_DIV if by == 0 && code & BPF_X != 0 => {
                        return Some(SECCOMP_RET_KILL_THREAD);
                    }
                    BPF_DIV => a.checked_div(by)?,
                    BPF_AND => a & by,
                    BPF_OR => a | by,
                    BPF_XOR => a ^ by,
                    BPF_LSH if by < 32 || code & BPF_X != 0 => a.wrapping_shl(by),
                    BPF_RSH if by < 32 || code & BPF_X != 0 => a.wrapping_shr(by),
                    BPF_NEG => a.wrapping_neg(),
                    _ => return None,
                };
            }
            BPF_JMP => {
                let with = if code & BPF_X == 0 { k } else { x };
                let is_so = match bpf_op(code) {
                    BPF_JA => {
                        at = at.checked_add(slot)?;
                        continue;
                    }
                    BPF_JEQ => a == with,
                    BPF_JGT => a > with,
                    BPF_JGE => a >= with,
                    BPF_JSET => a & with != 0,
                    _ => return None,
                };
                at += usize::from(if is_so { one.jt } else { one.jf });
            }
            _ => return None,
        }
    }
}

/// Returns filters: two that let Beeline's calls pass, and some that do not.
pub fn filter_seeds() -> Vec<(String, Vec<u8>)> {
    use libc::*;
    let encoded = |filter: &[(u32, u8, u8, u32)]| {
        let one = |(code, jt, jf, k): &(u32, u8, u8, u32)| {
            let mut bytes = [0; LEN];
            bytes[..2].copy_from_slice(&(*code as u16).to_ne_bytes());
            (bytes[2], bytes[3]) = (*jt, *jf);
            bytes[4..].copy_from_slice(&k.to_ne_bytes());
            bytes
        };
        filter.iter().flat_map(one).collect()
    };
    const LOAD: u32 = BPF_LD | BPF_W | BPF_ABS;
    const EQUAL: u32 = BPF_JMP | BPF_JEQ | BPF_K;
    const END: u32 = BPF_RET | BPF_K;
    let errno = SECCOMP_RET_ERRNO | 1;
    let pass = (END, 0, 0, SECCOMP_RET_ALLOW);
    let but = |call: i64| {
        let number = (LOAD, 0, 0, 0);
        [number, (EQUAL, 0, 1, call as u32), (END, 0, 0, errno), pass]
    };
    let seeds: [(&str, Vec<u8>); 5] = [
        ("passes", encoded(&[pass])),
        ("passes-but-fork", encoded(&but(SYS_fork))),
        ("refuses", encoded(&but(SYS_munmap))),
        (
            "refuses-arguments",
            encoded(&[(LOAD, 0, 0, 16), (EQUAL, 0, 1, 0), (END, 0, 0, errno), pass]),
        ),
        (
            "refuses-computed",
            encoded(&[
                (LOAD, 0, 0, 4),
                (BPF_MISC | BPF_TAX, 0, 0, 0),
                (BPF_ST, 0, 0, 3),
                (BPF_LD | BPF_MEM, 0, 0, 3),
                (BPF_ALU | BPF_SUB | BPF_X, 0, 0, 0),
                (BPF_JMP | BPF_JA, 0, 0, 1),
                pass,
                (BPF_JMP | BPF_JGE | BPF_K, 0, 1, 1),
                pass,
                (BPF_RET | BPF_A, 0, 0, 0),
            ]),
        ),
    ];
    seeds.map(|(name, bytes)| (name.to_owned(), bytes)).into()
}

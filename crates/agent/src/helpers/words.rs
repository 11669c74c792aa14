//! Small pure helpers.

use beeline_isa::abi::Run;

use super::context;

/// `bpf_get_prandom_u32`: xorshift64* in the slot, seeded by the runtime.
pub unsafe extern "sysv64" fn get_prandom_u32(
    _: u64,
    _: u64,
    _: u64,
    _: u64,
    _: u64,
    run: *const Run,
) -> u64 {
    // SAFETY: called by a program with its own run, which has leased the slot.
    let state = unsafe { &mut (*context(run).slot).random };
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32
}

/// `bpf_strncmp(s1, s1_sz, s2)`: `s1` may lack a terminator, `s2` is a constant string.
pub unsafe extern "sysv64" fn strncmp(
    s1: u64,
    size: u64,
    s2: u64,
    _: u64,
    _: u64,
    _: *const Run,
) -> u64 {
    for i in 0..size & 0xffff_ffff {
        // SAFETY: the program answers for `size` bytes at `s1` and a terminated `s2`.
        let (a, b) = unsafe { (*((s1 + i) as *const u8), *((s2 + i) as *const u8)) };
        if a != b {
            return if a < b { u64::MAX } else { 1 };
        }
        if a == 0 {
            break;
        }
    }
    0
}

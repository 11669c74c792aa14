//! Small pure helpers.

use super::convention::Readable;
use crate::abi::Context;

/// `bpf_get_prandom_u32`: xorshift64* in the slot, seeded by the runtime.
pub fn get_prandom_u32(context: &mut Context) -> u64 {
    // SAFETY: the slot is leased by this run.
    let state = unsafe { &mut (*context.slot).random };
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32
}

/// `bpf_strncmp(s1, s1_sz, s2)`: `s1` may lack a terminator, `s2` is a constant string.
pub fn strncmp(_: &mut Context, s1: Readable, size: u32, s2: Readable) -> u64 {
    for i in 0..size as usize {
        // SAFETY: the program answers for `size` bytes at `s1` and a terminated `s2`.
        let (a, b) = unsafe { (*s1.as_ptr().add(i), *s2.as_ptr().add(i)) };
        if a != b {
            return if a < b { u64::MAX } else { 1 };
        }
        if a == 0 {
            break;
        }
    }
    0
}

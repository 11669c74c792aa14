//! Bloom filters: sets that may say "perhaps" of a value that was never added, but never "no" of
//! one that was.
//!
//! There is no lock: bits are only ever set, each by an atomic instruction. If a writer dies
//! half-way, some bits of its value are set, as if it had not been added.

use core::sync::atomic::{
    AtomicU64,
    Ordering::{Relaxed, Release},
    fence,
};

use beeline_uapi::Errno;

use crate::{Spec, flags, hash::hash_wide, memory::Memory, words};

/// The number of hash functions of a filter that does not say how many.
const DEFAULT_FUNCTIONS: u32 = 5;

/// Returns the number of bits of a filter, a power of two, by the kernel's rule: 7/5 of a bit
/// (about 1/ln 2) for each hash function of each element, and at least a word; if that is too much,
/// the largest possible number.
pub(crate) fn bits(spec: &Spec) -> u64 {
    let wanted = spec
        .max_entries
        .checked_mul(functions(spec))
        .and_then(|bits| (bits / 5).checked_mul(7));
    match wanted.map(u32::checked_next_power_of_two) {
        Some(Some(bits)) => u64::from(bits).max(64),
        _ => 1 << 32,
    }
}

fn functions(spec: &Spec) -> u32 {
    match spec.map_extra as u32 {
        0 => DEFAULT_FUNCTIONS,
        functions => functions,
    }
}

/// A Bloom filter: a set of values.
#[derive(Clone, Copy)]
pub(crate) struct Bloom<'m> {
    memory: &'m Memory,
}

impl<'m> Bloom<'m> {
    #[inline]
    pub(crate) fn new(memory: &'m Memory) -> Self {
        Self { memory }
    }

    /// Adds a value.
    ///
    /// # Safety
    ///
    /// `value` is readable for `value_size` bytes.
    pub(crate) unsafe fn push(self, value: *const u8, flags: u64) -> Result<(), Errno> {
        if flags != flags::ANY {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the caller promises that `value` is readable for `value_size` bytes.
        unsafe {
            self.bits(value, |word, bit| {
                word.fetch_or(bit, Release);
                true
            })
        };
        Ok(())
    }

    /// Fails with `ENOENT` if a value was never added.
    ///
    /// # Safety
    ///
    /// `value` is readable for `value_size` bytes.
    pub(crate) unsafe fn peek(self, value: *const u8) -> Result<(), Errno> {
        // SAFETY: the caller promises that `value` is readable for `value_size` bytes.
        let all = unsafe { self.bits(value, |word, bit| word.load(Relaxed) & bit != 0) };
        fence(core::sync::atomic::Ordering::Acquire);
        if all { Ok(()) } else { Err(Errno::ENOENT) }
    }

    /// Passes every bit that stands for the value to `each`, with its word, until it returns false.
    /// Returns true if it never did.
    ///
    /// The hash functions are sums of two halves of one hash: as good as independent ones (Kirsch
    /// and Mitzenmacher, 2006).
    ///
    /// # Safety
    ///
    /// `value` is readable for `value_size` bytes.
    unsafe fn bits(self, value: *const u8, each: impl Fn(&AtomicU64, u64) -> bool) -> bool {
        // SAFETY: the caller promises that `value` is readable for `value_size` bytes.
        let hash = unsafe { hash_wide(value, self.memory.spec.value_size as usize) };
        let step = (hash >> 32) as u32 | 1;
        let mut number = hash as u32;
        for _ in 0..functions(&self.memory.spec) {
            let bit = number & self.memory.layout.mask;
            let at = self.memory.at(u64::from(bit / 64).wrapping_mul(8));
            // SAFETY: the bit's number is masked, and the file's first word is aligned.
            if !each(unsafe { words::word(at) }, 1 << (bit % 64)) {
                return false;
            }
            number = number.wrapping_add(step);
        }
        true
    }
}

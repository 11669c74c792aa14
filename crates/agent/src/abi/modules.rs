//! The code whose unwind tables are known.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The head of a list of [`Module`]s, `room` of which follow. In the pool.
///
/// The list that a target points to changes only when it has not been pointed to for a while. A
/// thread that reads one so late finds wrong modules at worst: each number is one word, and a table
/// that a target has once had stays mapped.
#[repr(C)]
#[derive(Debug)]
pub struct ModuleList {
    /// Different for each content; never 0.
    pub generation: AtomicU64,
    /// The number of modules, at most `room`.
    pub count: AtomicU64,
    /// The number that there is room for.
    pub room: u64,
}

/// A mapping with code, in ascending order of address.
#[repr(C)]
#[derive(Debug)]
pub struct Module {
    /// Its first address.
    pub start: AtomicU64,
    /// The address behind it.
    pub end: AtomicU64,
    /// The address that the table's first page stands for.
    pub origin: AtomicU64,
    /// The address of a [`crate::unwind_table::UnwindTable`].
    pub table: AtomicU64,
}

impl ModuleList {
    /// Returns the modules.
    ///
    /// # Safety
    ///
    /// The list must have been placed with its modules behind it.
    pub(crate) unsafe fn modules(&self) -> &[Module] {
        let count = self.count.load(Relaxed).min(self.room) as usize;
        let first = core::ptr::from_ref(self).wrapping_add(1).cast();
        // SAFETY: the caller promises that `room` modules follow.
        unsafe { core::slice::from_raw_parts(first, count) }
    }
}

/// The rule that was found for an address.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct KnownRule {
    /// 0: empty.
    pub address: u64,
    /// A [`crate::unwind_table::Rule`].
    pub rule: u64,
}

/// The rules that a slot's walks have found lately, by address.
#[repr(C)]
#[derive(Debug)]
pub struct KnownRules {
    /// The generation of the list that they were found by; 0 if there are none.
    pub generation: u64,
    /// See above.
    pub rules: [KnownRule; KNOWN_RULES],
}

/// A power of two.
pub const KNOWN_RULES: usize = 256;

//! The kernel's objects in memory of programs: in values of maps, and on the stack (`linux/bpf.h`).
//! Their contents are no part of the interface.

use crate::layout;

layout! {
    /// `struct bpf_spin_lock`.
    pub struct SpinLock {
        /// The lock's word.
        val: u32,
    }

    /// `struct bpf_timer`.
    pub struct Timer {
        /// The kernel's own.
        opaque: [u64; 2],
    }

    /// `struct bpf_dynptr`.
    pub struct Dynptr {
        /// The kernel's own.
        opaque: [u64; 2],
    }
}

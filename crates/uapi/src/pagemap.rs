//! Bits of an entry of `/proc/PID/pagemap`, as in `fs/proc/task_mmu.c` and
//! `Documentation/admin-guide/mm/pagemap.rst`.

/// The number of the page's frame, if it is present and the reader may know.
pub const PM_PFRAME_MASK: u64 = (1 << 55) - 1;
/// Write-protected by a userfaultfd.
pub const PM_UFFD_WP: u64 = 1 << 57;
/// The page is a file's, or anonymous and shared.
pub const PM_FILE: u64 = 1 << 61;
/// The page is in memory.
pub const PM_PRESENT: u64 = 1 << 63;

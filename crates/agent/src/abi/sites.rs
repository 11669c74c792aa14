//! Hooked addresses, and the manifest by which a Beeline that knows nothing of the session finds
//! and restores them.

use core::sync::atomic::{AtomicU32, AtomicUsize};

use super::Target;

/// One hooked address in one target. In the pool.
#[repr(C)]
#[derive(Debug)]
pub struct Site {
    /// The target that contains it.
    pub target: *const Target,
    /// The hooked address.
    pub address: u64,
    /// Programs to run when the site is reached: a [`LinkList`](super::LinkList)'s address, or 0.
    pub entry: AtomicUsize,
    /// Programs to run when the function returns: a [`LinkList`](super::LinkList)'s address, or 0.
    pub returns: AtomicUsize,
    /// The address inside the trampoline that the hooked function returns to while its return is
    /// watched; 0 if it cannot be watched.
    pub return_entry: u64,
    /// The address of the displaced instructions, where a breakpoint's handler goes on.
    pub body: u64,
    /// [`SITE_FUNCTION_ENTRY`], or the result of [`exit_flags`].
    pub flags: u64,
    /// The next site's address, or 0: with [`Manifest::first_site`] a list of all sites, by which
    /// the target is restored.
    pub next: usize,
    /// 0: not patched now, else [`SITE_JUMP`] or [`SITE_BREAKPOINT`].
    pub patched: AtomicU32,
    /// The number of bytes of `original` in use.
    pub original_len: u32,
    /// The bytes that were there before the patch.
    pub original: [u8; ORIGINAL_BYTES],
    /// The file's bytes, which kernel uprobes put back. They differ from `original` if that is
    /// another session's patch.
    pub file: [u8; ORIGINAL_BYTES],
    /// The number of other sessions' patches below this one.
    pub layer: u32,
    /// The level of this session's handler for SIGTRAP that serves it; see
    /// [`TRAP_LEVELS`](super::TRAP_LEVELS).
    pub level: u32,
    /// The bytes that were put there.
    pub patch: [u8; ORIGINAL_BYTES],
    /// The breakpoints at which threads trap beside a kernel uprobe on the same instructions.
    pub traps: [SiteTrap; SITE_TRAPS],
}

/// A breakpoint behind a site's first byte, which a thread reaches only if that byte has been
/// changed from outside the session. The kernel's uprobes do: they run the file's instruction and
/// go on behind it.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SiteTrap {
    /// The address among the moved instructions at which the thread goes on; 0 if there is no such
    /// breakpoint.
    pub resume: u64,
    /// The instruction pointer behind the breakpoint, less the site's address.
    pub behind: u32,
    /// Words of [`PtRegs`](super::PtRegs) that differ from what they were at the site, bit n for
    /// word n.
    pub lost: u32,
    /// The amount to add to the stack pointer to get its value at the site.
    pub stack: i32,
    /// Not 0: the thread has run something else than the site's first instruction, which it has yet
    /// to run.
    pub is_early: u32,
}

/// In [`SiteTrap::resume`] and [`Site::body`]: the breakpoint also belongs to the session with the
/// patch below this one. Its handler, which was there before and is called next, says where the
/// thread goes on.
pub const PASSES_ON: u64 = 1;

/// Entries of [`Site::traps`].
pub const SITE_TRAPS: usize = 8;

/// Room for the instructions that a patch displaces: four bytes and one instruction of the greatest
/// length.
pub const ORIGINAL_BYTES: usize = 24;
/// In [`Site::patched`]: a jump to a trampoline.
pub const SITE_JUMP: u32 = 1;
/// In [`Site::patched`]: a breakpoint, handled by the agent's SIGTRAP handler.
pub const SITE_BREAKPOINT: u32 = 2;

/// The start of every pool: everything that is needed to restore the target, for a Beeline that has
/// never seen it before. The session writes it. Readers read it through `/proc/PID/mem`, and trust
/// it no further than they can check it.
#[repr(C)]
#[derive(Debug)]
pub struct Manifest {
    /// [`MANIFEST_MAGIC`].
    pub magic: u64,
    /// The session's process id.
    pub session: u32,
    /// The target's [`Target::owner`].
    pub owner: u32,
    /// 1: calls are hooked for the session's own sake only, and a session that has programs there
    /// may take them out.
    pub gives_way: AtomicU32,
    /// The kind of this pool: 1 for the target's first, which holds the rest of this page; 0 for a
    /// further one.
    pub first: u32,
    /// The session process's start time, in clock ticks since boot (field 22 of `/proc/PID/stat`).
    pub session_start: u64,
    /// The newest [`Site`]'s address, or 0.
    pub first_site: AtomicUsize,
    /// The private region.
    pub private: usize,
    /// Its bytes.
    pub private_len: usize,
    /// The target's [`crate::returns::ReturnTable`].
    pub returns: usize,
    /// The target's [`Signals`](super::Signals).
    pub signals: usize,
    /// Bit i: the handler that replaces `Signals::saved[i]` is installed.
    pub handlers: AtomicUsize,
    /// The address of the first [`HandlerStub`](super::HandlerStub).
    pub handler: usize,
    /// The newest [`syscalls::Patches`](super::syscalls::Patches)' address, or 0.
    pub first_patches: AtomicUsize,
    /// The newest [`Witness`]' address, or 0.
    pub first_witness: AtomicUsize,
    /// The tool's command line, as far as it fits, NUL-terminated.
    pub tool: [u8; TOOL_BYTES],
}

/// Pages of a file's code that are mapped once more, read-only. No session patches them, so they
/// show the kernel uprobes. In the pool; not for the target.
#[repr(C)]
#[derive(Debug)]
pub struct Witness {
    /// Their address; 0 if they are not mapped any more.
    pub address: AtomicUsize,
    /// Bytes.
    pub len: usize,
    /// Their offset in the file.
    pub offset: u64,
    /// The file's device, as `makedev` has it.
    pub device: u64,
    /// Its inode.
    pub inode: u64,
    /// The next one's address, or 0.
    pub next: usize,
}

/// Room for a command line in a manifest.
pub const TOOL_BYTES: usize = 128;
/// "beeline" and the version of this layout.
pub const MANIFEST_MAGIC: u64 = u64::from_le_bytes(*b"beeline\x0a");

/// In [`Site::flags`]: the first instruction is one that the kernel takes for a function's entry
/// (`push %rbp` or `endbr64`), so the caller is found at the stack pointer and not in the frame
/// chain.
pub const SITE_FUNCTION_ENTRY: u64 = 1;

/// In [`Site::flags`]: a place that its function passes as it returns. Its [`Site::returns`] run
/// there.
pub const SITE_EXIT: u64 = 2;
/// In [`Site::flags`] of such a place: the caller's frame pointer lies below the return address.
pub const SITE_POPS_FRAME_POINTER: u64 = 4;
/// The position in [`Site::flags`] of the number of bytes between the stack pointer and the return
/// address.
const SITE_FRAME_SHIFT: u32 = 8;
const SITE_FRAME_MASK: u64 = (1 << 24) - 1;
/// The position of the distance from the function's start to the site.
const SITE_DISTANCE_SHIFT: u32 = 32;

/// Returns [`Site::flags`] of an exit.
pub fn exit_flags(distance: u32, frame: u32, pops_frame_pointer: bool) -> u64 {
    let pops = if pops_frame_pointer {
        SITE_POPS_FRAME_POINTER
    } else {
        0
    };
    let frame = (u64::from(frame) & SITE_FRAME_MASK) << SITE_FRAME_SHIFT;
    SITE_EXIT | pops | frame | u64::from(distance) << SITE_DISTANCE_SHIFT
}

impl Site {
    /// Returns the bytes between the stack pointer at an exit and the return address.
    #[inline]
    pub fn frame(&self) -> u64 {
        self.flags >> SITE_FRAME_SHIFT & SITE_FRAME_MASK
    }

    /// Returns the function's start, or the site's own address if it is not an exit.
    #[inline]
    pub fn function(&self) -> u64 {
        self.address.wrapping_sub(self.flags >> SITE_DISTANCE_SHIFT)
    }
}

//! Calls that name a file by a path, in processes that the tool has started.
//!
//! The supervisor's filter stops each of them, because a path may lead to what the supervisor
//! stands in for. The agent looks at the path first, which costs much less. A call that the
//! supervisor would only let pass gets a [mark](crate::trapped::PATH_MARK), and the filter lets it
//! pass.

use core::mem::MaybeUninit;
use core::ptr::null;
use core::sync::atomic::Ordering::{Acquire, Relaxed};

use beeline_uapi::linux::AT_FDCWD;
use beeline_uapi::nr;

use super::Call;
use crate::abi::{PendingSignals, PtRegs, Slot, UNDER_FILTER};
use crate::enter::{Job, Leased, new_context};
use crate::helpers::read::copy_string;
use crate::trapped::{PATH_MARK, PATH_MARK_SHIFT, unmarked};

/// Bytes of a path that are looked at. The supervisor looks at a longer one.
const LONGEST: usize = 256;
/// All paths into the session's BPF file system have this in them, but for those that begin in it:
/// see [`Session::any_path`](crate::abi::Session::any_path).
const IN_BPFFS: &[u8] = b"bpf";

/// True if the call names a file by a path, the supervisor would be notified of it, and the path
/// leads to nothing that the supervisor answers for.
#[inline(always)]
pub(super) fn is_plainly_kernels(call: &Call<'_>) -> bool {
    nr::path_argument(call.regs.call_number()).is_some()
        && call.target.flags.load(Relaxed) & UNDER_FILTER != 0
        && call.target.session().any_path.load(Acquire) == 0
        && looked_at(call)
}

/// Looks at the path in a leased slot: the thread's own stack may be a goroutine's.
#[inline(never)]
fn looked_at(call: &Call<'_>) -> bool {
    let Some(leased) = Leased::new(call.target) else {
        return false;
    };
    let mut look = Look {
        call,
        slot: leased.slot,
        cpu: leased.cpu,
        is_elsewhere: false,
    };
    // SAFETY: the work is for this slot.
    unsafe { leased.run(call.control, &mut look) };
    look.is_elsewhere
}

/// A look at a call's path. On the thread's own stack.
struct Look<'a> {
    call: &'a Call<'a>,
    slot: *mut Slot,
    cpu: u32,
    is_elsewhere: bool,
}

impl Job for Look<'_> {
    #[inline(always)]
    unsafe fn run(&mut self) {
        let regs = self.call.regs;
        let [first, second, ..] = regs.call_arguments();
        let (directory, from) = match nr::path_argument(regs.call_number()) {
            Some(0) => (AT_FDCWD, first),
            _ => (first as i32, second),
        };
        let mut room = MaybeUninit::<[u8; LONGEST]>::uninit();
        let to = room.as_mut_ptr().cast::<u8>();
        let mut context = new_context(self.call.target, self.slot, regs, null(), self.cpu);
        // SAFETY: there is room for as many bytes.
        let read = unsafe { copy_string(&mut context, to, from, LONGEST as u64) };
        // The terminator of a longer one is no part of it.
        let Some(len) = read.filter(|len| *len < LONGEST as u64) else {
            return;
        };
        // SAFETY: as many bytes of the room have been filled.
        let path = unsafe { core::slice::from_raw_parts(to, len as usize) };
        // Another directory may be one of the BPF file system's.
        let is_whole = path.first() == Some(&b'/') || directory == AT_FDCWD;
        self.is_elsewhere = is_whole && is_elsewhere(path);
    }

    #[inline(always)]
    fn signals(&self) -> PendingSignals {
        PendingSignals::default()
    }
}

/// True if a path leads to nothing that the supervisor answers for.
fn is_elsewhere(path: &[u8]) -> bool {
    // The file systems in which it stands in for files. A table of them would hold addresses, which
    // the agent must not.
    let is_answered = path.starts_with(b"/sys/") || path.starts_with(b"/proc/");
    let has = |at: usize| {
        path.get(at..)
            .is_some_and(|rest| rest.starts_with(IN_BPFFS))
    };
    !is_answered && !(0..path.len()).any(has)
}

/// Marks a call, if there is room for the mark.
#[inline(always)]
pub(super) fn mark(regs: &mut PtRegs) {
    let last = regs.last_argument();
    if last >> PATH_MARK_SHIFT == 0 {
        regs.set_last_argument(last | PATH_MARK);
    }
}

/// Takes the mark away behind a call.
#[inline(always)]
pub(super) fn unmark(regs: &mut PtRegs) {
    if let Some(last) = unmarked(regs.call_number(), regs.last_argument()) {
        regs.set_last_argument(last);
    }
}

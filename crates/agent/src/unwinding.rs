//! Unwinders that meet watched returns: for a C++ exception, a Rust panic, the end of a thread by
//! `pthread_exit` or `pthread_cancel`, or a list of callers.
//!
//! An unwinder follows the return addresses on the stack, and what the file around each of them
//! says of it. No file says anything of a trampoline. Any unwinder, however late it was loaded,
//! asks the C library for the file of its own code before it looks at any return address. At that
//! point the stack is put right: this thread's watched calls return to their callers, unseen.
//!
//! When the unwinder is done, the calls that are still to return are watched again. That is noticed
//! at the ends of libgcc's own functions; behind other unwinders the returns of calls that were
//! under way are not seen.

use core::mem::MaybeUninit;
use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;

use beeline_isa::abi::Run;
use beeline_uapi::nr;

use crate::abi::{PtRegs, Target};
use crate::returns::ReturnTable;
use crate::{arch, enter, lease, sys};

/// The most bytes between a file's code and the functions of its own that it calls.
const SAME_FILE: u64 = 1 << 20;
/// The number of words at the beginning of what unwinders hand on to their callbacks, one of which
/// is the address that they look for.
const HANDED_ON: usize = 3;
/// An upper bound for the size of a stack.
const FAR: usize = 1 << 36;
const PAGE: usize = beeline_maps::PAGE as usize;
/// The number of pages that are checked in one call.
const PAGES: usize = 32;

/// Handles the C library's `_dl_find_object(address, result)`.
///
/// # Safety
///
/// For a site at that function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn beeline_find_object(regs: *const u8, run: *const Run) -> u64 {
    // SAFETY: entered as a program is, with the registers of the trampoline and the run of a link
    // in a target.
    let (regs, target) = unsafe { (&*regs.cast::<PtRegs>(), target_of(run)) };
    // SAFETY: at a function's start the stack pointer is at the return address.
    let caller = unsafe { *(regs.return_slot() as *const u64) };
    let [address, ..] = regs.arguments();
    // The first thing that an unwinder asks for is its own code.
    if caller.abs_diff(address) < SAME_FILE {
        put_back(target, regs.sp() as usize);
    }
    0
}

/// Handles the C library's `dl_iterate_phdr(callback, data)`, which is used by unwinders that do
/// not know the function above. Other callers, which only want to know what is loaded, hand nothing
/// on that points into their own code.
///
/// # Safety
///
/// For a site at that function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn beeline_iterate_objects(regs: *const u8, run: *const Run) -> u64 {
    // SAFETY: entered as a program is, with the registers of the trampoline and the run of a link
    // in a target.
    let (regs, target) = unsafe { (&*regs.cast::<PtRegs>(), target_of(run)) };
    let (sp, [callback, data, _]) = (regs.sp(), regs.arguments());
    // An unwinder's data are the caller's variables: words of its frame, with more of the stack
    // above.
    if data % 8 != 0 || !(sp..sp + PAGE as u64).contains(&data) {
        return 0;
    }
    // SAFETY: the words are on the stack, as checked above.
    let words = unsafe { *(data as *const [u64; HANDED_ON]) };
    if words.iter().any(|word| word.abs_diff(callback) < SAME_FILE) {
        put_back(target, sp as usize);
    }
    0
}

/// Returns the target of a run.
///
/// # Safety
///
/// The run must be one of a link in a target.
unsafe fn target_of<'a>(run: *const Run) -> &'a Target {
    const { assert!(core::mem::offset_of!(Target, helpers) == 0) };
    // SAFETY: the caller promises that the link is in a target; its table of helpers is that
    // target's own.
    unsafe { &*(*run).helpers.cast::<Target>() }
}

/// Handles an unwinder that leaves to where an exception is caught.
///
/// # Safety
///
/// For a site at such an instruction.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn beeline_landing(regs: *const u8, run: *const Run) -> u64 {
    // SAFETY: entered as a program is, with the registers of the trampoline and the run of a link
    // in a target.
    let (regs, target) = unsafe { (&*regs.cast::<PtRegs>(), target_of(run)) };
    watch_again(target, regs.sp() as usize, regs.landing_sp() as usize);
    0
}

/// Handles the return of an unwinder that has listed the callers.
///
/// # Safety
///
/// For a site in such a function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn beeline_listed(regs: *const u8, run: *const Run) -> u64 {
    // SAFETY: entered as a program is, with the registers of the trampoline and the run of a link
    // in a target.
    let (regs, target) = unsafe { (&*regs.cast::<PtRegs>(), target_of(run)) };
    watch_again(target, regs.sp() as usize, regs.sp() as usize);
    0
}

/// Restores the callers' addresses in all slots of this thread's stack above `sp`.
fn put_back(target: &Target, sp: usize) {
    let table = target.returns();
    let stack = Stack::around(sp, table);
    let is_wanted = |key: usize, is_own: bool| stack.has(key) || is_own && stack.is_behind(key);
    let below = if stack.is_alternate { 0 } else { sp };
    if !is_traced(target) {
        table.forget_lock();
    }
    let lost = table.put_back(below, lease::owner(target), is_wanted);
    count_lost(target, lost);
}

/// True if the target is traced. Returns of a forked child belong to no session.
fn is_traced(target: &Target) -> bool {
    target.control().pid.load(Relaxed) != 0
}

fn count_lost(target: &Target, lost: u64) {
    if lost != 0 && is_traced(target) {
        enter::miss_some(target, lost);
    }
}

/// Watches again the calls that are under way from `from` on, seen from an unwinder at `sp`.
fn watch_again(target: &Target, sp: usize, from: usize) {
    // In a forked child returns are not reported, but they work.
    let table = target.returns();
    let owner = lease::owner(target);
    if !table.has_away(owner) {
        return;
    }
    let stack = Stack::around(sp, table);
    let lost = table.watch_again(owner, |key| match stack.has(key) {
        true => key > from,
        // An exception that has left the alternate stack.
        false if !stack.has(from) => key > from && stack.is_behind(key),
        false => stack.is_behind(key),
    });
    count_lost(target, lost);
}

/// The stack that a thread is on, from its stack pointer up.
struct Stack {
    used: Range<usize>,
    /// True if it is a signal handler's own.
    is_alternate: bool,
}

impl Stack {
    fn around(sp: usize, table: &ReturnTable) -> Self {
        let alternate = sys::alternate_stack().filter(|stack| stack.contains(&sp));
        let thread = arch::thread_pointer();
        let end = match &alternate {
            Some(stack) => stack.end,
            // C libraries put the thread's own record at the end of its stack, except for a
            // process's first thread.
            None if (sp..sp + FAR).contains(&thread) => thread,
            None => sp + FAR,
        };
        // Coroutines have stacks below the thread's. These end where nothing is mapped.
        let used = match table.highest(&(sp..end)) {
            Some(top) => sp..readable_end(sp, top + 8),
            None => sp..sp,
        };
        Self {
            used,
            is_alternate: alternate.is_some(),
        }
    }

    fn has(&self, slot: usize) -> bool {
        self.used.contains(&slot)
    }

    /// True if the slot of a call of this thread may lie on the stack that it was on before. A
    /// handler on an alternate stack has interrupted calls on another one, and nothing says which.
    fn is_behind(&self, slot: usize) -> bool {
        self.is_alternate && !self.has(slot) && readable_end(slot, slot + 8) == slot + 8
    }
}

/// Returns `end`, or the first page below it and above `start` that cannot be read.
fn readable_end(start: usize, end: usize) -> usize {
    // In a forked child, and in one of vfork, it is not the target's.
    let pid = sys::pid().into();
    let mut page = start & !(PAGE - 1);
    while page < end {
        // Not filled beforehand: the agent has no `memset`.
        let mut bytes = MaybeUninit::<[u8; PAGES]>::uninit();
        let mut places = MaybeUninit::<[[usize; 2]; PAGES]>::uninit();
        let count = (end - page).div_ceil(PAGE).min(PAGES);
        for i in 0..count {
            // SAFETY: the index is below `PAGES`.
            unsafe {
                places
                    .as_mut_ptr()
                    .cast::<[usize; 2]>()
                    .add(i)
                    .write([page + i * PAGE, 1])
            };
        }
        let to = [(&raw mut bytes) as usize, count];
        // SAFETY: the kernel writes at most `count` bytes, for which there is room, and reports
        // what cannot be read.
        let read = unsafe {
            sys::syscall6(
                nr::PROCESS_VM_READV,
                [
                    pid,
                    (&raw const to) as u64,
                    1,
                    (&raw const places) as u64,
                    count as u64,
                    0,
                ],
            )
        };
        let read = usize::try_from(read).unwrap_or(0);
        page += read * PAGE;
        if read < count {
            return page.max(start);
        }
    }
    end
}

//! Unwinders that meet watched returns: for a C++ exception, a Rust panic, the end of a thread by `pthread_exit` or
//! `pthread_cancel`, or a list of callers.
//!
//! An unwinder goes by the return addresses on the stack, and by what the file around each of them says of it. Of a
//! trampoline no file says anything. Whichever unwinder it is, and however late it was loaded: before it looks at any
//! return address it asks the C library for the file of its own code. There the stack is put right: this thread's
//! watched calls return to their callers, unseen.
//!
//! When it is done, those that are still to return are watched again. That is seen at the ends of libgcc's own functions;
//! behind other unwinders the returns of calls that were under way are not seen.

use core::mem::MaybeUninit;
use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;

use beeline_isa::abi::Run;

use crate::abi::{PtRegs, Target};
use crate::enter;
use crate::returns::ReturnTable;
use crate::sys::{self, nr};

/// A file's code and what it calls of its own are not further apart.
const SAME_FILE: u64 = 1 << 20;
/// Words at the beginning of what unwinders hand on to their callbacks, one of which is the address that they look for.
const HANDED_ON: usize = 3;
/// No stack has more.
const FAR: usize = 1 << 36;
const PAGE: usize = 4096;
/// Pages that are looked at in one call.
const PAGES: usize = 32;

/// At the C library's `_dl_find_object(address, result)`.
///
/// # Safety
/// For a site at that function.
#[unsafe(no_mangle)]
pub unsafe extern "sysv64" fn beeline_find_object(regs: *const u8, run: *const Run) -> u64 {
    // SAFETY: entered as a program is.
    let (regs, target) = unsafe { (&*regs.cast::<PtRegs>(), target_of(run)) };
    // SAFETY: at a function's start the stack pointer is at the return address.
    let caller = unsafe { *(regs.sp as *const u64) };
    // The first that an unwinder asks for is its own code.
    if caller.abs_diff(regs.di) < SAME_FILE {
        put_back(target, regs.sp as usize);
    }
    0
}

/// At the C library's `dl_iterate_phdr(callback, data)`, which unwinders use that do not know the function above. Others,
/// who only want to know what is loaded, hand nothing on that points into their own code.
///
/// # Safety
/// For a site at that function.
#[unsafe(no_mangle)]
pub unsafe extern "sysv64" fn beeline_iterate_objects(regs: *const u8, run: *const Run) -> u64 {
    // SAFETY: entered as a program is.
    let (regs, target) = unsafe { (&*regs.cast::<PtRegs>(), target_of(run)) };
    let (sp, data) = (regs.sp, regs.si);
    // An unwinder's data are the caller's variables: words of its frame, with more of the stack above.
    if data % 8 != 0 || !(sp..sp + PAGE as u64).contains(&data) {
        return 0;
    }
    // SAFETY: on the stack, as seen above.
    let words = unsafe { *(data as *const [u64; HANDED_ON]) };
    if words.iter().any(|word| word.abs_diff(regs.di) < SAME_FILE) {
        put_back(target, sp as usize);
    }
    0
}

/// # Safety
/// The run must be one of a link in a target.
unsafe fn target_of<'a>(run: *const Run) -> &'a Target {
    const { assert!(core::mem::offset_of!(Target, helpers) == 0) };
    // SAFETY: the table of helpers that a link has in a target is that target's own.
    unsafe { &*(*run).helpers.cast::<Target>() }
}

/// Where an unwinder leaves to where an exception is caught: rcx has the stack pointer of there.
///
/// # Safety
/// For a site at such an instruction.
#[unsafe(no_mangle)]
pub unsafe extern "sysv64" fn beeline_landing(regs: *const u8, run: *const Run) -> u64 {
    // SAFETY: entered as a program is.
    let (regs, target) = unsafe { (&*regs.cast::<PtRegs>(), target_of(run)) };
    watch_again(target, regs.sp as usize, regs.cx as usize);
    0
}

/// Where an unwinder returns that has listed the callers.
///
/// # Safety
/// For a site in such a function.
#[unsafe(no_mangle)]
pub unsafe extern "sysv64" fn beeline_listed(regs: *const u8, run: *const Run) -> u64 {
    // SAFETY: entered as a program is.
    let (regs, target) = unsafe { (&*regs.cast::<PtRegs>(), target_of(run)) };
    watch_again(target, regs.sp as usize, regs.sp as usize);
    0
}

/// Gives all slots of this thread's stack above `sp` their callers' addresses.
fn put_back(target: &Target, sp: usize) {
    // SAFETY: private memory of the target (or its copy in a forked child), mapped as long as the trampoline is.
    let table = unsafe { &*target.returns };
    let stack = Stack::around(sp, table);
    let is_wanted = |key: usize, is_own: bool| stack.has(key) || is_own && stack.is_behind(key);
    let below = if stack.is_alternate { 0 } else { sp };
    if !is_traced(target) {
        table.forget_lock();
    }
    let lost = table.put_back(below, enter::owner(target), is_wanted);
    count_lost(target, lost);
}

/// A forked child's returns are nobody's.
fn is_traced(target: &Target) -> bool {
    // SAFETY: private memory of the target (or its copy), mapped as long as the trampoline is.
    unsafe { &*target.control }.pid.load(Relaxed) != 0
}

fn count_lost(target: &Target, lost: u64) {
    if lost != 0 && is_traced(target) {
        enter::miss_some(target, lost);
    }
}

/// Watches the calls again that are under way from `from` on, seen from an unwinder at `sp`.
fn watch_again(target: &Target, sp: usize, from: usize) {
    // SAFETY: as above. In a forked child nobody is told of returns, but they work.
    let table = unsafe { &*target.returns };
    let owner = enter::owner(target);
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
    /// It is a signal handler's own.
    is_alternate: bool,
}

impl Stack {
    fn around(sp: usize, table: &ReturnTable) -> Self {
        let alternate = sys::alternate_stack().filter(|stack| stack.contains(&sp));
        let thread = sys::thread_pointer();
        let end = match &alternate {
            Some(stack) => stack.end,
            // Where C libraries put the thread's own record: at the end of its stack, but for a process's first thread.
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

    /// May the slot of a call of this thread's lie on the stack that it was on before? A handler on an alternate stack has
    /// interrupted calls on another one, nobody says which.
    fn is_behind(&self, slot: usize) -> bool {
        self.is_alternate && !self.has(slot) && readable_end(slot, slot + 8) == slot + 8
    }
}

/// `end`, or the first page below it and above `start` that cannot be read.
fn readable_end(start: usize, end: usize) -> usize {
    // SAFETY: only returns a number. In a forked child, and in one of vfork, it is not the target's.
    let pid = unsafe { sys::syscall(nr::GETPID, [0; 4]) } as u64;
    let mut page = start & !(PAGE - 1);
    while page < end {
        // Not filled beforehand: the agent has no `memset`.
        let mut bytes = MaybeUninit::<[u8; PAGES]>::uninit();
        let mut places = MaybeUninit::<[[usize; 2]; PAGES]>::uninit();
        let count = (end - page).div_ceil(PAGE).min(PAGES);
        for i in 0..count {
            // SAFETY: below `PAGES`.
            unsafe {
                places
                    .as_mut_ptr()
                    .cast::<[usize; 2]>()
                    .add(i)
                    .write([page + i * PAGE, 1])
            };
        }
        let to = [(&raw mut bytes) as usize, count];
        // SAFETY: the kernel writes at most `count` bytes, for which there is room, and reports what cannot be read.
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

//! System calls: the way from a stub at a `syscall` instruction into the programs of that call, and
//! back.
//!
//! A stub comes here before the call is made and when it has returned, if [`Calls::watched`] says
//! that something watches the call. Programs see the kernel's own layouts. Where a [`Record`] is
//! enough for all programs of a call, the stub has put it together; otherwise it is made from the
//! registers. The agent's own system calls do not pass here.

mod actions;
mod function;
mod masks;
mod paths;
mod process_events;
mod restored;
mod seen;
pub(crate) mod upcall;
mod waits;

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use beeline_maps::PAGE;
use beeline_uapi::nr;

use crate::abi::syscalls::{CONTEXT_MODIFY, Calls, ENTER, EXIT, MARKABLE, Record};
use crate::abi::{
    Control, FILTERED, IS_CHILD, Link, LinkList, NEEDS_SLOT, Overridden, PendingSignals, PtRegs,
    Slot, Target,
};
use crate::enter::{Job, Leased, links_of, miss, new_context, run};
use crate::helpers::{signal, time};
use crate::sys;
use seen::{Registers, Seen};

/// Tells a stub to make the call.
const MAKE: u64 = 0;
/// Tells a stub that the call's result is there already.
const MADE: u64 = 1;

/// Handles a system call that is about to be made. Returns 0 if it is to be made, with the
/// arguments as they are in `regs` then; else its result is in `regs`.
///
/// # Safety
///
/// For stubs only: `regs` are the registers at the call, `calls` are the target's own, with
/// [`MARKABLE`] in the address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn beeline_call_enter(regs: *mut PtRegs, calls: *const Calls) -> u64 {
    let is_markable = calls.addr() & MARKABLE != 0;
    let calls = unmarkable(calls);
    // SAFETY: these are the stub's own registers, and what the runtime laid out for it.
    let Some(call) = (unsafe { Call::new(&*regs, &*calls, ENTER) }) else {
        return MAKE;
    };
    let overridden = call.run_programs();
    let result = match overridden.is_there {
        0 => process_events::handle(&call),
        _ => Some(overridden.result),
    };
    let Some(result) = result else {
        if is_markable && paths::is_plainly_kernels(&call) {
            // SAFETY: these are the stub's own registers, and the borrow of them has ended.
            unsafe { paths::mark(&mut *regs) };
        }
        return MAKE;
    };
    // SAFETY: these are the stub's own registers, and the borrow of them has ended.
    unsafe { leave_unmade(regs, calls, result) };
    MADE
}

/// Stores a call's result in place of the call and runs the programs behind it, for which the call
/// has been made.
///
/// # Safety
///
/// As for [`beeline_call_enter`]. The borrow of the registers must have ended.
#[cold]
#[inline(never)]
unsafe fn leave_unmade(regs: *mut PtRegs, calls: *const Calls, result: u64) {
    // SAFETY: the caller promises that these are a stub's registers, and that nothing else looks at
    // them now.
    unsafe { (*regs).set_result(result) };
    // SAFETY: the caller promises that these are a stub's registers, and what the runtime laid out
    // for it.
    if let Some(call) = unsafe { Call::new(&*regs, &*calls, EXIT) } {
        call.run_programs();
    }
}

/// Handles a system call that has returned.
///
/// # Safety
///
/// As for [`beeline_call_enter`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn beeline_call_exit(regs: *mut PtRegs, calls: *const Calls) {
    if calls.addr() & MARKABLE != 0 {
        // SAFETY: these are the stub's own registers.
        unsafe { paths::unmark(&mut *regs) };
    }
    let calls = unmarkable(calls);
    // SAFETY: these are the stub's own registers, and what the runtime laid out for it.
    if let Some(call) = unsafe { Call::new(&*regs, &*calls, EXIT) } {
        process_events::handle(&call);
        call.run_programs();
    }
}

/// Handles a system call that is about to be made, has programs that see a [`Record`], and is no
/// process event.
///
/// # Safety
///
/// For stubs only: `record` is the call's, `calls` are the target's own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn beeline_call_compact_enter(record: *const Record, calls: *const Calls) {
    // SAFETY: this is the stub's own record, and what the runtime laid out for it.
    unsafe { run_briefly(&*record, &*unmarkable(calls), ENTER) }
}

/// Handles such a call that has returned.
///
/// # Safety
///
/// As for [`beeline_call_compact_enter`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn beeline_call_compact_exit(record: *const Record, calls: *const Calls) {
    // SAFETY: this is the stub's own record, and what the runtime laid out for it.
    unsafe { run_briefly(&*record, &*unmarkable(calls), EXIT) }
}

/// Runs the programs of one side of a call that see a [`Record`].
///
/// # Safety
///
/// The runtime must have laid `calls` out, with its targets.
#[inline(always)]
unsafe fn run_briefly(record: &Record, calls: &Calls, edge: usize) {
    // SAFETY: the caller promises that the runtime laid out the targets.
    let (own, child) = unsafe { (&*calls.target, &*calls.child) };
    let Some(target) = process_events::target_of(own, child) else {
        return;
    };
    let Some(links) = links_at(calls, edge, record.number as u32) else {
        return;
    };
    if links.needs & NEEDS_SLOT == 0 {
        run_unleased(links, &record);
    } else if is_wanted(target, links, &record) {
        run_leased(target, own.control(), links, &record);
    }
}

/// Returns the address itself.
#[inline(always)]
fn unmarkable(calls: *const Calls) -> *const Calls {
    calls.map_addr(|address| address & !MARKABLE)
}

/// Returns the programs of a call.
#[inline(always)]
fn links_at(calls: &Calls, edge: usize, number: u32) -> Option<&LinkList> {
    let each = calls.each.get(edge)?.get(number as usize);
    let word = each.or_else(|| calls.all.get(edge))?;
    // SAFETY: the word is 0, or a list that was published complete and is kept as long as the pool.
    unsafe { (word.load(Acquire) as *const LinkList).as_ref() }
}

/// One side of one call, with all registers.
struct Call<'a> {
    regs: &'a PtRegs,
    calls: &'a Calls,
    /// The process that makes the call.
    target: &'a Target,
    /// The record for children that share the memory.
    child: &'a Target,
    control: &'a Control,
    edge: usize,
}

impl<'a> Call<'a> {
    /// Creates a call. Returns `None` in a process that does not belong to the session, and where a
    /// helper has asked the vDSO for the time and the vDSO asks the kernel.
    ///
    /// # Safety
    ///
    /// The runtime must have laid `calls` out, with its targets.
    unsafe fn new(regs: &'a PtRegs, calls: &'a Calls, edge: usize) -> Option<Self> {
        // SAFETY: the caller promises that the runtime laid out the targets.
        let (own, child) = unsafe { (&*calls.target, &*calls.child) };
        let target = process_events::target_of(own, child)?;
        if regs.call_number() == nr::CLOCK_GETTIME && time::asks(regs, target) {
            return None;
        }
        Some(Self {
            regs,
            calls,
            target,
            child,
            control: own.control(),
            edge,
        })
    }

    #[inline(always)]
    fn first_argument(&self) -> u64 {
        self.regs.call_arguments()[0]
    }

    /// Does some work where the stack has room for it; the thread's own may be a goroutine's, as in
    /// [`run_unleased`]. Returns `None`, too, if all slots are taken.
    fn with_room<T>(&self, work: fn(&Call<'_>) -> Option<T>) -> Option<T> {
        let leased = Leased::new(self.target)?;
        let mut work = WorkOnCall {
            call: self,
            work,
            result: None,
        };
        // SAFETY: the work needs no more of the slot than its stack.
        unsafe { leased.run(self.control, &mut work) };
        work.result
    }

    /// Reads a word on a page where the stub has saved registers just now: it is there. Returns
    /// `None` for any other word.
    fn word_beside_registers(&self, address: u64) -> Option<u64> {
        let page = |address: u64| address / PAGE;
        let saved = core::ptr::from_ref(self.regs) as u64;
        let first = page(address);
        let is_whole = first == page(address.wrapping_add(size_of::<u64>() as u64 - 1));
        let is_saved = [saved, saved + size_of::<PtRegs>() as u64 - 1].map(page);
        if !is_whole || !is_saved.contains(&first) {
            return None;
        }
        // SAFETY: the word lies on one page, and that page holds some of the registers.
        Some(unsafe { (address as *const u64).read_unaligned() })
    }

    /// Reads words of the process's memory, which may not be there.
    fn words<const LEN: usize>(&self, address: u64) -> Option<[u64; LEN]> {
        let mut words = [0; LEN];
        let len = size_of_val(&words) as u64;
        // SAFETY: there is room for the words.
        let is_read = unsafe { self.copy(words.as_mut_ptr().cast(), address, len) };
        is_read.then_some(words)
    }

    /// Copies bytes of the process's memory, which may not be there.
    ///
    /// # Safety
    ///
    /// `to` must be writable for `len` bytes.
    unsafe fn copy(&self, to: *mut u8, address: u64, len: u64) -> bool {
        // SAFETY: the caller promises that there is room.
        unsafe { sys::read_memory(self.control.own_pid, to, address, len) == len as i64 }
    }

    /// Runs the call's programs. Returns the result that one of them has put in place of the call.
    #[inline(always)]
    fn run_programs(&self) -> Overridden {
        let Some(links) = links_at(self.calls, self.edge, self.regs.call_number() as u32) else {
            return Overridden::default();
        };
        let seen = Registers {
            regs: self.regs,
            edge: self.edge,
        };
        match links.needs & NEEDS_SLOT {
            0 => run_unleased(links, &seen),
            _ if is_wanted(self.target, links, &seen) => {
                run_leased(self.target, self.control, links, &seen)
            }
            _ => Overridden::default(),
        }
    }
}

/// Work with a call, and its outcome. On the thread's own stack.
struct WorkOnCall<'a, T> {
    call: &'a Call<'a>,
    work: fn(&Call<'_>) -> Option<T>,
    result: Option<T>,
}

impl<T> Job for WorkOnCall<'_, T> {
    #[inline(never)]
    unsafe fn run(&mut self) {
        self.result = (self.work)(self.call);
    }

    #[inline(always)]
    fn signals(&self) -> PendingSignals {
        PendingSignals::default()
    }
}

/// Runs programs that need no slot on the thread's own stack.
///
/// That may be a goroutine's with some 600 bytes left: frames here are small, and larger data are
/// on the slot's stack.
#[inline(always)]
fn run_unleased(links: &LinkList, seen: &impl Seen) -> Overridden {
    let mut overridden = Overridden::default();
    // SAFETY: a list is published complete and never changed.
    for link in unsafe { links_of(links) }.filter(|link| seen.is_enough(link)) {
        note(&mut overridden, link, seen.run_unleased(link));
    }
    overridden
}

/// True if any program of a list has to run, as far as their filters can say that.
#[inline(always)]
fn is_wanted(target: &Target, links: &LinkList, seen: &impl Seen) -> bool {
    // A child that shares the memory has ids of its own, which filters do not know.
    let is_asked = links.needs & FILTERED != 0 && target.flags.load(Relaxed) & IS_CHILD == 0;
    !is_asked || passes_a_filter(links, seen)
}

/// True if a filter lets any program of a list run, all of which have filters. It runs on the
/// thread's own stack, as [`run_unleased`] does.
#[inline(never)]
fn passes_a_filter(links: &LinkList, seen: &impl Seen) -> bool {
    // SAFETY: a list is published complete and never changed.
    let mut links = unsafe { links_of(links) }.filter(|link| seen.is_enough(link));
    links.any(|link| {
        link.filter().is_none_or(|filter| {
            let (entry, run) = filter.code();
            // SAFETY: the filter is the link's, and needs no slot.
            unsafe { seen.run_here(link, entry, run) != 0 }
        })
    })
}

/// Leases a slot and runs every program of the list in it.
#[inline(never)]
fn run_leased<S: Seen>(
    target: &Target,
    control: &Control,
    links: &LinkList,
    seen: &S,
) -> Overridden {
    let Some(leased) = Leased::new(target) else {
        miss(target);
        return Overridden::default();
    };
    let mut programs = ProgramsAtCall {
        target,
        seen,
        links,
        slot: leased.slot,
        cpu: leased.cpu,
        signals: PendingSignals::default(),
        overridden: Overridden::default(),
    };
    // SAFETY: the programs are to run in this slot.
    unsafe { leased.run(control, &mut programs) };
    programs.overridden
}

/// The programs of one side of a call, and their outcome. On the thread's own stack, which may be a
/// goroutine's, as in [`run_unleased`]: their context is on the slot's.
struct ProgramsAtCall<'a, S> {
    target: &'a Target,
    seen: &'a S,
    links: &'a LinkList,
    slot: *mut Slot,
    cpu: u32,
    signals: PendingSignals,
    overridden: Overridden,
}

impl<S: Seen> Job for ProgramsAtCall<'_, S> {
    #[inline(never)]
    unsafe fn run(&mut self) {
        let seen = self.seen;
        let mut context = new_context(
            self.target,
            self.slot,
            seen.registers(),
            core::ptr::null(),
            self.cpu,
        );
        let mut room = S::ROOM;
        // SAFETY: a list is published complete and never changed.
        for link in unsafe { links_of(self.links) }.filter(|link| seen.is_enough(link)) {
            let argument = seen.show(link, &mut room);
            // SAFETY: the program was checked and compiled for this context. The caller promises
            // that the slot is leased.
            let result = unsafe { run(&mut context, link, argument) };
            note(&mut context.overridden, link, result);
        }
        signal::block_again(&context);
        (self.signals, self.overridden) = (context.signals, context.overridden);
    }

    #[inline(always)]
    fn signals(&self) -> PendingSignals {
        self.signals
    }
}

/// Notes the result of a program that may replace the call's.
#[inline(always)]
fn note(overridden: &mut Overridden, link: &Link, result: u64) {
    if link.context == CONTEXT_MODIFY && result != 0 {
        let is_there = 1;
        *overridden = Overridden { is_there, result };
    }
}

//! System calls: from a stub at a `syscall` instruction into the programs of that call, and back.
//!
//! A stub comes here before the call is made and when it has returned, if [`Calls::watched`] says that somebody wants to
//! know. What programs see are the kernel's own layouts: where a [`Record`] is enough for all programs of a call, the stub
//! has put it together, else it is made of the registers. The agent's own system calls do not come by here.

mod function;
mod process_events;
mod restored;
mod seen;
mod upcall;

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use crate::abi::syscalls::{CONTEXT_MODIFY, Calls, ENTER, EXIT, Record};
use crate::abi::{
    Control, Link, LinkList, NEEDS_SLOT, Overridden, PendingSignals, PtRegs, Slot, Target,
};
use crate::enter::{call_with_room, lease, links_of, miss, new_context, release, run};
use crate::helpers::{signal, time};
use crate::sys::nr;
use seen::{Registers, Seen};

/// For stubs: the call is to be made.
const MAKE: u64 = 0;
/// For stubs: its result is there already.
const MADE: u64 = 1;

/// A system call is about to be made. Returns 0 if it is to be made, with the arguments as they are in `regs` then; else
/// its result is in `regs`.
///
/// # Safety
/// For stubs only: `regs` are the registers at the call, `calls` are the target's own.
#[unsafe(no_mangle)]
pub unsafe extern "sysv64" fn beeline_call_enter(regs: *mut PtRegs, calls: *const Calls) -> u64 {
    // SAFETY: the stub's own registers, and what the runtime laid out for it.
    let Some(call) = (unsafe { Call::new(&*regs, &*calls, ENTER) }) else {
        return MAKE;
    };
    let overridden = call.run_programs();
    if overridden.is_there == 0 {
        process_events::handle(&call);
        return MAKE;
    }
    // SAFETY: as above; nobody else looks at the registers now.
    unsafe { leave_unmade(regs, calls, overridden.result) };
    MADE
}

/// For whoever looks at what comes back the call has been made.
///
/// # Safety
/// As [`beeline_call_enter`], whose borrow of the registers has ended.
#[cold]
#[inline(never)]
unsafe fn leave_unmade(regs: *mut PtRegs, calls: *const Calls, result: u64) {
    // SAFETY: the caller's promise.
    unsafe { (*regs).ax = result };
    // SAFETY: as above.
    if let Some(call) = unsafe { Call::new(&*regs, &*calls, EXIT) } {
        call.run_programs();
    }
}

/// A system call has returned.
///
/// # Safety
/// As [`beeline_call_enter`].
#[unsafe(no_mangle)]
pub unsafe extern "sysv64" fn beeline_call_exit(regs: *mut PtRegs, calls: *const Calls) {
    // SAFETY: as in `beeline_call_enter`.
    if let Some(call) = unsafe { Call::new(&*regs, &*calls, EXIT) } {
        process_events::handle(&call);
        call.run_programs();
    }
}

/// A system call is about to be made whose programs see a [`Record`], and that is none of Beeline's own affairs.
///
/// # Safety
/// For stubs only: `record` is the call's, `calls` are the target's own.
#[unsafe(no_mangle)]
pub unsafe extern "sysv64" fn beeline_call_compact_enter(
    record: *const Record,
    calls: *const Calls,
) {
    // SAFETY: the stub's own record, and what the runtime laid out for it.
    unsafe { run_briefly(&*record, &*calls, ENTER) }
}

/// Such a call has returned.
///
/// # Safety
/// As [`beeline_call_compact_enter`].
#[unsafe(no_mangle)]
pub unsafe extern "sysv64" fn beeline_call_compact_exit(
    record: *const Record,
    calls: *const Calls,
) {
    // SAFETY: as in `beeline_call_compact_enter`.
    unsafe { run_briefly(&*record, &*calls, EXIT) }
}

/// # Safety
/// The runtime must have laid `calls` out, with its targets.
#[inline(always)]
unsafe fn run_briefly(record: &Record, calls: &Calls, edge: usize) {
    // SAFETY: the caller's promise; the private memory is mapped as long as the stubs are.
    let (own, child) = unsafe { (&*calls.target, &*calls.child) };
    let Some(target) = process_events::whose(own, child) else {
        return;
    };
    let Some(links) = links_at(calls, edge, record.number as u32) else {
        return;
    };
    if links.needs & NEEDS_SLOT == 0 {
        run_unleased(links, &record);
    } else {
        // SAFETY: as above.
        run_leased(target, unsafe { &*own.control }, links, &record);
    }
}

/// The programs of a call.
#[inline(always)]
fn links_at(calls: &Calls, edge: usize, number: u32) -> Option<&LinkList> {
    let each = calls.each.get(edge)?.get(number as usize);
    let word = each.or_else(|| calls.all.get(edge))?;
    // SAFETY: 0, or a list that was published complete and is kept as long as the pool.
    unsafe { (word.load(Acquire) as *const LinkList).as_ref() }
}

/// One side of one call, with all registers.
struct Call<'a> {
    regs: &'a PtRegs,
    calls: &'a Calls,
    /// Of the process that makes the call.
    target: &'a Target,
    /// For children that share the memory.
    child: &'a Target,
    control: &'a Control,
    edge: usize,
}

impl<'a> Call<'a> {
    /// `None` in a process that is none of the session's, and where a helper has asked the vDSO for the time and that
    /// the kernel.
    ///
    /// # Safety
    /// The runtime must have laid `calls` out, with its targets.
    unsafe fn new(regs: &'a PtRegs, calls: &'a Calls, edge: usize) -> Option<Self> {
        // SAFETY: the caller's promise; the private memory is mapped as long as the stubs are.
        let (own, child) = unsafe { (&*calls.target, &*calls.child) };
        let target = process_events::whose(own, child)?;
        if regs.orig_ax == nr::CLOCK_GETTIME && time::asks(regs, target) {
            return None;
        }
        Some(Self {
            regs,
            calls,
            target,
            child,
            // SAFETY: as above.
            control: unsafe { &*own.control },
            edge,
        })
    }

    /// Runs the call's programs. Gives the result that one of them has made up.
    #[inline(always)]
    fn run_programs(&self) -> Overridden {
        let Some(links) = links_at(self.calls, self.edge, self.regs.orig_ax as u32) else {
            return Overridden::default();
        };
        let seen = Registers {
            regs: self.regs,
            edge: self.edge,
        };
        match links.needs & NEEDS_SLOT {
            0 => run_unleased(links, &seen),
            _ => run_leased(self.target, self.control, links, &seen),
        }
    }
}

/// Runs programs that need no slot on the thread's own stack.
///
/// That may be a goroutine's with some 600 bytes left: frames here are small, and what needs room stands on the slot's stack.
#[inline(always)]
fn run_unleased(links: &LinkList, seen: &impl Seen) -> Overridden {
    let mut overridden = Overridden::default();
    // SAFETY: a list is published complete and never changed.
    for link in unsafe { links_of(links) }.filter(|link| seen.is_enough(link)) {
        note(&mut overridden, link, seen.run_unleased(link));
    }
    overridden
}

#[inline(never)]
fn run_leased<S: Seen>(
    target: &Target,
    control: &Control,
    links: &LinkList,
    seen: &S,
) -> Overridden {
    let Some((lease, cpu)) = lease(target) else {
        miss(target);
        return Overridden::default();
    };
    // SAFETY: the runtime laid out `target.cpus` slots, and `cpu` is below that.
    let slot = unsafe { target.slots.add(cpu as usize) };
    let mut job = Job {
        target,
        seen,
        links,
        slot,
        cpu,
        signals: PendingSignals::default(),
        overridden: Overridden::default(),
    };
    // SAFETY: the slot is leased, and the job is the function's own.
    unsafe { call_with_room(target, slot, run_links::<S>, (&raw mut job).cast()) };
    // A child forked by a signal handler that interrupted the program has a copy of it, but not the lease.
    if control.pid.load(Relaxed) != 0 {
        release(target, lease, cpu);
    }
    if job.signals != PendingSignals::default() {
        signal::send(job.signals, control.own_pid);
    }
    job.overridden
}

/// What [`run_links`] needs, and what has come of it. On the thread's own stack.
struct Job<'a, S> {
    target: &'a Target,
    seen: &'a S,
    links: &'a LinkList,
    slot: *mut Slot,
    cpu: u32,
    signals: PendingSignals,
    overridden: Overridden,
}

/// Runs a job's programs one after the other.
unsafe extern "sysv64" fn run_links<S: Seen>(job: *mut u8) {
    // SAFETY: `run_leased` passes its own job.
    let job = unsafe { &mut *job.cast::<Job<'_, S>>() };
    let seen = job.seen;
    let mut context = new_context(
        job.target,
        job.slot,
        seen.registers(),
        core::ptr::null(),
        job.cpu,
    );
    let mut room = S::ROOM;
    // SAFETY: a list is published complete and never changed.
    for link in unsafe { links_of(job.links) }.filter(|link| seen.is_enough(link)) {
        let argument = seen.show(link, &mut room);
        // SAFETY: the program was checked and compiled for this context.
        let result = unsafe { run(&mut context, link, argument) };
        note(&mut context.overridden, link, result);
    }
    signal::block_again(&context);
    (job.signals, job.overridden) = (context.signals, context.overridden);
}

/// A program that may give the call a result has ended.
#[inline(always)]
fn note(overridden: &mut Overridden, link: &Link, result: u64) {
    if link.context == CONTEXT_MODIFY && result != 0 {
        let is_there = 1;
        *overridden = Overridden { is_there, result };
    }
}

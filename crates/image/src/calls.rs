//! System calls: from a stub at a `syscall` instruction into the programs of that call, and back.
//!
//! A stub comes here before the call is made and when it has returned, if [`Calls::watched`] says that somebody wants to
//! know. What programs see are the kernel's own layouts, put together on the slot's stack. The image's own system calls do
//! not come by here.

mod affairs;
mod ask;

use core::mem::MaybeUninit;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::{Acquire, Relaxed};

use crate::abi::calls::{
    CALL_NUMBERS, CONTEXT_MODIFY, CONTEXT_PROBE, CONTEXT_RAW, CONTEXT_TRACEPOINT, Calls, ENTER,
    EXIT, Record,
};
use crate::abi::{Context, Control, Link, LinkList, MadeUp, PendingSignals, PtRegs, Target};
use crate::enter::{lease, links_of, miss, new_context, release, run};
use crate::helpers::signal;
use crate::sys;

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
    let made_up = call.run_programs();
    if made_up.is_there == 0 {
        affairs::attend(&call);
        return MAKE;
    }
    // SAFETY: as above; nobody else looks at the registers now.
    unsafe { (*regs).ax = made_up.result };
    // SAFETY: as above. For whoever looks at what comes back it has been made.
    if let Some(call) = unsafe { Call::new(&*regs, &*calls, EXIT) } {
        call.run_programs();
    }
    MADE
}

/// A system call has returned.
///
/// # Safety
/// As [`beeline_call_enter`].
#[unsafe(no_mangle)]
pub unsafe extern "sysv64" fn beeline_call_exit(regs: *mut PtRegs, calls: *const Calls) {
    // SAFETY: as in `beeline_call_enter`.
    if let Some(call) = unsafe { Call::new(&*regs, &*calls, EXIT) } {
        affairs::attend(&call);
        call.run_programs();
    }
}

/// One side of one call.
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
    /// `None` in a process that is none of the session's.
    ///
    /// # Safety
    /// The runtime must have laid `calls` out, with its targets.
    unsafe fn new(regs: &'a PtRegs, calls: &'a Calls, edge: usize) -> Option<Self> {
        // SAFETY: the caller's promise; the private memory is mapped as long as the stubs are.
        let (own, child) = unsafe { (&*calls.target, &*calls.child) };
        Some(Self {
            regs,
            calls,
            target: affairs::whose(own, child)?,
            child,
            // SAFETY: as above.
            control: unsafe { &*own.control },
            edge,
        })
    }

    /// Runs the programs of every call, then those of this one. Gives the result that one of them has made up.
    fn run_programs(&self) -> MadeUp {
        let each = self.calls.each.get(self.edge);
        let number = self.regs.orig_ax as u32 as usize;
        let own = match each.and_then(|each| each.get(number)) {
            Some(own) if number < CALL_NUMBERS => list(own),
            _ => None,
        };
        let all = self.calls.all.get(self.edge).and_then(list);
        match (all, own) {
            (None, None) => MadeUp::default(),
            lists => self.run_leased(lists.into()),
        }
    }

    #[inline(never)]
    fn run_leased(&self, lists: [Option<&'a LinkList>; 2]) -> MadeUp {
        let Some((lease, cpu)) = lease(self.target) else {
            miss(self.target);
            return MadeUp::default();
        };
        // SAFETY: the runtime laid out `target.cpus` slots, and `cpu` is below that.
        let slot = unsafe { self.target.slots.add(cpu as usize) };
        let mut job = Job {
            context: new_context(self.target, slot, self.regs, core::ptr::null(), cpu),
            call: self,
            lists,
        };
        // SAFETY: the slot is ours until the lease ends, and with it its stack.
        unsafe { sys::call_on_stack((*slot).stack_top, run_lists, (&raw mut job).cast()) };
        // A child forked by a signal handler that interrupted the program has a copy of it, but not the lease.
        if self.control.pid.load(Relaxed) != 0 {
            release(self.target, lease, cpu);
        }
        if job.context.signals != PendingSignals::default() {
            signal::send(job.context.signals, self.control.own_pid);
        }
        job.context.made_up
    }
}

/// The list that a word names.
fn list<'a>(word: &AtomicUsize) -> Option<&'a LinkList> {
    // SAFETY: 0, or a list that was published complete and is kept as long as the arena.
    unsafe { (word.load(Acquire) as *const LinkList).as_ref() }
}

/// What [`run_lists`] needs, on the slot's own stack.
struct Job<'a> {
    context: Context,
    call: &'a Call<'a>,
    lists: [Option<&'a LinkList>; 2],
}

/// Runs a job's programs one after the other. On the slot's stack.
unsafe extern "sysv64" fn run_lists(job: *mut u8) {
    // SAFETY: `run_leased` passes its own job.
    let job = unsafe { &mut *job.cast::<Job<'_>>() };
    let shown = Shown::of(job.call.regs, job.call.edge);
    let mut probe = MaybeUninit::uninit();
    for list in job.lists.into_iter().flatten() {
        // SAFETY: a list is published complete and never changed.
        for link in unsafe { links_of(list) } {
            let argument = shown.to(link, &mut probe);
            // SAFETY: the program was checked and compiled for this context.
            let result = unsafe { run(&mut job.context, link, argument) };
            if link.context == CONTEXT_MODIFY && result != 0 {
                let is_there = 1;
                job.context.made_up = MadeUp { is_there, result };
            }
        }
    }
    signal::block_again(&job.context);
}

/// What programs see of a call, by the way that they were attached.
struct Shown {
    record: Record,
    raw: [u64; 2],
    /// The registers, and the result so far.
    modify: [u64; 2],
}

impl Shown {
    fn of(regs: &PtRegs, edge: usize) -> Self {
        let number = i64::from(regs.orig_ax as i32) as u64;
        let arguments = [regs.di, regs.si, regs.dx, regs.r10, regs.r8, regs.r9];
        let (values, second) = match edge {
            ENTER => (arguments, number),
            _ => ([regs.ax, 0, 0, 0, 0, 0], regs.ax),
        };
        Self {
            record: Record {
                common: 0,
                number,
                values,
            },
            raw: [core::ptr::from_ref(regs) as u64, second],
            modify: [core::ptr::from_ref(regs) as u64, 0],
        }
    }

    /// The context of a link's program. `probe` is room for one that few ask for.
    fn to(&self, link: &Link, probe: &mut MaybeUninit<PtRegs>) -> *const u8 {
        match link.context {
            CONTEXT_TRACEPOINT => (&raw const self.record).cast(),
            CONTEXT_RAW => self.raw.as_ptr().cast(),
            CONTEXT_MODIFY => self.modify.as_ptr().cast(),
            CONTEXT_PROBE => {
                let regs = PtRegs {
                    di: self.raw[0],
                    ax: self.raw[1],
                    ..PtRegs::default()
                };
                core::ptr::from_ref(probe.write(regs)).cast()
            }
            _ => self.raw[0] as *const u8,
        }
    }
}

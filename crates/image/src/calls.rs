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
use crate::abi::{
    Control, Link, LinkList, MadeUp, NEEDS_SLOT, PendingSignals, PtRegs, Slot, Target,
};
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
    unsafe { leave_unmade(regs, calls, made_up.result) };
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
    ///
    /// All this is on the stack of whoever makes the call, which may be a goroutine's with some 600 bytes left: frames
    /// here are small, and what needs room stands on the slot's stack.
    #[inline(always)]
    fn run_programs(&self) -> MadeUp {
        let each = self.calls.each.get(self.edge);
        let number = self.regs.orig_ax as u32 as usize;
        let own = match each.and_then(|each| each.get(number)) {
            Some(own) if number < CALL_NUMBERS => list(own),
            _ => None,
        };
        let all = self.calls.all.get(self.edge).and_then(list);
        let needs = |list: &LinkList| list.needs;
        match (all, own) {
            (None, None) => MadeUp::default(),
            _ if (all.map_or(0, needs) | own.map_or(0, needs)) & NEEDS_SLOT == 0 => {
                self.run_unleased(all, own)
            }
            _ => self.run_leased(all, own),
        }
    }

    /// Runs programs that need no slot on the thread's own stack.
    #[inline(never)]
    fn run_unleased(&self, all: Option<&LinkList>, own: Option<&LinkList>) -> MadeUp {
        let (mut made_up, mut room) = (MadeUp::default(), MaybeUninit::uninit());
        let mut next = own;
        let mut list = all.or_else(|| next.take());
        while let Some(links) = list {
            // SAFETY: a list is published complete and never changed.
            for link in unsafe { links_of(links) } {
                let result = match link.context {
                    CONTEXT_PROBE => self.run_probe(link),
                    // SAFETY: the program was checked and compiled for this context, and does not look at its environment.
                    _ => unsafe { link.entry()(self.show(link, &mut room), &raw const link.run) },
                };
                note(&mut made_up, link, result);
            }
            list = next.take();
        }
        made_up
    }

    /// Apart, as the registers that a probe sees take much room.
    #[cold]
    #[inline(never)]
    fn run_probe(&self, link: &Link) -> u64 {
        let mut room = MaybeUninit::uninit();
        // SAFETY: as in `run_unleased`.
        unsafe { link.entry()(self.show_probe(&mut room), &raw const link.run) }
    }

    #[inline(never)]
    fn run_leased(&self, all: Option<&'a LinkList>, own: Option<&'a LinkList>) -> MadeUp {
        let Some((lease, cpu)) = lease(self.target) else {
            miss(self.target);
            return MadeUp::default();
        };
        // SAFETY: the runtime laid out `target.cpus` slots, and `cpu` is below that.
        let slot = unsafe { self.target.slots.add(cpu as usize) };
        let mut job = Job {
            call: self,
            lists: [all, own],
            slot,
            cpu,
            signals: PendingSignals::default(),
            made_up: MadeUp::default(),
        };
        // SAFETY: the slot is ours until the lease ends, and with it its stack.
        unsafe { sys::call_on_stack((*slot).stack_top, run_lists, (&raw mut job).cast()) };
        // A child forked by a signal handler that interrupted the program has a copy of it, but not the lease.
        if self.control.pid.load(Relaxed) != 0 {
            release(self.target, lease, cpu);
        }
        if job.signals != PendingSignals::default() {
            signal::send(job.signals, self.control.own_pid);
        }
        job.made_up
    }
}

/// The list that a word names.
fn list<'a>(word: &AtomicUsize) -> Option<&'a LinkList> {
    // SAFETY: 0, or a list that was published complete and is kept as long as the arena.
    unsafe { (word.load(Acquire) as *const LinkList).as_ref() }
}

/// What [`run_lists`] needs, and what has come of it. On the thread's own stack.
struct Job<'a> {
    call: &'a Call<'a>,
    lists: [Option<&'a LinkList>; 2],
    slot: *mut Slot,
    cpu: u32,
    signals: PendingSignals,
    made_up: MadeUp,
}

/// Runs a job's programs one after the other. On the slot's stack.
unsafe extern "sysv64" fn run_lists(job: *mut u8) {
    // SAFETY: `run_leased` passes its own job.
    let job = unsafe { &mut *job.cast::<Job<'_>>() };
    let call = job.call;
    let mut context = new_context(call.target, job.slot, call.regs, core::ptr::null(), job.cpu);
    let (mut room, mut probe) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    for list in job.lists.into_iter().flatten() {
        // SAFETY: a list is published complete and never changed.
        for link in unsafe { links_of(list) } {
            let argument = match link.context {
                CONTEXT_PROBE => call.show_probe(&mut probe),
                _ => call.show(link, &mut room),
            };
            // SAFETY: the program was checked and compiled for this context.
            let result = unsafe { run(&mut context, link, argument) };
            note(&mut context.made_up, link, result);
        }
    }
    signal::block_again(&context);
    (job.signals, job.made_up) = (context.signals, context.made_up);
}

/// A program that may give the call a result has ended.
#[inline(always)]
fn note(made_up: &mut MadeUp, link: &Link, result: u64) {
    if link.context == CONTEXT_MODIFY && result != 0 {
        let is_there = 1;
        *made_up = MadeUp { is_there, result };
    }
}

/// Room for what a program sees of a call.
union Room {
    record: Record,
    words: [u64; 2],
}

impl Call<'_> {
    /// What a link's program sees of the call, by the way that it was attached, but for a probe's; made anew for each, in
    /// the room given.
    #[inline(always)]
    fn show(&self, link: &Link, room: &mut MaybeUninit<Room>) -> *const u8 {
        let regs = self.regs;
        let (place, room) = (core::ptr::from_ref(regs), room.as_mut_ptr());
        let words = match link.context {
            CONTEXT_TRACEPOINT => {
                let record = Record {
                    common: 0,
                    number: self.number(),
                    values: match self.edge {
                        ENTER => [regs.di, regs.si, regs.dx, regs.r10, regs.r8, regs.r9],
                        _ => [regs.ax, 0, 0, 0, 0, 0],
                    },
                };
                // SAFETY: the room is the caller's, and large enough for any of a union's fields.
                unsafe { (&raw mut (*room).record).write(record) };
                return room.cast();
            }
            CONTEXT_RAW => [place as u64, self.second()],
            CONTEXT_MODIFY => [place as u64, 0],
            _ => return place.cast(),
        };
        // SAFETY: as above.
        unsafe { (&raw mut (*room).words).write(words) };
        room.cast()
    }

    /// What a probe's program sees.
    fn show_probe(&self, room: &mut MaybeUninit<PtRegs>) -> *const u8 {
        let regs = PtRegs {
            di: core::ptr::from_ref(self.regs) as u64,
            ax: self.second(),
            ..PtRegs::default()
        };
        core::ptr::from_ref(room.write(regs)).cast()
    }

    fn number(&self) -> u64 {
        i64::from(self.regs.orig_ax as i32) as u64
    }

    /// The number before the call, the result behind it.
    fn second(&self) -> u64 {
        match self.edge {
            ENTER => self.number(),
            _ => self.regs.ax,
        }
    }
}

//! The way from a trampoline into the programs of a site, and back.

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use beeline_isa::abi::Run;

use crate::abi::{
    ALWAYS, Context, Control, FILTERED, Lease, Link, LinkList, NEEDS_REGISTERS, NEEDS_SLOT,
    Overridden, PendingSignals, PtRegs, ROOMY_STACKS, SITE_EXIT, SITE_POPS_FRAME_POINTER, Site,
    Slot, Target,
};
use crate::helpers::signal;
use crate::lease::{lease, owner, release};
use crate::packet::Packet;
use crate::{arch, helpers, stack_check};

/// Runs the programs of a hooked address that was reached. Returns 1 if the trampoline shall watch
/// the function's return, else 0.
///
/// # Safety
///
/// For trampolines only: `regs` are the registers at the site, `site` is the trampoline's own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn beeline_enter(regs: *const PtRegs, site: *const Site) -> u64 {
    // SAFETY: the runtime laid the site and its target out for this trampoline.
    let (site, target) = unsafe { (&*site, &*(*site).target) };
    let control = target.control();
    if control.pid.load(Relaxed) == 0 {
        return in_child(site, regs);
    }
    match (site.entry.load(Acquire), site.returns.load(Relaxed)) {
        (0, 0) => 0,
        (0, _) => watch_return(target, site, regs),
        (entry, _) => {
            let links = entry as *const LinkList;
            // SAFETY: a list is published complete and never changed.
            match unsafe { (*links).needs } & (NEEDS_SLOT | FILTERED) {
                NEEDS_SLOT => enter_leased(target, control, site, regs, links),
                _ => enter_otherwise(target, control, site, regs, links),
            }
        }
    }
}

/// Handles a hit in a forked child, which has its parent's watched returns on its stack, and
/// nothing else of Beeline's.
#[cold]
#[inline(never)]
fn in_child(site: &Site, regs: *const PtRegs) -> u64 {
    let links = site.entry.load(Acquire);
    if links != 0 {
        run_natives(links as *const LinkList, regs);
    }
    0
}

/// Runs those programs of a list that run in any case.
#[cold]
fn run_natives(links: *const LinkList, regs: *const PtRegs) {
    // SAFETY: a list is published complete and never changed; these programs look at what
    // trampolines always show.
    for link in unsafe { links_of(links) }.filter(|link| link.needs & ALWAYS != 0) {
        // SAFETY: the link's code is a function of the agent.
        unsafe { link.entry()(regs.cast(), &raw const link.run) };
    }
}

/// As [`beeline_enter`], with programs to run that need no slot, or have filters. It is a separate
/// function, as is the next one, so that a site with only watched returns needs no frame.
#[inline(never)]
fn enter_otherwise(
    target: &Target,
    control: &Control,
    site: &Site,
    regs: *const PtRegs,
    links: *const LinkList,
) -> u64 {
    run_all(target, control, site, regs, links);
    match site.returns.load(Relaxed) {
        0 => 0,
        _ => watch_return(target, site, regs),
    }
}

/// As [`beeline_enter`], with programs to run in a slot.
#[inline(never)]
fn enter_leased(
    target: &Target,
    control: &Control,
    site: &Site,
    regs: *const PtRegs,
    links: *const LinkList,
) -> u64 {
    lease_and_run(target, control, site, regs, links);
    match site.returns.load(Relaxed) {
        0 => 0,
        _ => watch_return(target, site, regs),
    }
}

/// Handles the return of a watched function. Returns the address to go on at.
///
/// # Safety
///
/// For trampolines only: `regs` are the registers after the return, `site` is the trampoline's own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn beeline_leave(regs: *mut PtRegs, site: *const Site) -> u64 {
    // SAFETY: the runtime laid the site and its target out for this trampoline, and the
    // trampoline's registers are writable.
    let (regs, site, target) = unsafe { (&mut *regs, &*site, &*(*site).target) };
    let slot = regs.returned_slot() as usize;
    let returns = target.returns();
    let address = returns.take(slot, || owner(target));
    let Some(address) = address.or_else(|| returns.last_of(slot)) else {
        // The only way to get here is a stack slot that the target itself copied elsewhere. Nothing
        // knows where it meant to return to; stop at a place that names Beeline rather than run
        // wild.
        arch::stop();
    };
    regs.set_ip(address);
    let links = site.returns.load(Acquire);
    let control = target.control();
    if links != 0 && control.pid.load(Relaxed) != 0 {
        run_all(target, control, site, regs, links as *const LinkList);
    }
    address
}

/// Remembers where the call returns to, so that the trampoline may take its place.
fn watch_return(target: &Target, site: &Site, regs: *const PtRegs) -> u64 {
    if site.flags & SITE_EXIT != 0 {
        return exit(target, site, regs.cast_mut());
    }
    // SAFETY: these are the trampoline's registers; at a function's entry the stack pointer is at
    // the return address.
    let (slot, address) = unsafe {
        let slot = (*regs).return_slot();
        (slot as usize, *(slot as *const u64))
    };
    let returns = target.returns();
    // SAFETY: as above.
    let restore = || unsafe { *(slot as *mut u64) = address };
    if !returns.insert(slot, address, site.return_entry, owner(target), restore) {
        miss(target);
        return 0;
    }
    // A function that has jumped to itself has its trampoline there already. Written again, it
    // would undo what another thread's unwinder may have put there since.
    (address != site.return_entry).into()
}

/// Runs the programs of a call that is about to return, with the registers as they will be then.
/// The function's result is in its place already.
#[cold]
#[inline(never)]
fn exit(target: &Target, site: &Site, regs: *mut PtRegs) -> u64 {
    // SAFETY: the trampoline's registers may be changed; these are not among those that are
    // restored.
    let regs = unsafe { &mut *regs };
    let pops_frame_pointer = site.flags & SITE_POPS_FRAME_POINTER != 0;
    // SAFETY: at an exit the return address lies behind the frame.
    let before = unsafe { regs.unwind(site.frame(), pops_frame_pointer) };
    let links = site.returns.load(Acquire);
    if links != 0 {
        run_all(
            target,
            target.control(),
            site,
            regs,
            links as *const LinkList,
        );
    }
    regs.wind(&before);
    0
}

/// Counts a hit that ran no program, or with a return that is not watched.
#[cold]
pub(crate) fn miss(target: &Target) {
    miss_some(target, 1);
}

/// Counts several such hits at once.
#[cold]
pub(crate) fn miss_some(target: &Target, count: u64) {
    target.session().missed.fetch_add(count, Relaxed);
}

/// Runs every program of the list.
#[inline(always)]
fn run_all(
    target: &Target,
    control: &Control,
    site: &Site,
    regs: *const PtRegs,
    links: *const LinkList,
) {
    // SAFETY: a list is published complete and never changed.
    let needs = unsafe { (*links).needs };
    if needs & NEEDS_SLOT == 0 {
        return run_unleased(regs, links);
    }
    // SAFETY: as above; the registers are the trampoline's.
    if needs & FILTERED == 0 || unsafe { is_wanted(links, regs) } {
        run_leased(target, control, site, regs, links);
    }
}

/// Runs every program of a list of those that need no slot.
#[inline(always)]
fn run_unleased(regs: *const PtRegs, links: *const LinkList) {
    // SAFETY: a list is published complete and never changed; the registers are the trampoline's.
    for link in unsafe { ready(links, regs) } {
        // SAFETY: the program was checked and compiled for this context, and does not look at its
        // environment.
        unsafe { link.entry()(regs.cast(), &raw const link.run) };
    }
}

/// [`lease_and_run`], with a frame of its own.
#[inline(never)]
fn run_leased(
    target: &Target,
    control: &Control,
    site: &Site,
    regs: *const PtRegs,
    links: *const LinkList,
) {
    lease_and_run(target, control, site, regs, links);
}

/// Leases a slot and runs every program of the list in it.
#[inline(always)]
fn lease_and_run(
    target: &Target,
    control: &Control,
    site: &Site,
    regs: *const PtRegs,
    links: *const LinkList,
) {
    let Some(leased) = Leased::new(target) else {
        run_natives(links, regs);
        miss(target);
        return;
    };
    let mut programs = ProgramsAtSite {
        context: new_context(target, leased.slot, regs, site, leased.cpu),
        links,
    };
    // SAFETY: the context is one for this slot.
    unsafe { leased.run(control, &mut programs) };
}

/// True if a filter lets any program of a list run, all of which have filters. It runs on the
/// thread's own stack, which may be a goroutine's.
///
/// # Safety
///
/// The list must be a published one, and `regs` a trampoline's.
#[inline(never)]
unsafe fn is_wanted(links: *const LinkList, regs: *const PtRegs) -> bool {
    // SAFETY: the caller promises that the list is published and that the registers are a
    // trampoline's.
    unsafe { ready(links, regs) }.any(|link| {
        link.filter().is_none_or(|filter| {
            let (entry, run) = filter.code();
            // SAFETY: the filter was checked and compiled for this context, and needs no slot.
            unsafe { entry(regs.cast(), run) != 0 }
        })
    })
}

/// The programs of a site that was reached. On the thread's own stack.
struct ProgramsAtSite {
    context: Context,
    links: *const LinkList,
}

impl Job for ProgramsAtSite {
    #[inline(always)]
    unsafe fn run(&mut self) {
        let regs = self.context.regs.cast();
        // SAFETY: a list is published complete and never changed; the registers are the
        // trampoline's.
        for link in unsafe { ready(self.links, self.context.regs) } {
            // SAFETY: the program was checked and compiled for this context. The caller promises
            // that the slot is leased.
            unsafe { run(&mut self.context, link, regs) };
        }
        signal::block_again(&self.context);
    }

    #[inline(always)]
    fn signals(&self) -> PendingSignals {
        self.context.signals
    }
}

/// Work that needs a slot. On the thread's own stack.
pub(crate) trait Job {
    /// Does the work, on a stack with room for programs.
    ///
    /// A job that takes much of that stack for itself must not be inlined: it would take it of a
    /// stack without room, too.
    ///
    /// # Safety
    ///
    /// The job's slot must be leased by the caller.
    unsafe fn run(&mut self);

    /// Returns the signals that programs have asked for.
    fn signals(&self) -> PendingSignals;
}

unsafe extern "C" fn run_job<J: Job>(job: *mut u8) {
    // SAFETY: `run_with_room` passes a job of this type, and its caller has leased its slot.
    unsafe { (*job.cast::<J>()).run() }
}

/// A slot that the thread has leased.
pub(crate) struct Leased<'a> {
    target: &'a Target,
    lease: &'a Lease,
    pub slot: *mut Slot,
    pub cpu: u32,
}

impl<'a> Leased<'a> {
    /// Leases a slot. Returns `None` if none was free in time.
    #[inline(always)]
    pub(crate) fn new(target: &'a Target) -> Option<Self> {
        let (lease, cpu) = lease(target)?;
        // SAFETY: the runtime laid out `target.cpus` slots, and `cpu` is below that.
        let slot = unsafe { target.slots.add(cpu as usize) };
        Some(Self {
            target,
            lease,
            slot,
            cpu,
        })
    }

    /// Does some work with the slot where the stack has room for it, gives the slot back, and sends
    /// the signals that programs have asked for.
    ///
    /// # Safety
    ///
    /// The job must be for this slot.
    #[inline(always)]
    pub(crate) unsafe fn run<J: Job>(self, control: &Control, job: &mut J) {
        // SAFETY: the slot is leased, and the caller promises that the job is for it.
        unsafe { run_with_room(self.target, self.slot, job) };
        // A child forked by a signal handler that interrupted the program has a copy of it, but not
        // the lease.
        if control.pid.load(Relaxed) != 0 {
            release(self.target, self.lease, self.cpu);
        }
        if job.signals() != PendingSignals::default() {
            signal::send(job.signals(), control.own_pid);
        }
    }
}

/// Does a job: on the thread's stack if that has room for the frames of programs, else on the
/// slot's.
///
/// On an alternate signal stack without room the hit is missed. The kernel would take a thread that
/// has gone to its slot's stack to have left the alternate one, and put the next signal's frame
/// over the handler's.
///
/// # Safety
///
/// The slot must be leased by the caller, and the job must be for it.
#[inline(always)]
unsafe fn run_with_room<J: Job>(target: &Target, slot: *mut Slot, job: &mut J) {
    let place = (&raw mut *job).cast::<u8>();
    if target.flags.load(Relaxed) & ROOMY_STACKS != 0 {
        // SAFETY: the caller promises that it has leased the slot.
        if unsafe { !stack_check::has_room(target, slot, place as usize) } {
            return miss(target);
        }
        // SAFETY: the caller promises that it has leased the slot, the job's.
        unsafe { job.run() };
    } else {
        // SAFETY: the slot is the caller's until the lease ends, and with it its stack. The
        // function takes such a job.
        unsafe { arch::call_on_stack((*slot).stack_top, run_job::<J>, place) };
    }
}

/// Creates the context of programs that run one after the other in a leased slot.
#[inline(always)]
pub(crate) fn new_context(
    target: &Target,
    slot: *mut Slot,
    regs: *const PtRegs,
    site: *const Site,
    cpu: u32,
) -> Context {
    Context {
        // SAFETY: these are pointers and a number, each replaced before a program sees it.
        run: unsafe { core::mem::zeroed() },
        target,
        slot,
        regs,
        site,
        cpu,
        tick: 0,
        cookie: 0,
        tail_calls: 0,
        copied: 0,
        signals: PendingSignals::default(),
        unblocked: 0,
        overridden: Overridden::default(),
        packet: core::ptr::null_mut(),
    }
}

/// Returns the links of a list with programs that are to run: enabled, and with the registers known
/// if they look at them.
///
/// A site's first programs may have needed no registers and have a trampoline that shows none (its
/// [`PtRegs::are_shown`]). Calls that are under way in it when another program is attached are
/// before that program's time.
///
/// # Safety
///
/// The list must be a published one, and `regs` a trampoline's.
#[inline(always)]
unsafe fn ready<'a>(links: *const LinkList, regs: *const PtRegs) -> impl Iterator<Item = &'a Link> {
    // SAFETY: the caller promises that the list is published and that the registers are a
    // trampoline's.
    let (links, are_shown) = unsafe { (links_of(links), (*regs).are_shown()) };
    links.filter(move |link| are_shown || link.needs & NEEDS_REGISTERS == 0)
}

/// Returns the links of a list that are enabled.
///
/// # Safety
///
/// The list must be a published one.
#[inline(always)]
pub(crate) unsafe fn links_of<'a>(links: *const LinkList) -> impl Iterator<Item = &'a Link> {
    // SAFETY: the caller promises that the list is published, so it is complete.
    let count = unsafe { (*links).count };
    (0..count)
        // SAFETY: `count` link addresses follow the list's head, each of a link that outlives the
        // list.
        .map(move |i| unsafe { &**links.add(1).cast::<*const Link>().add(i) })
        .filter(|link| link.enabled.load(Relaxed) != 0)
}

/// Runs one link's program outside any target, on a context of its type's own. Returns r0, or
/// `None` if no slot was free in time.
///
/// # Safety
///
/// `target` and `link` must be laid out for this address space, and `argument` must be what the
/// program's type asks for. `packet` must be null, or a packet that nobody else uses meanwhile.
pub unsafe fn run_here(
    target: &Target,
    link: &Link,
    argument: *const u8,
    packet: *mut Packet,
) -> Option<u64> {
    let (lease, cpu) = lease(target)?;
    // SAFETY: the runtime laid out `target.cpus` slots, and `cpu` is below that.
    let slot = unsafe { target.slots.add(cpu as usize) };
    let mut context = new_context(target, slot, core::ptr::null(), core::ptr::null(), cpu);
    context.packet = packet;
    // SAFETY: the slot is leased, and the caller promises that the argument is what the program's
    // type asks for.
    let result = unsafe { run(&mut context, link, argument) };
    signal::block_again(&context);
    release(target, lease, cpu);
    Some(result)
}

/// Runs one link's program on its argument.
///
/// # Safety
///
/// The context's slot must be leased by the caller.
pub(crate) unsafe fn run(context: &mut Context, link: &Link, argument: *const u8) -> u64 {
    context.run = Run {
        context: argument,
        ..link.run
    };
    (context.cookie, context.tail_calls) = (link.cookie, 0);
    // SAFETY: the runtime compiled the link's program, and the caller promises that the context's
    // slot is leased.
    let result = unsafe { link.entry()(argument, (&raw const *context).cast()) };
    helpers::release_lock(context);
    result
}

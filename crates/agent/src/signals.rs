//! The agent's handlers for SIGTRAP, SIGBUS and SIGSEGV. They serve breakpoint sites, and faulting
//! reads of helpers and programs. Any other signal is the target's own affair and is handed on as
//! if Beeline were not there.

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use beeline_uapi::nr;
use beeline_uapi::signal::{
    SA_NODEFER, SA_ONSTACK, SA_RESETHAND, SA_RESTART, SA_RESTORER, SA_SIGINFO, SIG_DFL, SIG_IGN,
    SIGSYS, SIGTRAP, SigInfo,
};

use crate::abi::{
    HandlerStub, LinkList, Manifest, PASSES_ON, SignalAction, Site, SiteTrap, TRAP_BIT, Target,
    saved_at,
};
pub use crate::arch::UserContext;
use crate::arch::{self, loads};
use crate::enter::{beeline_enter, links_of, miss};
use crate::sys;

/// The handler, entered through a [`HandlerStub`], which adds the last two
/// arguments.
///
/// # Safety
///
/// For the kernel only.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn beeline_signal(
    signal: u32,
    info: *mut SigInfo,
    context: *mut UserContext,
    target: *const Target,
    level: u32,
) {
    // SAFETY: the kernel passes a frame that the handler may change; the stub names its own target.
    let (code, registers, this) = unsafe { ((*info).si_code, &mut *context, &*target) };
    // A positive code: the kernel raised it for an action of this very thread.
    if signal == SIGTRAP {
        if code == arch::BREAKPOINT_CODE && breakpoint(this, level, registers) {
            return;
        }
    } else if code > 0 {
        if let Some(fixup) = arch::fault_fixup(registers.ip()) {
            registers.set_ip(fixup);
            return;
        } else if skip_load(registers, this.pool, this.pool_len) {
            return;
        }
    }
    // SAFETY: the same frame is handed on.
    unsafe { hand_on(signal, info, context, (this, level)) };
}

/// Returns the action that stands in for the target's own: the agent's handler, on the stack and
/// with the mask that the target's handler asks for, if it has one. SIGTRAP is not blocked, not
/// even in its own handler, as the target's handler may come to a breakpoint.
pub fn mirrored(signal: u32, own: &SignalAction, handler: u64, restorer: u64) -> SignalAction {
    let mut flags = match own.handler {
        SIG_DFL | SIG_IGN => SA_ONSTACK | SA_NODEFER | SA_RESTART,
        _ => own.flags & (SA_ONSTACK | SA_NODEFER | SA_RESTART),
    };
    if signal == SIGTRAP {
        flags |= SA_NODEFER;
    }
    SignalAction {
        handler,
        flags: flags | SA_SIGINFO | SA_RESTORER,
        restorer,
        mask: own.mask & !TRAP_BIT,
    }
}

/// Lets a program's load that faulted read zero, if the thread is at one in the pool with the
/// programs, of `len` bytes. Nothing else there loads from addresses that a program chooses.
pub fn skip_load(registers: &mut UserContext, pool: usize, len: usize) -> bool {
    let (address, end) = (registers.ip() as usize, pool.wrapping_add(len));
    let last = address.checked_add(loads::LONGEST);
    if address < pool || last.is_none_or(|last| last > end) {
        return false;
    }
    // SAFETY: the address is in the pool, which is mapped as long as the handler is.
    let Some(load) = loads::decode(unsafe { &*(address as *const [u8; loads::LONGEST]) }) else {
        return false;
    };
    registers.set_ip(registers.ip().wrapping_add(load.len));
    registers.set(load.register, 0);
    true
}

/// Runs the site of a breakpoint that was hit.
///
/// Returns false if the previous handler must say where the thread goes on: the breakpoint is not
/// this session's, or not this session's alone.
fn breakpoint(target: &Target, level: u32, registers: &mut UserContext) -> bool {
    let address = registers.breakpoint_address();
    // SAFETY: the thread has just run an instruction there.
    let is_there = || unsafe { arch::is_breakpoint(address) };
    let (site, trap) = if let Some(site) = find(target, level, address) {
        let at_the_site = SiteTrap {
            resume: site.body,
            is_early: 1,
            ..SiteTrap::default()
        };
        (site, at_the_site)
    } else if let Some(found) = find_trap(target, level, registers.ip()) {
        disturbed(target);
        found
    } else if is_over_another(target, level) {
        // It may be that session's, which knows if the instruction begins where the breakpoint is.
        return false;
    } else {
        // The site was restored while this thread was on its way here: the code that stands there
        // now has to run. It may be a kernel uprobe's.
        if is_there() && !(level == 0 && is_last(target) && was_hooked(target, address)) {
            return false;
        }
        registers.set_ip(address);
        return true;
    };
    let has_gone = trap.resume == PASSES_ON && !is_there();
    if has_gone && trap.is_early != 0 {
        // The instruction that the site begins with now has to run, and counts the hit if it is a
        // patch of this session.
        registers.set_ip(site.address);
        registers.add_sp(trap.stack);
        return true;
    }
    let mut regs = registers.at(site.address);
    regs.add_sp(trap.stack);
    if trap.lost != 0 && wants(site, trap.lost) {
        // Programs that look at registers do not run with changed ones, and that is counted.
        regs.hide();
        miss(target);
    }
    let before = regs;
    // SAFETY: these are the registers at the site, and a site that the runtime laid out.
    let watch = unsafe { beeline_enter(&raw mut regs, site) } != 0;
    if watch {
        // SAFETY: return probes are placed at function entries only, where the return address was
        // on top.
        unsafe { *(regs.return_slot() as *mut u64) = site.return_entry };
    }
    registers.take_changes(&before, &regs);
    if has_gone && !is_over_another(target, level) {
        // The session below has gone with its trap, and the second instruction stands there again.
        registers.set_ip(address);
        return true;
    }
    if trap.resume == PASSES_ON {
        return false;
    }
    if trap.resume == site.body {
        // The first instruction is run after all.
        registers.set_sp(regs.sp());
    }
    registers.set_ip(trap.resume);
    true
}

fn find(target: &Target, level: u32, address: u64) -> Option<&Site> {
    target
        .breakpoints
        .iter()
        .take(target.breakpoints_used.load(Acquire))
        .map(|place| place.load(Relaxed) as *const Site)
        // SAFETY: the pointer is null, or a site that the runtime laid out and keeps as long as the
        // pool.
        .filter_map(|site| unsafe { site.as_ref() })
        .find(|site| site.level == level && site.address == address)
}

/// Returns all sites that there ever were, the newest first.
fn sites(target: &Target) -> impl Iterator<Item = &Site> {
    // SAFETY: every target's pool starts with its manifest.
    let manifest = unsafe { &*(target.pool as *const Manifest) };
    // SAFETY: the address is 0, or a site that the runtime laid out and keeps as long as the pool.
    let at = |place: usize| unsafe { (place as *const Site).as_ref() };
    let newest = at(manifest.first_site.load(Acquire));
    core::iter::successors(newest, move |site| at(site.next))
}

/// True if this session ever had a site at an address.
fn was_hooked(target: &Target, address: u64) -> bool {
    sites(target).any(|site| site.address == address)
}

/// True if the kernel would end the process without a handler of this session for SIGTRAP.
fn is_last(target: &Target) -> bool {
    matches!(below(target, 0), SIG_DFL | SIG_IGN)
}

/// True if a level's handler for SIGTRAP lies over one of another session, or of this one.
fn is_over_another(target: &Target, level: u32) -> bool {
    match below(target, level) {
        SIG_DFL | SIG_IGN => false,
        // SAFETY: this is a handler, so there is code.
        handler => unsafe { HandlerStub::is_at(handler as *const u8) },
    }
}

/// Returns the handler for SIGTRAP that a level's handler replaces.
fn below(target: &Target, level: u32) -> u64 {
    // SAFETY: private memory of the target, mapped as long as the handler is installed.
    let signals = unsafe { &*target.signals };
    let saved = saved_at(SIGTRAP, level).and_then(|index| signals.saved.get(index));
    saved.map_or(SIG_DFL, |action| action.handler)
}

/// Returns the newest site of a level that has a breakpoint which ends at `ip`, behind its own
/// first byte.
fn find_trap(target: &Target, level: u32, ip: u64) -> Option<(&Site, SiteTrap)> {
    let mut of_level = sites(target).filter(|site| site.level == level);
    of_level.find_map(|site| {
        let ends_here = |trap: &&SiteTrap| {
            trap.resume != 0 && site.address.wrapping_add(trap.behind.into()) == ip
        };
        Some((site, *site.traps.iter().find(ends_here)?))
    })
}

/// True if a program at the site's entry looks at one of these registers.
fn wants(site: &Site, lost: u32) -> bool {
    let links = site.entry.load(Acquire) as *const LinkList;
    // SAFETY: the pointer is null, or a published list.
    !links.is_null() && unsafe { links_of(links) }.any(|link| link.reads & lost as usize != 0)
}

/// Makes the runtime look at the code of this target.
fn disturbed(target: &Target) {
    if target.control().disturbed.swap(1, Relaxed) == 0 {
        target.session().disturbed.fetch_add(1, Relaxed);
    }
}

/// Carries out the action that a level's handler replaces.
unsafe fn hand_on(
    signal: u32,
    info: *mut SigInfo,
    context: *mut UserContext,
    (target, level): (&Target, u32),
) {
    // SAFETY: private memory of the target, mapped as long as the handler is installed.
    let saved = unsafe { &mut (*target.signals).saved };
    let Some(saved) = saved_at(signal, level).and_then(|index| saved.get_mut(index)) else {
        return;
    };
    let set_default = || {
        // SAFETY: the default action has no handler.
        unsafe { sys::set_signal_action(signal, &SignalAction::default()) };
    };
    // SAFETY: this is the kernel's own frame, and the action that the agent's copies flags and mask
    // of.
    unsafe { take(saved, signal, info, context, set_default) };
}

/// Takes an action that the agent's handler of a signal stands in for, as the kernel would.
/// `set_default` gives the signal its default action.
///
/// # Safety
///
/// The signal, its information and the context are those of the handler, which has been entered
/// with the mask and on the stack that the action asks for.
pub(crate) unsafe fn take(
    own: &mut SignalAction,
    signal: u32,
    info: *mut SigInfo,
    context: *mut UserContext,
    set_default: impl FnOnce(),
) {
    let action = *own;
    // SAFETY: this is the kernel's own siginfo.
    let raised_by_fault = unsafe { (*info).si_code } > 0;
    match action.handler {
        SIG_IGN if !raised_by_fault => {}
        // A fault cannot be ignored: the kernel takes the default action then.
        SIG_DFL | SIG_IGN => {
            set_default();
            // A fault repeats by itself; a trap, and a call that a filter has refused, do not.
            if !raised_by_fault || matches!(signal, SIGTRAP | SIGSYS) {
                let (pid, tid) = (sys::pid().into(), sys::tid().into());
                let again = [pid, tid, u64::from(signal), info as u64];
                // SAFETY: this raises the signal once more, to be taken as soon as this handler
                // returns.
                unsafe { sys::syscall(nr::RT_TGSIGQUEUEINFO, again) };
            }
        }
        handler => {
            if action.flags & SA_RESETHAND != 0 {
                *own = SignalAction::default();
            }
            // SAFETY: this is the program's own handler, on the same frame that the kernel would
            // give it; the caller promises the mask and the stack.
            unsafe {
                let handler: extern "C" fn(u32, *mut SigInfo, *mut UserContext) =
                    core::mem::transmute(handler);
                handler(signal, info, context);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::boxed::Box;

    use super::*;
    use crate::abi::Signals;

    /// Returns where a thread goes on that met a breakpoint which is not there any more, in a
    /// target without sites, with a handler over this one; `None` if that handler must say.
    fn goes_on(below: *const u8, trapped: &[u8; 2]) -> Option<u64> {
        // SAFETY: all of these are integers, addresses and pointers, for which zero is valid.
        let (mut target, mut signals, manifest) = unsafe {
            (
                Box::<Target>::new_zeroed().assume_init(),
                Box::<Signals>::new_zeroed().assume_init(),
                Box::<Manifest>::new_zeroed().assume_init(),
            )
        };
        let index = saved_at(SIGTRAP, 0).expect("one of the signals");
        signals.saved[index].handler = below.addr() as u64;
        target.signals = &raw mut *signals;
        target.pool = (&raw const *manifest).expose_provenance();
        // SAFETY: the structure consists of integers.
        let mut registers: UserContext = unsafe { core::mem::zeroed() };
        registers.set_ip(trapped[1..].as_ptr().expose_provenance() as u64);
        breakpoint(&target, 0, &mut registers).then_some(registers.ip())
    }

    #[test]
    fn a_breakpoint_that_has_gone_is_left_to_the_session_below() {
        const GONE: [u8; 2] = [0x81, 0xec];
        let (stub, other) = (HandlerStub::new(1, 2, 3, 4), [0xc3; 1]);
        let below = (&raw const stub).cast::<u8>();
        below.expose_provenance();
        assert_eq!(goes_on(below, &GONE), None);
        other.as_ptr().expose_provenance();
        let start = GONE.as_ptr().addr() as u64;
        assert_eq!(goes_on(other.as_ptr(), &GONE), Some(start));
        assert_eq!(goes_on(core::ptr::null(), &GONE), Some(start));
    }
}

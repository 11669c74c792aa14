//! The agent's signal handlers in a stopped process: installed over existing handlers, and removed
//! again.

use std::collections::BTreeSet;
use std::mem::offset_of;
use std::sync::atomic::Ordering::SeqCst;

use beeline_agent::abi::{
    BLOCKING, HANDLER_MAGIC, HandlerStub, SIGNALS, SignalAction, Signals, TRAP_BIT, TRAP_LEVELS,
    saved_at,
};
use beeline_agent::signals::mirrored;
use beeline_inject::{Process, Stopped};
use beeline_uapi::signal::{NSIG, SIG_DFL, SIG_IGN, SIGSET_BYTES};

use crate::environment::Environment;
use crate::error::{Error, os};
use crate::proc;

/// One of a session's handlers in a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handler {
    /// The signal that it handles.
    pub signal: i32,
    /// Its level; see [`TRAP_LEVELS`].
    pub level: u32,
}

impl Handler {
    /// Returns all handlers that a session can have, each before those that may lie under it.
    pub fn all() -> impl Iterator<Item = Self> {
        let of_signals = SIGNALS.map(|signal| signal as i32);
        let further = (1..TRAP_LEVELS as u32).rev().map(|level| Self {
            signal: libc::SIGTRAP,
            level,
        });
        further.chain(of_signals.map(|signal| Self { signal, level: 0 }))
    }

    /// Returns its bit in [`Manifest::handlers`](beeline_agent::abi::Manifest::handlers).
    pub fn bit(self) -> usize {
        self.index().map_or(0, |index| 1 << index)
    }

    fn index(self) -> Option<usize> {
        saved_at(self.signal as u32, self.level)
    }

    /// Returns its address, given that of the first.
    fn address(self, first: u64) -> u64 {
        first + u64::from(self.level) * size_of::<HandlerStub>() as u64
    }

    /// Returns where the action that it replaces is kept.
    fn saved(self, signals: u64) -> u64 {
        let index = self.index().unwrap_or_default();
        signals + (offset_of!(Signals, saved) + index * size_of::<SignalAction>()) as u64
    }
}

/// Returns code for the pool: the entries of the handlers of all levels, and the code by which they
/// return to the kernel. `handler` is the agent's, `signals` the target's.
pub fn stubs(handler: u64, target: u64, signals: u64) -> (Vec<HandlerStub>, Vec<u8>) {
    let stub = |level| HandlerStub::new(handler, target, signals, level);
    ((0..TRAP_LEVELS as u32).map(stub).collect(), RESTORER.into())
}

/// The code by which handlers return to the kernel, here and in every C library, as unwinders look
/// for it.
pub const RESTORER: [u8; 9] = beeline_hook::RESTORER;

/// Records what the target's own handlers return to, if it installs them by its C library.
///
/// # Errors
///
/// [`Error::Inject`] if the private memory cannot be written.
pub fn know_libc_restorer(
    process: &Process,
    environment: &Environment,
    restorer: u64,
) -> Result<(), Error> {
    let place = environment.private.signals() + offset_of!(Signals, libc_restorer) as u64;
    Ok(process.write_memory(place, &restorer.to_ne_bytes())?)
}

/// Makes some of the agent's handlers those that the kernel calls, and keeps the actions that were
/// there.
///
/// The manifest is changed first. Otherwise no Beeline could leave a process with a handler that a
/// Beeline installed just before it died.
///
/// # Errors
///
/// [`Error::Inject`] if `rt_sigaction(2)` fails in the process, or its memory cannot be read or
/// written.
pub fn install(
    stopped: &mut Stopped,
    handlers: &[Handler],
    environment: &Environment,
) -> Result<(), Error> {
    for handlers in handlers.chunks(AT_ONCE) {
        let private = &environment.private;
        let place =
            |index: usize| scratch(private.signals()) + (index * size_of::<SignalAction>()) as u64;
        let places = || handlers.iter().zip((0..).map(place));
        let calls: Vec<_> = places()
            .map(|(handler, at)| action_call(handler.signal, 0, at))
            .collect();
        stopped.syscalls(private.scratch(), &calls)?;
        let mut calls = Vec::new();
        for (handler, at) in places() {
            if prepare(stopped, *handler, environment, at)? {
                calls.push(action_call(handler.signal, at, 0));
            }
        }
        stopped.syscalls(private.scratch(), &calls)?;
    }
    Ok(())
}

/// The number of actions that there is room for.
const AT_ONCE: usize = 4;
const _: () = assert!(AT_ONCE * size_of::<SignalAction>() <= 128);

/// Prepares for a handler, given the address of the action that is there now, and lists it. The
/// action to be installed takes its place. Returns false if the handler is there already.
fn prepare(
    stopped: &mut Stopped,
    handler: Handler,
    environment: &Environment,
    at: u64,
) -> Result<bool, Error> {
    let list = || {
        let installed = &environment.manifest().handlers;
        installed.fetch_or(handler.bit(), SeqCst);
    };
    let address = handler.address(environment.handler);
    let signals = environment.private.signals();
    let mut old = read_action(stopped, at)?;
    if old.handler == address {
        list();
        return Ok(false);
    }
    let (spared, bit) = (read_spared(stopped, signals)?, 1 << (handler.signal - 1));
    if spared & bit != 0 {
        old.mask |= TRAP_BIT;
        stopped.write(spared_at(signals), &(spared & !bit).to_ne_bytes())?;
    }
    write_action(stopped, handler.saved(signals), &old)?;
    let ours = [environment.handler, environment.restorer].map(u64::to_ne_bytes);
    stopped.write(
        signals + offset_of!(Signals, handler) as u64,
        ours.as_flattened(),
    )?;
    let new = mirrored(handler.signal as u32, &old, address, environment.restorer);
    write_action(stopped, at, &new)?;
    list();
    Ok(true)
}

/// True if the kernel calls this handler.
///
/// # Errors
///
/// [`Error::Inject`] if `rt_sigaction(2)` fails in the process, or its memory cannot be read.
pub fn is_installed(
    stopped: &mut Stopped,
    handler: Handler,
    environment: &Environment,
) -> Result<bool, Error> {
    let now = current(stopped, handler.signal, environment.private.signals())?;
    Ok(now.handler == handler.address(environment.handler))
}

/// The outcome of removing a handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    /// Nothing calls it any more.
    Done,
    /// A thread may be about to call it.
    Busy,
    /// Another handler was put over it meanwhile and may call it: it has to stay.
    Covered,
}

/// Removes a handler: the kernel, or the session with a handler over this one, then calls the
/// action that this one replaced.
///
/// `first` is the address of this session's first handler, `signals` where the kept actions are.
/// `is_quiet` says whether no thread is in any session's handler.
///
/// # Errors
///
/// Those of [`install`], and those of `is_quiet`.
pub fn remove(
    stopped: &mut Stopped,
    handler: Handler,
    (signals, first): (u64, u64),
    is_live: bool,
    is_quiet: impl FnOnce(&Stopped) -> Result<bool, Error>,
) -> Result<Removal, Error> {
    let saved = handler.saved(signals);
    let list = signals + offset_of!(Signals, removed) as u64;
    let mut removed = [0; 8];
    stopped.read(list, &mut removed)?;
    let removed = u64::from_ne_bytes(removed);
    // Another handler had to stay, and it is tried again.
    if removed & handler.bit() as u64 != 0 {
        return Ok(Removal::Done);
    }
    let (now, ours) = (
        current(stopped, handler.signal, signals)?,
        handler.address(first),
    );
    if now.handler == ours {
        set(stopped, handler.signal, saved)?;
    } else if let Some(place) = kept_at(stopped, handler.signal, now, ours) {
        if !is_quiet(stopped)? {
            return Ok(Removal::Busy);
        }
        let below = read_action(stopped, saved)?;
        write_action(stopped, place, &below)?;
    } else if is_live || now != read_action(stopped, saved)? {
        // The action there is the target's own also if a Beeline died before its handler was
        // installed, or after it was removed. If the session is alive, the process has put its own
        // action there again.
        return Ok(Removal::Covered);
    }
    let removed = removed | handler.bit() as u64;
    stopped.write(list, &removed.to_ne_bytes())?;
    Ok(Removal::Done)
}

/// Takes SIGTRAP out of the masks of the target's handlers, and notes for which signals. The
/// agent's own handlers never block it.
///
/// # Errors
///
/// Those of [`install`].
pub fn let_traps_in(stopped: &mut Stopped, signals: u64) -> Result<(), Error> {
    for signal in caught(stopped.process().pid())? {
        let action = current(stopped, signal, signals)?;
        if action.mask & TRAP_BIT == 0 {
            continue;
        }
        let spared = read_spared(stopped, signals)? | 1 << (signal - 1);
        stopped.write(spared_at(signals), &spared.to_ne_bytes())?;
        let mask = action.mask & !TRAP_BIT;
        let scratch = scratch(signals);
        write_action(stopped, scratch, &SignalAction { mask, ..action })?;
        set(stopped, signal, scratch)?;
    }
    Ok(())
}

/// Puts SIGTRAP back into the masks of the handlers and threads that ask for it.
///
/// # Errors
///
/// Those of [`install`].
pub fn keep_traps_out(stopped: &mut Stopped, signals: u64) -> Result<(), Error> {
    let spared = read_spared(stopped, signals)?;
    let is_spared = |signal: &i32| spared >> (signal - 1) & 1 != 0;
    for signal in (1..=NSIG as i32).filter(is_spared) {
        let action = current(stopped, signal, signals)?;
        if !matches!(action.handler, SIG_DFL | SIG_IGN) {
            let mask = action.mask | TRAP_BIT;
            let scratch = scratch(signals);
            write_action(stopped, scratch, &SignalAction { mask, ..action })?;
            set(stopped, signal, scratch)?;
        }
    }
    stopped.write(spared_at(signals), &0u64.to_ne_bytes())?;
    let at = signals + offset_of!(Signals, blocking) as u64;
    let mut threads = [[0; 8]; BLOCKING];
    stopped.read(at, threads.as_flattened_mut())?;
    let threads = threads.into_iter().map(u64::from_ne_bytes);
    let threads: BTreeSet<_> = threads.filter(|thread| *thread != 0).collect();
    if threads.is_empty() {
        return Ok(());
    }
    stopped.block_in(libc::SIGTRAP, threads)?;
    Ok(stopped.write(at, &[0; 8 * BLOCKING])?)
}

fn read_spared(stopped: &Stopped, signals: u64) -> Result<u64, Error> {
    let mut spared = [0; 8];
    stopped.read(spared_at(signals), &mut spared)?;
    Ok(u64::from_ne_bytes(spared))
}

fn spared_at(signals: u64) -> u64 {
    signals + offset_of!(Signals, spared) as u64
}

/// Returns the signals that a process has handlers for.
fn caught(pid: i32) -> Result<impl Iterator<Item = i32>, Error> {
    let status = proc::text(format!("/proc/{pid}/status"));
    let status = status.map_err(os("reading which signals a process handles"))?;
    let field = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let mask = field.and_then(|field| u64::from_str_radix(field.trim(), 16).ok());
    let mask = mask.ok_or_else(|| Error::Target {
        pid,
        why: "it is not known which signals it handles".into(),
    })?;
    Ok((1..=NSIG as i32).filter(move |signal| mask >> (signal - 1) & 1 != 0))
}

/// Returns where another session keeps `handler` as the action that its own handler replaced. The
/// search follows the sessions that are called from `now` on.
fn kept_at(stopped: &Stopped, signal: i32, now: SignalAction, handler: u64) -> Option<u64> {
    /// The most handlers of all sessions for one signal. More are taken for a cycle.
    const MOST: u32 = 64;
    let mut called = now;
    for _ in 0..MOST {
        let place = saved_by(stopped, signal, called.handler)?;
        called = read_action(stopped, place).ok()?;
        if called.handler == handler {
            return Some(place);
        }
    }
    None
}

/// Returns where the session keeps the action that its handler at this address replaced, if it is a
/// session's handler.
fn saved_by(stopped: &Stopped, signal: i32, handler: u64) -> Option<u64> {
    let word = |field: usize| {
        let mut word = [0; 8];
        let is_read = stopped.read(handler.checked_add(field as u64)?, &mut word);
        is_read.is_ok().then_some(u64::from_ne_bytes(word))
    };
    if word(offset_of!(HandlerStub, magic))? != HANDLER_MAGIC {
        return None;
    }
    let level = word(offset_of!(HandlerStub, level))? as u32;
    let handler = Handler { signal, level };
    handler.index()?;
    Some(handler.saved(word(offset_of!(HandlerStub, signals))?))
}

/// Returns the action that the kernel has for a signal.
fn current(stopped: &mut Stopped, signal: i32, signals: u64) -> Result<SignalAction, Error> {
    let scratch = scratch(signals);
    let (number, arguments) = action_call(signal, 0, scratch);
    stopped.syscall(number, arguments)?;
    read_action(stopped, scratch)
}

/// Gives the kernel the action at an address.
fn set(stopped: &mut Stopped, signal: i32, at: u64) -> Result<(), Error> {
    let (number, arguments) = action_call(signal, at, 0);
    stopped.syscall(number, arguments)?;
    Ok(())
}

/// Returns the call that gives the kernel the action at `new`, and has it store the one before at
/// `old`. Neither happens for 0.
fn action_call(signal: i32, new: u64, old: u64) -> (i64, [u64; 6]) {
    let arguments = [signal as u64, new, old, SIGSET_BYTES as u64, 0, 0];
    (libc::SYS_rt_sigaction, arguments)
}

/// Returns room for a system call's argument, behind the [`Signals`].
fn scratch(signals: u64) -> u64 {
    signals + size_of::<Signals>().next_multiple_of(64) as u64
}

fn read_action(stopped: &Stopped, at: u64) -> Result<SignalAction, Error> {
    let mut words = [[0u8; 8]; 4];
    stopped.read(at, words.as_flattened_mut())?;
    let [handler, flags, restorer, mask] = words.map(u64::from_ne_bytes);
    Ok(SignalAction {
        handler,
        flags,
        restorer,
        mask,
    })
}

pub fn write_action(stopped: &mut Stopped, at: u64, action: &SignalAction) -> Result<(), Error> {
    let words = [action.handler, action.flags, action.restorer, action.mask].map(u64::to_ne_bytes);
    Ok(stopped.write(at, words.as_flattened())?)
}

#[cfg(test)]
mod tests {
    use beeline_agent::abi::SAVED;

    use super::*;

    #[test]
    fn each_handler_has_its_own_bit_and_the_uppermost_comes_first() {
        let all: Vec<_> = Handler::all().collect();
        let bits = all.iter().fold(0, |bits, one| {
            assert!(
                one.bit().is_power_of_two() && bits & one.bit() == 0,
                "{one:?}"
            );
            bits | one.bit()
        });
        assert_eq!(bits, (1 << SAVED) - 1);
        let traps = all.iter().filter(|one| one.signal == libc::SIGTRAP);
        let levels: Vec<_> = traps.map(|one| one.level).collect();
        assert!(levels.is_sorted_by(|one, next| one > next) && levels.ends_with(&[0]));
        let further = |signal| Handler { signal, level: 1 };
        assert_eq!(further(libc::SIGSEGV).bit(), 0);
        let beyond = Handler {
            signal: libc::SIGTRAP,
            level: TRAP_LEVELS as u32,
        };
        assert_eq!(beyond.bit(), 0);
    }

    #[test]
    fn stubs_follow_each_other_and_say_whose_they_are() {
        let (stubs, restorer) = stubs(0x1111, 0x2222, 0x3333);
        assert_eq!(restorer, RESTORER);
        for (level, stub) in (0..).zip(&stubs) {
            let handler = Handler {
                signal: libc::SIGTRAP,
                level,
            };
            let first = stubs.as_ptr() as u64;
            assert_eq!(handler.address(first), std::ptr::from_ref(stub) as u64);
            assert_eq!((stub.magic, stub.signals), (HANDLER_MAGIC, 0x3333));
            assert_eq!(stub.level, level);
        }
    }
}

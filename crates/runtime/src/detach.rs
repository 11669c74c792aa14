//! Restoring a process: the end of a session in it, and the clean-up after a session that was
//! killed.
//!
//! Both rely on what is stored in the process itself, its [`Manifest`] and what that leads to, so a
//! Beeline that has never seen the process can do it. Everything that is read there is checked
//! before it is acted on.

mod find;
mod layers;
mod occupancy;
mod returns;
mod sites;
mod syscalls;
mod threads;
mod witnesses;

use std::collections::{BTreeMap, BTreeSet};
use std::mem::{MaybeUninit, offset_of};
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use beeline_agent::abi::{Control, DISMISSALS, Manifest, Session};
use beeline_hook::jump_target;
use beeline_inject::{Process, Region, Registers, Stopped};
use beeline_uapi::Errno;

use crate::error::Error;
use crate::kernel_uprobes::{Text, beside, kernel_uprobes_left};
use crate::liveness::SessionId;
use crate::semaphores::Shares;
use crate::sigaction::{self, Handler, Removal};
use crate::{patch, retry_open};

use find::is_a;
pub(crate) use find::{
    detach_own, holders, is_page, is_session, maps_ours, open, presences, presences_among,
};
pub use find::{everywhere, in_process};
pub(crate) use layers::{Beneath, Layers};
use occupancy::Occupancy;
pub(crate) use sites::MAX_SITES;
use sites::Restored;
pub use sites::{CallFacts, MappedCalls, ProgramFacts, SiteFacts};
pub(crate) use threads::has_same_memory;
use threads::is_nobody_in;
pub(crate) use witnesses::still_there;

/// A session's presence in a process.
#[derive(Debug)]
pub struct Presence {
    /// The process.
    pub pid: i32,
    /// The session.
    pub session: SessionId,
    /// True if the session's Beeline is still running.
    pub is_live: bool,
    /// The sites that are restored for good, whatever stands there now.
    restored: Restored,
    /// True if its records say which sites are patched. A forked child shares its parent's records
    /// until it is adopted.
    is_listed: bool,
    /// The tool's command line.
    pub tool: String,
    /// The sites that are hooked now.
    pub sites: Vec<SiteFacts>,
    /// All sites that the session has ever hooked, newest first. A forked child shares the list but
    /// not the code, so only the code shows what is hooked.
    records: Vec<SiteFacts>,
    /// The changes that were made for system calls.
    pub calls: CallFacts,
    /// Everything that is mapped for the session.
    pub mappings: Vec<Region>,
    /// Its private memory, if that is there.
    private: Option<Range<u64>>,
    /// All zero if the session was killed before it had written one, and so before it had hooked
    /// anything.
    manifest: Manifest,
    /// The pool that holds the manifest; 0 without one.
    home: u64,
}

/// The number of milliseconds that threads inside a program get to come out.
const PATIENCE: u32 = 2_000;
/// The number of those that wait for no thread to be inside before anything is restored, if a process
/// is only to be left for a moment.
const CALM: u32 = 100;
/// The number of those after them, in which what is there is restored piece by piece.
const BUSY: u32 = 300;
const JUMP: u8 = beeline_hook::JUMP_OPCODE;
const INT3: u8 = beeline_hook::INT3;

/// The appearance of a place that is hooked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hook {
    /// As the session left it.
    Ours,
    /// Another party's breakpoint lies upon it, or did: the kernel's, or one that will bring this
    /// session's patch back.
    Covered,
}

impl Presence {
    /// Returns the file, and the offset in it, that an address in the process belongs to.
    pub fn place_of(&self, address: u64) -> Option<String> {
        let regions = open(self.pid).ok()?.regions().ok()?;
        let region = regions.iter().find(|region| region.contains(address))?;
        Some(format!(
            "{}+{:#x}",
            region.path.display(),
            address - region.start + region.offset
        ))
    }

    /// True if this is what a forked child has inherited, and no session will come for it.
    ///
    /// A child with hooked system calls makes an upcall for that, and is an orphan only if there
    /// was no answer. A child that runs programs belongs to a session. With `has_others`, another
    /// session may have taken out what the child would make its upcall by.
    pub(crate) fn is_abandoned(&self, process: &Process, has_others: bool) -> bool {
        let place = self.manifest.private as u64;
        // SAFETY: `Control` consists of integers, for which any bytes are valid.
        let Ok(control) = (unsafe { read::<Control>(process, place) }) else {
            return false;
        };
        let is_hooked = || !has_others || self.hooks_calls(process);
        let asks = self.calls.hooked > 0 && control.orphan.load(Relaxed) == 0 && is_hooked();
        control.pid.load(Relaxed) == 0 && !asks
    }

    /// Calls `Self::remove` for a process that the caller has not opened.
    ///
    /// # Errors
    ///
    /// [`Error::Inject`] if the process may not be traced, cannot be stopped, or its memory cannot
    /// be read or written. [`Error::Target`] if something may still lead to the session's code:
    /// another party's patch or signal handler, or a thread that does not come out of a program.
    pub fn detach(&self) -> Result<bool, Error> {
        self.remove(&open(self.pid)?)
    }

    /// As [`Self::detach`], but for good: a live session leaves the process alone from now on.
    ///
    /// # Errors
    ///
    /// Those of [`Self::detach`], and [`Error::Target`] if its session is being taken out of too
    /// many processes at once.
    pub fn dismiss(&self) -> Result<bool, Error> {
        self.remove_by(&open(self.pid)?, |stopped| {
            self.announce_dismissal(stopped)?;
            self.remove_now(stopped, |_| true)
        })
    }

    /// As [`Self::detach`], for what a killed session has left, as long as it is that. Returns
    /// false if nothing of it is left any more.
    ///
    /// # Errors
    ///
    /// Those of [`Self::detach`], except for `ESRCH`: a process that has ended has nothing left.
    pub fn detach_if_dead(&self) -> Result<bool, Error> {
        let outcome = open(self.pid).and_then(|process| self.clear(&process));
        match outcome {
            Err(error) if error.errno() == Errno(libc::ESRCH) => Ok(false),
            outcome => outcome,
        }
    }

    /// Restores the process: its code, its signal handlers and the return addresses that lead to
    /// Beeline. Unmaps everything once no thread is inside.
    ///
    /// The process is stopped for moments only. Returns false if another Beeline has done it
    /// meanwhile.
    pub(crate) fn remove(&self, process: &Process) -> Result<bool, Error> {
        self.remove_if(process, |_| true)
    }

    /// As [`Self::remove`]. `then` is called in the stop at the end of which nothing is there any
    /// more.
    ///
    /// Returns the time in which the process's code was not hooked: none, unless there is always a
    /// thread inside.
    pub(crate) fn remove_and(
        &self,
        process: &Process,
        then: impl Fn(&mut Stopped) -> Result<(), Error> + Sync,
    ) -> Result<Duration, Error> {
        let (attempts, restored) = (AtomicU32::new(0), OnceLock::new());
        self.remove_by(process, |stopped| {
            let is_calm = || self.occupancy(stopped).is_clear();
            let attempt = attempts.fetch_add(1, Relaxed);
            if attempt > CALM + BUSY {
                return Err(self.error("a thread does not come out of a program"));
            }
            if attempt < CALM && !is_calm()? {
                return Ok(None);
            }
            if self.occupancy(stopped).shares_its_memory() {
                return Err(self.error("a child shares its memory"));
            }
            let outcome = self.remove_now(stopped, |_| true)?;
            match outcome {
                Some(true) => then(stopped)?,
                Some(false) => {}
                None => _ = restored.get_or_init(Instant::now),
            }
            Ok(outcome)
        })?;
        Ok(restored.get().map(Instant::elapsed).unwrap_or_default())
    }

    /// As [`Self::remove`], for what a killed session has left, as long as it is that.
    pub(crate) fn clear(&self, process: &Process) -> Result<bool, Error> {
        self.remove_if(process, |now| !now.is_live)
    }

    /// As [`Self::remove`], while a thread waits in Beeline's code.
    ///
    /// The thread goes on with other registers. They are set in the stop at the end of which
    /// nothing of Beeline's is there any more, or cannot be taken away.
    pub(crate) fn remove_around(
        &self,
        process: &Process,
        tid: i32,
        to: impl Fn(&Registers) -> Registers + Sync,
    ) -> Result<bool, Error> {
        self.remove_by(process, |stopped| {
            let mut threads = stopped.threads().iter();
            let Some(thread) = threads.find(|thread| thread.tid() == tid) else {
                return Ok(Some(false));
            };
            let waiting = *thread.registers();
            stopped.set_registers(tid, to(&waiting))?;
            let outcome = self.remove_now(stopped, |_| true);
            if let Ok(None) = outcome {
                stopped.set_registers(tid, waiting)?;
            }
            outcome
        })
    }

    /// Makes one attempt of [`Self::remove`]. Returns `None` if a thread is inside.
    pub(crate) fn remove_once(&self, process: &Process) -> Result<Option<bool>, Error> {
        process.stopped(|stopped| self.remove_now(stopped, |_| true))?
    }

    fn remove_if(&self, process: &Process, may: fn(&Presence) -> bool) -> Result<bool, Error> {
        self.remove_by(process, |stopped| self.remove_now(stopped, may))
    }

    /// Attempts it until it is done, each time in a stop of its own.
    fn remove_by(
        &self,
        process: &Process,
        attempt: impl Fn(&mut Stopped) -> Result<Option<bool>, Error> + Sync,
    ) -> Result<bool, Error> {
        for _ in 0..PATIENCE {
            let attempt = || Ok(process.stopped(&attempt)?);
            if let Some(is_done) = retry_open::patiently(attempt)?? {
                return Ok(is_done);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Err(self.error("its code is restored, but a thread does not come out of a program; `beeline detach` it later"))
    }

    /// Makes one attempt of [`Self::remove_if`]. Returns `None` if a thread is inside.
    fn remove_now(
        &self,
        stopped: &mut Stopped,
        may: fn(&Presence) -> bool,
    ) -> Result<Option<bool>, Error> {
        // Another Beeline may be doing the same, or have come to stay. The presences found now do
        // not change while the process is held.
        let mut present = presences(stopped.process())?;
        let mut places = present.iter().map(|one| (one.session, one.home));
        let Some(at) = places.position(|place| place == (self.session, self.home)) else {
            return Ok(Some(false));
        };
        let now = present.swap_remove(at);
        if !may(&now) {
            return Ok(Some(false));
        }
        Ok(now.take_out(stopped, &present)?.then_some(true))
    }

    /// Makes one attempt of [`Self::remove`] beside what other sessions have there. Returns false
    /// if a thread is inside.
    fn take_out(&self, stopped: &mut Stopped, others: &[Presence]) -> Result<bool, Error> {
        // From here on, memory that cannot be read is not mapped any more.
        stopped.check_readable()?;
        let under = self.lies_under(others);
        let probed = self.restore_code(stopped, &under, others)?;
        if !under.is_empty() || self.is_covered(stopped, &probed) {
            self.silence(stopped)?;
            let why = match under.is_empty() {
                false => {
                    "another session of Beeline has hooked the same functions since; what is ours stays mapped until that ends, \
                     and is taken out with it"
                }
                true => {
                    "somebody has patched the same place since (a debugger, another tracer); what is ours stays mapped until \
                     that is gone: `beeline detach` it then"
                }
            };
            return Err(self.error(why));
        }
        self.restore_returns(stopped, others)?;
        self.bring_back(stopped)?;
        let occupancy = self.occupancy(stopped);
        if !occupancy.is_clear()? || occupancy.may_be_under_a_program(others) {
            return Ok(false);
        }
        if !self.restore_handlers(stopped, others)? {
            return Ok(false);
        }
        self.unmap(stopped)?;
        tracing::info!(pid = self.pid, session = %self.session, sites = self.sites.len(), "left a process");
        Ok(true)
    }

    /// Returns the places that are hooked now according to their code, each once.
    fn hooked(&self, read: impl Fn(u64, &mut [u8]) -> bool) -> Vec<(&SiteFacts, Hook)> {
        let mut found: BTreeMap<u64, (usize, &SiteFacts, Hook)> = BTreeMap::new();
        for site in &self.records {
            let mut now = vec![0; site.patch.len()];
            // Memory that cannot be read has been unmapped.
            if !read(site.address, &mut now) {
                continue;
            }
            let Some(hook) = self.hook_of(site, &now) else {
                continue;
            };
            // A kernel uprobe upon a jump looks like a breakpoint that was to take the jump's
            // place. The right record is the one with more of its bytes there, and among equal ones
            // the newest.
            let evidence = site.bytes_left_at(&now);
            let known = found.get(&site.address);
            if known.is_none_or(|(other, ..)| evidence > *other) {
                found.insert(site.address, (evidence, site, hook));
            }
        }
        let found = found.into_values();
        found.map(|(_, site, hook)| (site, hook)).collect()
    }

    /// Returns how a site of this session is hooked, given the bytes there.
    fn hook_of(&self, site: &SiteFacts, now: &[u8]) -> Option<Hook> {
        // A jump to this session's own memory is its own whatever the records say. All else may be
        // another tracer's.
        let is_off = self.restored.contains(site) || self.is_listed && !site.is_patched;
        match now.first() {
            Some(&JUMP) if !site.is_breakpoint && self.jumps_here(site.address, now) => {
                Some(Hook::Ours)
            }
            _ if is_off => None,
            Some(&INT3) if site.is_broken_at(now) => Some(Hook::Ours),
            _ if (site.is_patched || site.bytes_left_at(now) > 0)
                && Text::of(now, site.stored()) == Text::Mixed =>
            {
                Some(Hook::Covered)
            }
            _ => None,
        }
    }

    /// True if the code at `address` jumps to a trampoline of this session.
    fn jumps_here(&self, address: u64, code: &[u8]) -> bool {
        let Some(to) = jump_target(address, code) else {
            return false;
        };
        self.mappings
            .iter()
            .any(|mapping| mapping.permissions.execute && mapping.contains(to))
    }

    /// Restores the code and returns the places of kernel uprobes upon it.
    ///
    /// The uprobes stay. So does this session's patch `under` another session's, and under another
    /// party's breakpoint: removing that breakpoint puts the patch's first byte back.
    fn restore_code(
        &self,
        stopped: &mut Stopped,
        under: &BTreeSet<u64>,
        others: &[Presence],
    ) -> Result<BTreeSet<u64>, Error> {
        let layers = Layers::among(others);
        let mut hooked = self.hooked(|address, into| stopped.read(address, into).is_ok());
        hooked.retain(|(site, _)| !under.contains(&site.address));
        let place = |site: &SiteFacts| site.address..site.address + site.original.len() as u64;
        let ranges: Vec<_> = hooked.iter().map(|(site, _)| place(site)).collect();
        // Where that cannot be known, a breakpoint is taken for another tracer's.
        let probed = kernel_uprobes_left(stopped, &ranges).unwrap_or_default();
        let (mut code, mut stay) = (Vec::new(), under.clone());
        let mut going = Vec::new();
        for (site, _) in hooked {
            let mut now = vec![0; site.original.len()];
            stopped.read(site.address, &mut now)?;
            if !patch::is_covered(site.address, &now, &site.patch, &probed) {
                let original = layers.underneath(site);
                let bytes = beside(site.address, &now, original, original, &probed);
                code.push((site.address, bytes));
                going.push(site.going());
            } else {
                stay.insert(site.address);
            }
        }
        patch::lead_back(stopped, going.into_iter())?;
        stopped.write_code(code)?;
        if let Some(private) = &self.private {
            let records = self.records.iter();
            let restored = records.filter(|site| !stay.contains(&site.address));
            self.restored.add(stopped, private.start, restored)?;
            Shares::default().store(stopped, private.start)?;
        }
        self.restore_calls(stopped)?;
        Ok(probed)
    }

    /// True if anything still leads to this session's trampolines, or will, by a breakpoint upon
    /// one of its jumps.
    fn is_covered(&self, stopped: &Stopped, probed: &BTreeSet<u64>) -> bool {
        let read = |address: u64, into: &mut [u8]| stopped.read(address, into).is_ok();
        // Where only kernel uprobes are left, nothing leads to the session.
        let is_restored = |site: &SiteFacts| {
            let (mut now, original) = (vec![0; site.original.len()], &site.original);
            read(site.address, &mut now)
                && beside(site.address, &now, original, original, probed) == now
        };
        let mut hooked = self.hooked(read).into_iter();
        hooked.any(|(site, _)| !is_restored(site))
            || self.records.iter().any(|site| self.leads_here(site, read))
            || self.is_call_patched(stopped)
    }

    /// True if the jump of a site is there except for its first byte, whatever the records say of
    /// it.
    fn leads_here(&self, site: &SiteFacts, read: impl Fn(u64, &mut [u8]) -> bool) -> bool {
        let mut now = vec![0; site.patch.len()];
        !site.is_breakpoint
            && read(site.address, &mut now)
            && now.get(1..) == site.patch.get(1..)
            && site.patch.get(1..) != site.file.get(1..)
            && self.jumps_here(site.address, &now)
    }

    /// Stops the programs from running.
    fn silence(&self, stopped: &mut Stopped) -> Result<(), Error> {
        let pid = self.manifest.private as u64 + offset_of!(Control, pid) as u64;
        Ok(stopped.write(pid, &[0; 4])?)
    }

    /// Tells a session not to come back.
    fn announce_dismissal(&self, stopped: &mut Stopped) -> Result<(), Error> {
        // A forked child has its parent's page until it is adopted.
        let page = self.mappings.iter().find(|mapping| is_page(mapping));
        let Some(page) = page.filter(|_| self.is_live && self.is_listed) else {
            return Ok(());
        };
        let place = page.start + offset_of!(Session, dismissed) as u64;
        let (owner, mut slots) = (self.manifest.owner.to_ne_bytes(), [[0; 4]; DISMISSALS]);
        stopped.read(place, slots.as_flattened_mut())?;
        if slots.contains(&owner) {
            return Ok(());
        }
        let Some(free) = slots.iter().position(|slot| *slot == [0; 4]) else {
            return Err(
                self.error("its session is being taken out of many processes at once; try again")
            );
        };
        Ok(stopped.write(place + 4 * free as u64, &owner)?)
    }

    fn occupancy<'a>(&'a self, stopped: &'a Stopped) -> Occupancy<'a> {
        Occupancy {
            presence: self,
            stopped,
        }
    }

    /// Returns this session's code in the wanted mappings of the process.
    fn code(&self, is_meant: impl Fn(&Region) -> bool) -> Vec<Range<u64>> {
        let mappings = self.mappings.iter();
        let code = mappings.filter(|mapping| mapping.permissions.execute && is_meant(mapping));
        code.map(|mapping| mapping.start..mapping.end).collect()
    }

    /// Removes this session's signal handlers. Returns false if a thread may be about to be led to
    /// one.
    fn restore_handlers(&self, stopped: &mut Stopped, others: &[Presence]) -> Result<bool, Error> {
        if self.private.is_none() {
            return Ok(true);
        }
        // Other sessions may have breakpoints here.
        if others.is_empty() {
            sigaction::keep_traps_out(stopped, self.manifest.signals as u64)?;
        }
        // Handlers of other sessions, which may have read that this session's is next, are in their
        // agents. System calls are made in their pools.
        let is_agent = |mapping: &Region| is_a(mapping, "-agent");
        let handlers = others.iter().flat_map(|other| other.code(is_agent));
        let (handlers, restorers): (Vec<_>, Vec<_>) = (
            handlers.collect(),
            others
                .iter()
                .flat_map(|other| other.code(|_| true))
                .collect(),
        );
        let is_quiet = |stopped: &Stopped| is_nobody_in(stopped, &handlers, &restorers);
        let installed = self.manifest.handlers.load(Relaxed);
        let kept = (self.manifest.signals as u64, self.manifest.handler as u64);
        for handler in Handler::all().filter(|one| installed & one.bit() != 0) {
            match sigaction::remove(stopped, handler, kept, self.is_live, is_quiet)? {
                Removal::Done => {}
                Removal::Busy => return Ok(false),
                Removal::Covered => {
                    let signal = handler.signal;
                    return Err(self.error(&format!(
                        "its code is restored, but it has put a handler for signal {signal} over ours, which it may call: \
                         Beeline's memory stays mapped until it ends"
                    )));
                }
            }
        }
        Ok(true)
    }

    /// Unmaps everything.
    ///
    /// The manifest goes last, so that if Beeline is killed here, the next one finds the rest. The
    /// session page goes just before it, because it shows that Beeline was killed.
    fn unmap(&self, stopped: &mut Stopped) -> Result<(), Error> {
        let order = |mapping: &&Region| match mapping {
            home if home.start == self.home => 3,
            page if is_page(page) => 2,
            pool if is_a(pool, "-trampolines") => 1,
            _ => 0,
        };
        let mut mappings: Vec<_> = self.mappings.iter().collect();
        mappings.sort_by_key(order);
        let mappings = mappings.into_iter().map(|one| one.start..one.end);
        for part in self.private.clone().into_iter().chain(mappings) {
            stopped.munmap(part.start, part.end - part.start)?;
        }
        Ok(())
    }

    fn error(&self, why: &str) -> Error {
        Error::Target {
            pid: self.pid,
            why: why.into(),
        }
    }
}

/// Copies a value out of a process.
///
/// # Safety
///
/// Any bytes must be a valid `T`, as long as its pointers are not followed.
unsafe fn read<T>(process: &Process, address: u64) -> Result<T, Error> {
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: the slice covers exactly the value's own bytes, which are initialised to zero.
    let bytes =
        unsafe { std::slice::from_raw_parts_mut(value.as_mut_ptr().cast::<u8>(), size_of::<T>()) };
    process.read_memory(address, bytes)?;
    // SAFETY: all bytes are initialised, and the caller promises that any bytes are a valid `T`.
    Ok(unsafe { value.assume_init() })
}

#[cfg(test)]
mod tests;

//! Giving a process back as it was: the way out of a session, and the cleaning up after one that was killed.
//!
//! Both go by what stands in the process itself, its [`Manifest`] and what that leads to, so a Beeline that has never
//! seen the process can do it. What is read there is checked before it is acted on.

mod calls;
mod sites;

use std::collections::{BTreeMap, BTreeSet};
use std::mem::{MaybeUninit, offset_of};
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use beeline_image::abi::{Control, MANIFEST_MAGIC, MAX_CPUS, Manifest, SIGNALS, Session};
use beeline_image::returns::{Entry, ReturnTable};
use beeline_inject::{Process, Region, Seccomp, Stopped, signal_frames};

use crate::error::Error;
use crate::private::Private;
use crate::scope::{all_processes, start_time};
use crate::{opening, patch};

pub use sites::{CallFacts, MappedCalls, ProgramFacts, SiteFacts};
use sites::{call_records, records, text_of};

/// A session's presence in a process.
#[derive(Debug)]
pub struct Presence {
    /// The process.
    pub pid: i32,
    /// The session's process id.
    pub session: i32,
    /// Is that Beeline still running?
    pub is_live: bool,
    /// The tool's command line.
    pub tool: String,
    /// What is hooked now.
    pub sites: Vec<SiteFacts>,
    /// All that the session has ever hooked, newest first. A forked child shares the list and not the code, so what
    /// is hooked is to be seen in the code alone.
    records: Vec<SiteFacts>,
    /// What was done for system calls.
    pub calls: CallFacts,
    /// Everything that is mapped for the session.
    pub mappings: Vec<Region>,
    /// Its private memory, if that is there.
    private: Option<Range<u64>>,
    /// All zero if the session was killed before it had written one, and so before it had hooked anything.
    manifest: Manifest,
    /// The arena that the manifest stands in; 0 without one.
    home: u64,
}

/// An entry of a return table, see [`Entry`].
#[derive(Debug)]
struct Watched {
    place: u64,
    depth: u64,
    address: u64,
    hijack: u64,
}

/// Times that threads inside a program are given a millisecond to come out.
const PATIENCE: u32 = 2_000;
const JUMP: u8 = 0xe9;
const INT3: u8 = beeline_hook::INT3;
pub(crate) const PREFIX: &str = "/memfd:beeline-";

/// All processes that a session is present in, so far as we may look.
pub fn everywhere() -> Vec<Presence> {
    let present = |pid| presences(&open(pid).ok()?).ok();
    all_processes()
        .into_iter()
        .filter(|pid| maps_ours(*pid))
        .filter_map(present)
        .flatten()
        .collect()
}

/// Processes that a session is in and that cannot be opened now.
pub(crate) fn unreachable(session: i32) -> Vec<i32> {
    let name = format!("{PREFIX}{session}-arena");
    let holds = |pid: &i32| {
        std::fs::read_to_string(format!("/proc/{pid}/maps")).is_ok_and(|maps| maps.contains(&name))
    };
    all_processes()
        .into_iter()
        .filter(|pid| *pid != session)
        .filter(holds)
        .filter(|pid| open(*pid).is_err())
        .collect()
}

/// The sessions that are present in a process. Errors say why it may not be looked at.
pub fn in_process(pid: i32) -> Result<Vec<Presence>, Error> {
    presences(&open(pid)?)
}

/// Opens a process that Beeline is present in, so its seccomp filters have let Beeline pass before.
fn open(pid: i32) -> Result<Process, Error> {
    opening::open(pid, Seccomp::Trust)
}

/// A quick look, before a process is opened.
fn maps_ours(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/maps"))
        .is_ok_and(|maps| maps.contains("-arena") && maps.contains(PREFIX))
}

/// The sessions that are present in an open process.
pub(crate) fn presences(process: &Process) -> Result<Vec<Presence>, Error> {
    let regions = process.regions()?;
    let mut found = Vec::new();
    for region in &regions {
        let Some(session) = session_of(region).filter(|_| is_a(region, "-arena")) else {
            continue;
        };
        // SAFETY: a manifest is integers and bytes only.
        let Ok(manifest) = (unsafe { read::<Manifest>(process, region.start) }) else {
            continue;
        };
        if manifest.magic != MANIFEST_MAGIC
            || manifest.first != 1
            || manifest.session as i32 != session
            || session == process.pid()
        {
            continue;
        }
        found.push(presence(
            process,
            &regions,
            session,
            (region.start, manifest),
        ));
    }
    let unlisted: BTreeSet<i32> = regions
        .iter()
        .filter(|region| is_a(region, "-arena"))
        .filter_map(session_of)
        .filter(|session| is_unfinished(*session, &regions, &found))
        .collect();
    for session in unlisted {
        // SAFETY: integers and bytes only.
        let none = unsafe { MaybeUninit::<Manifest>::zeroed().assume_init() };
        found.push(presence(process, &regions, session, (0, none)));
    }
    Ok(found)
}

/// Has a session begun to map things here, and was killed before it said so in a manifest? Nothing is hooked then.
fn is_unfinished(session: i32, regions: &[Region], found: &[Presence]) -> bool {
    let is_known = found.iter().any(|presence| presence.session == session);
    // What a tool's own calls are made quicker by has no manifest and is in use.
    let mut shortcuts = regions.iter().filter(|one| is_a(one, "-shortcut"));
    let has_shortcut = shortcuts.any(|one| session_of(one) == Some(session));
    !is_known && !has_shortcut && start_time(session).is_none()
}

/// What is known of a session that is present in a process, by its manifest and where that is.
fn presence(
    process: &Process,
    regions: &[Region],
    session: i32,
    (home, manifest): (u64, Manifest),
) -> Presence {
    let ours = regions.iter().filter(|r| session_of(r) == Some(session));
    let mappings: Vec<Region> = ours.cloned().collect();
    let mut presence = Presence {
        pid: process.pid(),
        session,
        is_live: start_time(session) == Some(manifest.session_start),
        tool: text_of(&manifest.tool),
        sites: Vec::new(),
        records: records(process, &manifest, &mappings),
        calls: call_records(process, &manifest, &mappings, regions),
        private: private_of(process, &manifest),
        mappings,
        manifest,
        home,
    };
    let read = |address: u64, into: &mut [u8]| process.read_memory(address, into).is_ok();
    presence.sites = presence
        .hooked(read)
        .into_iter()
        .map(|(site, _)| site.clone())
        .collect();
    presence
}

/// The private memory, if it is still there. Otherwise a Beeline that died while it left has unmapped it, and something else may be
/// there by now.
fn private_of(process: &Process, manifest: &Manifest) -> Option<Range<u64>> {
    let (start, len) = (manifest.private as u64, manifest.private_len as u64);
    let end = start.checked_add(len)?;
    let read = |address: u64| {
        let mut word = [0; 8];
        let is_read = process.read_memory(address, &mut word).is_ok();
        is_read.then_some(u64::from_ne_bytes(word))
    };
    Private::is_at(start, len, read).then_some(start..end)
}

/// The session that a mapping belongs to.
fn session_of(region: &Region) -> Option<i32> {
    let (session, _) = region
        .path
        .to_str()?
        .strip_prefix(PREFIX)?
        .split_once('-')?;
    session.parse().ok()
}

/// Is it this kind of memory file?
fn is_a(region: &Region, kind: &str) -> bool {
    region
        .path
        .to_str()
        .is_some_and(|path| path.trim_end_matches(" (deleted)").ends_with(kind))
}

/// How a place looks that is hooked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hook {
    /// As the session left it.
    Ours,
    /// Somebody else's patch lies upon it, and will bring it back.
    Covered,
}

impl Presence {
    /// The file, and the offset in it, that an address in the process belongs to.
    pub fn place_of(&self, address: u64) -> Option<String> {
        let regions = open(self.pid).ok()?.regions().ok()?;
        let region = regions.iter().find(|region| region.contains(address))?;
        Some(format!(
            "{}+{:#x}",
            region.path.display(),
            address - region.start + region.offset
        ))
    }

    /// Is this what a forked child has inherited, and nobody will come for? A child in which system calls are hooked asks for
    /// it, and is an orphan only if there was no answer; and what runs programs is somebody's.
    pub(crate) fn is_abandoned(&self, process: &Process) -> bool {
        let place = self.manifest.private as u64;
        // SAFETY: numbers only.
        let Ok(control) = (unsafe { read::<Control>(process, place) }) else {
            return false;
        };
        let asks = self.calls.hooked > 0 && control.orphan.load(Relaxed) == 0;
        control.pid.load(Relaxed) == 0 && !asks
    }

    /// [`Self::remove`] for whoever has not opened the process.
    pub fn leave(&self) -> Result<(), Error> {
        self.remove(&open(self.pid)?)
    }

    /// Restores the process: its code, its signal handlers, the return addresses that lead to us; and unmaps
    /// everything once no thread is inside. It is stopped for moments only.
    pub(crate) fn remove(&self, process: &Process) -> Result<(), Error> {
        let others: Vec<Presence> = presences(process)?
            .into_iter()
            .filter(|p| p.session != self.session)
            .collect();
        for _ in 0..PATIENCE {
            let mut stopped = process.stop()?;
            self.restore_code(&mut stopped)?;
            if self.is_covered(&stopped, &others) {
                self.silence(&mut stopped)?;
                return Err(self.error(
                    "somebody has patched the same place since (another session of Beeline, a debugger); what is ours \
                     stays mapped until that is gone: `beeline detach` it then",
                ));
            }
            self.restore_returns(&mut stopped, &others)?;
            self.bring_back(&mut stopped)?;
            if self.is_clear(&stopped)? {
                self.restore_handlers(&mut stopped)?;
                let unmapped = self.unmap(&mut stopped);
                let _ = stopped.resume();
                return unmapped;
            }
            let _ = stopped.resume();
            std::thread::sleep(Duration::from_millis(1));
        }
        Err(self.error("its code is restored, but a thread does not come out of a program; `beeline detach` it later"))
    }

    /// The places that are hooked now, by what their code says; each once.
    fn hooked(&self, read: impl Fn(u64, &mut [u8]) -> bool) -> Vec<(&SiteFacts, Hook)> {
        let mut seen = BTreeSet::new();
        let mut found = Vec::new();
        for site in &self.records {
            let mut now = vec![0; site.patch.len()];
            // What cannot be read has been unmapped.
            if seen.contains(&site.address) || !read(site.address, &mut now) {
                continue;
            }
            let hook = match now.first() {
                Some(&JUMP) if !site.is_breakpoint && self.jumps_here(site.address, &now) => {
                    Hook::Ours
                }
                Some(&INT3) if site.is_breakpoint => Hook::Ours,
                // A debugger's breakpoint on our jump's first byte.
                Some(&INT3) if now.get(1..) == site.patch.get(1..) && now.len() > 1 => {
                    Hook::Covered
                }
                _ => continue,
            };
            seen.insert(site.address);
            found.push((site, hook));
        }
        found
    }

    /// Does the code at `address` jump to a trampoline of ours?
    fn jumps_here(&self, address: u64, code: &[u8]) -> bool {
        let Some(distance) = code.get(1..5).and_then(|bytes| bytes.try_into().ok()) else {
            return false;
        };
        let to = address
            .wrapping_add(5)
            .wrapping_add_signed(i32::from_le_bytes(distance).into());
        self.mappings
            .iter()
            .any(|mapping| mapping.permissions.execute && mapping.contains(to))
    }

    fn restore_code(&self, stopped: &mut Stopped) -> Result<(), Error> {
        let hooked = self.hooked(|address, into| stopped.read(address, into).is_ok());
        for (site, _) in hooked.into_iter().filter(|(_, hook)| *hook == Hook::Ours) {
            stopped.write(site.address, &site.original)?;
        }
        self.restore_calls(stopped)
    }

    /// Does anybody still lead to our trampolines, or mean to: a breakpoint upon a jump of ours, or another session
    /// that has displaced one?
    fn is_covered(&self, stopped: &Stopped, others: &[Presence]) -> bool {
        let displaced = others.iter().flat_map(|other| &other.sites);
        !self
            .hooked(|address, into| stopped.read(address, into).is_ok())
            .is_empty()
            || displaced.into_iter().any(|site| {
                site.original.first() == Some(&JUMP)
                    && self.jumps_here(site.address, &site.original)
            })
    }

    /// Has the programs run no more.
    fn silence(&self, stopped: &mut Stopped) -> Result<(), Error> {
        let pid = self.manifest.private as u64 + offset_of!(Control, pid) as u64;
        Ok(stopped.write(pid, &[0; 4])?)
    }

    /// Puts back the return addresses that calls in progress have on their stacks, or that another session has
    /// saved from there.
    fn restore_returns(&self, stopped: &mut Stopped, others: &[Presence]) -> Result<(), Error> {
        if self.private.is_none() {
            return Ok(());
        }
        for (slot, mut watched) in self.watched_returns(stopped)? {
            watched.sort_unstable_by_key(|entry| entry.depth);
            let (Some(first), Some(last)) = (watched.first(), watched.last()) else {
                continue;
            };
            let mut now = [0; 8];
            // A stale entry's stack may be gone, or hold something else by now.
            if stopped.read(slot, &mut now).is_ok() && u64::from_ne_bytes(now) == last.hijack {
                stopped.write(slot, &first.address.to_ne_bytes())?;
                continue;
            }
            for other in others {
                let over = other
                    .watched_returns(stopped)?
                    .remove(&slot)
                    .unwrap_or_default();
                if let Some(entry) = over.iter().find(|entry| entry.address == last.hijack) {
                    stopped.write(
                        entry.place + offset_of!(Entry, address) as u64,
                        &first.address.to_ne_bytes(),
                    )?;
                }
            }
        }
        Ok(())
    }

    /// The return table, by stack slot.
    fn watched_returns(&self, stopped: &Stopped) -> Result<BTreeMap<u64, Vec<Watched>>, Error> {
        let mut table = vec![0u8; size_of::<ReturnTable>()];
        stopped.read(self.manifest.returns as u64, &mut table)?;
        let mut slots: BTreeMap<u64, Vec<Watched>> = BTreeMap::new();
        for place in ReturnTable::places() {
            let Some(entry) = table.get(place..place + size_of::<Entry>()) else {
                continue;
            };
            let word = |field: usize| {
                u64::from_ne_bytes(entry[field..][..8].try_into().unwrap_or_default())
            };
            let slot = word(offset_of!(Entry, key));
            if slot != 0 {
                slots.entry(slot).or_default().push(Watched {
                    place: self.manifest.returns as u64 + place as u64,
                    depth: word(offset_of!(Entry, depth)),
                    address: word(offset_of!(Entry, address)),
                    hijack: word(offset_of!(Entry, hijack)),
                });
            }
        }
        Ok(slots)
    }

    /// Is no thread in our code, or about to return to it?
    fn is_clear(&self, stopped: &Stopped) -> Result<bool, Error> {
        let ranges: Vec<Range<u64>> = self
            .mappings
            .iter()
            .filter(|mapping| mapping.permissions.execute)
            .map(|mapping| mapping.start..mapping.end)
            .collect();
        let inside = |ip: u64| ranges.iter().any(|range| range.contains(&ip));
        Ok(!stopped.threads().iter().any(|thread| inside(thread.ip()))
            && !self.holds_a_slot(stopped)
            && !self.shares_its_memory(stopped)
            && !self.awaits_a_trap()
            && signal_frames(stopped, &ranges)?.is_empty())
    }

    /// A thread that runs a program may be elsewhere at the moment (in the vDSO, in the kernel), but holds a slot.
    fn holds_a_slot(&self, stopped: &Stopped) -> bool {
        let Some(page) = self
            .mappings
            .iter()
            .find(|mapping| is_a(mapping, "-session"))
        else {
            return false;
        };
        // A forked child has no slot: what it finds there is its parent's.
        let mut pid = [0; 4];
        let control = self.manifest.private as u64 + offset_of!(Control, pid) as u64;
        if stopped.read(control, &mut pid).is_err() || pid == [0; 4] {
            return false;
        }
        let (start, stride) = (
            offset_of!(Session, leases),
            size_of::<beeline_image::abi::Lease>(),
        );
        let mut leases = vec![0; stride * MAX_CPUS];
        if stopped
            .read(page.start + start as u64, &mut leases)
            .is_err()
        {
            return false;
        }
        leases
            .chunks_exact(stride)
            .any(|lease| lease[..4] == self.manifest.owner.to_ne_bytes())
    }

    /// A parent that waits for a child which has its memory is not among the threads that are held. The count of such
    /// children says only that there may be one: a call that was under way when the code was restored is not counted down.
    fn shares_its_memory(&self, stopped: &Stopped) -> bool {
        let mut children = [0; 4];
        let place = self.manifest.private as u64 + offset_of!(Control, children) as u64;
        if stopped.read(place, &mut children).is_err() || children == [0; 4] {
            return false;
        }
        let others = all_processes().into_iter().filter(|pid| *pid != self.pid);
        let mut others = others.filter(|pid| maps_ours(*pid));
        others.any(|other| has_same_memory(self.pid, other))
    }

    /// A thread that was stopped between a breakpoint and its signal.
    fn awaits_a_trap(&self) -> bool {
        const SIGTRAP: usize = 5;
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid))
            .into_iter()
            .flatten()
            .flatten();
        self.records.iter().any(|site| site.is_breakpoint)
            && tasks.into_iter().any(|task| {
                let status =
                    std::fs::read_to_string(task.path().join("status")).unwrap_or_default();
                let pending = status.lines().find_map(|line| line.strip_prefix("SigPnd:"));
                let mask = pending.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
                mask.is_some_and(|mask| mask >> (SIGTRAP - 1) & 1 == 1)
            })
    }

    fn restore_handlers(&self, stopped: &mut Stopped) -> Result<(), Error> {
        if self.private.is_none() {
            return Ok(());
        }
        let installed = self.manifest.handlers.load(Relaxed);
        let (signals, handler) = (self.manifest.signals as u64, self.manifest.handler as u64);
        for (_, signal) in SIGNALS
            .iter()
            .enumerate()
            .filter(|(index, _)| installed & 1 << index != 0)
        {
            if !patch::remove_handler(stopped, *signal as i32, (signals, handler), self.is_live)? {
                return Err(self.error(&format!(
                    "its code is restored, but it has put a handler for signal {signal} over ours, which it may call: \
                     Beeline's memory stays mapped until it ends"
                )));
            }
        }
        Ok(())
    }

    /// Unmaps everything. The manifest goes last, so that whoever comes after a Beeline that was killed here finds the rest.
    fn unmap(&self, stopped: &mut Stopped) -> Result<(), Error> {
        let (arenas, others): (Vec<_>, Vec<_>) =
            self.mappings.iter().partition(|one| is_a(one, "-arena"));
        let (home, arenas): (Vec<_>, Vec<_>) =
            arenas.into_iter().partition(|one| one.start == self.home);
        let range = |mapping: &Region| mapping.start..mapping.end;
        let others = others.into_iter().map(range).chain(self.private.clone());
        for part in others.chain(arenas.into_iter().chain(home).map(range)) {
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

/// Have two processes one memory? Also where the kernel does not tell.
fn has_same_memory(one: i32, other: i32) -> bool {
    /// Of `linux/kcmp.h`.
    const KCMP_VM: u64 = 1;
    // SAFETY: compares; takes numbers only.
    let compared = unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_VM, 0, 0) };
    match compared {
        -1 => std::io::Error::last_os_error().raw_os_error() == Some(libc::ENOSYS),
        order => order == 0,
    }
}

/// Copies a value out of a process.
///
/// # Safety
/// Any bytes must be a good `T`, as long as its pointers are not followed.
unsafe fn read<T>(process: &Process, address: u64) -> Result<T, Error> {
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: the value's own bytes, initialised to zero.
    let bytes =
        unsafe { std::slice::from_raw_parts_mut(value.as_mut_ptr().cast::<u8>(), size_of::<T>()) };
    process.read_memory(address, bytes)?;
    // SAFETY: the caller's promise.
    Ok(unsafe { value.assume_init() })
}

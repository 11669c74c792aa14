//! Finding what sessions have put into processes.

use std::collections::BTreeSet;
use std::mem::{MaybeUninit, offset_of};
use std::ops::Range;

use beeline_agent::abi::{Control, MANIFEST_MAGIC, Manifest};
use beeline_inject::{Process, Region};

use super::sites::{Restored, call_records, records, text_of};
use super::witnesses::witnesses;
use super::{Presence, read};
use crate::confinement;
use crate::error::Error;
use crate::liveness::{PREFIX, SessionId};
use crate::private::Private;
use crate::proc::{self, all_processes, own_pid, start_time};

/// Returns all processes that a session is present in, as far as Beeline may look.
pub fn everywhere() -> Vec<Presence> {
    let present = |pid| presences(&open(pid).ok()?).ok();
    all_processes()
        .into_iter()
        .filter(|pid| maps_ours(*pid))
        .filter_map(present)
        .flatten()
        .collect()
}

/// Returns the processes that a session has something in, including those that cannot be opened
/// now.
pub(crate) fn holders(session: SessionId) -> BTreeSet<i32> {
    let name = format!("{PREFIX}{}", session.name("trampolines"));
    let holds =
        |pid: &i32| proc::text(format!("/proc/{pid}/maps")).is_ok_and(|maps| maps.contains(&name));
    let others = |pid: &i32| *pid != std::process::id() as i32;
    all_processes()
        .into_iter()
        .filter(others)
        .filter(holds)
        .collect()
}

/// Takes a session out of a process.
pub(crate) fn detach_own(pid: i32, session: SessionId) -> Result<(), Error> {
    let present = in_process(pid)?;
    let mut own = present.iter().filter(|one| one.session == session);
    own.try_for_each(|presence| presence.detach().map(drop))
}

/// Returns the sessions that are present in a process.
///
/// # Errors
///
/// [`Error::Inject`] if the process has ended or may not be traced.
pub fn in_process(pid: i32) -> Result<Vec<Presence>, Error> {
    presences(&open(pid)?)
}

/// Opens a process that Beeline is present in, so its seccomp filters have let Beeline pass before.
pub(crate) fn open(pid: i32) -> Result<Process, Error> {
    confinement::open_to_leave(pid)
}

/// Takes a quick look before a process is opened.
pub(crate) fn maps_ours(pid: i32) -> bool {
    proc::text(format!("/proc/{pid}/maps")).is_ok_and(|maps| {
        maps.contains(PREFIX) && (maps.contains("-trampolines") || maps.contains("-session"))
    })
}

/// The most sessions in one process. Each that is read takes time and memory, and a process can map
/// files of any name.
pub(super) const MAX_SESSIONS: usize = 64;
/// The end of all addresses that a process can have: those of five levels of page tables.
pub(super) const USER_END: u64 = 1 << 56;

/// Returns the sessions that are present in an open process.
pub(crate) fn presences(process: &Process) -> Result<Vec<Presence>, Error> {
    presences_among(process, &process.regions()?)
}

/// As [`presences`], given what is mapped.
pub(crate) fn presences_among(
    process: &Process,
    regions: &[Region],
) -> Result<Vec<Presence>, Error> {
    let mut found = Vec::new();
    let mut unfinished = BTreeSet::new();
    for region in regions {
        let is_pool = is_a(region, "-trampolines");
        let Some(session) = SessionId::of(region).filter(|_| is_pool || is_page(region)) else {
            continue;
        };
        unfinished.insert(session);
        if unfinished.len().max(found.len()) > MAX_SESSIONS {
            let pid = process.pid();
            let why =
                "it maps files that look like those of more sessions of Beeline than there can be";
            tracing::info!(pid, "{why}");
            return Err(Error::Target {
                pid,
                why: why.into(),
            });
        }
        // SAFETY: a manifest consists of integers and bytes, for which any bytes are valid.
        let Ok(manifest) = (unsafe { read::<Manifest>(process, region.start) }) else {
            continue;
        };
        let named = (manifest.session as i32, manifest.session_start);
        if !is_pool
            || manifest.magic != MANIFEST_MAGIC
            || manifest.first != 1
            || !is_sound(&manifest)
            || named != (session.pid, session.start)
            || is_session(process.pid(), session)
        {
            continue;
        }
        let home = (region.start, manifest);
        found.push(presence(process, regions, session, home));
    }
    unfinished.retain(|session| is_unfinished(process, *session, regions, &found));
    for session in unfinished {
        // SAFETY: a manifest consists of integers and bytes, for which zeros are valid.
        let none = unsafe { MaybeUninit::<Manifest>::zeroed().assume_init() };
        found.push(presence(process, regions, session, (0, none)));
    }
    Ok(found)
}

/// True if all that a manifest names can be in a process. No session writes another one.
fn is_sound(manifest: &Manifest) -> bool {
    let Manifest {
        private,
        private_len,
        returns,
        signals,
        handler,
        ..
    } = manifest;
    let mut places = [private, private_len, returns, signals, handler].into_iter();
    places.all(|place| (*place as u64) < USER_END)
}

/// True if a session has begun to map things here, and was killed before it said so in a manifest.
/// Nothing is hooked then.
fn is_unfinished(
    process: &Process,
    session: SessionId,
    regions: &[Region],
    found: &[Presence],
) -> bool {
    let is_known = found.iter().any(|presence| presence.session == session);
    let mut of_session = regions
        .iter()
        .filter(|one| SessionId::of(one) == Some(session));
    // Fast paths of a tool have no manifest and are in use. A pool that does not begin with zeros
    // is of another version of Beeline.
    let is_in_use = |region: &Region| {
        let mut magic = [0; 8];
        let is_read = process.read_memory(region.start, &mut magic).is_ok();
        is_a(region, "-fast-path") || is_a(region, "-trampolines") && is_read && magic != [0; 8]
    };
    !is_known && !of_session.any(is_in_use) && !is_alive(session, regions)
}

/// Describes a session that is present in a process, by its manifest and the manifest's address.
fn presence(
    process: &Process,
    regions: &[Region],
    session: SessionId,
    (home, manifest): (u64, Manifest),
) -> Presence {
    let ours = regions
        .iter()
        .filter(|one| SessionId::of(one) == Some(session));
    let mappings: Vec<Region> = ours.cloned().collect();
    let pages = kernels_pages(&mappings, regions);
    let witnesses = witnesses(process, &manifest, &mappings, regions);
    let mut presence = Presence {
        pid: process.pid(),
        session,
        is_live: is_alive(session, &mappings),
        restored: Restored::default(),
        is_listed: false,
        tool: text_of(&manifest.tool),
        sites: Vec::new(),
        records: records(process, &manifest, &mappings),
        calls: call_records(process, &manifest, &mappings, regions),
        private: private_of(process, &manifest),
        mappings,
        manifest,
        home,
    };
    presence.mappings.extend(witnesses);
    presence.mappings.extend(pages);
    let read = |address: u64, into: &mut [u8]| process.read_memory(address, into).is_ok();
    if let Some(private) = &presence.private {
        let pid = private.start + offset_of!(Control, pid) as u64;
        let mut word = [0; 4];
        presence.is_listed = process.read_memory(pid, &mut word).is_ok() && word != [0; 4];
        presence.restored = Restored::read(process, private.start, presence.records.len());
    }
    presence.sites = presence
        .hooked(read)
        .into_iter()
        .map(|(site, _)| site.clone())
        .collect();
    presence
}

/// Returns the kernel's arrays that are mapped over the beginnings of a session's files: see
/// [`MapObject::on_both_sides`](crate::map::MapObject::on_both_sides).
fn kernels_pages(ours: &[Region], all: &[Region]) -> Vec<Region> {
    let is_array = |region: &Region| region.path.as_os_str() == "anon_inode:bpf-map";
    let covers = |pages: &Region, rest: &Region| {
        pages.end == rest.start && pages.end - pages.start == rest.offset
    };
    let over = |rest: &Region| {
        let mut arrays = all.iter().filter(|region| is_array(region));
        arrays.find(|pages| covers(pages, rest)).cloned()
    };
    ours.iter().filter_map(over).collect()
}

/// True if the session's Beeline is still running.
fn is_alive(session: SessionId, regions: &[Region]) -> bool {
    let mut pages = regions.iter().filter(|one| is_page(one));
    session.is_alive(pages.find(|one| SessionId::of(one) == Some(session)))
}

/// True if the process is the session's own.
pub(crate) fn is_session(pid: i32, session: SessionId) -> bool {
    start_time(pid) == Some(session.start) && own_pid(pid) == session.pid
}

/// Returns the private memory, if it is still there. Otherwise a Beeline that died while leaving
/// has unmapped it, and something else may be there by now.
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

/// True if the region is this kind of memory file.
pub(super) fn is_a(region: &Region, kind: &str) -> bool {
    region
        .path
        .to_str()
        .is_some_and(|path| path.trim_end_matches(" (deleted)").ends_with(kind))
}

/// True if the region is a session page.
pub(crate) fn is_page(region: &Region) -> bool {
    is_a(region, "-session")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pages_over_a_sessions_file_are_its_own() {
        let region = |start, end, offset, path: &str| Region {
            start,
            end,
            permissions: Default::default(),
            offset,
            device: 1,
            inode: 7,
            path: path.into(),
        };
        let array = |start, end| region(start, end, 0, "anon_inode:bpf-map");
        let rest = region(
            0x12000,
            0x13000,
            0x2000,
            "/memfd:beeline-1-2-map-a (deleted)",
        );
        let (own, others, longer) = (
            array(0x10000, 0x12000),
            array(0x13000, 0x15000),
            array(0xf000, 0x12000),
        );
        let found = |all: &[Region]| kernels_pages(std::slice::from_ref(&rest), all).len();
        assert_eq!(found(&[own.clone(), rest.clone(), others.clone()]), 1);
        assert_eq!(found(&[longer, rest.clone(), others]), 0);
        let file = region(0x10000, 0x12000, 0, "/tmp/file");
        assert_eq!(found(&[file, rest.clone()]), 0);
    }

    #[test]
    fn a_manifest_that_names_no_memory_is_none() {
        // SAFETY: a manifest consists of integers and bytes, for which zeros are valid.
        let zeros = || unsafe { MaybeUninit::<Manifest>::zeroed().assume_init() };
        assert!(is_sound(&zeros()));
        let changes: [fn(&mut Manifest); 5] = [
            |manifest| manifest.private = usize::MAX,
            |manifest| manifest.private_len = usize::MAX,
            |manifest| manifest.returns = usize::MAX - 100,
            |manifest| manifest.signals = usize::MAX - 4096,
            |manifest| manifest.handler = 1 << 63,
        ];
        for change in changes {
            let mut manifest = zeros();
            change(&mut manifest);
            assert!(!is_sound(&manifest), "{manifest:?}");
        }
    }
}

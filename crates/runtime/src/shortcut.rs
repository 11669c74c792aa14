//! Shortcuts: the tool's processes do their own map operations, without the way through the door.
//!
//! A process gets one when it has asked the door often from one `syscall` instruction. A jump over that instruction
//! leads to [`beeline_image::shortcut`], which knows the session's maps from a directory that this module keeps, and maps
//! their files by the tool's own descriptors. Whatever stands in the way of it (a tracer, code that is not the
//! file's, no room) leaves the process with the door, which answers everything.

use std::collections::{HashMap, HashSet};
use std::mem::offset_of;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Release;
use std::sync::{Mutex, PoisonError};

use beeline_hook::{Function, Kind, SystemCall, TrampolineSpec};
use beeline_image::abi::{ORIGINAL_BYTES, Site};
pub use beeline_image::shortcut::WINDOW;
use beeline_image::shortcut::{
    DECLINED, Directory, FROZEN, LISTED, Listed, MAP_POSITION, READS, SERVED, Shortcut, WRITES,
};
use beeline_inject::{MapFlags, Mapping, Process, ProtFlags};
use beeline_maps::Kind as MapKind;

use crate::arena::{ARENA_BYTES, Arena};
use crate::error::{Error, os};
use crate::life::SessionId;
use crate::map::MapObject;
use crate::memory::{Memory, pages};
use crate::patch;
use crate::private::own_pid;
use crate::scope::start_time;
use crate::shared::Shared;

/// The shortcuts of a session.
#[derive(Debug)]
pub struct Shortcuts {
    /// Holds a [`Directory`].
    directory: Memory,
    /// Processes that were looked at, by id; each with its start time, and what was made of its sites.
    processes: Mutex<HashMap<i32, Visited>>,
}

#[derive(Debug)]
struct Visited {
    started: Option<u64>,
    /// What was tried, by the program that the process runs.
    tried: HashSet<(PathBuf, u64)>,
    /// Code in the process, which lasts as long as it.
    arenas: Vec<Arena>,
}

/// Instructions of one process that are tried. A function or two make all the calls of a tool.
const TRIES: usize = 8;

impl Shortcuts {
    /// An empty directory.
    pub fn new() -> std::io::Result<Self> {
        let name = SessionId::own().name("directory");
        let directory = Memory::new(&name, size_of::<Directory>())?;
        directory.seal_for_others()?;
        Ok(Self {
            directory,
            processes: Mutex::default(),
        })
    }

    /// Lists a map, if its operations are nothing but the map's own.
    pub fn list(&self, map: &MapObject) {
        let is_plain = matches!(
            map.here().spec().kind(),
            Some(
                MapKind::Hash
                    | MapKind::PercpuHash
                    | MapKind::LruHash
                    | MapKind::LruPercpuHash
                    | MapKind::Array
                    | MapKind::PercpuArray
            )
        );
        let Some(entry) = self.entry(map.id.0).filter(|_| is_plain) else {
            return;
        };
        // SAFETY: the entry is in this value's memory, and nobody reads its handle while its state is 0.
        unsafe {
            (&raw const (*entry).map).cast_mut().write(map.at(0));
            (*entry).state.store(SERVED, Release);
        }
    }

    /// The tool may not change the map any more.
    pub fn freeze(&self, map: u32) {
        if let Some(entry) = self.listed(map) {
            entry.state.fetch_or(FROZEN, Release);
        }
    }

    /// The map is gone.
    pub fn unlist(&self, map: u32) {
        if let Some(entry) = self.listed(map) {
            entry.state.store(0, Release);
        }
    }

    /// Gives a process of the tool its shortcut at the `syscall` instruction before `ip`, if that can be. `owner` makes
    /// the tag of what it holds in shared memory.
    pub fn open(
        &self,
        process: &Process,
        owner: impl FnOnce() -> u32,
        ip: u64,
        shared: &Shared,
    ) -> Result<(), Error> {
        let site = ip.wrapping_sub(SYSCALL.len() as u64);
        let mut processes = self
            .processes
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let started = start_time(process.pid());
        let visited = processes
            .entry(process.pid())
            .or_insert_with(|| Visited::new(started));
        if visited.started != started {
            *visited = Visited::new(started);
        }
        let program =
            std::fs::read_link(format!("/proc/{}/exe", process.pid())).unwrap_or_default();
        // What comes from our own code has been declined there.
        let is_ours = visited.arenas.iter().any(|arena| arena.holds(site));
        if !is_ours && visited.tried.len() < TRIES && visited.tried.insert((program, site)) {
            let arena = self.hook(process, owner(), site, shared)?;
            visited.arenas.push(arena);
        }
        Ok(())
    }

    fn hook(
        &self,
        process: &Process,
        owner: u32,
        site: u64,
        shared: &Shared,
    ) -> Result<Arena, Error> {
        let fail = |why: String| Error::Target {
            pid: process.pid(),
            why,
        };
        let regions = process.regions()?;
        let region = regions
            .iter()
            .find(|region| (region.start..region.end).contains(&site) && !region.permissions.shared)
            .ok_or_else(|| fail("its system calls come from nowhere".into()))?;
        let mut path = PathBuf::from(format!("/proc/{}/root", process.pid()));
        path.push(region.path.strip_prefix("/").unwrap_or(Path::new("")));
        let place = shared
            .files
            .place(&path, region.offset + (site - region.start))?;
        if place.has_small_stacks() {
            return Err(fail(
                "its stacks have no room: map operations take more than a kilobyte".into(),
            ));
        }
        let (start, code) = place.function_at(site);
        let mut now = vec![0; code.len()];
        process.read_memory(start, &mut now)?;
        if now != code || !code[(site - start) as usize..].starts_with(&SYSCALL) {
            return Err(fail("its code is not what the file holds".into()));
        }
        let plan = beeline_hook::plan_system_call(
            site,
            &Function { start, code },
            &place.incoming_at(site),
        )
        .map_err(|why| fail(why.to_string()))?;
        if let Kind::Breakpoint { reason } = &plan.kind {
            return Err(fail(format!(
                "its system call cannot be jumped over: {reason}"
            )));
        }
        let reach = plan
            .reach()
            .ok_or_else(|| fail("its instructions are too far apart".into()))?;

        let mut arena =
            Arena::new(&SessionId::own().name("shortcut")).map_err(os("creating an arena"))?;
        let near = process.find_gap(reach, ARENA_BYTES as u64)?;
        let near = near.ok_or_else(|| fail("there is no free address range near".into()))?;
        let code_of = |file, len, address| Mapping {
            file,
            offset: 0,
            len: len as u64,
            protection: ProtFlags::READ | ProtFlags::EXEC,
            flags: OURS,
            address,
        };
        let mappings = [
            Mapping {
                flags: OURS | MapFlags::FIXED_NOREPLACE,
                ..code_of(arena.file(), ARENA_BYTES, near)
            },
            code_of(shared.image.file(), shared.image.len(), 0),
            Mapping {
                protection: ProtFlags::READ,
                ..code_of(self.directory.file(), self.directory.len(), 0)
            },
        ];
        let mut stopped = process.stop()?;
        let placed = stopped.map_files(&mappings)?;
        let [near, image, directory] = placed[..] else {
            return Err(fail("it did not map what it was asked to".into()));
        };
        let len = pages(size_of::<Shortcut>()) as u64;
        let private = stopped.mmap_anonymous(
            len,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::empty(),
            0,
        )?;
        stopped.madvise(private, len, libc::MADV_WIPEONFORK)?;
        for (offset, bytes) in [
            (
                offset_of!(Shortcut, directory),
                directory.to_ne_bytes().to_vec(),
            ),
            (
                offset_of!(Shortcut, pid),
                (own_pid(process.pid()) as u64).to_ne_bytes().to_vec(),
            ),
            (offset_of!(Shortcut, owner), owner.to_ne_bytes().to_vec()),
            (offset_of!(Shortcut, alive), 1u32.to_ne_bytes().to_vec()),
        ] {
            stopped.write(private + offset as u64, &bytes)?;
        }
        arena.placed(near);
        let spec = TrampolineSpec::SystemCall(SystemCall {
            number: libc::SYS_bpf as u32,
            function: image + shared.image.points().shortcut,
            data: private,
            declined: DECLINED,
        });
        let trampoline = beeline_hook::emit(&plan, arena.next(64), &spec)
            .map_err(|why| fail(why.to_string()))?;
        let at = arena
            .bytes(&trampoline.bytes, 64)
            .map_err(os("filling an arena"))?;
        let jump = beeline_hook::jump_patch(site, plan.window_len, at)
            .map_err(|why| fail(why.to_string()))?;
        let mut patch = [0; ORIGINAL_BYTES];
        patch[..jump.len()].copy_from_slice(&jump);
        let record = Site {
            target: std::ptr::null(),
            address: site,
            entry: 0.into(),
            returns: 0.into(),
            return_entry: 0,
            body: trampoline.body,
            flags: 0,
            next: 0,
            patched: 0.into(),
            original_len: plan.window_len as u32,
            original: [0; ORIGINAL_BYTES],
            patch,
        };
        patch::apply(&mut stopped, &plan, &record, &trampoline.resume_map)?;
        stopped.resume()?;
        Ok(arena)
    }

    fn listed(&self, map: u32) -> Option<&Listed> {
        // SAFETY: in this value's memory, which was made of a directory's size; all but the facts of an entry that is
        // not in use are atomics.
        self.entry(map).map(|entry| unsafe { &*entry })
    }

    fn entry(&self, map: u32) -> Option<*const Listed> {
        let first = self.directory.base().cast::<Listed>();
        // SAFETY: an entry's place in the directory.
        ((map as usize) < LISTED).then(|| unsafe { first.add(map as usize) }.cast_const())
    }
}

impl Visited {
    fn new(started: Option<u64>) -> Self {
        Self {
            started,
            tried: HashSet::new(),
            arenas: Vec::new(),
        }
    }
}

/// Gives a new descriptor of a map's file the position by which a shortcut knows it.
pub fn name_descriptor(file: &OwnedFd, map: &MapObject) {
    let access = map.access();
    let bits = if access.reads { READS } else { 0 } | if access.writes { WRITES } else { 0 };
    let position = MAP_POSITION | u64::from(map.id.0) << 8 | bits;
    // Without it there is no shortcut for this descriptor.
    let _ = rustix::fs::seek(file, rustix::fs::SeekFrom::Start(position));
}

/// `syscall`.
const SYSCALL: [u8; 2] = [0x0f, 0x05];

/// As for targets: shared, with the mark by which the door's filter knows what is not the tool's.
const OURS: MapFlags = MapFlags::SHARED.union(MapFlags::NORESERVE);

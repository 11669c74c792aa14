//! Fast paths: the tool's processes do their own map operations without going through the
//! supervisor.
//!
//! A process gets one when it has often asked the supervisor from one `syscall` instruction. A jump
//! over that instruction leads to [`beeline_agent::fast_path`], which knows the session's maps from
//! a directory that this module keeps, and maps their files by the tool's own descriptors. If
//! anything stands in the way (a tracer, code that is not the file's, no room), the process stays
//! with the supervisor, which answers everything.

mod copies;
mod hooks;
mod lookup_channel;
mod prefetch;

use std::mem::offset_of;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};

pub use beeline_agent::fast_path::WINDOW;
use beeline_agent::fast_path::{
    Directory, FROZEN, FastPath, LISTED, Listed, MAP_POSITION, Own, READS, SERVED, STATE_BITS,
    ToolMemory, WRITES,
};
use beeline_inject::{Process, ProtFlags};
use beeline_maps::Kind as MapKind;

use crate::Error;
use crate::backend::Release as Waiting;
use crate::error::os;
use crate::liveness::SessionId;
use crate::map::MapObject;
use crate::memory::Memory;
use crate::proc::own_pid;
use crate::shared::Shared;
use hooks::{Code, Fill, Hooks, site_before};
pub use lookup_channel::{CHANNELS, KEY, MapByChannel, VALUE};
pub use prefetch::{BYTES, DELETED, FREE, FRESH, Fetched, GIVEN, Prefetch, STEPS, ToolClocks};

/// The fast paths of a session.
#[derive(Debug)]
pub struct FastPaths {
    /// Holds a [`Directory`].
    directory: Arc<Memory>,
    hooks: Hooks,
}

impl FastPaths {
    /// Creates an empty directory.
    ///
    /// # Errors
    ///
    /// Those of `memfd_create(2)`, `ftruncate(2)`, `mmap(2)` and `fcntl(2)`.
    pub fn new() -> std::io::Result<Self> {
        let name = SessionId::own().name("directory");
        let directory = Memory::new(&name, size_of::<Directory>())?;
        directory.seal_for_others()?;
        Ok(Self {
            directory: Arc::new(directory),
            hooks: Hooks::default(),
        })
    }

    /// Lists a map, if its operations involve nothing but the map itself.
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
        let entry = self.entry(map.id.0);
        if !is_plain || !entry.fits() || entry.listed().state.load(Acquire) != 0 {
            return;
        }
        // SAFETY: the entry is in the directory's memory, and a tool that reads its handle while its
        // state is 0 discards it.
        unsafe {
            let listed = entry.address();
            (&raw const (*listed).map).cast_mut().write(map.at(0));
            (*listed).state.store(entry.named(SERVED), Release);
        }
        map.set_entry(entry);
    }

    /// Notes that the tool may not change the map any more.
    pub fn freeze(&self, map: u32) {
        let entry = self.entry(map);
        if entry.is_its() {
            entry.listed().state.fetch_or(FROZEN, Release);
        }
    }

    /// Notes that the map is gone.
    pub fn unlist(&self, map: u32) {
        self.entry(map).clear();
    }

    /// Gives a process of the tool its fast path at the `syscall` instruction before `ip`, if
    /// possible. `owner` makes the tag of what it holds in shared memory. A thread that waits goes
    /// on when the others have been stopped.
    ///
    /// # Errors
    ///
    /// [`Error::Open`], [`Error::Binary`] or [`Error::Site`] if the file that the instruction is in
    /// cannot be read or probed, [`Error::Target`] if the instruction cannot be jumped over,
    /// [`Error::Os`] if a pool cannot be created or filled, [`Error::Inject`] if the process cannot
    /// be stopped, or its memory cannot be mapped, read or written.
    pub fn open(
        &self,
        process: &Process,
        owner: impl FnOnce() -> u32 + Send,
        ip: u64,
        shared: &Shared,
        waiting: Option<Waiting>,
    ) -> Result<(), Error> {
        let code = Code {
            agent: &shared.agent,
            function: shared.agent.points().fast_path,
            files: &shared.files,
            shared: &[(&self.directory, ProtFlags::READ)],
            private_len: size_of::<FastPath>(),
            wiped_len: size_of::<Own>(),
            token: Some(offset_of!(FastPath, token)),
        };
        let fill = |shared: &[u64]| {
            let directory = shared.first().copied().unwrap_or_default();
            let directory = directory.to_ne_bytes().to_vec();
            let mut fill = vec![(offset_of!(FastPath, directory), directory)];
            fill.extend(own(process, owner()));
            fill
        };
        let release = move || drop(waiting);
        self.hooks.open(process, ip, &code, fill, release).map(drop)
    }

    /// True if the `syscall` instruction before `ip` may be in the code of a fast path.
    pub fn has_code(&self, ip: u64) -> bool {
        self.hooks.images.holds(site_before(ip))
    }

    /// Lets a forked child use its copy of its parent's fast path, which has the instruction before
    /// `ip`. Nothing is stopped: the child has all that it needs, but for what must be its own.
    /// Returns false if it has no such copy, or uses it already.
    ///
    /// # Errors
    ///
    /// [`Error::Inject`] or [`Error::Os`] if its memory cannot be opened or written.
    pub fn adopt(
        &self,
        process: &Process,
        owner: impl FnOnce() -> u32,
        ip: u64,
    ) -> Result<bool, Error> {
        // It stays the memory of this program, should the process run another one now.
        let memory = process.memory()?;
        let token = offset_of!(FastPath, token);
        let Some(image) = self.hooks.images.find(&memory, site_before(ip), token) else {
            return Ok(false);
        };
        let mut alive = [0; 4];
        let place = image.private + ALIVE as u64;
        let reading = memory.read_exact_at(&mut alive, place);
        reading.map_err(os("reading a fast path"))?;
        if alive != [0; 4] {
            return Ok(false);
        }
        for (offset, bytes) in own(process, owner()) {
            let written = memory.write_all_at(&bytes, image.private + offset as u64);
            written.map_err(os("writing a fast path"))?;
        }
        Ok(true)
    }

    fn entry(&self, map: u32) -> Entry {
        Entry {
            directory: self.directory.clone(),
            map,
        }
    }
}

const ALIVE: usize = offset_of!(FastPath, own) + offset_of!(Own, alive);

/// Returns what a process has for itself in its fast path, in the order in which it is written.
fn own(process: &Process, owner: u32) -> Fill {
    const OWN: usize = offset_of!(FastPath, own);
    const PID: usize = OWN + offset_of!(Own, memory) + offset_of!(ToolMemory, pid);
    let pid = own_pid(process.pid()) as u64;
    vec![
        (PID, pid.to_ne_bytes().to_vec()),
        (OWN + offset_of!(Own, owner), owner.to_ne_bytes().to_vec()),
        (ALIVE, 1u32.to_ne_bytes().to_vec()),
    ]
}

/// A map's place in the directory, if it is not another map's.
#[derive(Debug)]
pub struct Entry {
    directory: Arc<Memory>,
    map: u32,
}

impl Entry {
    /// Leaves the map to the supervisor from now on. Operations that a process of the tool has
    /// begun still end.
    pub fn clear(&self) {
        if self.is_its() {
            self.listed().state.store(0, Release);
        }
    }

    fn is_its(&self) -> bool {
        let state = self.listed().state.load(Acquire);
        state & SERVED != 0 && state >> STATE_BITS == self.map
    }

    /// True if the map's id fits into a state.
    fn fits(&self) -> bool {
        self.map <= u32::MAX >> STATE_BITS
    }

    /// Returns the state of the map's entry with these bits.
    fn named(&self, bits: u32) -> u32 {
        self.map << STATE_BITS | bits
    }

    fn listed(&self) -> &Listed {
        // SAFETY: the entry is in the directory's memory, which lives as long as this value, and
        // has a directory's size. Except for the facts of an entry that is not in use, everything
        // in it is atomic.
        unsafe { &*self.address() }
    }

    fn address(&self) -> *const Listed {
        let first = self.directory.base().cast::<Listed>();
        // SAFETY: the result is an entry's place in the directory.
        unsafe { first.add(self.map as usize % LISTED) }.cast_const()
    }
}

/// Sets the position of a new descriptor of a map's file by which a fast path recognizes it.
pub fn name_descriptor(file: &OwnedFd, map: &MapObject) {
    let access = map.access();
    let bits = if access.reads { READS } else { 0 } | if access.writes { WRITES } else { 0 };
    let position = MAP_POSITION | u64::from(map.id.0) << 8 | bits;
    // Without it there is no fast path for this descriptor.
    let _ = rustix::fs::seek(file, rustix::fs::SeekFrom::Start(position));
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use beeline_uapi::MapType;

    use super::*;
    use crate::backend::{Id, MapSpec, SpecialFields};
    use crate::budget::Budget;
    use crate::domain::Domain;
    use crate::map::shards::View;

    #[test]
    fn maps_with_further_shards_are_left_to_the_supervisor() {
        let spec = MapSpec {
            map_type: MapType::HASH,
            key_size: 4,
            value_size: 8,
            max_entries: 4,
            flags: 0,
            map_extra: 0,
            name: String::new(),
            inner: None,
            fields: SpecialFields::default(),
            value_type: None,
        };
        let map = MapObject::new(Id(3), &spec, None, 1, &Budget::default()).unwrap();
        let fast_paths = FastPaths::new().unwrap();
        let entry = fast_paths.entry(3);
        let state = || entry.listed().state.load(Relaxed);
        map.see_as(&View::Union { id: None }).unwrap();
        fast_paths.list(&map);
        assert_eq!(state(), 3 << STATE_BITS | SERVED);
        map.shard_of(&Domain::for_test(1)).unwrap();
        assert_eq!(state(), 0);
        fast_paths.freeze(3);
        assert_eq!(state() & SERVED, 0);
    }
}

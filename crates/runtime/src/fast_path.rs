//! Fast paths: the tool's processes do their own map operations without going through the
//! supervisor.
//!
//! A process gets one when it has often asked the supervisor from one `syscall` instruction. A jump
//! over that instruction leads to [`beeline_agent::fast_path`], which knows the session's maps from
//! a directory that this module keeps, and maps their files by the tool's own descriptors. If
//! anything stands in the way (a tracer, code that is not the file's, no room), the process stays
//! with the supervisor, which answers everything.

mod hooks;
mod lookup_channel;
mod prefetch;

use std::mem::offset_of;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Release;

pub use beeline_agent::fast_path::WINDOW;
use beeline_agent::fast_path::{
    Directory, FROZEN, FastPath, LISTED, Listed, MAP_POSITION, READS, SERVED, ToolMemory, WRITES,
};
use beeline_inject::{Process, ProtFlags};
use beeline_maps::Kind as MapKind;

use crate::Error;
use crate::liveness::SessionId;
use crate::map::MapObject;
use crate::memory::Memory;
use crate::proc::own_pid;
use crate::shared::Shared;
use hooks::{Code, Hooks};
pub use lookup_channel::{CHANNELS, KEY, MapByChannel, VALUE};
pub use prefetch::{BYTES, DELETED, FREE, FRESH, Fetched, GIVEN, Prefetch, STEPS};

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
        let Some(listed) = entry.address().filter(|_| is_plain) else {
            return;
        };
        // SAFETY: the entry is in the directory's memory, and no tool reads its handle while its
        // state is 0.
        unsafe {
            (&raw const (*listed).map).cast_mut().write(map.at(0));
            (*listed).state.store(SERVED, Release);
        }
        map.set_entry(entry);
    }

    /// Notes that the tool may not change the map any more.
    pub fn freeze(&self, map: u32) {
        if let Some(listed) = self.entry(map).listed() {
            listed.state.fetch_or(FROZEN, Release);
        }
    }

    /// Notes that the map is gone.
    pub fn unlist(&self, map: u32) {
        self.entry(map).clear();
    }

    /// Gives a process of the tool its fast path at the `syscall` instruction before `ip`, if
    /// possible. `owner` makes the tag of what it holds in shared memory.
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
    ) -> Result<(), Error> {
        let code = Code {
            agent: &shared.agent,
            function: shared.agent.points().fast_path,
            files: &shared.files,
            shared: &[(&self.directory, ProtFlags::READ)],
            private_len: size_of::<FastPath>(),
        };
        let pid = own_pid(process.pid()) as u64;
        let opened = self.hooks.open(process, ip, &code, |shared| {
            let directory = shared.first().copied().unwrap_or_default();
            let memory = offset_of!(FastPath, memory) + offset_of!(ToolMemory, pid);
            vec![
                (
                    offset_of!(FastPath, directory),
                    directory.to_ne_bytes().to_vec(),
                ),
                (memory, pid.to_ne_bytes().to_vec()),
                (offset_of!(FastPath, owner), owner().to_ne_bytes().to_vec()),
                (offset_of!(FastPath, alive), 1u32.to_ne_bytes().to_vec()),
            ]
        });
        opened.map(drop)
    }

    fn entry(&self, map: u32) -> Entry {
        Entry {
            directory: self.directory.clone(),
            map,
        }
    }
}

/// A map's place in the directory.
#[derive(Debug)]
pub struct Entry {
    directory: Arc<Memory>,
    map: u32,
}

impl Entry {
    /// Leaves the map to the supervisor from now on. Operations that a process of the tool has
    /// begun still end.
    pub fn clear(&self) {
        if let Some(listed) = self.listed() {
            listed.state.store(0, Release);
        }
    }

    fn listed(&self) -> Option<&Listed> {
        // SAFETY: the entry is in the directory's memory, which lives as long as this value, and
        // has a directory's size. Except for the facts of an entry that is not in use, everything
        // in it is atomic.
        self.address().map(|entry| unsafe { &*entry })
    }

    fn address(&self) -> Option<*const Listed> {
        let first = self.directory.base().cast::<Listed>();
        let index = self.map as usize;
        // SAFETY: the index was checked, so the result is an entry's place in the directory.
        (index < LISTED).then(|| unsafe { first.add(index) }.cast_const())
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
        let state = || entry.listed().unwrap().state.load(Relaxed);
        map.see_as(&View::Union { id: None }).unwrap();
        fast_paths.list(&map);
        assert_eq!(state(), SERVED);
        map.shard_of(&Domain::for_test(1)).unwrap();
        assert_eq!(state(), 0);
        fast_paths.freeze(3);
        assert_eq!(state() & SERVED, 0);
    }
}

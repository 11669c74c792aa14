//! A map as the runtime keeps it: its memory file, mapped here, and what only the tool's side
//! needs. Processes that may not share that file have a shard of their own (`shards`), and the
//! tool's operations are on all of them (`tool`).

pub mod shards;
mod tool;
mod twin;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use beeline_codegen::MapShape;
use beeline_maps::user_ringbuf::UserRing;
use beeline_maps::{Caller, Fields, Kind, Layout, Map, ringbuf};
use beeline_uapi::{Errno, flags};
use beeline_verifier::program;
use beeline_verifier::sharding::Use;
use beeline_verifier::types::{KernelTypes, ProgramTypes};
use parking_lot::{Mutex, RwLock};

use crate::backend::{Id, MapSpec, ValueType};
use crate::budget::{Budget, Charge};
use crate::domain::Domain;
use crate::memory::Memory;
use crate::notifier::{Source, wakeup_fd};
use crate::objects::{self, Elements, Object, ProgramKind};
use crate::perf_ring::Ring;
use crate::relay::Relay;
use shards::{Shard, Shards};
use twin::{Model, Sides};

/// The owner's tag of Beeline itself in a map's locks; targets' tags begin above it.
pub const RUNTIME_OWNER: u32 = 1;

/// A map.
#[derive(Debug)]
pub struct MapObject {
    /// Its id.
    pub id: Id,
    /// The tool's request for it.
    pub spec: MapSpec,
    /// Its file: the first shard.
    pub memory: Memory,
    /// Mapped at `memory`.
    map: Map,
    shards: Shards,
    /// Processes, and the kernel.
    sides: RwLock<Sides>,
    /// For a ring buffer: where processes write that must not write into `memory`.
    relay: Relay<Map>,
    /// The use that programs make of it; `None` before the first.
    usage: Mutex<Option<Use>>,
    /// The one domain that has it, if it cannot be split.
    owner: OnceLock<Arc<Domain>>,
    /// True once a program of the tool's own processes, or of Beeline's, uses it.
    is_tools: AtomicBool,
    frozen: AtomicBool,
    /// A perf event array's elements.
    rings: Mutex<Vec<Option<Arc<Ring>>>>,
    /// The elements of a map of objects.
    pub elements: Elements,
    /// True once its elements are in the kernel's map too.
    pub objects_in_kernel: AtomicBool,
    /// The map that the kernel judges programs by, if it has judged one.
    model: Mutex<Option<Model>>,
    /// The kind of programs that a program array takes.
    pub programs: ProgramKind,
    /// The shape that the inner maps of a map of maps must have.
    inner: Option<MapSpec>,
    /// For a ring buffer: what the tool waits on, and one more than the position at which it was
    /// last woken. For a user ring buffer: the position itself.
    wakeup: OwnedFd,
    seen: AtomicU64,
    budget: Budget,
    _charge: Charge,
}

/// A map's memory for one domain.
#[derive(Debug)]
pub enum MapPart {
    /// The tool's own.
    First(Arc<MapObject>),
    /// Another domain's shard.
    Further(Arc<Shard>),
    /// The ring that another domain writes into in place of a ring buffer.
    Source(Arc<MapObject>, Arc<Memory>),
}

impl MapPart {
    /// Returns the file.
    pub fn memory(&self) -> &Memory {
        match self {
            Self::First(map) => &map.memory,
            Self::Further(shard) => &shard.memory,
            Self::Source(_, memory) => memory,
        }
    }

    /// Returns the handle for a process that has the file mapped at `base`.
    pub fn at(&self, base: u64) -> Map {
        match self {
            Self::First(map) | Self::Source(map, _) => map.at(base),
            Self::Further(shard) => shard.at(base),
        }
    }
}

/// The tool's rights to a map's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// Look-ups.
    pub reads: bool,
    /// Changes.
    pub writes: bool,
}

impl MapObject {
    /// Creates a map; `inner` is that of a map of maps.
    ///
    /// # Errors
    ///
    /// Those of [`Layout::new`], [`Fields::new`] and [`objects::check_inner`]; `EBADF` for a map of
    /// maps without an inner map; `ENOMEM` if the budget has no room for it; those of
    /// [`Memory::new`] and of `eventfd(2)`.
    pub fn new(
        id: Id,
        spec: &MapSpec,
        inner: Option<&MapObject>,
        cpus: u32,
        budget: &Budget,
    ) -> Result<Self, Errno> {
        let plain = spec.plain();
        Layout::new(&plain, cpus)?;
        let inner = match (plain.kind(), inner) {
            (Some(Kind::ArrayOfMaps | Kind::HashOfMaps), Some(inner)) => {
                objects::check_inner(inner)?;
                Some(inner.spec.clone())
            }
            (Some(Kind::ArrayOfMaps | Kind::HashOfMaps), None) => return Err(Errno::EBADF),
            _ => None,
        };
        let fields = Fields::new(&plain, spec.fields.spin_lock, spec.fields.timer)?;
        let first = Shard::new(&spec.name, &plain, fields, cpus, budget)?;
        Self::with_first(id, spec, first, inner, budget)
    }

    /// Puts a map together from its first shard.
    fn with_first(
        id: Id,
        spec: &MapSpec,
        first: Shard,
        inner: Option<MapSpec>,
        budget: &Budget,
    ) -> Result<Self, Errno> {
        let Shard {
            memory,
            map,
            charge,
        } = first;
        let elements = if map.spec().kind() == Some(Kind::PerfEventArray) {
            spec.max_entries as usize
        } else {
            0
        };
        Ok(Self {
            id,
            spec: spec.clone(),
            memory,
            map,
            shards: Shards::default(),
            sides: RwLock::default(),
            relay: Relay::default(),
            usage: Mutex::default(),
            owner: OnceLock::new(),
            is_tools: AtomicBool::new(false),
            frozen: AtomicBool::new(false),
            rings: Mutex::new(vec![None; elements]),
            elements: Elements::default(),
            objects_in_kernel: AtomicBool::new(false),
            model: Mutex::default(),
            programs: ProgramKind::default(),
            inner,
            wakeup: wakeup_fd().map_err(out_of_memory)?,
            seen: AtomicU64::new(0),
            budget: budget.clone(),
            _charge: charge,
        })
    }

    /// Returns the handle on the first shard for use here.
    pub fn here(&self) -> &Map {
        &self.map
    }

    /// Returns the handle on the first shard for a process that has its file mapped at `base`.
    pub fn at(&self, base: u64) -> Map {
        // SAFETY: the handle is only used in the process that has the file mapped at `base`; the
        // caller hands it to that process.
        unsafe { self.map.rebased(base as *mut u8) }
    }

    /// Returns Beeline's identity in the map's locks, on behalf of the tool.
    pub fn caller() -> Caller {
        Caller {
            owner: RUNTIME_OWNER,
            cpu: Caller::NO_SLOT,
            relax: |_| {
                std::thread::sleep(Duration::from_micros(50));
                true
            },
            context: 0,
        }
    }

    /// Returns the same identity, for memory in which a hostile process may hold a lock: nothing is
    /// waited for longer than a moment.
    pub fn impatient() -> Caller {
        Caller {
            relax: |_| false,
            ..Self::caller()
        }
    }

    /// Returns what a compiler may know of it.
    pub fn shape(&self) -> MapShape {
        shape_of(&self.map)
    }

    /// Returns what the verifier is told of it.
    pub fn as_verified(&self, kernel: Option<&KernelTypes>) -> program::Map {
        let inner = self.inner.as_ref();
        program::Map {
            id: self.id.0,
            constant: self.constant(),
            inner: inner.map(|inner| Box::new(as_verified(inner, kernel))),
            ..as_verified(&self.spec, kernel)
        }
    }

    /// Returns the value of an array of one element that can no longer change.
    fn constant(&self) -> Option<Vec<u8>> {
        let is_one = self.map.spec().kind() == Some(Kind::Array) && self.spec.max_entries == 1;
        let is_constant = self.spec.flags & flags::RDONLY_PROG != 0 && self.frozen.load(SeqCst);
        if !is_one || !is_constant {
            return None;
        }
        let mut value = vec![0; self.map.value_len()];
        let first = 0u32.to_ne_bytes();
        let read = self.map.lookup_copy(&first, &mut value, 0, &Self::caller());
        read.ok().map(|()| value)
    }

    /// True if no program may ever change anything in its memory, and look-ups do not either.
    pub fn is_only_read(&self) -> bool {
        let is_array = self.map.spec().kind() == Some(Kind::Array);
        is_array && self.spec.flags & flags::RDONLY_PROG != 0
    }

    /// Stops further changes by the tool.
    ///
    /// # Errors
    ///
    /// `EBUSY` if it is frozen already.
    pub fn freeze(&self) -> Result<(), Errno> {
        if self.frozen.swap(true, SeqCst) {
            Err(Errno(libc::EBUSY))
        } else {
            Ok(())
        }
    }

    /// Fails if the tool may not change it any more.
    ///
    /// # Errors
    ///
    /// `EPERM` if it is frozen.
    pub fn check_thawed(&self) -> Result<(), Errno> {
        if self.frozen.load(SeqCst) {
            Err(Errno(libc::EPERM))
        } else {
            Ok(())
        }
    }

    /// Returns the number of rings that a perf event array can hold; 0 for other maps.
    pub fn ring_elements(&self) -> usize {
        self.rings.lock().len()
    }

    /// Returns a perf event array's elements.
    pub fn rings(&self) -> Vec<Option<Arc<Ring>>> {
        self.rings.lock().clone()
    }

    /// Sets or clears an element of a perf event array.
    ///
    /// # Errors
    ///
    /// `E2BIG` if there is no such element, `ENOENT` if one that is empty is to be cleared.
    pub fn set_ring(&self, index: u32, ring: Option<Arc<Ring>>) -> Result<(), Errno> {
        let mut rings = self.rings.lock();
        let element = rings.get_mut(index as usize).ok_or(Errno(libc::E2BIG))?;
        if ring.is_none() && element.is_none() {
            return Err(Errno(libc::ENOENT));
        }
        *element = ring;
        Ok(())
    }

    /// Returns whether the tool may read it and change it, by its flags.
    pub fn access(&self) -> Access {
        Access {
            reads: self.spec.flags & flags::WRONLY == 0,
            writes: self.spec.flags & flags::RDONLY == 0,
        }
    }

    /// True if it is a ring buffer that has something to read.
    pub fn is_readable(&self) -> bool {
        let is_there = |ring: ringbuf::Ring<'_>| ring.readable().is_some();
        ringbuf::Ring::of(&self.map).is_some_and(|ring| {
            self.relay.run(&self.map);
            is_there(ring)
        })
    }

    /// True if its elements are objects.
    pub fn holds_objects(&self) -> bool {
        self.map.spec().kind().is_some_and(Kind::holds_objects)
    }

    /// True if it is a program array.
    pub fn is_program_array(&self) -> bool {
        self.map.spec().kind() == Some(Kind::ProgArray)
    }

    /// Fails with `EINVAL` if this object may not be an element.
    ///
    /// # Errors
    ///
    /// `EINVAL` for such an object.
    pub fn admit(&self, object: &Object) -> Result<(), Errno> {
        match (self.map.spec().kind(), object, &self.inner) {
            (Some(Kind::ProgArray), Object::Program(program), _) => self.programs.admit(program),
            (Some(Kind::ArrayOfMaps | Kind::HashOfMaps), Object::Map(map), Some(inner))
                if objects::alike(inner, &map.spec) =>
            {
                Ok(())
            }
            (Some(Kind::CgroupArray), Object::Cgroup { .. }, _) => Ok(()),
            _ => Err(Errno::EINVAL),
        }
    }

    /// True if it is a ring buffer, of programs' records or of the tool's samples.
    pub fn is_ring_buffer(&self) -> bool {
        matches!(
            self.map.spec().kind(),
            Some(Kind::Ringbuf | Kind::UserRingbuf)
        )
    }
}

impl Source for MapObject {
    fn news(&self) -> bool {
        if let Some(ring) = UserRing::of(&self.map) {
            // There is room again.
            let position = ring.consumed();
            return self.seen.swap(position, Relaxed) != position;
        }
        let Some(ring) = ringbuf::Ring::of(&self.map) else {
            return false;
        };
        let has_more = self.relay.run(&self.map).more;
        // Once for each position that the tool has got to: whatever is finished behind it is read
        // with it.
        let Some(position) = ring.readable() else {
            return has_more;
        };
        self.seen.swap(position + 1, Relaxed) != position + 1 || has_more
    }

    fn wakeup(&self) -> &OwnedFd {
        &self.wakeup
    }

    fn wake(&self) {
        let _ = rustix::io::write(&self.wakeup, &1u64.to_ne_bytes());
        if UserRing::of(&self.map).is_some() {
            // This tool waits for room to write, which becomes known by the read.
            let _ = rustix::io::read(&self.wakeup, &mut [0; 8]);
        }
    }
}

/// Returns the bytes that a map takes when it is full, here and in the kernel.
fn bytes_of(layout: &Layout, kind: Option<Kind>) -> u64 {
    /// The objects that stand for it, its files, and the kernel's part of them.
    const ITSELF: u64 = 8 << 10;
    /// The records of an element that is an object: the supervisor's, this crate's, and the tables
    /// that connect them.
    const OBJECT: u64 = 256;
    let of_element = match kind {
        Some(Kind::PerfEventArray) => size_of::<Option<Arc<Ring>>>() as u64,
        Some(kind) if kind.holds_objects() => OBJECT,
        _ => 0,
    };
    ITSELF + layout.len + of_element * u64::from(layout.entries)
}

fn out_of_memory(error: io::Error) -> Errno {
    Errno(error.raw_os_error().unwrap_or(libc::ENOMEM))
}

/// Describes a map of which no more is known.
fn as_verified(spec: &MapSpec, kernel: Option<&KernelTypes>) -> program::Map {
    let fields = |value: &ValueType| ProgramTypes::map_fields(&value.btf, value.id, kernel);
    program::Map {
        id: 0,
        name: spec.name.clone(),
        map_type: spec.map_type,
        key_size: spec.key_size,
        value_size: spec.value_size,
        max_entries: spec.max_entries,
        flags: spec.flags,
        constant: None,
        inner: None,
        fields: spec.value_type.as_ref().map(fields).unwrap_or_default(),
    }
}

/// Returns what a compiler may know of a map.
pub fn shape_of(map: &Map) -> MapShape {
    let layout = map.layout();
    let below_2g = |bytes| u32::try_from(bytes).ok().filter(|bytes| *bytes >> 31 == 0);
    let strides = below_2g(layout.stride).zip(below_2g(layout.cpu_stride));
    let (entries, key_size) = (map.spec().max_entries, map.spec().key_size);
    match (map.spec().kind(), strides) {
        (Some(Kind::Array), Some((stride, _))) => MapShape::Array { entries, stride },
        (Some(Kind::PercpuArray), Some((stride, cpu_stride))) => MapShape::PerCpuArray {
            entries,
            stride,
            cpu_stride,
            cpus: layout.cpus,
        },
        (Some(kind @ (Kind::Hash | Kind::PercpuHash | Kind::LruHash | Kind::LruPercpuHash)), _) => {
            MapShape::Hash {
                key_size,
                per_cpu: kind.is_percpu(),
                lru: kind.is_lru(),
            }
        }
        _ => MapShape::Opaque,
    }
}

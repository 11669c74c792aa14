//! The making of a map in the kernel that is like one here, with its elements.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use beeline_kernel as kernel;
use beeline_maps::Kind;
use beeline_uapi::{Errno, MapType, flags};

use super::super::{MapObject, as_verified};
use super::errno;
use crate::backend::MapSpec;
use crate::budget::Charge;
use crate::host_kernel::types;

impl MapObject {
    /// Removes all elements of this side, where nobody looks at them.
    pub(super) fn clear_here(&self) -> Result<(), Errno> {
        let keys = self.keys(|last, next| self.next_key_here(last, next))?;
        let nothing = vec![0; self.map.value_len()];
        for key in keys {
            let cleared = match self.has_keys_of_its_own() {
                true => self.delete_here(&key),
                false => self.update_here(&key, &nothing, 0),
            };
            match cleared {
                Err(Errno::ENOENT) => {}
                cleared => cleared?,
            }
        }
        Ok(())
    }

    /// Copies all elements of the kernel's map to this side, which has none.
    pub(super) fn copy_back(&self, twin: &kernel::Map) -> Result<(), Errno> {
        let next = |last: Option<&[u8]>, next: &mut [u8]| errno(twin.next_key(last, next));
        for key in self.keys(next)? {
            let mut value = vec![0; twin.value_len()];
            if errno(twin.lookup(&key, &mut value, 0)).is_ok() {
                self.update_here(&key, &value, 0)?;
            }
        }
        Ok(())
    }

    /// Copies all elements to the kernel's map.
    pub(super) fn fill_twin(&self, twin: &kernel::Map) -> Result<(), Errno> {
        if matches!(self.map.spec().kind(), Some(Kind::Queue | Kind::Stack)) {
            return self.pour_into(twin);
        }
        if !self.has_values() {
            return Ok(());
        }
        let keys = self.keys(|last, next| self.next_key_here(last, next))?;
        let mut value = vec![0; self.map.value_len()];
        for key in keys {
            match self.lookup_here(&key, &mut value, 0) {
                Err(Errno::ENOENT) => continue,
                found => found?,
            }
            if self.has_keys_of_its_own() || value.iter().any(|&byte| byte != 0) {
                errno(twin.update(&key, &value, 0))?;
            }
        }
        Ok(())
    }

    /// True for a map that has only the elements that were stored.
    fn has_keys_of_its_own(&self) -> bool {
        let kind = self.map.spec().kind();
        kind.is_some_and(|kind| kind.is_hash() || kind == Kind::LpmTrie)
    }

    /// Moves the values of a queue or stack to the kernel's. They stay here if that fails.
    fn pour_into(&self, twin: &kernel::Map) -> Result<(), Errno> {
        let mut values = Vec::new();
        loop {
            let mut value = vec![0; self.map.value_len()];
            match self.lookup_and_delete_here(&[], &mut value, 0) {
                Ok(()) => values.push(value),
                Err(Errno::ENOENT) => break,
                Err(errno) => return Err(errno),
            }
        }
        if self.map.spec().kind() == Some(Kind::Stack) {
            values.reverse();
        }
        let mut all = values.iter();
        let poured = all.try_for_each(|value| errno(twin.update(&[], value, 0)));
        if poured.is_err() {
            let mut all = values.iter();
            all.try_for_each(|value| self.update_here(&[], value, 0))?;
        }
        poured
    }

    /// True if nothing was ever stored in its memory.
    fn is_zero(&self) -> bool {
        let memory = self.memory.base().cast::<u64>();
        let words = self.memory.len() / size_of::<u64>();
        // SAFETY: the words are within the mapping, which lives as long as the map.
        (0..words).all(|at| unsafe { memory.add(at).read_volatile() } == 0)
    }

    /// Returns all keys that `next` finds.
    pub(super) fn keys(
        &self,
        next: impl Fn(Option<&[u8]>, &mut [u8]) -> Result<(), Errno>,
    ) -> Result<Vec<Vec<u8>>, Errno> {
        let mut keys: Vec<Vec<u8>> = Vec::new();
        // A map that changes meanwhile may have the walk begin anew.
        while keys.len() <= self.spec.max_entries as usize {
            let mut key = vec![0; self.spec.key_size as usize];
            match next(keys.last().map(Vec::as_slice), &mut key) {
                Ok(()) => keys.push(key),
                Err(Errno::ENOENT) => break,
                Err(errno) => return Err(errno),
            }
        }
        Ok(keys)
    }

    /// Fails for maps whose elements are more than bytes: the kernel's map would lack them.
    pub(super) fn check_kind(&self) -> Result<(), String> {
        let suits = |kind: Kind| match kind {
            Kind::StackTrace | Kind::Ringbuf | Kind::PerfEventArray => true,
            Kind::CgroupArray => self.elements.is_empty(),
            Kind::ProgArray | Kind::ArrayOfMaps | Kind::HashOfMaps => true,
            Kind::Queue | Kind::Stack => true,
            Kind::BloomFilter => self.is_zero(),
            _ => self.has_values(),
        };
        match self.map.spec().kind() {
            Some(kind) if suits(kind) => Ok(()),
            _ => Err(format!(
                "Beeline does not share the elements of a {} with the kernel",
                self.spec.map_type
            )),
        }
    }

    /// Creates the kernel's map, without elements.
    pub(super) fn new_twin(&self) -> io::Result<kernel::Map> {
        let twin = make(&self.spec, self.inner.as_ref())?;
        if self.has_values() && twin.value_len() != self.map.value_len() {
            return Err(io::Error::other(
                "its values have another number of CPUs there",
            ));
        }
        Ok(twin)
    }

    /// Returns a map in the kernel by which the kernel can judge programs that use this one: its
    /// own, or a small one like it, with the values that no program can change. `None` if a small
    /// one would not be like it.
    pub fn model(&self) -> Option<OwnedFd> {
        let copy = |twin: &kernel::Map| twin.as_fd().try_clone_to_owned();
        if let Some(twin) = self.in_twin(copy) {
            return twin.ok();
        }
        let is_constant = self.is_only_read() && self.check_thawed().is_err();
        // Kept, as logs show where it is.
        let mut kept = self.model.lock();
        if let Some(model) = kept.as_ref()
            && model.is_constant == is_constant
        {
            return model.file.try_clone().ok();
        }
        let cpus = self.map.layout().cpus;
        let inner = self.inner.as_ref();
        let inner = inner.map(|inner| small(inner, cpus).ok_or(()));
        let inner = inner.transpose().ok()?;
        let spec = small(&self.spec, cpus)?;
        let charge = self.budget.charge(bytes_in_kernel(&spec, cpus)).ok()?;
        let model = make(&spec, inner.as_ref()).ok()?;
        if is_constant {
            self.fill_twin(&model).ok()?;
            kernel::freeze(&model).ok()?;
        }
        let file = model.as_fd().try_clone_to_owned().ok()?;
        let kept = kept.insert(Model {
            file,
            is_constant,
            _charge: charge,
        });
        kept.file.try_clone().ok()
    }

    /// True if it has elements that can be copied.
    pub(super) fn has_values(&self) -> bool {
        self.map.spec().kind().is_some_and(has_values)
    }
}

/// A map by which the kernel judges programs.
#[derive(Debug)]
pub struct Model {
    file: OwnedFd,
    /// It has the values that no program can change.
    is_constant: bool,
    _charge: Charge,
}

/// True for maps with elements that can be copied.
pub(super) fn has_values(kind: Kind) -> bool {
    matches!(kind, Kind::Array | Kind::PercpuArray | Kind::LpmTrie)
        || kind.is_hash() && !kind.holds_objects() && kind != Kind::TaskStorage
}

/// The access of the tool's first descriptor, which is not the map's.
pub(super) const TOOLS: u32 = flags::RDONLY | flags::WRONLY;

/// Creates a map in the kernel, without elements. Its own elements are to be like `inner`.
fn make(spec: &MapSpec, inner: Option<&MapSpec>) -> io::Result<kernel::Map> {
    let inner = inner.map(|inner| make(inner, None)).transpose()?;
    let own = types_of(spec)?;
    kernel::Map::new(&kernel::MapSpec {
        types: own
            .as_ref()
            .map(|(btf, key, value)| (btf.as_fd(), *key, *value)),
        inner: inner.as_ref().map(AsFd::as_fd),
        ..kernel_spec(spec, spec.flags & !TOOLS)
    })
}

/// Returns a map that takes little memory in the kernel, and to whose programs the kernel says the
/// same. `None` for an array that takes much: its size matters to the verifier.
fn small(spec: &MapSpec, cpus: u32) -> Option<MapSpec> {
    const MOST: u64 = 1 << 20;
    const FEW: u32 = 8;
    let bytes = |spec: &MapSpec| bytes_in_kernel(spec, cpus);
    let max_entries = match spec.map_type {
        _ if bytes(spec) <= MOST => spec.max_entries,
        MapType::HASH
        | MapType::PERCPU_HASH
        | MapType::LRU_HASH
        | MapType::LRU_PERCPU_HASH
        | MapType::HASH_OF_MAPS
        | MapType::LPM_TRIE
        | MapType::STACK_TRACE
        | MapType::QUEUE
        | MapType::STACK
        | MapType::BLOOM_FILTER => FEW,
        // A power of two, and whole pages.
        MapType::RINGBUF | MapType::USER_RINGBUF => rustix::param::page_size() as u32,
        _ => return None,
    };
    let small = MapSpec {
        max_entries,
        ..spec.clone()
    };
    (bytes(&small) <= MOST).then_some(small)
}

/// Returns the types of a map with fields of the kernel's in its values, which the kernel finds by
/// them.
fn types_of(spec: &MapSpec) -> io::Result<Option<(Arc<OwnedFd>, u32, u32)>> {
    match as_verified(spec, None).fields.is_empty() {
        true => Ok(None),
        false => load_types_of(spec),
    }
}

/// Loads the types of a map's keys and values into the kernel, if the tool gave any.
pub(super) fn load_types_of(spec: &MapSpec) -> io::Result<Option<(Arc<OwnedFd>, u32, u32)>> {
    let Some(named) = &spec.value_type else {
        return Ok(None);
    };
    Ok(Some((types::of_map(&named.btf)?, named.key, named.id)))
}

pub(super) fn kernel_spec(spec: &MapSpec, flags: u32) -> kernel::MapSpec<'static> {
    kernel::MapSpec {
        map_type: spec.map_type,
        key_size: spec.key_size,
        value_size: spec.value_size,
        max_entries: spec.max_entries,
        flags,
        map_extra: spec.map_extra,
        ..kernel::MapSpec::default()
    }
}

/// Returns about the bytes that a map takes in the kernel when it is full.
fn bytes_in_kernel(spec: &MapSpec, cpus: u32) -> u64 {
    let copies = match spec.map_type {
        MapType::PERCPU_ARRAY | MapType::PERCPU_HASH | MapType::LRU_PERCPU_HASH => cpus,
        _ => 1,
    };
    let value = u64::from(spec.value_size).saturating_mul(copies.into());
    let element = match spec.map_type {
        MapType::RINGBUF | MapType::USER_RINGBUF => 1,
        _ => value.saturating_add(spec.key_size.into()),
    };
    element.saturating_mul(spec.max_entries.into())
}

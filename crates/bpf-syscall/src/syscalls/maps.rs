//! `BPF_MAP_CREATE` and `BPF_MAP_FREEZE`.

mod special_fields;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use beeline_runtime::backend::{Backend, MapSpec, SpecialFields, ValueType};
use beeline_supervisor::attr::BpfAttr;
use beeline_supervisor::keys::{errno, key_of};
use beeline_supervisor::{Answer, Call, Mode, Reply};
use beeline_uapi::{Errno, MapType, flags};

use super::attr::{MapCreate, MapFreeze};
use super::descriptors::NewDescriptors;
use crate::fds::ThreadFds;
use crate::host_kernel;
use crate::local::Local;
use crate::map_types::{is_hash, is_map_of_maps, is_only_kernels, is_ring_buffer};
use crate::objects::{Btf, Held, Map, Object};
use crate::reclaim::{is_mapped_writable, maps_kernels_writable};

/// The BTF of a map, and the types of its key and value.
type MapTypes = Option<(Arc<Btf>, u32, u32)>;

/// Creates and freezes maps.
pub(super) struct Maps<'a> {
    backend: &'a Arc<dyn Backend>,
    fds: ThreadFds<'a>,
    descriptors: NewDescriptors<'a>,
}

impl<'a> Maps<'a> {
    pub(super) fn new(local: &'a Local, call: &'a Call<'a>) -> Self {
        Self {
            backend: &local.backend,
            fds: local.fds.of(call.tid),
            descriptors: NewDescriptors::new(local, call),
        }
    }

    /// Carries out `BPF_MAP_CREATE`, with the kernel's checks in the kernel's order: the attribute,
    /// the type's own, the name, the type information.
    pub(super) fn create(&self, attr: &BpfAttr) -> Answer {
        let mut wanted = MapCreate::parse(attr)?;
        let token = wanted.flags & flags::TOKEN_FD != 0;
        wanted.flags &= !flags::TOKEN_FD;
        wanted.check()?;
        let mode = Mode::of_map_flags(wanted.flags)?;
        wanted.check_numa_node()?;
        let inner = self.inner_map(&wanted);
        // The type information must describe the value that is kept for a task.
        let is_typed = wanted.btf_key_type != 0 && wanted.btf_value_type != 0;
        if wanted.map_type == MapType::TASK_STORAGE && !is_typed {
            return Err(Errno::EINVAL);
        }
        // Errors in the map's types are reported after errors in the map itself.
        let typed = self.map_types(&wanted);
        let mut spec = wanted.spec(inner.as_ref(), typed.as_ref().ok());
        let held = self.create_in_backend(&wanted, &spec, inner)?;
        if wanted.ifindex != 0 {
            return Err(Errno::EINVAL); // No network device has maps here.
        }
        if token {
            return Err(self.no_token(wanted.token_fd));
        }
        wanted.name.as_ref().map_err(|&error| error)?;
        let (btf, _) = typed?;
        if wanted.exclusive {
            self.backend.unsupported("maps for one signed program only");
            return Err(Errno::EINVAL);
        }
        // These flags are the first descriptor's, not the map's.
        spec.flags &= !Mode::FLAGS;
        let map = Map {
            btf,
            is_kernels: self.is_only_kernels(&wanted),
            ..Map::new(held, spec)
        };
        self.descriptors
            .first_in_mode(Object::Map(Arc::new(map)), mode)
    }

    fn create_in_backend(
        &self,
        wanted: &MapCreate,
        spec: &MapSpec,
        inner: Option<Result<Arc<Map>, Errno>>,
    ) -> Result<Held, Errno> {
        let mut checked = spec.clone();
        if wanted.is_on_each_cpu() {
            checked.flags &= !flags::NUMA_NODE; // Of which nothing is left but the flag.
        }
        let created = if self.is_only_kernels(wanted) {
            self.backend.map_create_in_kernel(spec)
        } else if self.is_for_both_sides(&checked) {
            self.backend.map_create_on_both_sides(&checked)
        } else {
            self.backend.map_create(&checked)
        };
        let created = match (created, inner) {
            // The backend reports a missing inner map after all other errors, and the descriptor
            // gives the reason.
            (Err(Errno::EBADF), Some(Err(why))) => Err(why),
            (created, _) => created,
        };
        Ok(Held::new(self.backend, created?))
    }

    /// Returns whether a map is of a type that only the kernel has, and the tool may ask the kernel.
    fn is_only_kernels(&self, wanted: &MapCreate) -> bool {
        is_only_kernels(wanted.map_type, wanted.flags)
            && host_kernel::refusal(&**self.backend, self.fds.tid).is_none()
    }

    /// Returns whether programs in processes and in the kernel may come to share a map that the tool
    /// may write without a call.
    fn is_for_both_sides(&self, spec: &MapSpec) -> bool {
        let has = |flag| spec.flags & flag != 0;
        spec.map_type == MapType::ARRAY
            && has(flags::MMAPABLE)
            && !has(flags::RDONLY_PROG)
            && host_kernel::refusal(&**self.backend, self.fds.tid).is_none()
    }

    /// Returns the map that inner maps of a new map of maps must resemble; `None` for other maps.
    fn inner_map(&self, wanted: &MapCreate) -> Option<Result<Arc<Map>, Errno>> {
        is_map_of_maps(wanted.map_type).then(|| self.fds.map(wanted.inner_map_fd))
    }

    /// Returns the error for a token's descriptor. There are no tokens here, so no descriptor is
    /// one.
    fn no_token(&self, fd: i32) -> Errno {
        match self.fds.find(fd) {
            Ok(_) => Errno::EINVAL,
            Err(error) => error,
        }
    }

    /// Returns the type information that the tool gives for a map, and the special fields of the
    /// value.
    fn map_types(&self, wanted: &MapCreate) -> Result<(MapTypes, SpecialFields), Errno> {
        let btf = self.map_btf(wanted)?;
        let fields = match &btf {
            Some((btf, ..)) => special_fields::check(btf.data(), wanted)?,
            None => SpecialFields::default(),
        };
        Ok((btf, fields))
    }

    /// Returns the type information that the tool gives for a map. Tools probe with it, and go on
    /// without it where it is refused.
    fn map_btf(&self, wanted: &MapCreate) -> Result<MapTypes, Errno> {
        if wanted.btf_key_type == 0 && wanted.btf_value_type == 0 {
            return Ok(None);
        }
        let btf = self.fds.btf(wanted.btf_fd)?;
        match wanted.map_type {
            MapType::STACK_TRACE | MapType::PROG_ARRAY | MapType::CGROUP_ARRAY => {
                Err(Errno::ENOTSUPP)
            }
            MapType::PERF_EVENT_ARRAY => Err(Errno::EINVAL),
            map_type if is_ring_buffer(map_type) => Err(Errno::EINVAL),
            _ => Ok(Some((btf, wanted.btf_key_type, wanted.btf_value_type))),
        }
    }

    /// Carries out `BPF_MAP_FREEZE`: EBUSY while the tool has a writable mapping of the map.
    pub(super) fn freeze(&self, attr: &BpfAttr) -> Answer {
        let MapFreeze { map_fd } = MapFreeze::parse(attr)?;
        let (map, mode) = self.fds.map_and_mode(map_fd)?;
        mode.may_write()?;
        if map.spec.flags & flags::MMAPABLE != 0 || is_ring_buffer(map.spec.map_type) {
            let id = map.held.id;
            let file = key_of(&self.backend.memory(id)?).map_err(errno)?;
            let is_kernels = self.backend.kernels_array(id)?.is_some();
            let was_mapped = map.was_mapped_writable.load(Ordering::Acquire);
            let is_mapped = match is_kernels {
                true => was_mapped && maps_kernels_writable(self.fds.tid),
                false => is_mapped_writable(self.fds.tid, file),
            };
            if is_mapped {
                return Err(Errno::EBUSY);
            }
        }
        self.backend.map_freeze(map.held.id)?;
        map.frozen.store(true, Ordering::Release);
        Ok(Reply::Value(0))
    }
}

impl MapCreate {
    /// Makes the checks that the kernel makes of any map before it looks at its type.
    fn check(&self) -> Result<(), Errno> {
        let of_kernel = self.btf_vmlinux_value_type != 0;
        let key_only = self.btf_key_type != 0 && self.btf_value_type == 0;
        let extra =
            self.extra != 0 && !matches!(self.map_type, MapType::BLOOM_FILTER | MapType::ARENA);
        if of_kernel || key_only || extra {
            return Err(Errno::EINVAL);
        }
        Ok(())
    }

    /// Returns whether the map has separate memory for each CPU.
    fn is_on_each_cpu(&self) -> bool {
        matches!(
            self.map_type,
            MapType::PERCPU_HASH | MapType::PERCPU_ARRAY | MapType::LRU_PERCPU_HASH
        )
    }

    fn check_numa_node(&self) -> Result<(), Errno> {
        let numa = self.flags & flags::NUMA_NODE != 0;
        if numa && !self.may_be_on(self.numa_node) {
            return Err(Errno::EINVAL);
        }
        Ok(())
    }

    /// Returns whether a NUMA node is allowed: one that has memory, or the kernel's "any". Maps
    /// with memory or lists for each CPU allow only the latter.
    fn may_be_on(&self, node: u32) -> bool {
        let nodes = Path::new("/sys/devices/system/node");
        let own_lists = is_hash(self.map_type) && self.flags & flags::NO_COMMON_LRU != 0;
        let any_only = self.is_on_each_cpu() || own_lists;
        node == u32::MAX
            || (!any_only
                && (nodes.join(format!("node{node}")).exists() || (node == 0 && !nodes.exists())))
    }
    /// Returns the map as the backend is asked for it.
    fn spec(
        &self,
        inner: Option<&Result<Arc<Map>, Errno>>,
        typed: Option<&(MapTypes, SpecialFields)>,
    ) -> MapSpec {
        MapSpec {
            map_type: self.map_type,
            key_size: self.key_size,
            value_size: self.value_size,
            max_entries: self.max_entries,
            flags: self.flags,
            map_extra: self.extra,
            name: self.name.clone().unwrap_or_default(),
            inner: inner.and_then(|map| Some(map.as_ref().ok()?.held.id)),
            fields: typed.map(|(_, fields)| *fields).unwrap_or_default(),
            value_type: typed.and_then(|(types, _)| {
                let (btf, key, value) = types.as_ref()?;
                Some(ValueType {
                    btf: btf.data().clone(),
                    id: *value,
                    key: *key,
                })
            }),
        }
    }
}

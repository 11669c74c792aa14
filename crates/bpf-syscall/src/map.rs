//! Creates maps, and does the commands on one element.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use beeline_runtime::backend::{MapSpec, SpecialFields, ValueType};
use beeline_supervisor::attr::BpfAttr;
use beeline_supervisor::keys::{errno, key_of};
use beeline_supervisor::{Answer, Mode, Reply};
use beeline_uapi::{Errno, MapType, flags};

use crate::attr::{Element, MapCreate};
use crate::elements::holds_objects;
use crate::local::Handler;
use crate::objects::{Btf, Held, Map, Object};
use crate::sweep::is_mapped_writable;
use crate::value;

const ENOTSUPP: Errno = Errno::ENOTSUPP;
const EINVAL: Errno = Errno(libc::EINVAL);
const EBADF: Errno = Errno(libc::EBADF);

// The flags of BPF_MAP_CREATE.

/// The BTF of a map, and the types of its key and value.
type MapTypes = Option<(Arc<Btf>, u32, u32)>;

pub(crate) fn is_ring_buffer(map_type: MapType) -> bool {
    matches!(map_type, MapType::RINGBUF | MapType::USER_RINGBUF)
}

impl Map {
    /// Returns whether its descriptors are its memory. A program array's are not: it matters when
    /// the last one is closed, and that shows on other descriptors.
    pub(crate) fn is_file(&self) -> bool {
        self.spec.map_type != MapType::PROG_ARRAY
    }

    pub(crate) fn is_frozen(&self) -> bool {
        self.frozen.load(Ordering::Acquire)
    }
}

impl Handler<'_> {
    /// Carries out `BPF_MAP_CREATE`, with the kernel's checks in the kernel's order: the attribute,
    /// the type's own, the name, the type information.
    pub(crate) fn map_create(&self, attr: &BpfAttr) -> Answer {
        let mut wanted = MapCreate::parse(attr)?;
        let token = wanted.flags & flags::TOKEN_FD != 0;
        wanted.flags &= !flags::TOKEN_FD;
        wanted.check()?;
        let mode = Mode::of_map_flags(wanted.flags)?;
        let numa = wanted.flags & flags::NUMA_NODE != 0;
        if numa && !wanted.may_be_on(wanted.numa_node) {
            return Err(EINVAL);
        }
        let inner = self.inner_map(&wanted);
        // The type information must describe the value that is kept for a task.
        let is_typed = wanted.btf_key_type != 0 && wanted.btf_value_type != 0;
        if wanted.map_type == MapType::TASK_STORAGE && !is_typed {
            return Err(EINVAL);
        }
        // Errors in the map's types are reported after errors in the map itself.
        let typed = self.map_types(&wanted);
        let fields = typed.as_ref().map(|(_, fields)| *fields);
        let mut spec = MapSpec {
            map_type: wanted.map_type,
            key_size: wanted.key_size,
            value_size: wanted.value_size,
            max_entries: wanted.max_entries,
            flags: wanted.flags,
            map_extra: wanted.extra,
            name: String::new(),
            inner: inner
                .as_ref()
                .and_then(|map| Some(map.as_ref().ok()?.held.id)),
            fields: fields.unwrap_or_default(),
            value_type: None,
        };
        if let Ok((Some((btf, _, value)), _)) = &typed {
            spec.value_type = Some(ValueType {
                btf: btf.data().clone(),
                id: *value,
            });
        }
        if let Ok(name) = &wanted.name {
            spec.name.clone_from(name);
        }
        let mut checked = spec.clone();
        if wanted.is_on_each_cpu() {
            checked.flags &= !flags::NUMA_NODE; // Of which nothing is left but the flag.
        }
        let created = match (self.local.backend.map_create(&checked), inner) {
            // The backend reports a missing inner map after all other errors, and the descriptor
            // gives the reason.
            (Err(Errno(libc::EBADF)), Some(Err(why))) => Err(why),
            (created, _) => created,
        };
        let held = Held::new(&self.local.backend, created?);
        if wanted.ifindex != 0 {
            return Err(EINVAL); // No network device has maps here.
        }
        if token {
            return Err(self.no_token(wanted.token_fd));
        }
        wanted.name.as_ref().map_err(|&error| error)?;
        let (btf, _) = typed?;
        if wanted.exclusive {
            self.local
                .backend
                .unsupported("maps for one signed program only");
            return Err(EINVAL);
        }
        // These flags are the first descriptor's, not the map's.
        spec.flags &= !Mode::FLAGS;
        let map = Map {
            held,
            spec,
            btf,
            frozen: AtomicBool::new(false),
            elements: Default::default(),
            uses: Default::default(),
            wakeup: Default::default(),
        };
        self.given_descriptor(Object::Map(Arc::new(map)), mode, true)
    }

    /// Returns the error for a token's descriptor. There are no tokens here, so no descriptor is
    /// one.
    fn no_token(&self, fd: i32) -> Errno {
        match self.local.fds.find(self.tid, fd) {
            Ok(_) => EINVAL,
            Err(error) => error,
        }
    }

    /// Returns the type information that the tool gives for a map, and the special fields of the
    /// value.
    fn map_types(&self, wanted: &MapCreate) -> Result<(MapTypes, SpecialFields), Errno> {
        let btf = self.map_btf(wanted)?;
        let fields = match &btf {
            Some((btf, ..)) => value::check(btf.data(), wanted)?,
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
        let btf = self.local.fds.btf(self.tid, wanted.btf_fd)?;
        match wanted.map_type {
            MapType::STACK_TRACE | MapType::PROG_ARRAY | MapType::CGROUP_ARRAY => Err(ENOTSUPP),
            MapType::PERF_EVENT_ARRAY => Err(EINVAL),
            map_type if is_ring_buffer(map_type) => Err(EINVAL),
            _ => Ok(Some((btf, wanted.btf_key_type, wanted.btf_value_type))),
        }
    }

    pub(crate) fn map_lookup(&self, attr: &BpfAttr) -> Answer {
        let element = Element::parse(attr, 32)?;
        if element.flags & !flags::LOCK != 0 {
            return Err(EINVAL);
        }
        let (map, mode) = self.local.fds.map_and_mode(self.tid, element.map_fd)?;
        mode.may_read()?;
        check_lock_flag(&map, element.flags)?;
        let key = self.key(&map, element.key)?;
        let mut value = self.empty_value(&map)?;
        // A Bloom filter is asked about a value, and has no keys.
        if map.spec.map_type == MapType::BLOOM_FILTER {
            self.memory.read(element.value, &mut value)?;
        }
        self.local
            .backend
            .map_lookup(map.held.id, &key, &mut value, element.flags)?;
        self.memory.write(element.value, &value)?;
        Ok(Reply::Value(0))
    }

    pub(crate) fn map_lookup_and_delete(&self, attr: &BpfAttr) -> Answer {
        let element = Element::parse(attr, 32)?;
        if element.flags & !flags::LOCK != 0 {
            return Err(EINVAL);
        }
        let (map, mode) = self.local.fds.map_and_mode(self.tid, element.map_fd)?;
        mode.may_read()?;
        mode.may_write()?;
        let kind = map.spec.map_type;
        if element.flags != 0 && is_queue_or_stack(kind) {
            return Err(EINVAL);
        }
        check_lock_flag(&map, element.flags)?;
        check_by_key(&map)?;
        let key = self.key(&map, element.key)?;
        let mut value = self.empty_value(&map)?;
        let (backend, id) = (&self.local.backend, map.held.id);
        if is_hash(kind) || is_queue_or_stack(kind) {
            backend.map_lookup_and_delete(id, &key, &mut value, element.flags)?;
        } else if kind == MapType::STACK_TRACE {
            backend.map_lookup(id, &key, &mut value, element.flags)?;
            backend.map_delete(id, &key)?;
        } else {
            return Err(ENOTSUPP);
        }
        self.memory.write(element.value, &value)?;
        Ok(Reply::Value(0))
    }

    pub(crate) fn map_update(&self, attr: &BpfAttr) -> Answer {
        let element = Element::parse(attr, 32)?;
        let (map, mode) = self.local.fds.map_and_mode(self.tid, element.map_fd)?;
        mode.may_write()?;
        check_lock_flag(&map, element.flags)?;
        let key = self.key(&map, element.key)?;
        let mut value = self.empty_value(&map)?;
        self.memory.read(element.value, &mut value)?;
        self.update_element(&map, &key, &value, element.flags)?;
        Ok(Reply::Value(0))
    }

    /// Puts a value into a map; for values that are descriptors, the object behind it.
    pub(crate) fn update_element(
        &self,
        map: &Map,
        key: &[u8],
        value: &[u8],
        flags: u64,
    ) -> Result<(), Errno> {
        let fd = beeline_supervisor::attr::u32_at(value, 0) as i32;
        let backend = &self.local.backend;
        match map.spec.map_type {
            MapType::PERF_EVENT_ARRAY => {
                if flags != 0 {
                    return Err(EINVAL);
                }
                if beeline_supervisor::attr::u32_at(key, 0) >= map.spec.max_entries {
                    return Err(Errno(libc::E2BIG));
                }
                let ring = self.local.fds.ring(self.tid, fd)?;
                backend.perf_array_set(
                    map.held.id,
                    beeline_supervisor::attr::u32_at(key, 0),
                    ring.held.id,
                )
            }
            kind if holds_objects(kind) => self.set_object(map, key, fd, flags),
            _ => backend.map_update(map.held.id, key, value, flags),
        }
    }

    pub(crate) fn map_delete(&self, attr: &BpfAttr) -> Answer {
        let element = Element::parse(attr, 16)?;
        let (map, mode) = self.local.fds.map_and_mode(self.tid, element.map_fd)?;
        mode.may_write()?;
        let key = self.key(&map, element.key)?;
        self.delete_element(&map, &key)?;
        Ok(Reply::Value(0))
    }

    pub(crate) fn map_next_key(&self, attr: &BpfAttr) -> Answer {
        let element = Element::parse(attr, 24)?;
        let (map, mode) = self.local.fds.map_and_mode(self.tid, element.map_fd)?;
        mode.may_read()?;
        check_by_key(&map)?;
        let key = match element.key {
            0 => None,
            address => Some(self.key(&map, address)?),
        };
        let mut next = vec![0; map.spec.key_size as usize];
        self.local
            .backend
            .map_next_key(map.held.id, key.as_deref(), &mut next)?;
        self.memory.write(element.value, &next)?;
        Ok(Reply::Value(0))
    }

    /// Carries out `BPF_MAP_FREEZE`: EBUSY while the tool has a writable mapping of the map.
    pub(crate) fn map_freeze(&self, attr: &BpfAttr) -> Answer {
        attr.ends_at(4)?;
        let (map, mode) = self.local.fds.map_and_mode(self.tid, attr.i32(0))?;
        mode.may_write()?;
        if map.spec.flags & flags::MMAPABLE != 0 || is_ring_buffer(map.spec.map_type) {
            let file = key_of(&self.local.backend.memory(map.held.id)?).map_err(errno)?;
            if is_mapped_writable(self.tid, file) {
                return Err(Errno(libc::EBUSY));
            }
        }
        self.local.backend.map_freeze(map.held.id)?;
        map.frozen.store(true, Ordering::Release);
        Ok(Reply::Value(0))
    }

    /// Reads a key from the tool. Maps without keys (queues) take none.
    pub(crate) fn key(&self, map: &Map, address: u64) -> Result<Vec<u8>, Errno> {
        match (map.spec.key_size, address) {
            (0, 0) => Ok(Vec::new()),
            (0, _) => Err(EINVAL),
            (_, _) if map.spec.map_type == MapType::TASK_STORAGE => {
                let fd = self.memory.read_u32(address)?;
                Ok(self.thread_of(fd as i32)?.to_ne_bytes().to_vec())
            }
            // The backend made a map with keys of this size, so it is within reason.
            (size, _) => self.memory.bytes(address, size as usize),
        }
    }

    /// Returns the thread of a pidfd of the tool's. Tools name a task's value by such a key. EBADF
    /// if it is no pidfd, ENOENT if the thread has ended.
    fn thread_of(&self, fd: i32) -> Result<u32, Errno> {
        let path = format!("/proc/{}/fdinfo/{fd}", self.tid);
        let info = std::fs::read_to_string(path).map_err(|_| EBADF)?;
        let line = info.lines().find_map(|line| line.strip_prefix("Pid:"));
        let pid: i32 = line.and_then(|pid| pid.trim().parse().ok()).ok_or(EBADF)?;
        u32::try_from(pid).map_err(|_| Errno(libc::ENOENT))
    }

    pub(crate) fn empty_value(&self, map: &Map) -> Result<Vec<u8>, Errno> {
        Ok(vec![0; self.local.backend.map_value_len(map.held.id)?])
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
            return Err(EINVAL);
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
}

pub(crate) fn is_hash(map_type: MapType) -> bool {
    matches!(
        map_type,
        MapType::HASH | MapType::PERCPU_HASH | MapType::LRU_HASH | MapType::LRU_PERCPU_HASH
    )
}

fn is_queue_or_stack(map_type: MapType) -> bool {
    matches!(map_type, MapType::QUEUE | MapType::STACK)
}

/// Returns ENOTSUPP for commands that cannot be done with the values of tasks, regardless of the
/// task.
fn check_by_key(map: &Map) -> Result<(), Errno> {
    if map.spec.map_type == MapType::TASK_STORAGE {
        Err(ENOTSUPP)
    } else {
        Ok(())
    }
}

/// Checks `BPF_F_LOCK`, which is for values with a lock in them.
pub(crate) fn check_lock_flag(map: &Map, flags: u64) -> Result<(), Errno> {
    if flags & flags::LOCK != 0 && map.spec.fields.spin_lock.is_none() {
        Err(EINVAL)
    } else {
        Ok(())
    }
}

//! The commands on one element of a map, and those on many (`batches`).

mod batches;

use std::os::unix::fs::MetadataExt;

use beeline_runtime::backend::{Backend, ObjectRef};
use beeline_supervisor::attr::BpfAttr;
use beeline_supervisor::{Answer, Call, Memory, Reply};
use beeline_uapi::fields::u32_at;
use beeline_uapi::{Errno, MapType, flags};

use super::attr::Element;
use crate::fds::ThreadFds;
use crate::host_kernel;
use crate::local::Local;
use crate::map_types::{holds_objects, is_hash, is_queue_or_stack};
use crate::members::Members;
use crate::objects::{Map, Object};

pub(super) use batches::Batches;

/// Reads and changes elements one at a time.
pub(super) struct Elements<'a> {
    memory: Memory<'a>,
    backend: &'a dyn Backend,
    fds: ThreadFds<'a>,
    members: &'a Members,
}

impl<'a> Elements<'a> {
    pub(super) fn new(local: &'a Local, call: &'a Call<'a>) -> Self {
        Self {
            memory: call.memory,
            backend: &*local.backend,
            fds: local.fds.of(call.tid),
            members: &local.members,
        }
    }

    /// Carries out `BPF_MAP_LOOKUP_ELEM`.
    pub(super) fn lookup(&self, attr: &BpfAttr) -> Answer {
        let element = Element::parse(attr, Element::FLAGS_END)?;
        if element.flags & !flags::LOCK != 0 {
            return Err(Errno::EINVAL);
        }
        let (map, mode) = self.fds.map_and_mode(element.map_fd)?;
        mode.may_read()?;
        check_lock_flag(&map, element.flags)?;
        let key = self.key(&map, element.key)?;
        let mut value = self.empty_value(&map)?;
        // A Bloom filter is asked about a value, and has no keys.
        if map.spec.map_type == MapType::BLOOM_FILTER {
            self.memory.read(element.value, &mut value)?;
        }
        self.backend
            .map_lookup(map.held.id, &key, &mut value, element.flags)?;
        self.memory.write(element.value, &value)?;
        Ok(Reply::Value(0))
    }

    /// Carries out `BPF_MAP_LOOKUP_AND_DELETE_ELEM`.
    pub(super) fn lookup_and_delete(&self, attr: &BpfAttr) -> Answer {
        let element = Element::parse(attr, Element::FLAGS_END)?;
        if element.flags & !flags::LOCK != 0 {
            return Err(Errno::EINVAL);
        }
        let (map, mode) = self.fds.map_and_mode(element.map_fd)?;
        mode.may_read()?;
        mode.may_write()?;
        let kind = map.spec.map_type;
        if element.flags != 0 && is_queue_or_stack(kind) {
            return Err(Errno::EINVAL);
        }
        check_lock_flag(&map, element.flags)?;
        check_by_key(&map)?;
        let key = self.key(&map, element.key)?;
        let mut value = self.empty_value(&map)?;
        let (backend, id) = (self.backend, map.held.id);
        if is_hash(kind) || is_queue_or_stack(kind) {
            backend.map_lookup_and_delete(id, &key, &mut value, element.flags)?;
        } else if kind == MapType::STACK_TRACE {
            backend.map_lookup(id, &key, &mut value, element.flags)?;
            backend.map_delete(id, &key)?;
        } else {
            return Err(Errno::ENOTSUPP);
        }
        self.memory.write(element.value, &value)?;
        Ok(Reply::Value(0))
    }

    /// Carries out `BPF_MAP_UPDATE_ELEM`.
    pub(super) fn update(&self, attr: &BpfAttr) -> Answer {
        let element = Element::parse(attr, Element::FLAGS_END)?;
        let (map, mode) = self.fds.map_and_mode(element.map_fd)?;
        mode.may_write()?;
        check_lock_flag(&map, element.flags)?;
        let key = self.key(&map, element.key)?;
        let mut value = self.empty_value(&map)?;
        self.memory.read(element.value, &mut value)?;
        self.update_element(&map, &key, &value, element.flags)?;
        Ok(Reply::Value(0))
    }

    /// Puts a value into a map; for values that are descriptors, the object behind it.
    fn update_element(&self, map: &Map, key: &[u8], value: &[u8], flags: u64) -> Result<(), Errno> {
        let fd = u32_at(value, 0) as i32;
        let backend = self.backend;
        match map.spec.map_type {
            MapType::PERF_EVENT_ARRAY => {
                if flags != 0 {
                    return Err(Errno::EINVAL);
                }
                if u32_at(key, 0) >= map.spec.max_entries {
                    return Err(Errno::E2BIG);
                }
                let ring = self.fds.ring(fd)?;
                backend.perf_array_set(map.held.id, u32_at(key, 0), ring.held.id)
            }
            kind if holds_objects(kind) => self.set_object(map, key, fd, flags),
            _ => backend.map_update(map.held.id, key, value, flags),
        }
    }

    /// Carries out `BPF_MAP_DELETE_ELEM`.
    pub(super) fn delete(&self, attr: &BpfAttr) -> Answer {
        let element = Element::parse(attr, Element::KEY_END)?;
        let (map, mode) = self.fds.map_and_mode(element.map_fd)?;
        mode.may_write()?;
        let key = self.key(&map, element.key)?;
        self.delete_element(&map, &key)?;
        Ok(Reply::Value(0))
    }

    /// Carries out `BPF_MAP_GET_NEXT_KEY`.
    pub(super) fn next_key(&self, attr: &BpfAttr) -> Answer {
        let element = Element::parse(attr, Element::VALUE_END)?;
        let (map, mode) = self.fds.map_and_mode(element.map_fd)?;
        mode.may_read()?;
        check_by_key(&map)?;
        let key = match element.key {
            0 => None,
            address => Some(self.key(&map, address)?),
        };
        let mut next = vec![0; map.spec.key_size as usize];
        self.backend
            .map_next_key(map.held.id, key.as_deref(), &mut next)?;
        self.memory.write(element.value, &next)?;
        Ok(Reply::Value(0))
    }

    /// Reads a key from the tool. Maps without keys (queues) take none.
    fn key(&self, map: &Map, address: u64) -> Result<Vec<u8>, Errno> {
        match (map.spec.key_size, address) {
            (0, 0) => Ok(Vec::new()),
            (0, _) => Err(Errno::EINVAL),
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
        let path = format!("/proc/{}/fdinfo/{fd}", self.fds.tid);
        let info = std::fs::read_to_string(path).map_err(|_| Errno::EBADF)?;
        let line = info.lines().find_map(|line| line.strip_prefix("Pid:"));
        let pid: i32 = line
            .and_then(|pid| pid.trim().parse().ok())
            .ok_or(Errno::EBADF)?;
        u32::try_from(pid).map_err(|_| Errno::ENOENT)
    }

    fn empty_value(&self, map: &Map) -> Result<Vec<u8>, Errno> {
        Ok(vec![0; self.backend.map_value_len(map.held.id)?])
    }

    /// Carries out `BPF_MAP_UPDATE_ELEM` with a descriptor as value; the checks are in the kernel's
    /// order.
    fn set_object(&self, map: &Map, key: &[u8], fd: i32, flags: u64) -> Result<(), Errno> {
        if map.spec.map_type != MapType::HASH_OF_MAPS {
            if flags != 0 {
                return Err(Errno::EINVAL);
            }
            if u32_at(key, 0) >= map.spec.max_entries {
                return Err(Errno::E2BIG);
            }
        }
        let (named, held) = match map.spec.map_type {
            MapType::PROG_ARRAY => {
                let program = self.fds.program(fd)?;
                (
                    ObjectRef::Program(program.held.id),
                    Some(Object::Program(program)),
                )
            }
            MapType::CGROUP_ARRAY => (ObjectRef::Cgroup(self.cgroup(fd)?), None),
            _ => {
                let inner = self.fds.map(fd)?;
                (ObjectRef::Map(inner.held.id), Some(Object::Map(inner)))
            }
        };
        self.check_kernels_map(map)?;
        let mut elements = map.elements.lock();
        self.backend
            .map_set_object(map.held.id, key, named, flags)?;
        let replaced = held.and_then(|object| {
            self.members.add(&object);
            elements.insert(key.to_vec(), object)
        });
        drop(elements);
        drop(replaced);
        Ok(())
    }

    /// Fails if programs in the kernel have a map of objects that the thread may not bring there.
    fn check_kernels_map(&self, map: &Map) -> Result<(), Errno> {
        if !self.backend.has_map_in_kernel(map.held.id) {
            return Ok(());
        }
        let Some(why) = host_kernel::refusal(self.backend, self.fds.tid) else {
            return Ok(());
        };
        let name = &map.spec.name;
        self.backend.unsupported(&format!(
            "map {name}: programs in the kernel have it, and a new element cannot be there: {why}"
        ));
        Err(Errno::EPERM)
    }

    /// Deletes an element of any map.
    fn delete_element(&self, map: &Map, key: &[u8]) -> Result<(), Errno> {
        let backend = self.backend;
        if !holds_objects(map.spec.map_type) {
            return backend.map_delete(map.held.id, key);
        }
        let mut elements = map.elements.lock();
        backend.map_delete(map.held.id, key)?;
        let removed = elements.remove(key);
        drop(elements);
        drop(removed);
        Ok(())
    }

    /// Returns the kernel's id of the cgroup that the tool has opened as a directory. It must be a
    /// cgroup of version 2, else EBADF.
    fn cgroup(&self, fd: i32) -> Result<u64, Errno> {
        if fd < 0 {
            return Err(Errno::EBADF);
        }
        let path = format!("/proc/{}/fd/{fd}", self.fds.tid);
        let file_system = rustix::fs::statfs(&*path).map_err(|_| Errno::EBADF)?;
        let facts = std::fs::metadata(&path).map_err(|_| Errno::EBADF)?;
        if file_system.f_type as u64 != libc::CGROUP2_SUPER_MAGIC as u64 || !facts.is_dir() {
            return Err(Errno::EBADF);
        }
        Ok(facts.ino())
    }
}

/// Returns ENOTSUPP for commands that cannot be done with the values of tasks, regardless of the
/// task.
fn check_by_key(map: &Map) -> Result<(), Errno> {
    if map.spec.map_type == MapType::TASK_STORAGE {
        Err(Errno::ENOTSUPP)
    } else {
        Ok(())
    }
}

/// Checks `BPF_F_LOCK`, which is for values with a lock in them.
fn check_lock_flag(map: &Map, flags: u64) -> Result<(), Errno> {
    if flags & flags::LOCK != 0 && map.spec.fields.spin_lock.is_none() {
        Err(Errno::EINVAL)
    } else {
        Ok(())
    }
}

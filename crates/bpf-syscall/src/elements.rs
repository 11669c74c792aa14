//! Maps with objects as elements: the tool passes descriptors, and the map keeps the objects behind
//! them.

use std::collections::{BTreeMap, HashMap};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use beeline_runtime::backend::ObjectRef;
use beeline_supervisor::attr::u32_at;
use beeline_uapi::{Errno, MapType};
use parking_lot::{Mutex, MutexGuard};

use crate::attr::MapCreate;
use crate::local::Handler;
use crate::objects::{Map, Object, Program};

const EBADF: Errno = Errno(libc::EBADF);
const EINVAL: Errno = Errno(libc::EINVAL);
const E2BIG: Errno = Errno(libc::E2BIG);

pub(crate) fn is_map_of_maps(map_type: MapType) -> bool {
    matches!(map_type, MapType::ARRAY_OF_MAPS | MapType::HASH_OF_MAPS)
}

pub(crate) fn holds_objects(map_type: MapType) -> bool {
    matches!(map_type, MapType::PROG_ARRAY | MapType::CGROUP_ARRAY) || is_map_of_maps(map_type)
}

/// The objects that are elements of a map, by key.
///
/// They live at least as long as they are elements: the tool may close its descriptor of an inner
/// map, and ask for it later by the id that it reads from the element.
#[derive(Default)]
pub(crate) struct Elements(Mutex<BTreeMap<Vec<u8>, Object>>);

impl Elements {
    /// Locks the elements. Each change is a single step, made after the backend's.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Vec<u8>, Object>> {
        self.0.lock()
    }
}

impl Handler<'_> {
    /// Returns the map that inner maps of a new map of maps must resemble; `None` for other maps.
    pub(crate) fn inner_map(&self, wanted: &MapCreate) -> Option<Result<Arc<Map>, Errno>> {
        is_map_of_maps(wanted.map_type).then(|| self.local.fds.map(self.tid, wanted.inner_map_fd))
    }

    /// Carries out `BPF_MAP_UPDATE_ELEM` with a descriptor as value; the checks are in the kernel's
    /// order.
    pub(crate) fn set_object(
        &self,
        map: &Map,
        key: &[u8],
        fd: i32,
        flags: u64,
    ) -> Result<(), Errno> {
        if map.spec.map_type != MapType::HASH_OF_MAPS {
            if flags != 0 {
                return Err(EINVAL);
            }
            if u32_at(key, 0) >= map.spec.max_entries {
                return Err(E2BIG);
            }
        }
        let (named, held) = match map.spec.map_type {
            MapType::PROG_ARRAY => {
                let program = self.local.fds.program(self.tid, fd)?;
                (
                    ObjectRef::Program(program.held.id),
                    Some(Object::Program(program)),
                )
            }
            MapType::CGROUP_ARRAY => (ObjectRef::Cgroup(self.cgroup(fd)?), None),
            _ => {
                let inner = self.local.fds.map(self.tid, fd)?;
                (ObjectRef::Map(inner.held.id), Some(Object::Map(inner)))
            }
        };
        let mut elements = map.elements.lock();
        self.local
            .backend
            .map_set_object(map.held.id, key, named, flags)?;
        let replaced = held.and_then(|object| {
            self.local.members.add(&object);
            elements.insert(key.to_vec(), object)
        });
        drop(elements);
        drop(replaced);
        Ok(())
    }

    /// Deletes an element of any map.
    pub(crate) fn delete_element(&self, map: &Map, key: &[u8]) -> Result<(), Errno> {
        let backend = &self.local.backend;
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
        const CGROUP2_SUPER_MAGIC: u64 = 0x6367_7270;
        if fd < 0 {
            return Err(EBADF);
        }
        let path = format!("/proc/{}/fd/{fd}", self.tid);
        let file_system = rustix::fs::statfs(&*path).map_err(|_| EBADF)?;
        let facts = std::fs::metadata(&path).map_err(|_| EBADF)?;
        if file_system.f_type as u64 != CGROUP2_SUPER_MAGIC || !facts.is_dir() {
            return Err(EBADF);
        }
        Ok(facts.ino())
    }
}

/// All objects that were ever put into maps and still live. The tool may know them by their ids
/// alone.
#[derive(Default)]
pub(crate) struct Members(Mutex<HashMap<u32, Member>>);

enum Member {
    Map(Weak<Map>),
    Program(Weak<Program>),
}

impl Member {
    fn lives(&self) -> bool {
        match self {
            Member::Map(map) => map.strong_count() > 0,
            Member::Program(program) => program.strong_count() > 0,
        }
    }

    fn object(&self) -> Option<Object> {
        match self {
            Member::Map(map) => map.upgrade().map(Object::Map),
            Member::Program(program) => program.upgrade().map(Object::Program),
        }
    }
}

impl Members {
    /// Returns the objects that still live.
    pub(crate) fn alive(&self) -> Vec<Object> {
        self.lock().values().filter_map(Member::object).collect()
    }

    fn add(&self, object: &Object) {
        let (id, member) = match object {
            Object::Map(map) => (map.held.id, Member::Map(Arc::downgrade(map))),
            Object::Program(program) => (program.held.id, Member::Program(Arc::downgrade(program))),
            _ => return,
        };
        let mut members = self.lock();
        if members.len() == members.capacity() {
            members.retain(|_, member| member.lives());
        }
        members.insert(id.0, member);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u32, Member>> {
        self.0.lock()
    }
}

/// A descriptor's share in an object.
pub(crate) struct Use(Option<Arc<Map>>);

impl Use {
    pub(crate) fn of(object: &Object) -> Self {
        let Object::Map(map) = object else {
            return Use(None);
        };
        map.uses.fetch_add(1, Ordering::AcqRel);
        Use(Some(Arc::clone(map)))
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        if let Some(map) = self.0.take()
            && map.uses.fetch_sub(1, Ordering::AcqRel) == 1
        {
            clear_programs(&map);
        }
    }
}

/// Removes the elements of a program array when the tool has no descriptor of it any more. Programs
/// may use the arrays that they are in; without this, such a cycle would never end.
fn clear_programs(map: &Map) {
    if map.spec.map_type != MapType::PROG_ARRAY {
        return;
    }
    let mut elements = map.elements.lock();
    let all = std::mem::take(&mut *elements);
    for key in all.keys() {
        // Nothing else can have deleted it, because we hold the lock.
        let _ = map.held.backend().map_delete(map.held.id, key);
    }
    drop(elements);
    drop(all);
}

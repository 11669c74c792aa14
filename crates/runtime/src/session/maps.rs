//! The making of maps, and their elements that are objects.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use beeline_uapi::Errno;

use super::Runtime;
use crate::backend::{Backend, Id, MapSpec, ObjectRef};
use crate::map::MapObject;

impl Runtime {
    pub(super) fn create_map(&self, spec: &MapSpec) -> Result<Id, Errno> {
        let id = self.id();
        let inner = spec.inner.map(|inner| self.map(inner)).transpose()?;
        let map = MapObject::new(id, spec, inner.as_deref(), self.shared.cpus, &self.budget)?;
        let map = Arc::new(map);
        if map.is_ring_buffer() {
            self.notifier.watch(&map);
        }
        self.tracees.watch_map(&map);
        self.fast_paths.list(&map);
        self.objects().maps.insert(id, map);
        Ok(id)
    }

    pub(super) fn create_map_on_both_sides(&self, spec: &MapSpec) -> Result<Id, Errno> {
        let id = self.id();
        match MapObject::on_both_sides(id, spec, self.shared.cpus, &self.budget) {
            Ok(map) => {
                let map = Arc::new(map);
                self.tracees.watch_map(&map);
                self.objects().maps.insert(id, map);
                Ok(id)
            }
            Err(error) => {
                let name = &spec.name;
                tracing::info!(name, ?error, "a map's memory is not the kernel's");
                self.create_map(spec)
            }
        }
    }

    pub(super) fn adopt_map(&self, spec: &MapSpec, file: OwnedFd) -> Result<Id, Errno> {
        if self.kernel.keeps_out() {
            return Err(Errno::EPERM);
        }
        let id = self.id();
        let map = MapObject::of_kernel(id, spec, self.shared.cpus, &self.budget, file)?;
        let map = Arc::new(map);
        self.kernel.connect(&map).map_err(|_| Errno::ENOMEM)?;
        self.tracees.watch_map(&map);
        self.objects().maps.insert(id, map);
        Ok(id)
    }

    pub(super) fn create_map_in_kernel(&self, spec: &MapSpec) -> Result<Id, Errno> {
        let id = self.id();
        let map = MapObject::only_in_kernel(id, spec, self.shared.cpus, &self.budget)?;
        self.objects().maps.insert(id, Arc::new(map));
        Ok(id)
    }

    pub(super) fn map_for_iterator(&self, map: Id) -> Result<OwnedFd, Errno> {
        let map = self.map(map)?;
        map.add_iterator().map_err(|why| {
            let name = &map.spec.name;
            self.unsupported(&format!("an iterator cannot go through map {name}: {why}"));
            Errno::EBUSY
        })?;
        self.kernel.map(&map).map_err(|error| self.tell(&error))
    }

    pub(super) fn set_object(
        &self,
        map: Id,
        key: &[u8],
        object: ObjectRef,
        flags: u64,
    ) -> Result<(), Errno> {
        let (map, object) = (self.map(map)?, self.object(object)?);
        map.check_thawed()?;
        map.admit(&object)?;
        let id = object.id().0.to_ne_bytes();
        let announce = || {
            self.tracees.object_added(map.id, &object);
            self.runner.object_added(map.id, object.clone());
        };
        let store = || map.update(key, &id, flags);
        // First there, where it may be refused.
        let was_there = map.in_twin(|_| ()).is_some();
        if was_there {
            self.put_in_kernel(&map, key, &object, flags)?;
        }
        let stored = map.elements.set(key, object.clone(), announce, store);
        if stored.is_err() && was_there {
            self.undo_in_kernel(&map, key);
        }
        stored?;
        // Programs in the kernel may have got the map meanwhile.
        if !was_there && map.in_twin(|_| ()).is_some() {
            self.put_in_kernel(&map, key, &object, 0)?;
        }
        self.shared.removals.fetch_add(1, SeqCst);
        Ok(())
    }

    pub(super) fn delete_element(&self, map: Id, key: &[u8]) -> Result<(), Errno> {
        let map = self.map(map)?;
        map.check_thawed()?;
        if map.ring_elements() > 0 {
            let index = key
                .try_into()
                .map(u32::from_ne_bytes)
                .map_err(|_| Errno(libc::EINVAL))?;
            map.set_ring(index, None)?;
            // The kernel's element is there only if programs in it have the map.
            let _ = map.in_twin(|twin| twin.delete(key));
            self.tracees.rings_changed(map.id);
            self.runner.rings_changed(map.id);
            return Ok(());
        }
        let delete = || map.delete(key);
        if !map.holds_objects() {
            return delete();
        }
        map.elements.remove(key, delete)?;
        // It is there only if programs in the kernel have the map.
        let _ = map.in_twin(|twin| twin.delete(key));
        self.shared.removals.fetch_add(1, SeqCst);
        Ok(())
    }
}

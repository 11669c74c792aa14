//! A session's objects, by id.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::MutexGuard;

use beeline_uapi::Errno;

use super::Runtime;
use crate::backend::{Id, ObjectRef};
use crate::budget::Charge;
use crate::link::Link;
use crate::map::MapObject;
use crate::objects::Object;
use crate::perf_ring::Ring;
use crate::program::Program;

#[derive(Debug, Default)]
pub(super) struct Objects {
    pub maps: HashMap<Id, Arc<MapObject>>,
    pub programs: HashMap<Id, Arc<Program>>,
    pub links: HashMap<Id, (Link, Charge)>,
    pub rings: HashMap<Id, Arc<Ring>>,
    /// Beeline's ids of cgroups, keyed by the kernel's.
    pub cgroups: HashMap<u64, Id>,
}

impl Runtime {
    pub(super) fn objects(&self) -> MutexGuard<'_, Objects> {
        self.objects.lock()
    }

    pub(super) fn map(&self, id: Id) -> Result<Arc<MapObject>, Errno> {
        self.objects()
            .maps
            .get(&id)
            .cloned()
            .ok_or(Errno(libc::EBADF))
    }

    pub(super) fn program(&self, id: Id) -> Result<Arc<Program>, Errno> {
        self.objects()
            .programs
            .get(&id)
            .cloned()
            .ok_or(Errno(libc::EBADF))
    }

    /// Resolves the object that a map element is to name.
    pub(super) fn object(&self, object: ObjectRef) -> Result<Object, Errno> {
        Ok(match object {
            ObjectRef::Map(id) => Object::Map(self.map(id)?),
            ObjectRef::Program(id) => Object::Program(self.program(id)?),
            ObjectRef::Cgroup(kernel_id) => {
                let mut objects = self.objects();
                let id = *objects
                    .cgroups
                    .entry(kernel_id)
                    .or_insert_with(|| self.id());
                Object::Cgroup { id, kernel_id }
            }
        })
    }

    pub(super) fn ring(&self, id: Id) -> Result<Arc<Ring>, Errno> {
        self.objects()
            .rings
            .get(&id)
            .cloned()
            .ok_or(Errno(libc::EBADF))
    }
}

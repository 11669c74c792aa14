//! New descriptors, by which calls answer.

use beeline_runtime::backend::Backend;
use beeline_supervisor::keys::{errno, key_of};
use beeline_supervisor::{Answer, Call, Mode, Reply};
use beeline_uapi::Errno;

use crate::fds::Descriptors;
use crate::local::Local;
use crate::objects::Object;
use crate::reclaim::Reclaim;

/// The bytes of an object without memory for the tool, and of its anchor, here and in the kernel.
const ANCHORED: u64 = 8 << 10;

/// Makes descriptors of objects for the tool.
pub(super) struct NewDescriptors<'a> {
    backend: &'a dyn Backend,
    fds: &'a Descriptors,
    reclaim: Reclaim<'a>,
}

impl<'a> NewDescriptors<'a> {
    pub(super) fn new(local: &'a Local, call: &'a Call<'a>) -> Self {
        Self {
            backend: &*local.backend,
            fds: &local.fds,
            reclaim: Reclaim::new(local, call),
        }
    }

    /// Returns the descriptor of a new object.
    pub(super) fn first(&self, object: Object) -> Answer {
        self.first_in_mode(object, Mode::BOTH)
    }

    /// Returns the descriptor of a new map; the mode is the access that it gives.
    pub(super) fn first_in_mode(&self, object: Object, mode: Mode) -> Answer {
        self.make(object, mode, true)
    }

    /// Returns another descriptor of an object; the mode is the access that it gives to a map.
    pub(super) fn another(&self, object: Object, mode: Mode) -> Answer {
        self.reclaim
            .with_room(|| self.make(object.clone(), mode, false))
    }

    fn make(&self, object: Object, mode: Mode, is_first: bool) -> Answer {
        if let Object::Map(map) = &object
            && map.is_kernels
        {
            // The kernel's descriptors of it are for both, and it is the kernel that looks at them.
            if !is_first && mode != Mode::BOTH {
                return Err(Errno::EPERM);
            }
            let id = map.held.id;
            let memory = key_of(&self.backend.memory(id)?).map_err(errno)?;
            let file = self.backend.kernels_map(id)?.ok_or(Errno::EBADF)?;
            self.reclaim.reaper.count_memory_file();
            self.fds.add_kernels(object, memory, &file)?;
            return Ok(Reply::Descriptor {
                file,
                cloexec: true,
            });
        }
        let memory = match &object {
            Object::Map(map) if map.is_file() => Some(map.held.id),
            Object::Ring(ring) => Some(ring.held.id),
            _ => None,
        };
        let file = match memory {
            Some(id) => {
                self.reclaim.reaper.count_memory_file();
                let memory = mode.open(self.backend.memory(id)?)?;
                self.fds.add_memory(object, memory)?
            }
            None => {
                let charge = self.backend.charge(ANCHORED)?;
                self.fds.add_anchored(object, is_first, charge)?
            }
        };
        Ok(Reply::Descriptor {
            file,
            cloexec: true,
        })
    }
}

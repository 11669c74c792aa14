//! The memory files of rings and arrays, which the tool's descriptors of them become.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use beeline_supervisor::Call;
use beeline_supervisor::keys::{errno, key_of, key_of_descriptor};
use beeline_uapi::Errno;

use crate::Guest;
use crate::connection::Connection;
use crate::memory::{Memory, Shape};
use crate::objects::{Hold, Object, Objects};
use crate::rings::Rings;
use crate::sharing::Sharing;

/// Makes the memory of an object, and puts it in the place of the tool's descriptor.
#[derive(Clone, Copy)]
pub(super) struct MemoryFiles<'a> {
    call: &'a Call<'a>,
    connection: &'a Arc<Connection>,
    objects: &'a Objects,
    rings: &'a Rings,
    sharing: Option<&'a Sharing>,
}

impl<'a> MemoryFiles<'a> {
    pub(super) fn new(guest: &'a Guest, call: &'a Call<'a>) -> Self {
        Self {
            call,
            connection: &guest.connection,
            objects: &guest.objects,
            rings: &guest.rings,
            sharing: guest.sharing.as_deref(),
        }
    }

    /// Returns the memory of an object; the guest's own, if that can be mapped into the tool.
    pub(super) fn memory_of(&self, object: &Object, shape: Shape) -> Result<Arc<Memory>, Errno> {
        let usable = |sharing: &&Sharing| {
            let process = self.call.process();
            process.is_ok_and(|pid| sharing.is_usable(self.connection, pid))
        };
        let sharing = self.sharing.filter(usable);
        self.rings.memory(self.connection, sharing, object, shape)
    }

    /// Turns a descriptor of the tool's into another file that stands for the same object.
    pub(super) fn become_file(
        &self,
        fd: i32,
        object: &Arc<Object>,
        file: OwnedFd,
        hold: Hold,
    ) -> Result<(), Errno> {
        if key_of(&file).map_err(errno)? == key_of_descriptor(self.call.tid, fd)? {
            return Ok(());
        }
        // From here on it does not look closed: our own descriptor of it is as good as the tool's
        // will be.
        self.objects.add_memory(object, &file, hold)?;
        let cloexec = self.call.closes_on_exec(fd);
        let Call { listener, id, .. } = self.call;
        listener.replace(*id, fd, file.as_fd(), cloexec)
    }
}

//! The tool's descriptors, as all areas look them up.

use std::sync::Arc;

use beeline_supervisor::{Answer, Call, Reply};
use beeline_uapi::Errno;

use crate::Guest;
use crate::objects::{Object, Objects};

/// Finds the guest's objects behind the descriptors of the thread that makes a call.
#[derive(Clone, Copy)]
pub(super) struct Descriptors<'a> {
    pub(super) objects: &'a Arc<Objects>,
    tid: i32,
}

impl<'a> Descriptors<'a> {
    pub(super) fn new(guest: &'a Guest, call: &Call<'_>) -> Self {
        Self {
            objects: &guest.objects,
            tid: call.tid,
        }
    }

    /// Returns the object behind a descriptor; `None` for all other files, and without a file.
    pub(super) fn find(&self, fd: i32) -> Option<Arc<Object>> {
        self.objects.find(self.tid, fd).ok()?
    }

    /// Returns the object behind a descriptor: EBADF if there is no file, EINVAL if it is something
    /// else.
    pub(super) fn object(&self, fd: i32) -> Result<Arc<Object>, Errno> {
        if fd < 0 {
            return Err(Errno(libc::EBADF));
        }
        let found = self.objects.find(self.tid, fd)?;
        found.ok_or(Errno(libc::EINVAL))
    }

    /// Returns the guest's handle of the object behind a descriptor; the errors are those of
    /// [`Self::object`].
    pub(super) fn handle_of(&self, fd: u32) -> Result<u32, Errno> {
        let object = self.object(fd as i32)?;
        Ok(object.handle)
    }

    /// Answers with a new descriptor of an object, which is closed on `execve`.
    pub(super) fn give(&self, object: Arc<Object>) -> Answer {
        let file = self.objects.add(object)?;
        Ok(Reply::Descriptor {
            file,
            cloexec: true,
        })
    }
}

//! The objects behind the descriptors of one thread of the tool.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use beeline_supervisor::keys::{Key, anonymous, key_of_descriptor};
use beeline_supervisor::{Call, Mode};
use beeline_uapi::Errno;

use super::{Descriptors, Entry, Hold};
use crate::objects::{Btf, Event, Map, Object, ProgramObject, Ring};
use crate::reclaim::Reaper;

/// Finds the objects behind a thread's descriptors.
#[derive(Clone, Copy)]
pub(crate) struct ThreadFds<'a> {
    /// The table of all descriptors of the tool's.
    pub(crate) table: &'a Descriptors,
    pub(crate) tid: i32,
}

impl ThreadFds<'_> {
    /// Returns the object behind a descriptor: EBADF if the thread has no such descriptor, `None`
    /// if the file is not one of ours.
    pub(crate) fn find(&self, fd: i32) -> Result<Option<Object>, Errno> {
        let key = key_of_descriptor(self.tid, fd)?;
        if key == self.table.anonymous && self.table.has_stand_ins() {
            return Ok(self.stand_in(fd).map(|(_, object)| object));
        }
        Ok(self
            .table
            .entries
            .lock()
            .get(&key)
            .map(|entry| entry.object.clone()))
    }

    /// Returns whether the object was created with this descriptor. The kernel has another name for
    /// a link's other descriptors.
    pub(crate) fn is_first(&self, fd: i32) -> bool {
        let key = key_of_descriptor(self.tid, fd);
        let is_other = |entry: &Entry| {
            matches!(
                entry.hold,
                Hold::Anchor {
                    is_first: false,
                    ..
                }
            )
        };
        !key.is_ok_and(|key| self.table.entries.lock().get(&key).is_some_and(is_other))
    }

    /// Has a descriptor of an object be another file from now on, one of the kernel's that stands
    /// for it, unless it is one already. The call has to wait meanwhile. The reaper is to look for
    /// its close.
    ///
    /// # Errors
    ///
    /// `EBADF` if there is no such descriptor, and those of [`Listener::replace`].
    ///
    /// [`Listener::replace`]: beeline_supervisor::Listener::replace
    pub(crate) fn make_kernels(
        &self,
        (call, reaper): (&Call<'_>, &Reaper),
        fd: i32,
        kernels: BorrowedFd<'_>,
    ) -> Result<(), Errno> {
        let key = key_of_descriptor(self.tid, fd)?;
        if key == self.table.anonymous {
            return Ok(());
        }
        reaper.count_memory_file();
        self.table.set_stand_in(key, kernels)?;
        let cloexec = call.closes_on_exec(fd);
        call.listener.replace(call.id, fd, kernels, cloexec)
    }

    /// Returns the object that a descriptor stands for, if it is an eventfd, or a map or program of
    /// the kernel's, in place of the object's own file, and the key of that file.
    pub(crate) fn stand_in(&self, fd: i32) -> Option<(Key, Object)> {
        let number = anonymous(&self.tid.to_string(), fd)?;
        let entries = self.table.entries.lock();
        let mut entries = entries.iter();
        let found = entries.find(|(_, entry)| entry.stand_in() == Some(number));
        found.map(|(key, entry)| (*key, entry.object.clone()))
    }

    /// Returns the mode in which a descriptor was opened.
    pub(crate) fn mode(&self, fd: i32) -> Result<Mode, Errno> {
        rustix::fs::lstat(format!("/proc/{}/fd/{fd}", self.tid))
            .map(|link| Mode::of_link(link.st_mode))
            .map_err(|_| Errno::EBADF)
    }

    /// Returns a map and the access that this descriptor gives now: a frozen map cannot be written.
    pub(crate) fn map_and_mode(&self, fd: i32) -> Result<(Arc<Map>, Mode), Errno> {
        let map = self.map(fd)?;
        let mut mode = self.mode(fd)?;
        mode.write &= !map.is_frozen();
        Ok((map, mode))
    }

    pub(crate) fn map(&self, fd: i32) -> Result<Arc<Map>, Errno> {
        match self.find(fd)? {
            Some(Object::Map(map)) => Ok(map),
            _ => Err(Errno::EINVAL),
        }
    }

    pub(crate) fn program(&self, fd: i32) -> Result<Arc<ProgramObject>, Errno> {
        match self.find(fd)? {
            Some(Object::Program(program)) => Ok(program),
            _ => Err(Errno::EINVAL),
        }
    }

    pub(crate) fn btf(&self, fd: i32) -> Result<Arc<Btf>, Errno> {
        match self.find(fd)? {
            Some(Object::Btf(btf)) => Ok(btf),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Returns an event, for links and perf arrays. To the kernel, a descriptor of anything but a
    /// perf event is a bad one there.
    pub(crate) fn event(&self, fd: i32) -> Result<Arc<Event>, Errno> {
        match self.find(fd)? {
            Some(Object::Event(event)) => Ok(event),
            Some(Object::Ring(_)) => Err(Errno::EINVAL),
            _ => Err(Errno::EBADF),
        }
    }

    /// Returns a perf ring; the errors are those of [`Self::event`].
    pub(crate) fn ring(&self, fd: i32) -> Result<Arc<Ring>, Errno> {
        match self.find(fd)? {
            Some(Object::Ring(ring)) => Ok(ring),
            Some(Object::Event(_)) => Err(Errno::EINVAL),
            _ => Err(Errno::EBADF),
        }
    }
}

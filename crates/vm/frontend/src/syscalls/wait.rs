//! `epoll_ctl`, `poll` and `select` on rings, and `rt_sigreturn` for arrays.
//!
//! An epoll set gets the memory's eventfd. With `poll` and `select` a tool shows its descriptors at
//! each call. Before the kernel makes the call, a pipe takes the memory's place under the same
//! number, readable if the ring has something to read.

use std::os::fd::AsFd;
use std::sync::Arc;

use beeline_supervisor::{Answer, Call, Reply};
use beeline_uapi::Errno;

use super::descriptors::Descriptors;
use super::memory_files::MemoryFiles;
use crate::Guest;
use crate::connection::Connection;
use crate::memory::{Memory, Shape};
use crate::objects::{Hold, Object};
use crate::rings::Rings;

const EINVAL: Errno = Errno(libc::EINVAL);

/// Lets a tool wait for records, and for the content of arrays.
pub(super) struct Wait<'a> {
    call: &'a Call<'a>,
    descriptors: Descriptors<'a>,
    files: MemoryFiles<'a>,
    connection: &'a Arc<Connection>,
    rings: &'a Rings,
}

impl<'a> Wait<'a> {
    pub(super) fn new(guest: &'a Guest, call: &'a Call<'a>) -> Self {
        Self {
            call,
            descriptors: Descriptors::new(guest, call),
            files: MemoryFiles::new(guest, call),
            connection: &guest.connection,
            rings: &guest.rings,
        }
    }

    /// Answers `rt_sigreturn()`: a tool that has handled a signal may now sum up the content of its
    /// arrays.
    pub(super) fn settle(&self) -> Answer {
        // The user has been told of a lost guest, which does not keep the tool from continuing.
        let _ = self.rings.settle(self.connection);
        Ok(Reply::Continue)
    }

    /// Answers `epoll_ctl(epoll, operation, descriptor, event)`: the memory's eventfd takes the
    /// descriptor's place.
    pub(super) fn epoll_ctl(&self) -> Answer {
        let [_, _, fd, ..] = self.call.args;
        let Some(object) = self.descriptors.find(fd as i32) else {
            return Ok(Reply::Continue);
        };
        if !object.is_waited_for() {
            return Ok(Reply::Continue);
        }
        let memory = self.memory_to_wait_for(&object)?;
        self.call.epoll_ctl_of(memory.wakeup.as_fd())
    }

    /// Returns the memory to wait for. A perf ring that is not mapped has nothing to wait for.
    fn memory_to_wait_for(&self, object: &Object) -> Result<Arc<Memory>, Errno> {
        let memory = match (object.memory.get(), object.facts) {
            (Some(memory), _) => Arc::clone(memory),
            (None, Some(facts)) => {
                let data = facts.max_entries as usize;
                self.files.memory_of(object, Shape::Ring { data })?
            }
            (None, None) => return Err(EINVAL),
        };
        self.rings.watch(self.connection, &memory)?;
        Ok(memory)
    }

    /// Answers `poll(fds, count, ..)` and `ppoll`.
    pub(super) fn poll(&self, fds: u64, count: u64) -> Answer {
        if !self.descriptors.objects.none_to_wait_for() {
            self.make_all_waitable(&self.call.polled(fds, count))?;
        }
        Ok(Reply::Continue)
    }

    /// Answers `select(count, readable, ..)` and `pselect6`.
    pub(super) fn select(&self, count: u64, readable: u64) -> Answer {
        if !self.descriptors.objects.none_to_wait_for() {
            self.make_all_waitable(&self.call.selected(count, readable))?;
        }
        Ok(Reply::Continue)
    }

    fn make_all_waitable(&self, fds: &[i32]) -> Result<(), Errno> {
        fds.iter().try_for_each(|&fd| self.make_waitable(fd))
    }

    fn make_waitable(&self, fd: i32) -> Result<(), Errno> {
        let Some(object) = self.descriptors.find(fd) else {
            return Ok(());
        };
        if !object.is_waited_for() {
            return Ok(());
        }
        let memory = self.memory_to_wait_for(&object)?;
        self.files
            .become_file(fd, &object, memory.pipe()?, Hold::Pipe)?;
        memory.settle_pipe();
        Ok(())
    }
}

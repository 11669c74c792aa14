//! `epoll_ctl`, `poll` and `select` on rings, and `rt_sigreturn` for arrays.
//!
//! An epoll set gets the memory's eventfd. With `poll` and `select` a tool shows its descriptors at
//! each call. Before the kernel makes the call, a pipe takes the memory's place under the same
//! number, readable if the ring has something to read.

use std::io;
use std::mem::offset_of;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use beeline_supervisor::keys::errno;
use beeline_supervisor::{Answer, Call, Reply};
use beeline_uapi::Errno;
use beeline_uapi::fields::{u32_at, u64_at};
use libc::epoll_event;

use super::descriptors::Descriptors;
use super::memory_files::MemoryFiles;
use crate::Guest;
use crate::connection::Connection;
use crate::memory::{Memory, Shape};
use crate::objects::{Hold, Object};
use crate::rings::Rings;

const EINVAL: Errno = Errno(libc::EINVAL);
/// The most descriptors in one `poll` or `select`.
const MOST: u64 = 1 << 16;

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

    /// Answers `epoll_ctl(epoll, operation, descriptor, event)`: the memory's eventfd goes into the
    /// tool's own epoll set, edge-triggered, because nothing reads it back.
    pub(super) fn epoll_ctl(&self) -> Answer {
        let [epoll, operation, fd, event, ..] = self.call.args;
        let Some(object) = self.descriptors.find(fd as i32) else {
            return Ok(Reply::Continue);
        };
        if !object.is_waited_for() {
            return Ok(Reply::Continue);
        }
        let memory = self.memory_to_wait_for(&object)?;
        let mut event = match operation as i32 {
            libc::EPOLL_CTL_DEL => epoll_event { events: 0, u64: 0 },
            _ => {
                let bytes = self.call.memory.bytes(event, size_of::<epoll_event>())?;
                epoll_event {
                    events: u32_at(&bytes, offset_of!(epoll_event, events)) | libc::EPOLLET as u32,
                    u64: u64_at(&bytes, offset_of!(epoll_event, u64)),
                }
            }
        };
        let epoll = self.call.tool_file(epoll as i32)?;
        // SAFETY: both descriptors are open here, and the event is a single one, exclusively
        // borrowed.
        let result = unsafe {
            libc::epoll_ctl(
                epoll.as_raw_fd(),
                operation as i32,
                memory.wakeup.as_raw_fd(),
                &raw mut event,
            )
        };
        match result {
            0 => Ok(Reply::Value(0)),
            _ => Err(errno(io::Error::last_os_error())),
        }
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
        const POLLFD: usize = size_of::<libc::pollfd>();
        if self.descriptors.objects.none_to_wait_for() || count > MOST {
            return Ok(Reply::Continue);
        }
        // If the array is wrong, the kernel reports it.
        let entries = self.call.memory.bytes(fds, count as usize * POLLFD);
        for entry in entries.unwrap_or_default().chunks_exact(POLLFD) {
            self.make_waitable(u32_at(entry, offset_of!(libc::pollfd, fd)) as i32)?;
        }
        Ok(Reply::Continue)
    }

    /// Answers `select(count, readable, ..)` and `pselect6`.
    pub(super) fn select(&self, count: u64, readable: u64) -> Answer {
        if self.descriptors.objects.none_to_wait_for() || count > MOST || readable == 0 {
            return Ok(Reply::Continue);
        }
        let bytes = count.div_ceil(64) as usize * 8;
        let set = self.call.memory.bytes(readable, bytes).unwrap_or_default();
        for fd in 0..count as usize {
            let byte = set.get(fd / 8).copied().unwrap_or(0);
            if byte >> (fd % 8) & 1 != 0 {
                self.make_waitable(fd as i32)?;
            }
        }
        Ok(Reply::Continue)
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

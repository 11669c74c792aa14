//! Mapping and waiting: `mmap`, `epoll_ctl`, `poll` and `select` on rings and arrays of the
//! guest's.
//!
//! A descriptor is a socket until the tool maps it, and the memory file from then on. An epoll set
//! gets the memory's eventfd. With `poll` and `select` a tool shows its descriptors at each call.
//! Before the kernel makes the call, a pipe takes the memory's place under the same number,
//! readable if the ring has something to read.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use beeline_supervisor::attr::{u32_at, u64_at};
use beeline_supervisor::keys::{errno, key_of, key_of_descriptor};
use beeline_supervisor::{Answer, Reply};
use beeline_uapi::Errno;

use crate::memory::{Memory, Shape};
use crate::objects::{Hold, Object};
use crate::sharing::Sharing;
use crate::{Guest, Handler};

const ENOTSUPP: Errno = Errno::ENOTSUPP;
const EINVAL: Errno = Errno(libc::EINVAL);
const PAGE: u64 = 4096;
/// The most descriptors in one `poll` or `select`.
const MOST: u64 = 1 << 16;

impl Handler<'_> {
    /// Answers `mmap(address, length, protection, flags, descriptor, offset)`, shared and of a
    /// file. The kernel maps the memory file.
    pub(super) fn mmap(&self) -> Answer {
        let [_, length, _, _, fd, offset] = self.args;
        let Ok(Some(object)) = self.guest.objects.find(self.tid, fd as i32) else {
            return Ok(Reply::Continue);
        };
        let shape = shape(&object, length, offset)?;
        let length = usize::try_from(length).map_err(|_| EINVAL)?;
        let end = usize::try_from(offset)
            .ok()
            .and_then(|offset| offset.checked_add(length));
        if end.is_none_or(|end| end > shape.len()) {
            return Err(EINVAL);
        }
        let memory = self.memory_of(&object, shape)?;
        self.become_file(fd as i32, &object, memory.opened()?, Hold::Memory)?;
        match (&self.guest.sharing, &memory.shared) {
            (Some(sharing), Some(places)) => self.map_places(sharing, &memory, places),
            _ => Ok(Reply::Continue),
        }
    }

    fn memory_of(&self, object: &Object, shape: Shape) -> Result<Arc<Memory>, Errno> {
        let Guest {
            connection,
            rings,
            sharing,
            ..
        } = self.guest;
        let usable = |sharing: &&Sharing| {
            self.process()
                .is_ok_and(|pid| sharing.is_usable(connection, pid))
        };
        let sharing = sharing.as_deref().filter(usable);
        rings.memory(connection, sharing, object, shape)
    }

    /// Turns a descriptor of the tool's into another file that stands for the same object.
    fn become_file(
        &self,
        fd: i32,
        object: &Arc<Object>,
        file: OwnedFd,
        hold: Hold,
    ) -> Result<(), Errno> {
        if key_of(&file).map_err(errno)? == key_of_descriptor(self.tid, fd)? {
            return Ok(());
        }
        // From here on it does not look closed: our own descriptor of it is as good as the tool's
        // will be.
        self.guest.objects.add_memory(object, &file, hold)?;
        let cloexec = self.closes_on_exec(fd);
        self.listener.replace(self.id, fd, file.as_fd(), cloexec)
    }

    /// Answers `rt_sigreturn()`: a tool that has handled a signal may now sum up the content of its
    /// arrays.
    pub(super) fn settle(&self) -> Answer {
        // The user has been told of a lost guest, which does not keep the tool from continuing.
        let _ = self.guest.rings.settle(&self.guest.connection);
        Ok(Reply::Continue)
    }

    /// Answers `epoll_ctl(epoll, operation, descriptor, event)`: the memory's eventfd goes into the
    /// tool's own epoll set, edge-triggered, because nothing reads it back.
    pub(super) fn epoll_ctl(&self) -> Answer {
        let [epoll, operation, fd, event, ..] = self.args;
        let Ok(Some(object)) = self.guest.objects.find(self.tid, fd as i32) else {
            return Ok(Reply::Continue);
        };
        if !object.is_waited_for() {
            return Ok(Reply::Continue);
        }
        let memory = self.memory_to_wait_for(&object)?;
        let mut event = match operation as i32 {
            libc::EPOLL_CTL_DEL => libc::epoll_event { events: 0, u64: 0 },
            _ => {
                let bytes = self.memory.bytes(event, 12)?;
                libc::epoll_event {
                    events: u32_at(&bytes, 0) | libc::EPOLLET as u32,
                    u64: u64_at(&bytes, 4),
                }
            }
        };
        let epoll = self.tool_file(epoll as i32)?;
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
                self.memory_of(object, Shape::Ring { data })?
            }
            (None, None) => return Err(EINVAL),
        };
        self.guest.rings.watch(&self.guest.connection, &memory)?;
        Ok(memory)
    }

    /// Answers `poll(fds, count, ..)` and `ppoll`.
    pub(super) fn poll(&self, fds: u64, count: u64) -> Answer {
        const POLLFD: usize = 8;
        if self.guest.objects.none_to_wait_for() || count > MOST {
            return Ok(Reply::Continue);
        }
        // If the array is wrong, the kernel reports it.
        let entries = self.memory.bytes(fds, count as usize * POLLFD);
        for entry in entries.unwrap_or_default().chunks_exact(POLLFD) {
            self.make_waitable(u32_at(entry, 0) as i32)?;
        }
        Ok(Reply::Continue)
    }

    /// Answers `select(count, readable, ..)` and `pselect6`.
    pub(super) fn select(&self, count: u64, readable: u64) -> Answer {
        if self.guest.objects.none_to_wait_for() || count > MOST || readable == 0 {
            return Ok(Reply::Continue);
        }
        let bytes = count.div_ceil(64) as usize * 8;
        let set = self.memory.bytes(readable, bytes).unwrap_or_default();
        for fd in 0..count as usize {
            let byte = set.get(fd / 8).copied().unwrap_or(0);
            if byte >> (fd % 8) & 1 != 0 {
                self.make_waitable(fd as i32)?;
            }
        }
        Ok(Reply::Continue)
    }

    fn make_waitable(&self, fd: i32) -> Result<(), Errno> {
        let Ok(Some(object)) = self.guest.objects.find(self.tid, fd) else {
            return Ok(());
        };
        if !object.is_waited_for() {
            return Ok(());
        }
        let memory = self.memory_to_wait_for(&object)?;
        self.become_file(fd, &object, memory.pipe()?, Hold::Pipe)?;
        memory.settle_pipe();
        Ok(())
    }
}

/// Returns the layout of an object's memory, given the mapping that the tool asks for.
fn shape(object: &Object, length: u64, offset: u64) -> Result<Shape, Errno> {
    if let Some(facts) = object.facts {
        if facts.is_ring() {
            let data = facts.max_entries as usize;
            return Ok(Shape::Ring { data });
        }
        if facts.is_mappable_array() {
            let value = (facts.value_size as usize).next_multiple_of(8);
            let bytes = value.checked_mul(facts.max_entries as usize);
            let bytes = bytes.ok_or(EINVAL)?;
            return Ok(Shape::Array { bytes });
        }
        return Err(ENOTSUPP);
    }
    // The tool's mapping decides a perf ring's size: a control page and 2^n of data.
    let pages = (length / PAGE).saturating_sub(1);
    if !object.is_ring || offset != 0 || !length.is_multiple_of(PAGE) || !pages.is_power_of_two() {
        return Err(EINVAL);
    }
    Ok(Shape::Perf {
        data: (pages * PAGE) as usize,
    })
}

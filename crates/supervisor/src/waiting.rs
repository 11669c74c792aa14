//! The calls by which a tool waits for descriptors, as it passed them: `epoll_ctl`, `poll` and
//! `select`.

use std::mem::offset_of;
use std::os::fd::BorrowedFd;

use beeline_uapi::Errno;
use beeline_uapi::fields::{u32_at, u64_at};
use libc::epoll_event;
use rustix::event::epoll::{self, EventData, EventFlags};

use crate::call::{Answer, Call};
use crate::notify::Reply;

/// The most descriptors in one `poll` or `select` that are looked at.
const MOST: u64 = 1 << 16;

impl Call<'_> {
    /// Carries out `epoll_ctl(epoll, operation, descriptor, event)` with an object's eventfd in
    /// place of the descriptor. So the eventfd goes into the tool's own epoll set, which then wakes
    /// the tool without the supervisor.
    ///
    /// It is edge-triggered there, because nothing reads it. If it was ever written before it is
    /// added, it reports at once.
    ///
    /// # Errors
    ///
    /// EINVAL for an unknown operation, those of [`Memory::read`](crate::Memory::read) for the
    /// event, those of [`Self::tool_file`], and others of epoll_ctl(2).
    pub fn epoll_ctl_of(&self, eventfd: BorrowedFd<'_>) -> Answer {
        let [epoll, operation, _, event, ..] = self.args;
        let operation = operation as i32;
        let (data, flags) = match operation {
            libc::EPOLL_CTL_DEL => (EventData::new_u64(0), EventFlags::empty()),
            _ => self.epoll_event(event)?,
        };
        let epoll = self.tool_file(epoll as i32)?;
        let done = match operation {
            libc::EPOLL_CTL_ADD => epoll::add(epoll, eventfd, data, flags | EventFlags::ET),
            libc::EPOLL_CTL_MOD => epoll::modify(epoll, eventfd, data, flags | EventFlags::ET),
            libc::EPOLL_CTL_DEL => epoll::delete(epoll, eventfd),
            _ => return Err(Errno::EINVAL),
        };
        done.map_err(|error| Errno(error.raw_os_error()))?;
        Ok(Reply::Value(0))
    }

    /// Reads the tool's `struct epoll_event`.
    fn epoll_event(&self, address: u64) -> Result<(EventData, EventFlags), Errno> {
        let mut bytes = [0; size_of::<epoll_event>()];
        self.memory.read(address, &mut bytes)?;
        let events = u32_at(&bytes, offset_of!(epoll_event, events));
        let data = u64_at(&bytes, offset_of!(epoll_event, u64));
        Ok((
            EventData::new_u64(data),
            EventFlags::from_bits_retain(events),
        ))
    }

    /// Returns the descriptors of `poll(fds, count, ..)`. There are none if the array is wrong,
    /// which the kernel reports, or very long.
    pub fn polled(&self, fds: u64, count: u64) -> Vec<i32> {
        const POLLFD: usize = size_of::<libc::pollfd>();
        if count > MOST {
            return Vec::new();
        }
        let entries = self.memory.bytes(fds, count as usize * POLLFD);
        let entries = entries.unwrap_or_default();
        let entries = entries.chunks_exact(POLLFD);
        entries
            .map(|entry| u32_at(entry, offset_of!(libc::pollfd, fd)) as i32)
            .collect()
    }

    /// Returns the descriptors of `select(count, readable, ..)`, likewise: the set has a bit for
    /// each.
    pub fn selected(&self, count: u64, readable: u64) -> Vec<i32> {
        if count > MOST || readable == 0 {
            return Vec::new();
        }
        let bytes = count.div_ceil(64) as usize * 8;
        let set = self.memory.bytes(readable, bytes).unwrap_or_default();
        let is_in = |fd: &i32| {
            let byte = set.get(*fd as usize / 8).copied().unwrap_or(0);
            byte >> (fd % 8) & 1 != 0
        };
        (0..count as i32).filter(is_in).collect()
    }
}

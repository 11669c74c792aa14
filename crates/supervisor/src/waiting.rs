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

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::memory::Memory;
    use crate::notify::Listener;

    const AT: u64 = 0x1000;

    fn with_call<T>(memory: &[u8], look: impl FnOnce(&Call<'_>) -> T) -> T {
        let nothing = File::open("/dev/null").expect("it is there");
        let listener = Listener::new(nothing.into()).expect("there are descriptors");
        look(&Call {
            memory: Memory::of_nobody(AT, memory),
            listener: &listener,
            id: 0,
            tid: 0,
            args: [0; 6],
            let_lead: &|| (),
        })
    }

    #[test]
    fn polled_descriptors_are_those_of_the_array() {
        let entries = [[7i32, 0x1], [-1, 0x4], [300, 0x1]];
        let bytes: Vec<u8> = entries
            .iter()
            .flatten()
            .flat_map(|n| n.to_ne_bytes())
            .collect();
        with_call(&bytes, |call| {
            assert_eq!(call.polled(AT, 3), [7, -1, 300]);
            assert_eq!(call.polled(AT, 2), [7, -1]);
            for (fds, count) in [(AT, 0), (0, 3), (AT, 1000), (AT, MOST + 1), (AT, u64::MAX)] {
                assert!(call.polled(fds, count).is_empty(), "{fds} {count}");
            }
        });
    }

    #[test]
    fn selected_descriptors_have_their_bit_set() {
        let mut set = [0u8; 16];
        (set[0], set[8], set[15]) = (0b1001, 1, 0x80);
        with_call(&set, |call| {
            assert_eq!(call.selected(128, AT), [0, 3, 64, 127]);
            assert_eq!(call.selected(64, AT), [0, 3]);
            assert_eq!(call.selected(3, AT), [0]);
            for (count, readable) in [(0, AT), (128, 0), (1 << 16, AT), (MOST + 1, AT)] {
                assert!(call.selected(count, readable).is_empty(), "{count}");
            }
        });
    }
}

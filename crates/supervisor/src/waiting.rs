//! The calls by which a tool waits for descriptors, as it passed them: `epoll_ctl`, `poll` and
//! `select`.

use std::mem::offset_of;
use std::os::fd::{AsRawFd, BorrowedFd};

use beeline_agent::trapped;
use beeline_uapi::Errno;
use beeline_uapi::fields::{u32_at, u64_at};
use libc::epoll_event;
use rustix::event::epoll::{self, EventData, EventFlags};

use crate::call::{Answer, Call};
use crate::notify::Reply;

/// Reads the number by which proc(5) tells eventfds apart.
fn eventfd_id(fdinfo: &str) -> Option<u64> {
    let text = std::fs::read_to_string(fdinfo).ok()?;
    let id = text
        .lines()
        .find_map(|line| line.strip_prefix("eventfd-id:"))?;
    id.trim().parse().ok()
}

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
        let epoll = match self.tool_file(epoll as i32) {
            Err(_) if self.is_forwarded => return self.epoll_ctl_there(operation, eventfd),
            epoll => epoll?,
        };
        let done = match operation {
            libc::EPOLL_CTL_ADD => epoll::add(epoll, eventfd, data, flags | EventFlags::ET),
            libc::EPOLL_CTL_MOD => epoll::modify(epoll, eventfd, data, flags | EventFlags::ET),
            libc::EPOLL_CTL_DEL => epoll::delete(epoll, eventfd),
            _ => return Err(Errno::EINVAL),
        };
        done.map_err(|error| Errno(error.raw_os_error()))?;
        Ok(Reply::Value(0))
    }

    /// Has the tool make the call itself, for an eventfd that is put there. An epoll set knows a file
    /// by its number, so the descriptor stays.
    fn epoll_ctl_there(&self, operation: i32, eventfd: BorrowedFd<'_>) -> Answer {
        if let Some(number) = self.number_of(eventfd) {
            return Ok(Reply::Value(trapped::WATCH + i64::from(number)));
        }
        match operation {
            libc::EPOLL_CTL_ADD => eventfd
                .try_clone_to_owned()
                .map(Reply::Watch)
                .map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EMFILE))),
            _ => Err(Errno(libc::ENOENT)),
        }
    }

    /// Returns the number that an eventfd of Beeline's has in the tool.
    fn number_of(&self, eventfd: BorrowedFd<'_>) -> Option<i32> {
        let wanted = eventfd_id(&format!("/proc/self/fdinfo/{}", eventfd.as_raw_fd()))?;
        let mut files = std::fs::read_dir(format!("/proc/{}/fdinfo", self.tid)).ok()?;
        files.find_map(|file| {
            let path = file.ok()?.path();
            let is_it = eventfd_id(path.to_str()?) == Some(wanted);
            is_it
                .then(|| path.file_name()?.to_str()?.parse().ok())
                .flatten()
        })
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
            is_forwarded: false,
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

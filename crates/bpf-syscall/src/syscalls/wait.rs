//! Mapping and waiting: `mmap`, `epoll_ctl`, `poll` and `select` on maps and perf rings.
//!
//! A ring's descriptor is its memory, and memory cannot be waited for. An epoll set gets the ring's
//! eventfd instead, once. With `poll` and `select` the tool shows its descriptors at each call.
//! Before the kernel makes the call, the eventfd takes the memory's place under the same number,
//! readable if the ring has something to read. The kernel does the waiting, so signals and
//! time-outs work as usual. If the tool maps the descriptor again, it becomes the memory again.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use beeline_runtime::backend::Backend;
use beeline_supervisor::keys::{errno, key_of};
use beeline_supervisor::{Answer, Call, Mode, Reply};
use beeline_uapi::linux::PAGE_SIZE;
use beeline_uapi::{Errno, MapType, flags};

use crate::fds::ThreadFds;
use crate::local::Local;
use crate::map_types::is_ring_buffer;
use crate::objects::{Map, Object, Ring};
use crate::reclaim::Reaper;

/// Lets the tool map objects and wait for rings.
pub(super) struct Wait<'a> {
    call: &'a Call<'a>,
    backend: &'a dyn Backend,
    fds: ThreadFds<'a>,
    reaper: &'a Reaper,
}

impl<'a> Wait<'a> {
    pub(super) fn new(local: &'a Local, call: &'a Call<'a>) -> Self {
        Self {
            call,
            backend: &*local.backend,
            fds: local.fds.of(call.tid),
            reaper: &local.reaper,
        }
    }

    /// Answers `mmap(address, length, protection, flags, descriptor, offset)`, shared and of a
    /// file. The kernel makes the mapping: the descriptor is the memory itself, or becomes the kernel's
    /// array whose pages are the memory. Only mappings that
    /// the kernel would refuse for a map or ring are refused.
    pub(super) fn mmap(&self) -> Answer {
        let [_, length, protection, _, fd, offset] = self.call.args;
        self.make_mappable(fd as i32)?;
        match self.fds.find(fd as i32) {
            Ok(Some(Object::Map(map))) if map.is_kernels => {}
            Ok(Some(Object::Map(map))) => {
                let writes = protection & libc::PROT_WRITE as u64 != 0;
                let mode = self.fds.mode(fd as i32)?;
                // Otherwise the kernel returns EACCES, before it looks at what is to be mapped.
                if mode.read && (mode.write || !writes) {
                    may_map(&map, length, writes, offset)?;
                    // To the kernel, a mapping that can never be written is not shared.
                    if !mode.write {
                        return Err(Errno::EINVAL);
                    }
                    self.make_kernels(fd as i32, &map)?;
                    map.was_mapped_writable.fetch_or(writes, Ordering::AcqRel);
                }
            }
            Ok(Some(Object::Ring(ring))) => self.size_ring(&ring, length, offset)?,
            _ => {}
        }
        Ok(Reply::Continue)
    }

    /// Replaces the descriptor of a map whose memory is the kernel's by the kernel's array.
    fn make_kernels(&self, fd: i32, map: &Map) -> Result<(), Errno> {
        let id = map.held.id;
        let Some(array) = self.backend.kernels_array(id)? else {
            return Ok(());
        };
        self.fds
            .make_kernels((self.call, self.reaper), fd, array.as_fd())
    }

    /// Sizes a ring by the tool's mapping of the perf event: a control page and 2^n of data.
    fn size_ring(&self, ring: &Ring, length: u64, offset: u64) -> Result<(), Errno> {
        let pages = (length / PAGE_SIZE)
            .checked_sub(1)
            .and_then(|pages| u32::try_from(pages).ok())
            .ok_or(Errno::EINVAL)?;
        if offset != 0 || !length.is_multiple_of(PAGE_SIZE) || !pages.is_power_of_two() {
            return Err(Errno::EINVAL);
        }
        ring.set_pages(pages, || self.backend.perf_ring_resize(ring.held.id, pages))
    }

    /// Answers `epoll_ctl(epoll, operation, descriptor, event)`. A memory file cannot be waited
    /// for, so the object's eventfd takes its place.
    pub(super) fn epoll_ctl(&self) -> Answer {
        let [_, _, fd, ..] = self.call.args;
        let object = self.fds.find(fd as i32);
        let Ok(Some(object)) = object else {
            return Ok(Reply::Continue);
        };
        let Some((id, wakeup)) = object.wakeup() else {
            return Ok(Reply::Continue);
        };
        let eventfd = wakeup.get(self.backend, id)?;
        self.call.epoll_ctl_of(eventfd.as_fd())
    }

    /// Answers `poll(fds, count, ..)` and `ppoll`: the kernel waits.
    pub(super) fn poll(&self, fds: u64, count: u64) -> Answer {
        if self.fds.table.has_rings() {
            self.make_all_waitable(&self.call.polled(fds, count))?;
        }
        Ok(Reply::Continue)
    }

    /// Answers `select(count, readable, ..)` and `pselect6`: like `poll`.
    pub(super) fn select(&self, count: u64, readable: u64) -> Answer {
        if self.fds.table.has_rings() {
            self.make_all_waitable(&self.call.selected(count, readable))?;
        }
        Ok(Reply::Continue)
    }

    fn make_all_waitable(&self, fds: &[i32]) -> Result<(), Errno> {
        fds.iter().try_for_each(|&fd| self.make_waitable(fd))
    }

    /// Replaces a ring's descriptor by its eventfd, readable or not as the ring is.
    fn make_waitable(&self, fd: i32) -> Result<(), Errno> {
        let Ok(Some(object)) = self.fds.find(fd) else {
            return Ok(());
        };
        let Some((id, wakeup)) = object.wakeup() else {
            return Ok(());
        };
        let wakeup = wakeup.get(self.backend, id)?;
        let is_memory = self.fds.stand_in(fd).is_none();
        if is_memory && self.fds.mode(fd)? == Mode::BOTH {
            let memory = key_of(&self.backend.memory(id)?).map_err(errno)?;
            self.fds.table.set_stand_in(memory, wakeup)?;
            let cloexec = self.call.closes_on_exec(fd);
            self.call
                .listener
                .replace(self.call.id, fd, wakeup.as_fd(), cloexec)?;
        }
        // The order matters: a record that arrives in between is found by the look, or has written
        // the eventfd again.
        let mut count = [0; 8];
        let _ = rustix::io::read(wakeup, &mut count); // Does not block; the count is unused.
        if self.backend.readable(id)? {
            let _ = rustix::io::write(wakeup, &1u64.to_ne_bytes()); // Fails only if readable.
        }
        Ok(())
    }

    /// Replaces a ring's eventfd by the memory again.
    fn make_mappable(&self, fd: i32) -> Result<(), Errno> {
        if !self.fds.table.has_rings() {
            return Ok(());
        }
        let Some((_, object)) = self.fds.stand_in(fd) else {
            return Ok(());
        };
        let Some((id, _)) = object.wakeup() else {
            return Ok(());
        };
        let memory = self.backend.memory(id)?;
        let cloexec = self.call.closes_on_exec(fd);
        self.call
            .listener
            .replace(self.call.id, fd, memory.as_fd(), cloexec)
    }
}

/// Checks a mapping as the kernel does: ring buffers and mappable arrays only, no more than there
/// is, and no writing to a map that is frozen or constant for programs, or to the other side of a
/// ring.
fn may_map(map: &Map, length: u64, writes: bool, offset: u64) -> Result<(), Errno> {
    let spec = &map.spec;
    let ring = is_ring_buffer(spec.map_type);
    if !ring && spec.map_type != MapType::ARRAY {
        return Err(Errno::ENOTSUPP);
    }
    if writes && map.is_frozen() {
        return Err(Errno::EPERM);
    }
    if writes && spec.flags & flags::RDONLY_PROG != 0 {
        return Err(Errno::EACCES);
    }
    let end = offset.saturating_add(length.div_ceil(PAGE_SIZE).saturating_mul(PAGE_SIZE));
    if spec.map_type == MapType::RINGBUF {
        if writes && (offset != 0 || length > PAGE_SIZE) {
            return Err(Errno::EPERM);
        }
        let whole = 2 * PAGE_SIZE + 2 * u64::from(spec.max_entries);
        return if end <= whole {
            Ok(())
        } else {
            Err(Errno::EINVAL)
        };
    }
    if ring {
        return Ok(());
    }
    let values = u64::from(spec.max_entries) * u64::from(spec.value_size).next_multiple_of(8);
    if spec.flags & flags::MMAPABLE == 0 || end > values.next_multiple_of(PAGE_SIZE) {
        return Err(Errno::EINVAL);
    }
    Ok(())
}

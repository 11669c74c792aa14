//! Rings that the kernel's programs write, mapped here, and the thread that hears of news in them.
//!
//! They are laid out as Beeline's own rings, so that a [`Relay`](crate::relay::Relay) carries their
//! records into the tool's.

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::thread::JoinHandle;

use beeline_kernel as kernel;
use beeline_maps::Map;
use beeline_uapi::linux::PAGE_SIZE;
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use crate::domain::{self, Domains};

const PAGE: usize = PAGE_SIZE as usize;
/// The data of the event that ends the thread.
const END: u64 = 1;

/// A ring of the kernel's, mapped as one of Beeline's own.
#[derive(Debug)]
pub struct KernelRing {
    base: NonNull<u8>,
    len: usize,
    /// The perf event, which is open as long as the ring is used. A ring buffer is its map's.
    event: Option<OwnedFd>,
}

// SAFETY: the mapping belongs to this value alone, and what is shared in it is accessed by atomics.
unsafe impl Send for KernelRing {}
// SAFETY: the mapping belongs to this value alone, and what is shared in it is accessed by atomics.
unsafe impl Sync for KernelRing {}

impl KernelRing {
    /// Opens the perf event for what programs print on a CPU, with a ring of `pages` data pages.
    ///
    /// # Errors
    ///
    /// Those of perf_event_open(2) and mmap(2).
    pub fn of_cpu(cpu: u32, pages: u32) -> io::Result<Self> {
        let event = kernel::attach::output_event(cpu)?;
        let mut ring = Self::reserve((pages as usize + 1) * PAGE)?;
        ring.place(
            0,
            ring.len,
            ProtFlags::READ | ProtFlags::WRITE,
            (event.as_fd(), 0),
        )?;
        ring.event = Some(event);
        Ok(ring)
    }

    /// Maps a ring buffer of the kernel's that is like `tools`.
    ///
    /// # Errors
    ///
    /// Those of mmap(2).
    pub fn of_map(map: &kernel::Map, tools: &Map) -> io::Result<Self> {
        let layout = tools.layout();
        let ring = Self::reserve(layout.len as usize)?;
        let consumer = ProtFlags::READ | ProtFlags::WRITE;
        ring.place(0, PAGE, consumer, (map.as_fd(), 0))?;
        // The kernel's mapping ends where Beeline's control page begins, which stays as it is.
        let data = layout.control as usize - PAGE;
        ring.place(PAGE, data, ProtFlags::READ, (map.as_fd(), PAGE_SIZE))?;
        Ok(ring)
    }

    /// Returns the start of the mapping.
    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Returns the perf event.
    pub fn event(&self) -> Option<BorrowedFd<'_>> {
        self.event.as_ref().map(AsFd::as_fd)
    }

    /// Reserves room, filled with zeros.
    fn reserve(len: usize) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses a place that is free.
        let base = unsafe { mmap_anonymous(null_mut(), len, protection, MapFlags::PRIVATE) }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self {
            base,
            len,
            event: None,
        })
    }

    /// Maps a part of a file into the reserved room.
    fn place(
        &self,
        at: usize,
        len: usize,
        protection: ProtFlags,
        (file, offset): (BorrowedFd<'_>, u64),
    ) -> io::Result<()> {
        if at + len > self.len {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let to = self.base.as_ptr().wrapping_add(at).cast::<c_void>();
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: the range is inside the room that this value has reserved and nobody uses yet.
        unsafe { mmap(to, len, protection, flags, file, offset) }?;
        Ok(())
    }
}

impl Drop for KernelRing {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and is not used any more.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// The thread that waits for news in the kernel's rings, and wakes the notifier.
#[derive(Debug)]
pub struct Watcher {
    epoll: Arc<OwnedFd>,
    end: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Watcher {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// Those of epoll_create(2), eventfd(2) and pthread_create(3).
    pub fn start(domains: Arc<Domains>) -> io::Result<Self> {
        let epoll = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let end = eventfd(0, EventfdFlags::CLOEXEC)?;
        epoll::add(
            &*epoll,
            &end,
            epoll::EventData::new_u64(END),
            epoll::EventFlags::IN,
        )?;
        let thread = std::thread::Builder::new()
            .name("beeline-kernel".into())
            .spawn({
                let epoll = epoll.clone();
                move || listen(&epoll, &domains)
            })?;
        Ok(Self {
            epoll,
            end,
            thread: Some(thread),
        })
    }

    /// Listens to one more ring, as long as it is open.
    ///
    /// # Errors
    ///
    /// Those of epoll_ctl(2).
    pub fn watch(&self, ring: BorrowedFd<'_>) -> io::Result<()> {
        let edges = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&*self.epoll, ring, epoll::EventData::new_u64(0), edges)?;
        Ok(())
    }
}

fn listen(epoll: &OwnedFd, domains: &Domains) {
    let mut events = Vec::with_capacity(16);
    loop {
        events.clear();
        match epoll::wait(epoll, rustix::buffer::spare_capacity(&mut events), None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
        if events.iter().any(|event| event.data.u64() == END) {
            return;
        }
        domain::wake(&domains.home().page().doorbell);
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.end, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

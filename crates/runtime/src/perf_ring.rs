//! The perf ring of one CPU, as the runtime keeps it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

use beeline_maps::perf;
use beeline_uapi::Errno;
use beeline_uapi::perf::mmap_page::{DATA_HEAD, DATA_TAIL};
use parking_lot::{Mutex, MutexGuard};

use crate::backend::Id;
use crate::budget::{Budget, Charge};
use crate::liveness::SessionId;
use crate::memory::Memory;
use crate::notifier::{Source, wakeup_fd};

/// The tool is woken for every record, as the tools ask for.
const WAKEUP_EVENTS: u32 = 1;

/// A ring in a file of its own.
#[derive(Debug)]
pub struct Ring {
    /// Its id, also that of its event in lost records.
    pub id: Id,
    /// Its CPU.
    pub cpu: u32,
    memory: Mutex<Memory>,
    charge: Mutex<Charge>,
    pages: AtomicU32,
    sized: AtomicBool,
    enabled: AtomicBool,
    wakeup: OwnedFd,
    seen: AtomicU64,
}

impl Ring {
    /// Creates a ring of one page. The tool says how many it wants when it maps it.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if the budget has no room for it, and those of [`Memory::new`] and of `eventfd(2)`.
    pub fn new(id: Id, cpu: u32, budget: &Budget) -> Result<Self, Errno> {
        let charge = budget.charge(bytes_of(file_len(1)?))?;
        let name = SessionId::own().name(&format!("ring-{cpu}"));
        let memory = Memory::new(&name, file_len(1)?).map_err(failed)?;
        let ring = Self {
            id,
            cpu,
            memory: Mutex::new(memory),
            charge: Mutex::new(charge),
            pages: AtomicU32::new(1),
            sized: AtomicBool::new(false),
            enabled: AtomicBool::new(false),
            wakeup: wakeup_fd().map_err(failed)?,
            seen: AtomicU64::new(0),
        };
        ring.set_up(&ring.memory(), 1);
        Ok(ring)
    }

    /// Gives it `pages` data pages, because the tool is about to map it.
    ///
    /// Nothing maps it before. From then on its size is fixed, and another size is `EINVAL`, as in
    /// the kernel.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a number of pages that is not a power of two, or that differs from the one that
    /// is fixed; `ENOMEM` if there may not be so many or the budget has no room for them; those of
    /// [`Memory::resize`].
    pub fn resize(&self, pages: u32) -> Result<(), Errno> {
        let len = file_len(pages)?;
        let mut memory = self.memory();
        if self.is_sized() {
            return if pages == self.pages() {
                Ok(())
            } else {
                Err(Errno(libc::EINVAL))
            };
        }
        let mut charge = self.charge.lock();
        charge.resize(bytes_of(len))?;
        memory.resize(len).map_err(failed)?;
        self.pages.store(pages, Relaxed);
        self.set_up(&memory, pages);
        self.sized.store(true, SeqCst);
        Ok(())
    }

    /// True if the tool has chosen its size.
    pub fn is_sized(&self) -> bool {
        self.sized.load(SeqCst)
    }

    /// `PERF_EVENT_IOC_ENABLE` and `DISABLE`.
    pub fn enable(&self, on: bool) {
        self.enabled.store(on, Relaxed);
        if let Some(ring) = self.handle(&self.memory()) {
            ring.enable(on);
        }
    }

    /// Returns the number of data pages.
    pub fn pages(&self) -> u32 {
        self.pages.load(Relaxed)
    }

    /// Returns the size of the file in bytes.
    pub fn len(&self) -> usize {
        self.memory().len()
    }

    /// Returns the address where it is mapped in Beeline.
    pub fn here(&self) -> u64 {
        self.memory().base() as u64
    }

    /// Returns another descriptor of the file.
    ///
    /// # Errors
    ///
    /// Those of `fcntl(2)`, by which the descriptor is duplicated: `EMFILE` if Beeline may have no
    /// more files open.
    pub fn share(&self) -> io::Result<OwnedFd> {
        self.memory().share()
    }

    /// True if it has something to read.
    pub fn is_readable(&self) -> bool {
        let memory = self.memory();
        position(&memory, DATA_HEAD) != position(&memory, DATA_TAIL)
    }

    /// Frees what dead processes held.
    pub fn release(&self, dead: &dyn Fn(u32) -> bool) {
        if let Some(ring) = self.handle(&self.memory()) {
            ring.release(dead);
        }
    }

    fn set_up(&self, memory: &Memory, pages: u32) {
        // SAFETY: the file has room for this many pages, and is mapped at the memory's base.
        if let Ok(ring) = unsafe { perf::Ring::attach(pages, memory.base()) } {
            ring.init(self.id.0.into(), WAKEUP_EVENTS);
            ring.enable(self.enabled.load(Relaxed));
        }
    }

    fn handle(&self, memory: &Memory) -> Option<perf::Ring> {
        // SAFETY: the file has room for this many pages, and is mapped at the memory's base.
        // Callers hold the lock, so the memory stays.
        unsafe { perf::Ring::attach(self.pages(), memory.base()) }.ok()
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock()
    }
}

impl Source for Ring {
    fn news(&self) -> bool {
        let head = position(&self.memory(), DATA_HEAD);
        self.seen.swap(head, Relaxed) != head
    }

    fn wakeup(&self) -> &OwnedFd {
        &self.wakeup
    }
}

/// Returns one of the two positions in the control page.
fn position(memory: &Memory, at: usize) -> u64 {
    // SAFETY: the word is inside the control page, aligned, and only ever accessed atomically.
    unsafe { &*memory.base().add(at).cast::<AtomicU64>() }.load(Relaxed)
}

fn file_len(pages: u32) -> Result<usize, Errno> {
    perf::Ring::file_len(pages).map(|len| len as usize)
}

/// Returns the bytes that a ring takes, with the objects that stand for it and its files.
fn bytes_of(file_len: usize) -> u64 {
    const ITSELF: u64 = 8 << 10;
    ITSELF + file_len as u64
}

fn failed(error: io::Error) -> Errno {
    Errno(error.raw_os_error().unwrap_or(libc::ENOMEM))
}

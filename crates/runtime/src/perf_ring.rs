//! The perf ring of one CPU, as the runtime keeps it.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

use beeline_maps::perf;
use beeline_uapi::Errno;
use beeline_uapi::perf::mmap_page::{DATA_HEAD, DATA_TAIL};
use parking_lot::{Mutex, MutexGuard};

use crate::backend::Id;
use crate::budget::{Budget, Charge};
use crate::domain::{Domain, DomainId};
use crate::host_kernel::rings::KernelRing;
use crate::liveness::SessionId;
use crate::memory::Memory;
use crate::notifier::{Source, wakeup_fd};
use crate::relay::Relay;

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
    budget: Budget,
    pages: AtomicU32,
    sized: AtomicBool,
    enabled: AtomicBool,
    paused: AtomicBool,
    wakeup: OwnedFd,
    seen: AtomicU64,
    /// Where processes write that must not write into `memory`. Used under its lock: the ring that
    /// they are relayed to may move until its size is fixed.
    relay: Relay<perf::Ring>,
}

impl Ring {
    /// Creates a ring of one page. The tool says how many it wants when it maps it.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if the budget has no room for it, and those of [`Memory::new`] and of `eventfd(2)`.
    pub fn new(id: Id, cpu: u32, budget: &Budget) -> Result<Self, Errno> {
        let charge = budget.charge(bytes_of(file_len(1)?))?;
        let memory = Memory::new(&file_name(cpu), file_len(1)?).map_err(failed)?;
        let ring = Self {
            id,
            cpu,
            memory: Mutex::new(memory),
            charge: Mutex::new(charge),
            budget: budget.clone(),
            pages: AtomicU32::new(1),
            sized: AtomicBool::new(false),
            enabled: AtomicBool::new(false),
            paused: AtomicBool::new(false),
            wakeup: wakeup_fd().map_err(failed)?,
            seen: AtomicU64::new(0),
            relay: Relay::default(),
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
    /// [`Memory::resize`] and [`Memory::seal_size`].
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
        // The processes that map it could else take it away under each other.
        memory.seal_size().map_err(failed)?;
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
        let memory = self.memory();
        self.enabled.store(on, Relaxed);
        if let Some(ring) = self.handle(&memory) {
            ring.enable(on);
        }
        self.relay.each(|source| source.enable(on));
    }

    /// `PERF_EVENT_IOC_PAUSE_OUTPUT`.
    pub fn pause(&self, on: bool) {
        let memory = self.memory();
        self.paused.store(on, Relaxed);
        if let Some(ring) = self.handle(&memory) {
            ring.pause(on);
        }
        self.relay.each(|source| source.pause(on));
    }

    /// Returns a descriptor of the memory that a domain's processes write into, which has
    /// [`Self::len`] bytes.
    ///
    /// # Errors
    ///
    /// Those of [`Self::share`] and [`Self::source_of`].
    pub fn share_with(&self, domain: &Domain) -> io::Result<OwnedFd> {
        if domain.id.of_page() == DomainId::HOME {
            return self.share();
        }
        let source = self.source_of(domain);
        let source = source.map_err(|errno| io::Error::from_raw_os_error(errno.0))?;
        source.share()
    }

    /// Returns what another domain than the tool's own writes into, which comes out of this ring.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the tool has not chosen the ring's size, `ENOMEM` if the budget has no room; those
    /// of [`Memory::new`] and [`Relay::source_of`].
    pub fn source_of(&self, domain: &Domain) -> Result<Arc<Memory>, Errno> {
        let memory = self.memory();
        let ring = self.handle(&memory).filter(|_| self.is_sized());
        let ring = ring.ok_or(Errno::EINVAL)?;
        let make = || {
            let charge = self.budget.charge(bytes_of(memory.len()))?;
            let source = Memory::new(&file_name(self.cpu), memory.len()).map_err(failed)?;
            self.set_up(&source, self.pages());
            Ok((source, charge))
        };
        self.relay.source_of(domain, &ring, make)
    }

    /// Returns what programs in the kernel write into, which comes out of this ring. If it is new,
    /// `watch` gets its perf event.
    ///
    /// # Errors
    ///
    /// Those of [`KernelRing::of_cpu`] and `watch`.
    pub fn source_in_kernel(
        &self,
        watch: impl FnOnce(BorrowedFd<'_>) -> io::Result<()>,
    ) -> io::Result<Arc<KernelRing>> {
        let memory = self.memory();
        let ring = self.handle(&memory).ok_or(io::ErrorKind::InvalidInput)?;
        let make = || {
            let source = KernelRing::of_cpu(self.cpu, self.pages())?;
            source.event().map_or(Ok(()), watch)?;
            Ok(source)
        };
        self.relay.source_in_kernel(&ring, make)
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
        position(&memory, DATA_HEAD) != position(&memory, DATA_TAIL) || self.relay.is_readable()
    }

    /// Frees what dead processes held.
    pub fn release(&self, dead: &dyn Fn(u32) -> bool) {
        if let Some(ring) = self.handle(&self.memory()) {
            ring.release(dead);
        }
        self.relay.each(|source| source.release(dead));
    }

    /// Removes the source of a domain that has no processes any more.
    pub fn retire(&self, domain: DomainId) {
        let memory = self.memory();
        if let Some(ring) = self.handle(&memory) {
            self.relay.retire(domain, &ring);
        }
    }

    fn set_up(&self, memory: &Memory, pages: u32) {
        // SAFETY: the file has room for this many pages, and is mapped at the memory's base.
        if let Ok(ring) = unsafe { perf::Ring::attach(pages, memory.base()) } {
            ring.init(self.id.0.into(), WAKEUP_EVENTS);
            ring.enable(self.enabled.load(Relaxed));
            ring.pause(self.paused.load(Relaxed));
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
        let memory = self.memory();
        let relayed = self.handle(&memory).map(|ring| self.relay.run(&ring));
        let head = position(&memory, DATA_HEAD);
        // With more to relay the notifier must not sleep.
        self.seen.swap(head, Relaxed) != head || relayed.is_some_and(|done| done.more)
    }

    fn wakeup(&self) -> &OwnedFd {
        &self.wakeup
    }
}

fn file_name(cpu: u32) -> String {
    SessionId::own().name(&format!("ring-{cpu}"))
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

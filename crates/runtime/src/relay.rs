//! The sources of a tool's ring: rings of the same shape, in memory of their own, for processes
//! that must not write into the memory that the tool maps.
//!
//! All processes of one *security domain* share a source, and nobody else maps it but this process.
//! [`Relay::run`] carries what they have published into the tool's ring. The notifier's thread
//! calls it whenever it looks for news of that ring. `beeline_maps::relay` says what is carried,
//! and in which order.
//!
//! A domain whose source holds nonsense is cut off: the source is not read any more, and the
//! domain's [`CutOff`] is told. Records that its honest processes have published before are in the
//! tool's ring by then.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use beeline_maps::relay::{Broken, Outcome, Relayed, State};
use beeline_maps::{Caller, Map, perf};
use beeline_uapi::Errno;
use parking_lot::Mutex;

use crate::budget::Charge;
use crate::domain::{Domain, DomainId};
use crate::host_kernel::rings::KernelRing;
use crate::map::MapObject;
use crate::memory::Memory;

/// The turns of each source in one run. A source that has published more than that goes on at the
/// next run.
const TURNS: usize = 64;

/// The receiver of the news that a domain was cut off, with the reason, in words.
///
/// It is called on the thread that relays, which may hold the lock of the tool's ring and that of
/// the notifier's list: it must only take a note.
pub type CutOff = Arc<dyn Fn(&str) + Send + Sync>;

/// A ring that has sources.
pub trait Shape: Relayed + Send {
    /// Returns the bytes of memory that it lies in.
    fn file_len(&self) -> usize;
}

impl Shape for Map {
    fn file_len(&self) -> usize {
        self.layout().len as usize
    }
}

impl Shape for perf::Ring {
    fn file_len(&self) -> usize {
        self.mapped_len() as usize
    }
}

/// The sources of one ring of a tool's: a ring buffer or a perf ring.
pub struct Relay<R> {
    state: Mutex<Sources<R>>,
    /// Their number, for those who look without the lock.
    count: AtomicUsize,
    /// Held while a source is made.
    making: Mutex<()>,
}

struct Sources<R> {
    all: Vec<Source<R>>,
    /// The number of runs so far.
    runs: usize,
}

struct Source<R> {
    domain: DomainId,
    ring: R,
    state: State,
    /// Taken when it is told.
    cut_off: Option<CutOff>,
    /// Once set, nothing is read from the ring any more. The source stays, so that the domain does
    /// not get a new one.
    broken: Option<Broken>,
    /// Where the ring lies.
    place: Place,
}

/// The memory that a source lies in.
#[derive(Clone)]
enum Place {
    /// A file of Beeline's.
    Own(
        Arc<Memory>,
        #[expect(dead_code, reason = "held")] Arc<Charge>,
    ),
    /// The kernel's memory.
    Kernels(Arc<KernelRing>),
}

impl<R> Default for Relay<R> {
    fn default() -> Self {
        let state = Sources {
            all: Vec::new(),
            runs: 0,
        };
        Self {
            state: Mutex::new(state),
            count: AtomicUsize::new(0),
            making: Mutex::default(),
        }
    }
}

impl<R> fmt::Debug for Relay<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relay")
            .field("sources", &self.count)
            .finish_non_exhaustive()
    }
}

impl<R: Shape> Relay<R> {
    /// Returns a domain's source. If there is none, `make` makes it: fresh memory, in which a ring
    /// like `tools` begins.
    ///
    /// # Errors
    ///
    /// Those of `make`, and of [`Self::add`].
    pub fn source_of(
        &self,
        domain: &Domain,
        tools: &R,
        make: impl FnOnce() -> Result<(Memory, Charge), Errno>,
    ) -> Result<Arc<Memory>, Errno> {
        let _one = self.making.lock();
        let known = |source: &Source<R>| match &source.place {
            Place::Own(memory, _) if source.domain == domain.id => Some(memory.clone()),
            _ => None,
        };
        if let Some(known) = self.state.lock().all.iter().find_map(known) {
            return Ok(known);
        }
        let (memory, charge) = make()?;
        let memory = Arc::new(memory);
        let place = (memory.clone(), charge);
        self.add(domain.id, place, tools, domain.cut_off())?;
        Ok(memory)
    }

    /// Returns the source that the kernel's programs write. If there is none, `make` makes it.
    ///
    /// # Errors
    ///
    /// Those of `make`.
    pub fn source_in_kernel(
        &self,
        tools: &R,
        make: impl FnOnce() -> io::Result<KernelRing>,
    ) -> io::Result<Arc<KernelRing>> {
        let _one = self.making.lock();
        let known = |source: &Source<R>| match &source.place {
            Place::Kernels(ring) => Some(ring.clone()),
            Place::Own(..) => None,
        };
        if let Some(known) = self.state.lock().all.iter().find_map(known) {
            return Ok(known);
        }
        let memory = Arc::new(make()?);
        // SAFETY: the memory is mapped shared for the ring's length and laid out as it, and the source
        // keeps it as long as the ring. A source is written only at the consumer's position.
        let ring = unsafe { tools.rebased(memory.base()) };
        let place = Place::Kernels(memory.clone());
        let cut_off = |why: &str| tracing::error!(why, "a ring of the kernel's cannot be read");
        self.push(DomainId::KERNEL, ring, place, Arc::new(cut_off));
        Ok(memory)
    }

    /// Adds a domain's source: fresh memory, in which a ring like `tools` begins.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the memory is too small for such a ring; those of [`Memory::keep_size`]: without
    /// a fixed size another process could take the memory away under this one.
    fn add(
        &self,
        domain: DomainId,
        (memory, charge): (Arc<Memory>, Charge),
        tools: &R,
        cut_off: CutOff,
    ) -> Result<(), Errno> {
        if memory.len() < tools.file_len() {
            return Err(Errno::EINVAL);
        }
        memory
            .keep_size()
            .map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EPERM)))?;
        // SAFETY: the memory is mapped shared, readable and writable, for the ring's length, and
        // the source keeps it as long as the ring.
        let ring = unsafe { tools.rebased(memory.base()) };
        self.push(domain, ring, Place::Own(memory, Arc::new(charge)), cut_off);
        Ok(())
    }

    fn push(&self, domain: DomainId, ring: R, place: Place, cut_off: CutOff) {
        let mut sources = self.state.lock();
        sources.all.push(Source {
            domain,
            ring,
            state: State::default(),
            cut_off: Some(cut_off),
            broken: None,
            place,
        });
        self.count.store(sources.all.len(), SeqCst);
    }

    /// Removes the source of a domain that has no processes any more, after what it holds was
    /// carried into the tool's ring.
    pub fn retire(&self, domain: DomainId, to: &R) {
        /// The most runs for that. Each source has a turn in every one.
        const MOST: usize = 1000;
        if self.is_empty() {
            return;
        }
        for _ in 0..MOST {
            let sources = self.state.lock();
            let mut all = sources.all.iter();
            let holds_more = all.any(|source| source.domain == domain && source.is_readable());
            drop(sources);
            if !holds_more {
                break;
            }
            self.run(to);
        }
        let mut sources = self.state.lock();
        sources.all.retain(|source| source.domain != domain);
        self.count.store(sources.all.len(), SeqCst);
    }

    /// True if there are no sources: the tool's ring is written only by those who may map it.
    pub fn is_empty(&self) -> bool {
        self.count.load(SeqCst) == 0
    }

    /// True if a run has something to do.
    pub fn is_readable(&self) -> bool {
        !self.is_empty() && self.state.lock().all.iter().any(Source::is_readable)
    }

    /// Calls `each` with every source, for example to free what dead processes held.
    pub fn each(&self, mut each: impl FnMut(&R)) {
        if self.is_empty() {
            return;
        }
        for source in &self.state.lock().all {
            each(&source.ring);
        }
    }

    /// Carries what all sources had published at the beginning into the tool's ring.
    ///
    /// The sources take turns, a small share of each after the other, and another one begins each
    /// time. So a domain with much to say leaves the others their part of the room in the tool's
    /// ring. The outcome says in `more` that something is readable at the end: call it again before
    /// sleeping.
    pub fn run(&self, to: &R) -> Outcome {
        if self.is_empty() {
            return Outcome::default();
        }
        let mut sources = self.state.lock();
        let outcome = sources.run(to);
        let news: Vec<_> = sources
            .all
            .iter_mut()
            .filter_map(Source::take_news)
            .collect();
        drop(sources);
        for (cut_off, broken) in news {
            cut_off(broken.why());
        }
        outcome
    }
}

impl<R: Shape> Sources<R> {
    fn run(&mut self, to: &R) -> Outcome {
        let mut outcome = Outcome::default();
        if self.all.is_empty() {
            return outcome;
        }
        let first = self.runs % self.all.len();
        self.runs = self.runs.wrapping_add(1);
        // All looks come before the first record: the order between sources is that of these looks.
        self.all.iter_mut().for_each(Source::look);
        let caller = MapObject::caller();
        for _ in 0..TURNS {
            let (before, after) = self.all.split_at_mut(first);
            let mut goes_on = false;
            for source in after.iter_mut().chain(before) {
                let part = source.relay(to, &caller);
                outcome.relayed += part.relayed;
                outcome.dropped += part.dropped;
                goes_on |= part.more;
            }
            if !goes_on {
                break;
            }
        }
        outcome.more = self.all.iter().any(Source::is_readable);
        outcome
    }
}

impl<R: Shape> Source<R> {
    fn look(&mut self) {
        if self.broken.is_none() {
            self.broken = self.ring.look(&mut self.state).err();
        }
    }

    /// Returns the reason for which it was cut off, once, and the receiver of it.
    fn take_news(&mut self) -> Option<(CutOff, Broken)> {
        let broken = self.broken?;
        Some((self.cut_off.take()?, broken))
    }

    fn relay(&mut self, to: &R, caller: &Caller) -> Outcome {
        if self.broken.is_some() {
            return Outcome::default();
        }
        let done = self.ring.relay(&mut self.state, to, caller);
        done.unwrap_or_else(|broken| {
            self.broken = Some(broken);
            Outcome::default()
        })
    }

    fn is_readable(&self) -> bool {
        self.broken.is_none() && self.ring.readable(&self.state)
    }
}

#[cfg(test)]
mod tests;

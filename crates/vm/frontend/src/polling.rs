//! Wakes a tool for records in the guest's own pages without waiting for the guest's message.
//!
//! The message takes long: the proxy has to be woken in the guest, as the tool would be there, and
//! then speaks through the channel. But one record is often followed by another. So for a moment
//! after each record, the rings that a tool waits for are polled from here, ever less often. The
//! guest's messages remain the reliable source: a look that comes too early, or not at all, costs
//! time and loses nothing.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use beeline_uapi::flags::RINGBUF_BUSY_BIT;
use parking_lot::Mutex;

use crate::memory::{Memory, RING_HEAD, Shape};
use crate::rings::All;
use crate::sharing::part;

/// The fraction of the time since the last record that passes until the next look.
const PART: u32 = 32;
const SHORTEST: Duration = Duration::from_micros(100);
const LONGEST: Duration = Duration::from_micros(200);
/// If there is more than one record in this time in the long run, the guest's message comes as
/// soon, and for many at once.
const EACH: Duration = Duration::from_millis(1);
/// The number of wake-ups that may follow each other at once.
const BURST: u32 = 20;
/// After this time without a record, the guest's message is waited for: each look takes some 10 us
/// of a CPU.
const QUIET: Duration = Duration::from_millis(20);
/// The number of times that a tool is woken without the guest's message. After that, programs that
/// keep it asleep on purpose (`BPF_RB_NO_WAKEUP`) are left alone.
const UNCONFIRMED: u32 = 64;

/// The state of a tool that sleeps until there is something to read.
#[derive(Debug)]
pub(super) struct Sleeper {
    /// True if it is woken for each record, and not for many at once.
    pub(super) is_told_of_each: bool,
    /// The consumer's position at the last wake-up.
    woken_at: AtomicU64,
    /// The number of wake-ups since the guest last asked for one.
    unconfirmed: AtomicU32,
    /// The time that its wake-ups take up, at [`EACH`] a record.
    taken_until: Mutex<Option<Instant>>,
}

impl Sleeper {
    /// Returns whether it may be woken once more, and counts that.
    fn may_be_woken(&self, now: Instant) -> bool {
        let mut taken = self.taken_until.lock();
        let until = taken.map_or(now, |until| until.max(now));
        if until > now + BURST * EACH {
            return false;
        }
        *taken = Some(until + EACH);
        true
    }
}

impl Default for Sleeper {
    fn default() -> Self {
        Self {
            is_told_of_each: false,
            woken_at: AtomicU64::new(u64::MAX),
            unconfirmed: AtomicU32::new(0),
            taken_until: Mutex::new(None),
        }
    }
}

/// Wakes threads that sleep for rings, for a while after each record. Returns when no sender of
/// `news` is left.
pub(super) fn poll(all: &All, news: &Receiver<()>) {
    // Otherwise each pause is 50 us longer; if this is refused, it stays so.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    while news.recv().is_ok() {
        let mut last = Instant::now();
        while last.elapsed() < QUIET {
            let mut woken = false;
            for memory in all.living() {
                woken |= memory.wake_for_news(Instant::now());
            }
            if woken {
                last = Instant::now();
            }
            std::thread::sleep((last.elapsed() / PART).clamp(SHORTEST, LONGEST));
        }
    }
}

impl Memory {
    /// Handles the guest's message that there is something to read.
    pub(super) fn hear_of_news(&self) {
        self.sleeper.unconfirmed.store(0, Ordering::Relaxed);
        let (consumed, written) = self.positions();
        let has_been_read = self.shared.is_some()
            && matches!(self.shape, Shape::Ring { .. })
            && consumed == written;
        if !has_been_read {
            self.wake();
        }
    }

    /// Wakes the reader if there is a record that it has not been woken for, and returns whether
    /// there was.
    fn wake_for_news(&self, now: Instant) -> bool {
        let sleeper = &self.sleeper;
        if !sleeper.is_told_of_each || sleeper.unconfirmed.load(Ordering::Relaxed) >= UNCONFIRMED {
            return false;
        }
        let (consumed, written) = self.positions();
        // Everything up to the producer's position is read at once, if it is committed.
        if written <= consumed || sleeper.woken_at.load(Ordering::Relaxed) == consumed {
            return false;
        }
        if self.is_busy(consumed) || !sleeper.may_be_woken(now) {
            return false;
        }
        sleeper.woken_at.store(consumed, Ordering::Relaxed);
        sleeper.unconfirmed.fetch_add(1, Ordering::Relaxed);
        self.wake();
        true
    }

    /// Returns whether the record at a position is still being written. The position of a perf ring
    /// moves behind a record only when it is complete.
    fn is_busy(&self, position: u64) -> bool {
        let (Shape::Ring { data }, Some(places)) = (self.shape, &self.shared) else {
            return false;
        };
        let at = RING_HEAD as u64 + position % data as u64 / 8 * 8;
        let mut header = [0; 4];
        let read = part(places, at, 4)
            .first()
            .map(|place| rustix::io::pread(place.file(false), &mut header, place.offset));
        !matches!(read, Some(Ok(4))) || u32::from_ne_bytes(header) & RINGBUF_BUSY_BIT != 0
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use beeline_vm_memory::{GuestMemory, Part};
    use rustix::event::{PollFd, PollFlags, Timespec};

    use super::*;
    use crate::memory::PAGE;

    const DATA: usize = PAGE;

    /// Returns a ring buffer with the pages of a memory file, and that file.
    fn ring(is_told_of_each: bool) -> (Memory, std::fs::File) {
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let file = rustix::fs::memfd_create("beeline-test", flags).unwrap();
        let len = (RING_HEAD + DATA) as u64;
        rustix::fs::ftruncate(&file, len).unwrap();
        let part = Part {
            path: format!("/proc/self/fd/{}", file.as_raw_fd()).into(),
            address: None,
            len: None,
            offset: 0,
        };
        let pages = GuestMemory::of_parts(&[part]).unwrap();
        let places = pages.places([(0, len / PAGE as u64)]).unwrap();
        let mut memory = Memory::new(1, Shape::Ring { data: DATA }).unwrap();
        memory.share(places).unwrap();
        memory.sleeper.is_told_of_each = is_told_of_each;
        (memory, file.into())
    }

    fn put(file: &std::fs::File, at: usize, bytes: &[u8]) {
        std::os::unix::fs::FileExt::write_all_at(file, bytes, at as u64).unwrap();
    }

    fn produce(file: &std::fs::File, position: u64, header: u32) {
        put(
            file,
            RING_HEAD + position as usize % DATA,
            &header.to_ne_bytes(),
        );
        put(file, PAGE, &(position + 16).to_ne_bytes());
    }

    fn consume(file: &std::fs::File, position: u64) {
        put(file, 0, &position.to_ne_bytes());
    }

    fn is_woken(memory: &Memory) -> bool {
        let mut ready = [PollFd::new(&memory.wakeup, PollFlags::IN)];
        rustix::event::poll(&mut ready, Some(&Timespec::default())).unwrap();
        let woken = ready[0].revents().contains(PollFlags::IN);
        if woken {
            rustix::io::read(&memory.wakeup, &mut [0; 8]).unwrap();
        }
        woken
    }

    #[test]
    fn a_sleeper_is_woken_once_for_each_record_that_it_finds() {
        let (memory, file) = ring(true);
        assert!(!memory.wake_for_news(Instant::now()) && !is_woken(&memory));
        produce(&file, 0, 8 | RINGBUF_BUSY_BIT);
        assert!(!memory.wake_for_news(Instant::now()), "it is not committed");
        produce(&file, 0, 8);
        assert!(memory.wake_for_news(Instant::now()) && is_woken(&memory));
        assert!(
            !memory.wake_for_news(Instant::now()),
            "it knows of that one"
        );
        // The next record begins before the first was read, and ends after.
        produce(&file, 16, 8 | RINGBUF_BUSY_BIT);
        consume(&file, 16);
        assert!(!memory.wake_for_news(Instant::now()));
        produce(&file, 16, 8);
        assert!(memory.wake_for_news(Instant::now()) && is_woken(&memory));
        consume(&file, 32);
        assert!(!memory.wake_for_news(Instant::now()), "all has been read");
    }

    #[test]
    fn a_sleeper_whose_programs_do_not_wake_it_is_left_alone() {
        let (memory, file) = ring(true);
        let (mut position, mut now) = (0, Instant::now());
        let mut next = |memory: &Memory| {
            produce(&file, position, 8);
            now += EACH;
            let woken = memory.wake_for_news(now);
            position += 16;
            consume(&file, position);
            woken
        };
        let woken = (0..2 * UNCONFIRMED).filter(|_| next(&memory));
        assert_eq!(woken.count(), UNCONFIRMED as usize);
        memory.hear_of_news();
        assert!(next(&memory), "they do");
        let (other, file) = ring(false);
        produce(&file, 0, 8);
        assert!(
            !other.wake_for_news(Instant::now()),
            "it is woken for many at once"
        );
    }

    #[test]
    fn a_flood_is_left_to_the_guests_word() {
        let (memory, file) = ring(true);
        let mut position = 0;
        let mut next = |now| {
            produce(&file, position, 8);
            let woken = memory.wake_for_news(now);
            position += 16;
            consume(&file, position);
            u32::from(woken)
        };
        let begin = Instant::now();
        let at_once: u32 = (0..10 * BURST).map(|_| next(begin)).sum();
        assert_eq!(at_once, BURST + 1);
        let later: u32 = (1..20).map(|count| next(begin + count * EACH)).sum();
        assert_eq!(later, 19, "as many as time passes for");
    }

    #[test]
    fn the_guests_word_wakes_for_what_has_not_been_read() {
        let (memory, file) = ring(true);
        produce(&file, 0, 8);
        memory.hear_of_news();
        assert!(is_woken(&memory));
        consume(&file, 16);
        memory.hear_of_news();
        assert!(!is_woken(&memory));
    }
}

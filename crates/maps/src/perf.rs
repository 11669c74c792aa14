//! The perf ring of one CPU, as a tool gets it from `perf_event_open` and `mmap`, in a memory file
//! of its own: a control page (`struct perf_event_mmap_page`, `linux/perf_event.h`) and a power of
//! two of data pages.
//!
//! Records are `PERF_RECORD_SAMPLE` with `PERF_SAMPLE_RAW` alone, and `PERF_RECORD_LOST`. A record
//! is written first, then the head moves past it, in one store, so a consumer never sees half a
//! record, whichever process dies. The tool can write all of it: positions are masked, never
//! trusted.

mod relay;

use core::mem::offset_of;
use core::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use beeline_uapi::Errno;
use beeline_uapi::perf::{
    PERF_RECORD_LOST, PERF_RECORD_MISC_USER, PERF_RECORD_SAMPLE, PerfEventHeader, PerfRecordLost,
    mmap_page,
};

use crate::{Caller, arch, layout::PAGE, lock, words};

// Offsets in the control page.
const DATA_HEAD: u64 = mmap_page::DATA_HEAD as u64;
const DATA_TAIL: u64 = mmap_page::DATA_TAIL as u64;
const DATA_OFFSET: u64 = mmap_page::DATA_OFFSET as u64;
const DATA_SIZE: u64 = mmap_page::DATA_SIZE as u64;
// Beeline's, in the part of the page that the kernel leaves unused.
const LOCK: u64 = 2048;
const STATE: u64 = 2052;
const WAKEUP_EVENTS: u64 = 2056;
const EVENTS: u64 = 2060;
const ID: u64 = 2064;
const LOST_PENDING: u64 = 2072;
const LOST_TOTAL: u64 = 2080;
const WAKEUP_HEAD: u64 = 2088;

// The bits of its state.
const STATE_ENABLED: u32 = 1;
const STATE_PAUSED: u32 = 2;

// Words that begin a record, without the size.
const RECORD_LOST: u64 = PERF_RECORD_LOST as u64;
/// The program ran on behalf of user-space code.
const RECORD_SAMPLE: u64 = PERF_RECORD_SAMPLE as u64 | (PERF_RECORD_MISC_USER as u64) << MISC_BIT;
const MISC_BIT: usize = 8 * offset_of!(PerfEventHeader, misc);
const SIZE_BIT: usize = 8 * offset_of!(PerfEventHeader, size);
const LOST_LEN: u64 = size_of::<PerfRecordLost>() as u64;

/// A perf ring as one process has mapped it: plain data, like [`crate::Map`].
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Ring {
    base: *mut u8,
    /// Bytes of data; a power of two.
    size: u64,
}

// SAFETY: the memory behind `base` is shared between processes, so all access to it is by atomic
// words.
unsafe impl Send for Ring {}
// SAFETY: the memory behind `base` is shared between processes, so all access to it is by atomic
// words.
unsafe impl Sync for Ring {}

impl Ring {
    /// Returns the size in bytes of the file of a ring with that many data pages.
    ///
    /// # Errors
    ///
    /// `EINVAL` if `pages` is not a power of two, `ENOMEM` above 4 GiB.
    pub fn file_len(pages: u32) -> Result<u64, Errno> {
        if !pages.is_power_of_two() {
            return Err(Errno::EINVAL);
        }
        if pages > 1 << 20 {
            Err(Errno::ENOMEM)
        } else {
            Ok((u64::from(pages) + 1) * PAGE)
        }
    }

    /// Creates a handle on the ring with `pages` data pages and its file mapped at `base`.
    ///
    /// # Errors
    ///
    /// Those of [`Ring::file_len`].
    ///
    /// # Safety
    ///
    /// For as long as the handle or a copy of it is used the file is mapped shared, readable and
    /// writable, at `base`, a page's start, for [`Ring::file_len`] bytes. A handle for another
    /// address space is only used there.
    pub unsafe fn attach(pages: u32, base: *mut u8) -> Result<Self, Errno> {
        Ok(Self {
            base,
            size: Self::file_len(pages)? - PAGE,
        })
    }

    /// The same ring in memory that is mapped at `base`.
    ///
    /// # Safety
    ///
    /// As for [`Ring::attach`].
    pub unsafe fn rebased(&self, base: *mut u8) -> Self {
        Self { base, ..*self }
    }

    /// Returns the bytes that are mapped: the control page and the data.
    pub fn mapped_len(&self) -> u64 {
        PAGE.wrapping_add(self.size)
    }

    /// Returns the handle as bytes, to be copied to an 8-aligned place in another process.
    pub fn as_bytes(&self) -> &[u8; size_of::<Ring>()] {
        const { assert!(size_of::<Ring>() == 16) };
        // SAFETY: the structure is plain data without padding.
        unsafe { &*core::ptr::from_ref(self).cast() }
    }

    /// Fills in the control page of a fresh, zeroed file. `id` is that of the event, for lost
    /// records; the tool is woken after every `wakeup_events` samples (0: only when the ring is
    /// half full). The ring is not enabled.
    pub fn init(&self, id: u64, wakeup_events: u32) {
        self.word(DATA_OFFSET).store(PAGE, Relaxed);
        self.word(DATA_SIZE).store(self.size, Relaxed);
        self.word(ID).store(id, Relaxed);
        self.half(WAKEUP_EVENTS).store(wakeup_events, Release);
    }

    /// `PERF_EVENT_IOC_ENABLE` and `DISABLE`.
    pub fn enable(&self, on: bool) {
        self.set_state(STATE_ENABLED, on);
    }

    /// `PERF_EVENT_IOC_PAUSE_OUTPUT`: while it is paused, samples count as lost.
    pub fn pause(&self, on: bool) {
        self.set_state(STATE_PAUSED, on);
    }

    fn set_state(&self, bit: u32, on: bool) {
        match on {
            true => self.half(STATE).fetch_or(bit, AcqRel),
            false => self.half(STATE).fetch_and(!bit, AcqRel),
        };
    }

    /// `bpf_perf_event_output`: writes a sample with `data`, padded as the kernel pads it. Returns
    /// whether the tool must be woken.
    ///
    /// # Errors
    ///
    /// `ENOSPC`, counted, when there is no room; `E2BIG` for more than a record can hold (64 KiB);
    /// `EOPNOTSUPP` when the ring is not enabled; `EBUSY` if another holds the ring for too long.
    pub fn output(&self, data: &[u8], caller: &Caller) -> Result<bool, Errno> {
        let raw = (data.len() as u64).wrapping_add(4 + 7) & !7;
        let len = raw.wrapping_add(8);
        if data.len() > u16::MAX as usize || len > u16::MAX.into() {
            return Err(Errno::E2BIG);
        }
        self.sample(len, caller, |head| self.put_raw(head, data, raw - 4))
    }

    /// Writes a sample of `len` bytes, of which `body` writes those behind the header, at a
    /// position that it gets. It returns the position behind them.
    #[inline]
    fn sample(
        &self,
        len: u64,
        caller: &Caller,
        body: impl FnOnce(u64) -> u64,
    ) -> Result<bool, Errno> {
        let state = self.half(STATE).load(Acquire);
        if state & STATE_ENABLED == 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let _guard = lock::acquire(self.half(LOCK), caller)?;
        let mut head = self.word(DATA_HEAD).load(Relaxed) & !7;
        let lost = self.word(LOST_PENDING).load(Relaxed);
        let need = if lost == 0 { len } else { len + LOST_LEN };
        if need > self.room(head) || state & STATE_PAUSED != 0 {
            self.word(LOST_PENDING).store(lost.wrapping_add(1), Relaxed);
            self.word(LOST_TOTAL).fetch_add(1, Relaxed);
            return Err(Errno::ENOSPC);
        }
        if lost != 0 {
            for word in [
                RECORD_LOST | LOST_LEN << SIZE_BIT,
                self.word(ID).load(Relaxed),
                lost,
            ] {
                head = self.put(head, word);
            }
            self.word(LOST_PENDING).store(0, Relaxed);
        }
        head = self.put(head, RECORD_SAMPLE | len << SIZE_BIT);
        head = body(head);
        self.word(DATA_HEAD).store(head, Release);
        Ok(self.wakes(head))
    }

    /// Counts samples that were lost before they came here. The next sample tells of them.
    fn lose(&self, count: u64, caller: &Caller) -> Result<(), Errno> {
        let _guard = lock::acquire(self.half(LOCK), caller)?;
        let pending = self.word(LOST_PENDING).load(Relaxed);
        self.word(LOST_PENDING)
            .store(pending.saturating_add(count), Relaxed);
        self.word(LOST_TOTAL).fetch_add(count, Relaxed);
        Ok(())
    }

    /// Returns the number of samples that found no room so far.
    pub fn lost(&self) -> u64 {
        self.word(LOST_TOTAL).load(Relaxed)
    }

    /// Frees the lock of a producer that is `dead`, after its death. Nothing else has to be done.
    pub fn release(&self, dead: &dyn Fn(u32) -> bool) {
        lock::free_if(self.half(LOCK), dead);
    }

    /// Returns the bytes free: one less than the ring holds, as in the kernel, so that full and
    /// empty differ.
    fn room(&self, head: u64) -> u64 {
        let tail = self.word(DATA_TAIL).load(Acquire);
        tail.wrapping_sub(head).wrapping_sub(1) & (self.size - 1)
    }

    /// True if this record completes a batch, or half the ring was filled since the last waking.
    fn wakes(&self, head: u64) -> bool {
        let every = self.half(WAKEUP_EVENTS).load(Relaxed);
        let events = self.half(EVENTS).load(Relaxed).wrapping_add(1);
        let since = head.wrapping_sub(self.word(WAKEUP_HEAD).load(Relaxed));
        let wakes = (every != 0 && events >= every) || since > self.size / 2;
        self.half(EVENTS)
            .store(if wakes { 0 } else { events }, Relaxed);
        if wakes {
            self.word(WAKEUP_HEAD).store(head, Relaxed);
        }
        wakes
    }

    /// Writes a 32-bit size and `data`, padded with zeros to the size. Returns the new head.
    fn put_raw(&self, head: u64, data: &[u8], size: u64) -> u64 {
        let end = head.wrapping_add(4).wrapping_add(size);
        // The last word first, since its part beside data are the zeros.
        self.put(end.wrapping_sub(8), 0);
        self.half(PAGE.wrapping_add(head & (self.size - 1)))
            .store(size as u32, Relaxed);
        let start = head.wrapping_add(4) & (self.size - 1);
        // Bytes that do not fit before the data's end go to its start.
        let (first, rest) = data.split_at(data.len().min((self.size - start) as usize));
        for (at, part) in [(start, first), (0, rest)] {
            let to = self.base.wrapping_add(PAGE.wrapping_add(at) as usize);
            // SAFETY: both parts lie in the ring's data, as a record is shorter than that; the head
            // is behind them.
            unsafe { arch::copy_unordered(to, part.as_ptr(), part.len()) };
        }
        end
    }

    /// Writes a word at a position, a multiple of 8, and returns the next.
    #[inline]
    fn put(&self, head: u64, value: u64) -> u64 {
        self.word(PAGE.wrapping_add(head & (self.size - 1)))
            .store(value, Relaxed);
        head.wrapping_add(8)
    }

    #[inline]
    fn word(&self, offset: u64) -> &AtomicU64 {
        // SAFETY: an 8-aligned place in the control page, or in the data by a masked position.
        unsafe { words::word(self.base.wrapping_add(offset as usize)) }
    }

    #[inline]
    fn half(&self, offset: u64) -> &AtomicU32 {
        // SAFETY: a 4-aligned place in the control page, or in the data by a masked position.
        unsafe { words::half(self.base.wrapping_add(offset as usize)) }
    }
}

//! Shared parts of the tests: memory files, callers, and the kernel's own maps.
#![allow(dead_code)] // Each test uses its part.

pub mod children;
pub mod kernel;
pub mod pair;
pub mod processes;
pub mod rings;
pub mod step;
pub mod stepper;
pub mod subjects;

use std::{
    ops::Range,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    sync::OnceLock,
    time::Duration,
};

use beeline_maps::{Caller, Layout, Map, Spec, StackTraces};
use beeline_uapi::{Errno, MapType};

/// The hashes of plain values.
pub const HASHES: [MapType; 4] = [
    MapType::HASH,
    MapType::PERCPU_HASH,
    MapType::LRU_HASH,
    MapType::LRU_PERCPU_HASH,
];
/// Those that make room when they are full.
pub const LRU_HASHES: [MapType; 2] = [MapType::LRU_HASH, MapType::LRU_PERCPU_HASH];

/// A caller with this tag on CPU slot `cpu`.
pub fn caller(owner: u32, cpu: u32) -> Caller {
    fn relax(_: &Caller) -> bool {
        std::thread::yield_now();
        true
    }
    Caller {
        owner,
        cpu,
        relax,
        context: 0,
    }
}

/// Returns the stacks in a stack map.
pub fn stacks(map: &Map) -> StackTraces<'_> {
    StackTraces::of(map).expect("a stack map")
}

/// Returns the extra time for a test that could run for ever: the seconds in `BEELINE_SOAK`.
pub fn soak() -> Duration {
    Duration::from_secs(variable("BEELINE_SOAK").unwrap_or(0))
}

/// Returns the seed of random numbers: `BEELINE_SEED`; otherwise always the same, or, when soaking,
/// a new one each time.
pub fn seed() -> u64 {
    static SEED: OnceLock<u64> = OnceLock::new();
    let fresh = || {
        std::time::UNIX_EPOCH
            .elapsed()
            .map_or(1, |now| now.as_nanos() as u64 >> 10)
    };
    let choose = || if soak().is_zero() { 1 } else { fresh() };
    *SEED.get_or_init(|| variable("BEELINE_SEED").unwrap_or_else(choose))
}

fn variable(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

/// A spec without flags.
pub fn spec(map_type: MapType, key_size: u32, value_size: u32, max_entries: u32) -> Spec {
    Spec {
        map_type,
        key_size,
        value_size,
        max_entries,
        flags: 0,
        map_extra: 0,
    }
}

/// A mapped memory file.
pub struct Memory {
    pub file: OwnedFd,
    pub base: *mut u8,
    len: usize,
}

impl Memory {
    pub fn new(len: u64) -> Self {
        // SAFETY: the name is a C string; the result is checked.
        let fd = unsafe { libc::memfd_create(c"beeline-test".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(fd >= 0, "memfd_create failed");
        // SAFETY: a descriptor that nobody else owns.
        let file = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: plain call on an open descriptor.
        assert_eq!(unsafe { libc::ftruncate(fd, len as i64) }, 0);
        let base = map(&file, 0, len as usize, libc::PROT_READ | libc::PROT_WRITE);
        Self {
            file,
            base,
            len: len as usize,
        }
    }

    /// Returns all bytes as they are now.
    pub fn bytes(&self) -> Vec<u8> {
        // SAFETY: mapped for `len` bytes; nothing writes meanwhile in the tests that ask.
        unsafe { std::slice::from_raw_parts(self.base, self.len) }.to_vec()
    }
}

// SAFETY: the memory is meant to be shared between processes; a plain writer is the only one.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`, and not used any more.
        unsafe { libc::munmap(self.base.cast(), self.len) };
    }
}

/// Maps a part of a file, shared.
pub fn map(file: &impl AsRawFd, offset: i64, len: usize, protection: i32) -> *mut u8 {
    // SAFETY: a new mapping at a place that the kernel chooses.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            len,
            protection,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            offset,
        )
    };
    assert_ne!(
        at,
        libc::MAP_FAILED,
        "mmap failed: {}",
        std::io::Error::last_os_error()
    );
    at.cast()
}

/// Guard bytes around a mapping.
const GUARD: usize = 16 << 20;

/// Maps a file with guards around it: an access beside it is a fault.
pub fn map_apart(memory: &Memory, len: usize) -> *mut u8 {
    // SAFETY: a new mapping, of which the middle is replaced by the file's.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let around = libc::mmap(
            std::ptr::null_mut(),
            len + 2 * GUARD,
            libc::PROT_NONE,
            flags,
            -1,
            0,
        );
        assert_ne!(around, libc::MAP_FAILED);
        let at = libc::mmap(
            around.byte_add(GUARD),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_FIXED,
            memory.file.as_raw_fd(),
            0,
        );
        assert_ne!(at, libc::MAP_FAILED);
        at.cast()
    }
}

/// Unmaps what [`map_apart`] has mapped, which is not used any more.
pub fn unmap_apart(at: *mut u8, len: usize) {
    // SAFETY: the caller is done with the mapping.
    unsafe { libc::munmap(at.byte_sub(GUARD).cast(), len + 2 * GUARD) };
}

/// One of our maps, with its memory.
pub struct Ours {
    pub memory: Memory,
    pub map: Map,
}

impl Ours {
    pub fn new(spec: &Spec, cpus: u32) -> Result<Self, Errno> {
        let memory = Memory::new(Layout::new(spec, cpus)?.len);
        // SAFETY: mapped for the layout's length, for as long as the handle lives beside it.
        let map = unsafe { Map::attach(spec, cpus, memory.base)? };
        Ok(Self { memory, map })
    }

    /// Looks up as a program does; returns a copy of `value_size` bytes.
    pub fn get(&self, key: &[u8], cpu: u32) -> Option<Vec<u8>> {
        assert_eq!(key.len(), self.map.spec().key_size as usize);
        // SAFETY: the key has key_size bytes.
        let at = unsafe { self.map.lookup(key.as_ptr(), cpu) };
        let len = self.map.spec().value_size as usize;
        // SAFETY: a value has value_size bytes.
        (!at.is_null()).then(|| unsafe { std::slice::from_raw_parts(at, len) }.to_vec())
    }

    /// Returns, for a hash, the numbers of the locks and of the nodes that bear this tag.
    pub fn held_by(&self, owner: u32) -> (Vec<u32>, Vec<u32>) {
        let layout = self.map.layout();
        let word = |offset: u64| {
            let at = self.memory.base.wrapping_add(offset as usize);
            // SAFETY: inside the mapping, 4-aligned.
            unsafe { at.cast::<u32>().read_volatile() }
        };
        let locks = (0..=layout.mask)
            .filter(|number| word(layout.table + u64::from(*number) * 8 + 4) << 1 == owner << 1);
        let nodes = (0..self.map.spec().max_entries)
            .filter(|index| word(layout.nodes + u64::from(*index) * layout.node_size + 8) == owner);
        (locks.collect(), nodes.collect())
    }

    /// Updates as a program does.
    pub fn set(&self, key: &[u8], value: &[u8], flags: u64, caller: &Caller) -> Result<(), Errno> {
        assert_eq!(key.len(), self.map.spec().key_size as usize);
        assert_eq!(value.len(), self.map.spec().value_size as usize);
        // SAFETY: the sizes are right.
        unsafe { self.map.update(key.as_ptr(), value.as_ptr(), flags, caller) }
    }

    /// Returns all keys, iterated as system calls do.
    pub fn keys(&self) -> Vec<Vec<u8>> {
        let me = caller(9, Caller::NO_SLOT);
        walk(self.map.spec().key_size as usize, |key, out| {
            self.map.next_key(key, out, &me)
        })
    }
}

/// Returns all keys that `next` gives.
pub fn walk(
    key_size: usize,
    next: impl Fn(Option<&[u8]>, &mut [u8]) -> Result<(), Errno>,
) -> Vec<Vec<u8>> {
    let mut keys: Vec<Vec<u8>> = Vec::new();
    loop {
        let mut out = vec![0; key_size];
        match next(keys.last().map(Vec::as_slice), &mut out) {
            Ok(()) => keys.push(out),
            Err(Errno::ENOENT) => return keys,
            Err(error) => panic!("next_key failed with {error:?}"),
        }
    }
}

/// Reads a ring buffer as libbpf does: the consumer's page by itself, then the producer's page and
/// the data, twice.
pub struct Consumer {
    position: *mut u64,
    producer: *mut u8,
    size: u64,
}

impl Consumer {
    pub fn new(memory: &Memory, size: u64) -> Self {
        Self::of(&memory.file, size)
    }

    /// Opens a ring buffer's file: Beeline's, or the kernel's map.
    pub fn of(file: &impl AsRawFd, size: u64) -> Self {
        let position = map(file, 0, 4096, libc::PROT_READ | libc::PROT_WRITE).cast();
        let producer = map(file, 4096, 4096 + 2 * size as usize, libc::PROT_READ);
        Self {
            position,
            producer,
            size,
        }
    }

    /// Returns the addresses of its view of the ring.
    pub fn ranges(&self) -> [Range<u64>; 2] {
        let (position, producer) = (self.position as u64, self.producer as u64);
        [
            position..position + 4096,
            producer..producer + 4096 + 2 * self.size,
        ]
    }

    /// Passes every complete record to `each`; returns the number of records, including discarded
    /// ones.
    pub fn consume(&mut self, each: &mut impl FnMut(&[u8])) -> usize {
        self.consume_shared(each)
    }

    /// Does the same as [`Consumer::consume`], where another consumer is known to be at rest.
    pub fn consume_shared(&self, each: &mut impl FnMut(&[u8])) -> usize {
        use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
        // SAFETY: the first words of the two mappings.
        let (consumer, producer) = unsafe {
            (
                AtomicU64::from_ptr(self.position),
                AtomicU64::from_ptr(self.producer.cast()),
            )
        };
        let mut position = consumer.load(Relaxed);
        let mut count = 0;
        loop {
            let end = producer.load(Acquire);
            if position >= end {
                return count;
            }
            while position < end {
                let header = self
                    .producer
                    .wrapping_add(4096 + (position & (self.size - 1)) as usize);
                // SAFETY: a record's header, 8-aligned, in the data.
                let len = unsafe { AtomicU32::from_ptr(header.cast()) }.load(Acquire);
                if len & beeline_uapi::flags::RINGBUF_BUSY_BIT != 0 {
                    return count;
                }
                let size = len & !beeline_uapi::flags::RINGBUF_DISCARD_BIT;
                if len & beeline_uapi::flags::RINGBUF_DISCARD_BIT == 0 {
                    // SAFETY: the record lies within the two copies of the data.
                    each(unsafe { std::slice::from_raw_parts(header.add(8), size as usize) });
                }
                count += 1;
                position += (u64::from(size) + 8 + 7) & !7;
                consumer.store(position, SeqCst);
            }
        }
    }
}

/// A process that does nothing, until this is dropped.
pub struct Sleeper {
    pub pid: i32,
}

impl Sleeper {
    pub fn new() -> Self {
        let pid = children::spawn(|| {
            // SAFETY: waits for a signal.
            unsafe { libc::pause() };
        });
        Self { pid }
    }

    pub fn pidfd(&self) -> OwnedFd {
        // SAFETY: plain call; the result is checked.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, self.pid, 0) };
        assert!(fd >= 0, "pidfd_open failed");
        // SAFETY: a descriptor that nobody else owns.
        unsafe { OwnedFd::from_raw_fd(fd as i32) }
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        children::kill(self.pid);
    }
}

/// Writes samples into a user ring buffer, as libbpf does.
pub struct Producer<'o> {
    ours: &'o Ours,
}

impl<'o> Producer<'o> {
    pub fn new(ours: &'o Ours) -> Self {
        Self { ours }
    }

    /// Adds a sample with these bits in its header. Returns false if there is no room.
    pub fn produce(&self, sample: &[u8], bits: u32) -> bool {
        use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
        let base = self.ours.memory.base;
        let size = u64::from(self.ours.map.spec().max_entries);
        // SAFETY: the first words of the first two pages.
        let (consumer, producer) = unsafe {
            (
                AtomicU64::from_ptr(base.cast()),
                AtomicU64::from_ptr(base.add(4096).cast()),
            )
        };
        let start = producer.load(Relaxed);
        let total = (sample.len() as u64 + 8 + 7) & !7;
        if start + total - consumer.load(Acquire) > size {
            return false;
        }
        let at = |position: u64| base.wrapping_add(8192 + (position & (size - 1)) as usize);
        // SAFETY: a header and its data lie in the ring's two copies.
        unsafe {
            AtomicU32::from_ptr(at(start).cast()).store(sample.len() as u32 | bits, Release);
            at(start + 8).copy_from_nonoverlapping(sample.as_ptr(), sample.len());
        }
        producer.store(start + total, Release);
        true
    }
}

//! Pools: memory in a target that Beeline writes and the target can only read and execute.
//!
//! What is placed here (trampolines, programs, descriptors) is written once, then published by a single word that
//! already published memory points with; nothing is freed before the target is left. So a thread that still runs
//! through an older generation finds it whole.

use std::io;
use std::mem::{align_of, size_of};
use std::os::fd::BorrowedFd;

use crate::liveness::SessionId;
use crate::memory::Memory;

/// Bytes of address space a pool takes; only what is used takes memory.
pub const ARENA_BYTES: usize = 32 << 20;

/// One pool.
#[derive(Debug)]
pub struct Pool {
    memory: Memory,
    /// Where the target has it.
    base: u64,
    used: usize,
}

impl Pool {
    /// A new pool, to be mapped into the target at an address that [`Self::placed`] is told.
    pub fn new(name: &str) -> io::Result<Self> {
        let memory = Memory::new(name, ARENA_BYTES)?;
        memory.seal_for_others()?;
        Ok(Self {
            memory,
            base: 0,
            used: 0,
        })
    }

    /// A new one for a target.
    pub fn of_target() -> io::Result<Self> {
        Self::new(&SessionId::own().name("trampolines"))
    }

    /// Another one with the same content, for a target that has it at the same place.
    pub fn copy(&self) -> io::Result<Self> {
        let memory = Memory::new(&SessionId::own().name("trampolines"), ARENA_BYTES)?;
        // By the kernel, in one go: through the mapping each page would be a fault.
        memory.take_from(&self.memory, self.used)?;
        memory.seal_for_others()?;
        Ok(Self {
            memory,
            base: self.base,
            used: self.used,
        })
    }

    /// The file to map.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.memory.file()
    }

    /// What tells the file from others.
    pub fn inode(&self) -> Option<u64> {
        Some(rustix::fs::fstat(self.file()).ok()?.st_ino)
    }

    /// The target has mapped it at `base`.
    pub fn placed(&mut self, base: u64) {
        self.base = base;
    }

    /// The target's address of the pool.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// The target's address of the next allocation of this alignment.
    pub fn next(&self, align: usize) -> u64 {
        self.base + self.used.next_multiple_of(align) as u64
    }

    /// Bytes left.
    pub fn room(&self) -> usize {
        ARENA_BYTES - self.used
    }

    /// Places bytes; gives the target's address of them.
    pub fn bytes(&mut self, bytes: &[u8], align: usize) -> io::Result<u64> {
        let place = self.reserve(bytes.len(), align)?;
        self.memory
            .populate((place - self.base) as usize, bytes.len());
        // SAFETY: `reserve` gave room for the bytes inside the mapping, which nobody else uses yet.
        unsafe {
            self.local(place)
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
        };
        Ok(place)
    }

    /// As [`Self::bytes`], with something changed in them before anybody sees them.
    pub fn changed_bytes(
        &mut self,
        bytes: &[u8],
        align: usize,
        change: impl FnOnce(&mut [u8]),
    ) -> io::Result<u64> {
        let place = self.bytes(bytes, align)?;
        // SAFETY: as many bytes have just been placed there, which nobody else uses yet.
        change(unsafe { std::slice::from_raw_parts_mut(self.local(place), bytes.len()) });
        Ok(place)
    }

    /// Places a value; gives the target's address of it.
    pub fn value<T>(&mut self, value: T) -> io::Result<u64> {
        let place = self.reserve(size_of::<T>(), align_of::<T>())?;
        // SAFETY: as above, and aligned.
        unsafe { self.local(place).cast::<T>().write(value) };
        Ok(place)
    }

    /// Places an array; gives the target's address of its first element.
    pub fn array<T: Copy>(&mut self, values: &[T]) -> io::Result<u64> {
        let place = self.reserve(std::mem::size_of_val(values), align_of::<T>())?;
        // SAFETY: as above, and aligned.
        unsafe {
            self.local(place)
                .cast::<T>()
                .copy_from_nonoverlapping(values.as_ptr(), values.len())
        };
        Ok(place)
    }

    /// Places `count` zeroed values of a type that may be zero; gives the target's address of the first.
    pub fn zeroed<T>(&mut self, count: usize) -> io::Result<u64> {
        // A pool is zero where nothing was placed yet.
        self.reserve(size_of::<T>() * count, align_of::<T>())
    }

    /// Changes a value placed here earlier, while nothing in the target reads it.
    ///
    /// # Safety
    /// `place` must be what [`Self::value`] gave for a `T`, and the target must not be using it.
    pub unsafe fn change<T>(&mut self, place: u64, change: impl FnOnce(&mut T)) {
        // SAFETY: the caller's promise; `&mut self` keeps others here away.
        change(unsafe { &mut *self.local(place).cast::<T>() });
    }

    /// A value placed here earlier, to be changed by its atomics alone.
    ///
    /// # Safety
    /// `place` must be what [`Self::value`] gave for a `T`.
    pub unsafe fn get<T>(&self, place: u64) -> &T {
        // SAFETY: the caller's promise; the target cannot write here.
        unsafe { &*self.local(place).cast::<T>() }
    }

    /// Whether the target's address lies in this pool.
    pub fn holds(&self, place: u64) -> bool {
        (self.base..self.base + ARENA_BYTES as u64).contains(&place)
    }

    fn reserve(&mut self, len: usize, align: usize) -> io::Result<u64> {
        let start = self.used.next_multiple_of(align);
        let end = start
            .checked_add(len)
            .filter(|end| *end <= ARENA_BYTES)
            .ok_or(io::ErrorKind::OutOfMemory)?;
        self.used = end;
        Ok(self.base + start as u64)
    }

    /// The address here of a target's address in this pool.
    fn local(&self, place: u64) -> *mut u8 {
        assert!(self.holds(place), "an address of another pool");
        // SAFETY: inside the mapping, as just checked.
        unsafe { self.memory.base().add((place - self.base) as usize) }
    }
}

//! Trampoline pools: memory in a target that Beeline writes and the target can only read and
//! execute.
//!
//! Everything placed here (trampolines, programs, descriptors) is written once. It is then
//! published by a single word in memory that has already been published. Nothing is freed before
//! Beeline leaves the target, so a thread that still runs through an older generation finds it
//! whole.

use std::io;
use std::mem::{align_of, size_of};
use std::os::fd::BorrowedFd;

use crate::liveness::SessionId;
use crate::memory::Memory;

/// Bytes of address space that a pool takes. Only what is used takes memory.
pub const POOL_BYTES: usize = 32 << 20;

/// One pool.
#[derive(Debug)]
pub struct Pool {
    memory: Memory,
    /// The address where the target has it.
    base: u64,
    used: usize,
}

impl Pool {
    /// Creates a pool, to be mapped into the target at an address that is passed to
    /// [`Self::placed`].
    ///
    /// # Errors
    ///
    /// Those of [`Memory::new`] and [`Memory::seal_for_others`].
    pub fn new(name: &str) -> io::Result<Self> {
        let memory = Memory::new(name, POOL_BYTES)?;
        memory.seal_for_others()?;
        Ok(Self {
            memory,
            base: 0,
            used: 0,
        })
    }

    /// Creates a pool for a target.
    ///
    /// # Errors
    ///
    /// Those of [`Self::new`].
    pub fn of_target() -> io::Result<Self> {
        Self::new(&SessionId::own().name("trampolines"))
    }

    /// Creates another pool with the same content, for a target that has it at the same place.
    ///
    /// # Errors
    ///
    /// Those of [`Self::new`] and [`Memory::take_from`].
    pub fn copy(&self) -> io::Result<Self> {
        let memory = Memory::new(&SessionId::own().name("trampolines"), POOL_BYTES)?;
        // The kernel copies it in one go. Through the mapping, each page would be a fault.
        memory.take_from(&self.memory, self.used)?;
        memory.seal_for_others()?;
        Ok(Self {
            memory,
            base: self.base,
            used: self.used,
        })
    }

    /// Returns the file to map.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.memory.file()
    }

    /// Returns the inode, which identifies the file.
    pub fn inode(&self) -> Option<u64> {
        Some(rustix::fs::fstat(self.file()).ok()?.st_ino)
    }

    /// Records that the target has mapped it at `base`.
    pub fn placed(&mut self, base: u64) {
        self.base = base;
    }

    /// Returns the target's address of the pool.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Returns the target's address of the next allocation of this alignment.
    pub fn next(&self, align: usize) -> u64 {
        self.base + self.used.next_multiple_of(align) as u64
    }

    /// Returns the number of bytes left.
    pub fn room(&self) -> usize {
        POOL_BYTES - self.used
    }

    /// Places bytes, and returns the target's address of them.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::OutOfMemory`] if the pool is full.
    pub fn bytes(&mut self, bytes: &[u8], align: usize) -> io::Result<u64> {
        let place = self.reserve(bytes.len(), align)?;
        self.memory
            .populate((place - self.base) as usize, bytes.len());
        // SAFETY: `reserve` gave room for the bytes inside the mapping, which no other code uses
        // yet.
        unsafe {
            self.local(place)
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
        };
        Ok(place)
    }

    /// As [`Self::bytes`], but changes something in them before anything can see them.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::OutOfMemory`] if the pool is full.
    pub fn changed_bytes(
        &mut self,
        bytes: &[u8],
        align: usize,
        change: impl FnOnce(&mut [u8]),
    ) -> io::Result<u64> {
        let place = self.bytes(bytes, align)?;
        // SAFETY: this many bytes have just been placed there, and no other code uses them yet.
        change(unsafe { std::slice::from_raw_parts_mut(self.local(place), bytes.len()) });
        Ok(place)
    }

    /// Places a value, and returns the target's address of it.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::OutOfMemory`] if the pool is full.
    pub fn value<T>(&mut self, value: T) -> io::Result<u64> {
        let place = self.reserve(size_of::<T>(), align_of::<T>())?;
        // SAFETY: `reserve` gave aligned room for the value inside the mapping, which no other code
        // uses yet.
        unsafe { self.local(place).cast::<T>().write(value) };
        Ok(place)
    }

    /// Places an array, and returns the target's address of its first element.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::OutOfMemory`] if the pool is full.
    pub fn array<T: Copy>(&mut self, values: &[T]) -> io::Result<u64> {
        let place = self.reserve(std::mem::size_of_val(values), align_of::<T>())?;
        // SAFETY: `reserve` gave aligned room for the array inside the mapping, which no other code
        // uses yet.
        unsafe {
            self.local(place)
                .cast::<T>()
                .copy_from_nonoverlapping(values.as_ptr(), values.len())
        };
        Ok(place)
    }

    /// Places `count` zeroed values of a type that may be zero, and returns the target's address of
    /// the first.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::OutOfMemory`] if the pool is full.
    pub fn zeroed<T>(&mut self, count: usize) -> io::Result<u64> {
        // A pool is zero where nothing was placed yet.
        self.reserve(size_of::<T>() * count, align_of::<T>())
    }

    /// Changes a value placed here earlier, while nothing in the target reads it.
    ///
    /// # Safety
    ///
    /// `place` must be an address that [`Self::value`] returned for a `T`, and the target must not
    /// be using it.
    pub unsafe fn change<T>(&mut self, place: u64, change: impl FnOnce(&mut T)) {
        // SAFETY: the caller promises that a `T` is there and that the target is not using it;
        // `&mut self` keeps others here away.
        change(unsafe { &mut *self.local(place).cast::<T>() });
    }

    /// Returns a value placed here earlier, to be changed by its atomics alone.
    ///
    /// # Safety
    ///
    /// `place` must be an address that [`Self::value`] returned for a `T`.
    pub unsafe fn get<T>(&self, place: u64) -> &T {
        // SAFETY: the caller promises that a `T` is there, and the target cannot write here.
        unsafe { &*self.local(place).cast::<T>() }
    }

    /// True if the target's address lies in this pool.
    pub fn holds(&self, place: u64) -> bool {
        (self.base..self.base + POOL_BYTES as u64).contains(&place)
    }

    fn reserve(&mut self, len: usize, align: usize) -> io::Result<u64> {
        let start = self.used.next_multiple_of(align);
        let end = start
            .checked_add(len)
            .filter(|end| *end <= POOL_BYTES)
            .ok_or(io::ErrorKind::OutOfMemory)?;
        self.used = end;
        Ok(self.base + start as u64)
    }

    /// Returns the address here of a target's address in this pool.
    fn local(&self, place: u64) -> *mut u8 {
        assert!(self.holds(place), "an address of another pool");
        // SAFETY: the address is inside the mapping, as just checked.
        unsafe { self.memory.base().add((place - self.base) as usize) }
    }
}

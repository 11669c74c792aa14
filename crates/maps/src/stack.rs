//! Stack maps: a table of slots that hash values choose. The slot's number is the stack's id, counted
//! from [`Memory::first_id`] on.
//!
//! A slot's count of frames says whether it holds a stack: it is 0 before the frames are written
//! and set after, under the slot's lock. A writer that dies in between leaves an empty slot; one
//! that dies at another time leaves a whole stack.

use core::sync::atomic::{
    AtomicU32,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
    fence,
};

use beeline_uapi::Errno;

use crate::{Caller, Kind, Map, flags, hash::hash_words, lock, memory::Memory, words};

/// Bytes of a slot's state: lock, count of frames, hash, 32 bits each, and 32 unused.
pub(crate) const SLOT: u64 = 16;

/// The number of times that a reader tries again because the stack was replaced meanwhile.
const RETRIES: u32 = 100;

/// A slot. Any process may have written its state, so the count of frames is checked before use.
struct Slot<'m> {
    lock: &'m AtomicU32,
    frames: &'m AtomicU32,
    hash: &'m AtomicU32,
    ips: *mut u8,
    depth: u32,
}

impl Slot<'_> {
    /// Returns the count of frames, if there is a stack.
    fn count(&self) -> Option<u32> {
        let count = self.frames.load(Acquire);
        (count != 0 && count <= self.depth).then_some(count)
    }

    fn holds(&self, ips: &[u64], hash: u32, fast: bool) -> bool {
        let state = (self.count(), self.hash.load(Acquire));
        if state.0.is_none() || state.1 != hash {
            return false;
        }
        if fast {
            return true;
        }
        // SAFETY: `ips` is readable; the slot has room for `depth` words, which `ips` does not
        // exceed.
        let same = || unsafe {
            words::all(ips.as_ptr().cast(), size_of_val(ips), |at, ip| {
                words::word(self.ips.wrapping_add(at)).load(Relaxed) == ip
            })
        };
        state.0 == u32::try_from(ips.len()).ok() && same() && {
            fence(Acquire);
            state == (self.count(), self.hash.load(Relaxed))
        }
    }
}

/// A stack map: it keeps stacks, and finds them by id.
#[derive(Debug, Clone, Copy)]
pub struct StackTraces<'m> {
    memory: &'m Memory,
}

impl<'m> StackTraces<'m> {
    /// Returns the stack map in `map`, if it is one.
    pub fn of(map: &'m Map) -> Option<Self> {
        let memory = &map.memory;
        (memory.kind() == Some(Kind::StackTrace)).then_some(Self::new(memory))
    }

    /// Creates the view on memory that holds a stack map.
    #[inline]
    pub(crate) fn new(memory: &'m Memory) -> Self {
        Self { memory }
    }

    /// `bpf_get_stackid`: returns the id under which this stack is kept.
    ///
    /// `ips` is the whole stack, innermost frame first. The frames to skip, as `flags` say, and
    /// those deeper than the map records are cut off here.
    ///
    /// # Errors
    ///
    /// `EEXIST` if another stack has the slot and may not be replaced, `EFAULT` if nothing is left
    /// after skipping, `EINVAL` for unknown flags, `EBUSY` if another holds the slot's lock for too
    /// long.
    pub fn id_of(self, ips: &[u64], flags: u64, caller: &Caller) -> Result<u32, Errno> {
        let known = flags::SKIP_FIELD_MASK
            | flags::USER_STACK
            | flags::FAST_STACK_CMP
            | flags::REUSE_STACKID;
        if flags & !known != 0 {
            return Err(Errno::EINVAL);
        }
        let skip = (flags & flags::SKIP_FIELD_MASK) as usize;
        let ips = ips
            .get(skip..)
            .filter(|ips| !ips.is_empty())
            .ok_or(Errno::EFAULT)?;
        let ips = ips.get(..self.depth() as usize).unwrap_or(ips);
        // SAFETY: the slice is readable.
        let hash = unsafe { hash_words(ips.as_ptr().cast(), size_of_val(ips)) };
        let id = (hash & self.memory.layout.mask).wrapping_add(self.memory.first_id);
        let slot = self.slot(id).ok_or(Errno::EINVAL)?;
        let fast = flags & flags::FAST_STACK_CMP != 0;
        if slot.holds(ips, hash, fast) {
            return Ok(id);
        }
        let keep = flags & flags::REUSE_STACKID == 0;
        if keep && slot.count().is_some() {
            // It may have come between the two looks.
            return match slot.holds(ips, hash, fast) {
                true => Ok(id),
                false => Err(Errno::EEXIST),
            };
        }
        let _guard = lock::acquire(slot.lock, caller)?;
        if slot.holds(ips, hash, fast) {
            return Ok(id);
        }
        if keep && slot.count().is_some() {
            return Err(Errno::EEXIST);
        }
        slot.frames.store(0, SeqCst);
        slot.hash.store(hash, Release);
        // SAFETY: the slot has room for `depth` words, 8-aligned, which `ips` does not exceed.
        unsafe { words::store(slot.ips, ips.as_ptr().cast(), size_of_val(ips)) };
        slot.frames.store(ips.len() as u32, Release);
        Ok(id)
    }

    /// Copies a stack out, padded with zeros.
    pub(crate) fn copy_out(self, id: u32, out: &mut [u8]) -> Result<(), Errno> {
        let slot = self.slot(id).ok_or(Errno::ENOENT)?;
        for _ in 0..RETRIES {
            let hash = slot.hash.load(Acquire);
            let count = slot.count().ok_or(Errno::ENOENT)?;
            words::blank(out);
            let stack = out.get_mut(..count as usize * 8).ok_or(Errno::EINVAL)?;
            // SAFETY: the slot has room for `depth` words, 8-aligned, and `count` does not exceed
            // that.
            unsafe { words::load(stack.as_mut_ptr(), slot.ips, stack.len()) };
            fence(Acquire);
            if slot.count() == Some(count) && slot.hash.load(Relaxed) == hash {
                return Ok(());
            }
        }
        Err(Errno::EBUSY)
    }

    /// Copies a stack out and deletes it.
    pub(crate) fn take(self, id: u32, out: &mut [u8], caller: &Caller) -> Result<(), Errno> {
        let slot = self.slot(id).ok_or(Errno::ENOENT)?;
        let _guard = lock::acquire(slot.lock, caller)?;
        self.copy_out(id, out)?;
        slot.frames.store(0, Release);
        Ok(())
    }

    /// Deletes a stack.
    pub(crate) fn delete(self, id: u32, caller: &Caller) -> Result<(), Errno> {
        let slot = self.slot(id).ok_or(Errno::E2BIG)?;
        let _guard = lock::acquire(slot.lock, caller)?;
        slot.count().ok_or(Errno::ENOENT)?;
        slot.frames.store(0, Release);
        Ok(())
    }

    /// Returns the next id in use. As in the kernel, a key that is not in use begins again with the
    /// first.
    pub(crate) fn next(self, key: Option<u32>) -> Result<u32, Errno> {
        let in_use = |id: u32| self.slot(id).is_some_and(|slot| slot.count().is_some());
        let mut id = match key {
            Some(key) if in_use(key) => key.wrapping_add(1),
            _ => self.memory.first_id,
        };
        while self.slot(id).is_some() {
            if in_use(id) {
                return Ok(id);
            }
            id = id.wrapping_add(1);
        }
        Err(Errno::ENOENT)
    }

    /// Frees the locks of slots that dead processes held.
    pub(crate) fn release(self, dead: &dyn Fn(u32) -> bool) {
        let mut id = self.memory.first_id;
        while let Some(slot) = self.slot(id) {
            lock::free_if(slot.lock, dead);
            id = id.wrapping_add(1);
        }
    }

    /// Returns the number of frames that a slot has room for.
    fn depth(self) -> u32 {
        self.memory.spec.value_size / 8
    }

    fn slot(self, id: u32) -> Option<Slot<'m>> {
        let number = id.wrapping_sub(self.memory.first_id);
        if number > self.memory.layout.mask {
            return None;
        }
        let state = self.memory.at(self
            .memory
            .layout
            .table
            .wrapping_add(u64::from(number).wrapping_mul(SLOT)));
        // SAFETY: inside the slot's state, which is 16-aligned; the number is in range.
        let (lock, frames, hash) = unsafe {
            (
                words::half(state),
                words::half(state.wrapping_add(4)),
                words::half(state.wrapping_add(8)),
            )
        };
        Some(Slot {
            lock,
            frames,
            hash,
            ips: self.memory.value(number, 0),
            depth: self.depth(),
        })
    }
}

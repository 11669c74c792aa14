//! Queues and stacks: values in a circle, with one more place than there may be values.
//!
//! One word says where the next value goes and where the oldest lies. A value is written to the
//! place that this word leaves out, then the word is replaced. So whichever process dies, the queue
//! is as it was before or after. The only repair is to free the lock.

use core::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Acquire, Release},
};

use beeline_uapi::Errno;

use crate::{Caller, Kind, flags, lock, memory::Memory, words};

/// The used part of the circle.
#[derive(Clone, Copy)]
struct Ends {
    /// The place of the next value.
    head: u32,
    /// The place of the oldest value, unless that is `head` too.
    tail: u32,
}

impl Ends {
    fn is_empty(self) -> bool {
        self.head == self.tail
    }

    fn word(self) -> u64 {
        u64::from(self.head) | u64::from(self.tail) << 32
    }
}

/// A queue, or a stack.
#[derive(Clone, Copy)]
pub(crate) struct Queue<'m> {
    memory: &'m Memory,
}

impl<'m> Queue<'m> {
    #[inline]
    pub(crate) fn new(memory: &'m Memory) -> Self {
        Self { memory }
    }

    /// Adds a value.
    ///
    /// # Safety
    ///
    /// `value` is readable for `value_size` bytes.
    pub(crate) unsafe fn push(
        self,
        value: *const u8,
        flags: u64,
        caller: &Caller,
    ) -> Result<(), Errno> {
        if !matches!(flags, flags::ANY | flags::EXIST) {
            return Err(Errno::EINVAL);
        }
        let _guard = lock::acquire(self.lock(), caller)?;
        let Ends { head, mut tail } = self.ends();
        let next = self.after(head);
        if next == tail {
            if flags != flags::EXIST {
                return Err(Errno::E2BIG);
            }
            tail = self.after(tail);
        }
        // SAFETY: the caller promises that `value` is readable for `value_size` bytes; the place
        // has as much room, 8-aligned.
        unsafe {
            words::store(
                self.memory.value(head, 0),
                value,
                self.memory.spec.value_size as usize,
            )
        };
        self.publish(Ends { head: next, tail });
        Ok(())
    }

    /// Copies the next value out, and removes it if it is to be taken. Fails with `ENOENT` if there
    /// is none: then `out` is zero.
    ///
    /// # Safety
    ///
    /// `out` is writable for `value_size` bytes.
    pub(crate) unsafe fn get(self, out: *mut u8, take: bool, caller: &Caller) -> Result<(), Errno> {
        let len = self.memory.spec.value_size as usize;
        let _guard = lock::acquire(self.lock(), caller)?;
        let ends = self.ends();
        if ends.is_empty() {
            // SAFETY: the caller promises that `out` is writable for `value_size` bytes.
            words::blank(unsafe { core::slice::from_raw_parts_mut(out, len) });
            return Err(Errno::ENOENT);
        }
        let (place, rest) = if self.memory.kind() == Some(Kind::Stack) {
            let newest = self.before(ends.head);
            let rest = Ends {
                head: newest,
                ..ends
            };
            (newest, rest)
        } else {
            let tail = self.after(ends.tail);
            (ends.tail, Ends { tail, ..ends })
        };
        // SAFETY: the caller promises that `out` is writable for `value_size` bytes; the place
        // holds as much, 8-aligned.
        unsafe { words::load(out, self.memory.value(place, 0), len) };
        if take {
            self.publish(rest);
        }
        Ok(())
    }

    /// Frees the lock if its holder is dead.
    pub(crate) fn release(self, dead: &dyn Fn(u32) -> bool) {
        lock::free_if(self.lock(), dead);
    }

    /// Returns the ends, in range. Memory that was overwritten is an empty queue.
    fn ends(self) -> Ends {
        let word = self.ends_word().load(Acquire);
        let (head, tail) = (word as u32, (word >> 32) as u32);
        if head.max(tail) > self.memory.spec.max_entries {
            return Ends { head: 0, tail: 0 };
        }
        Ends { head, tail }
    }

    fn publish(self, ends: Ends) {
        self.ends_word().store(ends.word(), Release);
    }

    fn after(self, place: u32) -> u32 {
        if place >= self.memory.spec.max_entries {
            0
        } else {
            place.wrapping_add(1)
        }
    }

    fn before(self, place: u32) -> u32 {
        place.checked_sub(1).unwrap_or(self.memory.spec.max_entries)
    }

    fn lock(self) -> &'m AtomicU32 {
        // SAFETY: the first word of the control page.
        unsafe { words::half(self.memory.at(self.memory.layout.control)) }
    }

    fn ends_word(self) -> &'m AtomicU64 {
        // SAFETY: the second 8 bytes of the control page.
        unsafe { words::word(self.memory.at(self.memory.layout.control.wrapping_add(8))) }
    }
}

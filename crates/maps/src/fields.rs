//! Fields of values that belong to the kernel: a `struct bpf_spin_lock`, a `struct bpf_timer`.
//!
//! An update leaves them as they are, a look-up shows zeros in their place, and a new element's are
//! zero. Their offsets are not part of a [`Spec`]: the kernel, too, learns them from the type of
//! the value.
//!
//! A lock's word holds the tag of its holder's process, as the locks of maps do ([`Caller`]), so a
//! dead holder's is freed. Finding it means looking at all elements that were ever used, since any
//! pointer into a value may be locked. Only maps with locks pay for it.

use beeline_uapi::Errno;
use beeline_uapi::object::{SpinLock, Timer};

use crate::lock::{self, Guard};
use crate::{Caller, Kind, Spec, flags, words};

/// Bytes of a `struct bpf_spin_lock`, and its alignment.
pub const SPIN_LOCK: u32 = size_of::<SpinLock>() as u32;
/// Bytes of a `struct bpf_timer`.
pub const TIMER: u32 = size_of::<Timer>() as u32;
const TIMER_ALIGN: u32 = align_of::<Timer>() as u32;
/// In place of an offset: the value has no such field.
const NONE: u32 = u32::MAX;

/// The offsets of the special fields in a map's values.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fields {
    spin_lock: u32,
    timer: u32,
}

impl Fields {
    /// The fields of a value that has none.
    pub const EMPTY: Self = Self {
        spin_lock: NONE,
        timer: NONE,
    };

    /// Creates fields at these bytes of the value.
    ///
    /// # Errors
    ///
    /// The kernel's: `EINVAL` for an offset that is not aligned, `EFAULT` for one that is outside
    /// the value or where the fields overlap, `EACCES` for a map that programs only read or only
    /// write, `EOPNOTSUPP` for a type of map that may not have such a field.
    pub fn new(spec: &Spec, spin_lock: Option<u32>, timer: Option<u32>) -> Result<Self, Errno> {
        let check = |offset: Option<u32>, size: u32, align: u32| match offset {
            Some(offset) if !offset.is_multiple_of(align) => Err(Errno::EINVAL),
            Some(offset) => match offset.checked_add(size) {
                Some(end) if end <= spec.value_size => Ok(offset..end),
                _ => Err(Errno::EFAULT),
            },
            None => Ok(NONE..NONE),
        };
        let lock = check(spin_lock, SPIN_LOCK, SPIN_LOCK)?;
        let clock = check(timer, TIMER, TIMER_ALIGN)?;
        if lock.start < clock.end && clock.start < lock.end {
            return Err(Errno::EFAULT);
        }
        let (has_lock, has_timer) = (spin_lock.is_some(), timer.is_some());
        let one_sided = spec.flags & (flags::RDONLY_PROG | flags::WRONLY_PROG) != 0;
        if (has_lock || has_timer) && one_sided {
            return Err(Errno::EACCES);
        }
        let kind = spec.kind();
        let may_lock = matches!(kind, Some(Kind::Hash | Kind::Array | Kind::TaskStorage));
        let may_time = matches!(kind, Some(Kind::Hash | Kind::LruHash | Kind::Array));
        if has_lock && !may_lock || has_timer && !may_time {
            return Err(Errno::EOPNOTSUPP);
        }
        Ok(Self {
            spin_lock: lock.start,
            timer: clock.start,
        })
    }

    /// Returns the offset of the lock in a value.
    pub fn spin_lock(&self) -> Option<u32> {
        (self.spin_lock != NONE).then_some(self.spin_lock)
    }

    /// Returns the offset of the timer in a value.
    pub fn timer(&self) -> Option<u32> {
        (self.timer != NONE).then_some(self.timer)
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.spin_lock & self.timer == NONE
    }

    /// True if the byte at this offset belongs to a special field.
    fn holds(&self, at: u32) -> bool {
        let within = |field: u32, size| field != NONE && at.wrapping_sub(field) < size;
        within(self.spin_lock, SPIN_LOCK) || within(self.timer, TIMER)
    }

    /// Copies a value in, the special fields left as they are.
    ///
    /// # Safety
    ///
    /// As for [`words::store`], with `to` a value that has these fields.
    #[inline]
    pub(crate) unsafe fn store_others(&self, to: *mut u8, from: *const u8, len: usize) {
        if self.is_empty() {
            // SAFETY: the caller promises that `from` is readable, and `to` 8-aligned and writable,
            // for `len` bytes.
            unsafe { words::store(to, from, len) };
        } else {
            // SAFETY: the caller promises that `from` is readable, and `to` 8-aligned and writable,
            // for `len` bytes.
            unsafe { words::store_where(to, from, len, |at| !self.holds(at as u32)) };
        }
    }

    /// Zeroes the special fields in a copy of a value.
    ///
    /// # Safety
    ///
    /// `copy` is writable for `value_size` bytes.
    pub(crate) unsafe fn hide(&self, copy: *mut u8) {
        for (start, size) in self.places() {
            for at in start..start.wrapping_add(size) {
                // Written singly, as there is no `memset` where the crate is linked freestanding.
                // SAFETY: `Fields::new` checked that the field lies within the value.
                unsafe { copy.add(at as usize).write_volatile(0) };
            }
        }
    }

    /// Zeroes the special fields of a new element's value.
    ///
    /// # Safety
    ///
    /// `value` has these fields, and no other thread uses it.
    pub(crate) unsafe fn clear(&self, value: *mut u8) {
        for (start, size) in self.places() {
            for at in (start..start.wrapping_add(size)).step_by(4) {
                // SAFETY: in the value, and 4-aligned as both are.
                unsafe { words::half(value.add(at as usize)) }
                    .store(0, core::sync::atomic::Ordering::Relaxed);
            }
        }
    }

    /// Takes `BPF_F_LOCK` out of flags, and returns whether it was there.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it was and the values have no lock.
    pub(crate) fn lock_flag(&self, flags: u64) -> Result<(u64, bool), Errno> {
        let is_locked = flags & flags::LOCK != 0;
        if is_locked && self.spin_lock().is_none() {
            return Err(Errno::EINVAL);
        }
        Ok((flags & !flags::LOCK, is_locked))
    }

    /// Returns the offset and the size of each field that there is.
    fn places(&self) -> impl Iterator<Item = (u32, u32)> {
        [(self.spin_lock, SPIN_LOCK), (self.timer, TIMER)]
            .into_iter()
            .filter(|(start, _)| *start != NONE)
    }
}

/// `bpf_spin_lock`: takes the lock at an address in a value, and returns whether it got it.
///
/// # Safety
///
/// `lock` is a 4-aligned `struct bpf_spin_lock` in the value of a map that is mapped here.
pub unsafe fn spin_lock(lock: *mut u8, caller: &Caller) -> bool {
    // SAFETY: the caller promises that `lock` is a 4-aligned `struct bpf_spin_lock` in the value of
    // a map that is mapped here.
    match lock::acquire(unsafe { words::half(lock) }, caller) {
        Ok(guard) => {
            Guard::keep(guard);
            true
        }
        Err(_) => false,
    }
}

/// `bpf_spin_unlock`: frees the lock at an address in a value, if it is the caller's.
///
/// # Safety
///
/// As for [`spin_lock`].
pub unsafe fn spin_unlock(lock: *mut u8, caller: &Caller) {
    // SAFETY: the caller promises that `lock` is a 4-aligned `struct bpf_spin_lock` in the value of
    // a map that is mapped here.
    lock::free_if(unsafe { words::half(lock) }, &|tag| tag == caller.owner);
}

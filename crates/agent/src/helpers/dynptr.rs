//! Dynptrs: memory that a program reaches by offset and length, checked as it runs.
//!
//! A program keeps the sixteen bytes of a [`Dynptr`] on its stack and hands their address to
//! helpers. Their layout is that of the kernel's `struct bpf_dynptr_kern`. Helpers that call back
//! into a program make their own.

use beeline_maps::ringbuf;
use beeline_uapi::Errno;
use beeline_uapi::limits::{
    DYNPTR_MAX_SIZE, DYNPTR_RDONLY_BIT, DYNPTR_SIZE_MASK, DYNPTR_TYPE_SHIFT,
};

use super::convention::{Readable, Writable};
use super::maps::caller;
use super::output::commit;
use crate::abi::{Context, MapHandle};
use crate::arch;

/// The kernel's `struct bpf_dynptr_kern`. All zero: a null dynptr, which every helper refuses.
#[repr(C, align(8))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dynptr {
    /// The first byte.
    data: u64,
    /// Bytes in the low 24 bits, the [`Kind`] in bits 28 to 30, [`DYNPTR_RDONLY_BIT`].
    size: u32,
    /// The offset in the data at which the dynptr begins.
    offset: u32,
}

/// The kind of a dynptr's memory; `enum bpf_dynptr_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// The program's own, or a map's value.
    Local = 1,
    /// A record of a ring buffer.
    Ringbuf = 2,
}

impl Dynptr {
    /// A null dynptr, which points nowhere.
    pub const NULL: Self = Self {
        data: 0,
        size: 0,
        offset: 0,
    };
    /// The most bytes that one can have.
    pub const MOST: u32 = DYNPTR_MAX_SIZE;

    /// Creates a dynptr of `size` bytes at `data` that may be written to; `None` for more than
    /// [`Self::MOST`].
    pub fn new(data: *mut u8, size: u32, kind: Kind) -> Option<Self> {
        Self::make(data as u64, size, kind as u32)
    }

    /// Creates a dynptr of `size` bytes at `data` that may only be read; `None` for more than
    /// [`Self::MOST`].
    pub fn read_only(data: *const u8, size: u32, kind: Kind) -> Option<Self> {
        Self::make(
            data as u64,
            size,
            kind as u32 | DYNPTR_RDONLY_BIT >> DYNPTR_TYPE_SHIFT,
        )
    }

    const fn make(data: u64, size: u32, high_bits: u32) -> Option<Self> {
        if size > Self::MOST {
            return None;
        }
        Some(Self {
            data,
            size: size | high_bits << DYNPTR_TYPE_SHIFT,
            offset: 0,
        })
    }

    /// Returns its size in bytes.
    pub const fn bytes(&self) -> u32 {
        self.size & DYNPTR_SIZE_MASK
    }

    /// True if it is null.
    pub const fn is_null(&self) -> bool {
        self.data == 0
    }

    const fn is_read_only(&self) -> bool {
        self.size & DYNPTR_RDONLY_BIT != 0
    }

    /// Returns the address of `len` bytes from `offset` on; `None` if they are not all inside.
    const fn part(&self, offset: u32, len: u32) -> Option<u64> {
        let size = self.bytes();
        if len > size || offset > size - len {
            return None;
        }
        let start = self.data.wrapping_add(self.offset as u64);
        Some(start.wrapping_add(offset as u64))
    }
}

/// `bpf_dynptr_from_mem(data, size, flags, ptr)`.
///
/// # Errors
///
/// `E2BIG` for more than [`Dynptr::MOST`] bytes, `EINVAL` for flags.
pub fn dynptr_from_mem(
    _: &mut Context,
    data: Writable,
    size: u32,
    flags: u64,
    ptr: &mut Dynptr,
) -> Result<(), Errno> {
    let made = Dynptr::new(data.as_mut_ptr(), size, Kind::Local);
    *ptr = made.filter(|_| flags == 0).unwrap_or(Dynptr::NULL);
    match made {
        None => Err(Errno::E2BIG),
        Some(_) if flags != 0 => Err(Errno::EINVAL),
        Some(_) => Ok(()),
    }
}

/// `bpf_ringbuf_reserve_dynptr(ringbuf, size, flags, ptr)`. The program has to hand the record back
/// even if there is none.
///
/// # Errors
///
/// `EINVAL` for flags, another type of map, or if there is no room; `E2BIG` for more than
/// [`Dynptr::MOST`] bytes.
pub fn ringbuf_reserve_dynptr(
    context: &mut Context,
    map: &MapHandle,
    size: u32,
    flags: u64,
    ptr: &mut Dynptr,
) -> Result<(), Errno> {
    *ptr = Dynptr::NULL;
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    if size > Dynptr::MOST {
        return Err(Errno::E2BIG);
    }
    let record = ringbuf::Ring::of(&map.map)
        .and_then(|ring| ring.reserve(size.into(), 0, &caller(context)).ok())
        .and_then(|record| Dynptr::new(record, size, Kind::Ringbuf));
    *ptr = record.ok_or(Errno::EINVAL)?;
    Ok(())
}

/// `bpf_ringbuf_submit_dynptr(ptr, flags)`.
pub fn ringbuf_submit_dynptr(context: &mut Context, ptr: &mut Dynptr, flags: u64) {
    hand_back(context, ptr, false, flags);
}

/// `bpf_ringbuf_discard_dynptr(ptr, flags)`.
pub fn ringbuf_discard_dynptr(context: &mut Context, ptr: &mut Dynptr, flags: u64) {
    hand_back(context, ptr, true, flags);
}

fn hand_back(context: &Context, ptr: &mut Dynptr, discard: bool, flags: u64) {
    if !ptr.is_null() {
        commit(context, ptr.data as *mut u8, discard, flags);
        *ptr = Dynptr::NULL;
    }
}

/// `bpf_dynptr_read(dst, len, src, offset, flags)`.
///
/// # Errors
///
/// `EINVAL` for a null dynptr or for flags, `E2BIG` if the bytes are not all inside.
pub fn dynptr_read(
    _: &mut Context,
    to: Writable,
    len: u32,
    ptr: &Dynptr,
    offset: u32,
    flags: u64,
) -> Result<(), Errno> {
    if ptr.is_null() || flags != 0 {
        return Err(Errno::EINVAL);
    }
    let from = ptr.part(offset, len).ok_or(Errno::E2BIG)?;
    // SAFETY: the program answers for `len` bytes at `to`, the dynptr for those at `from`.
    unsafe { arch::shift(to.as_mut_ptr(), from as *const u8, len as usize) };
    Ok(())
}

/// `bpf_dynptr_write(dst, offset, src, len, flags)`.
///
/// # Errors
///
/// `EINVAL` for a null or read-only dynptr or for flags, `E2BIG` if the bytes are not all inside.
pub fn dynptr_write(
    _: &mut Context,
    ptr: &Dynptr,
    offset: u32,
    from: Readable,
    len: u32,
    flags: u64,
) -> Result<(), Errno> {
    if ptr.is_null() || ptr.is_read_only() {
        return Err(Errno::EINVAL);
    }
    let to = ptr.part(offset, len).ok_or(Errno::E2BIG)?;
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    // SAFETY: the program answers for `len` bytes at `from`, the dynptr for those at `to`.
    unsafe { arch::shift(to as *mut u8, from.as_ptr(), len as usize) };
    Ok(())
}

/// `bpf_dynptr_data(ptr, offset, len)`: the address of `len` bytes that the program may read and
/// write, or null.
pub fn dynptr_data(_: &mut Context, ptr: &Dynptr, offset: u32, len: u32) -> u64 {
    if ptr.is_null() || ptr.is_read_only() {
        return 0;
    }
    ptr.part(offset, len).unwrap_or(0)
}

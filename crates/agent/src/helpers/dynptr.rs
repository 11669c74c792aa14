//! Dynptrs: memory that a program reaches by offset and length, checked as it runs.
//!
//! A program keeps the sixteen bytes of a [`Dynptr`] on its stack and hands their address to
//! helpers. Their layout is that of the kernel's `struct bpf_dynptr_kern`. Helpers that call back
//! into a program make their own.

use beeline_isa::abi::Run;
use beeline_maps::ringbuf;

use super::maps::caller;
use super::output::commit;
use super::{context, failed};
use crate::abi::MapHandle;
use crate::sys;

const E2BIG: i32 = 7;
const EINVAL: i32 = 22;
/// The low bits of [`Dynptr::size`]: bytes.
const SIZE_MASK: u32 = 0xff_ffff;
/// In [`Dynptr::size`]: may not be written to.
const READ_ONLY: u32 = 1 << 31;

/// The kernel's `struct bpf_dynptr_kern`. All zero: a null dynptr, which every helper refuses.
#[repr(C, align(8))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dynptr {
    /// The first byte.
    data: u64,
    /// Bytes in the low 24 bits, the [`Kind`] in bits 28 to 30, [`READ_ONLY`].
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
    pub const MOST: u32 = SIZE_MASK;

    /// Creates a dynptr of `size` bytes at `data` that may be written to; `None` for more than
    /// [`Self::MOST`].
    pub fn new(data: *mut u8, size: u32, kind: Kind) -> Option<Self> {
        Self::make(data as u64, size, kind as u32)
    }

    /// Creates a dynptr of `size` bytes at `data` that may only be read; `None` for more than
    /// [`Self::MOST`].
    pub fn read_only(data: *const u8, size: u32, kind: Kind) -> Option<Self> {
        Self::make(data as u64, size, kind as u32 | READ_ONLY >> 28)
    }

    const fn make(data: u64, size: u32, high_bits: u32) -> Option<Self> {
        if size > Self::MOST {
            return None;
        }
        Some(Self {
            data,
            size: size | high_bits << 28,
            offset: 0,
        })
    }

    /// Returns its size in bytes.
    pub const fn bytes(&self) -> u32 {
        self.size & SIZE_MASK
    }

    /// True if it is null.
    pub const fn is_null(&self) -> bool {
        self.data == 0
    }

    const fn is_read_only(&self) -> bool {
        self.size & READ_ONLY != 0
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
pub unsafe extern "sysv64" fn dynptr_from_mem(
    data: u64,
    size: u64,
    flags: u64,
    ptr: u64,
    _: u64,
    _: *const Run,
) -> u64 {
    let made = Dynptr::new(data as *mut u8, size as u32, Kind::Local);
    let (dynptr, result) = match made {
        None => (Dynptr::NULL, failed(E2BIG)),
        Some(_) if flags != 0 => (Dynptr::NULL, failed(EINVAL)),
        Some(dynptr) => (dynptr, 0),
    };
    // SAFETY: the program answers for the dynptr's place on its stack.
    unsafe { (ptr as *mut Dynptr).write(dynptr) };
    result
}

/// `bpf_ringbuf_reserve_dynptr(ringbuf, size, flags, ptr)`. The program has to hand the record back
/// even if there is none.
pub unsafe extern "sysv64" fn ringbuf_reserve_dynptr(
    map: u64,
    size: u64,
    flags: u64,
    ptr: u64,
    _: u64,
    run: *const Run,
) -> u64 {
    // SAFETY: called by a program with its own run and one of its own maps; it answers for the
    // dynptr's place.
    let (context, handle, ptr) = unsafe {
        (
            context(run),
            &*(map as *const MapHandle),
            &mut *(ptr as *mut Dynptr),
        )
    };
    let size = size as u32;
    *ptr = Dynptr::NULL;
    if flags != 0 {
        return failed(EINVAL);
    }
    if size > Dynptr::MOST {
        return failed(E2BIG);
    }
    let record = ringbuf::Ring::of(&handle.map)
        .and_then(|ring| ring.reserve(size.into(), 0, &caller(context)).ok())
        .and_then(|record| Dynptr::new(record, size, Kind::Ringbuf));
    match record {
        Some(record) => {
            *ptr = record;
            0
        }
        None => failed(EINVAL),
    }
}

/// `bpf_ringbuf_submit_dynptr(ptr, flags)`.
pub unsafe extern "sysv64" fn ringbuf_submit_dynptr(
    ptr: u64,
    flags: u64,
    _: u64,
    _: u64,
    _: u64,
    run: *const Run,
) -> u64 {
    // SAFETY: called by a program with its own run and a dynptr of its own.
    unsafe { hand_back(ptr, false, flags, run) }
}

/// `bpf_ringbuf_discard_dynptr(ptr, flags)`.
pub unsafe extern "sysv64" fn ringbuf_discard_dynptr(
    ptr: u64,
    flags: u64,
    _: u64,
    _: u64,
    _: u64,
    run: *const Run,
) -> u64 {
    // SAFETY: called by a program with its own run and a dynptr of its own.
    unsafe { hand_back(ptr, true, flags, run) }
}

unsafe fn hand_back(ptr: u64, discard: bool, flags: u64, run: *const Run) -> u64 {
    // SAFETY: both callers are helpers that a program calls with its own run and a dynptr of its
    // own.
    unsafe {
        let ptr = &mut *(ptr as *mut Dynptr);
        if !ptr.is_null() {
            commit(context(run), ptr.data, discard, flags);
            *ptr = Dynptr::NULL;
        }
    }
    0
}

/// `bpf_dynptr_read(dst, len, src, offset, flags)`.
pub unsafe extern "sysv64" fn dynptr_read(
    to: u64,
    len: u64,
    ptr: u64,
    offset: u64,
    flags: u64,
    _: *const Run,
) -> u64 {
    // SAFETY: the program answers for its dynptr.
    let ptr = unsafe { &*(ptr as *const Dynptr) };
    if ptr.is_null() || flags != 0 {
        return failed(EINVAL);
    }
    let Some(from) = ptr.part(offset as u32, len as u32) else {
        return failed(E2BIG);
    };
    // SAFETY: the program answers for `len` bytes at `to`, the dynptr for those at `from`.
    unsafe { sys::shift(to as *mut u8, from as *const u8, len as u32 as usize) };
    0
}

/// `bpf_dynptr_write(dst, offset, src, len, flags)`.
pub unsafe extern "sysv64" fn dynptr_write(
    ptr: u64,
    offset: u64,
    from: u64,
    len: u64,
    flags: u64,
    _: *const Run,
) -> u64 {
    // SAFETY: the program answers for its dynptr.
    let ptr = unsafe { &*(ptr as *const Dynptr) };
    if ptr.is_null() || ptr.is_read_only() {
        return failed(EINVAL);
    }
    let Some(to) = ptr.part(offset as u32, len as u32) else {
        return failed(E2BIG);
    };
    if flags != 0 {
        return failed(EINVAL);
    }
    // SAFETY: the program answers for `len` bytes at `from`, the dynptr for those at `to`.
    unsafe { sys::shift(to as *mut u8, from as *const u8, len as u32 as usize) };
    0
}

/// `bpf_dynptr_data(ptr, offset, len)`: the address of `len` bytes that the program may read and
/// write, or null.
pub unsafe extern "sysv64" fn dynptr_data(
    ptr: u64,
    offset: u64,
    len: u64,
    _: u64,
    _: u64,
    _: *const Run,
) -> u64 {
    // SAFETY: the program answers for its dynptr.
    let ptr = unsafe { &*(ptr as *const Dynptr) };
    if ptr.is_null() || ptr.is_read_only() {
        return 0;
    }
    ptr.part(offset as u32, len as u32).unwrap_or(0)
}

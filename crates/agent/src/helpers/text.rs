//! Text that programs format: into a buffer of their own, and lines for the trace pipe.
//!
//! The meaning of formats, the formats that are refused and the results of helpers are the
//! kernel's. Places in code print as they do in the kernel for an address without a symbol; for
//! `%p` see [`print`].

mod format;
mod pack;
mod print;

use core::mem::size_of;
use core::sync::atomic::Ordering::Acquire;

use beeline_maps::ringbuf;
use beeline_uapi::Errno;
use beeline_uapi::limits::{MAX_BPRINTF_BUF, MAX_BPRINTF_VARARGS};

use super::convention::{Readable, Writable};
use super::maps::caller;
use super::{identity, output, time};
use crate::abi::{Context, MapHandle, TraceLine};
use format::Format;
pub use format::is_space;
use pack::{Packed, Room};
use print::Out;

/// Bytes of a line for the trace pipe.
const LINE: usize = MAX_BPRINTF_BUF;

/// `bpf_trace_printk(fmt, fmt_size, ...)`: returns the bytes of the text.
///
/// # Errors
///
/// `EINVAL` for a format that is not valid or needs more arguments, `ENOSPC` for arguments that
/// take too much room.
pub fn trace_printk(
    context: &mut Context,
    fmt: Readable,
    size: u32,
    first: u64,
    second: u64,
    third: u64,
) -> Result<i32, Errno> {
    let args = [first, second, third];
    // SAFETY: `args` is a local array, so its words are readable for the call.
    unsafe { print_line(context, fmt, size, args.as_ptr(), args.len()) }
}

/// `bpf_trace_vprintk(fmt, fmt_size, data, data_len)`: returns the bytes of the text.
///
/// # Errors
///
/// Those of [`trace_printk`]; `EINVAL` for data that are no array of at most 12 words.
pub fn trace_vprintk(
    context: &mut Context,
    fmt: Readable,
    size: u32,
    data: Readable,
    data_len: u32,
) -> Result<i32, Errno> {
    let count = count_of(data, data_len)?;
    // SAFETY: the verifier or the interpreter has checked that the program may read `data_len`
    // bytes at `data`, which are `count` words.
    unsafe { print_line(context, fmt, size, data.as_ptr().cast(), count) }
}

/// `bpf_snprintf(str, str_size, fmt, data, data_len)`: returns the bytes that the text takes, or
/// would take, with its terminator.
///
/// # Errors
///
/// Those of [`trace_vprintk`].
pub fn snprintf(
    context: &mut Context,
    to: Writable,
    size: u32,
    fmt: Readable,
    data: Readable,
    data_len: u32,
) -> Result<i32, Errno> {
    let count = count_of(data, data_len)?;
    let args = data.as_ptr().cast();
    let mut room = Room::uninit();
    // SAFETY: the verifier or the interpreter has checked that the program may write `size` bytes
    // at `to` unless it is null, may read `data_len` bytes at `data`, which are `count` words, and
    // that `fmt` is a constant string that ends. The program runs in a leased slot.
    unsafe {
        let format = Format::new(fmt.as_ptr(), u32::MAX as usize).ok_or(Errno::EINVAL)?;
        let packed = Packed::new(&mut room, context, &format, args, count)?;
        let out = Out::new(to.as_mut_ptr(), size as usize);
        Ok((print::print(&format, &packed, out) + 1) as i32)
    }
}

/// Returns the number of arguments in this many bytes.
fn count_of(data: Readable, len: u32) -> Result<usize, Errno> {
    if !len.is_multiple_of(8)
        || len > MAX_BPRINTF_VARARGS * 8
        || (len != 0 && data.as_ptr().is_null())
    {
        return Err(Errno::EINVAL);
    }
    Ok(len as usize / 8)
}

/// Formats a line into the session's trace buffer, and returns the bytes of the text. As in the
/// kernel, the program does not learn of a full buffer, which counts what found no room.
///
/// # Safety
///
/// `count` words at `args` must be readable.
unsafe fn print_line(
    context: &mut Context,
    fmt: Readable,
    size: u32,
    args: *const u64,
    count: usize,
) -> Result<i32, Errno> {
    // SAFETY: the verifier or the interpreter has checked that the program may read `size` bytes at
    // `fmt`.
    let format = unsafe { Format::new(fmt.as_ptr(), size as usize) }.ok_or(Errno::EINVAL)?;
    let mut room = Room::uninit();
    // SAFETY: the caller promises that `count` words at `args` are readable. The context belongs to
    // a running program, so its slot is leased until the program returns.
    let packed = unsafe { Packed::new(&mut room, context, &format, args, count)? };
    // SAFETY: a null destination only counts; nothing is written.
    let len = print::print(&format, &packed, unsafe {
        Out::new(core::ptr::null_mut(), LINE)
    });
    let room = len.min(LINE - 1) + 1;
    let handle = context.target().trace.load(Acquire) as *const MapHandle;
    // SAFETY: the pointer is null, or a handle that lies in the same pool as the target.
    let handle = unsafe { handle.as_ref() };
    let Some(ring) = handle.and_then(|handle| ringbuf::Ring::of(&handle.map)) else {
        return Ok(len as i32);
    };
    let line = TraceLine {
        time: time::now(context),
        tid: identity::tid(context),
        cpu: context.cpu,
        comm: identity::comm(context),
    };
    let header = size_of::<TraceLine>();
    if let Ok(record) = ring.reserve((header + room) as u64, 0, &caller(context)) {
        // SAFETY: the record has room for the header and the text.
        unsafe {
            record.cast::<TraceLine>().write(line);
            print::print(&format, &packed, Out::new(record.add(header), room));
        }
        let wake = ring.commit(record, false, 0);
        output::ring_doorbell(context, wake);
    }
    Ok(len as i32)
}

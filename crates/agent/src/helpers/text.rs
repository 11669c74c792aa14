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

use beeline_isa::abi::Run;
use beeline_maps::ringbuf;

use super::maps::caller;
use super::{context, failed, identity, output, time};
use crate::abi::{Context, MapHandle, TraceLine};
use format::Format;
pub use format::is_space;
use pack::{Packed, Room};
use print::Out;

const EINVAL: i32 = 22;
/// `MAX_BPRINTF_BUF`: bytes of a line for the trace pipe.
const LINE: usize = 1024;
/// `MAX_BPRINTF_VARARGS`.
const MOST_ARGUMENTS: u64 = 12;

/// `bpf_trace_printk(fmt, fmt_size, ...)`: returns the bytes of the text.
pub unsafe extern "sysv64" fn trace_printk(
    fmt: u64,
    size: u64,
    first: u64,
    second: u64,
    third: u64,
    run: *const Run,
) -> u64 {
    let args = [first, second, third];
    // SAFETY: called by a program with its own run, which answers for the format.
    let line = unsafe {
        let most = size as usize & 0xffff_ffff;
        print_line(context(run), fmt as *const u8, most, args.as_ptr(), 3)
    };
    result(line)
}

/// `bpf_trace_vprintk(fmt, fmt_size, data, data_len)`: returns the bytes of the text.
pub unsafe extern "sysv64" fn trace_vprintk(
    fmt: u64,
    size: u64,
    data: u64,
    data_len: u64,
    _: u64,
    run: *const Run,
) -> u64 {
    let line = count_of(data, data_len).and_then(|count| {
        // SAFETY: called by a program with its own run, which answers for the format and the
        // arguments.
        unsafe {
            let most = size as usize & 0xffff_ffff;
            print_line(
                context(run),
                fmt as *const u8,
                most,
                data as *const u64,
                count,
            )
        }
    });
    result(line)
}

/// `bpf_snprintf(str, str_size, fmt, data, data_len)`: returns the bytes that the text takes, or
/// would take, with its terminator.
pub unsafe extern "sysv64" fn snprintf(
    to: u64,
    size: u64,
    fmt: u64,
    data: u64,
    data_len: u64,
    run: *const Run,
) -> u64 {
    let text = count_of(data, data_len).and_then(|count| {
        // SAFETY: called by a program with its own run, which answers for the buffer, the
        // arguments, and a format that ends.
        unsafe {
            let format = Format::new(fmt as *const u8, u32::MAX as usize).ok_or(EINVAL)?;
            let mut room = Room::uninit();
            let packed = Packed::new(&mut room, context(run), &format, data as *const u64, count)?;
            let out = Out::new(to as *mut u8, size as usize & 0xffff_ffff);
            Ok(print::print(&format, &packed, out) + 1)
        }
    });
    result(text)
}

/// Returns the number of arguments in this many bytes.
fn count_of(data: u64, data_len: u64) -> Result<usize, i32> {
    let len = data_len & 0xffff_ffff;
    if !len.is_multiple_of(8) || len > MOST_ARGUMENTS * 8 || (len != 0 && data == 0) {
        return Err(EINVAL);
    }
    Ok(len as usize / 8)
}

fn result(outcome: Result<usize, i32>) -> u64 {
    match outcome {
        Ok(bytes) => i64::from(bytes as i32) as u64,
        Err(errno) => failed(errno),
    }
}

/// Formats a line into the session's trace buffer. As in the kernel, the program does not learn of
/// a full buffer, which counts what found no room.
unsafe fn print_line(
    context: &mut Context,
    fmt: *const u8,
    most: usize,
    args: *const u64,
    count: usize,
) -> Result<usize, i32> {
    // SAFETY: the callers are helpers; the program that calls them answers for the format.
    let format = unsafe { Format::new(fmt, most) }.ok_or(EINVAL)?;
    let mut room = Room::uninit();
    // SAFETY: the program answers for the arguments as well, and the context's slot is leased.
    let packed = unsafe { Packed::new(&mut room, context, &format, args, count)? };
    // SAFETY: nothing is written.
    let len = print::print(&format, &packed, unsafe {
        Out::new(core::ptr::null_mut(), LINE)
    });
    let room = len.min(LINE - 1) + 1;
    // SAFETY: the context's target outlives the run, and its trace buffer's handle lies in the same
    // pool.
    let handle = unsafe { ((*context.target).trace.load(Acquire) as *const MapHandle).as_ref() };
    let Some(ring) = handle.and_then(|handle| ringbuf::Ring::of(&handle.map)) else {
        return Ok(len);
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
    Ok(len)
}

//! Stack traces of the target's own stacks.

mod walk;

use beeline_maps::StackTraces;
use beeline_uapi::{Errno, flags};

use super::convention::Writable;
use super::maps::caller;
use crate::abi::{Context, MapHandle};
use crate::arch;
use walk::{MAX_DEPTH, walk};

/// `bpf_get_stackid(ctx, map, flags)`. There is no kernel stack here: asking for one gives
/// `-EFAULT`, as the kernel does for a task without one.
///
/// # Errors
///
/// `EFAULT` for the kernel's stack, `EINVAL` for another type of map, and those of
/// `beeline_maps::StackTraces::id_of`.
pub fn get_stackid(
    context: &mut Context,
    _: u64,
    map: &MapHandle,
    flags: u64,
) -> Result<u64, Errno> {
    if flags & flags::USER_STACK == 0 {
        return Err(Errno::EFAULT);
    }
    let frames = walk(context, MAX_DEPTH);
    // SAFETY: the walk filled this many words of the leased slot's scratch.
    let addresses = unsafe { (*context.slot).scratch.get(..frames) }.unwrap_or_default();
    let stacks = StackTraces::of(&map.map).ok_or(Errno::EINVAL)?;
    let id = stacks.id_of(addresses, flags, &caller(context))?;
    Ok(id.into())
}

/// `bpf_get_stack(ctx, buf, size, flags)`: returns the bytes written.
///
/// # Errors
///
/// `EINVAL` for unknown flags, build ids, or a size that is no multiple of 8; `EFAULT` if there are
/// fewer addresses than are to be skipped, and for the kernel's stack outside of a uprobe, where it
/// would not be empty in the kernel.
pub fn get_stack(
    context: &mut Context,
    _: u64,
    buf: Writable,
    size: u64,
    flags: u64,
) -> Result<u64, Errno> {
    if flags & !(flags::SKIP_FIELD_MASK | flags::USER_STACK) != 0
        || flags & flags::USER_BUILD_ID != 0
        || !size.is_multiple_of(8)
    {
        return Err(Errno::EINVAL);
    }
    let buf = buf.as_mut_ptr();
    let size = size as usize & 0xffff_ffff;
    let skip = (flags & flags::SKIP_FIELD_MASK) as usize;
    let frames = match flags & flags::USER_STACK {
        0 if context.site.is_null() => None,
        0 => Some(0),
        _ => Some(walk(context, size / 8 + skip)),
    };
    // SAFETY: the walk filled this many words of the leased slot's scratch. The program answers for
    // `size` bytes at `buf`.
    unsafe {
        let found = frames.and_then(|frames| (*context.slot).scratch.get(skip..frames));
        let Some(addresses) = found else {
            arch::zero(buf, size);
            return Err(Errno::EFAULT);
        };
        let bytes = addresses.len() * 8;
        arch::copy(buf, addresses.as_ptr().cast(), bytes);
        arch::zero(buf.add(bytes), size - bytes);
        Ok(bytes as u64)
    }
}

//! Checksums of packets: sums of 16-bit words in one's complement (RFC 1624).

use beeline_uapi::Errno;
use beeline_uapi::packet::*;

use super::super::convention::Readable;
use super::{MOST, packet_of};
use crate::abi::Context;

/// Adds with the carry carried around.
fn add(a: u32, b: u32) -> u32 {
    let (sum, carry) = a.overflowing_add(b);
    sum.wrapping_add(carry.into())
}

/// Folds a sum to 16 bits.
fn fold(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

/// Adds the words of memory to a sum (`csum_partial`). The size is a multiple of 4.
///
/// # Safety
///
/// The bytes must be there.
unsafe fn sum(from: *const u8, len: u32, mut sum: u32) -> u32 {
    for at in (0..len as usize).step_by(size_of::<u32>()) {
        // SAFETY: these are four of the bytes.
        sum = add(sum, unsafe { from.add(at).cast::<u32>().read_unaligned() });
    }
    sum
}

/// `bpf_csum_diff(from, from_size, to, to_size, seed)`.
///
/// # Errors
///
/// `EINVAL` for sizes that are no multiples of 4.
pub fn csum_diff(
    _: &mut Context,
    from: Readable,
    from_size: u32,
    to: Readable,
    to_size: u32,
    seed: u32,
) -> Result<u64, Errno> {
    const WORD: u32 = size_of::<u32>() as u32;
    if !from_size.is_multiple_of(WORD) || !to_size.is_multiple_of(WORD) {
        return Err(Errno::EINVAL);
    }
    // SAFETY: the program answers for as many bytes.
    let of = |memory: Readable, size, seed| unsafe { sum(memory.as_ptr(), size, seed) };
    let difference = match (from_size, to_size) {
        (0, 0) => seed,
        (0, _) => of(to, to_size, seed),
        (_, 0) => !of(from, from_size, !seed),
        _ => add(of(to, to_size, seed), !of(from, from_size, 0)),
    };
    Ok(fold(difference).into())
}

/// Returns the checksum after a change of what it covers.
fn changed(checksum: u16, from: u32, to: u32) -> u16 {
    let before = add(u32::from(!checksum), !from);
    !fold(add(before, to))
}

/// The same where the difference is known.
fn changed_by(checksum: u16, difference: u32) -> u16 {
    !fold(add(difference, u32::from(!checksum)))
}

/// Replaces the checksum at an offset of the packet.
///
/// # Errors
///
/// `EFAULT` if it is not in the packet, or at an odd offset; and those of `change`.
fn replace(
    context: &mut Context,
    offset: u32,
    change: impl FnOnce(u16) -> Result<u16, Errno>,
) -> Result<(), Errno> {
    let packet = packet_of(context)?;
    if u64::from(offset) > MOST || !offset.is_multiple_of(2) {
        return Err(Errno::EFAULT);
    }
    let at = packet
        .at(offset.into(), 2)
        .ok_or(Errno::EFAULT)?
        .cast::<u16>();
    // SAFETY: the packet has two bytes there.
    let checksum = unsafe { at.read_unaligned() };
    let checksum = change(checksum)?;
    // SAFETY: as before.
    unsafe { at.write_unaligned(checksum) };
    Ok(())
}

/// Returns a checksum after a field of so many bytes has changed; without a size, `to` is the
/// difference.
///
/// # Errors
///
/// `EINVAL` for other sizes, and for a difference with something to take away.
fn of_field(checksum: u16, from: u64, to: u64, size: u64) -> Result<u16, Errno> {
    match size {
        0 if from == 0 => Ok(changed_by(checksum, to as u32)),
        2 => Ok(changed(checksum, from as u16 as u32, to as u16 as u32)),
        4 => Ok(changed(checksum, from as u32, to as u32)),
        _ => Err(Errno::EINVAL),
    }
}

/// `bpf_l3_csum_replace(skb, offset, from, to, flags)`.
///
/// # Errors
///
/// `EINVAL` for unknown flags and sizes, `EFAULT` if the checksum is not in the packet.
pub fn l3_csum_replace(
    context: &mut Context,
    _: u64,
    offset: u32,
    from: u64,
    to: u64,
    flags: u64,
) -> Result<(), Errno> {
    if flags & !F_HDR_FIELD_MASK != 0 {
        return Err(Errno::EINVAL);
    }
    replace(context, offset, |checksum| {
        of_field(checksum, from, to, flags)
    })
}

/// `bpf_l4_csum_replace(skb, offset, from, to, flags)`.
///
/// # Errors
///
/// As [`l3_csum_replace`].
pub fn l4_csum_replace(
    context: &mut Context,
    _: u64,
    offset: u32,
    from: u64,
    to: u64,
    flags: u64,
) -> Result<(), Errno> {
    const KNOWN: u64 = F_MARK_MANGLED_0 | F_MARK_ENFORCE | F_PSEUDO_HDR | F_IPV6 | F_HDR_FIELD_MASK;
    if flags & !KNOWN != 0 {
        return Err(Errno::EINVAL);
    }
    let zero_is_none = flags & F_MARK_MANGLED_0 != 0;
    replace(context, offset, |checksum| {
        if zero_is_none && flags & F_MARK_ENFORCE == 0 && checksum == 0 {
            return Ok(0);
        }
        let checksum = of_field(checksum, from, to, flags & F_HDR_FIELD_MASK)?;
        Ok(if zero_is_none && checksum == 0 {
            CSUM_MANGLED_0
        } else {
            checksum
        })
    })
}

/// `bpf_csum_update(skb, csum)`: the packet of a test run has no checksum beside it.
///
/// # Errors
///
/// `ENOTSUPP`.
pub fn csum_update(_: &mut Context) -> Result<(), Errno> {
    Err(Errno::ENOTSUPP)
}

/// `bpf_csum_level(skb, level)`: the number of checksums that are known to be good, if any is.
///
/// # Errors
///
/// `EACCES` if none is, for a query; `EINVAL` for an unknown command.
pub fn csum_level(context: &mut Context, _: u64, command: u64) -> Result<u64, Errno> {
    let packet = packet_of(context)?;
    packet.good_checksums = match (command, packet.good_checksums) {
        (CSUM_LEVEL_QUERY, 0) => return Err(Errno::EACCES),
        (CSUM_LEVEL_QUERY, good) => return Ok(u64::from(good) - 1),
        (CSUM_LEVEL_INC, good) => good.wrapping_add(1).min(SKB_MAX_CSUM_LEVEL + 1),
        (CSUM_LEVEL_DEC, good) => good.saturating_sub(1),
        (CSUM_LEVEL_RESET, _) => 0,
        _ => return Err(Errno::EINVAL),
    };
    Ok(0)
}

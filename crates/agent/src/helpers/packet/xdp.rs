//! Helpers of `xdp` programs.

use beeline_uapi::Errno;
use beeline_uapi::packet::*;

use super::super::convention::{Readable, Writable};
use super::{MOST, packet_of};
use crate::abi::Context;
use crate::packet::{Packet, Way};

/// `bpf_xdp_adjust_head(xdp, offset)`.
///
/// # Errors
///
/// `EINVAL` if there is no room, or less than an Ethernet header would be left.
pub fn xdp_adjust_head(context: &mut Context, _: u64, offset: u32) -> Result<(), Errno> {
    let packet = packet_of(context)?;
    let offset = offset.cast_signed() as isize;
    let most = packet.direct_len().cast_signed() - ETH_HLEN as isize;
    if offset > most || !packet.move_start(offset) {
        return Err(Errno::EINVAL);
    }
    Ok(())
}

/// `bpf_xdp_adjust_meta(xdp, offset)`.
///
/// # Errors
///
/// `EINVAL` if there is no room, or the metadata would begin in the packet, `EACCES` if it would
/// have an odd size or be too large.
pub fn xdp_adjust_meta(context: &mut Context, _: u64, offset: u32) -> Result<(), Errno> {
    let packet = packet_of(context)?;
    let offset = offset.cast_signed() as isize;
    let len = packet.meta_len().cast_signed() - offset;
    if offset < -packet.headroom().cast_signed() || len < 0 {
        return Err(Errno::EINVAL);
    }
    if len % size_of::<u32>() as isize != 0 || len > XDP_METALEN_MAX as isize {
        return Err(Errno::EACCES);
    }
    packet.move_meta(offset).then_some(()).ok_or(Errno::EINVAL)
}

/// `bpf_xdp_adjust_tail(xdp, offset)`.
///
/// # Errors
///
/// `EINVAL` if there is no room, or less than an Ethernet header would be left.
pub fn xdp_adjust_tail(context: &mut Context, _: u64, offset: u32) -> Result<(), Errno> {
    let packet = packet_of(context)?;
    let offset = offset.cast_signed() as isize;
    if packet.rest_len() > 0 {
        return adjust_rest(packet, offset);
    }
    let least = ETH_HLEN as isize - packet.direct_len().cast_signed();
    if offset < least || !packet.move_end(offset) {
        return Err(Errno::EINVAL);
    }
    Ok(())
}

/// The same for a packet in several pieces.
///
/// # Errors
///
/// `EINVAL` if less than an Ethernet header would be left, or if there is no room in the last piece.
fn adjust_rest(packet: &mut Packet, offset: isize) -> Result<(), Errno> {
    if offset >= 0 {
        return packet
            .grow_rest(offset.unsigned_abs())
            .then_some(())
            .ok_or(Errno::EINVAL);
    }
    let by = offset.unsigned_abs();
    if packet.len().saturating_sub(by) < ETH_HLEN as usize {
        return Err(Errno::EINVAL);
    }
    let of_rest = by.min(packet.rest_len());
    packet.cut_rest(of_rest);
    let of_first = (by - of_rest).cast_signed();
    packet
        .move_end(-of_first)
        .then_some(())
        .ok_or(Errno::EINVAL)
}

/// `bpf_xdp_get_buff_len(xdp)`.
///
/// # Errors
///
/// `EFAULT` without a packet.
pub fn xdp_get_buff_len(context: &mut Context) -> Result<u64, Errno> {
    Ok(packet_of(context)?.len() as u64)
}

/// `bpf_xdp_load_bytes(xdp, offset, to, len)`.
///
/// # Errors
///
/// `EFAULT` if offset or size do not fit into 16 bits, `EINVAL` if not all of it is in the packet.
pub fn xdp_load_bytes(
    context: &mut Context,
    _: u64,
    offset: u32,
    to: Writable,
    len: u32,
) -> Result<(), Errno> {
    // SAFETY: the program answers for `len` bytes to be written.
    unsafe { copy(context, offset, to.as_mut_ptr(), len, Way::Out) }
}

/// `bpf_xdp_store_bytes(xdp, offset, from, len)`.
///
/// # Errors
///
/// As [`xdp_load_bytes`].
pub fn xdp_store_bytes(
    context: &mut Context,
    _: u64,
    offset: u32,
    from: Readable,
    len: u32,
) -> Result<(), Errno> {
    // SAFETY: the program answers for `len` bytes, which are only read.
    unsafe { copy(context, offset, from.as_ptr().cast_mut(), len, Way::In) }
}

/// Copies between the packet and the program's memory.
///
/// # Errors
///
/// As [`xdp_load_bytes`].
///
/// # Safety
///
/// There must be `len` bytes at `memory`, to be written if the packet is read.
unsafe fn copy(
    context: &mut Context,
    offset: u32,
    memory: *mut u8,
    len: u32,
    way: Way,
) -> Result<(), Errno> {
    let packet = packet_of(context)?;
    let (offset, len) = (u64::from(offset), u64::from(len));
    if offset > MOST || len > MOST {
        return Err(Errno::EFAULT);
    }
    // SAFETY: the caller promises `len` bytes.
    match unsafe { packet.copy(offset, memory, len, way) } {
        true => Ok(()),
        false => Err(Errno::EINVAL),
    }
}

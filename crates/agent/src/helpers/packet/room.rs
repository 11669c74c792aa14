//! Helpers that change the size of a packet with a `struct __sk_buff`.

use beeline_uapi::Errno;
use beeline_uapi::packet::*;

use super::packet_of;
use crate::abi::Context;
use crate::packet::Packet;

/// True if the packet may become that long: one that is to be cut up has no limit.
fn may_have(packet: &Packet, len: usize) -> bool {
    packet.skb.gso_size != 0 || len <= SKB_MAX_LEN as usize
}

/// `bpf_skb_change_tail(skb, len, flags)`.
///
/// # Errors
///
/// `EINVAL` for flags, and for a packet that would be too long, or would end before its network
/// header.
pub fn skb_change_tail(context: &mut Context, _: u64, len: u32, flags: u64) -> Result<(), Errno> {
    let packet = packet_of(context)?;
    let least = packet.network_offset().max(0);
    let by = (len as isize).wrapping_sub(packet.len().cast_signed());
    if flags != 0 || len > SKB_MAX_LEN || (len as isize) < least {
        return Err(Errno::EINVAL);
    }
    if !packet.make_room(0, by.max(0).unsigned_abs()) || !packet.move_end(by) {
        return Err(Errno::ENOMEM);
    }
    (packet.skb.gso_size, packet.skb.gso_segs) = (0, 0);
    Ok(())
}

/// `bpf_skb_change_head(skb, room, flags)`: zeros before the packet become its link layer's header.
///
/// # Errors
///
/// `EINVAL` for flags, and for a packet that would be too long.
pub fn skb_change_head(context: &mut Context, _: u64, room: u32, flags: u64) -> Result<(), Errno> {
    let packet = packet_of(context)?;
    let is_room = room <= i32::MAX.cast_unsigned();
    if flags != 0 || !is_room || !may_have(packet, packet.len().wrapping_add(room as usize)) {
        return Err(Errno::EINVAL);
    }
    if !packet.make_room(room as usize, 0) || !packet.move_first(0, room as isize) {
        return Err(Errno::ENOMEM);
    }
    packet.begin_link_header();
    Ok(())
}

/// Returns the bytes of the network layer's header, as far as its protocol says.
fn network_header_len(packet: &Packet) -> Option<usize> {
    match u16::from_be(packet.skb.protocol as u16) {
        ETH_P_IP => Some(IPHDR_BYTES),
        ETH_P_IPV6 => Some(IPV6HDR_BYTES),
        _ => None,
    }
}

/// `bpf_skb_adjust_room(skb, len_diff, mode, flags)`: room behind a header, or less of it.
///
/// Encapsulation (the other flags) is not served.
///
/// # Errors
///
/// `EINVAL` for unknown flags, `EFAULT` for too much, `ENOTSUPP` if the packet is not of IP, for
/// another mode, and if the packet would be too short or too long.
pub fn skb_adjust_room(
    context: &mut Context,
    _: u64,
    by: u32,
    mode: u32,
    flags: u64,
) -> Result<(), Errno> {
    const MOST: usize = 0xfff;
    let packet = packet_of(context)?;
    let by = by.cast_signed() as isize;
    if flags & !(F_ADJ_ROOM_FIXED_GSO | F_ADJ_ROOM_NO_CSUM_RESET) != 0 {
        return Err(Errno::EINVAL);
    }
    if by.unsigned_abs() > MOST {
        return Err(Errno::EFAULT);
    }
    let least = network_header_len(packet).ok_or(Errno::ENOTSUPP)?;
    let kept = packet.link_header_len()
        + match mode {
            ADJ_ROOM_NET => least,
            ADJ_ROOM_MAC => 0,
            _ => return Err(Errno::ENOTSUPP),
        };
    let behind_link = packet.len().cast_signed() - packet.network_offset();
    let is_too_short = by < 0 && behind_link + by < least.cast_signed();
    let is_too_long = by > 0 && !may_have(packet, packet.len() + by.unsigned_abs());
    if is_too_short || is_too_long {
        return Err(Errno::ENOTSUPP);
    }
    let is_room = packet.make_room(by.max(0).unsigned_abs(), 0);
    if !is_room || !packet.move_first(kept, by) {
        return Err(Errno::ENOMEM);
    }
    packet.begin_link_header();
    packet.move_network_header(-by);
    Ok(())
}

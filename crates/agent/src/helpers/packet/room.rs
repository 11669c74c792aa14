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
/// `EINVAL` for flags, and for a packet that would be too long, or would end before its headers;
/// `ENOTSUPP` if another packet is in it.
pub fn skb_change_tail(context: &mut Context, _: u64, len: u32, flags: u64) -> Result<(), Errno> {
    let packet = packet_of(context)?;
    let least = match packet.transport_offset() {
        Some(transport) if transport > 0 => transport,
        _ => packet.network_offset().max(0),
    };
    let by = (len as isize).wrapping_sub(packet.len().cast_signed());
    if flags != 0 || len > SKB_MAX_LEN || (len as isize) < least {
        return Err(Errno::EINVAL);
    }
    if packet.is_encapsulated {
        return Err(Errno::ENOTSUPP);
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

/// The flags for a header that is put around the packet.
const ENCAP_L3: u64 = F_ADJ_ROOM_ENCAP_L3_IPV4 | F_ADJ_ROOM_ENCAP_L3_IPV6;
/// The flags for a header that is taken away.
const DECAP_L3: u64 = F_ADJ_ROOM_DECAP_L3_IPV4 | F_ADJ_ROOM_DECAP_L3_IPV6;
/// The flags that are known without those.
const PLAIN: u64 = F_ADJ_ROOM_FIXED_GSO | F_ADJ_ROOM_NO_CSUM_RESET;
/// All flags that are known.
const ADJ_ROOM: u64 = PLAIN
    | ENCAP_L3
    | DECAP_L3
    | F_ADJ_ROOM_ENCAP_L4_GRE
    | F_ADJ_ROOM_ENCAP_L4_UDP
    | F_ADJ_ROOM_ENCAP_L2_ETH
    | ADJ_ROOM_ENCAP_L2_MASK << ADJ_ROOM_ENCAP_L2_SHIFT;

/// `bpf_skb_adjust_room(skb, len_diff, mode, flags)`: room behind a header, or less of it.
///
/// # Errors
///
/// `EINVAL` for flags that are unknown or contradict each other, `EFAULT` for too much, `ENOTSUPP`
/// if the packet is not of IP, for another mode, and if the packet would be too short or too long,
/// `EALREADY` for a second header around it.
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
    if flags & !ADJ_ROOM != 0 {
        return Err(Errno::EINVAL);
    }
    if by.unsigned_abs() > MOST {
        return Err(Errno::EFAULT);
    }
    let header = network_header_len(packet).ok_or(Errno::ENOTSUPP)?;
    let kept = match mode {
        ADJ_ROOM_NET => packet.link_header_len() + header,
        ADJ_ROOM_MAC => packet.link_header_len(),
        _ => return Err(Errno::ENOTSUPP),
    };
    let least = match flags & DECAP_L3 {
        0 => header,
        _ if by >= 0 => return Err(Errno::EINVAL),
        F_ADJ_ROOM_DECAP_L3_IPV4 => IPHDR_BYTES,
        F_ADJ_ROOM_DECAP_L3_IPV6 => IPV6HDR_BYTES,
        _ => return Err(Errno::EINVAL),
    };
    let behind_link = packet.len().cast_signed() - packet.network_offset();
    let is_too_short = by < 0 && behind_link + by < least.cast_signed();
    let is_too_long = by >= 0 && !may_have(packet, packet.len() + by.unsigned_abs());
    if is_too_short || is_too_long {
        return Err(Errno::ENOTSUPP);
    }
    match by < 0 {
        true => shrink(packet, kept, by, flags)?,
        false => grow(packet, kept, by, flags)?,
    }
    if flags & F_ADJ_ROOM_NO_CSUM_RESET == 0 {
        packet.good_checksums = 0;
    }
    Ok(())
}

/// Takes bytes away behind the first ones (`bpf_skb_net_shrink`).
fn shrink(packet: &mut Packet, kept: usize, by: isize, flags: u64) -> Result<(), Errno> {
    if flags & !(PLAIN | DECAP_L3) != 0 {
        return Err(Errno::EINVAL);
    }
    if packet.skb.gso_size != 0 {
        return Err(Errno::ENOTSUPP);
    }
    change(packet, kept, by)?;
    let other = flags & DECAP_L3;
    become_of(
        packet,
        other == F_ADJ_ROOM_DECAP_L3_IPV4,
        other == F_ADJ_ROOM_DECAP_L3_IPV6,
    );
    Ok(())
}

/// Puts zeros behind the first bytes (`bpf_skb_net_grow`).
fn grow(packet: &mut Packet, kept: usize, by: isize, flags: u64) -> Result<(), Errno> {
    if packet.skb.gso_size != 0 {
        return Err(Errno::ENOTSUPP);
    }
    let has = |flag| flags & flag != 0;
    let encapsulates = has(ENCAP_L3);
    let is_both = |set: u64| flags & set == set;
    let inner_link = flags >> ADJ_ROOM_ENCAP_L2_SHIFT;
    if encapsulates {
        if is_both(ENCAP_L3)
            || is_both(F_ADJ_ROOM_ENCAP_L4_GRE | F_ADJ_ROOM_ENCAP_L4_UDP)
            || has(F_ADJ_ROOM_ENCAP_L2_ETH) && inner_link < ETH_HLEN.into()
        {
            return Err(Errno::EINVAL);
        }
        if packet.is_encapsulated {
            return Err(Errno::EALREADY);
        }
        if inner_link > by.unsigned_abs() as u64 {
            return Err(Errno::EINVAL);
        }
    }
    change(packet, kept, by)?;
    if encapsulates {
        packet.is_encapsulated = true;
        if has(F_ADJ_ROOM_ENCAP_L4_GRE | F_ADJ_ROOM_ENCAP_L4_UDP) {
            let is_ipv6 = has(F_ADJ_ROOM_ENCAP_L3_IPV6);
            packet.begin_transport_header(if is_ipv6 { IPV6HDR_BYTES } else { IPHDR_BYTES });
        }
        become_of(
            packet,
            has(F_ADJ_ROOM_ENCAP_L3_IPV4),
            has(F_ADJ_ROOM_ENCAP_L3_IPV6),
        );
    }
    Ok(())
}

/// Moves the first bytes, with the headers that begin there.
fn change(packet: &mut Packet, kept: usize, by: isize) -> Result<(), Errno> {
    let is_room = packet.make_room(by.max(0).unsigned_abs(), 0);
    if !is_room || !packet.move_first(kept, by) {
        return Err(Errno::ENOMEM);
    }
    packet.move_link_header(-by);
    packet.move_network_header(-by);
    Ok(())
}

/// Makes it a packet of the other version of IP, where that is wanted.
fn become_of(packet: &mut Packet, ipv4: bool, ipv6: bool) {
    let protocol = match u16::from_be(packet.skb.protocol as u16) {
        ETH_P_IP if ipv6 => ETH_P_IPV6,
        ETH_P_IPV6 if ipv4 => ETH_P_IP,
        _ => return,
    };
    packet.skb.protocol = protocol.to_be().into();
}

//! Packets of test runs: helpers of all program types, and of those with a `struct __sk_buff`.
//!
//! They follow `net/core/filter.c`. A helper takes the packet from the run, not from the context in
//! r1, so it needs no trust in that: in other runs there is none.

pub mod checksum;
pub mod room;
pub mod xdp;

use beeline_isa::abi::packet_load;
use beeline_uapi::Errno;
use beeline_uapi::packet::*;

use super::convention::{Readable, Writable, shim};
use crate::abi::Context;
use crate::arch;
use crate::packet::{Header, Packet, Way};

/// The greatest offset or size that helpers for whole packets take.
const MOST: u64 = 0xffff;

/// Returns the packet of a run.
///
/// # Errors
///
/// `EFAULT` if it has none.
fn packet_of(context: &mut Context) -> Result<&mut Packet, Errno> {
    // SAFETY: whoever began the run has promised a packet that nobody else uses, or null.
    unsafe { context.packet.as_mut() }.ok_or(Errno::EFAULT)
}

/// Puts the functions for classic loads into the table.
///
/// # Safety
///
/// `table` must have room for all helpers.
pub unsafe fn put_packet_loads(table: *mut usize) {
    macro_rules! put {
        ($($bytes:literal)*) => {$(
            if let Some(place) = const { packet_load($bytes) } {
                let helper = shim(load::<$bytes>);
                // SAFETY: the caller promises that the table has room for all helpers, and the
                // place is one of the table's.
                unsafe { table.add(place as usize).write(helper as usize) };
            }
        )*};
    }
    put! { 1 2 4 }
}

/// Loads a number in network order, of `N` bytes (`bpf_skb_load_helper_*`). A negative offset counts
/// from a header.
///
/// # Errors
///
/// `EFAULT` if it is not all in the packet.
fn load<const N: usize>(context: &mut Context, _: u64, offset: u32) -> Result<u64, Errno> {
    let packet = packet_of(context)?;
    let offset = offset.cast_signed();
    let len = N as u64;
    let at = match offset {
        0.. => packet.at(offset as u64, len),
        SKF_NET_OFF..0 => packet.behind_header(
            Header::Network,
            i64::from(offset) - i64::from(SKF_NET_OFF),
            len,
        ),
        SKF_LL_OFF..SKF_NET_OFF => {
            packet.behind_header(Header::Link, i64::from(offset) - i64::from(SKF_LL_OFF), len)
        }
        _ => None,
    };
    let at = at.ok_or(Errno::EFAULT)?;
    // SAFETY: the packet has `N` bytes there.
    let bytes = unsafe { at.cast::<[u8; N]>().read() };
    Ok(bytes
        .iter()
        .fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

/// Fills memory with zeros, as helpers do that could not fill it with anything else.
fn clear(memory: Writable, len: u32) {
    // SAFETY: the program answers for `len` bytes.
    unsafe { arch::zero(memory.as_mut_ptr(), len as usize) };
}

/// `bpf_skb_load_bytes(skb, offset, to, len)`.
///
/// # Errors
///
/// `EFAULT`, and zeros, if not all of it is in the packet, and always in a test run of a flow
/// dissector.
pub fn skb_load_bytes(
    context: &mut Context,
    _: u64,
    offset: u32,
    to: Writable,
    len: u32,
) -> Result<(), Errno> {
    let packet = packet_of(context)?;
    let is_offset = offset <= i32::MAX.cast_unsigned() && !packet.is_bare;
    // SAFETY: the program answers for `len` bytes.
    if is_offset && unsafe { packet.copy(offset.into(), to.as_mut_ptr(), len.into(), Way::Out) } {
        return Ok(());
    }
    clear(to, len);
    Err(Errno::EFAULT)
}

/// `bpf_skb_load_bytes_relative(skb, offset, to, len, start_header)`.
///
/// # Errors
///
/// `EFAULT`, and zeros, if not all of it is in the packet, or there is no such header.
pub fn skb_load_bytes_relative(
    context: &mut Context,
    _: u64,
    offset: u32,
    to: Writable,
    len: u32,
    start: u32,
) -> Result<(), Errno> {
    let packet = packet_of(context)?;
    let header = match start {
        HDR_START_MAC => Some(Header::Link),
        HDR_START_NET => Some(Header::Network),
        _ => None,
    };
    let found = header
        .filter(|_| u64::from(offset) <= MOST)
        .and_then(|header| packet.behind_header(header, offset.into(), len.into()));
    let Some(from) = found else {
        clear(to, len);
        return Err(Errno::EFAULT);
    };
    // SAFETY: the packet has `len` bytes there, and the program answers for as many.
    unsafe { arch::shift(to.as_mut_ptr(), from, len as usize) };
    Ok(())
}

/// `bpf_skb_store_bytes(skb, offset, from, len, flags)`.
///
/// # Errors
///
/// `EINVAL` for unknown flags, `EFAULT` if not all of it is in the packet.
pub fn skb_store_bytes(
    context: &mut Context,
    _: u64,
    offset: u32,
    from: Readable,
    len: u32,
    flags: u64,
) -> Result<(), Errno> {
    let packet = packet_of(context)?;
    if flags & !(F_RECOMPUTE_CSUM | F_INVALIDATE_HASH) != 0 {
        return Err(Errno::EINVAL);
    }
    let is_offset = offset <= i32::MAX.cast_unsigned();
    let from = from.as_ptr().cast_mut();
    // SAFETY: the program answers for `len` bytes, which are only read.
    if !is_offset || !unsafe { packet.copy(offset.into(), from, len.into(), Way::In) } {
        return Err(Errno::EFAULT);
    }
    if flags & F_INVALIDATE_HASH != 0 {
        packet.skb.hash = 0;
    }
    Ok(())
}

/// `bpf_skb_pull_data(skb, len)`: all of the packet can be accessed directly already.
///
/// # Errors
///
/// `ENOMEM` if the packet is not that long.
pub fn skb_pull_data(context: &mut Context, _: u64, len: u32) -> Result<(), Errno> {
    let packet = packet_of(context)?;
    match len as usize <= packet.len() {
        true => Ok(()),
        false => Err(Errno::ENOMEM),
    }
}

/// `bpf_skb_change_type(skb, type)`.
///
/// # Errors
///
/// `EINVAL` unless both the old type and the new one are those of received packets.
pub fn skb_change_type(context: &mut Context, _: u64, to: u32) -> Result<(), Errno> {
    let packet = packet_of(context)?;
    if packet.skb.pkt_type > PACKET_OTHERHOST || to > PACKET_OTHERHOST {
        return Err(Errno::EINVAL);
    }
    packet.skb.pkt_type = to;
    Ok(())
}

/// `bpf_set_hash(skb, hash)`.
///
/// # Errors
///
/// `EFAULT` without a packet.
pub fn set_hash(context: &mut Context, _: u64, hash: u32) -> Result<(), Errno> {
    packet_of(context)?.skb.hash = hash;
    Ok(())
}

/// `bpf_set_hash_invalid(skb)`.
///
/// # Errors
///
/// `EFAULT` without a packet.
pub fn set_hash_invalid(context: &mut Context, skb: u64) -> Result<(), Errno> {
    set_hash(context, skb, 0)
}

/// `bpf_redirect(ifindex, flags)`: what the program is to return. The packet of a test run goes
/// nowhere.
pub fn redirect(context: &mut Context, _: u64, flags: u64) -> u64 {
    let is_xdp = packet_of(context).is_ok_and(|packet| packet.is_xdp);
    match (is_xdp, flags) {
        (true, 0) => XDP_REDIRECT,
        (true, _) => XDP_ABORTED,
        (false, 0 | F_INGRESS) => TC_ACT_REDIRECT,
        (false, _) => TC_ACT_SHOT,
    }
}

//! Packets for test runs of programs: their memory, and what the kernel lays out around them.
//!
//! The addresses that programs find in their contexts have 32 bits (`agent::packet`), so the memory
//! is below 4 GiB. Pages that nobody may touch are around the packet.

use beeline_agent::packet::Packet as Shown;
use beeline_uapi::context::{FlowKeys, SkBuff, Sock, XdpMd};
use beeline_uapi::linux::PAGE_SIZE;
use beeline_uapi::packet::{
    ETH_HLEN, NET_SKB_PAD, SKB_SHARED_INFO_BYTES, XDP_FRAME_BYTES, XDP_METALEN_MAX,
    XDP_PACKET_HEADROOM,
};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};

use crate::arch;
use crate::error::{Error, os};

/// The bytes of a page.
const PAGE: usize = PAGE_SIZE as usize;
/// The bytes for a packet, far more than the longest one that a program can make.
const ROOM: usize = 64 << 10;
/// The bytes for the part of an `xdp` packet that programs do not access directly.
const REST: usize = 128 << 10;
/// Pages: the contexts, one that nobody may touch, the packet, another one, the rest, the last one.
const BYTES: usize = PAGE + PAGE + ROOM + PAGE + REST + PAGE;

/// The most bytes of an `xdp` packet that are in one piece.
pub const XDP_DIRECT: u32 = PAGE_SIZE as u32 - XDP_PACKET_HEADROOM - SKB_SHARED_INFO_BYTES;
/// The most bytes of a packet for other programs.
pub const SKB_LONGEST: u32 = PAGE_SIZE as u32 - NET_SKB_PAD as u32 - SKB_SHARED_INFO_BYTES;
/// The bytes of the link layer's header.
const LINK_HEADER: isize = ETH_HLEN as isize;
const _: () = assert!(size_of::<Shown>() <= PAGE, "the contexts are on one page");

/// The view that programs have of the link layer's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkHeader {
    /// The packet begins with it.
    Shown,
    /// The packet begins behind it.
    Hidden,
}

/// A packet in memory of its own.
#[derive(Debug)]
pub struct Packet {
    base: usize,
    /// The keys of its flow before each run.
    keys: FlowKeys,
}

impl Packet {
    /// Makes a packet for an `xdp` program. The first `meta` bytes are metadata before it; the first
    /// `direct` bytes, with these, are in one piece. What there is no room for is left out.
    ///
    /// # Errors
    ///
    /// [`Error::Os`] if there is no memory for it.
    pub fn xdp(bytes: &[u8], meta: usize, direct: usize) -> Result<Self, Error> {
        let packet = Self::map()?;
        let meta = meta.min(XDP_METALEN_MAX as usize).min(bytes.len());
        let direct = direct.min(XDP_DIRECT as usize + meta);
        let (first, rest) = bytes.split_at(direct.clamp(meta, bytes.len()));
        let rest = &rest[..rest.len().min(REST)];
        let frame = packet.base + 2 * PAGE;
        let start = frame + XDP_PACKET_HEADROOM as usize - meta;
        let limit = frame + PAGE - SKB_SHARED_INFO_BYTES as usize;
        let rest_at = packet.base + 3 * PAGE + ROOM;
        let fragments = rest.len().next_multiple_of(PAGE);
        packet.store(start, first);
        packet.store(rest_at, rest);
        let head = frame + XDP_FRAME_BYTES as usize;
        // SAFETY: this memory was mapped for the packet, which lies in it.
        let mut shown = unsafe { Shown::in_memory(head, start + meta, first.len() - meta, limit) };
        shown.is_xdp = true;
        shown.move_meta(-meta.cast_signed());
        // SAFETY: likewise.
        unsafe { shown.continue_at(rest_at, rest.len(), fragments) };
        Ok(packet.showing(shown))
    }

    /// Makes a packet for a program with a `struct __sk_buff`. It begins with an Ethernet header, at
    /// least; programs that do not see that see what follows. What there is no room for is left out.
    ///
    /// # Errors
    ///
    /// [`Error::Os`] if there is no memory for it.
    pub fn skb(bytes: &[u8], link_header: LinkHeader) -> Result<Self, Error> {
        let packet = Self::map()?;
        let bytes = &bytes[..bytes.len().min(ROOM / 2)];
        let head = packet.base + 2 * PAGE;
        let start = head + ROOM / 2;
        packet.store(start, bytes);
        // SAFETY: this memory was mapped for the packet, which lies in it.
        let mut shown = unsafe { Shown::in_memory(head, start, bytes.len(), head + ROOM) };
        shown.move_network_header(LINK_HEADER);
        if link_header == LinkHeader::Hidden {
            shown.move_start(LINK_HEADER);
        }
        Ok(packet.showing(shown))
    }

    /// Puts zeros in the place of the hidden link layer's header, as the kernel does after a run.
    pub fn put_link_header(&mut self) {
        let shown = self.shown();
        shown.make_room(LINK_HEADER.unsigned_abs(), 0);
        shown.move_first(0, LINK_HEADER);
    }

    /// Returns the context of programs with a `struct __sk_buff`.
    pub fn skb_context(&mut self) -> &mut SkBuff {
        &mut self.shown().skb
    }

    /// Returns the context of `xdp` programs.
    pub fn xdp_context(&mut self) -> &mut XdpMd {
        &mut self.shown().xdp
    }

    /// Returns the socket that the packet belongs to; `skb_context` leads to it from now on.
    pub fn socket(&mut self) -> &mut Sock {
        let shown = self.shown();
        shown.skb.sk = (&raw const shown.sock).expose_provenance() as u64;
        &mut shown.sock
    }

    /// Sets the keys of the flow with which each run begins; `skb_context` leads to them from now on.
    pub fn begin_with_keys(&mut self, keys: FlowKeys) {
        self.keys = keys;
        let shown = self.shown();
        shown.is_bare = true;
        shown.skb.flow_keys = (&raw const shown.flow_keys).expose_provenance() as u64;
    }

    /// Returns the keys of the flow as the last run has left them.
    pub fn flow_keys(&mut self) -> FlowKeys {
        self.shown().flow_keys
    }

    /// Makes it ready for a run: what the last one has done to the packet stays.
    pub(crate) fn begin(&mut self) {
        self.shown().flow_keys = self.keys;
    }

    /// Returns the bytes of metadata before it.
    pub fn meta_len(&mut self) -> usize {
        self.shown().meta_len()
    }

    /// Returns its bytes that follow the metadata in one piece.
    pub fn direct_len(&mut self) -> usize {
        self.shown().direct_len()
    }

    /// Returns the packet as helpers see it.
    pub(crate) fn shown(&mut self) -> &mut Shown {
        // SAFETY: `showing` has put it there, in memory that belongs to this packet.
        unsafe { &mut *(self.base as *mut Shown) }
    }

    /// Returns its bytes as they are now, from the metadata on.
    pub fn bytes(&mut self) -> Vec<u8> {
        let shown = self.shown();
        let direct = shown.meta_len() + shown.direct_len();
        // SAFETY: as many bytes are there, in memory that belongs to this packet.
        unsafe {
            let first = std::slice::from_raw_parts(shown.start(), direct);
            match shown.rest_len() {
                0 => first.to_vec(),
                rest => [first, std::slice::from_raw_parts(shown.rest(), rest)].concat(),
            }
        }
    }

    fn map() -> Result<Self, Error> {
        // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                BYTES,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | arch::MAP_LOW,
            )
        };
        let base = base.map_err(|error| os("mapping memory below 4 GiB")(error.into()))?;
        let packet = Self {
            base: base as usize,
            keys: FlowKeys::default(),
        };
        let guards = [PAGE, 2 * PAGE + ROOM, 3 * PAGE + ROOM + REST];
        for guard in guards {
            // SAFETY: the page is in the mapping, and nothing is there yet.
            unsafe {
                rustix::mm::mprotect(
                    (packet.base + guard) as *mut _,
                    PAGE,
                    MprotectFlags::empty(),
                )
            }
            .map_err(|error| os("protecting memory")(error.into()))?;
        }
        Ok(packet)
    }

    /// Stores bytes in the packet's memory, which has room for them.
    fn store(&self, at: usize, bytes: &[u8]) {
        // SAFETY: this memory was mapped for the packet, and nobody else uses it yet.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len()) };
    }

    fn showing(self, shown: Shown) -> Self {
        // SAFETY: the first page was mapped for it, and nobody uses it yet.
        unsafe { (self.base as *mut Shown).write(shown) };
        self
    }
}

impl Drop for Packet {
    fn drop(&mut self) {
        // SAFETY: `map` mapped the region, and no program runs on it any more.
        let _ = unsafe { rustix::mm::munmap(self.base as *mut _, BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_have_addresses_of_32_bits() {
        let mut packet = Packet::xdp(&[7; 100], 4, 100).expect("memory");
        let xdp = packet.shown().xdp;
        assert_eq!(xdp.data, xdp.data_meta + 4);
        assert_eq!(xdp.data_end, xdp.data + 96);
        assert_eq!(xdp.data_meta as usize, packet.shown().start() as usize);
        assert_eq!(packet.bytes(), [7; 100]);
    }

    #[test]
    fn a_long_packet_goes_on_elsewhere() {
        let bytes: Vec<u8> = (0..9000).map(|at| at as u8).collect();
        let mut packet = Packet::xdp(&bytes, 0, XDP_DIRECT as usize).expect("memory");
        assert_eq!(packet.shown().direct_len(), XDP_DIRECT as usize);
        assert_eq!(packet.shown().len(), bytes.len());
        assert_eq!(packet.bytes(), bytes);
    }

    #[test]
    fn a_packet_moves_where_room_is_asked_for() {
        let bytes: Vec<u8> = (0..100).collect();
        let mut packet = Packet::skb(&bytes, LinkHeader::Shown).expect("memory");
        assert!(packet.shown().make_room(60_000, 0));
        assert!(packet.shown().headroom() >= 60_000);
        assert_eq!(packet.bytes(), bytes);
        assert!(packet.shown().make_room(0, 60_000));
        assert!(packet.shown().tailroom() >= 60_000);
        assert_eq!(packet.bytes(), bytes);
        assert!(!packet.shown().make_room(40_000, 40_000));
    }
}

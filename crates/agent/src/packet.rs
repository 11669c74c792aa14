//! The packet that a program of a test run works on.
//!
//! Only Beeline itself runs such programs. The packet and the contexts that show it are below 4 GiB:
//! a program's contexts have addresses of 32 bits, which the kernel rewrites to loads of pointers,
//! and which are the pointers themselves here. What programs are shown is a copy of what helpers go
//! by, so that a program that writes there harms nothing.

use core::ptr::with_exposed_provenance_mut as place;

use beeline_uapi::context::{FlowKeys, SkBuff, Sock, XdpMd};
use beeline_uapi::packet::NET_SKB_PAD;

use crate::arch;

/// The packet of one run, and the contexts that programs of all types see of it.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Packet {
    /// The context of programs with a `struct __sk_buff`.
    pub skb: SkBuff,
    /// The context of `xdp` programs.
    pub xdp: XdpMd,
    /// The socket that `skb` leads to.
    pub sock: Sock,
    /// The result of a flow dissector.
    pub flow_keys: FlowKeys,
    /// True for a packet of an `xdp` program.
    pub is_xdp: bool,
    /// True if there is nothing of it but what can be accessed directly: a flow dissector's.
    pub is_bare: bool,
    /// The number of checksums that are known to be good (`csum_level` of `struct sk_buff`, plus 1).
    pub good_checksums: u32,
    /// True if another packet is in it (`encapsulation` of `struct sk_buff`).
    pub is_encapsulated: bool,
    bounds: Bounds,
}

/// Addresses in the packet's memory, ascending but for the last two.
#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
struct Bounds {
    /// The lowest address that the packet may come to begin at.
    head: usize,
    /// The metadata before the packet.
    meta: usize,
    /// The packet.
    data: usize,
    /// The end of the packet's directly accessible bytes.
    end: usize,
    /// The end of the memory that these may come to have.
    limit: usize,
    /// The bytes of the packet that follow elsewhere, only reached by helpers.
    rest: usize,
    /// The number of those.
    rest_len: usize,
    /// The number of bytes there.
    rest_room: usize,
    /// The link layer's header.
    mac: usize,
    /// The network layer's header.
    network: usize,
    /// The transport layer's header; 0 if it is not known.
    transport: usize,
    /// The bytes before the packet that the kernel would have by now.
    kernel_headroom: usize,
}

impl Packet {
    /// Returns a packet of zeros with contexts of zeros: `len` bytes from `data` on.
    ///
    /// # Safety
    ///
    /// The memory from `head` to `limit` must be there, below 4 GiB, and nobody else's as long as
    /// the packet is used, and the packet must lie in it.
    pub unsafe fn in_memory(head: usize, data: usize, len: usize, limit: usize) -> Self {
        let mut packet = Self {
            bounds: Bounds {
                head,
                meta: data,
                data,
                end: data.wrapping_add(len),
                limit,
                mac: data,
                network: data,
                kernel_headroom: NET_SKB_PAD,
                ..Bounds::default()
            },
            ..Self::default()
        };
        packet.show();
        packet
    }

    /// Adds bytes that follow the packet elsewhere, as in the kernel's fragments.
    ///
    /// # Safety
    ///
    /// The memory must be as for [`Self::in_memory`], and apart from the other's.
    pub unsafe fn continue_at(&mut self, rest: usize, len: usize, room: usize) {
        (self.bounds.rest, self.bounds.rest_len) = (rest, len);
        self.bounds.rest_room = room;
    }

    /// Returns the number of the packet's bytes, with those that follow elsewhere.
    pub fn len(&self) -> usize {
        self.direct_len().wrapping_add(self.bounds.rest_len)
    }

    /// True if the packet has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of its directly accessible bytes.
    pub fn direct_len(&self) -> usize {
        self.bounds.end.wrapping_sub(self.bounds.data)
    }

    /// Returns the number of its bytes that follow elsewhere.
    pub fn rest_len(&self) -> usize {
        self.bounds.rest_len
    }

    /// Returns the number of the bytes of metadata before it.
    pub fn meta_len(&self) -> usize {
        self.bounds.data.wrapping_sub(self.bounds.meta)
    }

    /// Returns the address of its metadata, which its directly accessible bytes follow.
    pub fn start(&self) -> *mut u8 {
        place(self.bounds.meta)
    }

    /// Returns the address of the bytes that follow elsewhere.
    pub fn rest(&self) -> *mut u8 {
        place(self.bounds.rest)
    }

    /// Returns the number of bytes before the packet's metadata.
    pub fn headroom(&self) -> usize {
        self.bounds.meta.wrapping_sub(self.bounds.head)
    }

    /// Returns the number of bytes behind the directly accessible ones.
    pub fn tailroom(&self) -> usize {
        self.bounds.limit.wrapping_sub(self.bounds.end)
    }

    /// Returns where the network layer's header is, from the packet's start.
    pub fn network_offset(&self) -> isize {
        self.bounds
            .network
            .wrapping_sub(self.bounds.data)
            .cast_signed()
    }

    /// Returns where the transport layer's header is, from the packet's start, if that is known.
    pub fn transport_offset(&self) -> Option<isize> {
        let Bounds {
            transport, data, ..
        } = self.bounds;
        (transport != 0).then(|| transport.wrapping_sub(data).cast_signed())
    }

    /// Says where the transport layer's header is, from that of the network layer.
    pub fn begin_transport_header(&mut self, behind_network: usize) {
        self.bounds.transport = self.bounds.network.wrapping_add(behind_network);
    }

    /// Returns the bytes between the headers of the link layer and of the network layer.
    pub fn link_header_len(&self) -> usize {
        self.bounds.network.wrapping_sub(self.bounds.mac)
    }

    /// Makes the packet's start the link layer's header.
    pub fn begin_link_header(&mut self) {
        self.bounds.mac = self.bounds.data;
    }

    /// Moves the network layer's header by so many bytes.
    pub fn move_network_header(&mut self, by: isize) {
        self.bounds.network = self.bounds.network.wrapping_add_signed(by);
    }

    /// Moves the link layer's header by so many bytes.
    pub fn move_link_header(&mut self, by: isize) {
        self.bounds.mac = self.bounds.mac.wrapping_add_signed(by);
    }

    /// Returns the address of bytes of the packet that can be accessed directly, if all are there.
    pub fn at(&self, offset: u64, len: u64) -> Option<*mut u8> {
        let behind = offset.checked_add(len)?;
        (behind <= self.direct_len() as u64)
            .then(|| place(self.bounds.data.wrapping_add(offset as usize)))
    }

    /// Returns the address of bytes behind the start of a header, if all of them lie before the
    /// packet's end and no byte before its memory.
    pub fn behind_header(&self, header: Header, offset: i64, len: u64) -> Option<*mut u8> {
        let header = match header {
            Header::Link => self.bounds.mac,
            Header::Network => self.bounds.network,
        };
        let at = header.wrapping_add_signed(offset as isize);
        let behind = at.checked_add(len as usize)?;
        (at >= self.bounds.head && behind <= self.bounds.end).then(|| place(at))
    }

    /// Copies bytes of the packet out of it, or into it; false if not all of them are there.
    ///
    /// # Safety
    ///
    /// There must be `len` bytes at `memory`, to be written if the packet is read.
    pub unsafe fn copy(&mut self, offset: u64, memory: *mut u8, len: u64, way: Way) -> bool {
        let Some(behind) = offset
            .checked_add(len)
            .filter(|end| *end <= self.len() as u64)
        else {
            return false;
        };
        let direct = self.direct_len() as u64;
        let here = behind.min(direct).saturating_sub(offset);
        if here > 0 {
            let at = place(self.bounds.data.wrapping_add(offset as usize));
            // SAFETY: these bytes are in the packet, and the caller answers for the others.
            unsafe { way.carry(at, memory, here as usize) };
        }
        if here < len {
            let skipped = offset.saturating_sub(direct);
            let at = place(self.bounds.rest.wrapping_add(skipped as usize));
            // SAFETY: these bytes are in the packet's rest, and the caller answers for the others.
            unsafe {
                way.carry(
                    at,
                    memory.wrapping_add(here as usize),
                    (len - here) as usize,
                )
            };
        }
        true
    }

    /// Lets the packet begin so many bytes later, or earlier if negative, with its metadata moved
    /// along; false if there is no room, or not as many bytes.
    pub fn move_start(&mut self, by: isize) -> bool {
        if by < -self.headroom().cast_signed() || by > self.direct_len().cast_signed() {
            return false;
        }
        let meta = self.meta_len();
        let to = self.bounds.meta.wrapping_add_signed(by);
        if meta > 0 {
            // SAFETY: both places lie in the packet's memory.
            unsafe { arch::shift(place(to), place(self.bounds.meta), meta) };
        }
        self.bounds.meta = to;
        self.bounds.data = self.bounds.data.wrapping_add_signed(by);
        self.bounds.kernel_headroom = self.bounds.kernel_headroom.wrapping_add_signed(by);
        self.show();
        true
    }

    /// Lets the metadata begin so many bytes later, or earlier if negative; false if there is no
    /// room, or not as many bytes.
    pub fn move_meta(&mut self, by: isize) -> bool {
        if by < -self.headroom().cast_signed() || by > self.meta_len().cast_signed() {
            return false;
        }
        self.bounds.meta = self.bounds.meta.wrapping_add_signed(by);
        self.show();
        true
    }

    /// Lets the packet's directly accessible bytes end so many bytes later, zeros, or earlier if
    /// negative; false if there is no room, or not as many bytes.
    pub fn move_end(&mut self, by: isize) -> bool {
        if by > self.tailroom().cast_signed() || by < -self.direct_len().cast_signed() {
            return false;
        }
        if by > 0 {
            // SAFETY: there is room.
            unsafe { arch::zero(place(self.bounds.end), by.unsigned_abs()) };
        }
        self.bounds.end = self.bounds.end.wrapping_add_signed(by);
        self.show();
        true
    }

    /// Adds so many zeros to the bytes that follow elsewhere; false if there is no room.
    pub fn grow_rest(&mut self, by: usize) -> bool {
        let Bounds {
            rest,
            rest_len,
            rest_room,
            ..
        } = self.bounds;
        if by > rest_room.saturating_sub(rest_len) {
            return false;
        }
        // SAFETY: there is room.
        unsafe { arch::zero(place(rest.wrapping_add(rest_len)), by) };
        self.bounds.rest_len = rest_len.wrapping_add(by);
        true
    }

    /// Cuts bytes off the end of those that follow elsewhere.
    pub fn cut_rest(&mut self, by: usize) {
        self.bounds.rest_len = self.bounds.rest_len.saturating_sub(by);
    }

    /// Makes room for so many bytes before and behind the packet, where there is more of it on the
    /// other side; false if there is too little of it altogether. A packet that has moved is at
    /// other addresses.
    pub fn make_room(&mut self, before: usize, behind: usize) -> bool {
        let room = self.headroom().wrapping_add(self.tailroom());
        if before.saturating_add(behind) > room {
            return false;
        }
        if before <= self.headroom() && behind <= self.tailroom() {
            return true;
        }
        let to = self.bounds.head + before + (room - before - behind) / 2;
        let by = to.wrapping_sub(self.bounds.meta);
        // SAFETY: the packet fits between the room that is asked for, within its memory.
        unsafe {
            let len = self.bounds.end.wrapping_sub(self.bounds.meta);
            arch::shift(place(to), place(self.bounds.meta), len);
        }
        let bounds = &mut self.bounds;
        for address in [
            &mut bounds.meta,
            &mut bounds.data,
            &mut bounds.end,
            &mut bounds.mac,
            &mut bounds.network,
        ] {
            *address = address.wrapping_add(by);
        }
        if bounds.transport != 0 {
            bounds.transport = bounds.transport.wrapping_add(by);
        }
        self.show();
        true
    }

    /// Moves the first `kept` bytes of the packet so many bytes ahead, to make room with zeros behind
    /// them, or back over what follows if `by` is negative; false if there is no room, or not as
    /// many bytes. The metadata is gone then.
    pub fn move_first(&mut self, kept: usize, by: isize) -> bool {
        let over = (-by).max(0).unsigned_abs();
        let is_there = kept.saturating_add(over) <= self.direct_len();
        if !is_there || by > self.headroom().cast_signed() {
            return false;
        }
        let to = self.bounds.data.wrapping_add_signed(-by);
        // SAFETY: both places lie in the packet's memory.
        unsafe {
            arch::shift(place(to), place(self.bounds.data), kept);
            if by > 0 {
                arch::zero(place(to.wrapping_add(kept)), by.unsigned_abs());
            }
        }
        self.use_headroom(by);
        self.bounds.data = to;
        self.bounds.meta = to;
        self.show();
        true
    }

    /// Does to the headers what the kernel does when the packet grows or shrinks at its start. Where
    /// it has to move the packet, it takes the mark of an unknown transport header for a place: that
    /// of the byte before its old memory (`skb_headers_offset_update`).
    fn use_headroom(&mut self, by: isize) {
        let Bounds {
            data,
            transport,
            kernel_headroom: has,
            ..
        } = self.bounds;
        let missing = by.max(0).unsigned_abs().saturating_sub(has);
        if missing > 0 && transport == 0 {
            self.bounds.transport = data.wrapping_sub(has).wrapping_sub(1);
        }
        let has = has.wrapping_add(missing.next_multiple_of(NET_SKB_PAD));
        self.bounds.kernel_headroom = has.wrapping_add_signed(-by);
    }

    /// Shows programs where the packet is.
    fn show(&mut self) {
        let Bounds {
            meta, data, end, ..
        } = self.bounds;
        let [meta, data, end] = [meta, data, end].map(|address| address as u32);
        (self.xdp.data_meta, self.xdp.data, self.xdp.data_end) = (meta, data, end);
        (self.skb.data_meta, self.skb.data, self.skb.data_end) = (meta, data, end);
        self.skb.len = self.len() as u32;
    }
}

/// The start of a layer's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Header {
    /// The link layer's.
    Link,
    /// The network layer's.
    Network,
}

/// The way in which bytes are copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Out of the packet.
    Out,
    /// Into the packet.
    In,
}

impl Way {
    /// Copies between a packet and memory.
    ///
    /// # Safety
    ///
    /// There must be `len` bytes at both.
    unsafe fn carry(self, packet: *mut u8, memory: *mut u8, len: usize) {
        let (from, to) = match self {
            Self::Out => (packet, memory),
            Self::In => (memory, packet),
        };
        // SAFETY: the caller promises that the bytes are there.
        unsafe { arch::shift(to, from, len) };
    }
}

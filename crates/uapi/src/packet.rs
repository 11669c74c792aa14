//! Numbers of packets, of the helpers that change them, and of what programs for them return.

#![allow(missing_docs, reason = "the names are the kernel's")]

// linux/if_ether.h
/// The bytes of an Ethernet header.
pub const ETH_HLEN: u32 = 14;
/// The bytes of an Ethernet address.
pub const ETH_ALEN: usize = 6;
pub const ETH_P_802_3: u16 = 0x0001;
pub const ETH_P_802_2: u16 = 0x0004;
/// Smaller numbers in the place of the protocol are lengths.
pub const ETH_P_802_3_MIN: u16 = 0x0600;
pub const ETH_P_IP: u16 = 0x0800;
pub const ETH_P_8021Q: u16 = 0x8100;
pub const ETH_P_IPV6: u16 = 0x86dd;
pub const ETH_P_8021AD: u16 = 0x88a8;

// linux/if_packet.h
pub const PACKET_HOST: u32 = 0;
pub const PACKET_BROADCAST: u32 = 1;
pub const PACKET_MULTICAST: u32 = 2;
pub const PACKET_OTHERHOST: u32 = 3;

// linux/if_vlan.h
/// The bytes of a VLAN tag in a packet.
pub const VLAN_HLEN: usize = 4;

// The address families of sockets (linux/socket.h).
pub const AF_INET: u32 = 2;
pub const AF_INET6: u32 = 10;
/// A state of sockets (linux/tcp_states.h).
pub const TCP_CLOSE: u32 = 7;
/// A packet of no queue (linux/netdevice.h).
pub const NO_QUEUE_MAPPING: u32 = u16::MAX as u32;

/// The bytes of `struct iphdr` (linux/ip.h).
pub const IPHDR_BYTES: usize = 20;
/// The bytes of `struct ipv6hdr` (linux/ipv6.h).
pub const IPV6HDR_BYTES: usize = 40;
/// In `struct iphdr`: the address of the sender; that of the receiver follows.
pub const IPHDR_SADDR: usize = 12;
/// In `struct ipv6hdr`: the address of the sender; that of the receiver follows.
pub const IPV6HDR_SADDR: usize = 8;

// Test runs (net/bpf/test_run.c).
/// The bytes before an `xdp` packet (net/xdp.h).
pub const XDP_PACKET_HEADROOM: u32 = 256;
/// The bytes of `struct xdp_frame` at the start of those.
pub const XDP_FRAME_BYTES: u32 = 40;
/// The bytes of `struct skb_shared_info` behind a packet.
pub const SKB_SHARED_INFO_BYTES: u32 = 320;
/// The bytes before a packet of other programs (linux/skbuff.h); `NET_IP_ALIGN` adds none.
pub const NET_SKB_PAD: usize = 64;
/// The most bytes of metadata before an `xdp` packet: what `meta_len` of `struct skb_shared_info`
/// can say.
pub const XDP_METALEN_MAX: u32 = 252;
/// The most bytes that a packet can be grown to: `BPF_SKB_MAX_LEN` (net/core/filter.c).
pub const SKB_MAX_LEN: u32 = 4 * 4096 - SKB_SHARED_INFO_BYTES;
/// The most bytes of a packet that the kernel cuts up (linux/netdevice.h).
pub const GSO_LEGACY_MAX_SIZE: u32 = 65_536;
/// The most parts that it is cut into (linux/netdevice.h).
pub const GSO_MAX_SEGS: u32 = 65_535;
/// The most fragments of a packet (linux/skbuff.h).
pub const MAX_SKB_FRAGS: u32 = 17;
/// The most packets at once of a test run with `BPF_F_TEST_XDP_LIVE_FRAMES`.
pub const TEST_XDP_MAX_BATCH: u32 = 256;

// Results of programs (linux/bpf.h, linux/pkt_cls.h).
pub const XDP_ABORTED: u64 = 0;
pub const XDP_REDIRECT: u64 = 4;
pub const TC_ACT_SHOT: u64 = 2;
pub const TC_ACT_REDIRECT: u64 = 7;

// Flags of helpers (linux/bpf.h).
pub const F_RECOMPUTE_CSUM: u64 = 1 << 0;
pub const F_INVALIDATE_HASH: u64 = 1 << 1;
pub const F_HDR_FIELD_MASK: u64 = 0xf;
pub const F_PSEUDO_HDR: u64 = 1 << 4;
pub const F_MARK_MANGLED_0: u64 = 1 << 5;
pub const F_MARK_ENFORCE: u64 = 1 << 6;
pub const F_IPV6: u64 = 1 << 7;
pub const F_INGRESS: u64 = 1 << 0;
pub const F_ADJ_ROOM_FIXED_GSO: u64 = 1 << 0;
pub const F_ADJ_ROOM_ENCAP_L3_IPV4: u64 = 1 << 1;
pub const F_ADJ_ROOM_ENCAP_L3_IPV6: u64 = 1 << 2;
pub const F_ADJ_ROOM_ENCAP_L4_GRE: u64 = 1 << 3;
pub const F_ADJ_ROOM_ENCAP_L4_UDP: u64 = 1 << 4;
pub const F_ADJ_ROOM_NO_CSUM_RESET: u64 = 1 << 5;
pub const F_ADJ_ROOM_ENCAP_L2_ETH: u64 = 1 << 6;
pub const F_ADJ_ROOM_DECAP_L3_IPV4: u64 = 1 << 7;
pub const F_ADJ_ROOM_DECAP_L3_IPV6: u64 = 1 << 8;
pub const ADJ_ROOM_ENCAP_L2_MASK: u64 = 0xff;
pub const ADJ_ROOM_ENCAP_L2_SHIFT: u32 = 56;
pub const ADJ_ROOM_NET: u32 = 0;
pub const ADJ_ROOM_MAC: u32 = 1;
pub const HDR_START_MAC: u32 = 0;
pub const HDR_START_NET: u32 = 1;
pub const CSUM_LEVEL_QUERY: u64 = 0;
pub const CSUM_LEVEL_INC: u64 = 1;
pub const CSUM_LEVEL_DEC: u64 = 2;
pub const CSUM_LEVEL_RESET: u64 = 3;
/// The highest level of checksums (linux/skbuff.h).
pub const SKB_MAX_CSUM_LEVEL: u32 = 3;
/// A checksum of UDP that says 0, which would mean none (net/checksum.h).
pub const CSUM_MANGLED_0: u16 = 0xffff;

// Offsets of classic loads that are no places in the packet (linux/filter.h).
/// From here on: places behind the network layer's header.
pub const SKF_NET_OFF: i32 = -0x10_0000;
/// From here on: places behind the link layer's header.
pub const SKF_LL_OFF: i32 = -0x20_0000;

//! The contexts of programs, and what pointers in them lead to, with the kernel's names
//! (`linux/bpf.h`).
//!
//! The kernel rewrites loads from most of them into loads from its own structures. Pointers are
//! numbers of 64 bits here.

#![allow(missing_docs, reason = "the names are the kernel's")]

use crate::layout;
#[cfg(any(target_arch = "aarch64", target_arch = "x86_64"))]
use crate::linux::BpfUserPtRegs;

layout! {
    /// `struct __sk_buff`.
    pub struct SkBuff {
        len: u32,
        pkt_type: u32,
        mark: u32,
        queue_mapping: u32,
        protocol: u32,
        vlan_present: u32,
        vlan_tci: u32,
        vlan_proto: u32,
        priority: u32,
        ingress_ifindex: u32,
        ifindex: u32,
        tc_index: u32,
        cb: [u32; 5],
        hash: u32,
        tc_classid: u32,
        data: u32,
        data_end: u32,
        napi_id: u32,
        family: u32,
        remote_ip4: u32,
        local_ip4: u32,
        remote_ip6: [u32; 4],
        local_ip6: [u32; 4],
        remote_port: u32,
        local_port: u32,
        data_meta: u32,
        flow_keys: u64,
        tstamp: u64,
        wire_len: u32,
        gso_segs: u32,
        sk: u64,
        gso_size: u32,
        tstamp_type: u8,
        padding: [u8; 3],
        hwtstamp: u64,
    }

    /// `struct xdp_md`.
    pub struct XdpMd {
        data: u32,
        data_end: u32,
        data_meta: u32,
        ingress_ifindex: u32,
        rx_queue_index: u32,
        egress_ifindex: u32,
    }

    /// `struct bpf_nf_ctx` (`net/netfilter/nf_bpf_link.h`).
    pub struct NfCtx {
        state: u64,
        skb: u64,
    }

    /// `struct bpf_sock`.
    pub struct Sock {
        bound_dev_if: u32,
        family: u32,
        r#type: u32,
        protocol: u32,
        mark: u32,
        priority: u32,
        src_ip4: u32,
        src_ip6: [u32; 4],
        src_port: u32,
        dst_port: u16,
        padding: u16,
        dst_ip4: u32,
        dst_ip6: [u32; 4],
        state: u32,
        rx_queue_mapping: u32,
    }

    /// `struct bpf_tcp_sock`.
    pub struct TcpSock {
        snd_cwnd: u32,
        srtt_us: u32,
        rtt_min: u32,
        snd_ssthresh: u32,
        rcv_nxt: u32,
        snd_nxt: u32,
        snd_una: u32,
        mss_cache: u32,
        ecn_flags: u32,
        rate_delivered: u32,
        rate_interval_us: u32,
        packets_out: u32,
        retrans_out: u32,
        total_retrans: u32,
        segs_in: u32,
        data_segs_in: u32,
        segs_out: u32,
        data_segs_out: u32,
        lost_out: u32,
        sacked_out: u32,
        bytes_received: u64,
        bytes_acked: u64,
        dsack_dups: u32,
        delivered: u32,
        delivered_ce: u32,
        icsk_retransmits: u32,
    }

    /// `struct bpf_xdp_sock`.
    pub struct XdpSock {
        queue_id: u32,
    }

    /// `struct bpf_sock_ops`.
    pub struct SockOps {
        op: u32,
        /// Also `reply` and `replylong`.
        args: [u32; 4],
        family: u32,
        remote_ip4: u32,
        local_ip4: u32,
        remote_ip6: [u32; 4],
        local_ip6: [u32; 4],
        remote_port: u32,
        local_port: u32,
        is_fullsock: u32,
        snd_cwnd: u32,
        srtt_us: u32,
        bpf_sock_ops_cb_flags: u32,
        state: u32,
        rtt_min: u32,
        snd_ssthresh: u32,
        rcv_nxt: u32,
        snd_nxt: u32,
        snd_una: u32,
        mss_cache: u32,
        ecn_flags: u32,
        rate_delivered: u32,
        rate_interval_us: u32,
        packets_out: u32,
        retrans_out: u32,
        total_retrans: u32,
        segs_in: u32,
        data_segs_in: u32,
        segs_out: u32,
        data_segs_out: u32,
        lost_out: u32,
        sacked_out: u32,
        sk_txhash: u32,
        bytes_received: u64,
        bytes_acked: u64,
        sk: u64,
        skb_data: u64,
        skb_data_end: u64,
        skb_len: u32,
        skb_tcp_flags: u32,
        skb_hwtstamp: u64,
    }

    /// `struct sk_msg_md`.
    pub struct SkMsgMd {
        data: u64,
        data_end: u64,
        family: u32,
        remote_ip4: u32,
        local_ip4: u32,
        remote_ip6: [u32; 4],
        local_ip6: [u32; 4],
        remote_port: u32,
        local_port: u32,
        size: u32,
        sk: u64,
    }

    /// `struct sk_reuseport_md`.
    pub struct SkReuseportMd {
        data: u64,
        data_end: u64,
        len: u32,
        eth_protocol: u32,
        ip_protocol: u32,
        bind_inany: u32,
        hash: u32,
        padding: u32,
        sk: u64,
        migrating_sk: u64,
    }

    /// `struct bpf_sk_lookup`.
    pub struct SkLookup {
        /// Also `cookie`.
        sk: u64,
        family: u32,
        protocol: u32,
        remote_ip4: u32,
        remote_ip6: [u32; 4],
        remote_port: u16,
        port_padding: u16,
        local_ip4: u32,
        local_ip6: [u32; 4],
        local_port: u32,
        ingress_ifindex: u32,
        padding: u32,
    }

    /// `struct bpf_sock_addr`.
    pub struct SockAddr {
        user_family: u32,
        user_ip4: u32,
        user_ip6: [u32; 4],
        user_port: u32,
        family: u32,
        r#type: u32,
        protocol: u32,
        msg_src_ip4: u32,
        msg_src_ip6: [u32; 4],
        padding: u32,
        sk: u64,
    }

    /// `struct bpf_sockopt`.
    pub struct Sockopt {
        sk: u64,
        optval: u64,
        optval_end: u64,
        level: u32,
        optname: u32,
        optlen: u32,
        retval: u32,
    }

    /// `struct bpf_sysctl`.
    pub struct Sysctl {
        write: u32,
        file_pos: u32,
    }

    /// `struct bpf_cgroup_dev_ctx`.
    pub struct CgroupDevCtx {
        access_type: u32,
        major: u32,
        minor: u32,
    }

    /// `struct bpf_flow_keys`.
    pub struct FlowKeys {
        nhoff: u16,
        thoff: u16,
        addr_proto: u16,
        is_frag: u8,
        is_first_frag: u8,
        is_encap: u8,
        ip_proto: u8,
        n_proto: u16,
        sport: u16,
        dport: u16,
        /// Its first words are also `ipv4_src` and `ipv4_dst`.
        ipv6_src: [u32; 4],
        ipv6_dst: [u32; 4],
        flags: u32,
        flow_label: u32,
    }
}

#[cfg(any(target_arch = "aarch64", target_arch = "x86_64"))]
layout! {
    /// `struct bpf_perf_event_data` (`linux/bpf_perf_event.h`).
    pub struct PerfEventData {
        regs: BpfUserPtRegs,
        sample_period: u64,
        addr: u64,
    }
}

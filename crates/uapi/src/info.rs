//! The kernel's answers to `BPF_OBJ_GET_INFO_BY_FD`, with the kernel's names (`linux/bpf.h`).
//!
//! Some fields are the addresses of buffers in the caller's memory, and the room in them. Later
//! kernels only append fields.

#![allow(missing_docs, reason = "the names are the kernel's")]

use crate::attr::BPF_OBJ_NAME_LEN;
use crate::{AttachType, LinkType, MapType, PerfEventType, ProgramType, layout};

/// The bytes of a program's tag.
pub const BPF_TAG_SIZE: usize = 8;

layout! {
    /// `struct bpf_map_info`.
    pub struct MapInfo {
        r#type: MapType,
        id: u32,
        key_size: u32,
        value_size: u32,
        max_entries: u32,
        map_flags: u32,
        name: [u8; BPF_OBJ_NAME_LEN],
        ifindex: u32,
        btf_vmlinux_value_type_id: u32,
        netns_dev: u64,
        netns_ino: u64,
        btf_id: u32,
        btf_key_type_id: u32,
        btf_value_type_id: u32,
        btf_vmlinux_id: u32,
        map_extra: u64,
        hash: u64,
        hash_size: u32,
        padding: u32,
    }

    /// `struct bpf_prog_info`.
    pub struct ProgInfo {
        r#type: ProgramType,
        id: u32,
        tag: [u8; BPF_TAG_SIZE],
        jited_prog_len: u32,
        xlated_prog_len: u32,
        jited_prog_insns: u64,
        xlated_prog_insns: u64,
        load_time: u64,
        created_by_uid: u32,
        nr_map_ids: u32,
        map_ids: u64,
        name: [u8; BPF_OBJ_NAME_LEN],
        ifindex: u32,
        /// The bit field: [`ProgInfo::GPL_COMPATIBLE`].
        bits: u32,
        netns_dev: u64,
        netns_ino: u64,
        nr_jited_ksyms: u32,
        nr_jited_func_lens: u32,
        jited_ksyms: u64,
        jited_func_lens: u64,
        btf_id: u32,
        func_info_rec_size: u32,
        func_info: u64,
        nr_func_info: u32,
        nr_line_info: u32,
        line_info: u64,
        jited_line_info: u64,
        nr_jited_line_info: u32,
        line_info_rec_size: u32,
        jited_line_info_rec_size: u32,
        nr_prog_tags: u32,
        prog_tags: u64,
        run_time_ns: u64,
        run_cnt: u64,
        recursion_misses: u64,
        verified_insns: u32,
        attach_btf_obj_id: u32,
        attach_btf_id: u32,
        padding: u32,
    }

    /// `struct bpf_func_info`.
    pub struct FuncInfo {
        insn_off: u32,
        type_id: u32,
    }

    /// `struct bpf_line_info`.
    pub struct LineInfo {
        insn_off: u32,
        file_name_off: u32,
        line_off: u32,
        line_col: u32,
    }

    /// `struct bpf_core_relo`; `kind` is one of [`core_relo`].
    pub struct CoreRelo {
        insn_off: u32,
        type_id: u32,
        access_str_off: u32,
        kind: u32,
    }

    /// `struct bpf_btf_info`.
    pub struct BtfInfo {
        btf: u64,
        btf_size: u32,
        id: u32,
        name: u64,
        name_len: u32,
        kernel_btf: u32,
    }

    /// `struct bpf_link_info`, as far as all kinds of links have it in common.
    pub struct LinkInfo {
        r#type: LinkType,
        id: u32,
        prog_id: u32,
        padding: u32,
    }

    /// `struct bpf_link_info` in its whole length.
    pub struct LinkInfoAny {
        link: LinkInfo,
        of_kind: [u64; 6],
    }

    /// `struct bpf_link_info` of a raw tracepoint's link.
    pub struct LinkInfoRawTracepoint {
        link: LinkInfo,
        tp_name: u64,
        tp_name_len: u32,
        padding: u32,
        cookie: u64,
    }

    /// `struct bpf_link_info` of a tracing link.
    pub struct LinkInfoTracing {
        link: LinkInfo,
        attach_type: AttachType,
        target_obj_id: u32,
        target_btf_id: u32,
        padding: u32,
        cookie: u64,
    }

    /// `struct bpf_link_info` of an iterator.
    pub struct LinkInfoIter {
        link: LinkInfo,
        target_name: u64,
        target_name_len: u32,
        padding: u32,
    }

    /// `struct bpf_link_info` of a multi-kprobe link.
    pub struct LinkInfoKprobeMulti {
        link: LinkInfo,
        addrs: u64,
        count: u32,
        flags: u32,
        missed: u64,
        cookies: u64,
    }

    /// `struct bpf_link_info` of a multi-uprobe link.
    pub struct LinkInfoUprobeMulti {
        link: LinkInfo,
        path: u64,
        offsets: u64,
        ref_ctr_offsets: u64,
        cookies: u64,
        path_size: u32,
        count: u32,
        flags: u32,
        pid: u32,
    }

    /// `struct bpf_link_info` of a perf event link, as far as all kinds of events have it in
    /// common.
    pub struct LinkInfoPerfEvent {
        link: LinkInfo,
        r#type: PerfEventType,
        padding: u32,
    }

    /// `struct bpf_link_info` of a perf event that has a name: a probe's function or file, a
    /// tracepoint.
    pub struct LinkInfoNamed {
        perf_event: LinkInfoPerfEvent,
        /// `file_name`, `func_name` or `tp_name`.
        name: u64,
        name_len: u32,
        /// `offset` of a probe.
        offset: u32,
    }

    /// `struct bpf_link_info` of a uprobe.
    pub struct LinkInfoUprobe {
        named: LinkInfoNamed,
        cookie: u64,
        ref_ctr_offset: u64,
    }

    /// `struct bpf_link_info` of a kprobe.
    pub struct LinkInfoKprobe {
        named: LinkInfoNamed,
        addr: u64,
        missed: u64,
        cookie: u64,
    }

    /// `struct bpf_link_info` of a tracepoint.
    pub struct LinkInfoTracepoint {
        named: LinkInfoNamed,
        cookie: u64,
    }

    /// `struct bpf_link_info` of a perf event that is no probe.
    pub struct LinkInfoEvent {
        perf_event: LinkInfoPerfEvent,
        config: u64,
        r#type: u32,
        padding: u32,
        cookie: u64,
    }
}

impl LineInfo {
    /// `BPF_LINE_INFO_LINE_NUM`, from 1.
    pub const fn line(&self) -> u32 {
        self.line_col >> 10
    }

    /// `BPF_LINE_INFO_LINE_COL`, from 1; 0 if not known.
    pub const fn column(&self) -> u32 {
        self.line_col & 0x3ff
    }
}

impl From<[u32; 4]> for LineInfo {
    fn from([insn_off, file_name_off, line_off, line_col]: [u32; 4]) -> Self {
        Self {
            insn_off,
            file_name_off,
            line_off,
            line_col,
        }
    }
}

impl ProgInfo {
    /// In [`Self::bits`]: the licence is compatible with the GPL.
    pub const GPL_COMPATIBLE: u32 = 1;
}

/// `enum bpf_core_relo_kind`: `BPF_CORE_*`.
pub mod core_relo {
    pub const FIELD_BYTE_OFFSET: u32 = 0;
    pub const FIELD_BYTE_SIZE: u32 = 1;
    pub const FIELD_EXISTS: u32 = 2;
    pub const FIELD_SIGNED: u32 = 3;
    pub const FIELD_LSHIFT_U64: u32 = 4;
    pub const FIELD_RSHIFT_U64: u32 = 5;
    pub const TYPE_ID_LOCAL: u32 = 6;
    pub const TYPE_ID_TARGET: u32 = 7;
    pub const TYPE_EXISTS: u32 = 8;
    pub const TYPE_SIZE: u32 = 9;
    pub const ENUMVAL_EXISTS: u32 = 10;
    pub const ENUMVAL_VALUE: u32 = 11;
    pub const TYPE_MATCHES: u32 = 12;
}

//! `union bpf_attr` and `struct perf_event_attr`: the arguments of bpf(2) and perf_event_open(2), a
//! structure for each command, with the kernel's names (`linux/bpf.h`, `linux/perf_event.h`).
//!
//! Pointers are addresses in the caller's memory. Later kernels only append fields, and missing
//! bytes stand for zeros.

#![allow(missing_docs, reason = "the names are the kernel's")]

use crate::{AttachType, MapType, ProgramType, layout};

/// The bytes of `union bpf_attr`.
pub const BPF_ATTR_SIZE: usize = 168;
/// The longest attribute that the kernel looks at: a page.
pub const ATTR_LIMIT: usize = 4096;
/// The bytes of an object's name, with its NUL.
pub const BPF_OBJ_NAME_LEN: usize = 16;

/// The offset of a field of an attribute's structure, in bytes, as in
/// `attr_offset!(MapCreate.map_flags)`.
#[macro_export]
macro_rules! attr_offset {
    ($of:ident . $field:ident) => {
        ::core::mem::offset_of!($crate::attr::$of, $field)
    };
}

/// The offset behind a field of an attribute's structure, in bytes.
#[macro_export]
macro_rules! offset_behind {
    ($of:ty, $field:ident) => {
        ::core::mem::offset_of!($of, $field) + $crate::attr::size_of_field(|of: &$of| &of.$field)
    };
}

/// Returns the size of the field that a function selects.
#[doc(hidden)]
pub const fn size_of_field<T, F>(_: fn(&T) -> &F) -> usize {
    size_of::<F>()
}

layout! {
    /// `BPF_MAP_CREATE`.
    pub struct MapCreate {
        map_type: MapType,
        key_size: u32,
        value_size: u32,
        max_entries: u32,
        map_flags: u32,
        inner_map_fd: i32,
        numa_node: u32,
        map_name: [u8; BPF_OBJ_NAME_LEN],
        map_ifindex: u32,
        btf_fd: i32,
        btf_key_type_id: u32,
        btf_value_type_id: u32,
        btf_vmlinux_value_type_id: u32,
        map_extra: u64,
        value_type_btf_obj_fd: i32,
        map_token_fd: i32,
        excl_prog_hash: u64,
        excl_prog_hash_size: u32,
        padding: u32,
    }

    /// The commands on one element of a map: `BPF_MAP_*_ELEM`, `BPF_MAP_GET_NEXT_KEY`,
    /// `BPF_MAP_FREEZE`.
    pub struct Element {
        map_fd: i32,
        padding: u32,
        key: u64,
        /// `next_key` for `BPF_MAP_GET_NEXT_KEY`.
        value: u64,
        flags: u64,
    }

    /// The commands on many elements of a map: `BPF_MAP_*_BATCH`.
    pub struct Batch {
        in_batch: u64,
        out_batch: u64,
        keys: u64,
        values: u64,
        count: u32,
        map_fd: i32,
        elem_flags: u64,
        flags: u64,
    }

    /// `BPF_PROG_LOAD`.
    pub struct ProgLoad {
        prog_type: ProgramType,
        insn_cnt: u32,
        insns: u64,
        license: u64,
        log_level: u32,
        log_size: u32,
        log_buf: u64,
        kern_version: u32,
        prog_flags: u32,
        prog_name: [u8; BPF_OBJ_NAME_LEN],
        prog_ifindex: u32,
        expected_attach_type: AttachType,
        prog_btf_fd: i32,
        func_info_rec_size: u32,
        func_info: u64,
        func_info_cnt: u32,
        line_info_rec_size: u32,
        line_info: u64,
        line_info_cnt: u32,
        attach_btf_id: u32,
        /// `attach_btf_obj_fd` if it is one of a BTF object.
        attach_prog_fd: i32,
        core_relo_cnt: u32,
        fd_array: u64,
        core_relos: u64,
        core_relo_rec_size: u32,
        log_true_size: u32,
        prog_token_fd: i32,
        fd_array_cnt: u32,
        signature: u64,
        signature_size: u32,
        keyring_id: i32,
    }

    /// `BPF_OBJ_PIN` and `BPF_OBJ_GET`.
    pub struct ObjPin {
        pathname: u64,
        bpf_fd: i32,
        file_flags: u32,
        path_fd: i32,
        padding: u32,
    }

    /// `BPF_PROG_ATTACH` and `BPF_PROG_DETACH`.
    pub struct ProgAttach {
        target_fd: i32,
        attach_bpf_fd: i32,
        attach_type: AttachType,
        attach_flags: u32,
        replace_bpf_fd: i32,
        relative_fd: i32,
        expected_revision: u64,
    }

    /// `BPF_PROG_QUERY`.
    pub struct ProgQuery {
        target_fd: i32,
        attach_type: AttachType,
        query_flags: u32,
        attach_flags: u32,
        prog_ids: u64,
        prog_cnt: u32,
        padding: u32,
        prog_attach_flags: u64,
        link_ids: u64,
        link_attach_flags: u64,
        revision: u64,
    }

    /// `BPF_PROG_TEST_RUN`.
    pub struct TestRun {
        prog_fd: i32,
        retval: u32,
        data_size_in: u32,
        data_size_out: u32,
        data_in: u64,
        data_out: u64,
        repeat: u32,
        duration: u32,
        ctx_size_in: u32,
        ctx_size_out: u32,
        ctx_in: u64,
        ctx_out: u64,
        flags: u32,
        cpu: u32,
        batch_size: u32,
        padding: u32,
    }

    /// The commands that find an object by its id: `BPF_*_GET_NEXT_ID`, `BPF_*_GET_FD_BY_ID`.
    pub struct GetId {
        /// `prog_id`, `map_id`, `btf_id` or `link_id` for a descriptor.
        start_id: u32,
        next_id: u32,
        open_flags: u32,
        fd_by_id_token_fd: i32,
    }

    /// `BPF_OBJ_GET_INFO_BY_FD`.
    pub struct Info {
        bpf_fd: i32,
        info_len: u32,
        info: u64,
    }

    /// `BPF_PROG_QUERY`.
    pub struct Query {
        target_fd: i32,
        attach_type: AttachType,
        query_flags: u32,
        attach_flags: u32,
        prog_ids: u64,
        count: u32,
        padding: u32,
        prog_attach_flags: u64,
        link_ids: u64,
        link_attach_flags: u64,
        revision: u64,
    }

    /// `BPF_RAW_TRACEPOINT_OPEN`.
    pub struct RawTracepoint {
        name: u64,
        prog_fd: i32,
        padding: u32,
        cookie: u64,
    }

    /// `BPF_BTF_LOAD`.
    pub struct BtfLoad {
        btf: u64,
        btf_log_buf: u64,
        btf_size: u32,
        btf_log_size: u32,
        btf_log_level: u32,
        btf_log_true_size: u32,
        btf_flags: u32,
        btf_token_fd: i32,
    }

    /// `BPF_TASK_FD_QUERY`.
    pub struct TaskFdQuery {
        pid: u32,
        fd: i32,
        flags: u32,
        buf_len: u32,
        buf: u64,
        prog_id: u32,
        fd_type: u32,
        probe_offset: u64,
        probe_addr: u64,
    }

    /// `BPF_LINK_CREATE`, as far as all kinds of links have it in common.
    pub struct LinkCreate {
        prog_fd: i32,
        target_fd: i32,
        attach_type: AttachType,
        flags: u32,
    }

    /// `BPF_LINK_CREATE` of a perf event link.
    pub struct LinkCreatePerfEvent {
        link: LinkCreate,
        bpf_cookie: u64,
    }

    /// `BPF_LINK_CREATE` of a tracing link.
    pub struct LinkCreateTracing {
        link: LinkCreate,
        target_btf_id: u32,
        padding: u32,
        cookie: u64,
    }

    /// `BPF_LINK_CREATE` of an iterator.
    pub struct LinkCreateIter {
        link: LinkCreate,
        iter_info: u64,
        iter_info_len: u32,
        padding: u32,
    }

    /// `BPF_LINK_CREATE` of a multi-kprobe link.
    pub struct LinkCreateKprobeMulti {
        link: LinkCreate,
        flags: u32,
        cnt: u32,
        syms: u64,
        addrs: u64,
        cookies: u64,
    }

    /// `BPF_LINK_CREATE` of a multi-uprobe link.
    pub struct LinkCreateUprobeMulti {
        link: LinkCreate,
        path: u64,
        offsets: u64,
        ref_ctr_offsets: u64,
        cookies: u64,
        cnt: u32,
        flags: u32,
        pid: u32,
        padding: u32,
    }

    /// `BPF_LINK_CREATE` of a tcx, netkit or cgroup link.
    pub struct LinkCreateRelative {
        link: LinkCreate,
        relative_fd: i32,
        padding: u32,
        expected_revision: u64,
    }

    /// `BPF_LINK_CREATE` of a netfilter link.
    pub struct LinkCreateNetfilter {
        link: LinkCreate,
        pf: u32,
        hooknum: u32,
        priority: i32,
        flags: u32,
    }

    /// `BPF_LINK_UPDATE`.
    pub struct LinkUpdate {
        link_fd: i32,
        new_prog_fd: i32,
        flags: u32,
        old_prog_fd: i32,
    }

    /// `BPF_LINK_DETACH`.
    pub struct LinkDetach {
        link_fd: i32,
    }

    /// `BPF_ENABLE_STATS`.
    pub struct EnableStats {
        r#type: u32,
    }

    /// `BPF_ITER_CREATE`.
    pub struct IterCreate {
        link_fd: i32,
        flags: u32,
    }

    /// `BPF_PROG_BIND_MAP`.
    pub struct ProgBindMap {
        prog_fd: i32,
        map_fd: i32,
        flags: u32,
    }

    /// `BPF_TOKEN_CREATE`.
    pub struct TokenCreate {
        flags: u32,
        bpffs_fd: i32,
    }

    /// `struct perf_event_attr`.
    pub struct PerfEvent {
        r#type: u32,
        size: u32,
        config: u64,
        /// `sample_freq` with [`PerfEvent::FREQ`].
        sample_period: u64,
        sample_type: u64,
        read_format: u64,
        /// The bit field: [`PerfEvent::DISABLED`] and others.
        bits: u64,
        wakeup_events: u32,
        bp_type: u32,
        /// `uprobe_path` or `kprobe_func` for a probe.
        config1: u64,
        /// `probe_offset` or `kprobe_addr` for a probe.
        config2: u64,
        branch_sample_type: u64,
        sample_regs_user: u64,
        sample_stack_user: u32,
        clockid: i32,
        sample_regs_intr: u64,
        aux_watermark: u32,
        sample_max_stack: u16,
        __reserved_2: u16,
        aux_sample_size: u32,
        aux_action: u32,
        sig_data: u64,
        config3: u64,
    }
}

impl PerfEvent {
    /// In [`Self::bits`]: the event starts disabled.
    pub const DISABLED: u64 = 1;
    /// In [`Self::bits`]: `sample_period` is a frequency in hertz.
    pub const FREQ: u64 = 1 << 10;
    /// In [`Self::bits`]: `wakeup_events` counts bytes.
    pub const WATERMARK: u64 = 1 << 14;
    /// In [`Self::bits`]: the ring is written from its end to its beginning.
    pub const WRITE_BACKWARD: u64 = 1 << 27;
    /// The size of the oldest layout, which an attribute without a size has.
    pub const SIZE_VER0: u32 = 64;
    /// The size of the layout of Linux 4.1, which ends before `aux_sample_size`.
    pub const SIZE_VER5: u32 = 112;
}

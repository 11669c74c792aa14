//! The fields of the kernel's answers to `BPF_OBJ_GET_INFO_BY_FD`, by their offsets (`linux/bpf.h`,
//! Linux 6.18).

/// `struct bpf_map_info`.
pub(crate) mod map {
    pub(crate) const SIZE: usize = 104;
    /// The last bytes are no field, and must be zero.
    pub(crate) const FIELDS_END: usize = 100;
    pub(crate) const TYPE: usize = 0;
    pub(crate) const ID: usize = 4;
    pub(crate) const KEY_SIZE: usize = 8;
    pub(crate) const VALUE_SIZE: usize = 12;
    pub(crate) const MAX_ENTRIES: usize = 16;
    pub(crate) const MAP_FLAGS: usize = 20;
    pub(crate) const NAME: usize = 24;
    pub(crate) const BTF_VMLINUX_VALUE_TYPE_ID: usize = 44;
    pub(crate) const BTF_ID: usize = 64;
    pub(crate) const BTF_KEY_TYPE_ID: usize = 68;
    pub(crate) const BTF_VALUE_TYPE_ID: usize = 72;
    pub(crate) const MAP_EXTRA: usize = 80;
    pub(crate) const HASH: usize = 88;
    pub(crate) const HASH_SIZE: usize = 96;
}

/// `struct bpf_prog_info`.
pub(crate) mod prog {
    pub(crate) const SIZE: usize = 232;
    pub(crate) const TYPE: usize = 0;
    pub(crate) const ID: usize = 4;
    pub(crate) const TAG: usize = 8;
    pub(crate) const JITED_PROG_LEN: usize = 16;
    pub(crate) const XLATED_PROG_LEN: usize = 20;
    pub(crate) const JITED_PROG_INSNS: usize = 24;
    pub(crate) const XLATED_PROG_INSNS: usize = 32;
    pub(crate) const LOAD_TIME: usize = 40;
    pub(crate) const CREATED_BY_UID: usize = 48;
    pub(crate) const NR_MAP_IDS: usize = 52;
    pub(crate) const MAP_IDS: usize = 56;
    pub(crate) const NAME: usize = 64;
    pub(crate) const GPL_COMPATIBLE: usize = 84;
    pub(crate) const NR_JITED_KSYMS: usize = 104;
    pub(crate) const NR_JITED_FUNC_LENS: usize = 108;
    pub(crate) const JITED_KSYMS: usize = 112;
    pub(crate) const JITED_FUNC_LENS: usize = 120;
    pub(crate) const BTF_ID: usize = 128;
    pub(crate) const FUNC_INFO_REC_SIZE: usize = 132;
    pub(crate) const FUNC_INFO: usize = 136;
    pub(crate) const NR_FUNC_INFO: usize = 144;
    pub(crate) const NR_LINE_INFO: usize = 148;
    pub(crate) const LINE_INFO: usize = 152;
    pub(crate) const JITED_LINE_INFO: usize = 160;
    pub(crate) const NR_JITED_LINE_INFO: usize = 168;
    pub(crate) const LINE_INFO_REC_SIZE: usize = 172;
    pub(crate) const JITED_LINE_INFO_REC_SIZE: usize = 176;
    pub(crate) const NR_PROG_TAGS: usize = 180;
    pub(crate) const PROG_TAGS: usize = 184;
    pub(crate) const RUN_TIME_NS: usize = 192;
    pub(crate) const RUN_CNT: usize = 200;
    pub(crate) const RECURSION_MISSES: usize = 208;
    pub(crate) const VERIFIED_INSNS: usize = 216;
    pub(crate) const ATTACH_BTF_OBJ_ID: usize = 220;
    pub(crate) const ATTACH_BTF_ID: usize = 224;
}

/// `struct bpf_btf_info`.
pub(crate) mod btf {
    pub(crate) const SIZE: usize = 32;
    pub(crate) const BTF: usize = 0;
    pub(crate) const BTF_SIZE: usize = 8;
    pub(crate) const ID: usize = 12;
    pub(crate) const NAME: usize = 16;
    pub(crate) const NAME_LEN: usize = 24;
    pub(crate) const KERNEL_BTF: usize = 28;
}

/// `struct bpf_link_info`.
pub(crate) mod link {
    pub(crate) const SIZE: usize = 64;
    pub(crate) const TYPE: usize = 0;
    pub(crate) const ID: usize = 4;
    pub(crate) const PROG_ID: usize = 8;

    /// `raw_tracepoint`.
    pub(crate) mod raw_tracepoint {
        pub(crate) const TP_NAME: usize = 16;
        pub(crate) const TP_NAME_LEN: usize = 24;
        pub(crate) const COOKIE: usize = 32;
    }

    /// `tracing`.
    pub(crate) mod tracing {
        pub(crate) const ATTACH_TYPE: usize = 16;
        pub(crate) const TARGET_OBJ_ID: usize = 20;
        pub(crate) const TARGET_BTF_ID: usize = 24;
        pub(crate) const COOKIE: usize = 32;
    }

    /// `perf_event`, and the union in it. The name of a probe's function or file and that of a
    /// tracepoint are in the same place.
    pub(crate) mod perf_event {
        pub(crate) const TYPE: usize = 16;
        pub(crate) const NAME: usize = 24;
        pub(crate) const NAME_LEN: usize = 32;
        pub(crate) const UPROBE_OFFSET: usize = 36;
        pub(crate) const UPROBE_COOKIE: usize = 40;
        pub(crate) const UPROBE_REF_CTR_OFFSET: usize = 48;
        pub(crate) const KPROBE_OFFSET: usize = 36;
        pub(crate) const KPROBE_ADDR: usize = 40;
        pub(crate) const KPROBE_MISSED: usize = 48;
        pub(crate) const KPROBE_COOKIE: usize = 56;
        pub(crate) const TRACEPOINT_COOKIE: usize = 40;
        pub(crate) const EVENT_CONFIG: usize = 24;
        pub(crate) const EVENT_TYPE: usize = 32;
        pub(crate) const EVENT_COOKIE: usize = 40;
    }
}

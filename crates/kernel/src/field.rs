//! The places of the fields of `union bpf_attr` (`linux/bpf.h`), in words of 32 bits, by command.
//! Pointers take two words.

/// `BPF_MAP_CREATE`.
pub mod map_create {
    pub const MAP_TYPE: usize = 0;
    pub const KEY_SIZE: usize = 1;
    pub const VALUE_SIZE: usize = 2;
    pub const MAX_ENTRIES: usize = 3;
    pub const MAP_FLAGS: usize = 4;
    pub const INNER_MAP_FD: usize = 5;
    pub const BTF_FD: usize = 12;
    pub const BTF_KEY_TYPE_ID: usize = 13;
    pub const BTF_VALUE_TYPE_ID: usize = 14;
    /// 64 bits.
    pub const MAP_EXTRA: usize = 16;
}

/// `BPF_MAP_UPDATE_ELEM` and `BPF_MAP_FREEZE`.
pub mod map_elem {
    pub const MAP_FD: usize = 0;
    pub const KEY: usize = 2;
    pub const VALUE: usize = 4;
}

/// `BPF_OBJ_GET_INFO_BY_FD`.
pub mod info {
    pub const BPF_FD: usize = 0;
    pub const INFO_LEN: usize = 1;
    pub const INFO: usize = 2;
}

/// `BPF_BTF_LOAD`.
pub mod btf_load {
    pub const BTF: usize = 0;
    pub const BTF_LOG_BUF: usize = 2;
    pub const BTF_SIZE: usize = 4;
    pub const BTF_LOG_SIZE: usize = 5;
    pub const BTF_LOG_LEVEL: usize = 6;
}

/// `BPF_BTF_GET_NEXT_ID` and `BPF_BTF_GET_FD_BY_ID`.
pub mod object_id {
    pub const ID: usize = 0;
    pub const NEXT_ID: usize = 1;
}

/// `BPF_PROG_LOAD`.
pub mod prog_load {
    pub const PROG_TYPE: usize = 0;
    pub const INSN_CNT: usize = 1;
    pub const INSNS: usize = 2;
    pub const LICENSE: usize = 4;
    pub const LOG_LEVEL: usize = 6;
    pub const LOG_SIZE: usize = 7;
    pub const LOG_BUF: usize = 8;
    pub const KERN_VERSION: usize = 10;
    pub const PROG_FLAGS: usize = 11;
    pub const EXPECTED_ATTACH_TYPE: usize = 17;
    pub const PROG_BTF_FD: usize = 18;
    pub const FUNC_INFO_REC_SIZE: usize = 19;
    pub const FUNC_INFO: usize = 20;
    pub const FUNC_INFO_CNT: usize = 22;
    pub const LINE_INFO_REC_SIZE: usize = 23;
    pub const LINE_INFO: usize = 24;
    pub const LINE_INFO_CNT: usize = 26;
    pub const ATTACH_BTF_ID: usize = 27;
    /// Shared by `attach_prog_fd` and `attach_btf_obj_fd`.
    pub const ATTACH_FD: usize = 28;
    pub const FD_ARRAY: usize = 30;
}

/// `BPF_PROG_TEST_RUN`.
pub mod test_run {
    pub const PROG_FD: usize = 0;
    pub const RETVAL: usize = 1;
    pub const DATA_SIZE_IN: usize = 2;
    pub const DATA_IN: usize = 4;
    pub const REPEAT: usize = 8;
    pub const DURATION: usize = 9;
    pub const CTX_SIZE_IN: usize = 10;
    pub const CTX_IN: usize = 12;
}

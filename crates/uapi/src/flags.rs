//! `BPF_F_*` flags, named without what they begin with: of map creation, of updates, of objects and
//! of single helpers.

#![allow(missing_docs, reason = "the names are the kernel's")]

pub const NO_PREALLOC: u32 = 1 << 0;
pub const NO_COMMON_LRU: u32 = 1 << 1;
pub const NUMA_NODE: u32 = 1 << 2;
pub const RDONLY: u32 = 1 << 3;
pub const WRONLY: u32 = 1 << 4;
pub const ZERO_SEED: u32 = 1 << 6;
pub const RDONLY_PROG: u32 = 1 << 7;
pub const WRONLY_PROG: u32 = 1 << 8;
pub const CLONE: u32 = 1 << 9;
pub const MMAPABLE: u32 = 1 << 10;
pub const PRESERVE_ELEMS: u32 = 1 << 11;
pub const INNER_MAP: u32 = 1 << 12;
/// Of `BPF_OBJ_PIN` and `BPF_OBJ_GET`: the path is relative to a descriptor.
pub const PATH_FD: u32 = 1 << 14;
/// Of `BPF_MAP_CREATE`: `value_type_btf_obj_fd` is a descriptor.
pub const VTYPE_BTF_OBJ_FD: u32 = 1 << 15;
pub const TOKEN_FD: u32 = 1 << 16;
/// Of `BPF_PROG_ATTACH`: replaces the program that is named.
pub const REPLACE: u32 = 1 << 2;

/// `BPF_ANY`, of an update: create or replace.
pub const ANY: u64 = 0;
/// `BPF_NOEXIST`, of an update: create only.
pub const NOEXIST: u64 = 1;
/// `BPF_EXIST`, of an update: replace only.
pub const EXIST: u64 = 2;
/// Of an update or a look-up: under the value's own lock.
pub const LOCK: u64 = 4;

/// Of `bpf_perf_event_output`: the CPU.
pub const INDEX_MASK: u64 = 0xffff_ffff;
pub const CURRENT_CPU: u64 = INDEX_MASK;

/// Of `bpf_get_stackid` and `bpf_get_stack`: frames to leave out.
pub const SKIP_FIELD_MASK: u64 = 0xff;
pub const USER_STACK: u64 = 1 << 8;
pub const FAST_STACK_CMP: u64 = 1 << 9;
pub const REUSE_STACKID: u64 = 1 << 10;
pub const USER_BUILD_ID: u64 = 1 << 11;

/// `BPF_RB_NO_WAKEUP`: do not wake the consumer of a ring buffer.
pub const RB_NO_WAKEUP: u64 = 1 << 0;
/// `BPF_RB_FORCE_WAKEUP`: wake it in any case.
pub const RB_FORCE_WAKEUP: u64 = 1 << 1;

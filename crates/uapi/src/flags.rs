//! `BPF_F_*` flags, named without their prefix: for map creation, updates, objects, program loads
//! and single helpers.

#![allow(missing_docs, reason = "the names are the kernel's")]

pub const NO_PREALLOC: u32 = 1 << 0;
pub const NO_COMMON_LRU: u32 = 1 << 1;
pub const NUMA_NODE: u32 = 1 << 2;
pub const RDONLY: u32 = 1 << 3;
pub const WRONLY: u32 = 1 << 4;
pub const STACK_BUILD_ID: u32 = 1 << 5;
pub const ZERO_SEED: u32 = 1 << 6;
pub const RDONLY_PROG: u32 = 1 << 7;
pub const WRONLY_PROG: u32 = 1 << 8;
pub const CLONE: u32 = 1 << 9;
pub const MMAPABLE: u32 = 1 << 10;
pub const PRESERVE_ELEMS: u32 = 1 << 11;
pub const INNER_MAP: u32 = 1 << 12;
/// For `BPF_OBJ_PIN` and `BPF_OBJ_GET`: the path is relative to a descriptor.
pub const PATH_FD: u32 = 1 << 14;
/// Of `BPF_MAP_CREATE`: `value_type_btf_obj_fd` is a descriptor.
pub const VTYPE_BTF_OBJ_FD: u32 = 1 << 15;
pub const TOKEN_FD: u32 = 1 << 16;
/// Of `BPF_PROG_LOAD`: the architecture is one that requires alignment.
pub const STRICT_ALIGNMENT: u32 = 1 << 0;
/// Of `BPF_PROG_LOAD`: alignment is not checked.
pub const ANY_ALIGNMENT: u32 = 1 << 1;
/// Of `BPF_PROG_LOAD`: the verifier keeps a state at every instruction where one can be.
pub const TEST_STATE_FREQ: u32 = 1 << 3;
/// Of `BPF_PROG_LOAD`: the program may sleep.
pub const SLEEPABLE: u32 = 1 << 4;
/// Of `BPF_PROG_LOAD`: the program handles packets in several buffers.
pub const XDP_HAS_FRAGS: u32 = 1 << 5;
/// Of `BPF_PROG_LOAD`: the verifier refuses a program whose bounds contradict each other.
pub const TEST_REG_INVARIANTS: u32 = 1 << 7;
/// Of `BPF_PROG_ATTACH`: replaces the program that is named.
pub const REPLACE: u32 = 1 << 2;
/// Of `BPF_PROG_ATTACH` and `BPF_LINK_CREATE`: the program or link that the place is relative to is
/// named by its id.
pub const ID: u32 = 1 << 5;
/// For the place of a program among others: the other one is a link's.
pub const LINK: u32 = 1 << 13;

/// Of `BPF_PROG_LOAD`: the upper halves of registers that hold 32 bits get random values.
pub const TEST_RND_HI32: u32 = 1 << 2;
/// Of `BPF_PROG_TEST_RUN`: the program runs on the CPU that is named.
pub const TEST_RUN_ON_CPU: u32 = 1 << 0;
/// Of `BPF_PROG_TEST_RUN`: packets of an `xdp` program go where it sends them.
pub const TEST_XDP_LIVE_FRAMES: u32 = 1 << 1;
/// Of `BPF_PROG_TEST_RUN`: the packet's checksum is known beforehand.
pub const TEST_SKB_CHECKSUM_COMPLETE: u32 = 1 << 2;

/// `BPF_STRTOX_BASE_MASK`, for `bpf_strtol` and `bpf_strtoul`: the bits that hold the base
/// (`kernel/bpf/helpers.c`).
pub const STRTOX_BASE_MASK: u64 = 0x1f;

/// `BPF_ANY`, for an update: create or replace.
pub const ANY: u64 = 0;
/// `BPF_NOEXIST`, for an update: create only.
pub const NOEXIST: u64 = 1;
/// `BPF_EXIST`, for an update: replace only.
pub const EXIST: u64 = 2;
/// For an update or a look-up: hold the value's own lock.
pub const LOCK: u64 = 4;

/// For `bpf_perf_event_output`: the CPU.
pub const INDEX_MASK: u64 = 0xffff_ffff;
pub const CURRENT_CPU: u64 = INDEX_MASK;

/// For `bpf_get_stackid` and `bpf_get_stack`: the number of frames to skip.
pub const SKIP_FIELD_MASK: u64 = 0xff;
pub const USER_STACK: u64 = 1 << 8;
pub const FAST_STACK_CMP: u64 = 1 << 9;
pub const REUSE_STACKID: u64 = 1 << 10;
pub const USER_BUILD_ID: u64 = 1 << 11;

/// Of `BPF_LINK_CREATE` for many kprobes: the program runs when the functions return.
pub const KPROBE_MULTI_RETURN: u32 = 1 << 0;
pub const UPROBE_MULTI_RETURN: u32 = 1 << 0;

/// `BPF_RINGBUF_BUSY_BIT`, of a record's header in a ring buffer: the record is not committed yet.
pub const RINGBUF_BUSY_BIT: u32 = 1 << 31;
/// `BPF_RINGBUF_DISCARD_BIT`, of a record's header: the record is to be skipped.
pub const RINGBUF_DISCARD_BIT: u32 = 1 << 30;
/// `BPF_RINGBUF_HDR_SZ`: the bytes of a record's header.
pub const RINGBUF_HDR_SZ: u32 = 8;

/// `BPF_RB_NO_WAKEUP`: do not wake the consumer of a ring buffer.
pub const RB_NO_WAKEUP: u64 = 1 << 0;
/// `BPF_RB_FORCE_WAKEUP`: always wake the consumer.
pub const RB_FORCE_WAKEUP: u64 = 1 << 1;

/// Of `bpf_task_storage_get` and its kin: make a value if there is none.
pub const LOCAL_STORAGE_GET_F_CREATE: u64 = 1;

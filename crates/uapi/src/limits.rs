//! The kernel's limits of programs, maps and helpers, as in its internal `linux/bpf.h` and the
//! files that are named.

/// The longest program of a privileged user, in slots.
pub const BPF_COMPLEXITY_LIMIT_INSNS: u32 = 1_000_000;
/// The most maps that one program may name (`linux/bpf_verifier.h`).
pub const MAX_USED_MAPS: u32 = 64;
/// The most tail calls of one run.
pub const MAX_TAIL_CALL_CNT: u32 = 33;
/// The most rounds of a loop.
pub const BPF_MAX_LOOPS: u32 = 8 << 20;
/// The most samples that one call drains from a user ring buffer.
pub const BPF_MAX_USER_RINGBUF_SAMPLES: u64 = 128 << 10;
/// The longest record of a ring buffer (`kernel/bpf/ringbuf.c`).
pub const RINGBUF_MAX_RECORD_SZ: u64 = u32::MAX as u64 / 4;
/// The most bytes that a dynptr describes (`kernel/bpf/helpers.c`).
pub const DYNPTR_MAX_SIZE: u32 = (1 << 24) - 1;
/// The bits of a dynptr's size that are its bytes (`kernel/bpf/helpers.c`).
pub const DYNPTR_SIZE_MASK: u32 = 0xff_ffff;
/// In a dynptr's size: the first bit of its kind (`kernel/bpf/helpers.c`).
pub const DYNPTR_TYPE_SHIFT: u32 = 28;
/// In a dynptr's size: it may not be written to (`kernel/bpf/helpers.c`).
pub const DYNPTR_RDONLY_BIT: u32 = 1 << 31;
/// The bytes of a line that `bpf_trace_printk` prints.
pub const MAX_BPRINTF_BUF: usize = 1024;
/// The most arguments of a format.
pub const MAX_BPRINTF_VARARGS: u32 = 12;
/// The most arguments of a function that programs are attached to.
pub const MAX_BPF_FUNC_ARGS: u32 = 12;
/// The most programs on one tracepoint (`kernel/trace/bpf_trace.c`).
pub const BPF_TRACE_MAX_PROGS: usize = 64;
/// The most places of one link (`kernel/trace/bpf_trace.c`).
pub const MAX_UPROBE_MULTI_CNT: u32 = 1 << 20;
/// The most bytes of a record on functions, lines or relocations (`kernel/bpf/verifier.c`).
pub const MAX_FUNCINFO_REC_SIZE: usize = 252;
/// The most bytes of BTF (`kernel/bpf/btf.c`).
pub const BTF_MAX_SIZE: u32 = 16 << 20;
/// The longest licence of a program, without its NUL (`kernel/bpf/syscall.c`).
pub const LONGEST_LICENSE: usize = 127;
/// The longest name of a raw tracepoint, without its NUL (`kernel/bpf/syscall.c`).
pub const LONGEST_RAW_TRACEPOINT_NAME: usize = 127;
/// Room for a kernel function's name (`linux/kallsyms.h`).
pub const KSYM_NAME_LEN: usize = 512;
/// The largest block of memory, with pages of 4 KiB (`linux/slab.h`).
pub const KMALLOC_MAX_SIZE: u32 = 4 << 20;
/// The least bytes of a trie's key behind the prefix's length (`kernel/bpf/lpm_trie.c`).
pub const LPM_DATA_SIZE_MIN: u32 = 1;
/// The most bytes of a trie's key behind the prefix's length (`kernel/bpf/lpm_trie.c`).
pub const LPM_DATA_SIZE_MAX: u32 = 256;
/// The smallest key of a trie (`kernel/bpf/lpm_trie.c`).
pub const LPM_KEY_SIZE_MIN: u32 = LPM_PREFIX_SIZE + LPM_DATA_SIZE_MIN;
/// The largest key of a trie (`kernel/bpf/lpm_trie.c`).
pub const LPM_KEY_SIZE_MAX: u32 = LPM_PREFIX_SIZE + LPM_DATA_SIZE_MAX;
/// The largest value of a trie: a node's header and the data of the largest key are in the same
/// block (`kernel/bpf/lpm_trie.c`).
pub const LPM_VAL_SIZE_MAX: u32 = KMALLOC_MAX_SIZE - LPM_DATA_SIZE_MAX - LPM_NODE_SIZE;
/// The largest value of a task storage: with the element's header it fits a 16-bit length
/// (`linux/bpf_local_storage.h`).
pub const BPF_LOCAL_STORAGE_MAX_VALUE_SIZE: u32 = u16::MAX as u32 - LOCAL_STORAGE_ELEM_SIZE;
/// The largest value of a CPU's own (`linux/percpu.h`).
pub const PCPU_MIN_UNIT_SIZE: u32 = 32 << 10;
/// The distance that a pointer may be moved (`linux/bpf_verifier.h`).
pub const BPF_MAX_VAR_OFF: i64 = 1 << 29;
/// Sizes of memory that programs and helpers access are below it (`linux/bpf_verifier.h`).
pub const BPF_MAX_VAR_SIZ: u64 = 1 << 29;
/// The bytes of stack of one function (`linux/filter.h`).
pub const MAX_BPF_STACK: i32 = 512;
/// The deepest chain of calls, in functions, the program's entry included (`linux/bpf_verifier.h`).
pub const MAX_CALL_FRAMES: usize = 8;
/// The most arguments of a program's own function: as many as registers pass.
pub const MAX_BPF_FUNC_REG_ARGS: usize = 5;
/// The most special fields of a type.
pub const BTF_FIELDS_MAX: usize = 11;
/// The furthest that a packet's bytes are known to be there (`kernel/bpf/verifier.c`).
pub const MAX_PACKET_OFF: i64 = 0xffff;
/// The least stack of a function that gets one of its own (`kernel/bpf/verifier.c`).
pub const BPF_PRIV_STACK_MIN_SIZE: u32 = 64;
/// The largest value of a CPU's own that programs allocate (`kernel/bpf/verifier.c`).
pub const BPF_GLOBAL_PERCPU_MA_MAX_SIZE: u32 = 512;
/// The most paths that the verifier puts off (`kernel/bpf/verifier.c`).
pub const BPF_COMPLEXITY_LIMIT_JMP_SEQ: usize = 8192;
/// The most bytes of a tracepoint's record (`linux/trace_events.h`).
pub const PERF_MAX_TRACE_SIZE: u32 = 8192;
/// The most rounds that carry facts back through a loop (`kernel/bpf/verifier.c`).
pub const MAX_BACKEDGE_ITERS: usize = 64;
/// The most types behind or inside one another (`kernel/bpf/btf.c`).
pub const MAX_RESOLVE_DEPTH: u32 = 32;
/// The most numbers in the path of a relocation (`tools/lib/bpf/relo_core.h`).
pub const BPF_CORE_SPEC_MAX_LEN: usize = 64;
/// The bytes before a packet that align its IP header, on machines that need it
/// (`linux/skbuff.h`). The verifier assumes them on all.
pub const NET_IP_ALIGN: i64 = 2;

// The kernel has no names for these.

/// The stack of callers at which a function may no longer make a tail call
/// (`check_max_stack_depth_subprog` in `kernel/bpf/verifier.c`).
pub const MAX_STACK_ABOVE_TAIL_CALL: u32 = 256;
/// The bytes of the biggest argument of a function that programs are attached to
/// (`btf_distill_func_proto` in `kernel/bpf/btf.c`).
pub const MAX_FUNC_ARG_SIZE: u32 = 16;
/// The longest history of jumps that the verifier follows back without a state in between
/// (`is_state_visited` in `kernel/bpf/verifier.c`).
pub const LONG_JMP_HISTORY: usize = 40;
/// The most structures inside one another that the verifier searches for pointers
/// (`__btf_type_is_scalar_struct` in `kernel/bpf/verifier.c`).
pub const MAX_SCALAR_STRUCT_DEPTH: u32 = 4;
/// The bytes of a `struct htab_elem` before its key (`kernel/bpf/hashtab.c`).
pub const HTAB_ELEM_SIZE: u32 = 48;
/// The most hash functions of a Bloom filter (`bloom_map_alloc` in `kernel/bpf/bloom_filter.c`).
pub const MAX_BLOOM_HASH_FUNCS: u64 = 15;
/// The bytes of a `struct lpm_trie_node` before its data (`kernel/bpf/lpm_trie.c`).
const LPM_NODE_SIZE: u32 = 24;
/// The bytes of a `struct bpf_lpm_trie_key_u8` before its data (`linux/bpf.h`).
const LPM_PREFIX_SIZE: u32 = 4;
/// The bytes of a `struct bpf_local_storage_elem` (`linux/bpf_local_storage.h`).
const LOCAL_STORAGE_ELEM_SIZE: u32 = 128;

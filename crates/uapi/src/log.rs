//! `BPF_LOG_*`: the bits of `log_level` of `BPF_PROG_LOAD`, as in `include/linux/bpf_verifier.h`.

/// `BPF_LOG_LEVEL1`: the path that failed.
pub const LEVEL1: u32 = 1;
/// `BPF_LOG_LEVEL2`: every path.
pub const LEVEL2: u32 = 2;
/// `BPF_LOG_STATS`: the verifier's effort.
pub const STATS: u32 = 4;
/// `BPF_LOG_FIXED`: if there is no room, the end is left out, and not the beginning.
pub const FIXED: u32 = 8;

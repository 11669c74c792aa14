//! The answer: yes with the facts, or no with the reason.

use std::fmt;

use beeline_uapi::limits::BPF_COMPLEXITY_LIMIT_INSNS;
use beeline_uapi::{Errno, HelperId, log};

use crate::reject::Reject;

/// The result of verifying a program.
#[derive(Debug, Clone)]
pub struct Verdict {
    /// Accepted, with a summary of the program; or refused.
    pub result: Result<ProgramSummary, Refusal>,
    /// The text that the kernel would have written into the log buffer at the requested level.
    ///
    /// It ends with the line `processed N insns ...` unless the level is 0.
    pub log: String,
    /// The bytes of the log at its longest, regardless of the room for them.
    ///
    /// Text on paths that turn out good is taken back.
    pub longest_log: usize,
    /// The effort.
    pub effort: Effort,
}

impl Verdict {
    /// Creates a refusal before any instruction was looked at.
    pub fn refused(reject: Reject, level: LogLevel) -> Self {
        let effort = Effort::default();
        // The kernel says nothing of a program that it does not look at.
        let log = if level.0 == 0 || reject.log.trim_end().is_empty() {
            String::new()
        } else {
            format!("{}{effort}\n", reject.log)
        };
        Self {
            longest_log: log.len(),
            log,
            effort,
            result: Err(reject.into()),
        }
    }
}

/// The amount of log to write; the bits of `log_level`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LogLevel(pub u32);

impl LogLevel {
    /// The path that failed.
    pub const PATH: u32 = log::LEVEL1;
    /// Every path.
    pub const ALL: u32 = log::LEVEL2;
    /// The last lines only.
    pub const STATS: u32 = log::STATS;
    /// If there is no room, the end is left out, and not the beginning.
    pub const FIXED: u32 = log::FIXED;
}

/// The reason of a refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The error number of `BPF_PROG_LOAD`.
    pub errno: Errno,
    /// The kernel's line, without a newline: the last one of its log before the statistics.
    pub reason: String,
    /// The instruction that was looked at.
    pub insn: Option<usize>,
    /// The registers and the stack before it, as the kernel prints them; empty if none were known.
    pub state: String,
}

impl From<Reject> for Refusal {
    fn from(reject: Reject) -> Self {
        let reason = reject
            .log
            .trim_end()
            .lines()
            .next_back()
            .unwrap_or_default();
        Self {
            errno: reject.errno,
            reason: reason.to_owned(),
            insn: None,
            state: String::new(),
        }
    }
}

/// The effort of the exploration: the kernel's own figures (`struct bpf_verifier_env`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Effort {
    /// The number of instructions looked at; each counts as often as it was.
    pub insns_processed: u32,
    /// The number of states that were kept.
    pub total_states: u32,
    /// The most states kept at once.
    pub peak_states: u32,
    /// The most states at one instruction.
    pub max_states_per_insn: u32,
}

/// Formats the log's last line.
impl fmt::Display for Effort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            insns_processed,
            total_states,
            peak_states,
            max_states_per_insn,
        } = self;
        write!(
            f,
            "processed {insns_processed} insns (limit {BPF_COMPLEXITY_LIMIT_INSNS}) max_states_per_insn {max_states_per_insn} total_states {total_states} peak_states {peak_states} mark_read 0"
        )
    }
}

/// The facts about an accepted program.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProgramSummary {
    /// The helpers that some path calls, in ascending order of their numbers.
    pub helpers: Vec<HelperId>,
    /// Kernel functions that some path calls, by BTF id, ascending.
    pub kernel_functions: Vec<u32>,
    /// The maps that it names, each descriptor once, in the order of first use.
    pub maps: Vec<MapUse>,
    /// The bytes of the context that some path reads or writes, as `(offset, size, written)`,
    /// ascending.
    pub context: Vec<(u32, u32, bool)>,
    /// The instructions that store to the context on some path, with the offsets there, ascending.
    pub context_stores: Vec<(usize, u32)>,
    /// True if the program uses the memory that r1 points to at its start, or passes it on.
    pub reads_context: bool,
    /// The bytes of eBPF stack, by function, in the order of their first instructions.
    pub stack_bytes: Vec<u32>,
    /// True if the program has more than one reachable function.
    pub calls_subprograms: bool,
    /// The number of functions in the longest chain of calls, 1 if there are no calls.
    pub frame_depth: usize,
    /// True if some path accesses a value that is each CPU's own.
    pub per_cpu: bool,
    /// The first instruction, in the order of the exploration, that reads the kernel's own
    /// structure of a map (`struct bpf_map`).
    pub map_structure: Option<usize>,
    /// Instructions that no path reaches.
    pub dead: Vec<usize>,
}

/// The use of a map by a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapUse {
    /// The descriptor, as the tool wrote it.
    pub fd: i32,
    /// True if the map itself is loaded, as an argument of helpers.
    pub by_handle: bool,
    /// True if the address of its first value is loaded.
    pub by_value: bool,
}

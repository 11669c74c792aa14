//! The examples of `github.com/cilium/ebpf`, as `scripts/matrix.sh` builds them.

use std::path::PathBuf;

use crate::entry::Compare::{Holding, Ours};
use crate::entry::Work::{self, Shell};
use crate::entry::{CALLS, Words};
use crate::newer;

/// Program, arguments, work, comparison.
pub const TABLE: &[Words] = &[
    ("uretprobe", "", Shell, Holding(&["return value"])),
    ("ringbuffer", "", CALLS, Holding(&["comm: tools"])),
    ("kprobe", "", CALLS, Holding(&["sys_execve called"])),
    ("kprobe_percpu", "", CALLS, Holding(&["sys_execve called"])),
    ("kprobepin", "", CALLS, Holding(&["sys_execve called"])),
    ("map_in_map", "", Work::None, Holding(&["innerMap.Info"])),
    ("tcprtt", "", CALLS, Ours),
    ("xdp", "lo", CALLS, Ours),
    ("xdp_live_frame", "lo", CALLS, Ours),
    ("tcx", "lo", CALLS, Ours),
];

fn directory() -> PathBuf {
    newer::root().with_file_name("go")
}

/// Returns the module's version.
///
/// # Errors
/// It has not been built.
pub fn version() -> Result<String, String> {
    let file = directory().join("VERSION");
    let version = std::fs::read_to_string(&file);
    version
        .map(|text| text.trim().to_owned())
        .map_err(|_| format!("no {} (scripts/matrix.sh makes it)", file.display()))
}

/// Returns the examples.
pub fn programs() -> Vec<String> {
    let files = std::fs::read_dir(directory().join("bin"))
        .into_iter()
        .flatten()
        .flatten();
    let mut names: Vec<_> = files
        .filter_map(|file| file.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}

/// Returns the file of an example.
pub fn place(program: &str) -> PathBuf {
    directory().join("bin").join(program)
}

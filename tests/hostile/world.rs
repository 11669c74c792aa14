//! Processes of several users, and what Beeline has mapped into them.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;

pub use beeline_e2e::as_user;
use beeline_e2e::{Scratch, Workload, beeline, beeline_wanted, find_program};

/// Users that exist on every Debian system: root, daemon and nobody.
pub const USERS: [u32; 3] = [0, 1, 65534];

/// A program that every user may run.
pub struct World {
    _scratch: Scratch,
    pub program: PathBuf,
    pub bpftrace: PathBuf,
}

impl World {
    /// Builds a workload. The error says what the machine lacks.
    pub fn new(workload: &str) -> Result<Self, String> {
        let bpftrace = find_program("bpftrace")?;
        beeline_wanted()?;
        // SAFETY: geteuid only answers a number.
        if unsafe { libc::geteuid() } != 0 {
            return Err("only root can become another user".to_owned());
        }
        let scratch = Scratch::new();
        let program = scratch.build(workload);
        Ok(Self {
            _scratch: scratch,
            program,
            bpftrace,
        })
    }

    /// Starts the workload as a user.
    pub fn start_as(&self, user: u32) -> Workload {
        Workload::start_command(as_user(user, &self.program))
    }

    /// Returns a script with `{prog}` replaced by the workload's path.
    pub fn script(&self, script: &str) -> String {
        script.replace("{prog}", &self.program.display().to_string())
    }
}

/// Returns a tool under Beeline.
pub fn isolated(tool: impl AsRef<OsStr>) -> Command {
    beeline_with(&["run", "--"], tool)
}

/// Returns a tool under a Beeline that lets all targets share memory.
pub fn together(tool: impl AsRef<OsStr>) -> Command {
    beeline_with(&["run", "--no-isolation", "--"], tool)
}

fn beeline_with(arguments: &[&str], tool: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(beeline());
    command.args(arguments).arg(tool);
    command.env("BEELINE_CACHE", "");
    command
}

/// Beeline's memory files in a process that hold data, by inode: their names, and whether the
/// process may write them. The agent's code is the same for all, and holds none.
pub fn memory_files(pid: u32) -> BTreeMap<u64, (String, bool)> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("the target lives");
    let mut files = BTreeMap::new();
    for line in maps.lines().filter(|line| line.contains("/memfd:beeline-")) {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, permissions, _, _, inode, name, ..] = fields[..] else {
            panic!("{line}");
        };
        let name = name.rsplit('-').next().unwrap_or_default().to_owned();
        if name == "agent" {
            continue;
        }
        let inode = inode.parse().expect("a number");
        let file = files.entry(inode).or_insert((name, false));
        file.1 |= permissions.contains('w');
    }
    files
}

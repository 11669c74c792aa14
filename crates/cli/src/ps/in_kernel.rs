//! The programs that sessions have in the host's kernel. A session's process holds them.

use std::collections::BTreeSet;
use std::path::Path;

use beeline_kernel::program_by_id;
use beeline_vm_protocol::text::printable_line;
use serde_json::json;

/// A session with programs in the kernel.
pub(super) struct InKernel {
    session: i32,
    tool: String,
    programs: Vec<Program>,
}

struct Program {
    id: u32,
    name: String,
    kind: String,
}

/// Returns the sessions whose programs in the kernel this user may see.
pub(super) fn sessions() -> Vec<InKernel> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| is_beeline(*pid))
        .filter_map(InKernel::of)
        .collect()
}

impl InKernel {
    /// Returns `None` for a process without programs in the kernel.
    fn of(session: i32) -> Option<Self> {
        let programs: Vec<_> = program_ids(session)
            .into_iter()
            .filter_map(Program::of)
            .collect();
        (!programs.is_empty()).then(|| Self {
            session,
            tool: tool_of(session),
            programs,
        })
    }

    pub(super) fn print(&self) {
        let Self { session, tool, .. } = self;
        println!(
            "{session:>8}  {:<16} {session:>8}  {:<8} {:>5}  {tool}",
            super::comm(*session),
            "live",
            "-"
        );
        for Program { id, name, kind } in &self.programs {
            println!("{:>12}program {name}, in the kernel: {kind}, id {id}", "");
        }
    }

    pub(super) fn as_value(&self) -> serde_json::Value {
        let program = |program: &Program| json!({"id": program.id, "name": program.name, "type": program.kind});
        json!({
            "pid": self.session,
            "comm": super::comm(self.session),
            "session": self.session,
            "live": true,
            "tool": self.tool,
            "programs_in_kernel": self.programs.iter().map(program).collect::<Vec<_>>(),
        })
    }
}

impl Program {
    /// Returns `None` for a program that has gone, or that may not be seen.
    fn of(id: u32) -> Option<Self> {
        let (kind, name) = program_by_id(id).ok()?;
        Some(Self {
            id,
            name: printable_line(&name).into_owned(),
            kind: kind.to_string(),
        })
    }
}

/// Returns whether a process runs a program called beeline.
fn is_beeline(pid: i32) -> bool {
    let program = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    name.trim_end_matches(" (deleted)") == "beeline"
}

/// Returns the kernel's ids of the programs that a process holds, each once.
fn program_ids(pid: i32) -> BTreeSet<u32> {
    let directory = format!("/proc/{pid}/fd");
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let is_program = |path: &Path| {
        std::fs::read_link(path).is_ok_and(|file| file.as_os_str() == "anon_inode:bpf-prog")
    };
    let id = |fd: &str| {
        let info = std::fs::read_to_string(format!("/proc/{pid}/fdinfo/{fd}")).ok()?;
        let line = info.lines().find_map(|line| line.strip_prefix("prog_id:"));
        line?.trim().parse().ok()
    };
    entries
        .filter(|entry| is_program(&entry.path()))
        .filter_map(|entry| id(entry.file_name().to_str()?))
        .collect()
}

/// Returns the command line of a session's tool: what follows the options of `beeline run`.
fn tool_of(session: i32) -> String {
    let line = std::fs::read(format!("/proc/{session}/cmdline")).unwrap_or_default();
    let line = String::from_utf8_lossy(&line)
        .trim_end_matches('\0')
        .replace('\0', " ");
    let tool = line.split_once(" -- ").map_or(&*line, |(_, tool)| tool);
    printable_line(tool).into_owned()
}

//! Debian's tools for system calls, unmodified, print of a target under Beeline what they print on the kernel.

use std::path::Path;

use beeline_e2e::{
    Engine, PATIENCE, Scratch, Tool, Turn, Workload, engines, find_program, need, until,
};

use crate::trace::{on_family, plain};

/// The rows that a tool prints of two rounds of a scene, without what differs from run to run. `row` takes a line apart:
/// `None` if it is none of the target's. `wanted` rows are waited for.
fn same_rows(
    name: &str,
    arguments: impl Fn(u32) -> Vec<String>,
    wanted: usize,
    row: impl Fn(&str, u32) -> Option<String>,
) {
    let _turn = Turn::take();
    let tool = need!(find_program(name));
    let scratch = Scratch::new();
    let target = plain(&scratch.build("calls/kinds.c"));
    let mut all = Vec::new();
    for engine in need!(engines()) {
        let mut workload = Workload::start_command(target());
        let pid = workload.pid();
        let mut rows = trace(
            engine,
            &tool,
            &arguments(pid),
            &mut workload,
            wanted,
            |line| row(line, pid),
        );
        rows.sort();
        assert_eq!(rows.len(), wanted, "{engine}: {rows:?}");
        workload.finish();
        all.push(rows);
    }
    if let [kernel, beeline] = all.as_slice() {
        assert_eq!(beeline, kernel, "beeline (left), the kernel (right)");
    }
}

fn trace(
    engine: Engine,
    tool: &Path,
    arguments: &[String],
    workload: &mut Workload,
    wanted: usize,
    row: impl Fn(&str) -> Option<String>,
) -> Vec<String> {
    let mut command = on_family(engine, tool, workload.pid());
    command.args(arguments);
    let tool = Tool::start_on_terminal(command);
    let rows = || -> Vec<String> {
        let lines = tool.stdout.so_far();
        lines.iter().filter_map(|line| row(line)).collect()
    };
    // Headings may come before it is attached: it is when it has shown the last of a round's files.
    let is_attached = || {
        assert_eq!(workload.tell("files"), "done files", "{engine}");
        let is_last = |row: &String| row.ends_with("/no/such/file");
        let moment = std::time::Duration::from_millis(300);
        until(moment, || rows().last().is_some_and(is_last))
    };
    assert!(until(PATIENCE, is_attached), "{engine}: it shows nothing");
    let seen = rows().len();
    for _ in 0..2 {
        assert_eq!(workload.tell("files"), "done files", "{engine}");
    }
    until(PATIENCE, || rows().len() >= seen + wanted);
    let rows = rows().split_off(seen);
    tool.interrupt();
    rows
}

/// A line's words from the one that is the target's id on, without it.
fn behind_pid(line: &str, pid: u32) -> Option<String> {
    let (_, rest) = line.split_once(&pid.to_string())?;
    Some(rest.split_whitespace().collect::<Vec<_>>().join(" "))
}

#[test]
fn opensnoop_shows_files_and_errors() {
    let arguments = |pid: u32| vec!["-p".to_owned(), pid.to_string()];
    same_rows("opensnoop", arguments, 12, behind_pid);
}

#[test]
fn opensnoop_shows_failures_only_if_told() {
    let arguments = |pid: u32| vec!["-x".to_owned(), "-p".to_owned(), pid.to_string()];
    same_rows("opensnoop", arguments, 2, behind_pid);
}

//! Maps whose elements are programs, maps and cgroups behave as the kernel's do, also while
//! programs in other processes use them: the same tool prints the same on both engines.

use beeline_e2e::{Engine, PATIENCE, Scratch, Tool, Turn, engines, file_offset, need};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs a tool by every available engine, asserts that it prints the same and, for machines without
/// the kernel's, each line of `known`.
fn prints_the_same(command: impl Fn(Engine) -> Command, known: &[&str]) {
    let mut printed: Vec<(Engine, Vec<String>)> = Vec::new();
    for engine in need!(engines()) {
        // The kernel takes its time to detach.
        let ended = Tool::start(command(engine)).wait_at_most(4 * PATIENCE);
        assert!(ended.status.success(), "{engine}: {ended:?}");
        assert_eq!(ended.stderr, [""; 0], "{engine}");
        for line in known {
            assert!(
                ended.stdout.iter().any(|printed| printed == line),
                "{engine}: no line \"{line}\" in {:?}",
                ended.stdout
            );
        }
        printed.push((engine, ended.stdout));
    }
    for pair in printed.windows(2) {
        for (one, other) in pair[0].1.iter().zip(&pair[1].1) {
            assert_eq!(one, other, "{} and {}", pair[0].0, pair[1].0);
        }
        assert_eq!(pair[0].1.len(), pair[1].1.len(), "{pair:?}");
    }
}

/// The tool that traces two workloads of its own, with additional `arguments`.
fn traces(arguments: &[&Path], known: &[&str]) {
    let scratch = Scratch::new();
    let (tool, workload) = (scratch.build("probed_objects.c"), scratch.build("counts.c"));
    let offset = file_offset(&workload, "wl_add").expect("a function of the workload");
    let command = |engine: Engine| {
        let mut command = engine.command(&tool);
        command.arg(&workload).arg(offset.to_string());
        command.args(arguments);
        command
    };
    prints_the_same(command, known);
}

#[test]
fn inner_maps_end_with_all_that_leads_to_them() {
    let _turn = Turn::take();
    let scratch = Scratch::new();
    let tool = scratch.build("inner_maps.c");
    prints_the_same(
        |engine| engine.command(&tool),
        &["deleted: 0 -2 0", "all closed: -2 -2 -2"],
    );
}

#[test]
fn commands_and_single_runs() {
    let _turn = Turn::take();
    let scratch = Scratch::new();
    let tool = scratch.build("objects.c");
    // A program runs, and is tail-called 33 times.
    prints_the_same(
        |engine| engine.command(&tool),
        &["endless: 3", "runs 34, falls 1"],
    );
}

#[test]
fn changes_while_programs_run() {
    let _turn = Turn::take();
    traces(
        &[],
        &[
            "replaced while hot: 2000, 0 missed",
            "replaced while hot: 2000, 0 fell, sum 999000 of 2000",
            "circle: 2000, 66000 rounds, 2000 fell",
            "behind, later: 0 1000, 0 missed",
            "tasks, later: 1000",
            "tasks, before: 1000",
        ],
    );
}

#[test]
fn programs_know_the_cgroups_of_the_process_that_they_run_in() {
    let _turn = Turn::take();
    let mount = need!(cgroup2_mount());
    traces(
        &[&mount],
        &["in the child: 1 1 -11 -7 child 1 parent child 0 0"],
    );
}

/// Returns a directory for cgroups of version 2, if there is one.
fn cgroup2_mount() -> Result<PathBuf, String> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let whole = mounts.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(' ').collect();
        let is_whole = fields.get(3) == Some(&"/") && line.contains(" - cgroup2 ");
        is_whole.then(|| PathBuf::from(fields[4]))
    });
    let mount = whole.ok_or("no cgroup2 file system is mounted")?;
    let probe = mount.join(format!("beeline-probe-{}", std::process::id()));
    std::fs::create_dir(&probe)
        .and_then(|()| std::fs::remove_dir(&probe))
        .map_err(|error| format!("cgroups cannot be made in {}: {error}", mount.display()))?;
    Ok(mount)
}

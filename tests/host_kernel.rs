//! Tools with programs at the kernel's own events: those run in the kernel, the others in processes,
//! on maps and rings that both share. The kernel alone says what must come out.

use beeline_e2e::{
    Ended, Engine, Scratch, Tool, Turn, beeline, beeline_wanted, engines, file_offset,
    find_program, has_host_kernel, map_counts, need, with_tracefs,
};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The number of times that the workload calls its function and runs the leaf.
const RUNS: u64 = 100;

/// A program that calls a function before each of the other programs that it runs. Their names are
/// nobody else's.
struct Setting {
    scratch: Scratch,
    work: PathBuf,
    leaf: PathBuf,
}

impl Setting {
    fn new() -> Setting {
        let scratch = Scratch::new();
        let work = scratch.path().join("bothwork");
        std::fs::rename(scratch.build("runs_others.c"), &work).expect("renaming a program");
        let leaf = scratch.path().join("bothleaf");
        std::fs::copy("/bin/true", &leaf).expect("copying a program");
        Setting {
            scratch,
            work,
            leaf,
        }
    }

    fn command(&self) -> String {
        format!("{} {} {RUNS}", self.work.display(), self.leaf.display())
    }

    /// Runs a tool of these tests' own over the workload, with a place in it to probe.
    fn run(&self, engine: Engine, tool: &Path, offset: u64) -> Ended {
        let mut command = engine.command(tool);
        command.arg(&self.work).arg(offset.to_string());
        command.args([&self.work, &self.leaf]).arg(RUNS.to_string());
        Tool::start(command).wait()
    }

    /// Runs a bpftrace script over the workload.
    fn trace(&self, engine: Engine, bpftrace: &Path, script: &str) -> Ended {
        let run = engine.command(bpftrace);
        let mut command = with_tracefs(run.get_program());
        command.args(run.get_args()).args(["-c", &self.command()]);
        command.args(["-e", script]);
        Tool::start(command).wait()
    }
}

#[test]
fn both_sides_count_in_one_map() {
    let _turn = Turn::take();
    need!(has_host_kernel());
    let bpftrace = need!(find_program("bpftrace"));
    let setting = Setting::new();
    let work = setting.work.display();
    let script = format!(
        "tracepoint:sched:sched_process_exec /comm == \"bothleaf\"/ {{ @kernel = count(); @both[comm] = count(); }}
         uprobe:{work}:before_run {{ @process = count(); @both[comm] = count(); @sum = sum(arg0); }}"
    );
    for engine in need!(engines()) {
        let ended = setting.trace(engine, &bpftrace, &script);
        let counts = map_counts(&ended.stdout);
        for name in ["@kernel", "@process", "@both[bothleaf]", "@both[bothwork]"] {
            assert_eq!(counts.get(name), Some(&RUNS), "{engine}: {name}: {ended:?}");
        }
        assert_eq!(counts["@sum"], RUNS * (RUNS + 1) / 2, "{engine}");
    }
}

#[test]
fn lines_come_from_both_sides() {
    let _turn = Turn::take();
    need!(has_host_kernel());
    let bpftrace = need!(find_program("bpftrace"));
    let setting = Setting::new();
    let work = setting.work.display();
    let script = format!(
        "tracepoint:sched:sched_process_exec /comm == \"bothleaf\"/ {{ printf(\"ran %s\\n\", comm); }}
         uprobe:{work}:before_run {{ printf(\"called %d\\n\", arg0); }}"
    );
    for engine in need!(engines()) {
        let ended = setting.trace(engine, &bpftrace, &script);
        let lines = |start: &str| {
            let all = ended.stdout.iter();
            all.filter(|line| line.starts_with(start)).count() as u64
        };
        assert_eq!(lines("ran bothleaf"), RUNS, "{engine}: {ended:?}");
        assert_eq!(lines("called "), RUNS, "{engine}: {ended:?}");
    }
}

#[test]
fn both_sides_send_through_one_ring_buffer() {
    let _turn = Turn::take();
    need!(has_host_kernel());
    let setting = Setting::new();
    let tool = setting.scratch.build("both_sides.c");
    let offset = file_offset(&setting.work, "before_run").expect("a symbol");
    for engine in need!(engines()) {
        let ended = setting.run(engine, &tool, offset);
        let expected = format!(
            "counted {}: {RUNS} in the kernel, {RUNS} in processes; sent {RUNS} and {RUNS}, other 0; status 0",
            2 * RUNS
        );
        assert_eq!(ended.stdout, [expected], "{engine}: {ended:?}");
    }
}

/// One program at each CPU's clock is a profiler: it samples what runs there.
#[test]
fn a_profiler_samples_processes() {
    let _turn = Turn::take();
    need!(has_host_kernel());
    let bpftrace = need!(find_program("bpftrace"));
    // Neither stacks nor a greatest value can be on both sides: no timer of Beeline's has had them.
    let script =
        "profile:hz:99 { @[comm] = count(); @stacks[kstack(3)] = count(); @most = max(pid); }";
    for engine in need!(engines()) {
        let mut command = engine.command(&bpftrace);
        command.args(["-c", "/usr/bin/timeout 2 /usr/bin/sha256sum /dev/zero"]);
        command.args(["-e", script]);
        let ended = Tool::start(command).wait();
        assert!(ended.status.success(), "{engine}: {ended:?}");
        let counts = map_counts(&ended.stdout);
        assert!(counts["@most"] > 1, "{engine}: {ended:?}");
        let samples = counts.get("@[sha256sum]").copied().unwrap_or_default();
        assert!(samples >= 20, "{engine}: {ended:?}");
        assert!(!counts.contains_key("@[beeline-runner]"), "{ended:?}");
    }
}

/// An array that a tool maps is one memory: for programs on both sides, whatever they do with it, and
/// for the tool.
#[test]
fn a_mapped_array_is_one_memory() {
    let _turn = Turn::take();
    need!(has_host_kernel());
    let setting = Setting::new();
    let tool = setting.scratch.build("one_memory.c");
    let offset = file_offset(&setting.work, "before_run").expect("a symbol");
    for engine in need!(engines()) {
        let ended = setting.run(engine, &tool, offset);
        let all = 2 * RUNS;
        let before = RUNS - 1;
        let expected = [
            "unwanted: 0".to_owned(),
            format!(
                "counted {all} ({all} by a call): {RUNS} in the kernel, {RUNS} in processes; saw {RUNS} and {before}, backwards 0 and 0"
            ),
            "stored 707070707070707; freezing: -16, then 0; writable then: no".to_owned(),
        ];
        assert_eq!(ended.stdout, expected, "{engine}: {ended:?}");
    }
}

/// Maps that only the kernel's programs use are the kernel's with all that is in them.
#[test]
fn maps_move_to_the_kernel() {
    let _turn = Turn::take();
    need!(has_host_kernel());
    let setting = Setting::new();
    let tool = setting.scratch.build("kernel_only.c");
    for engine in need!(engines()) {
        let mut command = engine.command(&tool);
        command.arg(&setting.leaf);
        let ended = Tool::start(command).wait();
        let expected = [
            "queue: 2 3 4 101",
            "stack: 104 3 2 1",
            "filter: 0, then -2",
            "read: 51, sum 1326",
            "taken: 51, sum 1326",
            "left: 0, sum 0",
        ];
        assert_eq!(ended.stdout, expected, "{engine}: {ended:?}");
    }
}

/// Both sides find what the other one has stored, and delete it, whichever is attached first.
#[test]
fn elements_go_from_one_side_to_the_other() {
    let _turn = Turn::take();
    need!(has_host_kernel());
    let bpftrace = need!(find_program("bpftrace"));
    let setting = Setting::new();
    let work = setting.work.display();
    let of_process = format!(
        "uprobe:{work}:before_run {{
             @calls = count(); @last = arg0; @at[arg0] = nsecs;
             if (@ran > 0) {{ @sum = sum(@ran); delete(@ran); }}
         }}"
    );
    // The workload counts down to 1, and calls its function before each run.
    let of_kernel = "tracepoint:sched:sched_process_exec /comm == \"bothleaf\"/ {
             @ran = @last;
             if (@at[@last] != 0 && nsecs >= @at[@last]) { @found = count(); delete(@at[@last]); }
         }";
    for script in [
        format!("{of_process} {of_kernel}"),
        format!("{of_kernel} {of_process}"),
    ] {
        for engine in need!(engines()) {
            let ended = setting.trace(engine, &bpftrace, &script);
            let counts = map_counts(&ended.stdout);
            let value = |name: &str| counts.get(name).copied();
            assert_eq!(value("@calls"), Some(RUNS), "{engine}: {ended:?}");
            assert_eq!(value("@found"), Some(RUNS), "{engine}: {ended:?}");
            assert_eq!(
                (value("@last"), value("@ran")),
                (Some(1), Some(1)),
                "{engine}: {ended:?}"
            );
            // All but the last, which no call comes after.
            let sum = RUNS * (RUNS + 1) / 2 - 1;
            assert_eq!(value("@sum"), Some(sum), "{engine}: {ended:?}");
            let left = counts.keys().any(|name| name.starts_with("@at["));
            assert!(!left, "{engine}: {ended:?}");
        }
    }
}

/// Programs that change elements of the kernel's in place are not in processes: the user is told,
/// whichever side is first.
#[test]
fn a_map_that_cannot_be_shared_is_named() {
    let _turn = Turn::take();
    need!(has_host_kernel());
    need!(beeline_wanted());
    let bpftrace = need!(find_program("bpftrace"));
    let setting = Setting::new();
    let work = setting.work.display();
    let of_process = format!("uprobe:{work}:before_run {{ @most = max(arg0); }}");
    let of_kernel = "tracepoint:sched:sched_process_exec { @most = max(pid); }";
    for script in [
        format!("{of_process} {of_kernel}"),
        format!("{of_kernel} {of_process}"),
    ] {
        let ended = setting.trace(Engine::Beeline, &bpftrace, &script);
        let mut told = ended.stderr.iter();
        let named = told.any(|line| line.contains("AT_most") && line.contains("in the kernel"));
        assert!(named, "{ended:?}");
    }
}

/// Beeline's capabilities are not the tool's.
#[test]
fn a_tool_without_rights_gains_none() {
    let _turn = Turn::take();
    need!(has_host_kernel());
    need!(beeline_wanted());
    let scratch = Scratch::new();
    let tool = scratch.build("gives_up_rights.c");
    let mut tool = Tool::start(Engine::Beeline.command(tool));
    let said = tool.wait_for_line(|line| line.starts_with("event"));
    let refused =
        "event refused, tracepoint refused, cgroup refused, element refused, late element refused";
    assert_eq!(said, refused);
    // Nor has Beeline loaded any of the programs, but the one from before.
    let files = std::fs::read_dir(format!("/proc/{}/fd", tool.pid())).expect("Beeline's files");
    let names = files.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok());
    let in_kernel = names.filter(|name| name.as_os_str() == "anon_inode:bpf-prog");
    assert_eq!(in_kernel.count(), 1);
    tool.send("end");
    tool.wait();
}

#[test]
fn user_space_only_refuses_the_kernels_events() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let bpftrace = need!(find_program("bpftrace"));
    let mut command = Command::new(beeline());
    command.args(["run", "--where", "user", "--"]).arg(bpftrace);
    command.args(["-e", "profile:hz:99 { @ = count(); }"]);
    let ended = Tool::start(command).wait();
    assert!(!ended.status.success(), "{ended:?}");
    let told = ended
        .stderr
        .iter()
        .any(|line| line.contains("--where user"));
    assert!(told, "{ended:?}");
}

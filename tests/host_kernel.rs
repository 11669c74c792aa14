//! Tools with programs at the kernel's own events: those run in the kernel, the others in processes,
//! on maps and rings that both share. The kernel alone says what must come out.

use beeline_e2e::{
    Ended, Engine, Scratch, Tool, Turn, beeline, beeline_wanted, engines, file_offset,
    find_program, in_guest, in_sandbox, kernel_available, map_counts, need, with_tracefs,
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

    /// Runs a bpftrace script over the workload.
    fn trace(&self, engine: Engine, bpftrace: &Path, script: &str) -> Ended {
        let run = engine.command(bpftrace);
        let mut command = with_tracefs(run.get_program());
        command.args(run.get_args()).args(["-c", &self.command()]);
        command.args(["-e", script]);
        Tool::start(command).wait()
    }
}

/// Fails unless this machine's kernel is the session's own.
fn has_host_kernel() -> Result<(), String> {
    if in_guest() || in_sandbox() {
        return Err("the session has no kernel of its own".to_owned());
    }
    kernel_available()
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
        let mut command = engine.command(&tool);
        command.arg(&setting.work).arg(offset.to_string());
        command
            .args([&setting.work, &setting.leaf])
            .arg(RUNS.to_string());
        let ended = Tool::start(command).wait();
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

/// Programs that do more with a map than to add to it are not on both sides: the user is told.
#[test]
fn a_map_that_cannot_be_shared_is_named() {
    let _turn = Turn::take();
    need!(has_host_kernel());
    need!(beeline_wanted());
    let bpftrace = need!(find_program("bpftrace"));
    let setting = Setting::new();
    let work = setting.work.display();
    let script = format!(
        "uprobe:{work}:before_run {{ @last = arg0; }}
         tracepoint:sched:sched_process_exec /@last > 0/ {{ @seen = count(); }}"
    );
    let ended = setting.trace(Engine::Beeline, &bpftrace, &script);
    let mut told = ended.stderr.iter();
    let named = told.any(|line| line.contains("AT_last") && line.contains("in the kernel"));
    assert!(named, "{ended:?}");
}

/// Beeline's capabilities are not the tool's.
#[test]
fn a_tool_without_rights_gains_none() {
    let _turn = Turn::take();
    need!(has_host_kernel());
    need!(beeline_wanted());
    let scratch = Scratch::new();
    let tool = scratch.build("gives_up_rights.c");
    let ended = Tool::start(Engine::Beeline.command(tool)).wait();
    assert_eq!(
        ended.stdout,
        ["event refused, tracepoint refused"],
        "{ended:?}"
    );
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

//! Among several processes named by `--pid`, Beeline reports and skips one that it cannot trace,
//! and traces the others.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use beeline_e2e::{
    Footprint, PATIENCE, Scratch, Tool, Turn, Workload, beeline, beeline_wanted, find_program,
    map_counts, need, until,
};

const PROBES: [&str; 2] = [
    "uprobe:{prog}:wl_add { @[pid] = count(); }",
    "tracepoint:syscalls:sys_enter_write { @[pid] = count(); }",
];

/// The tool, which says when it has begun, and waits for a file before it attaches anything.
fn trace(pids: &[u32], script: &str, scratch: &Scratch) -> Tool {
    let mut command = Command::new(beeline());
    command.arg("run");
    for pid in pids {
        command.args(["--pid", &pid.to_string()]);
    }
    let wait = "echo begun; until test -e go; do sleep 0.02; done; exec bpftrace \"$@\"";
    command.args(["--", "sh", "-c", wait, "sh"]);
    command.current_dir(scratch.path());
    Tool::bpftrace(command, script)
}

fn let_attach(scratch: &Scratch) {
    std::fs::write(scratch.path().join("go"), "").expect("the file can be written");
}

/// Starts strace on a process, and waits until it traces it.
fn strace(strace: &Path, pid: u32) -> Child {
    let mut command = Command::new(strace);
    command.args([
        "-qq",
        "-e",
        "trace=none",
        "-o",
        "/dev/null",
        "-p",
        &pid.to_string(),
    ]);
    let child = command.stdin(Stdio::null()).spawn().expect("strace runs");
    assert!(until(PATIENCE, || Footprint::of(pid).tracer == child.id()));
    child
}

#[test]
fn one_that_cannot_be_traced_does_not_end_the_others_session() {
    let _turn = Turn::take();
    need!(find_program("bpftrace"));
    need!(beeline_wanted());
    let held_by = need!(find_program("strace"));
    for is_held_first in [true, false] {
        for script in PROBES {
            let scratch = Scratch::new();
            let program = scratch.build("counts.c");
            let (mut free, held) = (Workload::start(&program), Workload::start(&program));
            let script = script.replace("{prog}", &program.display().to_string());
            let mut holder = is_held_first.then(|| strace(&held_by, held.pid()));
            let tool = trace(&[held.pid(), free.pid()], &script, &scratch);
            tool.wait_for_line(|line| line == "begun");
            let mut holder = holder
                .take()
                .unwrap_or_else(|| strace(&held_by, held.pid()));
            let_attach(&scratch);
            tool.wait_attached();
            free.go();
            tool.settle();
            let ended = tool.interrupt();
            assert!(ended.status.success(), "{ended:?}");
            let counts = map_counts(&ended.stdout);
            let count = counts.get(format!("@[{}]", free.pid()).as_str());
            assert!(count.is_some_and(|count| *count > 0), "{ended:?}");
            let is_told = |line: &&String| {
                line.contains(&format!("process {} (", held.pid())) && line.contains("is left out")
            };
            let told: Vec<_> = ended.stderr.iter().filter(is_told).collect();
            assert!(told.len() == 1 && told[0].contains("strace"), "{ended:?}");
            holder
                .kill()
                .and_then(|()| holder.wait().map(drop))
                .expect("ours to kill");
            free.finish();
            held.finish();
        }
    }
}

#[test]
fn none_that_can_be_traced_is_an_error() {
    let _turn = Turn::take();
    need!(find_program("bpftrace"));
    need!(beeline_wanted());
    let held_by = need!(find_program("strace"));
    let scratch = Scratch::new();
    let program = scratch.build("counts.c");
    let held = [Workload::start(&program), Workload::start(&program)];
    let holders = [0, 1].map(|at: usize| strace(&held_by, held[at].pid()));
    let ended = trace(&[held[0].pid(), held[1].pid()], PROBES[1], &scratch).wait();
    assert!(!ended.status.success(), "{ended:?}");
    let said = ended.stderr.join("\n");
    assert!(said.contains("is already traced by strace"), "{ended:?}");
    for mut holder in holders {
        holder
            .kill()
            .and_then(|()| holder.wait().map(drop))
            .expect("ours to kill");
    }
    held.into_iter().for_each(Workload::finish);
}

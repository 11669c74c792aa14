//! A traced process's children, forked while it is probed, run on unharmed and are left clean.

use beeline_e2e::{
    Engine, PATIENCE, Scratch, Tool, Turn, Workload, altered_text, beeline, beeline_wanted,
    engines, file_offset, find_program, is_alive, map_counts, need, skipped, until,
};
use std::path::Path;
use std::process::Command;

const SCRIPT: &str = "uprobe:{prog}:f_work /pid == {pid}/ { @in = count(); } \
    uretprobe:{prog}:f_work /pid == {pid}/ { @out = count(); }";

fn trace(engine: Engine, bpftrace: &Path, program: &Path, pid: u32) -> Tool {
    let script = SCRIPT
        .replace("{prog}", &program.display().to_string())
        .replace("{pid}", &pid.to_string());
    let mut command = engine.command(bpftrace);
    command.args(["-p", &pid.to_string()]);
    let tool = Tool::bpftrace(command, &script);
    tool.wait_attached();
    tool
}

/// Makes the target fork, and returns the children's process ids.
fn fork(workload: &mut Workload) -> Vec<u32> {
    let answer = workload.tell("fork");
    let pids = answer
        .strip_prefix("children ")
        .unwrap_or_else(|| panic!("{answer}"));
    pids.split(' ')
        .map(|pid| pid.parse().unwrap_or_else(|_| panic!("{answer}")))
        .collect()
}

#[test]
fn children_outlive_the_tracing_and_end_with_their_own_exit_codes() {
    let _turn = Turn::take();
    let bpftrace = need!(find_program("bpftrace"));
    let scratch = Scratch::new();
    let program = scratch.build("forks.c");
    for engine in need!(engines()) {
        let mut workload = Workload::start(&program);
        let tool = trace(engine, &bpftrace, &program, workload.pid());
        let children = fork(&mut workload);
        assert_eq!(workload.go(), "done 10000", "{engine}");
        tool.settle();
        let ended = tool.interrupt();
        let counts = map_counts(&ended.stdout);
        assert_eq!(
            (counts.get("@in"), counts.get("@out")),
            (Some(&100), Some(&100)),
            "{engine}: {ended:?}"
        );
        assert!(
            children.iter().all(|&child| is_alive(child)),
            "{engine}: a child died"
        );
        if engine == Engine::Beeline {
            children
                .iter()
                .for_each(|&child| assert_clean_or_listed(child));
        }
        assert!(
            children.iter().all(|&child| is_alive(child)),
            "{engine}: cleaning killed a child"
        );
        assert_eq!(workload.tell("end"), "ended 33 34 35 36", "{engine}");
        workload.finish();
    }
}

/// Asserts that a process holds nothing of Beeline's, or that `beeline ps` lists it and `beeline
/// detach` cleans it.
fn assert_clean_or_listed(pid: u32) {
    let is_clean = || altered_text(pid).is_empty();
    if is_clean() {
        return;
    }
    let listed = Command::new(beeline())
        .args(["ps", "--json"])
        .output()
        .expect("beeline runs");
    let list: serde_json::Value = serde_json::from_slice(&listed.stdout).expect("JSON");
    let is_listed = list
        .as_array()
        .is_some_and(|list| list.iter().any(|entry| entry["pid"] == pid));
    assert!(
        is_listed,
        "the child {pid} is patched at {:?}, and beeline ps does not list it: {list}",
        altered_text(pid)
    );
    let detached = Command::new(beeline())
        .args(["detach", &pid.to_string()])
        .output()
        .expect("beeline runs");
    assert!(detached.status.success(), "{detached:?}");
    assert!(
        until(PATIENCE, is_clean),
        "detached, and still patched: {:?}",
        altered_text(pid)
    );
}

#[test]
fn children_run_on_after_beeline_was_killed() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let bpftrace = need!(find_program("bpftrace"));
    let scratch = Scratch::new();
    let program = scratch.build("forks.c");
    let mut workload = Workload::start(&program);
    let tool = trace(Engine::Beeline, &bpftrace, &program, workload.pid());
    let children = fork(&mut workload);
    tool.signal_group(libc::SIGKILL);
    tool.wait();
    assert_eq!(workload.go(), "done 10000");
    for pid in children.iter().copied().chain([workload.pid()]) {
        assert_clean_or_listed(pid);
    }
    assert_eq!(workload.tell("end"), "ended 33 34 35 36");
    workload.finish();
}

/// Children's hooked code is restored when their parent's session ends, even if a kernel uprobe has
/// changed it in between.
#[test]
fn children_are_left_clean_beside_kernel_uprobes() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let bpftrace = need!(find_program("bpftrace"));
    let scratch = Scratch::new();
    let program = scratch.build("forks.c");
    let offset = need!(file_offset(&program, "f_work"));
    let mut kernel = Workload::start(&scratch.build("kernel_probes.c"));
    for goes_first in [true, false] {
        let mut workload = Workload::start(&program);
        let tool = trace(Engine::Beeline, &bpftrace, &program, workload.pid());
        let children = fork(&mut workload);
        let answer = kernel.tell(&format!("on {} {offset} entry", program.display()));
        if answer.parse::<u64>().is_err() {
            skipped(&format!("the kernel has no uprobes here: {answer}"));
            return;
        }
        if goes_first {
            kernel.tell("off all");
        }
        assert!(tool.interrupt().status.success());
        assert_eq!(workload.go(), "done 10000");
        for &pid in &children {
            assert!(is_alive(pid), "a child died");
            assert_clean_or_listed(pid);
        }
        kernel.tell("off all");
        for &pid in &children {
            assert_clean_or_listed(pid);
        }
        assert_eq!(workload.tell("end"), "ended 33 34 35 36");
        workload.finish();
    }
    kernel.finish();
}

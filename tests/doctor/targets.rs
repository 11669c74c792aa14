//! `beeline doctor PID` names what keeps a process from being traced.

use std::process::{Child, Command, Stdio};

use beeline_e2e::{
    Engine, Footprint, PATIENCE, Tool, Turn, Workload, altered_text, find_program, is_alive, need,
    until,
};

use crate::{Place, ask};

#[test]
fn a_process_that_can_be_traced_does_not_notice() {
    let _turn = Turn::take();
    let place = need!(Place::new());
    let mut workload = Workload::start_command(place.as_nobody(&place.scratch.build("counts.c")));
    let pid = workload.pid();
    let (honest, before) = (workload.go(), Footprint::of(pid));
    for report in [
        ask(&[&pid.to_string()]),
        place.ask_as_nobody(&[&pid.to_string()]),
    ] {
        report.works();
        assert_eq!(
            report.text,
            format!("Beeline can trace process {pid} (counts).")
        );
        report.has("target-owner", "ok", &["65534"]);
        report.has("target-dumpable", "ok", &["it is dumpable"]);
        report.has("target-sessions", "ok", &["no session"]);
        report.has("target-trial", "ok", &[]);
    }
    assert_eq!(altered_text(pid), [""; 0]);
    assert_eq!(Footprint::of(pid), before);
    assert_eq!(workload.go(), honest);
    workload.finish();
}

#[test]
fn sessions_in_a_process_are_listed() {
    let _turn = Turn::take();
    let place = need!(Place::new());
    need!(find_program("bpftrace"));
    let program = place.scratch.build("counts.c");
    let workload = Workload::start(&program);
    let pid = workload.pid().to_string();
    let mut command = Engine::Beeline.command("bpftrace");
    command.args(["-p", &pid]);
    let script = format!("uprobe:{}:wl_add {{ @ = count(); }}", program.display());
    let tool = Tool::bpftrace(command, &script);
    tool.wait_attached();
    let report = ask(&[&pid]);
    report.has("target-sessions", "ok", &["session ", "bpftrace"]);
    report.works();
    tool.interrupt();
    let report = ask(&[&pid]);
    report.has("target-sessions", "ok", &["no session"]);
    workload.finish();
}

#[test]
fn another_users_process_is_named() {
    let place = need!(Place::new());
    let workload = Workload::start(&place.scratch.build("counts.c"));
    let report = place.ask_as_nobody(&[&workload.pid().to_string()]);
    report.has(
        "target-owner",
        "no",
        &["user 0", "user 65534", "CAP_SYS_PTRACE"],
    );
    report.fails("belongs to user 0");
    workload.finish();
}

#[test]
fn a_process_that_is_not_dumpable_is_named() {
    let place = need!(Place::new());
    let program = place.scratch.build("undumpable.c");
    let workload = Workload::start_command(place.as_nobody(&program));
    let pid = workload.pid().to_string();
    let report = place.ask_as_nobody(&[&pid]);
    report.has("target-dumpable", "no", &["PR_SET_DUMPABLE"]);
    report.fails("not dumpable");
    let report = ask(&[&pid]);
    report.has("target-dumpable", "ok", &["not dumpable", "CAP_SYS_PTRACE"]);
    report.works();
    workload.finish();
}

/// Under a filter that kills for almost every call, and that Beeline itself is not under.
#[test]
fn a_process_under_a_filter_is_named() {
    let place = need!(Place::new());
    let workload = Workload::start(&place.scratch.build("jailed.c"));
    let pid = workload.pid().to_string();
    let report = ask(&[&pid]);
    report.has(
        "target-seccomp",
        "no",
        &["its filters: 1", "Beeline's: 0", "would kill it"],
    );
    report.fails("filters: 1");
    assert!(is_alive(workload.pid()));
    workload.finish();
}

/// A process that is killed when this is dropped.
struct Running(Child);

impl Running {
    fn start(command: &mut Command) -> Self {
        Self(command.stdin(Stdio::piped()).spawn().expect("it starts"))
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_tracer_of_a_process_is_named() {
    let place = need!(Place::new());
    let program = place.scratch.build("counts.c");
    let strace = need!(find_program("strace"));
    let workload = Workload::start(&program);
    let pid = workload.pid().to_string();
    let mut command = Command::new(strace);
    command
        .args(["-o", "/dev/null", "-p", &pid])
        .stderr(Stdio::null());
    let tracer = Running::start(&mut command);
    let traced = || Footprint::of(workload.pid()).tracer == tracer.pid();
    assert!(until(PATIENCE, traced), "strace does not attach");
    let report = ask(&[&pid]);
    report.has(
        "target-tracer",
        "no",
        &["strace", &tracer.pid().to_string()],
    );
    report.fails("strace");
    assert!(report.fix.contains("end strace"), "{report:#?}");
    drop(tracer);
    assert!(until(PATIENCE, || Footprint::of(workload.pid()).tracer == 0));
    ask(&[&pid]).works();
    workload.finish();
}

#[test]
fn a_32_bit_process_is_named() {
    let place = need!(Place::new());
    let program = place.scratch.build_32_bit("alone32.s");
    let child = Running::start(&mut Command::new(program));
    let report = ask(&[&child.pid().to_string()]);
    report.has("target-program", "no", &["32-bit"]);
    report.fails("32-bit");
    assert!(is_alive(child.pid()));
}

#[test]
fn a_process_that_has_ended_is_named() {
    let place = need!(Place::new());
    let program = place.scratch.build("counts.c");
    let mut workload = Workload::start(&program);
    let pid = workload.pid();
    workload.kill();
    assert!(until(PATIENCE, || !is_alive(pid)));
    let report = ask(&[&pid.to_string()]);
    report.has("target", "no", &["has ended"]);
    drop(workload);
    let report = ask(&[&pid.to_string()]);
    report.has("target", "no", &["no process", &pid.to_string()]);
    report.fails(&pid.to_string());
    assert!(!report.checks.contains_key("target-trial"), "{report:#?}");
}

#[test]
fn a_thread_of_the_kernels_is_named() {
    need!(Place::new());
    let is_kthreadd =
        std::fs::read_to_string("/proc/2/comm").is_ok_and(|comm| comm == "kthreadd\n");
    if !is_kthreadd {
        return beeline_e2e::skipped("there are no kernel threads in this PID namespace");
    }
    let report = ask(&["2"]);
    report.has("target", "no", &["kernel thread"]);
    assert_eq!(report.code, 1);
}

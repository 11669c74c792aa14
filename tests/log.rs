//! `BEELINE_LOG` makes a session print its decisions.

use std::process::Command;

use beeline_e2e::{
    Engine, Scratch, Tool, Turn, Workload, beeline, beeline_wanted, find_program, need,
};

const VARIABLE: &str = "BEELINE_LOG";

#[test]
fn decisions_are_logged_where_that_is_asked_for() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let bpftrace = need!(find_program("bpftrace"));
    let scratch = Scratch::new();
    let program = scratch.build("hammer.c");
    let workload = Workload::start(&program);
    let pid = workload.pid().to_string();
    let said = |level: Option<&str>| {
        let mut command = Engine::Beeline.command(&bpftrace);
        command.args(["-p", &pid]);
        command.env_remove(VARIABLE);
        if let Some(level) = level {
            command.env(VARIABLE, level);
        }
        let function = program.display();
        let calls = "tracepoint:raw_syscalls:sys_enter";
        let script = format!("uprobe:{function}:hm_locked, {calls} {{ @ = count(); }}");
        let tool = Tool::bpftrace(command, &script);
        tool.wait_attached();
        tool.interrupt().stderr.join("\n")
    };
    let debug = said(Some("debug"));
    for what in [
        "loaded a program name=",
        &format!("new target pid={pid}"),
        "hooked system calls",
        "hook=\"breakpoint\" why=\"",
        &format!("left a process pid={pid}"),
    ] {
        assert!(debug.contains(what), "no {what}: {debug}");
    }
    let info = said(Some("info"));
    assert!(
        info.contains("new target") && !info.contains("hooked a site"),
        "{info}"
    );
    assert!(!said(None).contains("new target"));
    workload.finish();
}

#[test]
fn a_wrong_filter_is_named() {
    let mut command = Command::new(beeline());
    let output = command.arg("ps").env(VARIABLE, "a=b=c").output();
    let output = output.expect("it runs");
    assert_eq!(output.status.code(), Some(1));
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.starts_with("beeline: BEELINE_LOG=a=b=c: "), "{told}");
}

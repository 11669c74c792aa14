//! Targets under their own seccomp filters.

use std::process::Command;

use beeline_e2e::{
    Engine, Footprint, Scratch, Tool, Turn, Workload, altered_text, beeline_wanted, find_program,
    need,
};

use crate::trace::{every_call, on_family, plain, same_calls, same_calls_but};

#[test]
fn targets_that_confine_themselves_work_on_and_are_seen() {
    let scratch = Scratch::new();
    let program = scratch.build("calls/confined.c");
    let scenes = ["work", "sparing", "work", "forbidden", "work"];
    // The kernel applies filters first, and shows only the return from the calls that they forbid.
    let forbidden = libc::SYS_getpgrp as u32;
    need!(same_calls_but(plain(&program), &scenes, |number| {
        number == forbidden
    }));
}

#[test]
fn filters_that_look_at_addresses_let_hooked_calls_pass() {
    let scratch = Scratch::new();
    let program = scratch.build("calls/confined.c");
    need!(same_calls(plain(&program), &["work", "placed", "work"]));
}

/// A target that is confined already stays unharmed. `tests/confined` has those that are traced.
#[test]
fn targets_that_are_confined_to_what_they_need_are_left_alone() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let bpftrace = need!(find_program("bpftrace"));
    let scratch = Scratch::new();
    let program = scratch.build("calls/confined.c");
    let mut command = Command::new(&program);
    command.arg("listed");
    let mut workload = Workload::start_command(command);
    let mut tool = on_family(Engine::Beeline, &bpftrace, workload.pid());
    tool.args(["-e", &every_call(Engine::Beeline).replace("{ours}", "1")]);
    let ended = Tool::start(tool).wait();
    assert!(!ended.status.success(), "{ended:?}");
    let why = ended.stderr.join("\n");
    assert!(why.contains("seccomp"), "{why}");
    assert_eq!(workload.tell("work"), "done work");
    assert_eq!(altered_text(workload.pid()), [""; 0]);
    workload.finish();
}

#[test]
fn targets_whose_filters_look_at_addresses_are_seen() {
    let scratch = Scratch::new();
    let program = scratch.build("calls/confined.c");
    let confined = || {
        let mut command = Command::new(&program);
        command.arg("placed");
        command
    };
    need!(same_calls(confined, &["work", "work"]));
}

/// A filter that would make the kernel kill a target, or fail a call, for something that Beeline
/// does in it finds nothing of Beeline's there.
#[test]
fn targets_that_forbid_our_own_calls_are_let_go_before() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let bpftrace = need!(find_program("bpftrace"));
    let scratch = Scratch::new();
    let program = scratch.build("calls/confined.c");
    for filter in ["listed", "killing", "strict"] {
        let mut workload = Workload::start_command(plain(&program)());
        let before = Footprint::of(workload.pid());
        // Beeline reads a string by a system call.
        let probe = "tracepoint:syscalls:sys_enter_write { @[str(args->buf)] = count(); }";
        let mut tool = on_family(Engine::Beeline, &bpftrace, workload.pid());
        beeline_e2e::compile_anew(&mut tool);
        let tool = Tool::bpftrace(tool, probe);
        tool.wait_attached();
        assert_eq!(workload.tell("work"), "done work");
        assert_eq!(workload.tell(filter), format!("done {filter}"));
        tool.wait_to_be_told(|line| line.contains("puts itself under a seccomp filter"));
        assert_eq!(altered_text(workload.pid()), [""; 0], "{filter}");
        assert_eq!(Footprint::of(workload.pid()), before, "{filter}");
        if filter != "strict" {
            assert_eq!(workload.tell("work"), "done work");
        }
        // Rounds come and go.
        tool.settle();
        assert_eq!(altered_text(workload.pid()), [""; 0], "{filter}");
        let ended = tool.interrupt();
        assert!(ended.status.success(), "{ended:?}");
        let seen = ended.stdout.iter().any(|line| line.contains("[done work"));
        assert!(seen, "{filter}: {ended:?}");
        match filter {
            // The filter does not allow `exit_group`.
            "strict" => workload.kill(),
            _ => workload.finish(),
        }
    }
}

//! Code that is loaded or written while it is traced, and targets under seccomp filters of their own.

use std::process::Command;

use beeline_e2e::{
    Engine, Scratch, Turn, Workload, altered_text, beeline_wanted, find_program, need,
};

use crate::trace::{every_call, on_family, plain, same_calls, same_calls_but};

#[test]
fn bare_calls_of_a_library_that_is_loaded_are_seen() {
    let scratch = Scratch::new();
    let program = scratch.build("calls/loaded.c");
    let library = scratch.build_with("calls/bare_library.c", &["-shared", "-fPIC"]);
    let target = || {
        let mut command = Command::new(&program);
        command.arg(&library).env_clear();
        command
    };
    need!(same_calls(target, &["load", "load"]));
}

/// Nobody knows the functions of such code: its calls are made, and not seen.
#[test]
fn code_that_is_written_at_run_time_runs() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let scratch = Scratch::new();
    let program = scratch.build("calls/loaded.c");
    let target = {
        let mut command = Command::new(&program);
        command.arg("none");
        command
    };
    let script = every_call(Engine::Beeline);
    let mut traced = need!(crate::trace::Traced::start(
        Engine::Beeline,
        target,
        &script
    ));
    for _ in 0..3 {
        assert_eq!(traced.workload.tell("write code"), "done write code");
    }
    traced.finish();
}

#[test]
fn targets_that_confine_themselves_work_on_and_are_seen() {
    let scratch = Scratch::new();
    let program = scratch.build("calls/confined.c");
    let scenes = ["work", "listed", "work", "forbidden", "work"];
    // The kernel looks at filters first, and shows only the return from what they forbid.
    let forbidden = libc::SYS_getuid as u32;
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

/// Whatever Beeline says of such a target, it is unharmed.
#[test]
fn targets_that_are_confined_already_are_left_alone() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let bpftrace = need!(find_program("bpftrace"));
    let scratch = Scratch::new();
    let program = scratch.build("calls/confined.c");
    for filter in ["listed", "placed"] {
        let mut command = Command::new(&program);
        command.arg(filter);
        let mut workload = Workload::start_command(command);
        let mut tool = on_family(Engine::Beeline, &bpftrace, workload.pid());
        tool.args(["-e", &every_call(Engine::Beeline).replace("{ours}", "1")]);
        let ended = beeline_e2e::Tool::start(tool).wait();
        assert!(!ended.status.success(), "{ended:?}");
        let why = ended.stderr.join("\n");
        assert!(why.contains("seccomp"), "{why}");
        assert_eq!(workload.tell("work"), "done work");
        assert_eq!(altered_text(workload.pid()), [""; 0]);
        workload.finish();
    }
}

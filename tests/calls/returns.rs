//! Returns from signal handlers.

use beeline_e2e::{Scratch, need};

use crate::trace::{plain, same_calls, same_counts};

/// Every call by its number (the exit of a call that sends a signal comes after the handler here,
/// and never if the handler jumps away), the record of a return from a handler in all programs at
/// exits, and its own tracepoints: the kernel has none at its exit, as it is no call any more.
const COUNTS: &str = r#"tracepoint:raw_syscalls:sys_enter /{ours}/ { @in[args->id] = count(); }
    tracepoint:raw_syscalls:sys_exit /{ours} && args->id == -1/ { @restored[args->ret] = count(); }
    tracepoint:syscalls:sys_enter_rt_sigreturn /{ours}/ { @returns = count(); }
    tracepoint:syscalls:sys_exit_rt_sigreturn /{ours}/ { @never = count(); }"#;

const ROUNDS: usize = 200;

fn returned(count: usize) -> String {
    format!("@returns: {count}")
}

fn returns(options: &[&str]) {
    let scratch = Scratch::new();
    let program = scratch.build_with("calls/returns.c", options);
    let scenes = [
        "many",
        "nested",
        "jumped",
        "other stack",
        "changed",
        "masked",
    ];
    need!(same_counts(
        &program,
        COUNTS,
        &scenes,
        &returned(4 * ROUNDS + 1)
    ));
}

#[test]
fn each_is_seen_once() {
    returns(&[]);
}

#[test]
fn each_is_seen_once_in_a_static_program() {
    returns(&["-static"]);
}

#[test]
fn each_is_seen_in_children() {
    let scratch = Scratch::new();
    let program = scratch.build("calls/returns.c");
    let returns = 2 * ROUNDS + 2 + ROUNDS;
    let scenes = ["children", "forked in handler"];
    need!(same_counts(&program, COUNTS, &scenes, &returned(returns)));
}

/// A program on this call alone, with only its record.
#[test]
fn they_are_seen_alone() {
    let script = "tracepoint:syscalls:sys_enter_rt_sigreturn /{ours}/ { @returns = count(); }";
    let scratch = Scratch::new();
    let program = scratch.build("calls/returns.c");
    need!(same_counts(
        &program,
        script,
        &["many", "nested"],
        &returned(2 * ROUNDS)
    ));
}

#[test]
fn walks_through_signal_frames_come_out() {
    let scratch = Scratch::new();
    for options in [&[][..], &["-static"]] {
        let program = scratch.build_with("calls/returns.c", options);
        let scenes = ["walked", "many", "walked"];
        need!(same_calls(plain(&program), &scenes));
    }
}

#[test]
fn exceptions_fly_through_signal_frames() {
    let scratch = Scratch::new();
    for options in [
        &["-fnon-call-exceptions"][..],
        &["-fnon-call-exceptions", "-static"],
    ] {
        let program = scratch.build_with("calls/throwing.cpp", options);
        need!(same_counts(
            &program,
            COUNTS,
            &["thrown", "thrown"],
            &returned(0)
        ));
    }
}

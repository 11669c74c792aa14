//! Processes and threads that begin while they are traced: all of their calls are seen, from the
//! first to the last.

use std::process::Command;

use beeline_e2e::{Scratch, find_program, need};

use crate::trace::{plain, same_calls, same_calls_but, same_calls_of_all, same_counts};

/// Compares the scenes for every C library and every way of linking.
fn children(scenes: &[&str]) {
    let scratch = Scratch::new();
    let program = scratch.build("calls/children.c");
    need!(same_calls(plain(&program), scenes));
}

/// Compares scenes in which threads wait for each other, or are waited for, in random order.
fn children_waiting(scenes: &[&str]) {
    let scratch = Scratch::new();
    let program = scratch.build("calls/children.c");
    let by_chance = [libc::SYS_futex, libc::SYS_sched_yield].map(|number| number as u32);
    need!(same_calls_but(plain(&program), scenes, |number| by_chance
        .contains(&number)));
}

#[test]
fn forked_children_are_seen() {
    children(&["fork", "fork deep", "fork raw", "clone3", "fork"]);
}

#[test]
fn each_of_200_quick_children_is_seen() {
    children(&["fork quick"]);
}

#[test]
fn children_that_share_the_memory_are_seen() {
    children(&["vfork", "clone sharing", "vfork"]);
}

#[test]
fn threads_are_seen() {
    children_waiting(&["threads", "fork in thread", "threads"]);
}

/// A thread that begins without a C library shares its maker's thread pointer, and with it the
/// apparent thread id: its calls are compared together with its maker's.
#[test]
fn bare_threads_are_seen() {
    let scratch = Scratch::new();
    let program = scratch.build("calls/children.c");
    let scenes = ["clone thread", "clone thread"];
    need!(same_calls_of_all(plain(&program), &scenes));
}

#[test]
fn children_forked_in_signal_handlers_are_seen() {
    children_waiting(&["fork in handler"]);
}

#[test]
fn daemons_are_seen() {
    children(&["daemon"]);
}

#[test]
fn spawned_programs_and_shells_are_seen() {
    let scratch = Scratch::new();
    let program = scratch.build("calls/children.c");
    let target = || {
        let mut command = Command::new(&program);
        // The loader's search path depends on it.
        command.env_clear().env("PATH", "/usr/bin:/bin");
        command
    };
    // glibc's posix_spawn is one function with a jump table; a call in its middle, which sets the
    // child's mask, cannot be hooked.
    let unhookable = libc::SYS_rt_sigprocmask as u32;
    need!(same_calls_but(target, &["spawn", "shell"], |number| number == unhookable));
}

/// The end of one thread of many is a call of its own, which never returns.
const ENDS: &str = r#"tracepoint:syscalls:sys_enter_exit /{ours}/ { @ends = count(); }
    tracepoint:syscalls:sys_exit_exit /{ours}/ { @never = count(); }"#;

#[test]
fn ends_of_single_threads_are_seen() {
    let scratch = Scratch::new();
    for options in [&[][..], &["-static"]] {
        let program = scratch.build_with("calls/alone.c", options);
        need!(same_counts(
            &program,
            ENDS,
            &["joined", "detached"],
            "@ends: 40"
        ));
    }
}

/// Threads that others wait for: a detached one has no stack any more when it ends.
#[test]
fn ends_of_single_threads_are_seen_in_musl() {
    let musl = need!(find_program("musl-gcc"));
    let scratch = Scratch::new();
    let program = scratch.build_by(&musl, "calls/alone.c", &["-static"]);
    need!(same_counts(&program, ENDS, &["joined"], "@ends: 20"));
}

//! Signals that interrupt calls, and handlers that call.

use beeline_e2e::{Scratch, need};

use crate::trace::{plain, same_calls};

fn signals(scenes: &[&str]) {
    let scratch = Scratch::new();
    let program = scratch.build("calls/signals.c");
    need!(same_calls(plain(&program), scenes));
}

#[test]
fn calls_that_a_handler_interrupts_end_or_begin_anew() {
    signals(&["interrupted read", "interrupted sleep", "restarted read"]);
}

#[test]
fn calls_by_a_number_in_a_register_end_or_begin_anew() {
    signals(&["restarted syscall"]);
}

#[test]
fn a_sleep_that_is_stopped_and_continued_goes_on() {
    signals(&["stopped sleep"]);
}

#[test]
fn handlers_may_jump_out_of_calls() {
    signals(&["jump out"]);
}

#[test]
fn handlers_call_on_stacks_of_their_own_and_in_each_other() {
    signals(&["alternate stack", "nested", "suspended"]);
}

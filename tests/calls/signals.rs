//! Signals that interrupt calls, and handlers that make calls.

use beeline_e2e::{Scratch, Turn, engines, need};

use crate::trace::{Traced, plain, same_calls};

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

/// Their returns are seen, too: a return is a handler's last action on its stack. A handler that
/// interrupts a program takes a slot of another CPU, and misses if that is taken.
#[test]
fn handlers_that_interrupt_each_other_on_one_stack_keep_their_frames() {
    let script = "tracepoint:raw_syscalls:sys_enter /{ours}/ { @in[args->id] = count(); } \
        tracepoint:raw_syscalls:sys_exit /{ours}/ { @out[args->id] = count(); }";
    let _turn = Turn::take();
    let scratch = Scratch::new();
    let program = scratch.build("calls/alternate.c");
    for engine in need!(engines()) {
        let traced = need!(Traced::start(engine, plain(&program)(), script));
        let Traced {
            mut workload, tool, ..
        } = traced;
        assert_eq!(workload.go(), "done go", "{engine}");
        tool.settle();
        let ended = tool.interrupt();
        // The answer is written, too.
        ended.assert_counted(&[
            ("@in[1]", 32_001),
            ("@out[1]", 32_001),
            ("@in[110]", 32_000),
            ("@out[110]", 32_000),
            ("@in[62]", 4_000),
            ("@out[62]", 4_000),
            ("@in[15]", 8_000),
            ("@out[-1]", 8_000),
        ]);
        workload.finish();
    }
}

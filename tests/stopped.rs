//! A process stopped by job control, with threads at unusual places, is traced like any other.

use std::time::Duration;

use beeline_e2e::{
    Engine, PATIENCE, Scratch, Tool, Turn, Workload, altered_text, beeline_wanted, file_offset,
    need, send, statuses, until,
};

/// A function that a breakpoint hooks.
const FUNCTION: &str = "hm_locked";
/// SIGTRAP among the pending signals of a thread.
const SIGTRAP: u64 = 1 << (libc::SIGTRAP - 1);
/// The number of times to stop the process, until a thread is past a breakpoint whose signal is
/// still pending.
const TIMES: usize = 200;

fn stop(pid: u32) {
    send(pid, libc::SIGSTOP);
    let is_stopped = || statuses(pid).iter().all(|one| one.contains("\nState:\tT"));
    assert!(until(PATIENCE, is_stopped));
}

/// Returns whether one of its threads has hit a breakpoint whose signal is still pending.
fn awaits_trap(pid: u32) -> bool {
    let pending = |status: &String| {
        let mut lines = status.lines();
        let mask = lines.find_map(|line| line.strip_prefix("SigPnd:"));
        let mask = u64::from_str_radix(mask.expect("each has one").trim(), 16);
        mask.expect("a number") & SIGTRAP != 0
    };
    statuses(pid).iter().any(pending)
}

#[test]
fn a_thread_that_awaits_the_signal_of_a_breakpoint_that_has_gone_is_no_obstacle() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let scratch = Scratch::new();
    let program = scratch.build("hammer.c");
    let attach = scratch.build("attach.c");
    let offset = need!(file_offset(&program, FUNCTION));
    let mut workload = Workload::start(&program);
    let pid = workload.pid();
    let start = || {
        let mut command = Engine::Beeline.command(&attach);
        command.arg(pid.to_string()).arg(&program);
        command.args(["1", &format!("P:{offset:#x}")]);
        let tool = Tool::start(command);
        let attached = tool.stdout.wait_for(0, PATIENCE, |line| line == "attached");
        assert!(attached.is_some(), "{:?}", tool.stderr.so_far());
        tool
    };
    assert_eq!(workload.tell("go"), "running");
    let awaited = (0..TIMES).any(|_| {
        let first = start();
        stop(pid);
        first.wait();
        let is_awaited = awaits_trap(pid);
        let second = start();
        send(pid, libc::SIGCONT);
        let ended = second.wait_at_most(Duration::from_secs(60));
        assert!(ended.status.success(), "{ended:?}");
        is_awaited
    });
    assert!(awaited, "no thread awaited its signal");
    let answer = workload.tell("stop");
    assert!(answer.starts_with("done 0 "), "wrong results: {answer}");
    assert!(until(PATIENCE, || altered_text(pid).is_empty()));
    workload.finish();
}

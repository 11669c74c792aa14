//! A tool that attacks Beeline, which answers its calls.

use std::process::Command;
use std::time::{Duration, Instant};

use beeline_e2e::{
    EXIT_CODE, Scratch, Tool, Turn, beeline, beeline_wanted, need, remark, seed, send, soak,
};

use crate::world::isolated;

/// The time after which Beeline is taken not to end, on the busiest machine. It should take 2 s.
const PATIENCE: Duration = Duration::from_secs(20);
/// Threads whose calls are never done.
const STALLED: &str = "40";

#[test]
fn calls_that_never_end_keep_no_other_calls_waiting_and_no_session_from_ending() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let scratch = Scratch::new();
    let mut command = isolated(scratch.build("stalls.c"));
    command.arg(STALLED);
    let tool = Tool::start(command);
    tool.wait_for_line(|line| line == "stalled");
    tool.wait_for_line(|line| line == "served");
    let since = Instant::now();
    send(tool.pid(), libc::SIGINT);
    let ended = tool.wait_at_most(PATIENCE);
    remark(&format!("it took {:?} to end", since.elapsed()));
    assert_eq!(ended.status.code(), Some(128 + libc::SIGINT), "{ended:?}");
    assert_eq!(ended.stderr, [""; 0], "{ended:?}");
}

/// The most memory that Beeline may have had at a time: its own, what it compiles with, and the tool's
/// objects within its limit.
const MOST_KIB: u64 = 1 << 20;

#[test]
fn a_tool_that_lies_while_it_is_answered_is_answered_to_the_end() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let scratch = Scratch::new();
    let (seconds, seed) = (soak().as_secs().max(5), seed());
    remark(&format!("BEELINE_SEED={seed}"));
    let mut command = Command::new(beeline());
    command
        .args(["run", "--memory-limit", "256M", "--"])
        .arg(scratch.build("races.c"))
        .args([seconds.to_string(), seed.to_string()]);
    let tool = Tool::start(command);
    let pid = tool.pid();
    let peak = std::thread::spawn(move || {
        let mut peak = 0;
        while let Some(now) = peak_kib(pid) {
            peak = now;
            std::thread::sleep(Duration::from_millis(10));
        }
        peak
    });
    let ended = tool.wait_at_most(Duration::from_secs(seconds) + PATIENCE);
    let last: Vec<_> = ended.stderr.iter().rev().take(5).collect();
    assert_eq!(ended.status.code(), Some(EXIT_CODE), "{last:?}");
    let calls = ended
        .stdout
        .first()
        .and_then(|line| line.strip_suffix(" calls"));
    let calls: u64 = calls.expect("it says how many").parse().expect("a number");
    assert!(calls > 1000, "{calls}");
    let panics = ended.stderr.iter().filter(|line| line.contains("panicked"));
    assert_eq!(panics.collect::<Vec<_>>(), [""; 0]);
    let peak = peak.join().expect("it only reads");
    remark(&format!("{calls} calls, {} MiB at most", peak >> 10));
    assert!(peak > 0 && peak < MOST_KIB, "{peak} KiB");
}

/// Returns the most memory that a process has had at a time.
fn peak_kib(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse().ok()
}

//! A target cannot hold Beeline: whatever it does, or fails to do, a session ends soon after its tool, and the target goes on.

use std::time::{Duration, Instant};

use beeline_e2e::{
    Engine, PATIENCE, Scratch, Tool, Turn, Workload, altered_text, beeline_wanted, find_program,
    is_alive, need, until,
};

/// A session that nobody holds takes a fraction of a second to end.
const SOON: Duration = Duration::from_secs(10);

/// What makes Beeline know of every `execve`.
const CALLS: &str = "tracepoint:syscalls:sys_enter_execve { @ = count(); }";

fn trace(pid: u32) -> Result<Tool, String> {
    need_both()?;
    let mut command = Engine::Beeline.command(&find_program("bpftrace")?);
    command.args(["-p", &pid.to_string()]);
    let tool = Tool::bpftrace(command, CALLS);
    tool.wait_attached();
    Ok(tool)
}

fn need_both() -> Result<(), String> {
    beeline_wanted()?;
    find_program("bpftrace").map(drop)
}

/// Ends the tool, asserts that the session ends soon, and gives what it said.
fn end(tool: Tool) -> Vec<String> {
    let begun = Instant::now();
    tool.signal_group(libc::SIGINT);
    let ended = tool.wait_at_most(SOON);
    assert!(ended.status.success(), "{ended:?}");
    assert!(begun.elapsed() < SOON, "{ended:?}");
    ended.stderr
}

fn kill(pid: u32) {
    // SAFETY: touches no memory; the process is one that the test started.
    unsafe { libc::kill(pid as i32, libc::SIGKILL) };
}

fn word_behind(line: &str, begin: &str) -> u32 {
    let number = line.strip_prefix(begin).and_then(|rest| rest.parse().ok());
    number.unwrap_or_else(|| panic!("no number behind {begin:?} in {line:?}"))
}

#[test]
fn who_says_that_he_runs_another_program_and_does_not_is_let_go() {
    let _turn = Turn::take();
    need!(need_both());
    let scratch = Scratch::new();
    let mut target = Workload::start(&scratch.build_with("held.c", &["-pthread"]));
    let tool = need!(trace(target.pid()));
    assert_eq!(target.tell("posted"), "posted");
    assert_eq!(target.go(), "done");
    assert_eq!(end(tool), Vec::<String>::new());
    assert_eq!(altered_text(target.pid()), Vec::<String>::new());
    assert_eq!(target.go(), "done");
    target.finish();
}

#[test]
fn an_exec_that_does_not_come_to_its_end_is_let_go_and_told() {
    let _turn = Turn::take();
    need!(need_both());
    let scratch = Scratch::new();
    let mut target = Workload::start(&scratch.build_with("held.c", &["-pthread"]));
    let tool = need!(trace(target.pid()));
    let helper = word_behind(&target.tell("blocked"), "blocked ");
    let said = end(tool);
    let pid = target.pid().to_string();
    assert!(said.iter().any(|line| line.contains(&pid)), "{said:?}");
    assert!(is_alive(helper), "{said:?}");
    kill(helper);
    assert_eq!(target.answer(), "ready");
    assert_eq!(altered_text(target.pid()), Vec::<String>::new());
    assert_eq!(target.go(), "done");
    target.finish();
}

#[test]
fn a_copy_of_the_tool_that_never_runs_another_program_is_let_go() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let scratch = Scratch::new();
    let attach = scratch.build("attach.c");
    let mut command = Engine::Beeline.command(&attach);
    command.args(["copy", &attach.display().to_string(), "1", "p:0x1000"]);
    let tool = Tool::start(command);
    let copy = word_behind(
        &tool.wait_for_line(|line| line.starts_with("copy ")),
        "copy ",
    );
    tool.wait_for_line(|line| line == "attached");
    let begun = Instant::now();
    let ended = tool.wait_at_most(SOON);
    assert!(begun.elapsed() < SOON && is_alive(copy), "{ended:?}");
    let status = std::fs::read_to_string(format!("/proc/{copy}/status")).expect("it is alive");
    assert!(status.contains("TracerPid:\t0\n"), "{status}");
    kill(copy);
    assert!(until(PATIENCE, || !is_alive(copy)));
}

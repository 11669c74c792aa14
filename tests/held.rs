//! A target cannot block Beeline: whatever it does, or fails to do, a session ends soon after its
//! tool, and the target goes on.

use std::time::{Duration, Instant};

use beeline_e2e::{
    Engine, PATIENCE, Scratch, Tool, Turn, Workload, altered_text, beeline_wanted, find_program,
    is_alive, map_counts, need, send, until,
};

/// A session that nothing blocks takes a fraction of a second to end.
const SOON: Duration = Duration::from_secs(10);

/// A program that makes Beeline track every `execve`.
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

/// Ends the tool, asserts that the session ends soon, and returns Beeline's messages.
fn end(tool: Tool) -> Vec<String> {
    let begun = Instant::now();
    tool.signal_group(libc::SIGINT);
    let ended = tool.wait_at_most(SOON);
    assert!(ended.status.success(), "{ended:?}");
    assert!(begun.elapsed() < SOON, "{ended:?}");
    let mut said = ended.stderr;
    said.retain(|line| line.starts_with("beeline: "));
    said
}

fn word_behind(line: &str, begin: &str) -> u32 {
    let number = line.strip_prefix(begin).and_then(|rest| rest.parse().ok());
    number.unwrap_or_else(|| panic!("no number behind {begin:?} in {line:?}"))
}

#[test]
fn a_false_announcement_of_an_exec_is_let_go() {
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
    send(helper, libc::SIGKILL);
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
    send(copy, libc::SIGKILL);
    assert!(until(PATIENCE, || !is_alive(copy)));
}

/// The length of each stop of Beeline.
const STOPPED: Duration = Duration::from_millis(2500);
/// A target waits at most a second for a Beeline that does not answer; the machine may be busy.
const LONGEST_MS: u64 = 1500;

fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it is alive");
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| rest.starts_with('T'))
}

/// A stopped Beeline releases whatever it holds at that moment.
#[test]
fn a_stopped_beeline_holds_nobody() {
    let _turn = Turn::take();
    need!(need_both());
    let scratch = Scratch::new();
    let mut target = Workload::start(&scratch.build_with("held.c", &["-pthread"]));
    let mut command = Engine::Beeline.command(find_program("bpftrace").expect("looked for"));
    command.args(["-p", &target.pid().to_string()]);
    let script = "tracepoint:syscalls:sys_enter_getpgid { @after = count(); }";
    let tool = Tool::bpftrace(command, script);
    tool.wait_attached();
    for moment in [113, 127, 139, 151, 163, 179, 191, 211] {
        target.send(&format!("storm {}", STOPPED.as_millis()));
        std::thread::sleep(Duration::from_millis(moment));
        send(tool.pid(), libc::SIGSTOP);
        let answer = target.answer();
        println!("{moment}: {answer}");
        let times = answer
            .strip_prefix("storm ")
            .and_then(|rest| rest.split_once(' '));
        let (fork, exec) = times.unwrap_or_else(|| panic!("{answer}"));
        let is_short = |time: &str| time.parse::<u64>().is_ok_and(|time| time < LONGEST_MS);
        assert!(is_short(fork) && is_short(exec), "{moment}: {answer}");
        assert!(is_stopped(tool.pid()), "{moment}");
        send(tool.pid(), libc::SIGCONT);
        tool.settle();
        assert!(!is_stopped(tool.pid()), "{moment}");
    }
    assert_eq!(target.tell("forks 50"), "done");
    tool.settle();
    let ended = tool.interrupt();
    assert!(ended.status.success(), "{ended:?}");
    assert_eq!(
        map_counts(&ended.stdout).get("@after"),
        Some(&50),
        "{ended:?}"
    );
    assert_eq!(altered_text(target.pid()), Vec::<String>::new());
    target.finish();
}

//! A tool's own map operations, answered in its process: the same results as the kernel's, whatever
//! the tool does. For a guest these are steps through maps, and look-ups over a connection to the
//! guest.

use std::os::unix::net::UnixStream;
use std::process::{Child, Command};

use beeline_e2e::{
    Engine, PATIENCE, Scratch, Tool, Turn, beeline, beeline_wanted, engines, find_program,
    in_guest, need, until,
};

fn both_wanted() -> Result<(), String> {
    match engines()?[..] {
        [Engine::Kernel, Engine::Beeline] => Ok(()),
        _ => Err("not both engines are there and asked for".to_owned()),
    }
}

/// Runs a program on both engines, and asserts that it prints the same, and found a fast path.
/// Returns its messages under Beeline.
fn same_answers(program: &str) -> Result<Vec<String>, String> {
    both_wanted()?;
    let _turn = Turn::take();
    let scratch = Scratch::new();
    let program = scratch.build_with(program, &["-O1", "-pthread"]);
    let [kernel, beeline] = [Engine::Kernel, Engine::Beeline].map(|engine| {
        let ended = Tool::start(engine.command(&program)).wait();
        assert!(ended.status.success(), "{engine}: {ended:?}");
        ended
    });
    assert!(kernel.stdout.len() > 12, "{kernel:?}");
    assert_eq!(kernel.stdout, beeline.stdout, "{:?}", beeline.stderr);
    // Otherwise this test proves nothing.
    assert!(
        beeline.stderr.contains(&"fast path: yes".to_owned()),
        "{:?}",
        beeline.stderr
    );
    Ok(beeline.stderr)
}

#[test]
fn operations_are_answered_as_by_the_kernel() {
    need!(same_answers("fast_path.c"));
}

/// Children do it themselves, too. The program stops Beeline meanwhile, so that nothing else can
/// have answered.
#[test]
fn operations_of_many_processes_are_answered_as_by_the_kernel() {
    if in_guest() {
        println!("skipped: a guest's maps are read through the supervisor in forked children");
        return;
    }
    need!(same_answers("processes.c"));
}

#[test]
fn iterations_are_answered_as_by_the_kernel() {
    need!(same_answers("prefetch.c"));
}

/// The program stops Beeline during its look-up, so that nothing else can have answered.
#[test]
fn look_ups_are_answered_as_by_the_kernel() {
    let said = need!(same_answers("lookup_channel.c"));
    assert_eq!(said.contains(&"channel: yes".to_owned()), in_guest());
}

#[test]
fn a_fast_path_reports_that_the_guest_is_lost() {
    need!(beeline_wanted());
    let _turn = Turn::take();
    let scratch = Scratch::new();
    let program = scratch.build_with("lookup_channel.c", &["-O1", "-pthread"]);
    let socket = scratch.path().join("proxy");
    let address = format!("unix:{}", socket.display());
    let mut proxy = Command::new(beeline());
    proxy.args(["guest", "--listen", &address, "--audit", "/dev/null"]);
    let proxy = Killed(proxy.spawn().expect("beeline is there"));
    assert!(until(PATIENCE, || UnixStream::connect(&socket).is_ok()));
    let mut command = Command::new(beeline());
    command.args(["run", "--guest", &address, "--"]);
    command.arg(&program).arg("forever");
    let tool = Tool::start(command);
    tool.wait_for_line(|line| line == "by a channel");
    // SAFETY: a process of ours that has not been waited for.
    assert_eq!(unsafe { libc::kill(proxy.0.id() as i32, libc::SIGSTOP) }, 0);
    let ended = tool.wait();
    let lost = format!("then {}", -libc::ENOTCONN);
    assert_eq!(ended.stdout.last(), Some(&lost), "{ended:?}");
}

/// A process that ends with the test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // Fails only if it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An operation takes more stack than a goroutine may have left.
#[test]
fn a_tool_in_go_is_left_alone() {
    need!(both_wanted());
    let go = need!(find_program("go"));
    let _turn = Turn::take();
    let scratch = Scratch::new();
    let program = scratch.build_go(&go, "operations.go");
    let ended = Tool::start(Engine::Beeline.command(&program)).wait();
    assert!(ended.status.success(), "{ended:?}");
    assert_eq!(ended.stdout, ["fast path: false"], "{ended:?}");
}

//! Tools as processes: starts, ends and signals.

mod common;

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use beeline_bpf_syscall::serve;
use beeline_supervisor::{Error, Options, Tool};
use common::fake::Fake;
use common::{command, run};

/// Set in this program's environment when it is to be a Beeline that gets killed.
const DOOMED: &str = "BEELINE_DOOR_DOOMED";

fn shell(script: &str, options: &Options) -> Result<ExitStatus, Error> {
    run(
        &command(&["sh", "-c", script]),
        options,
        Arc::new(Fake::default()),
    )
}

#[test]
fn the_tools_end_is_passed_on() {
    let options = Options::default();
    assert_eq!(shell("exit 7", &options).unwrap().code(), Some(7));
    assert_eq!(
        shell("kill -TERM $$", &options).unwrap().signal(),
        Some(libc::SIGTERM)
    );
}

#[test]
fn root_is_pretended() {
    let pretend = Options {
        pretend_root: true,
        ..Options::default()
    };
    let drop = "exec setpriv --reuid 65534 --clear-groups sh -c 'exit $(id -u)'";
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: root is needed to become somebody else");
    }
    assert_eq!(shell(drop, &pretend).unwrap().code(), Some(0));
    assert_ne!(shell(drop, &Options::default()).unwrap().code(), Some(0));
}

#[test]
fn a_signal_reaches_the_tool() {
    let tool = Tool::spawn(&command(&["sleep", "60"]), &Options::default()).unwrap();
    let pid = tool.pid();
    let signaller = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        // SAFETY: the tool is ours and not reaped before `serve` returns.
        unsafe { libc::kill(pid, libc::SIGTERM) }
    });
    let status = serve(tool, Arc::new(Fake::default())).unwrap();
    assert_eq!(status.signal(), Some(libc::SIGTERM));
    assert_eq!(signaller.join().unwrap(), 0);
}

#[test]
fn children_that_outlive_the_tool_are_served() {
    let file = std::env::temp_dir().join(format!("beeline-test-{}", std::process::id()));
    let script = format!("(sleep 0.3; echo late > {0}) & exit 3", file.display());
    assert_eq!(shell(&script, &Options::default()).unwrap().code(), Some(3));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "late\n");
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn a_tool_that_cannot_run_is_explained() {
    let missing = shell_error(&["no-such-tool-anywhere"]);
    assert_eq!(missing.exit_code(), 127);
    assert_eq!(
        missing.to_string(),
        "no-such-tool-anywhere: not found in PATH; is it installed?"
    );
    let directory = shell_error(&["/tmp"]);
    assert_eq!(directory.exit_code(), 126);
    assert!(
        directory.to_string().starts_with("/tmp: cannot be run: "),
        "{directory}"
    );
    assert!(matches!(shell_error(&[]), Error::NoCommand));
}

fn shell_error(words: &[&str]) -> Error {
    run(
        &command(words),
        &Options::default(),
        Arc::new(Fake::default()),
    )
    .unwrap_err()
}

/// Not a test of its own: the other process of the one below.
#[test]
fn helper_that_serves_until_it_is_killed() {
    if std::env::var_os(DOOMED).is_none() {
        return;
    }
    let tool = Tool::spawn(&command(&["sleep", "60"]), &Options::default()).unwrap();
    println!("tool {}", tool.pid());
    serve(tool, Arc::new(Fake::default())).unwrap();
}

#[test]
fn a_tool_does_not_outlive_a_killed_beeline() {
    let mut beeline = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "helper_that_serves_until_it_is_killed",
            "--nocapture",
        ])
        .env(DOOMED, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(beeline.stdout.take().unwrap());
    let tool: i32 = output
        .lines()
        .find_map(|line| line.unwrap().split_once("tool ")?.1.parse().ok())
        .expect("the tool's number");
    // Let the tool get through its start.
    std::thread::sleep(Duration::from_millis(200));
    beeline.kill().unwrap();
    beeline.wait().unwrap();
    let gone = (0..200).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        // Now the child of another process, it may stay a zombie for a while.
        let status = std::fs::read_to_string(format!("/proc/{tool}/status")).unwrap_or_default();
        status.is_empty() || status.contains("State:\tZ")
    });
    assert!(gone, "process {tool} is still there");
}

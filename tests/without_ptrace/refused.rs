//! Beeline under a filter that forbids ptrace(2): it says what is missing, and harms nothing.

use std::path::PathBuf;
use std::process::Command;

use beeline_e2e::{
    Ended, Scratch, Tool, Turn, Workload, beeline, beeline_wanted, file_offset, need,
};

/// Beeline, and what it runs, where ptrace(2) fails.
struct Place {
    scratch: Scratch,
    launcher: PathBuf,
}

impl Place {
    fn new() -> Result<Self, String> {
        beeline_wanted()?;
        let scratch = Scratch::new();
        let launcher = scratch.build("filtered.c");
        Ok(Self { scratch, launcher })
    }

    fn run(&self, arguments: &[&str]) -> Ended {
        let mut command = Command::new(&self.launcher);
        let eperm = libc::EPERM.to_string();
        command
            .args([&eperm, "ptrace", "--"])
            .arg(beeline())
            .args(arguments);
        Tool::start(command).wait()
    }
}

/// Fails unless a line has all of the words.
fn assert_said(ended: &Ended, words: &[&str]) {
    let has_all = |line: &String| words.iter().all(|word| line.contains(word));
    assert!(ended.stderr.iter().any(has_all), "no {words:?}: {ended:?}");
}

#[test]
fn a_session_says_that_ptrace_is_forbidden_to_beeline() {
    let place = need!(Place::new());
    let _turn = Turn::take();
    let counts = place.scratch.build("counts.c");
    let attach = place.scratch.build("attach.c").display().to_string();
    let offset = file_offset(&counts, "wl_square").expect("a symbol of the workload");
    let mut workload = Workload::start(&counts);
    let (pid, probe) = (workload.pid().to_string(), format!("P:{offset:#x}"));
    let (honest, counts) = (workload.go(), counts.display().to_string());
    let tool = [&*attach, &pid, &counts, "1", &probe];

    let named = place.run(&[&["run", "--pid", &pid, "--"], &tool[..]].concat());
    assert_eq!(named.status.code(), Some(1), "{named:?}");
    assert!(named.stdout.is_empty(), "the tool was started: {named:?}");
    let why = [
        "seccomp filter",
        "ptrace(2)",
        "Operation not permitted",
        "allow ptrace",
    ];
    assert_said(
        &named,
        &[&[&*format!("process {pid} may not be traced")], &why[..]].concat(),
    );

    // The tool names it, and Beeline cannot know.
    let unnamed = place.run(&[&["run", "--"], &tool[..]].concat());
    assert_said(
        &unnamed,
        &[&["no process can be traced"], &why[..]].concat(),
    );

    assert_eq!(workload.go(), honest);
    workload.finish();
}

#[test]
fn a_command_that_cannot_be_held_runs_all_the_same() {
    let place = need!(Place::new());
    let ended = place.run(&["start", "--", "echo", "here"]);
    assert_eq!(
        (ended.status.code(), &*ended.stdout),
        (Some(0), &["here".to_owned()][..])
    );
    assert_said(
        &ended,
        &["echo cannot be held, so it runs already", "seccomp filter"],
    );
}

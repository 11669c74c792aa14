//! The command's help, version and exit codes.

use beeline_e2e::{Ended, Scratch, Tool, Turn, beeline};
use std::process::Command;

fn ask(arguments: &[&str]) -> Ended {
    let mut command = Command::new(beeline());
    command.args(arguments);
    Tool::start(command).wait()
}

#[test]
fn help_names_every_command_and_goes_to_stdout() {
    for arguments in [["--help"].as_slice(), &["help"], &["-h"]] {
        let ended = ask(arguments);
        assert!(ended.status.success(), "{ended:?}");
        assert!(ended.stderr.is_empty(), "{ended:?}");
        for name in [
            "run",
            "ps",
            "compile",
            "prog",
            "detach",
            "doctor",
            "--version",
        ] {
            let named = |line: &String| line.split_whitespace().any(|word| word == name);
            assert!(ended.stdout.iter().any(named), "no {name} in {ended:?}");
        }
    }
}

#[test]
fn every_command_explains_itself() {
    for name in ["run", "ps", "compile", "prog", "detach", "doctor"] {
        let ended = ask(&[name, "--help"]);
        assert!(ended.status.success(), "{ended:?}");
        assert!(
            ended
                .stdout
                .iter()
                .any(|line| line.starts_with(&format!("Usage: beeline {name}"))),
            "{ended:?}"
        );
    }
}

#[test]
fn the_version_is_the_packages() {
    let ended = ask(&["--version"]);
    assert_eq!(
        ended.stdout,
        [concat!("beeline ", env!("CARGO_PKG_VERSION"))],
        "{ended:?}"
    );
}

/// Options before the tool's name are Beeline's, options after it are the tool's.
#[test]
fn an_option_that_there_is_not_is_no_tool() {
    for name in ["run", "start"] {
        let ended = ask(&[name, "--frob", "true"]);
        assert_eq!(ended.status.code(), Some(2), "{ended:?}");
        assert!(ended.stderr[0].contains("'--frob'"), "{ended:?}");
        let ended = ask(&[name, "printf", "%s", "--frob"]);
        assert_eq!(ended.stdout, ["--frob"], "{ended:?}");
    }
}

#[test]
fn ps_json_is_a_list_when_nothing_is_traced() {
    let _turn = Turn::take();
    let ended = ask(&["ps", "--json"]);
    assert!(ended.status.success(), "{ended:?}");
    let list: serde_json::Value = serde_json::from_str(&ended.stdout.join("\n")).expect("JSON");
    assert!(list.is_array(), "{list}");
}

#[test]
fn a_signal_to_the_session_is_for_the_tool() {
    let _turn = Turn::take();
    let mut command = Command::new(beeline());
    let script = "trap 'echo told; exit 7' TERM; echo ready; read line";
    command.args(["run", "--", "sh", "-c", script]);
    let tool = Tool::start(command);
    tool.wait_for_line(|line| line == "ready");
    // SAFETY: a signal to a process that this test started and has not waited for.
    assert_eq!(unsafe { libc::kill(tool.pid() as i32, libc::SIGTERM) }, 0);
    // Before its input ends, which would end it too.
    tool.wait_for_line(|line| line == "told");
    let ended = tool.wait();
    assert_eq!(ended.status.code(), Some(7), "{ended:?}");
}

/// As in a shell: 127 for a command that does not exist, 126 for one that cannot be run.
#[test]
fn a_tool_that_cannot_be_run_gives_a_shells_exit_code() {
    let scratch = Scratch::new();
    let file = scratch.path().join("not-executable");
    std::fs::write(&file, "no program").expect("a file of our own");
    for (tool, code) in [
        ("no-such-tool", 127),
        ("/no/such/tool", 127),
        (&file.display().to_string(), 126),
    ] {
        let ended = ask(&["run", "--", tool]);
        assert_eq!(ended.status.code(), Some(code), "{ended:?}");
        assert!(
            ended
                .stderr
                .iter()
                .any(|line| line.starts_with("beeline: ") && line.contains(tool)),
            "{ended:?}"
        );
    }
}

/// None of them would be heeded there.
#[test]
fn options_for_processes_of_this_machine_are_refused_with_a_guest() {
    let options: [&[&str]; 6] = [
        &["--all"],
        &["--pid", "1"],
        &["--unsafe"],
        &["--aot", "file"],
        &["--verbose"],
        &["--memory-limit", "1G"],
    ];
    for option in options {
        let words = [&["run", "--guest", "unix:/nobody"], option, &["true"]].concat();
        let ended = ask(&words);
        assert_eq!(ended.status.code(), Some(2), "{ended:?}");
        let is_named = ended.stderr[0].contains("--guest") && ended.stderr[0].contains(option[0]);
        assert!(is_named, "{ended:?}");
    }
}

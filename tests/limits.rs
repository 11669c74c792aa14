//! At a resource limit of its own, Beeline ends with an error that names the thing and says what to
//! do.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use beeline_e2e::{Scratch, Turn, as_user, beeline, beeline_wanted, find_program, need};

/// A separate user, so that no other processes count.
const SOMEBODY: u32 = 65_321;

const SCRIPT: &str = "BEGIN { printf(\"begun\\n\"); exit(); }";

/// Runs a script under Beeline, with a shell's limits set before.
fn limited(limits: &str) -> Output {
    let mut shell = Command::new("bash");
    shell.args([
        "-c",
        &format!("ulimit -c 0; {limits}; exec \"$0\" run -- bpftrace -e \"$1\""),
    ]);
    shell.arg(beeline()).arg(SCRIPT);
    shell.output().expect("bash runs")
}

/// Returns the lines on stderr. A session either works, or says why it does not; and does not
/// crash.
fn words(ended: &Output) -> String {
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(ended.status.code().is_some(), "{ended:?}");
    for crash in ["panicked", "Error 38", "Function not implemented"] {
        assert!(!said.contains(crash), "{ended:?}");
    }
    said
}

#[test]
fn few_descriptors_are_told_with_what_to_do() {
    let _turn = Turn::take();
    need!(find_program("bpftrace"));
    need!(beeline_wanted());
    for count in [8, 12, 16, 18, 20, 22] {
        let ended = limited(&format!("ulimit -n {count}"));
        let said = words(&ended);
        let is_told = said.contains("Too many open files") && said.contains("ulimit -n");
        assert!(is_told || ended.status.success(), "{count}: {ended:?}");
    }
    assert!(!limited("ulimit -n 12").status.success());
}

#[test]
fn a_limit_of_file_sizes_is_an_error_and_no_signal() {
    let _turn = Turn::take();
    need!(find_program("bpftrace"));
    need!(beeline_wanted());
    let ended = limited("ulimit -f 0");
    let said = words(&ended);
    assert!(
        said.contains("File too large") && said.contains("ulimit -f"),
        "{ended:?}"
    );
}

#[test]
fn few_processes_are_told_with_what_to_do() {
    let _turn = Turn::take();
    need!(find_program("setpriv"));
    need!(find_program("bpftrace"));
    need!(beeline_wanted());
    // SAFETY: geteuid only answers a number.
    if unsafe { libc::geteuid() } != 0 {
        return eprintln!("skipped: only root can become another user");
    }
    let scratch = Scratch::new();
    let copy = scratch.path().join("beeline");
    std::fs::copy(beeline(), &copy).expect("beeline can be copied");
    std::fs::set_permissions(&copy, Permissions::from_mode(0o755)).expect("it can be run");
    let mut is_told = false;
    for count in 1..10 {
        let mut command = as_user(SOMEBODY, Path::new("bash"));
        command
            .arg("-c")
            .arg(format!(
                "ulimit -u {count}; exec \"$0\" run -- bpftrace -e \"$1\""
            ))
            .arg(&copy)
            .arg(SCRIPT)
            .env("HOME", "/nonexistent")
            .current_dir(scratch.path());
        let ended = command.output().expect("setpriv runs");
        let said = words(&ended);
        for line in said.lines().filter(|line| line.contains("os error 11")) {
            assert_eq!(line.matches("os error 11").count(), 1, "told twice: {line}");
        }
        is_told |= said.contains("ulimit -u");
    }
    assert!(is_told);
}

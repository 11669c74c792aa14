//! `beeline doctor` names what is missing in places where something is.

mod targets;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use beeline_e2e::{Scratch, Turn, Workload, as_user, beeline, beeline_wanted, find_program, need};
use serde_json::Value;

/// Debian's user "nobody".
const NOBODY: u32 = 65534;

/// A directory with what an ordinary user may run.
struct Place {
    scratch: Scratch,
    beeline: PathBuf,
}

impl Place {
    fn new() -> Result<Self, String> {
        beeline_wanted()?;
        find_program("setpriv")?;
        // SAFETY: geteuid only answers a number.
        if unsafe { libc::geteuid() } != 0 {
            return Err("only root can become another user".to_owned());
        }
        let scratch = Scratch::new();
        let copy = scratch.path().join("beeline");
        std::fs::copy(beeline(), &copy).map_err(|error| format!("cannot copy beeline: {error}"))?;
        Ok(Self {
            scratch,
            beeline: copy,
        })
    }

    /// Returns a command as an ordinary user.
    fn as_nobody(&self, program: &Path) -> Command {
        let mut command = as_user(NOBODY, program);
        command
            .env("HOME", "/nonexistent")
            .current_dir(self.scratch.path());
        command
    }

    /// Runs the checks as an ordinary user.
    fn ask_as_nobody(&self, arguments: &[&str]) -> Report {
        report(self.as_nobody(&self.beeline).arg("doctor").args(arguments))
    }

    /// Runs the checks behind another command, as root.
    fn behind<W: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = W>) -> Report {
        let mut words = words.into_iter();
        let mut command = Command::new(words.next().expect("a command"));
        command.args(words).arg(&self.beeline).arg("doctor");
        report(&mut command)
    }
}

/// The output of `beeline doctor --json`.
#[derive(Debug)]
struct Report {
    code: i32,
    /// By name: status, detail and fix.
    checks: BTreeMap<String, (String, String, String)>,
    works: bool,
    text: String,
    fix: String,
}

impl Report {
    /// Asserts a check's status, and that detail and fix together contain all of `words`.
    fn has(&self, name: &str, status: &str, words: &[&str]) {
        let (found, detail, fix) = self
            .checks
            .get(name)
            .unwrap_or_else(|| panic!("no {name} in {self:#?}"));
        assert_eq!(found, status, "{name}: {self:#?}");
        let said = format!("{detail} {fix}");
        for word in words {
            assert!(said.contains(word), "{name} lacks {word:?}: {self:#?}");
        }
    }

    /// Asserts that nothing that is needed is missing.
    fn works(&self) {
        assert!(self.works && self.code == 0, "{self:#?}");
        assert!(self.fix.is_empty(), "{self:#?}");
    }

    /// Asserts a failure with a conclusion that contains `words`, and something to change.
    fn fails(&self, words: &str) {
        assert!(!self.works && self.code == 1, "{self:#?}");
        assert!(self.text.contains(words), "{self:#?}");
        assert!(!self.fix.is_empty(), "{self:#?}");
    }
}

fn report(command: &mut Command) -> Report {
    let output = command.arg("--json").output().expect("it runs");
    parse(&output).unwrap_or_else(|| panic!("{command:?}: {output:?}"))
}

fn parse(output: &Output) -> Option<Report> {
    let value: Value = serde_json::from_slice(&output.stdout).ok()?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut checks = BTreeMap::new();
    for check in value["checks"].as_array()? {
        let status = check["status"].as_str()?;
        assert!(["ok", "warn", "no"].contains(&status), "{check}");
        let found = (
            status.to_owned(),
            text(&check["detail"]),
            text(&check["fix"]),
        );
        let before = checks.insert(check["name"].as_str()?.to_owned(), found);
        assert!(before.is_none(), "twice: {check}");
    }
    let conclusion = &value["conclusion"];
    Some(Report {
        code: output.status.code()?,
        checks,
        works: conclusion["works"].as_bool()?,
        text: text(&conclusion["text"]),
        fix: text(&conclusion["fix"]),
    })
}

fn ask(arguments: &[&str]) -> Report {
    report(Command::new(beeline()).arg("doctor").args(arguments))
}

#[test]
fn root_is_told_that_all_works() {
    need!(Place::new());
    let report = ask(&[]);
    report.works();
    assert!(report.text.contains("all users"), "{report:#?}");
    report.has("capabilities", "ok", &["CAP_SYS_PTRACE"]);
    report.has("kernel", "ok", &["Linux"]);
    for name in [
        "calls",
        "bpf",
        "listener",
        "interception",
        "ptrace",
        "other-processes",
        "process-vm",
        "process-mem",
        "memory-files",
        "executable-memory",
        "injection",
        "proc",
        "scratch",
    ] {
        report.has(name, "ok", &[]);
    }
}

#[test]
fn people_get_a_table_and_a_conclusion() {
    need!(Place::new());
    let output = Command::new(beeline()).arg("doctor").output();
    let output = output.expect("beeline runs");
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
    assert!(
        !shown.contains('\x1b'),
        "coloured, but not for a terminal: {shown}"
    );
    let report = ask(&[]);
    let (table, conclusion) = shown.split_once("\n\n").expect("a table and a conclusion");
    let names: Vec<_> = table
        .lines()
        .filter_map(|line| line.split_whitespace().nth(1))
        .collect();
    assert_eq!(names.len(), report.checks.len(), "{shown}");
    assert!(
        names.iter().all(|name| report.checks.contains_key(*name)),
        "{shown}"
    );
    assert_eq!(conclusion.trim(), report.text, "{shown}");
}

#[test]
fn ordinary_users_are_told_whose_processes_they_can_trace() {
    let place = need!(Place::new());
    let report = place.ask_as_nobody(&[]);
    report.has("user", "ok", &["65534"]);
    report.has("capabilities", "ok", &["none"]);
    report.has("kernel-programs", "ok", &["no ("]);
    report.has("cache", "warn", &["/nonexistent", "BEELINE_CACHE"]);
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    match scope.trim() {
        "" | "0" => {
            report.works();
            assert!(report.text.contains("user 65534"), "{report:#?}");
        }
        scope => {
            report.has(
                "other-processes",
                "no",
                &["kernel.yama.ptrace_scope is", scope],
            );
            report.fails("Yama");
        }
    }
}

#[test]
fn bad_usage_is_told_from_a_place_that_lacks_something() {
    for arguments in [["0"].as_slice(), &["-1"], &["x"], &["1", "2"], &["--frob"]] {
        let output = Command::new(beeline())
            .arg("doctor")
            .args(arguments)
            .output();
        assert_eq!(
            output.expect("it runs").status.code(),
            Some(2),
            "{arguments:?}"
        );
    }
}

/// A filter's answer, the call that it refuses, and the checks that name that, with their statuses.
type Filter = (
    &'static str,
    &'static str,
    &'static [(&'static str, &'static str)],
);

const FILTERS: [Filter; 10] = [
    ("1", "bpf", &[("bpf", "warn"), ("interception", "ok")]),
    (
        "38",
        "perf_event_open",
        &[("perf_event_open", "warn"), ("interception", "ok")],
    ),
    ("kill", "bpf", &[("bpf", "warn"), ("interception", "no")]),
    (
        "1",
        "ptrace",
        &[("calls", "no"), ("ptrace", "no"), ("other-processes", "no")],
    ),
    (
        "kill",
        "ptrace",
        &[("calls", "no"), ("ptrace", "no"), ("injection", "no")],
    ),
    (
        "1",
        "seccomp",
        &[("calls", "no"), ("listener", "no"), ("interception", "no")],
    ),
    ("kill", "seccomp", &[("calls", "no"), ("listener", "no")]),
    (
        "1",
        "memfd_create",
        &[("calls", "no"), ("memory-files", "no"), ("injection", "no")],
    ),
    (
        "1",
        "pidfd_getfd",
        &[
            ("calls", "warn"),
            ("interception", "ok"),
            ("injection", "ok"),
        ],
    ),
    (
        "1",
        "process_vm_readv",
        &[("calls", "warn"), ("process-vm", "warn")],
    ),
];

#[test]
fn filters_are_named_with_the_calls_that_they_refuse() {
    let place = need!(Place::new());
    let filtered = place.scratch.build("filtered.c");
    for (answer, call, checks) in FILTERS {
        let report = place.behind([
            &filtered,
            Path::new(answer),
            Path::new(call),
            Path::new("--"),
        ]);
        let word = match answer {
            "1" => "EPERM",
            "38" => "ENOSYS",
            _ => "SIGSYS",
        };
        report.has("seccomp", "ok", &["under a filter"]);
        for (name, status) in checks {
            report.has(name, status, &[]);
        }
        let (first, _) = checks[0];
        report.has(first, checks[0].1, &[word, "seccomp"]);
        // The profile has to allow this one, or the filter has to go.
        let fixes = checks
            .iter()
            .filter_map(|(name, _)| report.checks.get(*name));
        let is_told = |(_, detail, fix): &(String, String, String)| {
            fix.contains(call) || detail.contains(call) || fix.contains("seccomp=unconfined")
        };
        assert!(fixes.clone().any(is_told), "{answer} {call}: {report:#?}");
        if checks.iter().any(|(_, status)| *status == "no") {
            report.fails("Beeline");
            assert!(report.fix.contains("seccomp"), "{report:#?}");
        }
    }
}

#[test]
fn a_filter_that_refuses_nothing_of_beelines_is_not_to_blame() {
    let place = need!(Place::new());
    let filtered = place.scratch.build("filtered.c");
    let report = place.behind([
        &filtered,
        Path::new("1"),
        Path::new("getpgrp"),
        Path::new("--"),
    ]);
    report.has("seccomp", "ok", &["under a filter"]);
    for name in [
        "calls",
        "bpf",
        "perf_event_open",
        "listener",
        "interception",
        "ptrace",
        "injection",
    ] {
        report.has(name, "ok", &[]);
    }
}

#[test]
fn another_supervisor_is_named() {
    let _turn = Turn::take();
    let place = need!(Place::new());
    let report = place.behind([beeline().as_path(), Path::new("run"), Path::new("--")]);
    report.has("listener", "no", &["EBUSY"]);
    report.has("interception", "no", &["supervisor"]);
    assert_eq!(report.code, 1);
}

#[test]
fn few_open_files_are_named() {
    let place = need!(Place::new());
    for (limit, status) in [(8, "no"), (20, "no"), (200, "warn"), (4096, "ok")] {
        let script = format!("ulimit -n {limit}; exec \"$0\" \"$@\"");
        let report = place.behind(["bash", "-c", script.as_str()]);
        report.has("open-files", status, &[&limit.to_string()]);
        match status {
            "no" => report.fails("open"),
            _ => report.works(),
        }
        assert!(
            status != "no" || report.fix.contains("ulimit -n"),
            "{report:#?}"
        );
    }
}

#[test]
fn a_user_namespace_is_named() {
    let place = need!(Place::new());
    let outside = Workload::start(&place.scratch.build("counts.c"));
    let pid = outside.pid().to_string();
    let mut probe = Command::new("unshare");
    if !probe
        .args(["-Ur", "true"])
        .status()
        .is_ok_and(|status| status.success())
    {
        return beeline_e2e::skipped("user namespaces cannot be made here");
    }
    let report = place.behind(["unshare", "-Ur"]);
    report.works();
    report.has("user", "ok", &["in a user namespace"]);
    report.has("kernel-programs", "ok", &["no ("]);
    assert!(report.text.contains("this user namespace"), "{report:#?}");
    let mut command = Command::new("unshare");
    let report = report_of(command.arg("-Ur").arg(&place.beeline), &pid);
    report.has("target-namespaces", "no", &["user namespace"]);
    report.fails(&format!("process {pid}"));
}

#[test]
fn proc_that_hides_or_is_anothers_is_named() {
    let place = need!(Place::new());
    let report = place.behind(["unshare", "--pid", "--fork"]);
    report.has("proc", "no", &["another PID namespace", "mount -t proc"]);
    report.fails("/proc");
    let script = "mount -t tmpfs none /proc && exec \"$0\" \"$@\"";
    let report = place.behind(["unshare", "-m", "sh", "-c", script]);
    report.has("proc", "no", &["not mounted"]);
    report.fails("/proc");
    let script = "mount -t proc -o hidepid=2 none /proc && exec setpriv --reuid 65534 --regid 65534 --clear-groups \"$0\" \"$@\"";
    let report = place.behind(["unshare", "-mp", "--fork", "sh", "-c", script]);
    report.has("proc", "ok", &["hidepid="]);
    report.works();
}

#[test]
fn directories_of_others_are_named() {
    let place = need!(Place::new());
    let open = place.scratch.path().join("open");
    std::fs::create_dir(&open).expect("it can be made");
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).expect("it is ours");
    let mut command = Command::new(&place.beeline);
    command
        .env("BEELINE_CACHE", &open)
        .env("XDG_RUNTIME_DIR", &open);
    let report = report(command.arg("doctor"));
    let path = open.display().to_string();
    report.has("cache", "warn", &[&path, "other users may write"]);
    report.has("scratch", "ok", &[&path, "XDG_RUNTIME_DIR", "/dev/shm"]);
    report.works();
}

fn report_of(command: &mut Command, pid: &str) -> Report {
    report(command.args(["doctor", pid]))
}

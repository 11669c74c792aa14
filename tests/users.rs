//! An ordinary user traces his own processes, and nobody else's.

use beeline_e2e::{
    Engine, Footprint, PATIENCE, Scratch, Tool, Turn, Workload, altered_text, beeline,
    beeline_wanted, find_program, is_alive, map_counts, need, until,
};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The user "nobody" of Debian.
const NOBODY: u32 = 65534;

/// A directory with what an ordinary user may run: a workload, and a copy of Beeline, whose own
/// place may be closed to others.
struct Setting {
    scratch: Scratch,
    program: PathBuf,
    beeline: PathBuf,
}

impl Setting {
    fn new() -> Result<Setting, String> {
        find_program("bpftrace")?;
        beeline_wanted()?;
        // SAFETY: geteuid only answers a number.
        if unsafe { libc::geteuid() } != 0 {
            return Err("only root can become another user".to_owned());
        }
        let scratch = Scratch::new();
        let program = scratch.build("counts.c");
        let copy = scratch.path().join("beeline");
        std::fs::copy(beeline(), &copy).map_err(|error| format!("cannot copy beeline: {error}"))?;
        Ok(Setting {
            scratch,
            program,
            beeline: copy,
        })
    }

    /// `command` as an ordinary user.
    fn as_nobody(&self, command: &Path) -> Command {
        let mut setpriv = Command::new("setpriv");
        setpriv
            .arg(format!("--reuid={NOBODY}"))
            .arg(format!("--regid={NOBODY}"));
        setpriv.arg("--clear-groups").arg(command);
        setpriv
            .env("HOME", "/nonexistent")
            .current_dir(self.scratch.path());
        setpriv
    }

    /// Starts bpftrace under Beeline as an ordinary user and waits until it is attached.
    fn trace(&self, pid: u32, script: &str) -> Tool {
        let mut command = self.as_nobody(&self.beeline);
        command.args(["run", "--", "bpftrace", "-p", &pid.to_string()]);
        let tool = Tool::bpftrace(
            command,
            &script.replace("{prog}", &self.program.display().to_string()),
        );
        tool.wait_attached();
        tool
    }

    fn ask(&self, arguments: &[&str]) -> std::process::Output {
        self.as_nobody(&self.beeline)
            .args(arguments)
            .output()
            .expect("cannot run beeline")
    }
}

#[test]
fn an_ordinary_user_traces_his_own_process() {
    let _turn = Turn::take();
    let setting = need!(Setting::new());
    let mut workload = Workload::start_command(setting.as_nobody(&setting.program));
    let honest = workload.go();
    let before = Footprint::of(workload.pid());
    let tool = setting.trace(
        workload.pid(),
        "uprobe:{prog}:wl_add { @in[uid] = count(); } uretprobe:{prog}:wl_square { @out = sum(retval); } \
         uprobe:{prog}:wl_name { @[str(arg0)] = count(); }",
    );
    assert_eq!(workload.go(), honest);
    tool.settle();
    let ended = tool.interrupt();
    assert!(ended.status.success(), "{ended:?}");
    let counts = map_counts(&ended.stdout);
    for (key, count) in [("@in[65534]", 1000), ("@out", 328350), ("@[gamma]", 30)] {
        assert_eq!(counts.get(key), Some(&count), "{key}: {ended:?}");
    }
    let pid = workload.pid();
    assert!(
        until(PATIENCE, || altered_text(pid).is_empty()),
        "{:?}",
        altered_text(pid)
    );
    assert_eq!(Footprint::of(pid), before);
    assert_eq!(workload.go(), honest);
    workload.finish();
}

#[test]
fn an_ordinary_user_sees_and_ends_his_own_sessions() {
    let _turn = Turn::take();
    let setting = need!(Setting::new());
    let mut workload = Workload::start_command(setting.as_nobody(&setting.program));
    let pid = workload.pid();
    let tool = setting.trace(pid, "uprobe:{prog}:wl_add { @ = count(); }");
    let shown = String::from_utf8_lossy(&setting.ask(&["ps"]).stdout).into_owned();
    assert!(
        shown.split_whitespace().any(|word| word == pid.to_string()),
        "{shown}"
    );
    let detached = setting.ask(&["detach", &pid.to_string()]);
    assert!(detached.status.success(), "{detached:?}");
    assert!(
        until(PATIENCE, || altered_text(pid).is_empty()),
        "{:?}",
        altered_text(pid)
    );
    workload.go();
    tool.interrupt();
    workload.finish();
}

#[test]
fn an_ordinary_user_cannot_end_roots_session() {
    let _turn = Turn::take();
    let setting = need!(Setting::new());
    let mut workload = Workload::start(&setting.program);
    let mut command = Engine::Beeline.command("bpftrace");
    command.args(["-p", &workload.pid().to_string()]);
    let script = format!(
        "uprobe:{}:wl_add {{ @ = count(); }}",
        setting.program.display()
    );
    let tool = Tool::bpftrace(command, &script);
    tool.wait_attached();
    let refused = setting.ask(&["detach", &workload.pid().to_string()]);
    assert!(!refused.status.success(), "{refused:?}");
    assert!(is_alive(workload.pid()));
    workload.go();
    tool.settle();
    let ended = tool.interrupt();
    assert!(
        ended.stdout.iter().any(|line| line == "@: 1000"),
        "{ended:?}"
    );
    workload.finish();
}

/// The numbers of the calls in what `strace -n` prints, but for the `execve` that it begins with, and the end.
fn numbers(trace: &str) -> Vec<u32> {
    let number = |line: &str| {
        line.strip_prefix('[')?
            .split(']')
            .next()?
            .trim()
            .parse()
            .ok()
    };
    let calls = trace.lines().skip(1).filter(|line| !line.contains("+++"));
    let mut numbers: Vec<u32> = calls.filter_map(number).collect();
    numbers.sort_unstable();
    numbers
}

#[test]
fn a_command_is_seen_from_its_first_call() {
    let _turn = Turn::take();
    let setting = need!(Setting::new());
    let strace = need!(find_program("strace"));
    let traced = setting.scratch.path().join("trace");
    let program = Path::new("/bin/true");
    let status = Command::new(strace)
        .arg("-n")
        .arg("-o")
        .arg(&traced)
        .arg(program)
        .status();
    assert!(status.expect("strace runs").success());
    let honest = numbers(&std::fs::read_to_string(&traced).expect("strace has written"));

    let mut command = setting.as_nobody(&setting.beeline);
    command.args(["run", "--", "bpftrace"]);
    let script = "tracepoint:raw_syscalls:sys_enter /comm == \"true\"/ { printf(\"call %d\\n\", args->id); }";
    let tool = Tool::bpftrace(command, script);
    tool.wait_attached();
    let started = setting.ask(&["start", "--wait", "20000", "--", "/bin/true"]);
    assert!(started.status.success(), "{started:?}");
    assert!(started.stderr.is_empty(), "{started:?}");
    tool.settle();
    let ended = tool.interrupt();
    assert!(ended.status.success(), "{ended:?}");
    let calls = ended
        .stdout
        .iter()
        .filter_map(|line| line.strip_prefix("call "));
    let mut seen: Vec<u32> = calls
        .map(|number| number.parse().expect("a number"))
        .collect();
    seen.sort_unstable();
    assert_eq!(seen, honest, "beeline (left), strace (right)");
}

#[test]
fn a_command_that_nobody_traces_runs_all_the_same() {
    let _turn = Turn::take();
    let setting = need!(Setting::new());
    let started = setting.ask(&["start", "--wait", "1", "--", "/bin/sh", "-c", "exit 3"]);
    assert_eq!(started.status.code(), Some(3), "{started:?}");
    let said = String::from_utf8_lossy(&started.stderr).into_owned();
    assert!(said.contains("runs untraced"), "{said}");
    let absent = setting.ask(&["start", "--", "/nonexistent"]);
    assert!(!absent.status.success(), "{absent:?}");
    let said = String::from_utf8_lossy(&absent.stderr).into_owned();
    assert!(said.contains("/nonexistent cannot be started"), "{said}");
}

#[test]
fn what_a_tool_starts_is_told_who_it_is() {
    let _turn = Turn::take();
    let setting = need!(Setting::new());
    // The shell is told what bpftrace is; what bpftrace starts knows better, and so do its children.
    let inner = setting.scratch.path().join("who.sh");
    std::fs::write(inner, "id -u\nsh -c 'id -u'\n").expect("the script can be written");
    let mut command = setting.as_nobody(&setting.beeline);
    command.args(["run", "--", "sh", "-c"]);
    command.arg(format!(
        "echo tool $(id -u); bpftrace -c '/bin/sh who.sh' -e 'uprobe:{}:wl_add {{ @ = count(); }}'",
        setting.program.display()
    ));
    let ended = command.output().expect("beeline runs");
    let said = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert!(ended.status.success(), "{ended:?}");
    assert!(said.contains("tool 0\n"), "{ended:?}");
    assert_eq!(
        said.lines().filter(|line| *line == "65534").count(),
        2,
        "{ended:?}"
    );
}

//! An ordinary user can trace only that user's own processes.

use beeline_e2e::{
    Engine, Footprint, PATIENCE, Scratch, Tool, Turn, Workload, altered_text, as_user, beeline,
    beeline_wanted, engines, file_offset, find_program, is_alive, map_counts, need, until,
};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Debian's user "nobody".
const NOBODY: u32 = 65534;

/// A directory with files that an ordinary user may run: a workload, and a copy of Beeline, whose
/// own path may be closed to others.
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

    /// Returns `command` as an ordinary user.
    fn as_nobody(&self, command: &Path) -> Command {
        let mut setpriv = as_user(NOBODY, command);
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
fn ordinary_users_trace_their_own_processes() {
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
fn ordinary_users_see_and_end_their_own_sessions() {
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

/// Returns the numbers of the calls in the output of `strace -n`, except for the `execve` at its
/// beginning, and the end.
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
fn a_machine_without_a_writable_directory_is_told() {
    const READ_ONLY: &str = r#"for place in /tmp "$TMPDIR" /dev/shm; do
            mount --bind "$place" "$place" && mount -o remount,bind,ro "$place" || exit 2
        done
        exec "$0" "$@""#;
    const EVENT: &str = "/sys/kernel/tracing/events/syscalls/sys_enter_openat/id";
    let _turn = Turn::take();
    let setting = need!(Setting::new());
    let mut read = setting.as_nobody(&setting.beeline);
    read.args(["run", "--", "cat", EVENT]);
    for is_writable in [true, false] {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c"]);
        command.arg(if is_writable {
            r#"exec "$0" "$@""#
        } else {
            READ_ONLY
        });
        command.arg(read.get_program()).args(read.get_args());
        command.env("HOME", "/nonexistent").env("TMPDIR", "/tmp");
        command.env_remove("XDG_RUNTIME_DIR");
        let read = command.output().expect("unshare runs");
        assert_eq!(read.status.success(), is_writable, "{read:?}");
        let said = String::from_utf8_lossy(&read.stderr);
        let is_told = said.contains("there is no writable directory for scratch files");
        assert_eq!(is_told, !is_writable, "{read:?}");
    }
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
fn children_of_a_tool_see_their_own_identity() {
    let _turn = Turn::take();
    let setting = need!(Setting::new());
    // The shell sees bpftrace's identity; the processes that bpftrace starts see their own, and so
    // do their children.
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

/// Programs with more rights than the user, and the programs that run them: a name, an owner, a
/// group and a mode.
const PRIVILEGED: [(&str, u32, u32, u32); 5] = [
    ("plain", 0, 0, 0o755),
    ("set-uid", 0, 0, 0o4755),
    ("set-uid-unreadable", 0, 0, 0o4711),
    ("set-gid", 0, 0, 0o2755),
    ("capable", 0, 0, 0o755),
];

/// Installs [`PRIVILEGED`] and scripts for them where an ordinary user may run them.
fn lay_out_privileged(directory: &Path, rights: &Path) -> Result<(), String> {
    let said = |error: std::io::Error| error.to_string();
    for (name, owner, group, mode) in PRIVILEGED {
        let file = directory.join(name);
        std::fs::copy(rights, &file).map_err(said)?;
        chown(&file, Some(owner), Some(group)).map_err(said)?;
        std::fs::set_permissions(&file, Permissions::from_mode(mode)).map_err(said)?;
    }
    let directory = directory.display();
    for (name, interpreter, mode) in [
        ("script", "set-uid", 0o755),
        ("set-uid-script", "plain", 0o4755),
    ] {
        let file = format!("{directory}/{name}");
        std::fs::write(&file, format!("#!{directory}/{interpreter}\n")).map_err(said)?;
        std::fs::set_permissions(&file, Permissions::from_mode(mode)).map_err(said)?;
    }
    symlink("set-uid", format!("{directory}/link")).map_err(said)?;
    // CAP_NET_BIND_SERVICE, permitted and effective: `struct vfs_cap_data` of revision 2.
    let data: Vec<u8> = [0x0200_0001_u32, 1 << 10, 0, 0, 0]
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect();
    let file = CString::new(format!("{directory}/capable")).expect("no zero in it");
    // SAFETY: both strings end in zero, and the data is as long as is said.
    let set = unsafe {
        libc::setxattr(
            file.as_ptr(),
            c"security.capability".as_ptr(),
            data.as_ptr().cast(),
            data.len(),
            0,
        )
    };
    match set {
        0 => Ok(()),
        _ => Err(format!(
            "no capabilities of files: {}",
            std::io::Error::last_os_error()
        )),
    }
}

/// A program that gains more rights than its shell when untraced gains them in a traced shell, too.
#[test]
fn programs_that_gain_rights_have_them() {
    let _turn = Turn::take();
    let setting = need!(Setting::new());
    let directory = setting.scratch.path();
    let rights = setting.scratch.build("rights.c");
    need!(lay_out_privileged(directory, &rights));
    let shell = || {
        let mut command = setting.as_nobody(Path::new("sh"));
        command.args(["-c", "echo ready; while read line; do $line; done; exit 7"]);
        Workload::start_command(command)
    };
    let run = |shell: &mut Workload| -> Vec<String> {
        let all = ["set-uid-script", "script", "link", "plain"].into_iter();
        let all = all.chain(PRIVILEGED.map(|(name, ..)| name));
        all.map(|name| shell.tell(&format!("./{name}"))).collect()
    };
    let mut alone = shell();
    let expected = run(&mut alone);
    alone.finish();
    let with = |begin: &str| {
        expected
            .iter()
            .filter(|line| line.starts_with(begin))
            .count()
    };
    if with("0 65534 ") != 4 {
        println!(
            "skipped: {} is on a file system without set-uid",
            directory.display()
        );
        return;
    }
    let mut traced = shell();
    let script = "tracepoint:syscalls:sys_enter_exit_group { @[comm] = count(); }";
    let tool = setting.trace(traced.pid(), script);
    assert_eq!(run(&mut traced), expected);
    tool.settle();
    let ended = tool.interrupt();
    assert!(ended.status.success(), "{ended:?}");
    // The script without rights is seen, too.
    assert_eq!(
        map_counts(&ended.stdout),
        BTreeMap::from([
            ("@[plain]".to_owned(), 2),
            ("@[set-uid-script]".to_owned(), 1)
        ]),
        "{ended:?}"
    );
    for name in ["set-uid", "set-uid-unreadable", "set-gid", "capable"] {
        let place = format!("{} gains rights", directory.join(name).display());
        let told = ended
            .stderr
            .iter()
            .filter(|line| line.contains(&place))
            .count();
        assert_eq!(told, 1, "{name}: {ended:?}");
    }
    assert_eq!(ended.stderr.len(), 4, "{ended:?}");
    assert_eq!(altered_text(traced.pid()), Vec::<String>::new());
    traced.finish();
}

/// Where the kernel may be used, such an array is the kernel's memory: its pages stay with the tool's
/// user, and another user's processes count in memory of their own.
#[test]
fn another_user_does_not_get_the_kernels_pages() {
    let _turn = Turn::take();
    let setting = need!(Setting::new());
    let mut own = Workload::start(&setting.program);
    let mut other = Workload::start_command(setting.as_nobody(&setting.program));
    let offset = file_offset(&setting.program, "wl_add").expect("a symbol");
    let tool = setting.scratch.build("frozen_array.c");
    for engine in need!(engines()) {
        let mut command = engine.command(&tool);
        command.arg(&setting.program).arg(offset.to_string());
        let mut session = Tool::start(command);
        session.wait_for_line(|line| line == "attached");
        own.go();
        other.go();
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", other.pid()));
        assert!(!maps.expect("its mappings").contains("bpf-map"), "{engine}");
        session.send("end");
        let ended = session.wait();
        assert_eq!(
            ended.stdout,
            ["attached", "counted 2000"],
            "{engine}: {ended:?}"
        );
    }
    own.finish();
    other.finish();
}

//! The tool's children and their descendants are traced from their first instruction to their last,
//! as on the kernel.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use beeline_e2e::{
    Engine, PATIENCE, Scratch, Tool, Turn, altered_text, beeline, beeline_wanted, engines,
    find_program, is_alive, map_counts, need, until, with_tracefs,
};

const FUNCTIONS: &str = "uprobe:{prog}:descendant_forked { @forked = count(); } \
    uprobe:{prog}:descendant_run { @run = count(); } \
    uretprobe:{prog}:descendant_daemon { @daemon = count(); } \
    uprobe:{lib}:plugin_work { @loaded = count(); }";
const CALLS: &str = "tracepoint:syscalls:sys_enter_setsid /comm == \"descendants\"/ \
        { @setsid = count(); } \
    tracepoint:syscalls:sys_enter_execve /comm == \"descendants\"/ { @execve = count(); }";

/// The number of times that `descendants.c` runs each of [`FUNCTIONS`].
const TIMES: [(&str, u64); 4] = [
    ("@forked", 200),
    ("@run", 600),
    ("@daemon", 100),
    ("@loaded", 200),
];
/// The same for each of [`CALLS`].
const CALL_TIMES: [(&str, u64); 2] = [("@setsid", 10), ("@execve", 60)];

#[test]
fn all_that_a_tool_starts_is_traced_however_short_it_lives() {
    let _turn = Turn::take();
    let scratch = Scratch::new();
    let program = scratch.build("descendants.c").display().to_string();
    let plugin = scratch.build_with("plugin.c", &["-shared", "-fPIC"]);
    let plugin = plugin.display().to_string();
    let bpftrace = need!(find_program("bpftrace"));
    for engine in need!(engines()) {
        for script in [
            FUNCTIONS.to_owned(),
            CALLS.to_owned(),
            format!("{FUNCTIONS} {CALLS}"),
        ] {
            let mut command = match engine {
                Engine::Kernel => with_tracefs(&bpftrace),
                Engine::Beeline => engine.command(&bpftrace),
            };
            let what = format!("{engine}: {script}");
            let filled = script.replace("{prog}", &program).replace("{lib}", &plugin);
            let child = format!("{program} {plugin}");
            command.args(["-e", &filled, "-c", &child]);
            let ended = Tool::start(command).wait();
            assert!(ended.status.success(), "{what}: {ended:?}");
            let mut expected = BTreeMap::new();
            let functions = TIMES.iter().filter(|_| script.contains(FUNCTIONS));
            let calls = CALL_TIMES.iter().filter(|_| script.contains(CALLS));
            for (name, count) in functions.chain(calls) {
                expected.insert((*name).to_owned(), *count);
            }
            assert_eq!(map_counts(&ended.stdout), expected, "{what}: {ended:?}");
            assert!(
                ended.stdout.contains(&"done".to_owned()),
                "{what}: {ended:?}"
            );
            if engine == Engine::Beeline {
                assert_eq!(ended.stderr, Vec::<String>::new(), "{what}");
            }
        }
    }
}

#[test]
fn children_of_a_process_with_a_non_utf8_name_are_traced() {
    let _turn = Turn::take();
    let bpftrace = need!(find_program("bpftrace"));
    let scratch = Scratch::new();
    let shell = scratch.path().join(OsStr::from_bytes(b"\xff) Z 1"));
    symlink("/bin/sh", &shell).unwrap();
    symlink("/bin/true", scratch.path().join("short")).unwrap();
    let script = scratch.path().join("script");
    let short = scratch.path().join("short").display().to_string();
    let shell = shell.as_os_str().as_bytes();
    let line = [
        b"'",
        shell,
        b"' -c '",
        short.as_bytes(),
        b"; ",
        short.as_bytes(),
        b"; :'\n",
    ];
    std::fs::write(&script, line.concat().repeat(2)).unwrap();
    for engine in need!(engines()) {
        let mut command = match engine {
            Engine::Kernel => with_tracefs(&bpftrace),
            Engine::Beeline => engine.command(&bpftrace),
        };
        let ends =
            "tracepoint:syscalls:sys_enter_exit_group /comm == \"short\"/ { @ends = count(); }";
        let child = format!("/bin/sh {}", script.display());
        command.args(["-e", ends, "-c", &child]);
        let ended = Tool::start(command).wait();
        let expected = BTreeMap::from([("@ends".to_owned(), 4)]);
        assert_eq!(map_counts(&ended.stdout), expected, "{engine}: {ended:?}");
    }
}

/// The message of `beeline run` when it leaves a process behind; it ends with the process that
/// stays with it.
const STAYS: &str = "beeline: what the tool has started lives on, so process ";

/// A background shell that prints its process id, reads a file when told to, and ends when told
/// again.
struct Orphan {
    scratch: Scratch,
}

impl Orphan {
    /// A shell started by a script with `end` as its last line.
    fn new(end: &str) -> Self {
        let scratch = Scratch::new();
        let here = scratch.path().display();
        let script = format!(
            "(echo $BASHPID > {here}/pid; read line < {here}/go; cat /etc/passwd | wc -l > {here}/lines; \
             read line < {here}/go) >/dev/null 2>&1 & \n\
             while ! [ -s {here}/pid ]; do :; done\n{end}\n"
        );
        std::fs::write(scratch.path().join("script"), script).expect("a script");
        let made = Command::new("mkfifo")
            .arg(scratch.path().join("go"))
            .status();
        assert!(made.expect("mkfifo").success());
        Self { scratch }
    }

    /// A session whose tool starts the shell.
    fn session(&self, bpftrace: &Path, probes: &str) -> Tool {
        let script = self.scratch.path().join("script");
        let child = format!("/bin/bash {}", script.display());
        let mut command = Command::new(beeline());
        command.arg("run").arg("--").arg(bpftrace);
        command.args(["-e", probes, "-c", &child]);
        Tool::start(command)
    }

    fn text(&self, name: &str) -> String {
        let text = std::fs::read_to_string(self.scratch.path().join(name));
        text.unwrap_or_default().trim().to_owned()
    }

    /// Returns its process id, once it has printed it.
    fn pid(&self) -> u32 {
        assert!(until(PATIENCE, || !self.text("pid").is_empty()));
        self.text("pid").parse().expect("a number")
    }

    fn tell(&self) {
        std::fs::write(self.scratch.path().join("go"), "go\n").expect("it reads");
    }

    /// Makes it do the rest of its work, and asserts that it can.
    fn go_on(&self) {
        let passwd = std::fs::read_to_string("/etc/passwd").expect("/etc/passwd");
        let count = passwd.lines().count().to_string();
        self.tell();
        assert!(until(PATIENCE, || self.text("lines") == count));
        let pid = self.pid();
        self.tell();
        assert!(until(PATIENCE, || !is_alive(pid)));
    }
}

const PROBES: [&str; 2] = [
    "tracepoint:syscalls:sys_enter_openat { @[comm] = count(); }",
    "uprobe:/bin/bash:main { @[comm] = count(); }",
];

/// The session ends with its tool; the processes that the tool has started go on as if there had
/// been none.
#[test]
fn processes_that_outlive_the_tool_are_restored_and_live_on() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let bpftrace = need!(find_program("bpftrace"));
    for probes in PROBES {
        let orphan = Orphan::new("exit 0");
        let ended = orphan.session(&bpftrace, probes).wait();
        assert!(ended.status.success(), "{ended:?}");
        let mut said = ended.stderr.iter();
        let keeper =
            said.find_map(|line| line.strip_prefix(STAYS)?.split(' ').next()?.parse().ok());
        let keeper: u32 = keeper.unwrap_or_else(|| panic!("{ended:?}"));
        let pid = orphan.pid();
        assert!(is_alive(pid) && is_alive(keeper), "{ended:?}");
        assert_eq!(altered_text(pid), Vec::<String>::new());
        orphan.go_on();
        assert!(until(PATIENCE, || !is_alive(keeper)));
    }
}

/// Beeline is killed: the processes that its tool has started go on as well, still hooked.
#[test]
fn children_of_the_tool_outlive_a_killed_beeline() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let bpftrace = need!(find_program("bpftrace"));
    for probes in PROBES {
        let orphan = Orphan::new("read line");
        let session = orphan.session(&bpftrace, probes);
        orphan.pid();
        let pid = session.pid() as i32;
        // SAFETY: a signal to a process that this test started and has not waited for.
        let killed = unsafe { libc::kill(pid, libc::SIGKILL) };
        assert_eq!(killed, 0);
        session.wait();
        orphan.go_on();
    }
}

/// A script is not the tool: processes that it has started may still use the session.
#[test]
fn processes_that_outlive_their_script_stay_traced() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    need!(find_program("bpftrace"));
    let mut target = Command::new("cat");
    target.stdin(Stdio::piped());
    let mut target = target.spawn().expect("cat");
    let pid = target.id();
    let probes = format!(
        "tracepoint:syscalls:sys_enter_exit_group /pid == {pid}/ {{ @ends = count(); exit(); }}
         interval:ms:50 {{ printf(\"attached\\n\"); }}"
    );
    let script = format!("(sleep 0.3; exec bpftrace -e '{probes}') & exit 3");
    let mut command = Command::new(beeline());
    command.args(["run", "--", "sh", "-c", &script]);
    let tool = Tool::start(command);
    tool.wait_for_line(|line| line == "attached");
    drop(target.stdin.take());
    target.wait().expect("cat has ended");
    let ended = tool.wait();
    assert_eq!(ended.status.code(), Some(3), "{ended:?}");
    let expected = BTreeMap::from([("@ends".to_owned(), 1)]);
    assert_eq!(map_counts(&ended.stdout), expected, "{ended:?}");
}

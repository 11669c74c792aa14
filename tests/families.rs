//! What a tool starts, and what that starts in its turn, is traced from its first instruction to its last: as on the kernel.

use std::collections::BTreeMap;
use std::process::Command;

use beeline_e2e::{
    Engine, PATIENCE, Scratch, Tool, Turn, altered_text, beeline, beeline_wanted, engines,
    find_program, is_alive, map_counts, need, until, with_tracefs,
};

const FUNCTIONS: &str = "uprobe:{prog}:family_forked { @forked = count(); } \
    uprobe:{prog}:family_run { @run = count(); } \
    uretprobe:{prog}:family_daemon { @daemon = count(); } \
    uprobe:{lib}:plugin_work { @loaded = count(); }";
const CALLS: &str = "tracepoint:syscalls:sys_enter_setsid /comm == \"family\"/ { @setsid = count(); } \
    tracepoint:syscalls:sys_enter_execve /comm == \"family\"/ { @execve = count(); }";

/// How often each of [`FUNCTIONS`] runs in what `family.c` does.
const TIMES: [(&str, u64); 4] = [
    ("@forked", 200),
    ("@run", 600),
    ("@daemon", 100),
    ("@loaded", 200),
];
/// And each of [`CALLS`].
const CALL_TIMES: [(&str, u64); 2] = [("@setsid", 10), ("@execve", 60)];

#[test]
fn all_that_a_tool_starts_is_traced_however_short_it_lives() {
    let _turn = Turn::take();
    let scratch = Scratch::new();
    let program = scratch.build("family.c").display().to_string();
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

/// What `beeline run` says when it leaves somebody behind: the process that stays with him.
const STAYS: &str = "beeline: what the tool has started lives on, so process ";

/// The tool has ended, and so does its session; what it has started goes on as if there had been none.
#[test]
fn who_outlives_the_tool_is_left_clean_and_lives_on() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let bpftrace = need!(find_program("bpftrace"));
    let scratch = Scratch::new();
    let (pid, go) = (scratch.path().join("pid"), scratch.path().join("go"));
    let made = Command::new("mkfifo").arg(&go).status();
    assert!(made.expect("mkfifo").success());
    let (pid_path, go_path) = (pid.display(), go.display());
    let orphan = format!(
        "(echo $BASHPID > {pid_path}; read line < {go_path}; cat /etc/passwd | wc -l > {pid_path}.lines; read line < {go_path}) >/dev/null 2>&1 & \
         while ! [ -s {pid_path} ]; do :; done"
    );
    let script = scratch.path().join("script");
    std::fs::write(&script, orphan).expect("a script");
    let passwd = std::fs::read_to_string("/etc/passwd").expect("/etc/passwd");
    for probes in [
        "tracepoint:syscalls:sys_enter_openat { @[comm] = count(); }",
        "uprobe:/bin/bash:main { @[comm] = count(); }",
    ] {
        let _ = std::fs::remove_file(&pid);
        let child = format!("/bin/bash {}", script.display());
        let mut command = Command::new(beeline());
        command.arg("run").arg("--").arg(&bpftrace);
        command.args(["-e", probes, "-c", &child]);
        let ended = Tool::start(command).wait();
        assert!(ended.status.success(), "{ended:?}");
        let mut said = ended.stderr.iter();
        let keeper =
            said.find_map(|line| line.strip_prefix(STAYS)?.split(' ').next()?.parse().ok());
        let keeper: u32 = keeper.unwrap_or_else(|| panic!("{ended:?}"));
        let orphan = std::fs::read_to_string(&pid).expect("the orphan's number");
        let orphan: u32 = orphan.trim().parse().expect("a number");
        assert!(is_alive(orphan) && is_alive(keeper), "{ended:?}");
        assert_eq!(altered_text(orphan), Vec::<String>::new());
        std::fs::write(&go, "go\n").expect("it reads");
        let lines = pid.with_extension("lines");
        let read = || std::fs::read_to_string(&lines).unwrap_or_default();
        let count = passwd.lines().count().to_string();
        assert!(until(PATIENCE, || read().trim() == count), "{}", read());
        std::fs::write(&go, "end\n").expect("it reads");
        assert!(until(PATIENCE, || !is_alive(orphan) && !is_alive(keeper)));
        std::fs::remove_file(&lines).expect("it was written");
    }
}

/// A script is no tool: who it has started may yet use the session, or does so now.
#[test]
fn who_outlives_the_script_that_started_him_is_traced_on() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    need!(find_program("bpftrace"));
    let mut target = Command::new("sleep").arg("1.5").spawn().expect("sleep");
    let pid = target.id();
    let probes = format!(
        "tracepoint:syscalls:sys_enter_exit_group /pid == {pid}/ {{ @ends = count(); exit(); }}"
    );
    let script = format!("(sleep 0.3; exec bpftrace -e '{probes}') & exit 3");
    let mut command = Command::new(beeline());
    command.args(["run", "--", "sh", "-c", &script]);
    let ended = Tool::start(command).wait();
    target.wait().expect("sleep has ended");
    assert_eq!(ended.status.code(), Some(3), "{ended:?}");
    let expected = BTreeMap::from([("@ends".to_owned(), 1)]);
    assert_eq!(map_counts(&ended.stdout), expected, "{ended:?}");
}

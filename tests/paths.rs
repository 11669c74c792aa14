//! Calls with paths of what a tool has started: those that only the kernel has an answer to do not
//! wait for the supervisor, and the others still do.

use std::fs::write;
use std::path::Path;
use std::process::Command;

use beeline_e2e::{
    Ended, Engine, Scratch, Tool, Turn, beeline_wanted, find_program, map_counts, need,
    with_tracefs,
};

/// Calls of each kind.
const CALLS: u64 = 500;
/// The kinds: see `paths.c`.
const KINDS: [&str; 6] = ["open", "relative", "stat", "statx", "access", "readlink"];

const OPENS: &str = "tracepoint:syscalls:sys_enter_openat \
    /str(args->filename) == \"/etc/passwd\"/ { @opens = count(); }";
/// Only a function is probed.
const ACCESSES: &str = "uprobe:libc:access { @accesses = count(); }";

/// Runs a command by bpftrace.
fn traced(engine: Engine, script: &str, command: &str) -> Ended {
    let bpftrace = find_program("bpftrace").expect("it was looked for");
    let mut tool: Command = match engine {
        Engine::Kernel => with_tracefs(&bpftrace),
        Engine::Beeline => engine.command(&bpftrace),
    };
    tool.args(["-e", script, "-c", command]);
    Tool::start(tool).wait()
}

#[test]
fn calls_that_are_the_kernels_do_not_wait() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    need!(find_program("bpftrace"));
    let program = Scratch::new();
    let path = program.build("paths.c");
    for engine in need!(beeline_e2e::engines()) {
        for (script, counted) in [
            (OPENS, ("@opens", 2 * CALLS)),
            (ACCESSES, ("@accesses", 2 * CALLS)),
        ] {
            let ended = traced(engine, script, &format!("{} {CALLS}", path.display()));
            assert!(ended.status.success(), "{engine}: {ended:?}");
            let (name, count) = counted;
            let seen = map_counts(&ended.stdout).get(name).copied();
            assert_eq!(seen, Some(count), "{engine}: {ended:?}");
            for thread in ["alone", "beside"] {
                for kind in KINDS {
                    let what = format!("{thread}: {kind}");
                    let switches = switches(&ended, &what);
                    // A busy machine makes a process wait now and then.
                    assert!(
                        switches < CALLS / 4,
                        "{engine}: {what}: {switches} waits in {CALLS} calls: {script}"
                    );
                }
            }
        }
    }
}

/// Returns how often a thread has waited in calls of a kind.
fn switches(ended: &Ended, what: &str) -> u64 {
    let mut lines = ended.stdout.iter();
    let rest = lines.find_map(|line| line.strip_prefix(what)?.strip_suffix(" switches"));
    let number = rest.and_then(|rest| rest.trim().parse().ok());
    number.unwrap_or_else(|| panic!("nothing is said of {what}: {ended:?}"))
}

#[test]
fn values_in_the_register_of_a_sixth_argument_are_kept() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    need!(find_program("bpftrace"));
    let scratch = Scratch::new();
    let path = scratch.build("sixth.c");
    for script in [OPENS, ACCESSES] {
        let ended = traced(Engine::Beeline, script, &path.display().to_string());
        assert!(ended.stdout.iter().any(|line| line == "kept"), "{ended:?}");
    }
}

/// Goes into the session's BPF file system without its name, and makes directories there.
const ENTRIES: &str = r#"
set -e
ln -s /sys/fs/bpf "$1/link"
cat /etc/passwd >/dev/null
case $2 in
by-link) cd -P "$1/link"; mkdir -p inner ;;
by-directory) python3 -c 'import os, sys
os.mkdir("inner", dir_fd=os.open(sys.argv[1], os.O_RDONLY))' "$1/link" ;;
by-descriptor) python3 -c 'import os, sys
os.fchdir(os.open(sys.argv[1], os.O_RDONLY)); os.mkdir("inner")' "$1/link" ;;
esac
ls -d /sys/fs/bpf/inner
"#;

#[test]
fn links_into_the_bpf_file_system_lead_there() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    need!(find_program("bpftrace"));
    for way in ["by-link", "by-directory", "by-descriptor"] {
        let scratch = Scratch::new();
        let script = scratch.path().join("script");
        write(&script, ENTRIES).unwrap();
        let directory = scratch.path().display();
        let child = format!("/bin/sh {} {directory} {way}", script.display());
        let ended = traced(Engine::Beeline, OPENS, &child);
        let is_there = ended.stdout.iter().any(|line| line == "/sys/fs/bpf/inner");
        assert!(is_there, "{way}: {ended:?}");
        assert!(!Path::new("/sys/fs/bpf/inner").exists(), "{way}");
    }
}

/// Looks into the session's BPF file system in all ways that need no name of it, between calls that
/// are the kernel's.
const LOOKS: &str = r#"
set -e
cat /etc/passwd >/dev/null
ls -d /sys/fs/bpf
cd /sys/fs/bpf
"$1" map create held type array key 4 value 4 entries 1 name held
cat /etc/passwd >/dev/null
ls
stat -c %F ../bpf/held
cd /
ls -d sys/fs/bpf/held
python3 -c '
import os
directory = os.open("/sys/fs/bpf", os.O_RDONLY)
os.close(os.open("/etc/passwd", os.O_RDONLY))
print(os.listdir(directory), os.path.isfile("/sys/fs/bpf/held"))
print(os.stat("held", dir_fd=directory).st_size)
'
"#;

#[test]
fn paths_into_the_bpf_file_system_are_found() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    need!(find_program("bpftrace"));
    let bpftool = need!(find_program("bpftool"));
    let scratch = Scratch::new();
    let script = scratch.path().join("script");
    write(&script, LOOKS).unwrap();
    let child = format!("/bin/sh {} {}", script.display(), bpftool.display());
    let ended = traced(Engine::Beeline, OPENS, &child);
    assert!(ended.status.success(), "{ended:?}");
    let seen = [
        "/sys/fs/bpf",
        "held",
        "regular empty file",
        "sys/fs/bpf/held",
        "['held'] True",
        "0",
    ];
    let lines = ended
        .stdout
        .iter()
        .filter(|line| seen.contains(&line.as_str()));
    assert_eq!(lines.collect::<Vec<_>>(), seen, "{ended:?}");
}

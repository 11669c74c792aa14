//! Beeline and its tool under a filter that fails eBPF calls, as the filters of containers do. The
//! tool's calls come to the supervisor all the same.

use std::path::Path;
use std::process::Command;

use beeline_e2e::{
    Ended, PATIENCE, Scratch, Tool, Turn, beeline, beeline_wanted, compile_anew, engines,
    find_program, map_counts, need, sandboxed, until, with_tracefs,
};

/// Returns a command that runs a tool under Beeline in the sandbox. The caller adds its arguments.
fn run(tool: impl AsRef<Path>) -> Command {
    let mut command = sandboxed(beeline());
    command.args(["run", "--"]).arg(tool.as_ref());
    compile_anew(&mut command);
    command
}

fn ended(command: Command) -> Ended {
    Tool::start(command).wait()
}

/// The tool handles SIGSYS itself, blocks it, confines itself, and makes its calls in threads,
/// children and signal handlers.
#[test]
fn a_tool_that_uses_sigsys_itself_sees_what_it_sees_on_the_kernel() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let scratch = Scratch::new();
    let tool = scratch.build("trapped.c");
    let under_beeline = ended(run(&tool));
    assert!(under_beeline.status.success(), "{under_beeline:?}");
    assert!(
        under_beeline.stdout[0].ends_with("works: 1"),
        "{under_beeline:?}"
    );
    if need!(engines()).len() > 1 {
        let on_the_kernel = ended(Command::new(&tool));
        assert_eq!(under_beeline.stdout, on_the_kernel.stdout);
    }
}

#[test]
fn what_a_tool_starts_itself_is_counted_as_by_the_kernel() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let bpftrace = need!(find_program("bpftrace"));
    let scratch = Scratch::new();
    let program = scratch.build("counts.c");
    let script = format!(
        "uprobe:{0}:wl_add {{ @add = count(); }} uretprobe:{0}:wl_square {{ @square = count(); }}
         tracepoint:syscalls:sys_enter_nanosleep,tracepoint:syscalls:sys_enter_clock_nanosleep
         /comm == \"counts\"/ {{ @sleeps = count(); }}",
        program.display()
    );
    let complete = |mut command: Command| {
        let started = format!("{} now", program.display());
        command.args(["-c", &started, "-e", &script]);
        let ended = ended(command);
        assert!(ended.status.success(), "{ended:?}");
        map_counts(&ended.stdout)
    };
    let under_beeline = complete(run(&bpftrace));
    assert_eq!(under_beeline.get("@add"), Some(&1000), "{under_beeline:?}");
    assert_eq!(under_beeline.get("@sleeps"), Some(&20), "{under_beeline:?}");
    if need!(engines()).len() > 1 {
        assert_eq!(under_beeline, complete(with_tracefs(&bpftrace)));
    }
}

/// Shells look for programs in one directory after another, and fail on the way.
#[test]
fn tools_are_served_behind_scripts_and_failed_starts() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    need!(find_program("bpftrace"));
    let mut command = run("sh");
    command.env(
        "PATH",
        "/nonexistent:/proc:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin",
    );
    let script = "beeline-no-such-program; echo \"not found: $?\"
        for n in 1 2; do timeout 60 env bpftrace -e 'BEGIN { printf(\"served\\n\"); exit(); }'; done
        (exec python3 -c 'import os; os.execlp(\"bpftrace\", \"bpftrace\", \"-e\", \"BEGIN { exit(); }\")'); echo \"exec: $?\"";
    command.args(["-c", script]);
    let ended = ended(command);
    let count = |line: &str| ended.stdout.iter().filter(|other| *other == line).count();
    assert_eq!(count("not found: 127"), 1, "{ended:?}");
    assert_eq!(count("served"), 2, "{ended:?}");
    assert_eq!(count("exec: 0"), 1, "{ended:?}");
}

/// Without a session its eBPF calls fail as they would have without Beeline; nothing kills it.
#[test]
fn programs_that_a_tool_leaves_behind_run_on() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    need!(find_program("bpftrace"));
    let scratch = Scratch::new();
    let tool = scratch.build("trapped.c");
    let (line, output) = (scratch.path().join("line"), scratch.path().join("output"));
    let status = Command::new("mkfifo").arg(&line).status();
    assert!(status.expect("mkfifo is there").success());
    let mut command = run("sh");
    let script = "(read go <\"$0\"; exec \"$1\" >\"$2\") >/dev/null 2>&1 &
        exec bpftrace -e 'BEGIN { exit(); }'";
    command.args(["-c", script]).args([&line, &tool, &output]);
    let ended = ended(command);
    assert!(ended.status.success(), "{ended:?}");
    std::fs::write(&line, "go\n").expect("it is read");
    let last = |text: &String| {
        text.lines()
            .any(|line| line.starts_with("pipe: 0, epoll: 0,"))
    };
    let said = || std::fs::read_to_string(&output).unwrap_or_default();
    assert!(until(PATIENCE, || last(&said())), "{}", said());
    let said = said();
    assert!(said.starts_with("map: 0, works: 0"), "{said}");
}

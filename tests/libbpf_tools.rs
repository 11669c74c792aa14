//! Debian's libbpf tools, unmodified, print the same under Beeline as on the kernel.

use beeline_e2e::{
    Engine, Scratch, Tool, Turn, Workload, engines, find_program, histogram_total, need, shape,
};
use std::path::Path;
use std::process::Command;

/// A target in Python: resolves "localhost" five times per round.
const RESOLVER: &str = "import socket, sys
print('ready', flush=True)
for line in sys.stdin:
    for i in range(5): socket.getaddrinfo('localhost', 80)
    print('done', flush=True)
sys.exit(7)";

#[test]
fn funclatency_times_every_call_of_a_function_of_the_program() {
    funclatency(":wl_pause", 20);
}

#[test]
fn funclatency_times_every_call_of_a_short_function() {
    funclatency(":wl_square", 100);
}

#[test]
fn funclatency_times_every_call_of_a_function_of_libc() {
    funclatency("c:nanosleep", 20);
}

fn funclatency(function: &str, calls: u64) {
    let _turn = Turn::take();
    let funclatency = need!(find_program("funclatency"));
    let scratch = Scratch::new();
    let program = scratch.build("counts.c");
    for engine in need!(engines()) {
        let mut workload = Workload::start(&program);
        let mut command = engine.command(&funclatency);
        command.args(["-p", &workload.pid().to_string(), function]);
        let tool = Tool::start_on_terminal(command);
        tool.wait_for_line(|line| line.starts_with("Tracing"));
        workload.go();
        let ended = tool.interrupt();
        assert!(ended.status.success(), "{engine}: {ended:?}");
        assert_eq!(histogram_total(&ended.stdout), calls, "{engine}: {ended:?}");
        workload.finish();
    }
}

#[test]
fn gethostlatency_reports_every_look_up() {
    let _turn = Turn::take();
    let gethostlatency = need!(find_program("gethostlatency"));
    let mut shapes = Vec::new();
    for engine in need!(engines()) {
        let mut python = Command::new("/usr/bin/python3");
        python.args(["-c", RESOLVER]);
        let mut workload = Workload::start_command(python);
        let mut command = engine.command(&gethostlatency);
        command.args(["-p", &workload.pid().to_string()]);
        let tool = Tool::start_on_terminal(command);
        tool.wait_for_line(|line| line.starts_with("TIME"));
        workload.go();
        let is_row = |line: &str| line.ends_with("localhost");
        let mut seen = 0;
        for _ in 0..5 {
            let row = tool.stdout.wait_for(seen, beeline_e2e::PATIENCE, is_row);
            seen = row
                .unwrap_or_else(|| panic!("{engine}: {:?}", tool.stderr.so_far()))
                .0;
        }
        let pid = workload.pid().to_string();
        let ended = tool.interrupt();
        let rows: Vec<_> = ended
            .stdout
            .into_iter()
            .filter(|line| is_row(line))
            .collect();
        assert_eq!(rows.len(), 5, "{engine}");
        let right = |row: &String| {
            row.split_whitespace()
                .skip(1)
                .take(2)
                .eq([pid.as_str(), "python3"])
        };
        assert!(rows.iter().all(right), "{engine}: {rows:?}");
        shapes.push(shape(&rows));
        workload.finish();
    }
    assert!(
        shapes.windows(2).all(|pair| pair[0] == pair[1]),
        "{shapes:?}"
    );
}

#[test]
fn bashreadline_prints_what_is_typed() {
    let _turn = Turn::take();
    let bashreadline = need!(find_program("bashreadline"));
    for engine in need!(engines()) {
        let mut shell = Command::new("/bin/bash");
        // Echoed commands and prompts go to stderr; the protocol is on stdout.
        shell.args([
            "--norc",
            "--noprofile",
            "-c",
            "echo ready; exec bash --norc --noprofile -i 2>/dev/null",
        ]);
        shell
            .env("HISTFILE", "/dev/null")
            .env("PS1", "")
            .env("TERM", "dumb");
        let mut workload = Workload::start_command(shell);
        // Its first answer shows that it is the interactive shell by now, not the one that starts
        // it.
        typed(&mut workload, "echo awake", "awake");
        let tool = start_bashreadline(engine, &bashreadline);
        // The shell has been waiting for the first one since before its return was probed.
        for word in ["one", "two", "three"] {
            typed(&mut workload, &format!("echo {word}"), word);
        }
        tool.wait_for_line(|line| line.ends_with("echo three"));
        let pid = workload.pid().to_string();
        let ended = tool.interrupt();
        let own = |line: &&String| line.split_whitespace().nth(1) == Some(&pid);
        let typed: Vec<_> = ended
            .stdout
            .iter()
            .filter(own)
            .filter_map(|row| row.split("echo ").nth(1))
            .collect();
        assert!(typed.ends_with(&["two", "three"]), "{engine}: {ended:?}");
    }
}

/// Sends a line to a shell that may echo its input, and waits for the answer.
fn typed(workload: &mut Workload, line: &str, wanted: &str) {
    let mut answer = workload.tell(line);
    while answer != wanted {
        answer = workload.answer();
    }
}

fn start_bashreadline(engine: Engine, bashreadline: &Path) -> Tool {
    let mut command = engine.command(bashreadline);
    command.args(["-s", "/bin/bash"]);
    let tool = Tool::start_on_terminal(command);
    tool.wait_for_line(|line| line.starts_with("TIME"));
    tool
}

#[test]
fn memleak_finds_what_was_not_freed() {
    let _turn = Turn::take();
    let memleak = need!(find_program("memleak"));
    let scratch = Scratch::new();
    let program = scratch.build("leaky.c");
    let mut stacks = Vec::new();
    for engine in need!(engines()) {
        let mut workload = Workload::start(&program);
        let mut command = engine.command(&memleak);
        command.args(["-o", "1", "-p", &workload.pid().to_string(), "1"]);
        let tool = Tool::start_on_terminal(command);
        // It reports every second; the first report says that it is attached.
        tool.wait_for_line(|line| line.contains("outstanding allocations"));
        workload.go();
        let leak = tool.wait_for_line(|line| line.contains("bytes in"));
        assert!(
            leak.starts_with("7000 bytes in 70 allocations"),
            "{engine}: {leak}"
        );
        tool.wait_for_line(|line| line.contains("main+"));
        let frames = tool
            .stdout
            .so_far()
            .into_iter()
            .filter(|line| line.contains("[<"));
        // "0 [<address>] function+offset [file]"
        stacks.push(
            frames
                .filter_map(|line| line.split_whitespace().nth(2).map(str::to_owned))
                .take(2)
                .collect(),
        );
        tool.interrupt();
        workload.finish();
    }
    let stacks: Vec<Vec<String>> = stacks;
    assert!(stacks[0][0].starts_with("leak_here+"), "{stacks:?}");
    assert!(
        stacks.windows(2).all(|pair| pair[0] == pair[1]),
        "{stacks:?}"
    );
}

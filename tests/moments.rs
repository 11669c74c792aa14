//! What lives for moments only is counted as on the kernel.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use beeline_e2e::{
    Engine, Scratch, Tool, Turn, engines, find_program, map_counts, need, with_tracefs,
};

/// A tool by an engine, which sees nothing of the machine but what it starts: other processes' counts are theirs.
fn alone(engine: Engine, tool: &Path) -> Command {
    let inner = match engine {
        Engine::Kernel => with_tracefs(tool),
        Engine::Beeline => engine.command(tool),
    };
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--mount", "--mount-proc"]);
    command.arg(inner.get_program()).args(inner.get_args());
    for (name, value) in inner.get_envs() {
        if let Some(value) = value {
            command.env(name, value);
        }
    }
    command
}

/// Asserts what the maps of an ended tool hold, and that Beeline said nothing.
fn assert_counts(engine: Engine, what: &str, tool: Tool, expected: &[(&str, u64)]) {
    let ended = tool.wait();
    assert!(ended.status.success(), "{engine}: {what}: {ended:?}");
    let expected = expected.iter().map(|(name, n)| ((*name).to_owned(), *n));
    let expected: BTreeMap<_, _> = expected.collect();
    assert_eq!(
        map_counts(&ended.stdout),
        expected,
        "{engine}: {what}: {ended:?}"
    );
    if engine == Engine::Beeline {
        assert_eq!(ended.stderr, Vec::<String>::new(), "{what}");
    }
}

/// A child calls this function ten times, and ends once.
const PROBES: [(&str, u64); 2] = [
    ("uprobe:{prog}:family_run { @ = count(); }", 10),
    (
        "tracepoint:syscalls:sys_enter_exit_group /comm == \"{name}\"/ { @ = count(); }",
        1,
    ),
];

/// `family.c` under a name that no other process of the machine has, and [`PROBES`] for that.
fn family(scratch: &Scratch) -> (String, [(String, u64); 2]) {
    let name = format!("f{}", std::process::id());
    let program = scratch.path().join(&name);
    std::fs::rename(scratch.build("family.c"), &program).expect("one directory");
    let program = program.display().to_string();
    let fill = |probe: &str| probe.replace("{prog}", &program).replace("{name}", &name);
    let probes = PROBES.map(|(probe, times)| (fill(probe), times));
    (program, probes)
}

#[test]
fn what_a_tool_starts_when_it_has_attached_is_counted() {
    let _turn = Turn::take();
    let bpftrace = need!(find_program("bpftrace"));
    let scratch = Scratch::new();
    let (program, probes) = family(&scratch);
    for engine in need!(engines()) {
        for (probe, times) in &probes {
            let starts = format!("system(\"{program} child\"); ").repeat(5);
            let script = format!("BEGIN {{ {starts} exit(); }} {probe}");
            let mut command = alone(engine, &bpftrace);
            command.args(["--unsafe", "-e", &script]);
            let tool = Tool::start(command);
            assert_counts(engine, probe, tool, &[("@", 5 * times)]);
        }
    }
}

/// Starts bpftrace, and when that has attached a program by all ways there are; one that there is not, too.
const STARTER: &str = r#"
import os, signal, subprocess, sys
bpftrace, script, program = sys.argv[1:]
tool = subprocess.Popen([bpftrace, "-e", script], stdout=subprocess.PIPE, text=True)
while tool.stdout.readline() != "ready\n":
    pass
for _ in range(5):
    if (pid := os.fork()) == 0:
        try:
            os.execv("/nowhere", ["nowhere"])
        except OSError:
            os.execv(program, [program, "child"])
    assert os.waitpid(pid, 0)[1] == 0
    pid = os.posix_spawn(program, [program, "child"], os.environ)
    assert os.waitpid(pid, 0)[1] == 0
    subprocess.run([program, "child"], check=True)
    subprocess.run(["sh", "-c", program + " child; :"], check=True)
tool.send_signal(signal.SIGINT)
print(tool.stdout.read())
sys.exit(tool.wait())
"#;

#[test]
fn what_a_script_starts_beside_its_tool_is_counted() {
    let _turn = Turn::take();
    let bpftrace = need!(find_program("bpftrace"));
    let python = need!(find_program("python3"));
    let scratch = Scratch::new();
    let (program, probes) = family(&scratch);
    for engine in need!(engines()) {
        for (probe, times) in &probes {
            // Timers are attached last.
            let script = format!("{probe} interval:ms:50 {{ printf(\"ready\\n\"); }}");
            let mut command = alone(engine, &python);
            command.args(["-c", STARTER]);
            command.arg(&bpftrace).args([&script, &program]);
            let tool = Tool::start(command);
            assert_counts(engine, probe, tool, &[("@", 20 * times)]);
        }
    }
}

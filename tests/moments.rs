//! Short-lived processes, mappings and calls are counted as on the kernel.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use beeline_e2e::{
    Engine, PATIENCE, Scratch, Tool, Turn, Workload, altered_text, beeline, beeline_wanted,
    engines, find_program, map_counts, need, send, until, with_tracefs,
};

/// Threads that wait for a stopped Beeline go on long before that.
const SOON: Duration = Duration::from_secs(3);
/// Hits are printed sooner than that.
const A_WHILE: Duration = Duration::from_millis(500);

/// A tool by an engine, which sees only the part of the machine that it starts: other processes'
/// counts do not mix in.
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

/// Asserts the contents of an ended tool's maps, and that Beeline printed nothing.
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
    ("uprobe:{prog}:descendant_run { @ = count(); }", 10),
    (
        "tracepoint:syscalls:sys_enter_exit_group /comm == \"{name}\"/ { @ = count(); }",
        1,
    ),
];

/// `descendants.c` under a name that no other process of the machine has, and [`PROBES`] for it.
fn descendants(scratch: &Scratch) -> (String, [(String, u64); 2]) {
    let name = format!("f{}", std::process::id());
    let program = scratch.path().join(&name);
    std::fs::rename(scratch.build("descendants.c"), &program).expect("one directory");
    let program = program.display().to_string();
    let fill = |probe: &str| probe.replace("{prog}", &program).replace("{name}", &name);
    let probes = PROBES.map(|(probe, times)| (fill(probe), times));
    (program, probes)
}

#[test]
fn children_started_after_attaching_are_counted() {
    let _turn = Turn::take();
    let bpftrace = need!(find_program("bpftrace"));
    let scratch = Scratch::new();
    let (program, probes) = descendants(&scratch);
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

/// Starts bpftrace and, once it is attached, a program in every available way; also one that does
/// not exist.
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
fn processes_that_a_script_starts_beside_its_tool_are_counted() {
    let _turn = Turn::take();
    let bpftrace = need!(find_program("bpftrace"));
    let python = need!(find_program("python3"));
    let scratch = Scratch::new();
    let (program, probes) = descendants(&scratch);
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

/// The input lines for `moments.c`, and the calls that it has then made in processes and libraries
/// that are gone.
const TOLD: [(&str, &str, u64); 3] = [
    ("fork", "@forked", 2000),
    ("run", "@run", 1000),
    ("load", "@loaded", 2000),
];

/// `moments.c`, its library, and probes on both.
struct Moments {
    scratch: Scratch,
    program: PathBuf,
    plugin: PathBuf,
}

impl Moments {
    fn new() -> Self {
        let scratch = Scratch::new();
        let program = scratch.build("moments.c");
        let plugin = scratch.build_with("plugin.c", &["-shared", "-fPIC"]);
        Self {
            scratch,
            program,
            plugin,
        }
    }

    fn start(&self) -> Workload {
        let mut command = Command::new(&self.program);
        command.arg(&self.plugin).current_dir(self.scratch.path());
        Workload::start_command(command)
    }

    /// Returns the probes for a line of [`TOLD`].
    fn script(&self, line: &str) -> String {
        let (program, plugin) = (self.program.display(), self.plugin.display());
        match line {
            "fork" => format!("uprobe:{program}:m_forked {{ @forked = count(); }}"),
            "run" => format!("uprobe:{program}:m_run {{ @run = count(); }}"),
            _ => format!("uprobe:{plugin}:plugin_work {{ @loaded = count(); }}"),
        }
    }

    fn all(&self) -> String {
        TOLD.map(|(line, ..)| self.script(line)).join(" ")
    }
}

/// Ends a tool; returns its counts except zeros, and its messages on stderr.
fn counts(tool: Tool) -> (BTreeMap<String, u64>, Vec<String>) {
    tool.settle();
    let ended = tool.interrupt();
    assert!(ended.status.success(), "{ended:?}");
    let mut counts = map_counts(&ended.stdout);
    counts.retain(|_, count| *count > 0);
    (counts, ended.stderr)
}

#[test]
fn libraries_that_a_target_loads_briefly_are_counted() {
    let _turn = Turn::take();
    let bpftrace = need!(find_program("bpftrace"));
    let moments = Moments::new();
    for engine in need!(engines()) {
        let mut workload = moments.start();
        let tool = Tool::bpftrace(engine.command(&bpftrace), &moments.all());
        tool.wait_attached();
        for (line, ..) in TOLD {
            assert_eq!(workload.tell(line), "done", "{engine}");
        }
        let (counts, said) = counts(tool);
        let expected = TOLD.map(|(_, name, count)| (name.to_owned(), count));
        assert_eq!(counts, BTreeMap::from(expected), "{engine}: {said:?}");
        if engine == Engine::Beeline {
            assert_eq!(said, Vec::<String>::new());
            assert_eq!(altered_text(workload.pid()), Vec::<String>::new());
        }
        workload.finish();
    }
}

/// It maps nothing that is probed when the tool attaches.
#[test]
fn libraries_that_a_named_process_loads_briefly_are_counted() {
    let _turn = Turn::take();
    let bpftrace = need!(find_program("bpftrace"));
    let moments = Moments::new();
    for engine in need!(engines()) {
        let mut workload = moments.start();
        let mut command = engine.command(&bpftrace);
        command.args(["-p", &workload.pid().to_string()]);
        let tool = Tool::bpftrace(command, &moments.script("load"));
        tool.wait_attached();
        assert_eq!(workload.tell("load"), "done", "{engine}");
        let (counts, said) = counts(tool);
        let expected = BTreeMap::from([("@loaded".to_owned(), 2000)]);
        assert_eq!(counts, expected, "{engine}: {said:?}");
        if engine == Engine::Beeline {
            assert_eq!(said, Vec::<String>::new());
            assert_eq!(altered_text(workload.pid()), Vec::<String>::new());
        }
        workload.finish();
    }
}

/// Files that a process without probes runs or loads are searched for in all processes.
#[test]
fn libraries_that_any_process_loads_briefly_are_counted() {
    let _turn = Turn::take();
    let bpftrace = need!(find_program("bpftrace"));
    let moments = Moments::new();
    for engine in need!(engines()) {
        let mut workload = moments.start();
        let tool = Tool::bpftrace(engine.command(&bpftrace), &moments.script("load"));
        tool.wait_attached();
        assert_eq!(workload.tell("load"), "done", "{engine}");
        assert_all(engine, tool, ("@loaded", 2000));
        if engine == Engine::Beeline {
            assert_eq!(altered_text(workload.pid()), Vec::<String>::new());
        }
        workload.finish();
    }
}

/// Asserts that these are all counts and messages.
fn assert_all(engine: Engine, tool: Tool, (name, count): (&str, u64)) {
    let (counts, said) = counts(tool);
    let expected = BTreeMap::from([(name.to_owned(), count)]);
    assert_eq!(counts, expected, "{engine}: {said:?}");
    if engine == Engine::Beeline {
        assert_eq!(said, Vec::<String>::new());
    }
}

/// Runs a program time and again, from a process without probes.
fn run_often(program: &Path, arguments: &[&str], times: u64) {
    for _ in 0..times {
        let mut command = Command::new(program);
        let status = command.args(arguments).status().expect("it is built");
        assert!(status.success(), "{status}");
    }
}

#[test]
fn programs_that_live_for_a_moment_are_counted() {
    let _turn = Turn::take();
    let bpftrace = need!(find_program("bpftrace"));
    let moments = Moments::new();
    for engine in need!(engines()) {
        let tool = Tool::bpftrace(engine.command(&bpftrace), &moments.script("run"));
        tool.wait_attached();
        run_often(&moments.program, &["", "child"], 100);
        assert_all(engine, tool, ("@run", 1000));
    }
}

#[test]
fn libraries_of_programs_that_live_for_a_moment_are_counted() {
    let _turn = Turn::take();
    let bpftrace = need!(find_program("bpftrace"));
    let moments = Moments::new();
    let plugin = moments.plugin.display().to_string();
    let needy = moments.scratch.build_with("needs_plugin.c", &[&plugin]);
    for engine in need!(engines()) {
        let tool = Tool::bpftrace(engine.command(&bpftrace), &moments.script("load"));
        tool.wait_attached();
        run_often(&needy, &[], 100);
        assert_all(engine, tool, ("@loaded", 1000));
    }
}

/// A process that reads a probed file, and does not run it, does not concern the tool.
#[test]
fn readers_of_a_probed_file_are_no_targets() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let bpftrace = need!(find_program("bpftrace"));
    let moments = Moments::new();
    let tool = Tool::bpftrace(Engine::Beeline.command(&bpftrace), &moments.script("load"));
    tool.wait_attached();
    let mut reader = Command::new("tail");
    reader.args(["-f", "-c", "1"]).arg(&moments.plugin);
    let mut reader = reader.stdout(Stdio::piped()).spawn().expect("coreutils");
    let mut byte = [0];
    let output = reader.stdout.as_mut().expect("a pipe");
    output.read_exact(&mut byte).expect("the file's last byte");
    assert_eq!(altered_text(reader.id()), Vec::<String>::new());
    reader.kill().expect("it runs");
    reader.wait().expect("it is ours");
    let (counts, said) = counts(tool);
    assert_eq!((counts, said), Default::default());
}

/// Nothing is counted while Beeline is stopped, and no process waits for it.
#[test]
fn a_stopped_beeline_blocks_no_open_of_a_probed_file() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let bpftrace = need!(find_program("bpftrace"));
    let moments = Moments::new();
    let script = format!(
        "uprobe:{}:m_run {{ printf(\"hit\\n\"); }}",
        moments.program.display()
    );
    let tool = Tool::bpftrace(Engine::Beeline.command(&bpftrace), &script);
    tool.wait_attached();
    let run = |times| run_often(&moments.program, &["", "child"], times);
    let hits = || {
        tool.stdout
            .so_far()
            .iter()
            .filter(|line| *line == "hit")
            .count()
    };
    run(1);
    assert!(until(PATIENCE, || hits() == 10));
    for _ in 0..5 {
        send(tool.pid(), libc::SIGSTOP);
        let begun = Instant::now();
        run(10);
        assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
        send(tool.pid(), libc::SIGCONT);
        let is_back = || {
            let before = hits();
            run(1);
            until(A_WHILE, || hits() > before)
        };
        assert!(until(PATIENCE, is_back), "nobody is held any more");
        tool.settle();
        let before = hits();
        run(10);
        assert!(
            until(PATIENCE, || hits() == before + 100),
            "{} of 100",
            hits() - before
        );
    }
    let ended = tool.interrupt();
    assert!(ended.status.success(), "{ended:?}");
}

/// Beeline's message on a process that it does not follow.
const UNFOLLOWED: &str = "for less than a tenth of a second may be missed";

/// Only one session can follow a process: the one with programs at calls, or else the first. The
/// other says so, and counts what the process itself does.
#[test]
fn a_session_without_fanotify_says_so() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let bpftrace = need!(find_program("bpftrace"));
    let moments = Moments::new();
    let functions = moments.script("fork");
    let calls =
        "tracepoint:syscalls:sys_enter_exit_group /comm == \"moments\"/ { @ends = count(); }";
    let forked = ("@forked".to_owned(), 2000);
    let ends = ("@ends".to_owned(), 200);
    for (scripts, told) in [
        ([&functions, &functions], [true, false]),
        ([&functions, &calls.to_owned()], [false, true]),
        ([&calls.to_owned(), &functions], [true, false]),
    ] {
        let mut workload = moments.start();
        let tools = scripts.map(|script| {
            let mut command = Command::new(beeline());
            command.arg("run");
            if script == calls {
                command.args(["--pid", &workload.pid().to_string()]);
            }
            command.arg("--").arg(&bpftrace);
            let tool = Tool::bpftrace(command, script);
            tool.wait_attached();
            tool
        });
        if let ([_, true], Some(first)) = (told, tools.first()) {
            let said = first
                .stderr
                .wait_for(0, PATIENCE, |line| line.contains(UNFOLLOWED));
            assert!(said.is_some(), "{scripts:?}");
        }
        assert_eq!(workload.tell("fork"), "done");
        // A hook that lies on the other session's goes first.
        for ((tool, is_told), script) in tools.into_iter().zip(told).zip(scripts).rev() {
            let (counts, said) = counts(tool);
            let all = match script == calls {
                true => BTreeMap::from([ends.clone()]),
                false => BTreeMap::from([forked.clone()]),
            };
            // On a busy machine some children live long enough to be found.
            let is_right = match is_told {
                true => counts == all,
                false => counts
                    .iter()
                    .all(|(name, count)| all.get(name) >= Some(count)),
            };
            assert!(is_right, "{script}: {counts:?}; {said:?}");
            let times = said.iter().filter(|line| line.contains(UNFOLLOWED));
            assert_eq!(times.count(), usize::from(!is_told), "{script}: {said:?}");
        }
        assert_eq!(altered_text(workload.pid()), Vec::<String>::new());
        workload.finish();
    }
}

#[test]
fn untraceable_processes_are_named() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let bpftrace = need!(find_program("bpftrace"));
    let scratch = Scratch::new();
    let program = scratch.build("jailed.c");
    let workloads = [(); 2].map(|()| Workload::start(&program));
    let script = format!("uprobe:{}:jail_work {{ @ = count(); }}", program.display());
    let tool = Tool::bpftrace(Engine::Beeline.command(&bpftrace), &script);
    tool.wait_attached();
    let (_, said) = counts(tool);
    let ours: Vec<_> = said
        .iter()
        .filter(|line| line.starts_with("beeline:"))
        .collect();
    let [line] = ours.as_slice() else {
        panic!("{said:?}");
    };
    for part in ["seccomp", "jailed maps a file that is probed", "not traced"] {
        assert!(line.contains(part), "{line}");
    }
    workloads.into_iter().for_each(Workload::finish);
}

//! Tools of today ask for more than older ones, and get the kernel's answer: buffers as Go's
//! libraries open them, literals of newer bpftraces, signals as scripts send them.

use std::process::Command;
use std::time::Duration;

use beeline_e2e::{
    Ended, Engine, PATIENCE, Scratch, Tool, Turn, Workload, beeline_wanted, engines, file_offset,
    find_program, need, send, until, with_tracefs,
};

/// Asserts that every engine's run printed these lines.
fn assert_agree(runs: &[(Engine, Ended)], known: &[&str]) {
    for (engine, ended) in runs {
        assert!(ended.status.success(), "{engine}: {ended:?}");
        for line in known {
            let said = ended.stdout.iter().any(|said| said == line);
            assert!(said, "{engine}: no {line:?} in {ended:?}");
        }
    }
    if let [(_, kernel), (_, beeline)] = runs {
        assert_eq!(beeline.stdout, kernel.stdout, "beeline and the kernel");
    }
}

#[test]
fn perf_buffers_that_are_opened_enabled() {
    let _turn = Turn::take();
    let scratch = Scratch::new();
    let reader = scratch.build("perf_reader.c");
    let run = |engine: Engine| (engine, Tool::start(engine.command(&reader)).wait());
    let runs: Vec<_> = need!(engines()).into_iter().map(run).collect();
    let known = [
        "opened enabled: helper 0, 24 bytes, woken 1",
        "disabled: helper -95, 0 bytes, woken 0",
        "enabled again: helper 0, 24 bytes, woken 1",
        "opened disabled: helper -95, 0 bytes, woken 0",
        "disabled and resumed: helper -95, 0 bytes, woken 0",
        "paused and enabled: helper -28, 0 bytes, woken 0",
    ];
    assert_agree(&runs, &known);
}

#[test]
fn objects_that_others_keep_are_found_by_their_ids() {
    let _turn = Turn::take();
    let scratch = Scratch::new();
    let closes = scratch.build("kept.c");
    let run = |engine: Engine| (engine, Tool::start(engine.command(&closes)).wait());
    let runs: Vec<_> = need!(engines()).into_iter().map(run).collect();
    let known = [
        "  program: listed 1, opened 1",
        "  map: listed 1, opened 1",
        "  types: listed 1, opened 1",
        "its instructions are there 1, maps 1, types 1, functions 1",
    ];
    assert_agree(&runs, &known);
}

#[test]
fn programs_read_their_own_constants_and_no_kernel_stack() {
    let _turn = Turn::take();
    let scratch = Scratch::new();
    let (program, reader) = (scratch.build("counts.c"), scratch.build("kernel_side.c"));
    let offset = file_offset(&program, "wl_add").expect("a symbol of the workload");
    let run = |engine: Engine| {
        let mut workload = Workload::start(&program);
        let mut command = engine.command(&reader);
        command.arg(workload.pid().to_string()).arg(&program);
        command.arg(format!("{offset:#x}"));
        let mut tool = Tool::start(command);
        tool.wait_for_line(|line| line == "attached");
        workload.go();
        tool.send("read");
        let ended = tool.wait();
        workload.finish();
        (engine, ended)
    };
    let runs: Vec<_> = need!(engines()).into_iter().map(run).collect();
    let known = [
        "of a constant: 0x636261",
        "a word of a constant: 0x636261",
        "a constant string: 0x636261",
        "of the stack: 0x636261",
        "kernel stack: 0, of it behind 3: -14, user stack behind 255: -14",
    ];
    assert_agree(&runs, &known);
}

/// Starts a tool in the background of a script, where SIGINT is ignored at first; interrupts it as
/// `kill -INT $!` does.
#[test]
fn a_script_interrupts_a_tool_in_its_background() {
    const SCRIPT: &str = r#""$@" & echo "pid $!"; wait $!; echo "ended with $?""#;
    let _turn = Turn::take();
    let bpftrace = need!(find_program("bpftrace"));
    for engine in need!(engines()) {
        let within = engine.command(&bpftrace);
        let mut command = Command::new("sh");
        command.args(["-c", SCRIPT, "sh"]);
        command.arg(within.get_program()).args(within.get_args());
        // Its own group, and with it a script of its own: nothing else gets the signal.
        let tool = Tool::bpftrace(command, "BEGIN { @begun = 1 }");
        tool.wait_attached();
        let line = tool.wait_for_line(|line| line.starts_with("pid "));
        let pid = line.trim_start_matches("pid ").parse().expect("a number");
        send(pid, libc::SIGINT);
        let ended = tool.wait_for_line(|line| line.starts_with("ended with "));
        assert_eq!(ended, "ended with 0", "{engine}");
        let said = tool.wait().stdout;
        assert!(
            said.iter().any(|line| line == "@begun: 1"),
            "{engine}: {said:?}"
        );
    }
}

/// SIGINT for Beeline, or for the whole group as timeout(1) sends it, comes to the tool once. A second
/// one would cut a call by which it detaches.
#[test]
fn signals_reach_the_tool_once() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let bash = need!(find_program("bash"));
    let mut command = Engine::Beeline.command(bash);
    command.args([
        "-c",
        "trap 'echo caught' INT; echo ready; while :; do read -t 0.05; done",
    ]);
    let tool = Tool::start(command);
    tool.wait_for_line(|line| line == "ready");
    let caught = |tool: &Tool| {
        let lines = tool.stdout.so_far();
        lines.iter().filter(|line| *line == "caught").count()
    };
    let settle = || std::thread::sleep(Duration::from_millis(300));
    send(tool.pid(), libc::SIGINT);
    until(PATIENCE, || caught(&tool) >= 1);
    settle();
    assert_eq!(caught(&tool), 1, "a signal for Beeline alone");
    // By its name and by its command line, which are no other process's of the group.
    for (nth, by) in [(2, ["-x", "beeline"]), (3, ["-f", "[b]eeline run"])] {
        let group = tool.pid().to_string();
        let killed = Command::new("pkill")
            .args(["-INT", "-g", &group])
            .args(by)
            .status();
        assert!(killed.expect("pkill runs").success(), "{by:?}");
        until(PATIENCE, || caught(&tool) >= nth);
        settle();
        assert_eq!(caught(&tool), nth, "{by:?}");
    }
    for nth in 4..8 {
        tool.signal_group(libc::SIGINT);
        until(PATIENCE, || caught(&tool) >= nth);
        settle();
        assert_eq!(caught(&tool), nth, "a signal for the group");
    }
}

/// The kernel can trace a tool by itself. Beeline cannot, and says so at once.
#[test]
fn a_tool_that_probes_itself_is_told_why_not() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let scratch = Scratch::new();
    let reader = scratch.build("kernel_side.c");
    let offset = file_offset(&reader, "main").expect("a symbol of the tool");
    let mut command = Engine::Beeline.command(&reader);
    command.args(["0", "/proc/self/exe", &format!("{offset:#x}")]);
    let ended = Tool::start(command).wait();
    assert!(!ended.status.success(), "{ended:?}");
    let told = ended
        .stderr
        .iter()
        .any(|line| line.contains("the tool cannot trace itself"));
    assert!(told, "{ended:?}");
}

/// Go's libraries read there what a map and a program are.
#[test]
fn fdinfo_of_maps_and_programs() {
    let _turn = Turn::take();
    let scratch = Scratch::new();
    let fdinfo = scratch.build("fdinfo.c");
    let run = |engine: Engine| (engine, Tool::start(engine.command(&fdinfo)).wait());
    let runs: Vec<_> = need!(engines()).into_iter().map(run).collect();
    assert_agree(&runs, &["map: map_type:\t1", "program: prog_type:\t2"]);
}

/// The programs of one tool, seen by another of the same session through `BPF_TASK_FD_QUERY`.
#[test]
fn bpftool_lists_what_is_attached() {
    const SCRIPT: &str = r#"
        bpftrace -e "uprobe:$0:wl_add { } uretprobe:$0:wl_square { } tracepoint:syscalls:sys_enter_getcpu { }" >/dev/null 2>&1 &
        list() { bpftool perf list | grep -e "^pid $!  .*sys_enter_getcpu" -e "^pid $!  .*$0"; }
        for try in $(seq 300); do [ "$(list | wc -l)" = 3 ] && break; sleep 0.1; done
        list | sed -e "s/^pid $!  fd [0-9]*: prog_id [0-9]*//"
        kill -INT $!; wait"#;
    let _turn = Turn::take();
    for tool in ["bpftool", "bpftrace"] {
        need!(find_program(tool));
    }
    let scratch = Scratch::new();
    let program = scratch.build("counts.c");
    let places = ["wl_add", "wl_square"]
        .map(|name| file_offset(&program, name).expect("a symbol of the workload"));
    let of_function = |kind: &str, offset: u64| {
        let file = program.display();
        format!("  {kind}  filename {file}  offset {offset}")
    };
    let mut known = vec![
        of_function("uprobe", places[0]),
        of_function("uretprobe", places[1]),
        "  tracepoint  sys_enter_getcpu".to_owned(),
    ];
    known.sort();
    for engine in need!(engines()) {
        let mut command = match engine {
            Engine::Kernel => with_tracefs("bash"),
            Engine::Beeline => engine.command("bash"),
        };
        command.args(["-c", SCRIPT]).arg(&program);
        let ended = Tool::start(command).wait();
        let mut listed = ended.stdout.clone();
        listed.sort();
        assert_eq!(listed, known, "{engine}: {ended:?}");
    }
}

/// perf-probe(1) would make a uprobe of the kernel's that outlives the session.
#[test]
fn perf_probe_makes_no_kernel_uprobe() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let perf = need!(find_program("perf"));
    let scratch = Scratch::new();
    let program = scratch.build("counts.c");
    let mut command = with_tracefs(Engine::Beeline.command("true").get_program());
    command.args(["run", "--"]).arg(&perf);
    command.args(["probe", "-x"]).arg(&program).arg("wl_add");
    let ended = Tool::start(command).wait();
    assert!(!ended.status.success(), "{ended:?}");
    let told = ended
        .stderr
        .iter()
        .any(|line| line.contains("only a kernel has this"));
    assert!(told, "{ended:?}");
    let mut list = with_tracefs("cat");
    list.arg("/sys/kernel/tracing/uprobe_events");
    let ours = program.display().to_string();
    let listed = Tool::start(list).wait().stdout;
    assert!(
        !listed.iter().any(|line| line.contains(&ours)),
        "{listed:?}"
    );
}

/// Events that count and sample are the kernel's, and get no program: perf works as ever.
#[test]
fn perf_counts_and_samples() {
    let _turn = Turn::take();
    let perf = need!(find_program("perf"));
    let scratch = Scratch::new();
    let data = scratch.path().join("data");
    for engine in need!(engines()) {
        let mut stat = engine.command(&perf);
        stat.args(["stat", "-x,", "-e", "task-clock,page-faults", "true"]);
        let ended = Tool::start(stat).wait();
        for event in ["task-clock", "page-faults"] {
            let line = ended.stderr.iter().find(|line| line.contains(event));
            let count = line.and_then(|line| line.split(',').next()?.parse::<f64>().ok());
            assert!(count > Some(0.0), "{engine}: {event}: {ended:?}");
        }
        let mut record = engine.command(&perf);
        record.args(["record", "-e", "cpu-clock", "-o"]).arg(&data);
        record.args([
            "sh",
            "-c",
            "for n in 1 2 3 4 5 6 7 8 9; do sh -c true; done",
        ]);
        let ended = Tool::start(record).wait();
        assert!(ended.status.success(), "{engine}: {ended:?}");
        let length = std::fs::metadata(&data).map_or(0, |data| data.len());
        assert!(length > 1000, "{engine}: {length} bytes: {ended:?}");
        let _ = std::fs::remove_file(&data);
    }
}

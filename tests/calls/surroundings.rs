//! Code that is loaded or written while it is traced, and instructions that cannot be hooked.

use std::path::Path;
use std::process::Command;

use beeline_e2e::{
    Engine, Scratch, Tool, Turn, Workload, beeline, beeline_wanted, engines, find_program,
    map_counts, need,
};
use serde_json::Value;

use crate::trace::{Traced, every_call, on_family, plain, same_calls, threads};

#[test]
fn bare_calls_of_a_library_that_is_loaded_are_seen() {
    let scratch = Scratch::new();
    let program = scratch.build("calls/loaded.c");
    let library = scratch.build_with("calls/bare_library.c", &["-shared", "-fPIC"]);
    let target = || {
        let mut command = Command::new(&program);
        command.arg(&library).env_clear();
        command
    };
    need!(same_calls(target, &["load", "load"]));
}

/// Data, according to a symbol, stays as it is, however much it looks like a call.
#[test]
fn data_among_the_code_is_left_alone() {
    let scratch = Scratch::new();
    let program = scratch.build("calls/template.c");
    need!(same_calls(
        plain(&program),
        &["look", "copy", "copy", "look"]
    ));
}

/// A process with the same code as one already hooked is hooked alike; where its code differs,
/// everything else is.
#[test]
fn a_process_whose_code_differs_from_that_of_another_is_hooked_but_for_that() {
    need!(beeline_wanted());
    let _turn = Turn::take();
    let bpftrace = need!(find_program("bpftrace"));
    let scratch = Scratch::new();
    let program = scratch.build("calls/changed.c");
    let mut both = [(); 2].map(|()| Workload::start(&program));
    assert_eq!(both[1].tell("change"), "done change");
    let mut command = Command::new(beeline());
    command.arg("run");
    for workload in &both {
        command.args(["--pid", &workload.pid().to_string()]);
    }
    command.arg("--").arg(&bpftrace);
    let script = "tracepoint:syscalls:sys_enter_getppid { @changed = count(); } \
        tracepoint:syscalls:sys_enter_getuid { @same = count(); }";
    let tool = Tool::bpftrace(command, script);
    tool.wait_attached();
    for workload in &mut both {
        assert_eq!(workload.tell("ids"), "done ids");
    }
    tool.settle();
    let ended = tool.interrupt();
    let counts = map_counts(&ended.stdout);
    assert_eq!(
        (counts.get("@changed"), counts.get("@same")),
        (Some(&100), Some(&200)),
        "{ended:?}"
    );
    both.into_iter().for_each(|workload| workload.finish());
}

/// So that nothing gives the addresses of the program's functions.
const NAMELESS: [&str; 5] = [
    "-static",
    "-nostdlib",
    "-fno-stack-protector",
    "-fno-asynchronous-unwind-tables",
    "-s",
];

/// Its calls are found where the preceding instruction says which they are.
#[test]
fn calls_of_a_program_without_any_names_are_seen() {
    let _turn = Turn::take();
    let scratch = Scratch::new();
    let program = scratch.build_with("calls/unnamed.c", &NAMELESS);
    let script = "tracepoint:raw_syscalls:sys_enter /{ours}/ { @[args->id] = count(); }";
    for engine in need!(engines()) {
        let mut traced = need!(Traced::start(engine, plain(&program)(), script));
        for _ in 0..3 {
            assert_eq!(traced.workload.tell("go"), "done good");
        }
        let lines = traced.finish();
        let far = match engine {
            Engine::Kernel => 3,
            Engine::Beeline => 0,
        };
        for seen in [format!("@[110]: {}", 3 * 100 + far), "@[1]: 3".to_owned()] {
            assert!(lines.contains(&seen), "{engine}: {lines:?}");
        }
    }
}

/// The code is hooked when it becomes executable. Calls reached by a jump past the instruction
/// before them are not seen.
#[test]
fn code_that_is_written_at_run_time_is_seen() {
    let _turn = Turn::take();
    let scratch = Scratch::new();
    let program = scratch.build("calls/loaded.c");
    let target = || {
        let mut command = Command::new(&program);
        command.arg("none");
        command
    };
    for engine in need!(engines()) {
        let mut traced = need!(Traced::start(engine, target(), &every_call(engine)));
        let rounds = 3;
        for _ in 0..rounds {
            assert_eq!(traced.workload.tell("write code"), "done write code");
        }
        let threads = threads(&traced.finish(), |number| {
            i64::from(number) != libc::SYS_getppid
        });
        let [thread] = threads.as_slice() else {
            panic!("{engine}: {threads:?}");
        };
        // The C library also makes each of the calls that can be told from the others.
        let past = match engine {
            Engine::Kernel => 3,
            Engine::Beeline => 0,
        };
        let each = 2 * (6 * 3 + 2) + 3 + past;
        assert_eq!(thread.len(), 2 * rounds * each, "{engine}");
        let in_turns = thread
            .chunks(2)
            .all(|pair| pair[0] == "+110" && pair[1].starts_with("-110="));
        assert!(in_turns, "{engine}: {thread:?}");
    }
}

/// Also code that was written before the tool attached.
#[test]
fn code_that_was_written_at_run_time_is_given_back() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let scratch = Scratch::new();
    let mut target = Command::new(scratch.build("calls/loaded.c"));
    target.arg("none");
    let mut workload = Workload::start_command(target);
    for before in [true, false] {
        if before {
            assert_eq!(workload.tell("keep code"), "done keep code");
        }
        let script = every_call(Engine::Beeline);
        let mut traced = need!(Traced::attach(Engine::Beeline, workload, &script));
        for scene in ["is changed", "keep code", "is changed"] {
            assert_eq!(traced.workload.tell(scene), format!("done {scene}"));
        }
        let (same, _) = traced.finish_tool();
        workload = same;
        assert_eq!(workload.tell("is as written"), "done is as written");
    }
    workload.finish();
}

/// The code runs; its calls are not seen, and Beeline says so.
#[test]
fn code_in_writable_memory_runs_and_is_listed() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let scratch = Scratch::new();
    let mut target = Command::new(scratch.build("calls/loaded.c"));
    target.arg("none");
    let script = every_call(Engine::Beeline);
    let mut traced = need!(Traced::start(Engine::Beeline, target, &script));
    for _ in 0..2 {
        assert_eq!(traced.workload.tell("write and run"), "done write and run");
    }
    let ps = Command::new(beeline())
        .arg("ps")
        .output()
        .expect("beeline ps");
    let text = String::from_utf8_lossy(&ps.stdout).into_owned();
    let of_target = text
        .split_once(&format!("{:>8}  ", traced.workload.pid()))
        .map_or("", |(_, rest)| rest);
    let why = "not looked through: code may be written there at any time";
    assert!(of_target.contains(why), "{text}");
    traced.finish();
}

/// For example, the calls of a library that an upgrade has replaced.
#[test]
fn calls_of_files_that_were_removed_are_seen() {
    let _turn = Turn::take();
    let scratch = Scratch::new();
    let program = scratch.build("calls/loaded.c");
    for engine in need!(engines()) {
        let library = scratch.build_with("calls/bare_library.c", &["-shared", "-fPIC"]);
        let mut target = Command::new(&program);
        target.arg(&library);
        let mut workload = Workload::start_command(target);
        assert_eq!(workload.tell("removed"), "done removed");
        let mut traced = need!(Traced::attach(engine, workload, &every_call(engine)));
        assert_eq!(traced.workload.tell("removed"), "done removed");
        let seen = threads(&traced.finish(), |number| {
            i64::from(number) != libc::SYS_getppid
        });
        let known = ["+110", "-110=PID"].repeat(2 * 10);
        assert_eq!(seen, [known], "{engine}");
    }
}

/// Returns the messages of a tool on some calls of a target about instructions that it does not
/// see.
fn told(program: &Path, calls: &[&str]) -> Result<Vec<String>, String> {
    let bpftrace = find_program("bpftrace")?;
    let mut workload = Workload::start_command(plain(program)());
    let tool = on_family(Engine::Beeline, &bpftrace, workload.pid());
    let probes = calls.iter().map(|call| format!("tracepoint:{call} {{ }}"));
    let tool = Tool::bpftrace(tool, &probes.collect::<Vec<_>>().join(" "));
    tool.wait_attached();
    assert_eq!(workload.tell("calls"), "done calls");
    let ended = tool.interrupt();
    assert!(ended.status.success(), "{ended:?}");
    workload.finish();
    let told = ended.stderr.into_iter();
    Ok(told.filter(|line| line.contains("not seen")).collect())
}

#[test]
fn instructions_that_cannot_be_hooked_are_told_once() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let scratch = Scratch::new();
    let program = scratch.build("calls/tight.c");
    let some = ["syscalls:sys_enter_getppid", "syscalls:sys_enter_read"];
    let told = need!(told(&program, &some));
    let [line] = told.as_slice() else {
        panic!("{told:?}");
    };
    assert!(
        line.contains("the calls of 1 `syscall` instruction are not seen"),
        "{line}"
    );
}

/// musl's return from handlers, and the ends of its threads.
#[test]
fn instructions_for_calls_that_nobody_waits_for_are_not_told() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let musl = need!(find_program("musl-gcc"));
    let scratch = Scratch::new();
    let program = scratch.build_by(&musl, "calls/alone.c", &["-static"]);
    let other = need!(told(&program, &["syscalls:sys_enter_getppid"]));
    assert_eq!(other, [""; 0]);
    for calls in [
        "raw_syscalls:sys_enter",
        "syscalls:sys_enter_rt_sigreturn",
        "syscalls:sys_enter_exit",
    ] {
        let told = need!(told(&program, &[calls]));
        assert_eq!(told.len(), 1, "{calls}: {told:?}");
    }
}

/// Returns the output of `beeline ps` on a process's calls that are not hooked: their places and
/// reasons.
fn unhookable_in(pid: u32) -> Vec<(String, String)> {
    let mut ps = Command::new(beeline());
    let ps = ps.args(["ps", "--json"]).output().expect("beeline ps");
    let list: Value = serde_json::from_slice(&ps.stdout).expect("JSON");
    let mut processes = list.as_array().expect("a list").iter();
    let process = processes.find(|process| process["pid"] == pid);
    let unhookable = process.expect("it is listed")["calls"]["unhookable"].clone();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let unhookable = unhookable.as_array().expect("a list").iter();
    unhookable
        .map(|one| (text(&one["place"]), text(&one["why"])))
        .collect()
}

/// A sleeping thread shows by the call that it has made. A thread that slept before the instruction
/// was hooked does not show.
#[test]
fn calls_that_slip_through_are_found_in_their_sleep() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let scratch = Scratch::new();
    let slips = scratch.build("calls/slips.c");
    let unnamed = scratch.build_with("calls/unnamed.c", &NAMELESS);
    let script = "tracepoint:syscalls:sys_enter_read { @reads = count(); }";
    let scenes = [(slips, ["sleep", "slip"]), (unnamed, ["go", "far"])];
    for (program, [before, slip]) in scenes {
        let mut workload = Workload::start(&program);
        workload.tell(before);
        let mut traced = need!(Traced::attach(Engine::Beeline, workload, script));
        assert_eq!(traced.workload.tell(slip), format!("done {slip}"));
        let sleeps = |line: &str| line.contains("it sleeps in system call 0, made by");
        let line = traced.tool.wait_to_be_told(sleeps);
        let unhookable = unhookable_in(traced.workload.pid());
        let found = unhookable
            .iter()
            .filter(|(_, why)| why.contains("a sleeping thread"));
        let [(place, _)] = found.collect::<Vec<_>>()[..] else {
            panic!("{line}: {unhookable:?}");
        };
        let of_file = line.contains(program.to_str().expect("UTF-8"));
        assert!(line.contains(place.as_str()) || !of_file, "{line}: {place}");
        assert_eq!(of_file, slip == "far", "{line}");
        if slip == "far" {
            assert_eq!(traced.workload.tell("on"), "done good");
        }
        traced.finish();
    }
}

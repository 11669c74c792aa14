//! Unwinders pass through functions with return probes as if there were none: exceptions, panics,
//! threads that end, lists of callers. The kernel's probes end the process there, so only Beeline
//! promises this.

use beeline_e2e::{
    Engine, Scratch, Tool, Turn, Workload, beeline_wanted, find_program, map_counts, need,
};
use std::path::Path;
use std::process::Command;

/// A function, with the number of its calls and of its returns.
type Calls<'a> = (&'a str, u64, u64);

/// An untraced program's answers to lines.
fn honest(program: &Path, lines: &[&str]) -> Vec<String> {
    let mut workload = Workload::start(program);
    let answers = lines.iter().map(|line| workload.tell(line)).collect();
    workload.finish();
    answers
}

fn script(program: &Path, calls: &[Calls<'_>]) -> String {
    let place = program.display();
    let probes = calls.iter().map(|(name, ..)| {
        format!(
            "uprobe:{place}:{name} {{ @in_{name} = count(); }} uretprobe:{place}:{name} {{ @out_{name} = count(); }} "
        )
    });
    probes.collect()
}

fn assert_calls(stdout: &[String], calls: &[Calls<'_>], what: &[&str]) {
    let counts = map_counts(stdout);
    let counted = |key: String| counts.get(&key).copied().unwrap_or(0);
    for (name, calls, returns) in calls {
        assert_eq!(
            (
                counted(format!("@in_{name}")),
                counted(format!("@out_{name}"))
            ),
            (*calls, *returns),
            "{what:?}: calls and returns of {name}: {stdout:?}"
        );
    }
}

/// Sends lines to a program whose functions are probed: it answers as it does untraced, and
/// everything is counted.
fn unwinds(program: &Path, lines: &[&str], calls: &[Calls<'_>]) -> Result<(), String> {
    beeline_wanted()?;
    let bpftrace = find_program("bpftrace")?;
    let honest = honest(program, lines);
    let mut workload = Workload::start(program);
    let mut command = Engine::Beeline.command(&bpftrace);
    command.args(["-p", &workload.pid().to_string()]);
    let tool = Tool::bpftrace(command, &script(program, calls));
    tool.wait_attached();
    let answers: Vec<_> = lines.iter().map(|line| workload.tell(line)).collect();
    tool.settle();
    let ended = tool.interrupt();
    assert_eq!(answers, honest, "{lines:?}: {ended:?}");
    assert!(ended.status.success(), "{lines:?}: {ended:?}");
    assert_eq!(ended.missed(), 0, "{lines:?}: {ended:?}");
    assert_calls(&ended.stdout, calls, lines);
    // And without the tool it goes on.
    assert_eq!(workload.tell(lines[0]), honest[0]);
    workload.finish();
    Ok(())
}

/// For so many times 50 calls of `u_catches`, the odd ones of which throw, through 21 calls of
/// `u_recurses` each.
fn thrown(times: u64) -> [Calls<'static>; 5] {
    [
        ("u_catches", 50 * times, 50 * times),
        ("u_again", 50 * times, 25 * times),
        ("u_recurses", 1050 * times, 525 * times),
        ("u_jumps", 50 * times, 25 * times),
        ("u_throws", 50 * times, 25 * times),
    ]
}

#[test]
fn exceptions_pass_recursion_tail_calls_and_are_thrown_again() {
    let _turn = Turn::take();
    let scratch = Scratch::new();
    let program = scratch.build("unwinds.cpp");
    need!(unwinds(&program, &["throw", "throw"], &thrown(2)));
}

#[test]
fn an_exception_passes_one_return_probe() {
    let _turn = Turn::take();
    let scratch = Scratch::new();
    let program = scratch.build("unwinds.cpp");
    need!(unwinds(&program, &["throw"], &[("u_throws", 50, 25)]));
    need!(unwinds(&program, &["throw"], &[("u_recurses", 1050, 525)]));
}

#[test]
fn exceptions_pass_in_eight_threads_at_once() {
    let _turn = Turn::take();
    let scratch = Scratch::new();
    let program = scratch.build("unwinds.cpp");
    need!(unwinds(
        &program,
        &["threads", "throw", "threads"],
        &thrown(17)
    ));
}

#[test]
fn exceptions_pass_in_a_static_program() {
    let _turn = Turn::take();
    let scratch = Scratch::new();
    let program = scratch.build_with("unwinds.cpp", &["-static"]);
    need!(unwinds(&program, &["throw", "threads"], &thrown(9)));
}

#[test]
fn threads_end_and_are_cancelled_inside_probed_functions() {
    let _turn = Turn::take();
    let scratch = Scratch::new();
    let program = scratch.build("unwinds.cpp");
    let calls = [("u_around", 4, 0), ("u_ends", 4, 0)];
    need!(unwinds(
        &program,
        &["exit", "cancel", "exit", "cancel"],
        &calls
    ));
}

#[test]
fn callers_are_listed_as_they_are_and_return() {
    let _turn = Turn::take();
    let scratch = Scratch::new();
    let program = scratch.build("unwinds.cpp");
    need!(unwinds(&program, &["list", "list"], &[("u_lists", 42, 42)]));
    // From an alternate stack.
    need!(unwinds(&program, &["handler"], &[("u_raises", 1, 1)]));
}

#[test]
fn a_forked_child_throws_through_the_call_that_it_was_forked_in() {
    let _turn = Turn::take();
    let scratch = Scratch::new();
    let program = scratch.build("unwinds.cpp");
    // The child's calls do not count as its parent's.
    need!(unwinds(&program, &["fork"], &[("u_forks", 1, 1)]));
}

#[test]
fn an_unwinder_that_is_loaded_as_it_is_needed_unwinds_at_once() {
    let _turn = Turn::take();
    let scratch = Scratch::new();
    let program = scratch.build_with("late.c", &["-fexceptions"]);
    let plugin = scratch.build_with("thrower.cpp", &["-shared", "-fPIC"]);
    let plugin = plugin.display().to_string();
    need!(unwinds(&program, &[&plugin], &[("l_calls", 50, 25)]));
    let calls = [("l_around", 1, 0), ("l_ends", 1, 0)];
    need!(unwinds(&program, &["exit"], &calls));
}

/// The stack of a frame cannot be determined then: returns may be missed, and are counted as
/// missed.
#[test]
fn coroutines_that_move_between_threads_throw() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let bpftrace = need!(find_program("bpftrace"));
    let scratch = Scratch::new();
    let program = scratch.build("coroutines.cpp");
    let mut workload = Workload::start(&program);
    let mut command = Engine::Beeline.command(&bpftrace);
    command.args(["-p", &workload.pid().to_string()]);
    let calls = [("u_mid", 0, 0), ("u_throws", 0, 0), ("u_catch", 0, 0)];
    let tool = Tool::bpftrace(command, &script(&program, &calls));
    tool.wait_attached();
    assert_eq!(workload.go(), "done -6400");
    tool.interrupt();
    assert_eq!(workload.go(), "done -6400");
    workload.finish();
}

#[test]
fn panics_are_caught_behind_probed_functions() {
    let _turn = Turn::take();
    let rustc = need!(find_program("rustc"));
    let scratch = Scratch::new();
    let program = scratch.build_rust(&rustc, "panics.rs");
    let calls = [
        ("r_catches", 50, 50),
        ("r_recurses", 550, 275),
        ("r_panics", 50, 25),
    ];
    need!(unwinds(&program, &["go"], &calls));
}

/// There is no C library yet when its functions are hooked.
#[test]
fn exceptions_pass_in_what_the_tool_has_started() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let bpftrace = need!(find_program("bpftrace"));
    let scratch = Scratch::new();
    let program = scratch.build("unwinds.cpp");
    let wrapper = scratch.path().join("run.sh");
    let lines = "#!/bin/sh\nprintf 'throw\\nthrow\\n' | $1\n";
    std::fs::write(&wrapper, lines).unwrap();
    let run = format!("/bin/sh {} {}", wrapper.display(), program.display());
    let mut command: Command = Engine::Beeline.command(&bpftrace);
    command.args(["-c", &run, "-e", &script(&program, &thrown(2))]);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let stdout: Vec<String> = text.lines().map(str::to_owned).collect();
    assert!(output.status.success(), "{output:?}");
    assert_calls(&stdout, &thrown(2), &["started"]);
    let done = stdout.iter().filter(|line| *line == "done -25 1050 0");
    assert_eq!(done.count(), 2, "{output:?}");
}

//! Stack traces of code without frame pointers: the callers are those that the C library's
//! `backtrace()` finds. The kernel's own traces go by frame pointers, so only Beeline promises this.

use beeline_e2e::{
    Engine, Scratch, TICK, Tool, Turn, Workload, beeline_wanted, find_program, kernel_available,
    need,
};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The most addresses of a stack.
const MOST: usize = 127;

/// Prints the stack, and a line behind it.
const PRINT: &str = r#"print(ustack(perf, 127)); @n++; printf("shown %d\n", @n);"#;

const OPTIMIZED: [&str; 3] = ["-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls"];

/// The ways by which the workload calls the probed function.
const WAYS: [&str; 9] = [
    "plain",
    "deep",
    "callback",
    "handler",
    "alternate",
    "thread",
    "catch",
    "cleanup",
    "made",
];

fn build(scratch: &Scratch, further: &[&str]) -> PathBuf {
    let options = [&OPTIMIZED, further].concat();
    scratch.build_with("stacks.cpp", &options)
}

fn start(workload: &Workload, options: &[&str], script: &str) -> Result<Tool, String> {
    beeline_wanted()?;
    let bpftrace = find_program("bpftrace")?;
    let mut command = Command::new(beeline_e2e::beeline());
    command.arg("run").args(options).arg("--").arg(bpftrace);
    beeline_e2e::compile_anew(&mut command);
    command.args(["-p", &workload.pid().to_string()]);
    let tool = Tool::bpftrace(command, script);
    tool.wait_attached();
    Ok(tool)
}

/// Waits until so many stacks have been printed: their symbols take time.
fn wait_for(tool: &Tool, count: usize) {
    let last = format!("shown {count}");
    tool.wait_for_line(|line| line == last);
}

/// Returns the stacks that bpftrace has printed, each by its addresses.
fn stacks(stdout: &[String]) -> Vec<Vec<String>> {
    let mut stacks = vec![Vec::new()];
    let is_other = |line: &str| line == TICK || line.starts_with("Attaching");
    let is_end =
        |line: &str| line.is_empty() || line.starts_with("shown ") || line.starts_with('@');
    for line in stdout.iter().filter(|line| !is_other(line)) {
        let address = line.trim_start().split(' ').next().unwrap_or_default();
        match (is_end(line), stacks.last_mut()) {
            (false, Some(stack)) => stack.push(address.to_owned()),
            _ => stacks.push(Vec::new()),
        }
    }
    stacks.retain(|stack| !stack.is_empty());
    stacks
}

/// Fails unless a stack has these callers behind its first addresses.
fn assert_callers(stack: &[String], own: usize, answer: &str, what: &str) {
    let expected: Vec<_> = answer.split_whitespace().take(MOST - own).collect();
    let found = stack.get(own..).unwrap_or_default();
    let is_equal = |(found, expected): (&String, &&str)| *expected == "*" || found == expected;
    assert!(
        found.len() == expected.len() && found.iter().zip(&expected).all(is_equal),
        "{what}: {found:?} in place of {expected:?}"
    );
}

/// Has the workload call the probed function by each way; the tool has to show its callers each
/// time, behind `own` addresses.
fn shows_callers(program: &Path, ways: &[&str], script: &str, own: usize) -> Result<(), String> {
    let mut workload = Workload::start(program);
    let tool = start(&workload, &[], script)?;
    let answers: Vec<_> = ways.iter().map(|way| workload.tell(way)).collect();
    wait_for(&tool, ways.len());
    let ended = tool.interrupt();
    assert!(ended.status.success(), "{ended:?}");
    let found = stacks(&ended.stdout);
    assert_eq!(found.len(), ways.len(), "{found:?}");
    for ((way, answer), stack) in ways.iter().zip(&answers).zip(&found) {
        assert_callers(stack, own, answer, way);
    }
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", workload.pid()));
    let maps = maps.map_err(|error| error.to_string())?;
    assert!(!maps.contains("memfd:beeline"), "{maps}");
    workload.finish();
    Ok(())
}

#[test]
fn callers_are_those_of_the_c_library() {
    let _turn = Turn::take();
    let scratch = Scratch::new();
    let program = build(&scratch, &[]);
    let script = format!("uprobe:{}:s_leaf {{ {PRINT} }}", program.display());
    need!(shows_callers(&program, &WAYS, &script, 1));
}

#[test]
fn callers_are_found_in_a_static_program() {
    let _turn = Turn::take();
    let scratch = Scratch::new();
    let program = build(&scratch, &["-static"]);
    let script = format!("uprobe:{}:s_leaf {{ {PRINT} }}", program.display());
    need!(shows_callers(&program, &WAYS, &script, 1));
}

/// A watched return has a trampoline's address on the stack.
#[test]
fn callers_are_found_behind_return_probes() {
    let _turn = Turn::take();
    let scratch = Scratch::new();
    let program = build(&scratch, &[]);
    let place = program.display();
    let quiet = [
        "s_recurses",
        "s_wide",
        "s_variable",
        "s_sorts",
        "s_handler",
        "s_cleans",
    ];
    let quiet = quiet.map(|name| format!("uretprobe:{place}:{name} {{ @ = count(); }} "));
    let script = format!("{} uretprobe:{place}:s_leaf {{ {PRINT} }}", quiet.concat());
    // What made code returns to is not watched.
    need!(shows_callers(&program, &WAYS[..8], &script, 0));
}

#[test]
fn libraries_may_come_and_go() {
    let _turn = Turn::take();
    let scratch = Scratch::new();
    let program = build(&scratch, &[]);
    let options = [&OPTIMIZED[..], &["-shared", "-fPIC"]].concat();
    let library = scratch.build_with("stacks_library.c", &options);
    let library = library.to_str().expect("a path in UTF-8");
    let script = format!("uprobe:{}:s_leaf {{ {PRINT} }}", program.display());
    let ways = [library, "plain", library, "callback", library];
    need!(shows_callers(&program, &ways, &script, 1));
}

/// The stacks of one process by frame pointers, as the kernel and as Beeline find them.
fn by_frame_pointers(
    program: &Path,
    function: &str,
    (way, count): (&str, usize),
) -> Result<(), String> {
    beeline_wanted()?;
    kernel_available()?;
    let bpftrace = find_program("bpftrace")?;
    let mut workload = Workload::start(program);
    let place = program.display();
    let script = format!("uprobe:{place}:{function} {{ {PRINT} }}");
    let mut command = Engine::Kernel.command(&bpftrace);
    command.args(["-p", &workload.pid().to_string()]);
    let kernel = Tool::bpftrace(command, &script);
    kernel.wait_attached();
    workload.tell(way);
    wait_for(&kernel, count);
    let kernel = stacks(&kernel.interrupt().stdout);
    let beeline = start(&workload, &["--stacks", "frame-pointers"], &script)?;
    workload.tell(way);
    wait_for(&beeline, count);
    let beeline = stacks(&beeline.interrupt().stdout);
    assert_eq!(kernel.len(), count, "{way}");
    assert_eq!(
        beeline, kernel,
        "Beeline (left) and the kernel (right): {way}"
    );
    workload.finish();
    Ok(())
}

#[test]
fn whole_stacks_by_frame_pointers_are_the_kernels() {
    let _turn = Turn::take();
    let scratch = Scratch::new();
    need!(by_frame_pointers(
        // At an endbr64 the kernel takes the caller's caller for the caller.
        &scratch.build_with("counts.c", &["-fcf-protection=none"]),
        "wl_inner",
        ("12", 12)
    ));
}

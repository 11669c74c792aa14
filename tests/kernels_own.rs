//! Maps and programs that only a kernel has: the tool works on them by itself, and gets the host
//! kernel's results, logs, lists and counts.

use beeline_e2e::{Engine, Scratch, Tool, Turn, beeline, engines, has_host_kernel, need};
use std::process::Command;

/// Said by Beeline as it counts for a tool.
const COUNTS: &str = "the runs of programs are counted in the kernel and in test runs";

fn beeline_with(options: &[&str], tool: &Command) -> Command {
    let mut command = Command::new(beeline());
    command.arg("run").args(options).arg("--");
    command.arg(tool.get_program());
    command
}

#[test]
fn the_kernels_own_objects_are_as_without_beeline() {
    let _turn = Turn::take();
    need!(has_host_kernel());
    let scratch = Scratch::new();
    let tool = scratch.build("kernels_own.c");
    let expected = Tool::start(Command::new(&tool)).wait();
    assert_eq!(
        expected.stdout.last().map(String::as_str),
        Some("own calls: seen")
    );
    if !need!(engines()).contains(&Engine::Beeline) {
        return;
    }
    let options = ["--unsafe", "--where", "functions"];
    let ended = Tool::start(beeline_with(&options, &Command::new(&tool))).wait();
    assert_eq!(ended.stdout, expected.stdout, "{ended:?}");
    assert!(
        ended.stderr.iter().all(|line| line.contains(COUNTS)),
        "{ended:?}"
    );
}

/// Without `--unsafe` no program that could decide runs in the kernel, not even in a test run.
#[test]
fn test_runs_in_the_kernel_need_unsafe() {
    let _turn = Turn::take();
    need!(has_host_kernel());
    let scratch = Scratch::new();
    let tool = scratch.build("kernels_own.c");
    if !need!(engines()).contains(&Engine::Beeline) {
        return;
    }
    let options = ["--where", "functions"];
    let ended = Tool::start(beeline_with(&options, &Command::new(&tool))).wait();
    let told = "without `beeline run --unsafe`";
    assert!(
        ended.stderr.iter().any(|line| line.contains(told)),
        "{ended:?}"
    );
    let is_refused = |line: &String| line.starts_with("devices: -1,");
    assert!(ended.stdout.iter().any(is_refused), "{ended:?}");
    for line in ["redirected: -1", "test runs: -1, -1, counted 0"] {
        assert!(ended.stdout.iter().any(|said| said == line), "{ended:?}");
    }
}

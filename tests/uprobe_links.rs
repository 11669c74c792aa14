//! Links of many uprobes (`BPF_TRACE_UPROBE_MULTI`) do and say what they do on the kernel.

use beeline_e2e::{
    Ended, Engine, PATIENCE, Scratch, Tool, Turn, Workload, altered_text, engines, file_offset,
    need,
};
use std::path::Path;
use std::process::Command;

/// The tool's command on a workload's functions, the first with cookie 1.
fn command(engine: Engine, tool: &Path, arguments: [&str; 2], program: &Path, pid: u32) -> Command {
    let mut command = engine.command(tool);
    command.args(arguments).arg(program).arg(pid.to_string());
    for (cookie, function) in (1..).zip(FUNCTIONS) {
        let offset = file_offset(program, function).expect("a function of the workload");
        command.arg(format!("{offset}:0:{cookie}"));
    }
    command
}

/// The workload's functions that are probed.
const FUNCTIONS: [&str; 3] = ["wl_add", "wl_square", "wl_eight"];

/// Runs the tool on one round of the workload, and returns what it prints.
fn counted(engine: Engine, arguments: [&str; 2]) -> Vec<String> {
    let scratch = Scratch::new();
    let tool = scratch.build("uprobe_links.c");
    // The tool prints the path.
    let program = scratch.build("counts.c");
    let mut workload = Workload::start(&program);
    let pid = workload.pid();
    let mut tool = Tool::start(command(engine, &tool, arguments, &program, pid));
    tool.wait_for_line(|line| line == "attached");
    workload.go();
    tool.send("done");
    let Ended {
        status,
        stdout,
        stderr,
    } = tool.wait();
    assert!(status.success(), "{engine}: {stdout:?} {stderr:?}");
    if engine == Engine::Beeline {
        assert_eq!(altered_text(workload.pid()), [""; 0]);
    }
    workload.finish();
    let path = program.display().to_string();
    let length = format!("{} bytes", path.len() + 1);
    let told = stdout.iter().map(|line| line.replace(&path, "PATH"));
    told.map(|line| line.replace(&length, "LEN bytes"))
        .collect()
}

/// Asserts that all engines count and tell the same, with the cookies 1 to 3.
fn same(arguments: [&str; 2]) {
    let mut of_engines = Vec::new();
    for engine in need!(engines()) {
        let told = counted(engine, arguments);
        for cookie in 1..=FUNCTIONS.len() {
            let start = format!("cookie {cookie}: ");
            let is_told = told.iter().any(|line| line.starts_with(&start));
            assert!(is_told, "{engine}: no \"{start}\" in {told:#?}");
        }
        of_engines.push(told);
    }
    assert!(
        of_engines.windows(2).all(|pair| pair[0] == pair[1]),
        "{of_engines:#?}"
    );
}

#[test]
fn entries_are_counted_by_cookie() {
    let _turn = Turn::take();
    same(["multi", "entry"]);
}

#[test]
fn returns_are_counted_by_cookie() {
    let _turn = Turn::take();
    same(["multi", "return"]);
}

#[test]
fn links_that_cannot_be_get_the_kernels_errors() {
    let _turn = Turn::take();
    let scratch = Scratch::new();
    let (tool, program) = (scratch.build("uprobe_links.c"), scratch.build("counts.c"));
    let offset = file_offset(&program, "wl_add").expect("a function");
    let mut of_engines = Vec::new();
    for engine in need!(engines()) {
        let mut command = engine.command(&tool);
        command.arg("errors").arg(&program).arg(offset.to_string());
        let ended = Tool::start(command).wait();
        assert!(ended.status.success(), "{engine}: {ended:?}");
        for known in ["fine: 0", "a directory: -9", "too many: -7"] {
            assert!(
                ended.stdout.iter().any(|line| line == known),
                "{engine}: {ended:#?}"
            );
        }
        of_engines.push(ended.stdout);
    }
    for pair in of_engines.windows(2) {
        let both = pair[0].iter().zip(&pair[1]);
        let differ: Vec<_> = both.filter(|(one, other)| one != other).collect();
        assert!(
            differ.is_empty() && pair[0].len() == pair[1].len(),
            "{differ:#?}"
        );
    }
}

#[test]
fn ten_thousand_functions_are_one_link() {
    let _turn = Turn::take();
    let scratch = Scratch::new();
    let tool = scratch.build("uprobe_links.c");
    for engine in need!(engines()) {
        let program = scratch.build("ten_thousand.c");
        let mut workload = Workload::start(&program);
        let honest = workload.go();
        let offset = file_offset(&program, "many_0").expect("a function");
        let mut command = engine.command(&tool);
        command
            .arg("every")
            .arg(&program)
            .arg(workload.pid().to_string());
        command.args([&offset.to_string(), "32", "10000"]);
        let mut tool = Tool::start(command);
        tool.wait_for_line(|line| line == "attached");
        assert_eq!(workload.go(), honest, "{engine}");
        tool.send("done");
        let ended = tool.wait_at_most(4 * PATIENCE);
        let count = ended.stdout.last().expect("a count");
        assert!(
            count.starts_with("cookie 0: 10000 at"),
            "{engine}: {ended:?}"
        );
        assert_eq!(workload.go(), honest, "{engine}");
        if engine == Engine::Beeline {
            assert_eq!(altered_text(workload.pid()), [""; 0]);
        }
        workload.finish();
    }
}

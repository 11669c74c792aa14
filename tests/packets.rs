//! Test runs of programs for packets give the same results under Beeline as on the kernel.
//!
//! `workloads/packets.c` makes the runs; this test compares its transcripts. `BEELINE_SEED` chooses
//! other random programs.

use std::path::Path;
use std::process::{Command, Stdio};

use beeline_e2e::{Engine, Scratch, Turn, beeline, beeline_wanted, engines, need, seed};

/// The random programs of each type.
const ROUNDS: u64 = 150;
/// The same for a compiler that takes its time.
const FEW_ROUNDS: u64 = 4;

/// Lines that come out of each run.
const KNOWN: [&str; 3] = [
    "xdp sees 20 of 0800: 0 ret 1 size 20 out ef338453 14 0 857e7770",
    "xdp of 13: -22 ret 2880154539 size 8192 out 3e3d1dc5",
    "sched_cls sees 54 of 86dd: 0 ret 1 size 54 out ec6fde22 36 0 857e7770",
];

/// Returns the lines that a command prints.
fn lines(command: &mut Command) -> Vec<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .expect("a command that starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{command:?}: {}: {said}",
        output.status
    );
    assert_eq!(said, "", "{command:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().map(str::to_owned).collect()
}

/// Compares the transcripts of all engines.
fn agree(program: &Path, arguments: &[String], prepare: fn(&mut Command)) -> Result<(), String> {
    let mut first: Option<Vec<String>> = None;
    for engine in engines()? {
        let mut command = engine.command(program);
        command.args(arguments);
        if engine == Engine::Beeline {
            prepare(&mut command);
        }
        let lines = lines(&mut command);
        for known in KNOWN {
            let is_there = lines.iter().any(|line| line == known);
            assert!(is_there, "{engine} {arguments:?}: no {known:?}");
        }
        let Some(expected) = &first else {
            first = Some(lines);
            continue;
        };
        for (expected, line) in expected.iter().zip(&lines) {
            assert_eq!(line, expected, "{engine} {arguments:?}");
        }
        assert_eq!(lines.len(), expected.len(), "{engine} {arguments:?}");
    }
    Ok(())
}

#[test]
fn packets_are_as_on_the_kernel() {
    let _turn = Turn::take();
    let scratch = Scratch::new();
    let program = scratch.build("packets.c");
    let arguments = [seed().to_string(), ROUNDS.to_string(), "all".to_owned()];
    need!(agree(&program, &arguments, |_| {}));
}

#[test]
fn packets_are_the_same_for_the_optimizing_compiler() {
    let _turn = Turn::take();
    let scratch = Scratch::new();
    let program = scratch.build("packets.c");
    let arguments = [seed().to_string(), FEW_ROUNDS.to_string(), "few".to_owned()];
    need!(agree(&program, &arguments, |command| {
        command.env("BEELINE_ENGINE", "llvm");
    }));
}

#[test]
fn what_is_not_served_is_told() {
    need!(beeline_wanted());
    let _turn = Turn::take();
    let scratch = Scratch::new();
    let program = scratch.build("packets.c");
    // Where the tool may ask the kernel, that makes the runs.
    let mut command = Command::new(beeline());
    let output = command
        .args(["run", "--where", "user", "--"])
        .arg(&program)
        .args(["1", "0", "unserved"])
        .output()
        .expect("a command that starts");
    let said = String::from_utf8_lossy(&output.stderr);
    for what in [
        "helper bpf_fib_lookup is not served",
        "BPF_F_TEST_XDP_LIVE_FRAMES",
        "test runs of programs of type BPF_PROG_TYPE_SK_LOOKUP",
    ] {
        let told = said.lines().filter(|line| line.contains(what)).count();
        assert_eq!(told, 1, "{what}: {said}");
    }
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(
        text.lines().filter(|line| line.contains(" -524 ")).count(),
        3,
        "{text}"
    );
}

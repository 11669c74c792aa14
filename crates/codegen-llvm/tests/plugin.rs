//! The plugin for the conformance suite, called as the suite does it.

#[path = "../../codegen/tests/common/mod.rs"]
mod common;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use common::vectors::{self, Vector};

fn plugin() -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_beeline-llvm"))
        .with_file_name("examples")
        .join("bpf_conformance_plugin");
    assert!(
        path.is_file(),
        "cargo test --test builds no examples: use cargo build --examples"
    );
    path
}

fn run(arguments: &[&str], program: &str) -> Output {
    let mut child = Command::new(plugin())
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the plugin");
    let mut input = child.stdin.take().expect("a pipe");
    // It may end before it has read all, if the arguments are bad.
    let _ = writeln!(input, "{program}");
    drop(input);
    child.wait_with_output().expect("its output")
}

/// Writes bytes as the suite does.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}  ")).collect()
}

fn result(vector: &Vector, options: &str) -> Result<u64, String> {
    let program: Vec<u8> = vector.insns.iter().flat_map(|insn| insn.encode()).collect();
    let output = run(&[&hex(&vector.memory), options], &hex(&program));
    let text = String::from_utf8_lossy(&output.stdout);
    match u64::from_str_radix(text.trim(), 16) {
        Ok(result) if output.status.success() => Ok(result),
        _ => Err(format!("{output:?}")),
    }
}

fn every_vector_with(options: &str) {
    let vectors = vectors::all();
    for vector in vectors.iter().filter(|vector| vector.name != "callx") {
        assert_eq!(
            result(vector, options),
            Ok(vector.expected),
            "{}",
            vector.name
        );
    }
}

#[test]
fn every_vector_with_the_light_compiler() {
    every_vector_with("");
}

#[test]
fn every_vector_with_the_interpreter() {
    every_vector_with("--engine interpreter");
}

#[test]
fn every_vector_with_llvm() {
    every_vector_with("--engine llvm");
}

#[test]
fn bad_arguments_are_reported() {
    let exit = "9500000000000000";
    for (arguments, program, why) in [
        (&["", "--engine=fast"][..], exit, "fast: no such engine"),
        (&["--engine"], exit, "--engine needs a name"),
        (&["", "--quick"], exit, "--quick: no such option"),
        (&["0x12"], exit, "no hex digit"),
        (&["123"], exit, "an odd number"),
        (&[], "95", "no whole number"),
        (
            &[],
            "8d00000000000000 9500000000000000",
            "unknown opcode 8d",
        ),
    ] {
        let output = run(arguments, program);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(output.stdout.is_empty() && error.contains(why), "{error}");
    }
}

//! Programs of object files: run for their result, listed, compiled ahead of time.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use beeline_e2e::{Ended, Scratch, Tool, beeline};

const SOURCE: &str = r#"
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "GPL";

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16);
	__type(key, int);
	__type(value, long);
} counts SEC(".maps");

const volatile int factor = 6;
long runs = 0;

static __noinline long product(long a)
{
	return a * factor;
}

SEC("syscall")
long first(long *context)
{
	int key = 3;
	long begin = 1, *count = bpf_map_lookup_elem(&counts, &key);
	if (count)
		*count += 1;
	else
		bpf_map_update_elem(&counts, &key, &begin, 0);
	runs++;
	context[1] = product(context[0]);
	return product(7) + (count ? *count : 1) + runs;
}

SEC("raw_tp/second")
long second(void *context)
{
	return 5;
}

SEC("raw_tp/wild")
long wild(long *context)
{
	return context[100000];
}
"#;

struct Sample {
    scratch: Scratch,
    object: PathBuf,
}

impl Sample {
    fn new() -> Self {
        let scratch = Scratch::new();
        let (source, object) = (scratch.path().join("it.c"), scratch.path().join("it.bpf.o"));
        fs::write(&source, SOURCE).unwrap();
        let done = Command::new("clang")
            .args(["-target", "bpf", "-mcpu=v3", "-g", "-O2", "-c", "-o"])
            .args([&object, &source])
            .arg("-I/usr/include/x86_64-linux-gnu")
            .status()
            .unwrap();
        assert!(done.success());
        Self { scratch, object }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    fn prog(&self, verb: &str, file: &Path, words: &[&str]) -> Ended {
        let mut command = Command::new(beeline());
        command.args(["prog", verb]).arg(file).args(words);
        Tool::start(command).wait()
    }

    fn compile(&self, words: &[&str]) -> (PathBuf, Ended) {
        let output = self.path("it.aot");
        let mut command = Command::new(beeline());
        command
            .arg("compile")
            .arg(&self.object)
            .arg("-o")
            .arg(&output);
        command.args(words);
        (output, Tool::start(command).wait())
    }
}

fn json(ended: &Ended) -> serde_json::Value {
    assert!(ended.status.success(), "{ended:?}");
    serde_json::from_str(&ended.stdout.join("\n")).expect("JSON")
}

#[test]
fn every_engine_gives_the_same_result_and_context() {
    let sample = Sample::new();
    let (data, out) = (sample.path("data"), sample.path("out"));
    fs::write(&data, [7u64, 0, 9].map(u64::to_le_bytes).concat()).unwrap();
    for engine in ["interpreter", "baseline"] {
        let words = [
            "--section",
            "syscall",
            "--repeat",
            "10",
            "--json",
            "--engine",
            engine,
        ];
        let paths = [
            "--data",
            data.to_str().unwrap(),
            "--data-out",
            out.to_str().unwrap(),
        ];
        let result = json(&sample.prog("run", &sample.object, &[&words[..], &paths].concat()));
        // 42, and the map's value and the variable after ten runs.
        assert_eq!(result["retval"], 62, "{engine}");
        assert_eq!(result["engine"], engine);
        assert_eq!(result["repeat"], 10);
        let wanted = [7u64, 42, 9].map(u64::to_le_bytes).concat();
        assert_eq!(fs::read(&out).unwrap(), wanted, "{engine}");
    }
    let ended = sample.prog("run", &sample.object, &["--program", "second"]);
    let line = ended.stdout.first().expect("a line");
    assert!(
        line.starts_with("Return value: 5, duration (average): "),
        "{ended:?}"
    );
}

#[test]
fn the_interpreter_ends_a_program_that_reads_too_far() {
    let sample = Sample::new();
    let words = ["--section", "raw_tp/wild", "--engine", "interpreter"];
    let ended = sample.prog("run", &sample.object, &words);
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert!(
        ended
            .stderr
            .iter()
            .any(|line| line.contains("the program was ended at insn ")),
        "{ended:?}"
    );
}

#[test]
fn missing_programs_are_reported_with_the_present_ones() {
    let sample = Sample::new();
    let ended = sample.prog("run", &sample.object, &["--section", "raw_tp/third"]);
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    let told = ended.stderr.join("\n");
    for what in [
        "no section raw_tp/third",
        "syscall (first)",
        "raw_tp/second (second)",
    ] {
        assert!(told.contains(what), "no {what} in {told}");
    }
    let ended = sample.prog("run", &sample.object, &[]);
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert!(
        ended
            .stderr
            .join("\n")
            .contains("3 programs could be meant"),
        "{ended:?}"
    );
    let ended = sample.prog("run", &sample.path("it.c"), &[]);
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert!(ended.stderr.join("\n").contains("no ELF file"), "{ended:?}");
    let ended = sample.prog("run", &sample.object, &["--repeat", "0"]);
    assert_eq!(ended.status.code(), Some(2), "{ended:?}");
}

#[test]
fn listings_show_source_bytecode_and_machine_code() {
    let sample = Sample::new();
    let words = ["--section", "syscall"];
    let plain = sample.prog("disasm", &sample.object, &words);
    assert!(plain.status.success(), "{plain:?}");
    let has = |ended: &Ended, parts: &[&str]| {
        let holds = |line: &&String| parts.iter().all(|part| line.contains(part));
        assert!(
            ended.stdout.iter().any(|line| holds(&line)),
            "no {parts:?} in {ended:?}"
        );
    };
    has(&plain, &["syscall (first):"]);
    has(&plain, &["; runs++;", "it.c:31:"]);
    has(&plain, &["(18) r1 = map[counts]"]);
    has(&plain, &["call bpf_map_lookup_elem#1"]);
    assert!(plain.stdout.contains(&"product:".to_owned()), "{plain:?}");
    assert!(
        !plain.stdout.iter().any(|line| line.contains("second")),
        "{plain:?}"
    );
    let jited = sample.prog(
        "disasm",
        &sample.object,
        &[&words[..], &["--jited"]].concat(),
    );
    assert!(jited.status.success(), "{jited:?}");
    has(&jited, &["(95) exit", "ret"]);
    has(&jited, &["(85) call pc", "call 0x"]);
}

#[test]
fn a_compiled_file_runs_where_it_fits() {
    let sample = Sample::new();
    let (file, ended) = sample.compile(&["--section", "syscall"]);
    assert!(ended.status.success(), "{ended:?}");
    let words = ["--section", "syscall", "--repeat", "10", "--json"];
    let result = json(&sample.prog("run", &file, &words));
    assert_eq!(
        (&result["retval"], &result["engine"]),
        (&62.into(), &"baseline".into())
    );

    let mut damaged = fs::read(&file).unwrap();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    let broken = sample.path("broken.aot");
    fs::write(&broken, damaged).unwrap();
    let ended = sample.prog("run", &broken, &words);
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    let told = ended.stderr.join("\n");
    assert!(
        told.contains("damaged") && told.contains("compile it again"),
        "{told}"
    );
}

#[test]
fn a_bad_program_is_not_compiled() {
    let (_, ended) = Sample::new().compile(&[]);
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    let told = ended.stderr.join("\n");
    assert!(
        told.contains("program wild is refused") && told.contains("ctx"),
        "{told}"
    );
}

#[test]
fn code_for_another_machine_is_made_shown_and_refused() {
    let sample = Sample::new();
    let (file, ended) = sample.compile(&["--machine", "aarch64", "--section", "raw_tp/second"]);
    assert!(ended.status.success(), "{ended:?}");
    let ended = sample.prog("run", &file, &["--section", "raw_tp/second"]);
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    let told = ended.stderr.join("\n");
    assert!(
        told.contains("it holds code for aarch64") && told.contains("compile it with --machine"),
        "{told}"
    );
    let words = ["--program", "second", "--jited", "--machine", "aarch64"];
    let ended = sample.prog("disasm", &sample.object, &words);
    assert!(ended.status.success(), "{ended:?}");
    // ret
    let has = |what: &str| ended.stdout.iter().any(|line| line.contains(what));
    assert!(has(".word 0xd65f03c0"), "{ended:?}");
}

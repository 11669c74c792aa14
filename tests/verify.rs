//! `beeline verify`: its answers on good and bad programs, from its own verifier and the kernel's.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use beeline_e2e::{Ended, Engine, Scratch, Tool, beeline};
use serde_json::Value;

const BEGINNING: &str = r#"
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16);
	__type(key, int);
	__type(value, long);
} counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, int);
	__type(value, char[64]);
} texts SEC(".maps");

const volatile int factor = 6;
"#;

const LICENSE: &str = "char LICENSE[] SEC(\"license\") = \"GPL\";\n";

const GOOD: &str = r#"
SEC("raw_tp/good")
long good(long *context)
{
	int key = 3;
	long *count = bpf_map_lookup_elem(&counts, &key);
	if (count)
		*count += context[1] * factor;
	return 0;
}
"#;

/// A program with one fault, the message on it, and the advice.
struct Fault {
    name: &'static str,
    source: &'static str,
    reason: &'static str,
    hint: &'static str,
}

const FAULTS: &[Fault] = &[
    Fault {
        name: "unchecked",
        source: r#"SEC("raw_tp") long unchecked(long *context)
        {
            int key = 3;
            long *count = bpf_map_lookup_elem(&counts, &key);
            *count += 1;
            return 0;
        }"#,
        reason: "R0 invalid mem access 'map_value_or_null'",
        hint: "if (!value) return",
    },
    Fault {
        name: "unbounded",
        source: r#"SEC("raw_tp") long unbounded(unsigned long *context)
        {
            int key = 0;
            char *text = bpf_map_lookup_elem(&texts, &key);
            return text ? text[context[0]] : 0;
        }"#,
        reason: "math between map_value pointer and register with unbounded min value",
        hint: "has no bound",
    },
    Fault {
        name: "unbounded_above",
        source: r#"SEC("raw_tp") long unbounded_above(unsigned long *context)
        {
            int key = 0;
            char *text = bpf_map_lookup_elem(&texts, &key);
            return text ? text[(unsigned)context[0]] : 0;
        }"#,
        reason: "unbounded memory access",
        hint: "test it right before its use",
    },
    Fault {
        name: "too_high",
        source: r#"SEC("raw_tp") long too_high(unsigned long *context)
        {
            int key = 0;
            char *text = bpf_map_lookup_elem(&texts, &key);
            return text ? text[context[0] & 127] : 0;
        }"#,
        reason: "R1 max value is outside of the allowed memory range",
        hint: "past the end",
    },
    Fault {
        name: "maybe_negative",
        source: r#"SEC("raw_tp") long maybe_negative(unsigned long *context)
        {
            int key = 0;
            char *text = bpf_map_lookup_elem(&texts, &key);
            short at = context[0];
            return text && at < 64 ? text[at] : 0;
        }"#,
        reason: "R1 min value is negative",
        hint: "make it unsigned",
    },
    Fault {
        name: "far",
        source: r#"SEC("raw_tp") long far(unsigned long *context)
        {
            int key = 0;
            char *text = bpf_map_lookup_elem(&texts, &key);
            int at = context[0];
            return text && at < 64 ? text[at] : 0;
        }"#,
        reason: "value -2147483648 makes map_value pointer be out of bounds",
        hint: "make it unsigned",
    },
    Fault {
        name: "past_the_end",
        source: r#"SEC("raw_tp") long past_the_end(unsigned long *context)
        {
            int key = 0;
            char *text = bpf_map_lookup_elem(&texts, &key);
            return text ? text[64] : 0;
        }"#,
        reason: "R1 min value is outside of the allowed memory range",
        hint: "past the end",
    },
    Fault {
        name: "wild",
        source: r#"SEC("raw_tp") long wild(long **context)
        {
            return *context[0];
        }"#,
        reason: "invalid mem access 'scalar'",
        hint: "bpf_probe_read_kernel()",
    },
    Fault {
        name: "context",
        source: r#"SEC("raw_tp") long context(long *context)
        {
            return context[1000];
        }"#,
        reason: "invalid bpf_context access off=8000 size=8",
        hint: "the context has no field there",
    },
    Fault {
        name: "unknown",
        source: r#"SEC("raw_tp") long unknown(void *context)
        {
            return ((long (*)(void))9999)();
        }"#,
        reason: "invalid func unknown#9999",
        hint: "no such helper",
    },
    Fault {
        name: "foreign",
        source: r#"SEC("raw_tp") int foreign(void *context)
        {
            return bpf_redirect(1, 0);
        }"#,
        reason: "program of this type cannot use helper bpf_redirect#23",
        hint: "must do without this helper",
    },
    Fault {
        name: "endless",
        source: r#"SEC("raw_tp") long endless(void *context)
        {
            asm volatile("r6 = 0; more: if r6 != 1 goto more;" ::: "r6");
            return 0;
        }"#,
        reason: "infinite loop detected at insn 1",
        hint: "bpf_loop()",
    },
    Fault {
        name: "too_complex",
        source: r#"SEC("raw_tp") long too_complex(unsigned long *context)
        {
            asm volatile("r6 = 0; again: r6 += 1; if r6 < 600000 goto again;" ::: "r6");
            return 0;
        }"#,
        reason: "BPF program is too large. Processed 1000001 insn",
        hint: "bpf_loop()",
    },
    Fault {
        name: "unset",
        source: r#"SEC("raw_tp") long unset(unsigned long *context)
        {
            asm volatile("r0 = r7" ::: "r0");
            return 0;
        }"#,
        reason: "R7 !read_ok",
        hint: "nothing sets this register",
    },
    Fault {
        name: "stack",
        source: r#"SEC("raw_tp") long stack(unsigned long *context)
        {
            asm volatile("r6 = 0; *(u64 *)(r10 - 520) = r6" ::: "r6");
            return 0;
        }"#,
        reason: "invalid write to stack R10 off=-520 size=8",
        hint: "512 bytes of stack",
    },
    Fault {
        name: "no_result",
        source: r#"SEC("raw_tp") __attribute__((naked)) int no_result(void *context)
        {
            asm volatile("exit");
        }"#,
        reason: "R0 !read_ok",
        hint: "return a number",
    },
    Fault {
        name: "leak",
        source: r#"struct { __uint(type, BPF_MAP_TYPE_RINGBUF); __uint(max_entries, 4096); } ring SEC(".maps");
        SEC("raw_tp") long leak(unsigned long *context)
        {
            return bpf_ringbuf_reserve(&ring, 8, 0) != 0;
        }"#,
        reason: "reference",
        hint: "given back on every path",
    },
    Fault {
        name: "constant",
        source: r#"SEC("raw_tp") long constant(unsigned long *context)
        {
            *(volatile int *)&factor = 7;
            return 0;
        }"#,
        reason: "write into map forbidden, value_size=4 off=0 size=4",
        hint: "read-only for programs",
    },
];

/// A directory with object files.
struct Sample(Scratch);

impl Sample {
    fn object(&self, name: &str, source: &str) -> PathBuf {
        self.compiled("clang", name, source)
    }

    fn compiled(&self, compiler: &str, name: &str, source: &str) -> PathBuf {
        let (from, to) = (self.path(&format!("{name}.c")), self.path(name));
        fs::write(&from, source).unwrap();
        let done = Command::new(compiler)
            .args(["-target", "bpf", "-mcpu=v3", "-g", "-O2", "-c", "-o"])
            .args([&to, &from])
            .arg("-I/usr/include/x86_64-linux-gnu")
            .status()
            .unwrap();
        assert!(done.success());
        to
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn good(&self) -> PathBuf {
        self.object("good.o", &[BEGINNING, LICENSE, GOOD].concat())
    }
}

fn verify(file: &Path, words: &[&str]) -> Ended {
    let mut command = Command::new(beeline());
    command.arg("verify").arg(file).args(words);
    Tool::start(command).wait()
}

/// Returns the verifiers that can be asked here.
fn verifiers() -> Vec<&'static str> {
    let mut verifiers = vec!["beeline"];
    match Engine::Kernel.available() {
        Ok(()) => verifiers.push("kernel"),
        Err(why) => eprintln!("skipped for the kernel: {why}"),
    }
    verifiers
}

fn objects(ended: &Ended) -> Vec<Value> {
    let lines = ended.stdout.iter();
    lines.map(|it| serde_json::from_str(it).unwrap()).collect()
}

#[test]
fn faults_are_named_and_advice_is_given() {
    let sample = Sample(Scratch::new());
    let mut wrong = String::new();
    for fault in FAULTS {
        let name = fault.name;
        let object = sample.object(name, &[BEGINNING, LICENSE, fault.source].concat());
        for verifier in verifiers() {
            let ended = verify(&object, &["--json", "--verifier", verifier]);
            let [said] = objects(&ended).try_into().unwrap();
            let has = |field: &str, part: &str| {
                let text = said[field].as_str().unwrap_or_default();
                text.contains(part)
            };
            if ended.status.code() != Some(1)
                || said["verdict"] != "reject"
                || said["program"] != name
                || !has("reason", fault.reason)
                || !has("hint", fault.hint)
            {
                writeln!(wrong, "{verifier}, {name}: {said}").unwrap();
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn types_that_the_kernel_lacks_are_named() {
    let sample = Sample(Scratch::new());
    let source = r#"
        struct task_struct { long no_such; } __attribute__((preserve_access_index));
        SEC("raw_tp") long reads(struct task_struct *task) { return task->no_such; }"#;
    let object = sample.object("lacks.o", &[BEGINNING, LICENSE, source].concat());
    for verifier in verifiers() {
        let ended = verify(&object, &["--json", "--verifier", verifier]);
        let [said] = objects(&ended).try_into().unwrap();
        let hint = said["hint"].as_str().unwrap_or_default();
        assert!(
            hint.contains("the kernel has no struct task_struct.no_such"),
            "{verifier}: {said}"
        );
    }
}

#[test]
fn maps_that_only_the_tool_describes_are_named() {
    let sample = Sample(Scratch::new());
    let source = r#"
        struct {
            __uint(type, BPF_MAP_TYPE_HASH_OF_MAPS);
            __uint(max_entries, 4);
            __type(key, int);
            __type(value, int);
        } outer SEC(".maps");
        SEC("raw_tp") long looks(void *context)
        {
            int key = 1;
            void *inner = bpf_map_lookup_elem(&outer, &key);
            return inner ? !bpf_map_lookup_elem(inner, &key) : 0;
        }"#;
    let object = sample.object("open.o", &[BEGINNING, LICENSE, source].concat());
    for verifier in verifiers() {
        let ended = verify(&object, &["--json", "--verifier", verifier]);
        let [said] = objects(&ended).try_into().unwrap();
        let hint = said["hint"].as_str().unwrap_or_default();
        assert!(hint.contains("what maps outer holds"), "{verifier}: {said}");
    }
}

#[test]
fn helpers_for_the_gpl_need_it() {
    let sample = Sample(Scratch::new());
    let source = r#"SEC("raw_tp") long prints(void *context) { bpf_printk("%d", 7); return 0; }"#;
    let object = sample.object("proprietary", &[BEGINNING, source].concat());
    for verifier in verifiers() {
        let ended = verify(&object, &["--verifier", verifier]);
        assert_eq!(ended.status.code(), Some(1), "{verifier}: {ended:?}");
        let said = ended.stdout.join("\n");
        assert!(
            said.contains("cannot call GPL-restricted function"),
            "{said}"
        );
        assert!(
            said.contains("hint: ") && said.contains("SEC(\"license\")"),
            "{said}"
        );
    }
}

#[test]
fn features_of_an_accepted_program_are_listed() {
    let sample = Sample(Scratch::new());
    let object = sample.good();
    let ended = verify(&object, &["--json"]);
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    let [said] = objects(&ended).try_into().unwrap();
    assert_eq!(said["verdict"], "accept");
    assert_eq!(said["section"], "raw_tp/good");
    assert_eq!(said["helpers"], serde_json::json!(["map_lookup_elem"]));
    assert_eq!(said["maps"], serde_json::json!(["counts", ".rodata"]));
    assert_eq!(said["context"][0]["offset"], 8);
    assert!(said["stack_depth"].as_u64() >= Some(4), "{said}");
    assert!(
        said["us"].is_u64() && said["insns_processed"].as_u64() > Some(10),
        "{said}"
    );
    let ended = verify(&object, &[]);
    let told = ended.stdout.join("\n");
    for what in [
        "accept",
        "helpers: map_lookup_elem",
        "context: 8..16 read",
        "1 of 1",
    ] {
        assert!(told.contains(what), "no {what} in {told}");
    }
}

#[test]
fn the_verdict_is_the_kernels() {
    let sample = Sample(Scratch::new());
    if !verifiers().contains(&"kernel") {
        return;
    }
    let ended = verify(&sample.good(), &["--json", "--verifier", "both"]);
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    let [said] = objects(&ended).try_into().unwrap();
    assert_eq!(said["differ"], false);
    assert_eq!(said["kernel"]["verdict"], "accept");
    assert_eq!(said["kernel"]["insns_processed"], said["insns_processed"]);
}

#[test]
fn the_verdict_and_the_way_to_it_are_the_kernels() {
    let sample = Sample(Scratch::new());
    if !verifiers().contains(&"kernel") {
        return;
    }
    let file = sample.object("programs.o", include_str!("verdicts/programs.c"));
    let ended = verify(&file, &["--json", "--verifier", "both"]);
    let all = objects(&ended);
    assert!(all.len() > 10, "{ended:?}");
    for said in all {
        let (kernel, program) = (&said["kernel"], &said["program"]);
        assert_eq!(said["verdict"], kernel["verdict"], "{program}: {said}");
        if said["verdict"] == "accept" {
            assert_eq!(
                said["insns_processed"], kernel["insns_processed"],
                "{program}: {said}"
            );
        }
    }
}

/// Files with rare features: arenas, maps without types, structures of functions, externs, maps
/// that are iterated over.
const RARE: &[(&str, &str)] = &[
    (
        "arena",
        include_str!("../crates/object/tests/programs/newer/arena.c"),
    ),
    (
        "unlike",
        include_str!("../crates/object/tests/programs/newer/unlike.c"),
    ),
    (
        "maps",
        include_str!("../crates/object/tests/programs/old/maps.c"),
    ),
    (
        "absent",
        include_str!("../crates/object/tests/programs/old/absent.c"),
    ),
    (
        "sizes",
        include_str!("../crates/object/tests/programs/sizes.c"),
    ),
    (
        "operations",
        include_str!("../crates/object/tests/programs/operations.c"),
    ),
    (
        "externs",
        include_str!("../crates/object/tests/programs/externs.c"),
    ),
    ("iterated", include_str!("verdicts/iterated.c")),
    ("callbacks", include_str!("verdicts/callbacks.c")),
];

#[test]
fn rare_features_are_built_as_the_kernel_wants_them() {
    let sample = Sample(Scratch::new());
    if !verifiers().contains(&"kernel") {
        return;
    }
    for (name, source) in RARE {
        // Older kernels know no arenas.
        let object = sample.compiled("clang-19", name, source);
        let ended = verify(&object, &["--json", "--verifier", "both"]);
        let all = objects(&ended);
        assert!(!all.is_empty(), "{name}: {ended:?}");
        for said in all {
            let (kernel, program) = (&said["kernel"], &said["program"]);
            let reason = kernel["reason"].as_str().unwrap_or_default();
            assert!(!reason.contains("cannot be made"), "{name}: {said}");
            // Some kernels allow no fentry programs, and some do not tell where their variables
            // are.
            if kernel["verdict"] == "unknown" || reason.contains("failed to find the address") {
                assert_eq!(said["verdict"], "accept", "{name}, {program}: {said}");
                continue;
            }
            assert_eq!(said["differ"], false, "{name}, {program}: {said}");
            assert_eq!(
                said["insns_processed"], kernel["insns_processed"],
                "{name}, {program}: {said}"
            );
        }
    }
}

#[test]
fn a_log_is_printed_where_it_is_asked_for() {
    let sample = Sample(Scratch::new());
    let fault = &FAULTS[0];
    let object = sample.object(fault.name, &[BEGINNING, LICENSE, fault.source].concat());
    for verifier in verifiers() {
        let ended = verify(&object, &["-v", "--verifier", verifier]);
        let lines: Vec<&String> = ended.stdout.iter().collect();
        let has = |part: &str| {
            let found = lines.iter().any(|line| line.contains(part));
            assert!(found, "{verifier}: no {part} in {lines:?}");
        };
        has("| R0 invalid mem access 'map_value_or_null'");
        has("*count += 1;");
        has("at insn 7: (79) r1 = *(u64 *)(r0 +0)");
        has("| processed 7 insns");
    }
}

#[test]
fn unjudgeable_files_have_an_exit_code_of_their_own() {
    let sample = Sample(Scratch::new());
    let object = sample.good();
    let source = sample.path("good.o.c");
    let types = sample.path("no.btf");
    fs::write(&types, "nothing").unwrap();
    let says = |ended: Ended, what: &str| {
        assert_eq!(ended.status.code(), Some(2), "{ended:?}");
        let told = ended.stderr.join("\n");
        assert!(told.contains(what), "no {what} in {told}");
    };
    says(verify(&source, &[]), "no ELF file");
    says(verify(&sample.path("none.o"), &[]), "none.o: No such file");
    says(verify(Path::new("/tmp"), &[]), "/tmp: Is a directory");
    says(verify(Path::new("/bin/true"), &[]), "not for eBPF");
    let bytes = fs::read(&object).unwrap();
    for (len, what) in [
        (10, "cut.o"),
        (1000, "cut short"),
        (bytes.len() - 1, "cut short"),
    ] {
        let cut = sample.path("cut.o");
        fs::write(&cut, &bytes[..len]).unwrap();
        says(verify(&cut, &[]), what);
    }
    let none = sample.object("no_programs.o", "int number = 1;");
    says(
        verify(&none, &[]),
        "no_programs.o: the file has no programs",
    );
    // A header of the other byte order.
    let mut turned = bytes;
    turned[5] = 2;
    turned[18..20].reverse();
    let big = sample.path("big.o");
    fs::write(&big, turned).unwrap();
    says(verify(&big, &[]), "big.o: this is a big-endian object file");
    says(
        verify(&object, &["--program", "bad"]),
        "good.o: the file has no program bad",
    );
    says(
        verify(&object, &["--btf", "/nowhere"]),
        "/nowhere: No such file",
    );
    says(
        verify(&object, &["--btf", types.to_str().unwrap()]),
        "no.btf: this is no BTF",
    );
    says(verify(&object, &["--verifier", "nobody"]), "nobody");
}

#[test]
fn a_target_that_the_section_does_not_have_can_be_given() {
    let sample = Sample(Scratch::new());
    let source = "SEC(\"fentry/dummy\") int enters(void *context) { return 0; }";
    let object = sample.object("fentry.o", &[BEGINNING, LICENSE, source].concat());
    let ended = verify(&object, &[]);
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    let told = ended.stdout.join("\n");
    let hint = "hint: the kernel's BTF has no dummy; say what it attaches to by --attach";
    assert!(told.contains(hint), "{told}");
    let ended = verify(&object, &["--attach", "vfs_read"]);
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
}

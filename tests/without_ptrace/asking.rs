//! The ways by which a program asks to be traced, watched by strace: the machine need not have Yama.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use beeline_e2e::{Scratch, find_program, need, skipped};
use object::elf::{DT_NEEDED, Dyn64};
use object::read::elf::{Dyn, ElfFile64};
use object::{Endianness, Object, ObjectSymbol};

use crate::start_library;

/// The request, as strace writes it.
const REQUEST: &str = "prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY";

/// Processes of one command: all of them, and those that have asked.
struct Watched {
    all: BTreeSet<u32>,
    asking: BTreeSet<u32>,
}

/// Runs a command under strace, to a successful end.
fn watch(command: &[&OsStr], preload: Option<&Path>) -> Result<Watched, String> {
    let scratch = Scratch::new();
    let log = scratch.path().join("log");
    let mut strace = Command::new(find_program("strace")?);
    strace
        .args(["-f", "-e", "trace=prctl", "-e", "signal=none", "-o"])
        .arg(&log);
    if let Some(library) = preload {
        strace
            .arg("-E")
            .arg(format!("LD_PRELOAD={}", library.display()));
    }
    let output = strace.args(command).output().expect("strace runs");
    assert!(output.status.success(), "{command:?}: {output:?}");
    let log = fs::read_to_string(log).expect("it is written");
    let of = |text: &str| {
        let lines = log.lines().filter(|line| line.contains(text));
        lines
            .map(|line| line.split(' ').next()?.parse().ok())
            .collect()
    };
    let read = |pids: Option<_>| pids.unwrap_or_else(|| panic!("strace's log: {log}"));
    Ok(Watched {
        all: read(of("+++ exited")),
        asking: read(of(REQUEST)),
    })
}

fn words<'a>(words: &[&'a str]) -> Vec<&'a OsStr> {
    words.iter().copied().map(OsStr::new).collect()
}

#[test]
fn a_preloaded_program_asks_and_so_do_its_children() {
    let library = need!(start_library("libbeeline_start.so"));
    // A copy of the shell, and another program.
    let command = words(&["sh", "-c", "(exit 0); /bin/true; exit 0"]);
    let watched = need!(watch(&command, Some(&library)));
    assert_eq!(watched.all.len(), 3, "{:?}", watched.all);
    assert_eq!(watched.asking, watched.all);
    let watched = need!(watch(&command, None));
    assert!(watched.asking.is_empty(), "{:?}", watched.asking);
}

/// musl has no `__register_atfork`.
#[test]
fn a_program_with_another_c_library_asks() {
    let musl = need!(find_program("musl-gcc"));
    let library = need!(start_library("libbeeline_start.so"));
    let scratch = Scratch::new();
    let source = write(&scratch, "ends.c", "int main(void) { return 0; }\n");
    let program = scratch.build_by(&musl, &source, &[]);
    let watched = need!(watch(&[program.as_os_str()], Some(&library)));
    assert_eq!((watched.all.len(), &watched.asking), (1, &watched.all));
}

/// A library that is loaded into every program must not need what a program may lack.
#[test]
fn the_library_is_small_and_needs_nothing() {
    let library = need!(start_library("libbeeline_start.so"));
    let bytes = fs::read(library).expect("it is there");
    assert!(bytes.len() < 16_000, "{} bytes", bytes.len());
    let file = object::File::parse(&*bytes).expect("an ELF file");
    let imports = file.dynamic_symbols().filter(ObjectSymbol::is_undefined);
    for symbol in imports.filter(|symbol| symbol.name() != Ok("")) {
        assert!(symbol.is_weak(), "it needs {:?}", symbol.name());
    }
    let file = ElfFile64::<Endianness>::parse(&*bytes).expect("an ELF file");
    let table = file.elf_section_table().dynamic(file.endian(), &*bytes);
    let (entries, _) = table.expect("a table").expect("it is a library");
    let needs = |entry: &&Dyn64<Endianness>| entry.tag(file.endian()) == DT_NEEDED;
    assert!(entries.iter().find(needs).is_none(), "it needs a library");
}

/// A program, with the library and without.
fn ran(launcher: &[&OsStr], program: &Path, library: Option<&Path>) -> Output {
    let mut words = launcher.iter().map(|word| word.to_os_string());
    let mut command = Command::new(words.next().expect("a command"));
    command.args(words).arg("env");
    command.args(library.map(|library| format!("LD_PRELOAD={}", library.display())));
    command.arg(program).arg("now").output().expect("it runs")
}

/// The request fails there; without Yama it fails everywhere.
#[test]
fn a_program_that_may_not_ask_goes_on() {
    let library = need!(start_library("libbeeline_start.so"));
    let scratch = Scratch::new();
    let (counts, filtered) = (scratch.build("counts.c"), scratch.build("filtered.c"));
    let launcher = [&[filtered.as_os_str()], &words(&["1", "prctl", "--"])[..]].concat();
    let honest = ran(&launcher, &counts, None);
    assert!(honest.stdout.starts_with(b"done"), "{honest:?}");
    assert_eq!(ran(&launcher, &counts, Some(&library)), honest);
}

/// Returns the only example in a language that the document shows.
fn example(language: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/without-ptrace.md");
    let document = fs::read_to_string(path).expect("it is there");
    let mut blocks = document.split("```").skip(1).step_by(2);
    let found = blocks.find_map(|block| block.strip_prefix(&format!("{language}\n")));
    found
        .unwrap_or_else(|| panic!("no example in {language}"))
        .to_owned()
}

fn write(scratch: &Scratch, name: &str, text: &str) -> String {
    let source = scratch.path().join(name);
    fs::write(&source, text).expect("room for a file");
    source.display().to_string()
}

fn assert_asks(command: &[&OsStr]) -> Result<(), String> {
    let watched = watch(command, None)?;
    assert_eq!(watched.asking.len(), 1, "{command:?}");
    Ok(())
}

#[test]
fn the_line_for_c_asks() {
    let scratch = Scratch::new();
    let example = example("c");
    let (include, line) = example.split_once('\n').expect("two lines");
    let text = format!("{include}\nint main(void)\n{{\n{line}return 0;\n}}\n");
    let program = scratch.build_with(&write(&scratch, "asks.c", &text), &["-Wall", "-Werror"]);
    need!(assert_asks(&[program.as_os_str()]));
}

#[test]
fn the_line_for_python_asks() {
    // Not a script that looks for a version, as one on the path may be.
    let python = "/usr/bin/python3";
    if !Path::new(python).is_file() {
        return skipped("there is no /usr/bin/python3");
    }
    need!(assert_asks(&words(&[python, "-c", &example("python")])));
}

#[test]
fn the_line_for_go_asks() {
    let go = need!(find_program("go"));
    let scratch = Scratch::new();
    let line = example("go");
    let text = format!("package main\n\nimport \"syscall\"\n\nfunc main() {{\n{line}}}\n");
    let program = scratch.build_go(&go, &write(&scratch, "asks.go", &text));
    need!(assert_asks(&[program.as_os_str()]));
}

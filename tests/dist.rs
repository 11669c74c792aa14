//! The files that users get beside the program: manual pages, completions, examples for containers, and the
//! program itself as one static file.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use beeline_e2e::{
    Scratch, Tool, Turn, Workload, beeline, file_offset, find_program, need, skipped,
};
use object::{Object, ObjectSection};
use serde_json::Value;

/// A command and the options that its help lists.
struct Explained {
    /// The words behind `beeline`, such as `prog` and `run`.
    words: Vec<String>,
    options: BTreeSet<String>,
}

/// Returns every command that the help names, `beeline` itself first.
fn commands() -> Vec<Explained> {
    let (mut found, mut waiting) = (Vec::new(), vec![Vec::new()]);
    while let Some(words) = waiting.pop() {
        let help = help(&words);
        for name in section(&help, "Commands:").filter_map(|line| line.split_whitespace().next()) {
            if name != "help" {
                waiting.push([words.as_slice(), &[name.to_owned()]].concat());
            }
        }
        let options = section(&help, "Options:").flat_map(options_of);
        let options = options.map(str::to_owned).collect();
        found.push(Explained { words, options });
    }
    found
}

fn help(words: &[String]) -> String {
    let mut command = Command::new(beeline());
    let output = command.args(words).arg("--help").output();
    let output = output.expect("beeline runs");
    assert!(output.status.success(), "{words:?}: {output:?}");
    String::from_utf8(output.stdout).expect("help is text")
}

/// Returns the entries of a section of the help: the lines with the least indentation.
fn section<'a>(help: &'a str, heading: &'a str) -> impl Iterator<Item = &'a str> {
    let lines = help
        .lines()
        .skip_while(move |line| *line != heading)
        .skip(1);
    let lines = lines.take_while(|line| line.is_empty() || line.starts_with(' '));
    lines.filter(|line| line.starts_with("  ") && line.len() - line.trim_start().len() <= 6)
}

/// Returns the options that a line of the help begins with: `-o, --output <FILE>`.
fn options_of(line: &str) -> impl Iterator<Item = &str> {
    let words = line.split_whitespace();
    let words = words.take_while(|word| word.starts_with('-'));
    words.map(|word| word.trim_end_matches([',', '.']))
}

/// Writes the manual pages and the completions into the directory.
fn write_manual(to: &Path) -> Result<(), String> {
    let program = beeline().with_file_name("examples").join("manual");
    if !program.is_file() {
        return Err(format!("no {}: make build", program.display()));
    }
    let status = Command::new(program).arg(to).status();
    assert!(status.expect("it runs").success());
    Ok(())
}

/// Returns a manual page as a reader sees it, without the requests for fonts.
fn page(directory: &Path, words: &[String]) -> String {
    let name = [["beeline".to_owned()].as_slice(), words]
        .concat()
        .join("-");
    let path = directory.join("man").join(format!("{name}.1"));
    let text = fs::read_to_string(&path);
    let text = text.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let plain = ["\\fB", "\\fI", "\\fR"].iter();
    let text = plain.fold(text, |text, font| text.replace(font, ""));
    text.replace("\\-", "-")
}

#[test]
fn manual_pages_name_every_command_and_every_option() {
    let scratch = Scratch::new();
    need!(write_manual(scratch.path()));
    let commands = commands();
    assert!(commands.len() > 10, "{} found only", commands.len());
    for command in &commands {
        let page = page(scratch.path(), &command.words);
        for heading in ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS"] {
            let line = format!(".SH \"{heading}\"");
            let plain = format!(".SH {heading}");
            let is_there = page.lines().any(|one| one == plain || one == line);
            assert!(is_there, "{:?}: no {heading}\n{page}", command.words);
        }
        for option in &command.options {
            let is_named = |line: &str| options_of(line).any(|one| one == option);
            assert!(
                page.lines().any(is_named),
                "{:?}: no {option}\n{page}",
                command.words
            );
        }
    }
    let pages = fs::read_dir(scratch.path().join("man")).expect("it is there");
    assert_eq!(pages.count(), commands.len(), "pages of hidden commands");
}

#[test]
fn completions_know_every_command_and_every_option() {
    let scratch = Scratch::new();
    need!(write_manual(scratch.path()));
    let read = |name: &str| {
        let path = scratch.path().join("completions").join(name);
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    let files = [read("beeline"), read("_beeline")];
    let fish = read("beeline.fish");
    for command in commands() {
        for word in command.words.iter().chain(&command.options) {
            for file in &files {
                assert!(
                    file.contains(word),
                    "{:?}: no {word}\n{file}",
                    command.words
                );
            }
            let in_fish = match (word.strip_prefix("--"), word.strip_prefix('-')) {
                (Some(long), _) => format!("-l {long}"),
                (None, Some(short)) => format!("-s {short}"),
                (None, None) => word.clone(),
            };
            assert!(
                fish.contains(&in_fish),
                "{:?}: no {in_fish}\n{fish}",
                command.words
            );
        }
    }
}

#[test]
fn bash_completes_commands_and_options() {
    let scratch = Scratch::new();
    need!(write_manual(scratch.path()));
    let script = r#"source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
        _beeline beeline "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}" && printf '%s\n' "${COMPREPLY[@]}""#;
    let complete = |words: &[&str]| {
        let mut bash = Command::new("bash");
        bash.args(["-c", script])
            .arg(scratch.path().join("completions/beeline"));
        let output = bash.args(words).output().expect("bash runs");
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).expect("text");
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(complete(&["beeline", "det"]), ["detach"]);
    assert_eq!(complete(&["beeline", "prog", "dis"]), ["disasm"]);
    assert_eq!(
        complete(&["beeline", "run", "--no-iso"]),
        ["--no-isolation"]
    );
    assert_eq!(
        complete(&["beeline", "run", "--engine", "bas"]),
        ["baseline"]
    );
}

fn packaging() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging")
}

/// Returns the examples in JSON and YAML, parsed.
///
/// # Errors
/// There is nothing to read YAML with.
fn examples() -> Result<Vec<(PathBuf, Value)>, String> {
    const TO_JSON: &str =
        "import json, sys, yaml; print(json.dumps(list(yaml.safe_load_all(sys.stdin))))";
    let python = find_program("python3")?;
    let has_yaml = Command::new(&python).args(["-c", "import yaml"]).output();
    if !has_yaml.is_ok_and(|output| output.status.success()) {
        return Err("no python3-yaml to read YAML with".to_owned());
    }
    let mut examples = Vec::new();
    for directory in ["kubernetes", "fargate", "github-action"] {
        let files = fs::read_dir(packaging().join(directory)).expect("it is there");
        for path in files.map(|file| file.expect("it is read").path()) {
            // JSON is YAML.
            let mut python = Command::new(&python);
            let input = fs::File::open(&path).expect("it is there");
            let output = python.args(["-c", TO_JSON]).stdin(input).output();
            let output = output.expect("python runs");
            assert!(output.status.success(), "{}: {output:?}", path.display());
            let value = serde_json::from_slice(&output.stdout).expect("it is JSON");
            examples.push((path, value));
        }
    }
    Ok(examples)
}

/// Returns the lists of words in a document, such as commands of containers.
fn lists(value: &Value) -> Vec<Vec<&str>> {
    match value {
        Value::Array(values) => {
            let words: Option<Vec<_>> = values.iter().map(Value::as_str).collect();
            words.map_or_else(
                || values.iter().flat_map(lists).collect(),
                |words| vec![words],
            )
        }
        Value::Object(fields) => fields.values().flat_map(lists).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn examples_for_containers_start_commands_that_there_are() {
    let commands = commands();
    let mut started = 0;
    for (path, example) in need!(examples()) {
        for words in lists(&example) {
            let ["beeline", command, rest @ ..] = words.as_slice() else {
                continue;
            };
            started += 1;
            let known = commands.iter().find(|known| known.words == [*command]);
            let known = known.unwrap_or_else(|| panic!("{}: {words:?}", path.display()));
            let options = rest.iter().take_while(|word| **word != "--");
            for option in options.filter(|word| word.starts_with('-')) {
                let name = option.split('=').next().unwrap_or(option);
                assert!(known.options.contains(name), "{}: {name}", path.display());
            }
        }
    }
    assert!(started >= 2, "{started} found only");
}

/// Beeline needs this capability in a container beside its target.
#[test]
fn examples_for_containers_let_beeline_trace() {
    for (path, example) in need!(examples()) {
        if path.ends_with("action.yml") {
            continue;
        }
        let lists = lists(&example);
        let added = lists.iter().any(|words| words.contains(&"SYS_PTRACE"));
        assert!(added, "{}", path.display());
    }
}

/// The action's last step, with the inputs as GitHub hands them over.
#[test]
fn the_action_runs_its_tool_under_beeline() {
    let examples = need!(examples());
    let action = examples
        .iter()
        .find(|(path, _)| path.ends_with("action.yml"));
    let (_, action) = action.expect("there is one");
    let steps = action[0]["runs"]["steps"].as_array().expect("a list");
    let step = steps.last().and_then(|step| step["run"].as_str());
    let script = format!("sudo() {{ \"$@\"; }}\n{}", step.expect("a script"));
    let _turn = Turn::take();
    let scratch = Scratch::new();
    let counts = scratch.build("counts.c");
    let tool = scratch.build("attach.c");
    let offset = file_offset(&counts, "wl_square").expect("a symbol of the workload");
    let mut workload = Workload::start(&counts);
    let honest = workload.go();
    let (pid, tool, counts) = (workload.pid(), tool.display(), counts.display());
    let path = std::env::var("PATH").unwrap_or_default();
    let beside = beeline().with_file_name("").display().to_string();
    let mut bash = Command::new("bash");
    bash.args(["-euo", "pipefail", "-c", &script])
        .env("PATH", format!("{beside}:{path}"))
        .env("OPTIONS", "--engine baseline")
        .env("TOOL", format!("'{tool}' {pid} '{counts}' 1 P:{offset:#x}"));
    let tool = Tool::start(bash);
    tool.wait_for_line(|line| line == "attached");
    let shown = Command::new(beeline()).arg("ps").output();
    let shown = String::from_utf8_lossy(&shown.expect("beeline runs").stdout).into_owned();
    let is_pid = |line: &str| line.split_whitespace().next() == Some(&pid.to_string());
    assert!(shown.lines().any(is_pid), "Beeline is not there: {shown}");
    assert_eq!(workload.go(), honest);
    assert_eq!(tool.wait().stdout, ["attached", "count 100"]);
    workload.finish();
}

/// Makes an image of the guest's program, which `make build` has linked statically. Returns its
/// path.
///
/// # Errors
/// Something for that is missing.
fn image(scratch: &Scratch, name: &str) -> Result<PathBuf, String> {
    let program = beeline().with_file_name("beeline-guest");
    if !program.is_file() {
        return Err(format!("no {}: make build", program.display()));
    }
    let output = scratch.path().join(name);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/oci-image.py");
    let mut python = Command::new(find_program("python3")?);
    python.arg(script).arg("1.2.3").arg(program).arg(&output);
    let status = python.env("SOURCE_DATE_EPOCH", "1700000000").status();
    assert!(status.expect("python runs").success());
    Ok(output)
}

#[test]
fn equal_programs_make_equal_images() {
    let scratch = Scratch::new();
    let first = fs::read(need!(image(&scratch, "first"))).expect("it is there");
    let second = fs::read(need!(image(&scratch, "second"))).expect("it is there");
    assert!(first == second);
}

/// Podman with storage of its own. crun does not run beside version 2 of cgroups in a part of a
/// version 1 tree, so podman does not get to see that.
fn podman(scratch: &Scratch, arguments: &[&str]) -> Output {
    const SCRIPT: &str = r#"umount /sys/fs/cgroup/unified 2>/dev/null
        exec podman --root "$0/storage" --runroot "$0/run" --storage-driver vfs "$@""#;
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", SCRIPT]);
    let output = command.arg(scratch.path()).args(arguments).output();
    output.expect("unshare is there")
}

#[test]
fn podman_runs_the_image() {
    need!(find_program("podman"));
    let scratch = Scratch::new();
    let image = need!(image(&scratch, "image.tar")).display().to_string();
    let loaded = podman(&scratch, &["load", "--input", &image]);
    assert!(loaded.status.success(), "{loaded:?}");
    let run = ["run", "--rm", "--network", "none", "--cgroups", "disabled"];
    // What an ordinary process may set, on a machine that lets root do no more.
    let limits = [
        "--ulimit",
        "nofile=1024:1024",
        "--ulimit",
        "nproc=1024:1024",
    ];
    let program = ["localhost/beeline:1.2.3", "beeline", "--version"];
    let ran = podman(&scratch, &[&run[..], &limits, &program].concat());
    let words = String::from_utf8_lossy(&ran.stderr);
    let lacks = ["cgroup", "setrlimit", "namespace", "mount"];
    if !ran.status.success() && lacks.iter().any(|lack| words.contains(lack)) {
        return skipped(&format!("podman starts no container here: {words}"));
    }
    assert!(ran.status.success(), "{ran:?}");
    let version = concat!("beeline guest ", env!("CARGO_PKG_VERSION"), "\n");
    assert_eq!(String::from_utf8_lossy(&ran.stdout), version);
}

/// Returns the static program, if it is as new as the other one.
fn static_program() -> Result<PathBuf, String> {
    let target = beeline().ancestors().nth(2).map(Path::to_owned);
    let program = target
        .unwrap_or_default()
        .join("x86_64-unknown-linux-gnu/static/beeline");
    let changed = |path: &Path| fs::metadata(path).and_then(|data| data.modified()).ok();
    match (changed(&program), changed(&beeline())) {
        (Some(own), Some(other)) if own >= other => Ok(program),
        (Some(_), Some(_)) => Err(format!("{} is old: make dist", program.display())),
        _ => Err(format!("no {}: make dist", program.display())),
    }
}

#[test]
fn the_static_program_needs_nothing_but_proc_and_sys() {
    let program = need!(static_program());
    let _turn = Turn::take();
    let scratch = Scratch::new();
    let root = scratch.path();
    let counts = scratch.build_with("counts.c", &["-static"]);
    scratch.build_with("attach.c", &["-static"]);
    fs::copy(program, root.join("beeline")).expect("room for a copy");
    for name in ["proc", "sys"] {
        fs::create_dir(root.join(name)).expect("room for a directory");
    }
    let offset = file_offset(&counts, "wl_square").expect("a symbol of the workload");
    let mut chrooted = Command::new("chroot");
    chrooted.arg(root).arg("/counts");
    let mut workload = Workload::start_command(chrooted);
    let honest = workload.go();
    let mut command = Command::new("unshare");
    const SCRIPT: &str = r#"mount -t proc proc "$0/proc"; mount -t sysfs -o ro sysfs "$0/sys"
        exec env -i "$(command -v chroot)" "$0" /beeline run -- /attach "$@""#;
    command.args(["--mount", "--propagation", "private", "sh", "-ec", SCRIPT]);
    command.arg(root).arg(workload.pid().to_string());
    command.args(["/counts", "1", &format!("P:{offset:#x}")]);
    let tool = Tool::start(command);
    tool.wait_for_line(|line| line == "attached");
    assert_eq!(workload.go(), honest);
    let ended = tool.wait();
    assert_eq!(ended.stdout, ["attached", "count 100"], "{ended:?}");
    workload.finish();
}

/// A program that is installed by copying one file has to stay small.
#[test]
fn the_static_program_is_small_and_static() {
    let program = need!(static_program());
    let bytes = fs::read(&program).expect("it is there");
    assert!(bytes.len() < 15_000_000, "{} bytes", bytes.len());
    let mode = fs::metadata(&program).expect("it is there").permissions();
    assert_eq!(mode.mode() & 0o111, 0o111);
    let elf = object::File::parse(&*bytes).expect("an ELF file");
    let has = |name| elf.sections().any(|section| section.name() == Ok(name));
    assert!(!has(".interp") && !has(".symtab") && !has(".debug_line"));
    assert!(
        elf.imports().expect("a table").next().is_none(),
        "it needs libraries"
    );
    let home = std::env::var("HOME").unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    assert!(
        !text.contains(&format!("{home}/.cargo")),
        "names this machine's directories"
    );
}

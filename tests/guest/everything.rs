//! The largest tool available: all programs of Debian's libbpf tools in one, loaded and attached
//! one after the other. The guest's kernel gives the same answer to each inside and from here, and
//! gets the same bytes.

use super::place::{Place, Setting};
use super::*;
use beeline_e2e::{embedded_objects, find_program, remark};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// The path in the guest.
const FOLDER: &str = "/test/everything";
/// The fewest that count as Debian's package; it has more.
const PROGRAMS: usize = 230;
/// A program that every kernel loads and attaches, with its digest in between.
const KNOWN: (&str, &str) = (
    "execsnoop.o tracepoint__syscalls__sys_enter_execve: load 0 ",
    " attach 0",
);

#[test]
fn all_programs_of_the_libbpf_tools_do_as_inside() {
    let guest = need!(shared());
    everything(&guest);
}

#[test]
fn all_programs_of_the_libbpf_tools_do_as_inside_the_old_kernel() {
    let guest = need!(boot("6.1"));
    everything(&guest);
}

fn everything(guest: &Guest) {
    let scratch = Scratch::new();
    let objects = need!(objects(scratch.path()));
    let tool = need!(build(&scratch));
    let setting = need!(Setting::new(guest));
    put(guest, &tool, scratch.path());
    let outputs: Vec<Vec<String>> = setting
        .places
        .iter()
        .map(|&place| {
            let begin = Instant::now();
            let output = match place {
                Place::Inside => setting.run(
                    place,
                    &["sh", "-c", &format!("cd {FOLDER} && exec ./tool *.o")],
                ),
                _ => {
                    let files = objects
                        .iter()
                        .map(|file| file.to_str().expect("a name in ASCII"));
                    let tool = tool.to_str().expect("a name in ASCII");
                    setting.run(place, &[&[tool][..], &files.collect::<Vec<_>>()].concat())
                }
            };
            assert_eq!(output.code, Some(0), "{place}: {output:?}");
            let known = |line: &String| line.starts_with(KNOWN.0) && line.ends_with(KNOWN.1);
            assert!(
                output.stdout.iter().any(known),
                "{place}: {:#?}",
                output.stdout
            );
            let programs = output.stdout.len();
            assert!(programs >= PROGRAMS, "{place}: {programs} programs only");
            let loaded = output
                .stdout
                .iter()
                .filter(|line| line.contains(": load 0 "))
                .count();
            let attached = output
                .stdout
                .iter()
                .filter(|line| line.ends_with(KNOWN.1))
                .count();
            remark(&format!(
                "{place}: {programs} programs, {loaded} loaded, {attached} attached, {:?}",
                begin.elapsed()
            ));
            output.stdout
        })
        .collect();
    if let [inside, host] = outputs.as_slice() {
        let differ = inside
            .iter()
            .zip(host)
            .filter(|(inside, host)| inside != host);
        let differ: Vec<_> = differ.collect();
        assert!(differ.is_empty(), "inside, and by beeline: {differ:#?}");
        assert_eq!(host.len(), inside.len());
    }
}

/// Extracts the object files from the tools.
fn objects(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let listed = Command::new("dpkg-query")
        .args(["--listfiles", "libbpf-tools"])
        .output();
    let listed = listed.map_err(|error| format!("no libbpf tools: {error}"))?;
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let tools = listed.lines().filter(|file| file.contains("bin/"));
    let mut known = BTreeSet::new();
    let mut files = Vec::new();
    for tool in tools.map(Path::new).filter(|tool| tool.is_file()) {
        let data =
            std::fs::read(tool).unwrap_or_else(|error| panic!("{}: {error}", tool.display()));
        for object in embedded_objects(&data) {
            if known.insert(object.to_vec()) {
                let name = tool.file_name().unwrap_or_default();
                let file = folder.join(name).with_extension("o");
                std::fs::write(&file, object).expect("a scratch file");
                files.push(file);
            }
        }
    }
    files.sort();
    files.dedup();
    match files.is_empty() {
        true => Err("the libbpf tools are not installed (scripts/deps.sh installs them)".into()),
        false => Ok(files),
    }
}

fn build(scratch: &Scratch) -> Result<PathBuf, String> {
    find_program("gcc")?;
    if !Path::new("/usr/include/bpf/libbpf.h").exists() {
        return Err("libbpf-dev is not installed (scripts/deps.sh installs it)".into());
    }
    Ok(scratch.build_with("everything.c", &["-l:libbpf.a", "-lelf", "-lz"]))
}

/// Copies the tool and a folder's object files into the guest.
fn put(guest: &Guest, tool: &Path, objects: &Path) {
    let packed = Command::new("sh")
        .args(["-c", "cd \"$0\" && tar -c *.o"])
        .arg(objects)
        .output()
        .expect("tar runs");
    assert!(packed.status.success(), "{packed:?}");
    let unpack = format!("mkdir -p {FOLDER} && cd {FOLDER} && tar -x");
    let answer = guest.run_with(&unpack, &packed.stdout);
    assert_eq!(answer.code, 0, "{answer:?}");
    let tool = std::fs::read(tool).expect("it was built");
    guest.put(&tool, &format!("{FOLDER}/tool"));
}

//! The agent's list of system calls has every call that its code makes in targets.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use beeline_agent::foreseen::CALLS;

/// The ways in which the code makes calls by their numbers.
const MAKERS: [&str; 3] = ["syscall(", "syscall6(", "ask("];

/// Calls that are made in the tool's process only (`fast_path`).
const OF_TOOLS: &str = "fast_path";

fn sources(directory: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let stem = path.file_stem().unwrap_or_default();
        if stem == OF_TOOLS {
            continue;
        }
        match path.is_dir() {
            true => sources(&path, into),
            false => into.push(path),
        }
    }
}

#[test]
fn every_call_is_foreseen() {
    let mut files = Vec::new();
    sources(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("src"),
        &mut files,
    );
    let mut made = BTreeSet::new();
    for file in files {
        let text = fs::read_to_string(file).unwrap();
        for maker in MAKERS {
            for (at, _) in text.match_indices(maker) {
                let argument = text[at + maker.len()..].trim_start();
                if let Some(name) = argument.strip_prefix("nr::") {
                    let end = name
                        .find(|c: char| !c.is_ascii_uppercase() && c != '_' && !c.is_ascii_digit());
                    made.insert(name[..end.unwrap_or(name.len())].to_ascii_lowercase());
                }
            }
        }
    }
    let mut foreseen: BTreeSet<_> = CALLS.iter().map(|call| call.name.to_owned()).collect();
    // The kernel's frame leads to it.
    foreseen.remove("rt_sigreturn");
    assert_eq!(made, foreseen);
}

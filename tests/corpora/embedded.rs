//! Object files inside other files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use beeline_e2e::{Scratch, beeline, embedded_objects};
use serde_json::Value;

use crate::{Found, Row, Said, Verdict, name_of};

/// Asks both verifiers about every program in these files.
pub fn judge(package: &'static str, files: &[PathBuf], found: &mut Found) {
    let scratch = Scratch::new();
    let mut is_empty = true;
    for file in files {
        let (tool, data) = (name_of(file), fs::read(file).unwrap_or_default());
        for object in embedded_objects(&data) {
            is_empty = false;
            let path = scratch.path().join("object.o");
            fs::write(&path, object).expect("a file for an object");
            match verdicts(&path) {
                Ok(verdicts) => {
                    let rows = verdicts.iter().map(|it| row(package, &tool, it));
                    found.rows.extend(rows);
                }
                Err(why) => {
                    // The scratch file's name changes, and means nothing.
                    let scratch = format!("{}: ", path.display());
                    found.skip(package, &tool, &why.replace(&scratch, ""));
                }
            }
        }
    }
    if is_empty {
        let why =
            "no file has an object file inside: its programs are made when it runs, if at all";
        found.skip(package, "all", why);
    }
}

/// Returns the verdicts on each program. Errors: the file is refused.
fn verdicts(object: &Path) -> Result<Vec<Value>, String> {
    let asked = ask(object, "both")?;
    if !asked.is_empty() {
        return Ok(asked);
    }
    // Beeline crashed; with one program at a time it may not.
    let kernels = ask(object, "kernel")?;
    let kernels = kernels.into_iter().map(|kernel| {
        let mut value = kernel.clone();
        value["kernel"] = kernel;
        value["verdict"] = "none".into();
        value["reason"] = "(crashed)".into();
        value["insns_processed"] = 0.into();
        value
    });
    Ok(kernels.collect())
}

/// Returns an empty answer if Beeline crashed.
fn ask(object: &Path, verifier: &str) -> Result<Vec<Value>, String> {
    let asked = Command::new(beeline())
        .args(["verify", "--json", "--verifier", verifier])
        .arg(object)
        .output()
        .map_err(|error| error.to_string())?;
    match asked.status.code() {
        Some(0 | 1) => {}
        Some(2) => return Err(String::from_utf8_lossy(&asked.stderr).into_owned()),
        _ => return Ok(Vec::new()),
    }
    let lines = String::from_utf8_lossy(&asked.stdout).into_owned();
    let lines = lines.lines().map(serde_json::from_str);
    lines
        .collect::<Result<_, _>>()
        .map_err(|error| error.to_string())
}

fn row(package: &'static str, tool: &str, value: &Value) -> Row {
    let text = |name: &str| value[name].as_str().unwrap_or_default().to_owned();
    Row {
        package,
        tool: tool.to_owned(),
        program: text("program"),
        section: text("section"),
        insns: value["insns"].as_u64().unwrap_or(0),
        kernel: said(&value["kernel"]),
        beeline: said(value),
    }
}

fn said(value: &Value) -> Said {
    Said {
        verdict: match value["verdict"].as_str() {
            Some("accept") => Verdict::Accept,
            Some("reject") => Verdict::Reject,
            _ => Verdict::None,
        },
        reason: value["reason"].as_str().unwrap_or_default().to_owned(),
        processed: value["insns_processed"].as_u64().unwrap_or(0),
    }
}

//! Measures verifying, next to the kernel's own loads of the same programs.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, ensure};
use beeline_e2e::{Scratch, beeline, embedded_objects};
use serde_json::Value;

use crate::table::Row;

/// The number of runs, of which the best counts.
const ROUNDS: usize = 5;
const PACKAGE: &str = "libbpf-tools";
/// The most megabytes that verifying one program may take.
const MEMORY_GOAL: u32 = 200;
/// A program with nearly as many instructions as a verifier looks at.
const LARGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/programs/large.c");

/// A program that both accept: microseconds and instructions, of the kernel and of Beeline.
#[derive(Debug, Clone, Copy)]
struct Times {
    kernel: f64,
    beeline: f64,
    insns: [u64; 2],
}

/// Measures every program of libbpf's tools that the kernel accepts.
pub fn all() -> anyhow::Result<Vec<Row>> {
    let scratch = Scratch::new();
    let mut times: BTreeMap<String, Times> = BTreeMap::new();
    let (mut accepted, mut by_both) = (0_u32, 0_u32);
    for file in files()? {
        let data = fs::read(&file).unwrap_or_default();
        for (number, object) in embedded_objects(&data).enumerate() {
            let path = scratch.path().join("object.o");
            fs::write(&path, object)?;
            for round in 0..ROUNDS {
                for (place, said) in verdicts(&path)?.iter().enumerate() {
                    let accepts = |said: &Value| said["verdict"] == "accept";
                    if !accepts(&said["kernel"]) {
                        continue;
                    }
                    if round == 0 {
                        accepted += 1;
                        by_both += u32::from(accepts(said));
                    }
                    let now = Times {
                        kernel: said["kernel"]["us"].as_f64().unwrap_or(0.0),
                        beeline: said["us"].as_f64().unwrap_or(0.0),
                        insns: [&said["kernel"], said]
                            .map(|it| it["insns_processed"].as_u64().unwrap_or(0)),
                    };
                    let best = times
                        .entry(format!("{file} {number} {place}"))
                        .or_insert(now);
                    best.kernel = best.kernel.min(now.kernel);
                    best.beeline = best.beeline.min(now.beeline);
                }
            }
        }
    }
    let mut rows = rows(&times, accepted, by_both);
    rows.push(memory(&scratch)?);
    Ok(rows)
}

/// Measures the peak memory of a process that verifies a large program, with the kernel's types.
fn memory(scratch: &Scratch) -> anyhow::Result<Row> {
    let object = compiled(scratch)?;
    let said = verdicts(&object)?;
    let [said] = &said[..] else {
        anyhow::bail!("there is more than one program in {LARGE}");
    };
    let accepted = said["verdict"] == "accept";
    ensure!(accepted, "{LARGE} is not accepted: {}", said["reason"]);
    let mut command = Command::new(beeline());
    let kilobytes = peak(command.arg("verify").arg(object))?;
    Ok(Row {
        beeline: Some(kilobytes / 1024.0),
        ..Row::new(
            format!(
                "memory for {} insns, goal {MEMORY_GOAL}",
                said["insns_processed"]
            ),
            "MB",
        )
    })
}

fn compiled(scratch: &Scratch) -> anyhow::Result<PathBuf> {
    let object = scratch.path().join("large.o");
    let mut clang = Command::new("clang");
    clang.args(["-target", "bpf", "-mcpu=v3", "-O2", "-c", LARGE, "-o"]);
    let done = clang.arg(&object).status().context("clang")?;
    ensure!(done.success(), "{LARGE} does not compile");
    Ok(object)
}

/// Runs a command to its end; returns its peak memory in kilobytes, sampled every 2 ms: a rise in
/// the last 2 ms may be missed. `ru_maxrss` would include the parent's peak, inherited across exec.
fn peak(command: &mut Command) -> anyhow::Result<f64> {
    let mut child = command.stdout(Stdio::null()).spawn()?;
    let file = format!("/proc/{}/status", child.id());
    let mut peak = 0.0_f64;
    let status = loop {
        let status = fs::read_to_string(&file).unwrap_or_default();
        let mut lines = status.lines();
        let field = lines.find_map(|line| line.strip_prefix("VmHWM:"));
        let number = field.and_then(|field| field.trim().strip_suffix(" kB"));
        peak = peak.max(number.map_or(Ok(0.0), str::parse)?);
        if let Some(status) = child.try_wait()? {
            break status;
        }
        thread::sleep(Duration::from_millis(2));
    };
    ensure!(status.success(), "{command:?} failed");
    ensure!(peak > 0.0, "{command:?} has ended too soon");
    Ok(peak)
}

fn rows(times: &BTreeMap<String, Times>, accepted: u32, by_both: u32) -> Vec<Row> {
    let row = |what: String, unit, kernel, beeline| Row {
        kernel: Some(kernel),
        beeline: Some(beeline),
        ..Row::new(what, unit)
    };
    let sum = |of: &dyn Fn(&Times) -> f64| times.values().map(of).sum::<f64>();
    let ratio = |times: &&Times| times.beeline / times.kernel.max(1.0);
    let worst = times.values().max_by(|a, b| ratio(a).total_cmp(&ratio(b)));
    let mut rows = vec![
        row(
            format!("verify {} programs of {PACKAGE}", times.len()),
            "us",
            sum(&|it| it.kernel),
            sum(&|it| it.beeline),
        ),
        row(
            "instructions processed for that".to_owned(),
            "insns",
            sum(&|it| it.insns[0] as f64),
            sum(&|it| it.insns[1] as f64),
        ),
        row(
            "of those that the kernel accepts, accepted".to_owned(),
            "programs",
            accepted.into(),
            by_both.into(),
        ),
    ];
    if let Some(worst) = worst {
        let what = "the program that compares worst".to_owned();
        rows.push(row(what, "us", worst.kernel, worst.beeline));
    }
    rows
}

/// Returns the package's files.
fn files() -> anyhow::Result<Vec<String>> {
    let listed = Command::new("dpkg-query").args(["-L", PACKAGE]).output();
    let listed = listed.context("dpkg-query, which lists the tools, cannot be run")?;
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let files = listed.lines().filter(|file| Path::new(file).is_file());
    Ok(files.map(str::to_owned).collect())
}

/// Returns both verdicts on an object file's programs.
fn verdicts(object: &Path) -> anyhow::Result<Vec<Value>> {
    let mut command = Command::new(beeline());
    command.args(["verify", "--json", "--verifier", "both"]);
    let said = command.arg(object).output().context("beeline verify")?;
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    let lines = said.lines().map(serde_json::from_str);
    Ok(lines.collect::<Result<_, _>>()?)
}

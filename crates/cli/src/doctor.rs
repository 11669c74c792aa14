//! `beeline doctor`: reports what works here, what does not, and the one thing to change.
//!
//! A check is a function that tries something and returns a [`Finding`]. Each is made in a child of
//! its own, because a seccomp filter may kill whoever tries. This process makes no threads, so that
//! it can fork.

mod calls;
mod child;
mod conclusion;
mod files;
mod filters;
mod finding;
mod machine;
mod rights;
mod status;
mod subject;
mod target;
mod tracing;

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use child::{check_in_child, in_child};
use conclusion::{Conclusion, FILTERED, OTHERS, conclude};
use finding::{Check, Finding, Status};
use target::Target;

/// Options of the command.
#[derive(Debug, Args)]
pub struct Arguments {
    /// A process that is to be traced
    #[arg(value_parser = clap::value_parser!(i32).range(1..))]
    pid: Option<i32>,
    /// Print JSON, for scripts
    #[arg(long)]
    json: bool,
}

/// A check's name and function.
type OfPlace = (&'static str, fn() -> Finding);
/// Likewise for a process.
type OfTarget = (&'static str, fn(&Target) -> Finding);

/// The checks of this place, causes before what they cause: the first that fails is the one to
/// mend.
const PLACE: [OfPlace; 26] = [
    ("kernel", machine::kernel),
    ("processor", machine::processor),
    ("open-files", machine::open_files),
    ("proc", machine::proc_files),
    ("user", rights::user),
    ("capabilities", rights::capabilities),
    ("no-new-privs", rights::no_new_privs),
    ("seccomp", filters::seccomp),
    ("calls", filters::calls),
    ("bpf", filters::bpf),
    ("perf_event_open", filters::perf_event_open),
    ("listener", filters::listener),
    ("interception", filters::interception),
    ("ptrace", tracing::own_child),
    (OTHERS, tracing::other_process),
    ("process-vm", tracing::process_vm),
    ("process-mem", tracing::process_mem),
    ("memory-files", files::memory_files),
    ("executable-memory", files::executable_memory),
    ("injection", tracing::injection),
    (FILTERED, filters::filtered_processes),
    ("scratch", files::scratch),
    ("cache", files::cache),
    ("llvm", machine::llvm),
    ("types", machine::types),
    ("kernel-programs", machine::kernel_programs),
];

/// The checks of a process, likewise.
const TARGET: [OfTarget; 9] = [
    ("target", Target::process),
    ("target-owner", Target::owner),
    ("target-namespaces", Target::namespaces),
    ("target-dumpable", Target::dumpable),
    ("target-tracer", Target::tracer),
    ("target-program", Target::program),
    ("target-seccomp", Target::seccomp),
    ("target-sessions", Target::sessions),
    ("target-trial", Target::trial),
];

/// Makes all checks and prints them.
///
/// The exit code is 0 if `beeline run` works fully, for the process if one is named, and 1 if not.
///
/// # Errors
///
/// Fails if the checks cannot be written as JSON.
pub fn doctor(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let made = |(name, check): OfPlace| Check {
        name,
        finding: check_in_child(check),
    };
    let place: Vec<_> = PLACE.into_iter().map(made).collect();
    let of_target = arguments.pid.map(look_at).unwrap_or_default();
    let conclusion = conclude(&place, &of_target, arguments.pid);
    let checks = [place, of_target].concat();
    if arguments.json {
        println!(
            "{}",
            serde_json::to_string_pretty(&as_value(&checks, &conclusion))?
        );
    } else {
        print(&checks, &conclusion);
    }
    Ok(ExitCode::from(u8::from(!conclusion.works)))
}

/// Makes the checks of a process; only the first if it is not there.
fn look_at(pid: i32) -> Vec<Check> {
    let look = || {
        let target = Target::look(pid);
        let count = if target.is_there() { TARGET.len() } else { 1 };
        let found = TARGET
            .iter()
            .take(count)
            .map(|(_, check)| check(&target).to_text());
        found.collect::<Vec<_>>().join("\n")
    };
    let found = match in_child(look) {
        Ok(text) => text.lines().filter_map(Finding::parse).collect(),
        Err(failure) => vec![failure.finding()],
    };
    let checks = TARGET.iter().zip(found);
    checks
        .map(|((name, _), finding)| Check { name, finding })
        .collect()
}

fn print(checks: &[Check], conclusion: &Conclusion) {
    let is_coloured = std::io::stdout().is_terminal();
    let width = checks
        .iter()
        .map(|check| check.name.len())
        .max()
        .unwrap_or_default();
    for Check { name, finding } in checks {
        let word = format!("{:<4}", finding.status.word());
        let word = match (is_coloured, finding.status) {
            (false, _) => word,
            (true, Status::Ok) => format!("\x1b[32m{word}\x1b[0m"),
            (true, Status::Warn) => format!("\x1b[33m{word}\x1b[0m"),
            (true, Status::No) => format!("\x1b[31m{word}\x1b[0m"),
        };
        println!("{word}  {name:<width$}  {}", finding.detail);
    }
    println!("\n{}", conclusion.text);
    if let Some(fix) = &conclusion.fix {
        println!("To change: {fix}.");
    }
}

fn as_value(checks: &[Check], conclusion: &Conclusion) -> serde_json::Value {
    json!({
        "checks": checks.iter().map(|check| json!({
            "name": check.name,
            "status": check.finding.status.word(),
            "detail": check.finding.detail,
            "fix": check.finding.fix,
        })).collect::<Vec<_>>(),
        "conclusion": {
            "works": conclusion.works,
            "text": conclusion.text,
            "fix": conclusion.fix,
        },
    })
}

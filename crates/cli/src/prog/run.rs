//! `beeline prog run`: prints a program's result, and the time that it takes.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use beeline_runtime::TestRun;
use beeline_runtime::engines::{Choice, Engines};
use beeline_trusted_dir::{MOST, check_name, read_bounded, write_anew};
use clap::{Args, ValueEnum};
use serde_json::json;

use super::CompilerName;
use super::file::File;
use super::loaded::Loaded;
use crate::say;

#[derive(Debug, Args)]
pub struct Arguments {
    /// An object file of clang -target bpf, or a file of `beeline compile`
    file: PathBuf,
    /// The program's section, such as uprobe//bin/bash:readline
    #[arg(long)]
    section: Option<String>,
    /// The program's function, where a section has several
    #[arg(long)]
    program: Option<String>,
    /// The file with the bytes that r1 points to [default: 4096 zeros]
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// The file to write the bytes to afterwards
    #[arg(long, value_name = "FILE")]
    data_out: Option<PathBuf>,
    /// The number of runs, one after the other
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// The engine that runs it [default: the baseline compiler's code, or the file's own]
    #[arg(long, value_enum)]
    engine: Option<EngineName>,
    #[command(flatten)]
    memory: crate::memory::Options,
    /// Print JSON, for scripts
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum EngineName {
    /// The interpreter, which checks every access
    Interpreter,
    /// The baseline compiler's code
    #[value(alias = "light")]
    Baseline,
    /// LLVM's code
    Llvm,
}

/// The bytes of context if none are given: as many zeros as any context has.
const ZEROS: usize = 4096;

/// Runs a program and prints its result.
///
/// # Errors
///
/// Fails if a file cannot be read or written, or the program cannot be found, loaded or run.
pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let mut file = File::read(&arguments.file)?;
    let aot = file.aot.take();
    let is_ahead = aot.is_some();
    let engines = match (arguments.engine, aot) {
        (None, Some(aot)) => Engines::new(Choice::Baseline, Arc::new(say))
            .with_aot(aot)
            .with_context(|| arguments.file.display().to_string())?,
        // An engine that checks every access may run programs that have not been verified.
        (Some(EngineName::Interpreter), _) => Engines::new(Choice::Interpreter, Arc::new(say)),
        (Some(EngineName::Llvm), _) => CompilerName::Llvm.engines()?,
        _ => CompilerName::Baseline.engines()?,
    };
    let section = arguments.section.as_deref();
    let program = file.select_one(section, arguments.program.as_deref())?;
    let context = match &arguments.data {
        Some(data) => read_bounded(data, MOST).with_context(|| data.display().to_string())?,
        None => vec![0; ZEROS],
    };
    let mut loaded = Loaded::new(&file.object, engines)?;
    arguments.memory.apply(&loaded.runtime);
    let id = loaded.program(program)?;
    let (_, compiled, _) = loaded.compiled(id)?;
    if is_ahead && arguments.engine.is_none() && !compiled.is_ahead {
        bail!(
            "the file's code of {} is for maps of another shape; compile it on this machine",
            program.name
        );
    }
    let checked = arguments.engine == Some(EngineName::Interpreter);
    let engine = if checked {
        "interpreter"
    } else {
        &compiled.engine
    };
    let run = TestRun {
        context,
        repeat: arguments.repeat,
        checked,
    };
    let result = loaded.runtime.test_run(id, run)?;
    let nanoseconds = result.duration.as_nanos();
    if let Some(out) = &arguments.data_out {
        write_anew(out, check_name)
            .and_then(|mut file| file.write_all(&result.context))
            .with_context(|| out.display().to_string())?;
    }
    if arguments.json {
        let result = json!({
            "retval": result.value,
            "duration": nanoseconds as u64,
            "repeat": arguments.repeat,
            "engine": engine,
            "section": program.section,
            "program": program.name,
        });
        println!("{}", serde_json::to_string_pretty(&result)?);
    } else {
        println!(
            "Return value: {}, duration (average): {nanoseconds}ns",
            result.value
        );
    }
    Ok(ExitCode::SUCCESS)
}

//! Measures Beeline under a container's filter beside strace, the tool that such places leave:
//! opens counted, of a running process and of a command.

use std::fs::{read_to_string, write};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, anyhow, ensure};
use beeline_e2e::{
    Ended, Scratch, Tool, Workload, beeline, compile_anew, find_program, sandboxed, skipped,
};

use crate::table::Row;

/// The order for the target: it answers with the time of an open and a close in picoseconds, the
/// best of so many rounds.
const ORDER: &str = "wait open 2000 5";
const PICOSECONDS: f64 = 1e3;
const SCRIPT: &str = "tracepoint:syscalls:sys_enter_openat { @[comm] = count(); }";

/// Returns the two rows of this topic: what tracing adds. Their column of the kernel is strace's.
///
/// # Errors
///
/// A tool or the target fails.
pub fn all() -> anyhow::Result<Vec<Row>> {
    let bpftrace = find_program("bpftrace").map_err(|why| anyhow!(why))?;
    let strace = find_program("strace").map_err(|why| skipped(&why)).ok();
    let meter = Meter::new()?;
    let unprobed = time(&mut Workload::start(&meter.program))?;
    let row = |what: &str| {
        let mut row = Row::new(format!("{what} (kernel: strace -f)"), "ns");
        row.unprobed = Some(unprobed);
        row
    };

    let mut running = row("counting opens of a process");
    running.beeline = Some(beside_beeline(&bpftrace, &meter)? - unprobed);
    let mut started = row("counting opens of a command");
    started.beeline = Some(within_beeline(&bpftrace, &meter)? - unprobed);
    if let Some(strace) = strace {
        running.kernel = Some(beside_strace(&strace, &meter)? - unprobed);
        started.kernel = Some(within_strace(&strace, &meter)? - unprobed);
    }
    Ok(vec![running, started])
}

/// The target, and a script that runs it with the order.
struct Meter {
    program: PathBuf,
    script: PathBuf,
    answers: PathBuf,
    _scratch: Scratch,
}

impl Meter {
    fn new() -> anyhow::Result<Self> {
        let scratch = Scratch::new();
        let program = scratch.build("call_meter.c");
        let [script, answers] = ["order", "answers"].map(|name| scratch.path().join(name));
        let (path, to) = (program.display(), answers.display());
        write(&script, format!("echo {ORDER} | {path} >{to}\n"))?;
        Ok(Self {
            program,
            script,
            answers,
            _scratch: scratch,
        })
    }

    /// Returns the nanoseconds of one call that the script's run has found.
    fn answer(&self, ended: &Ended) -> anyhow::Result<f64> {
        let answers = read_to_string(&self.answers)
            .with_context(|| format!("the command has not answered: {ended:?}"))?;
        let last = answers.lines().last().unwrap_or_default();
        nanoseconds(last).with_context(|| format!("{ended:?}"))
    }
}

fn beside_beeline(bpftrace: &Path, meter: &Meter) -> anyhow::Result<f64> {
    let mut target = Workload::start(&meter.program);
    let mut command = under_beeline(bpftrace);
    command.args(["-p", &target.pid().to_string()]);
    let tool = Tool::bpftrace(command, SCRIPT);
    tool.wait_attached();
    let figure = time(&mut target)?;
    let ended = tool.interrupt();
    ensure!(ended.status.success(), "{ended:?}");
    Ok(figure)
}

fn within_beeline(bpftrace: &Path, meter: &Meter) -> anyhow::Result<f64> {
    let mut command = under_beeline(bpftrace);
    let child = format!("/bin/sh {}", meter.script.display());
    command.args(["-c", &child, "-e", SCRIPT]);
    meter.answer(&Tool::start(command).wait())
}

fn beside_strace(strace: &Path, meter: &Meter) -> anyhow::Result<f64> {
    let mut target = Workload::start(&meter.program);
    let mut command = tracing_opens(strace);
    command.args(["-p", &target.pid().to_string()]);
    let tool = Tool::start(command);
    tool.wait_to_be_told(|line| line.contains("attached"));
    let figure = time(&mut target)?;
    tool.interrupt();
    Ok(figure)
}

fn within_strace(strace: &Path, meter: &Meter) -> anyhow::Result<f64> {
    let mut command = tracing_opens(strace);
    command.arg("/bin/sh").arg(&meter.script);
    meter.answer(&Tool::start(command).wait())
}

fn under_beeline(bpftrace: &Path) -> Command {
    let mut command = sandboxed(beeline());
    command.args(["run", "--"]).arg(bpftrace);
    compile_anew(&mut command);
    command
}

fn tracing_opens(strace: &Path) -> Command {
    let mut command = Command::new(strace);
    command.args(["-f", "-e", "trace=openat", "-o", "/dev/null"]);
    command
}

/// Returns the nanoseconds of one call of the target's.
fn time(target: &mut Workload) -> anyhow::Result<f64> {
    nanoseconds(&target.tell(ORDER))
}

fn nanoseconds(answer: &str) -> anyhow::Result<f64> {
    let picoseconds: f64 = answer
        .parse()
        .with_context(|| format!("the target says {answer:?}"))?;
    Ok(picoseconds / PICOSECONDS)
}

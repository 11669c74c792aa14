//! Measures Beeline under a container's filter beside strace, the tool that such places leave: the
//! opens of a running process, counted.

use std::path::Path;
use std::process::Command;

use anyhow::{anyhow, ensure};
use beeline_e2e::{
    Scratch, Tool, Workload, beeline, compile_anew, find_program, sandboxed, skipped,
};

use crate::table::Row;

/// The order for the target: it answers with the time of a call in picoseconds, the best of so many
/// turns.
const ORDER: &str = "time open 2000 5";
const PICOSECONDS: f64 = 1e3;

/// Returns the one row of this topic. Its column of the kernel is strace's.
pub fn all() -> anyhow::Result<Vec<Row>> {
    let bpftrace = find_program("bpftrace").map_err(|why| anyhow!(why))?;
    let scratch = Scratch::new();
    let program = scratch.build("call_meter.c");
    let mut row = Row::new("open, counted in a sandbox; kernel: strace -f", "ns");
    let mut target = Workload::start(&program);
    row.unprobed = Some(time(&mut target)?);
    row.beeline = Some(under_beeline(&bpftrace, &mut target)?);
    match find_program("strace") {
        Ok(strace) => row.kernel = Some(under_strace(&strace, &mut target)?),
        Err(why) => skipped(&why),
    }
    Ok(vec![row])
}

fn under_beeline(bpftrace: &Path, target: &mut Workload) -> anyhow::Result<f64> {
    let mut command = sandboxed(beeline());
    command.args(["run", "--"]).arg(bpftrace);
    command.args(["-p", &target.pid().to_string()]);
    compile_anew(&mut command);
    let tool = Tool::bpftrace(command, "tracepoint:syscalls:sys_enter_openat { @ = count(); }");
    tool.wait_attached();
    let figure = time(target)?;
    let ended = tool.interrupt();
    ensure!(ended.status.success(), "{}", ended.stderr.join("\n"));
    Ok(figure)
}

fn under_strace(strace: &Path, target: &mut Workload) -> anyhow::Result<f64> {
    let mut command = Command::new(strace);
    command.args(["-f", "-e", "trace=openat", "-o", "/dev/null"]);
    let tool = Tool::start({
        command.args(["-p", &target.pid().to_string()]);
        command
    });
    tool.wait_to_be_told(|line| line.contains("attached"));
    let figure = time(target)?;
    tool.interrupt();
    Ok(figure)
}

/// Returns the nanoseconds of one call.
fn time(target: &mut Workload) -> anyhow::Result<f64> {
    let answer = target.tell(ORDER);
    let picoseconds: f64 = answer
        .parse()
        .map_err(|_| anyhow!("the target says {answer}"))?;
    Ok(picoseconds / PICOSECONDS)
}

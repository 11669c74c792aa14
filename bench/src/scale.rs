//! Measures the cost of a session on a machine with many processes: while nothing happens, and to
//! begin and to end.

use crate::table::Row;
use anyhow::anyhow;
use beeline_e2e::{Engine, Scratch, TICK, Tool, Workload, find_program, with_tracefs};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// The number of processes that sleep.
const PROCESSES: u32 = 1000;
/// The age until which processes are new, and looked at more often.
const SETTLED: Duration = Duration::from_secs(5);
/// The time for which CPU time is counted.
const WATCHED: Duration = Duration::from_secs(5);

const CALLS: &str = "tracepoint:syscalls:sys_enter_openat { }";
const FUNCTION: &str = "uprobe:/lib/x86_64-linux-gnu/libc.so.6:malloc { }";

/// Returns every row of this topic.
pub fn all(engines: &[Engine]) -> anyhow::Result<Vec<Row>> {
    let scratch = Scratch::new();
    let mut command = Command::new(scratch.build("many_processes.c"));
    command.arg(PROCESSES.to_string());
    let _processes = Workload::start_command(command);
    let bpftrace = find_program("bpftrace").map_err(|why| anyhow!(why))?;
    let child = ["-c", "/bin/sleep 1000"];
    let mut rows = Vec::new();
    for (whom, script, arguments) in [
        ("what the tool starts", CALLS, &child[..]),
        ("all, system calls", CALLS, &[]),
        ("all, a function", FUNCTION, &[]),
    ] {
        let mut idle = Row::new(format!("{PROCESSES} asleep, tracing {whom}: CPU"), "%");
        let mut whole = Row::new("    begin and end", "ms");
        for &engine in engines {
            match session(engine, &bpftrace, script, arguments) {
                Ok((share, took)) => {
                    idle.put(engine, Ok(share));
                    whole.put(engine, Ok(took));
                }
                Err(why) => idle.put(engine, Err(why)),
            }
        }
        rows.extend([idle, whole]);
    }
    Ok(rows)
}

/// Returns the CPU time of a session when nothing happens, as a share of one CPU, and the
/// milliseconds to its first tick and after its last.
fn session(
    engine: Engine,
    bpftrace: &PathBuf,
    script: &str,
    arguments: &[&str],
) -> anyhow::Result<(f64, f64)> {
    let mut command = match engine {
        Engine::Kernel => with_tracefs(bpftrace),
        Engine::Beeline => engine.command(bpftrace),
    };
    command.args(arguments);
    let begin = Instant::now();
    let tool = Tool::bpftrace(command, script);
    tool.expect_line(|line| line == TICK)
        .map_err(|why| anyhow!(why))?;
    let began = begin.elapsed();
    std::thread::sleep(SETTLED);
    let (before, since) = (cpu_time(&tool), Instant::now());
    std::thread::sleep(WATCHED);
    let share = (cpu_time(&tool) - before) / since.elapsed().as_secs_f64();
    let end = Instant::now();
    let ended = tool.interrupt();
    anyhow::ensure!(ended.status.success(), "{}", ended.stderr.join("\n"));
    let took = (began + end.elapsed()).as_secs_f64();
    Ok((share * 100.0, took * 1e3))
}

/// Returns the seconds of CPU time of all its processes.
fn cpu_time(tool: &Tool) -> f64 {
    // SAFETY: sysconf takes its argument by value and only returns a number.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64;
    let of_process = |pid: u32| {
        let stat = beeline_runtime::proc::Stat::of(pid as i32)?;
        let number = |field| stat.field(field)?.parse::<f64>().ok();
        Some(number(14)? + number(15)?)
    };
    let used: f64 = tool.processes().into_iter().filter_map(of_process).sum();
    used / ticks
}

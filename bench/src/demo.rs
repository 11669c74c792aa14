//! The demonstration: one real program, one well-known one-liner, and its cost.

use crate::session::LIBC;
use crate::table::Row;
use anyhow::{Context, anyhow};
use beeline_e2e::{Engine, TICK, Tool, Workload, find_program, map_counts};
use std::process::Command;

/// A Python program that parses JSON documents; it answers each line with the CPU time it took, in
/// ns.
const PROGRAM: &str = "import json, sys, time
document = json.dumps({'key%d' % i: 'x' * 600 for i in range(1000)})
def work():
    for i in range(int(sys.argv[1])): json.loads(document)
work()
print('ready', flush=True)
for line in sys.stdin:
    begin = time.process_time_ns()
    work()
    print(time.process_time_ns() - begin, flush=True)
";

/// The documents parsed in a round; each has about a thousand allocations. The rounds are many and
/// short, so that the quickest is an undisturbed one.
const DOCUMENTS: &str = "10";
const ROUNDS: usize = 60;

/// Counts a Python program's calls of malloc with bpftrace, on each engine.
pub fn run(engines: &[Engine]) -> anyhow::Result<Vec<Row>> {
    let one_liner = format!("uprobe:{LIBC}:malloc {{ @[comm] = count(); }}");
    println!(
        "A Python program parses JSON documents. While it does:\n  bpftrace -p PID -e '{one_liner}'\n"
    );
    let mut calls = Row::new("calls of malloc counted, @[python3]", "");
    let mut time = Row::new("CPU time of a round", "ms");
    let mut cost = Row::new("added by the probe", "ns/call");
    for &engine in engines {
        match probed(engine, &one_liner) {
            Ok(measured) => {
                let Measured {
                    count,
                    unprobed,
                    probed,
                } = measured;
                calls.put(engine, Ok(count));
                time.unprobed = Some(
                    time.unprobed
                        .map_or(unprobed / 1e6, |other| other.min(unprobed / 1e6)),
                );
                time.put(engine, Ok(probed / 1e6));
                cost.put(engine, Ok((probed - unprobed) / (count / ROUNDS as f64)));
            }
            Err(why) => calls.put(engine, Err(why)),
        }
    }
    Ok(vec![calls, time, cost])
}

fn start() -> anyhow::Result<Workload> {
    let python = std::fs::canonicalize("/usr/bin/python3").context("python3 is not installed")?;
    let mut command = Command::new(python);
    command.args(["-c", PROGRAM, DOCUMENTS]);
    Ok(Workload::start_command(command))
}

/// Returns the CPU time of the quickest round, in nanoseconds.
fn best_round(workload: &mut Workload) -> anyhow::Result<f64> {
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let answer = workload.ask("go").map_err(|why| anyhow!(why))?;
        best = best.min(
            answer
                .parse()
                .with_context(|| format!("the program answered {answer}"))?,
        );
    }
    Ok(best)
}

/// The result of one engine on one process.
struct Measured {
    /// The calls counted in all rounds.
    count: f64,
    /// The quickest round before the probe, in nanoseconds of CPU time.
    unprobed: f64,
    /// The quickest round under it.
    probed: f64,
}

/// Returns whether the process waits for something.
fn is_asleep(pid: impl std::fmt::Display) -> anyhow::Result<bool> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The state follows the name in parentheses.
    Ok(stat
        .rsplit(')')
        .next()
        .is_some_and(|rest| rest.trim_start().starts_with('S')))
}

fn probed(engine: Engine, one_liner: &str) -> anyhow::Result<Measured> {
    let bpftrace = find_program("bpftrace").map_err(|why| anyhow!(why))?;
    let mut workload = start()?;
    let unprobed = best_round(&mut workload)?;
    let mut command = engine.command(bpftrace);
    command.args(["-p", &workload.pid().to_string()]);
    let tool = Tool::bpftrace(command, one_liner);
    tool.expect_line(|line| line == TICK)
        .map_err(|why| anyhow!(why))?;
    let probed = best_round(&mut workload)?;
    // After its last answer, it allocates once more for the next line.
    while !is_asleep(workload.pid())? {
        std::thread::yield_now();
    }
    let ended = tool.interrupt();
    let comm = std::fs::read_to_string(format!("/proc/{}/comm", workload.pid()))?;
    let counts = map_counts(&ended.stdout);
    let count = counts
        .get(&format!("@[{}]", comm.trim()))
        .context("bpftrace counted nothing")?;
    Ok(Measured {
        count: *count as f64,
        unprobed,
        probed,
    })
}

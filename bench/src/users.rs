//! Measures the cost of keeping users apart: the same work by processes of the tool's user, of
//! another one, and of as many users as there are processes.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{anyhow, ensure};
use beeline_e2e::{Engine, Scratch, Tool, Workload, find_program, with_tracefs};

use crate::table::Row;

const PROCESSES: u32 = 50;
/// The first of the users; none of them has to exist.
const FIRST_USER: u32 = 64_000;
/// Each figure is the best of so many turns.
const TURNS: u32 = 3;
/// The order that every process gets at the same time, and the calls that it makes then.
const ADDS: (&str, u64) = ("time mov 10000 2", 20_000);
const OPENS: (&str, u64) = ("time open 50 2", 100);

/// Work, and the script that traces it.
struct Case {
    what: &'static str,
    workload: &'static str,
    order: (&'static str, u64),
    script: &'static str,
}

const CASES: [Case; 3] = [
    Case {
        what: "@ = count()",
        workload: "meter.c",
        order: ADDS,
        script: "uprobe:{prog}:m_mov { @ = count(); }",
    },
    Case {
        what: "@[comm] = count()",
        workload: "meter.c",
        order: ADDS,
        script: "uprobe:{prog}:m_mov { @[comm] = count(); }",
    },
    Case {
        what: "open, printed by thread",
        workload: "call_meter.c",
        order: OPENS,
        script: "tracepoint:syscalls:sys_enter_openat { @names[tid] = args->filename; } \
                 tracepoint:syscalls:sys_exit_openat /@names[tid]/ \
                 { printf(\"%d %s\\n\", pid, str(@names[tid])); delete(@names[tid]); } END { clear(@names); }",
    },
];

/// Returns every row of this topic.
pub fn all(engines: &[Engine]) -> anyhow::Result<Vec<Row>> {
    let bpftrace = find_program("bpftrace").map_err(|why| anyhow!(why))?;
    let scratch = Scratch::new();
    let mut rows = Vec::new();
    for case in &CASES {
        let program = scratch.build(case.workload);
        for (who, users) in [
            ("the tool's user", [0, 0]),
            ("one other", [FIRST_USER, 0]),
            ("50 users", [FIRST_USER, 1]),
        ] {
            let mut fleet = Fleet::start(&program, users);
            let mut row = Row::new(format!("{}, processes of {who}", case.what), "ns");
            row.unprobed = Some(fleet.time(case.order)?);
            for &engine in engines {
                let script = case
                    .script
                    .replace("{prog}", &program.display().to_string());
                row.put(
                    engine,
                    traced(engine, &bpftrace, &script, (&program, users), case),
                );
            }
            rows.push(row);
        }
    }
    Ok(rows)
}

fn traced(
    engine: Engine,
    bpftrace: &Path,
    script: &str,
    (program, users): (&Path, [u32; 2]),
    case: &Case,
) -> anyhow::Result<f64> {
    let mut fleet = Fleet::start(program, users);
    let command = match engine {
        Engine::Kernel => with_tracefs(bpftrace),
        Engine::Beeline => engine.command(bpftrace),
    };
    let tool = Tool::bpftrace(command, script);
    tool.wait_attached();
    let figure = fleet.time(case.order)?;
    let ended = tool.interrupt();
    ensure!(ended.status.success(), "{}", ended.stderr.join("\n"));
    Ok(figure)
}

/// Processes that do the same.
struct Fleet(Vec<Workload>);

impl Fleet {
    /// Starts them: the first as one user, each other as the one with a number so much higher.
    fn start(program: &Path, [first, step]: [u32; 2]) -> Self {
        let start = |number: u32| {
            let user = first + number * step;
            let mut command = Command::new("setpriv");
            command
                .args([format!("--reuid={user}"), format!("--regid={user}")])
                .arg("--clear-groups")
                .arg(program);
            Workload::start_command(command)
        };
        Self((0..PROCESSES).map(start).collect())
    }

    /// Returns the nanoseconds of each call if all of them work at the same time.
    fn time(&mut self, (order, calls): (&str, u64)) -> anyhow::Result<f64> {
        let mut best = f64::MAX;
        for _ in 0..TURNS {
            let begin = Instant::now();
            self.0.iter_mut().for_each(|workload| workload.send(order));
            for workload in &mut self.0 {
                let answer = workload.answer();
                ensure!(answer.parse::<u64>().is_ok(), "the target says {answer}");
            }
            best = best.min(begin.elapsed().as_secs_f64());
        }
        Ok(best * 1e9 / (calls * u64::from(PROCESSES)) as f64)
    }
}

//! Measures the cost of tracing system calls: for the calls, for others beside them, for whole
//! processes, and for attaching.

use crate::table::Row;
use anyhow::{Context, anyhow};
use beeline_e2e::{Engine, Scratch, TICK, Tool, Workload, find_program};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// The number of times that a target is measured untraced and then traced; the best of each counts.
/// So a machine with a changing speed is slow or quick for both.
const TURNS: u32 = 4;
/// The calls in a timed round; the best of the rounds of a turn counts.
const CALLS: u64 = 20_000;
const ROUNDS: u32 = 25;
/// The pairs of open and close in a timed round.
const OPENS: u64 = 2_000;
/// The children in a turn, of which the quickest counts.
const CHILDREN: u32 = 15;
/// The time within which LLVM's code takes the baseline compiler's place.
const SETTLED: Duration = Duration::from_millis(700);

const ENTER: &str = "tracepoint:syscalls:sys_enter_getppid { }";
const BOTH: &str =
    "tracepoint:syscalls:sys_enter_getppid { } tracepoint:syscalls:sys_exit_getppid { }";
const COUNT: &str = "tracepoint:syscalls:sys_enter_getppid { @ = count(); }";

/// Returns every row of this topic.
pub fn all(engines: &[Engine]) -> anyhow::Result<Vec<Row>> {
    let bench = Bench::build()?;
    let mut rows = bench.single(engines);
    rows.push(bench.opensnoop(engines));
    rows.extend(bench.children(engines));
    rows.extend(bench.attaching(engines)?);
    Ok(rows)
}

struct Bench {
    meter: PathBuf,
    bpftrace: PathBuf,
    _scratch: Scratch,
}

impl Bench {
    fn build() -> anyhow::Result<Self> {
        let scratch = Scratch::new();
        Ok(Self {
            meter: scratch.build("call_meter.c"),
            bpftrace: find_program("bpftrace").map_err(|why| anyhow!(why))?,
            _scratch: scratch,
        })
    }

    /// Measures the cost added to one call.
    fn single(&self, engines: &[Engine]) -> Vec<Row> {
        let mut rows = Vec::new();
        for (what, call, script) in [
            ("traced call, empty on enter and exit", "getppid", BOTH),
            ("the same by libc's syscall()", "syscall", BOTH),
            ("traced call, empty on enter", "getppid", ENTER),
            ("traced call, @ = count() on enter", "getppid", COUNT),
            ("another call of the process", "getuid", BOTH),
        ] {
            let command = format!("time {call} {CALLS} {ROUNDS}");
            let row = Row::new(format!("{what}, added"), "ns/call");
            let row = self.added(row, engines, script, &command, 1e3);
            rows.push(row);
        }
        rows
    }

    /// Measures the slow-down of a program that only opens and closes a file.
    fn opensnoop(&self, engines: &[Engine]) -> Row {
        let command = format!("time open {OPENS} {ROUNDS}");
        let mut row = Row::new("open and close under opensnoop, speed lost", "%");
        for &engine in engines {
            let start = |target: &Workload| {
                let opensnoop = find_program("opensnoop").map_err(|why| anyhow!(why))?;
                let mut tool = match engine {
                    Engine::Kernel => beeline_e2e::with_tracefs(&opensnoop),
                    Engine::Beeline => engine.command(&opensnoop),
                };
                tool.args(["-p", &target.pid().to_string()]);
                let tool = Tool::start_on_terminal(tool);
                tool.expect_line(|line| line.contains("COMM"))
                    .map_err(|why| anyhow!(why))?;
                Ok(tool)
            };
            let times = self.in_turns(&command, start);
            row.put(
                engine,
                times.map(|(alone, traced)| (1.0 - alone / traced) * 100.0),
            );
        }
        row
    }

    /// Measures the time of a child that runs another program.
    fn children(&self, engines: &[Engine]) -> Vec<Row> {
        let mut rows = Vec::new();
        for how in ["fork", "vfork"] {
            let command = format!("spawn {how} {CHILDREN}");
            let row = Row::new(format!("{how}, exec of /bin/true, wait; added"), "us");
            let row = self.added(row, engines, BOTH, &command, 1e6);
            rows.push(row);
        }
        rows
    }

    /// Measures the time from bpftrace's start to its first tick: the time that tracing system
    /// calls adds to a script that only ticks.
    fn attaching(&self, engines: &[Engine]) -> anyhow::Result<Vec<Row>> {
        let mut rows = [
            "attaching to a small program, added",
            "attaching to node (99 MB), added",
            "attaching to one more node, added to that",
        ]
        .map(|what| Row::new(what, "ms"));
        let small = self.target();
        for &engine in engines {
            let ticking = self.best_start(engine, "", &[&small])?;
            let attached = self.best_start(engine, ENTER, &[&small])?;
            rows[0].put(engine, Ok(attached - ticking));
            match self.attach_nodes(engine) {
                Ok([one, two]) => {
                    rows[1].put(engine, Ok(one - ticking));
                    rows[2].put(engine, Ok(two - one));
                }
                Err(why) => rows[1].put(engine, Err(why)),
            }
        }
        Ok(rows.into())
    }

    /// Measures the same for one and for two processes of a big program.
    fn attach_nodes(&self, engine: Engine) -> anyhow::Result<[f64; 2]> {
        let nodes = [node()?, node()?];
        let one = self.best_start(engine, ENTER, &[&nodes[0]])?;
        let two = self.best_start(engine, ENTER, &[&nodes[0], &nodes[1]])?;
        Ok([one, two])
    }

    /// Returns the milliseconds from a session's start to its first tick, the best of some.
    fn best_start(
        &self,
        engine: Engine,
        script: &str,
        targets: &[&Workload],
    ) -> anyhow::Result<f64> {
        const SESSIONS: usize = 5;
        let mut best = f64::INFINITY;
        for _ in 0..SESSIONS {
            let begin = Instant::now();
            let tool = self.start(engine, script, targets)?;
            best = best.min(begin.elapsed().as_secs_f64() * 1e3);
            tool.interrupt();
        }
        Ok(best)
    }

    /// Starts bpftrace on these processes, and waits until it is attached.
    fn start(&self, engine: Engine, script: &str, targets: &[&Workload]) -> anyhow::Result<Tool> {
        let command = match engine {
            Engine::Kernel => beeline_e2e::with_tracefs(&self.bpftrace),
            Engine::Beeline => {
                let mut command = Command::new(beeline_e2e::beeline());
                command.arg("run");
                for target in targets {
                    command.args(["--pid", &target.pid().to_string()]);
                }
                command.arg("--").arg(&self.bpftrace);
                beeline_e2e::compile_anew(&mut command);
                command
            }
        };
        let tool = Tool::bpftrace(command, script);
        tool.expect_line(|line| line == TICK)
            .map_err(|why| anyhow!(why))?;
        Ok(tool)
    }

    /// Returns a row with the cost that a script adds to the answer to a command, in units of so
    /// many picoseconds.
    fn added(
        &self,
        mut row: Row,
        engines: &[Engine],
        script: &str,
        command: &str,
        unit: f64,
    ) -> Row {
        for &engine in engines {
            let times = self.in_turns(command, |target| self.start(engine, script, &[target]));
            if let Ok((alone, _)) = times {
                let least = row.unprobed.unwrap_or(f64::INFINITY);
                row.unprobed = Some(least.min(alone / unit));
            }
            row.put(engine, times.map(|(alone, traced)| (traced - alone) / unit));
        }
        row
    }

    /// Returns the best answers of targets before a tool is started for them, and after.
    fn in_turns(
        &self,
        command: &str,
        start: impl Fn(&Workload) -> anyhow::Result<Tool>,
    ) -> anyhow::Result<(f64, f64)> {
        let mut best = (f64::INFINITY, f64::INFINITY);
        for _ in 0..TURNS {
            let mut target = self.target();
            best.0 = number(&mut target, command)?.min(best.0);
            let _tool = start(&target)?;
            std::thread::sleep(SETTLED);
            best.1 = number(&mut target, command)?.min(best.1);
        }
        Ok(best)
    }

    fn target(&self) -> Workload {
        Workload::start(&self.meter)
    }
}

/// Starts a node process that waits.
fn node() -> anyhow::Result<Workload> {
    let program = find_program("node").map_err(|why| anyhow!(why))?;
    let mut command = Command::new(program);
    command.args(["-e", "console.log('ready'); process.stdin.resume()"]);
    Ok(Workload::start_command(command))
}

fn number(target: &mut Workload, command: &str) -> anyhow::Result<f64> {
    let answer = target.ask(command).map_err(|why| anyhow!(why))?;
    answer
        .parse()
        .with_context(|| format!("the target answered {answer} to {command}"))
}

//! What tracing system calls costs: the calls, those beside them, whole processes, and getting in.

use crate::table::Row;
use anyhow::{Context, anyhow};
use beeline_e2e::{Engine, Scratch, TICK, Tool, Workload, find_program};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// Calls in a timed round, and rounds of which the best counts.
const CALLS: u64 = 20_000;
const ROUNDS: u32 = 100;
/// The same of pairs of open and close.
const OPENS: u64 = 2_000;
/// Children of which the quickest counts: a busy machine delays some of them and not all.
const CHILDREN: u32 = 60;
/// LLVM's code takes the light compiler's place within this time.
const SETTLED: Duration = Duration::from_millis(700);

const ENTER: &str = "tracepoint:syscalls:sys_enter_getppid { }";
const BOTH: &str =
    "tracepoint:syscalls:sys_enter_getppid { } tracepoint:syscalls:sys_exit_getppid { }";
const COUNT: &str = "tracepoint:syscalls:sys_enter_getppid { @ = count(); }";

/// Every row of this topic.
pub fn all(engines: &[Engine]) -> anyhow::Result<Vec<Row>> {
    let bench = Bench::build()?;
    let mut rows = bench.single(engines)?;
    rows.push(bench.opensnoop(engines)?);
    rows.extend(bench.children(engines)?);
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

    /// What is added to one call.
    fn single(&self, engines: &[Engine]) -> anyhow::Result<Vec<Row>> {
        let mut rows = Vec::new();
        for (what, call, script) in [
            ("traced call, empty on enter and exit", "getppid", BOTH),
            ("the same by libc's syscall()", "syscall", BOTH),
            ("traced call, empty on enter", "getppid", ENTER),
            ("traced call, @ = count() on enter", "getppid", COUNT),
            ("another call of the process", "getuid", BOTH),
        ] {
            let command = format!("time {call} {CALLS} {ROUNDS}");
            let mut row = Row::new(format!("{what}, added"), "ns/call");
            let untraced = number(&mut self.target(), &command)? / 1e3;
            row.unprobed = Some(untraced);
            for &engine in engines {
                let traced = self.traced(engine, script, &command);
                row.put(engine, traced.map(|traced| traced / 1e3 - untraced));
            }
            rows.push(row);
        }
        Ok(rows)
    }

    /// What a program that only opens and closes a file loses of its speed.
    fn opensnoop(&self, engines: &[Engine]) -> anyhow::Result<Row> {
        let command = format!("time open {OPENS} {ROUNDS}");
        let mut row = Row::new("open and close under opensnoop, speed lost", "%");
        let untraced = number(&mut self.target(), &command)?;
        for &engine in engines {
            let traced = || {
                let opensnoop = find_program("opensnoop").map_err(|why| anyhow!(why))?;
                let mut target = self.target();
                let mut tool = match engine {
                    Engine::Kernel => beeline_e2e::with_tracefs(&opensnoop),
                    Engine::Beeline => engine.command(&opensnoop),
                };
                tool.args(["-p", &target.pid().to_string()]);
                let tool = Tool::start_on_terminal(tool);
                tool.expect_line(|line| line.contains("COMM"))
                    .map_err(|why| anyhow!(why))?;
                std::thread::sleep(SETTLED);
                number(&mut target, &command)
            };
            row.put(
                engine,
                traced().map(|traced| (1.0 - untraced / traced) * 100.0),
            );
        }
        Ok(row)
    }

    /// What a child takes that runs another program.
    fn children(&self, engines: &[Engine]) -> anyhow::Result<Vec<Row>> {
        let mut rows = Vec::new();
        for how in ["fork", "vfork"] {
            let command = format!("spawn {how} {CHILDREN}");
            let mut row = Row::new(format!("{how}, exec of /bin/true, wait; added"), "us");
            let untraced = number(&mut self.target(), &command)? / 1e6;
            row.unprobed = Some(untraced);
            for &engine in engines {
                let traced = self.traced(engine, BOTH, &command);
                row.put(engine, traced.map(|traced| traced / 1e6 - untraced));
            }
            rows.push(row);
        }
        Ok(rows)
    }

    /// From bpftrace's start to its first tick: what tracing system calls adds to a script that only ticks.
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

    /// The same for one and for two processes of a big program.
    fn attach_nodes(&self, engine: Engine) -> anyhow::Result<[f64; 2]> {
        let nodes = [node()?, node()?];
        let one = self.best_start(engine, ENTER, &[&nodes[0]])?;
        let two = self.best_start(engine, ENTER, &[&nodes[0], &nodes[1]])?;
        Ok([one, two])
    }

    /// Milliseconds from a session's start to its first tick, the best of some.
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

    /// bpftrace on these processes, attached.
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

    /// What a fresh target answers to a command when it is traced.
    fn traced(&self, engine: Engine, script: &str, command: &str) -> anyhow::Result<f64> {
        let mut target = self.target();
        let _tool = self.start(engine, script, &[&target])?;
        std::thread::sleep(SETTLED);
        number(&mut target, command)
    }

    fn target(&self) -> Workload {
        Workload::start(&self.meter)
    }
}

/// A node that waits.
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

//! Measures the cost of a function that is probed in all processes for those that come to it for a
//! moment: programs that run it, and others.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, anyhow, ensure};
use beeline_e2e::{Engine, Scratch, Tool, find_program, map_counts, with_tracefs};

use crate::table::Row;

/// The programs that are run, one after the other, for each figure.
const RUNS: u64 = 200;
/// The calls of the probed function by each program that calls it.
const CALLS: u64 = 10;

/// A program that is run repeatedly, and the function that is probed meanwhile.
struct Moment {
    what: &'static str,
    program: PathBuf,
    arguments: &'static [&'static str],
    script: String,
    /// The hits in each run.
    hits: u64,
}

/// Returns every row of this topic.
pub fn all(engines: &[Engine]) -> anyhow::Result<Vec<Row>> {
    let bpftrace = find_program("bpftrace").map_err(|why| anyhow!(why))?;
    let scratch = Scratch::new();
    let program = scratch.build("moments.c");
    let plugin = scratch.build_with("plugin.c", &["-shared", "-fPIC"]);
    let needy = scratch.build_with("needs_plugin.c", &[&plugin.display().to_string()]);
    let count = |file: &Path, function: &str| {
        format!("uprobe:{}:{function} {{ @ = count(); }}", file.display())
    };
    let child = &["", "child"][..];
    let moments = [
        Moment {
            what: "run of a program that is probed",
            program: program.clone(),
            arguments: child,
            script: count(&program, "m_run"),
            hits: CALLS,
        },
        Moment {
            what: "run of a program with a library that is probed",
            program: needy,
            arguments: &[],
            script: count(&plugin, "plugin_work"),
            hits: CALLS,
        },
        Moment {
            what: "run of a program that no probe concerns",
            program,
            arguments: child,
            script: count(&plugin, "plugin_work"),
            hits: 0,
        },
    ];
    let mut rows = Vec::new();
    for moment in moments {
        let mut row = Row::new(moment.what, "ms");
        row.unprobed = Some(moment.run()?);
        for &engine in engines {
            row.put(engine, moment.probed(engine, &bpftrace));
        }
        rows.push(row);
    }
    Ok(rows)
}

impl Moment {
    /// Returns the milliseconds of each run.
    fn run(&self) -> anyhow::Result<f64> {
        let begin = Instant::now();
        for _ in 0..RUNS {
            let mut command = Command::new(&self.program);
            let status = command.args(self.arguments).status();
            ensure!(status.context("running a program")?.success(), "it failed");
        }
        Ok(begin.elapsed().as_secs_f64() * 1e3 / RUNS as f64)
    }

    /// Measures the same under a tool, which must count all hits.
    fn probed(&self, engine: Engine, bpftrace: &Path) -> anyhow::Result<f64> {
        let command = match engine {
            Engine::Kernel => with_tracefs(bpftrace),
            Engine::Beeline => engine.command(bpftrace),
        };
        let tool = Tool::bpftrace(command, &self.script);
        tool.wait_attached();
        let took = self.run()?;
        tool.settle();
        let ended = tool.interrupt();
        let counted = map_counts(&ended.stdout).get("@").copied().unwrap_or(0);
        let hits = RUNS * self.hits;
        ensure!(counted == hits, "{counted} of {hits} hits were counted");
        Ok(took)
    }
}

//! Measures the cost of map operations and helpers, from a program and from the tool.

use crate::table::Row;
use anyhow::{Context, anyhow};
use beeline_e2e::{Engine, Scratch, Tool};
use std::path::Path;
use std::time::Duration;

/// The time limit: longer than a run on the kernel takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);

/// The workload's name of an operation, and its description.
const FROM_PROGRAMS: [(&str, &str); 20] = [
    ("nothing", "one turn of the loop around each of these"),
    ("hash-look-up", "hash look-up hit, 8-byte key"),
    ("hash-update", "hash update existing"),
    ("hash-insert-delete", "hash insert + delete"),
    ("percpu-hash-look-up", "per-CPU hash look-up hit"),
    ("lru-look-up", "LRU hash look-up hit"),
    ("lru-update", "LRU hash update existing"),
    ("lru-evict", "LRU hash insert, evicting another"),
    ("array-add", "array look-up, atomic add"),
    ("percpu-array-add", "per-CPU array ++"),
    ("ring-reserve-submit", "ring buffer reserve + submit, 64 B"),
    ("perf-output", "perf_event_output, 64 B"),
    ("read-user", "probe_read_user, 8 B"),
    ("stack-id", "get_stackid, 8 frames and what is above"),
    ("stack-id-20", "get_stackid, 20 frames and what is above"),
    ("queue-push-pop", "queue push + pop"),
    ("clock", "ktime_get_ns"),
    ("user", "get_current_uid_gid"),
    ("numa-node", "get_numa_node_id"),
    ("percpu-array-of", "a CPU's element of a per-CPU array"),
];
const FROM_THE_TOOL: [(&str, &str); 4] = [
    ("tool-look-up", "bpf() hash look-up by the tool"),
    ("tool-update", "bpf() hash update by the tool"),
    ("tool-batch-update", "the same in batches of 4096"),
    (
        "tool-batch-look-up",
        "1,000,000 entries read in batches, each",
    ),
];

/// Measures every operation, with one thread and with two.
///
/// Each has a run of its own: an operation that an engine does not have costs no other's figures.
pub fn all(engines: &[Engine]) -> anyhow::Result<Vec<Row>> {
    let scratch = Scratch::new();
    let program = scratch.build("operations.c");
    let mut rows = [Vec::new(), Vec::new()];
    for (name, what) in FROM_PROGRAMS {
        let mut new =
            ["1 thread", "2 threads"].map(|with| Row::new(format!("{what}, {with}"), "ns"));
        for &engine in engines {
            let figures = measure(engine, &program, name);
            for (threads, row) in new.iter_mut().enumerate() {
                row.put(engine, figure(&figures, threads));
            }
        }
        for (of, row) in rows.iter_mut().zip(new) {
            of.push(row);
        }
    }
    let mut rows = rows.concat();
    for (name, what) in FROM_THE_TOOL {
        let mut row = Row::new(what, "ns");
        for &engine in engines {
            row.put(engine, figure(&measure(engine, &program, name), 0));
        }
        rows.push(row);
    }
    Ok(rows)
}

/// Returns an operation's figures, by the number of threads less one, as the workload prints them.
pub fn measure(engine: Engine, program: &Path, name: &str) -> anyhow::Result<Vec<f64>> {
    let mut command = engine.command(program);
    command.arg(name);
    let ended = Tool::start(command).wait_at_most(PATIENCE);
    let line = ended
        .stdout
        .iter()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let words = line
        .with_context(|| ended.stderr.join("\n"))?
        .split_whitespace();
    Ok(words.map(str::parse).collect::<Result<_, _>>()?)
}

/// Returns one of them.
pub fn figure(figures: &anyhow::Result<Vec<f64>>, threads: usize) -> anyhow::Result<f64> {
    match figures {
        Ok(figures) => figures
            .get(threads)
            .copied()
            .context("there is no such figure"),
        Err(why) => Err(anyhow!("{why:#}")),
    }
}

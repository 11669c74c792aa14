//! Measures the cost of map operations for a tool of many processes.

use beeline_e2e::{Engine, Scratch};

use crate::operations;
use crate::table::Row;

/// The workload's names, and their descriptions.
const BY: [(&str, &str); 7] = [
    ("forked", "an operation by 100 forked children"),
    ("forked-first", "the same, of a parent that made none"),
    ("executed", "the same, of 100 that run a program"),
    ("threads", "the same, by 100 threads"),
    ("walk", "a key of a walk through 100,000"),
    ("own-maps", "an operation by 20 children on own maps"),
    ("short-lived", "a map made, used and closed by 20 children"),
];
/// The runs of each, of which the best counts.
const RUNS: usize = 5;

/// Returns every row of this topic.
pub fn all(engines: &[Engine]) -> anyhow::Result<Vec<Row>> {
    let scratch = Scratch::new();
    let program = scratch.build_with("crowd.c", &["-O2", "-pthread"]);
    let mut rows = Vec::new();
    for (name, what) in BY {
        let mut row = Row::new(what, "ns");
        for &engine in engines {
            let runs: anyhow::Result<Vec<f64>> = (0..RUNS)
                .map(|_| operations::figure(&operations::measure(engine, &program, name), 0))
                .collect();
            row.put(
                engine,
                runs.map(|runs| runs.into_iter().fold(f64::INFINITY, f64::min)),
            );
        }
        rows.push(row);
    }
    Ok(rows)
}

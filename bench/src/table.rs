//! Prints rows of figures.

use beeline_e2e::Engine;
use serde::Serialize;

/// One measurement. A figure that could not be taken is absent.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The subject of the measurement.
    pub what: String,
    /// The unit of the figures.
    pub unit: &'static str,
    /// The figure without a probe.
    pub unprobed: Option<f64>,
    /// The figure under the kernel's probes.
    pub kernel: Option<f64>,
    /// The figure under Beeline's.
    pub beeline: Option<f64>,
}

impl Row {
    /// Creates a row with no figure yet.
    pub fn new(what: impl Into<String>, unit: &'static str) -> Row {
        Row {
            what: what.into(),
            unit,
            unprobed: None,
            kernel: None,
            beeline: None,
        }
    }

    /// Puts a figure in an engine's column.
    ///
    /// A failed one is reported on stderr and left out, so that one engine's trouble does not cost
    /// the other's figures.
    pub fn put(&mut self, engine: Engine, figure: anyhow::Result<f64>) {
        let cell = match engine {
            Engine::Kernel => &mut self.kernel,
            Engine::Beeline => &mut self.beeline,
        };
        match figure {
            Ok(figure) => *cell = Some(figure),
            Err(why) => eprintln!("{} on {engine}: {why:#}", self.what),
        }
    }
}

/// Prints rows as a table. The last column is the kernel's figure divided by Beeline's.
pub fn print(rows: &[Row]) {
    println!(
        "{:<52} {:>8} {:>12} {:>12} {:>12} {:>8}",
        "", "unit", "unprobed", "kernel", "beeline", "ratio"
    );
    for row in rows {
        let ratio = match (row.kernel, row.beeline) {
            (Some(kernel), Some(beeline)) if kernel > 0.0 && beeline > 0.0 => {
                format!("{:.1}x", kernel / beeline)
            }
            _ => "-".to_owned(),
        };
        println!(
            "{:<52} {:>8} {:>12} {:>12} {:>12} {ratio:>8}",
            row.what,
            row.unit,
            figure(row.unprobed),
            figure(row.kernel),
            figure(row.beeline)
        );
    }
    println!();
}

fn figure(value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(value) if value.abs() >= 100.0 || value == 0.0 => format!("{value:.0}"),
        Some(value) => format!("{value:.1}"),
    }
}

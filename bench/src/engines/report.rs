//! Prints figures.

use super::compile::CompileTime;
use serde::Serialize;

/// The time of a program on one engine.
#[derive(Debug, Clone, Serialize)]
pub struct Figure {
    /// The program.
    pub program: &'static str,
    /// The engine.
    pub engine: &'static str,
    /// The nanoseconds of a run.
    pub ns: f64,
    /// The time of a run, in native runs with general registers only.
    pub ratio: f64,
}

/// Prints a line for each program and a column for each engine: the nanoseconds of the first, and
/// multiples of them for the others.
pub fn print(figures: &[Figure]) {
    let engines = in_order(figures, |figure| figure.engine);
    let Some((first, others)) = engines.split_first() else {
        return;
    };
    let heading: String = others.iter().map(|name| format!("{name:>14}")).collect();
    println!(
        "{:<18} {:>13}{heading}",
        "a run, ratios",
        format!("{first}, ns")
    );
    for program in in_order(figures, |figure| figure.program) {
        let of = |engine: &str| {
            figures
                .iter()
                .find(|figure| figure.program == program && figure.engine == engine)
        };
        let ns = of(first).map_or_else(dash, |figure| format!("{:.1}", figure.ns));
        let ratios: String = others
            .iter()
            .map(|engine| of(engine).map_or_else(dash, |figure| format!("{:.2}", figure.ratio)))
            .map(|ratio| format!("{ratio:>14}"))
            .collect();
        println!("{program:<18} {ns:>13}{ratios}");
    }
    println!();
}

/// Prints a line for each program and compiler.
pub fn print_compile_times(times: &[CompileTime]) {
    println!(
        "{:<18} {:>8} {:>14} {:>12} {:>12}",
        "compiling", "insns", "engine", "us", "code, bytes"
    );
    for time in times {
        println!(
            "{:<18} {:>8} {:>14} {:>12.1} {:>12}",
            time.program, time.insns, time.engine, time.us, time.code_bytes
        );
    }
    println!();
}

fn dash() -> String {
    "-".to_owned()
}

fn in_order(figures: &[Figure], of: fn(&Figure) -> &'static str) -> Vec<&'static str> {
    let mut seen = Vec::new();
    for name in figures.iter().map(of) {
        if !seen.contains(&name) {
            seen.push(name);
        }
    }
    seen
}

//! Beeline's engines and others', natively compiled code and the kernel run the same programs in turns.
//!
//! ubpf has no place here: its one crate binds a C library that is packaged nowhere. rbpf's compiler is a port of ubpf's.

mod rbpf;
mod solana;
mod wasmtime;

use beeline_bench::engines::{self, Contestant, PROGRAMS, ROUNDS};
use beeline_e2e::Turn;
use clap::Parser;

/// Engines of Beeline and others against native code.
#[derive(Parser)]
#[command(version, about)]
struct Options {
    /// The programs to run; all if none is named.
    only: Vec<String>,
    /// Rounds, of which the best counts.
    #[arg(long, default_value_t = ROUNDS)]
    rounds: u32,
    /// Print one JSON array of figures instead of a table.
    #[arg(long)]
    json: bool,
}

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let _turn = Turn::take();
    let is_wanted =
        |name: &str| options.only.is_empty() || options.only.iter().any(|only| only == name);
    let programs: Vec<_> = PROGRAMS
        .into_iter()
        .filter(|program| is_wanted(program.name))
        .collect();
    let mut contestants = engines::usual_contestants();
    contestants.extend(peers());
    let figures = engines::contest(&programs, &contestants, options.rounds)?;
    if options.json {
        println!("{}", serde_json::to_string_pretty(&figures)?);
    } else {
        engines::print(&figures);
    }
    Ok(())
}

fn peers() -> Vec<Box<dyn Contestant>> {
    vec![
        Box::new(rbpf::Rbpf::Interpreter),
        Box::new(rbpf::Rbpf::Jit),
        Box::new(solana::Solana::Interpreter),
        Box::new(solana::Solana::Jit),
        Box::new(wasmtime::Wasmtime),
    ]
}

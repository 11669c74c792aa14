//! Compares Beeline and the kernel, in one run on one machine.
//!
//! Each measurement starts a fresh target that times itself, runs an unmodified tool on it by the
//! kernel and by Beeline, and takes the best of several rounds. Added cost is the time that a
//! probed call takes more than an unprobed one. `demo` shows the same for one real program.

mod calls;
mod demo;
mod demo_guest;
mod guest;
mod measure;
mod moments;
mod operations;
mod processes;
mod scale;
mod session;
mod strace;
mod table;
mod users;
mod verify;

use beeline_bench::engines::{self, PROGRAMS, ROUNDS};
use beeline_e2e::{Engine, Turn};
use clap::{Parser, ValueEnum};
use serde::Serialize;
use serde_json::Value;
use table::Row;

/// Measures the cost of Beeline's probes and of the kernel's, and the speed of Beeline's engines.
#[derive(Parser)]
#[command(version, about)]
struct Options {
    /// The measurements to take; all if none is named.
    #[arg(value_enum)]
    only: Vec<Topic>,
    /// The engines to measure; both if not given.
    #[arg(long, value_enum)]
    engine: Option<Which>,
    /// Print one JSON array of rows instead of a table.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Which {
    Kernel,
    Beeline,
}

/// A measurement.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Topic {
    /// An empty program at a function's entry, by the kind of its first instruction.
    Entry,
    /// An empty program at a function's return, by the kind of its first instruction.
    Return,
    /// bpftrace's one-liners: counting, histograms, the time of a call, a filter.
    Count,
    /// Ten million calls of getpid() in libc.
    Getpid,
    /// The time that the target stands still while probes are attached.
    Stop,
    /// The growth of the target: memory, mappings, threads and descriptors.
    Footprint,
    /// The time from an event in the target to the tool's printed line.
    Event,
    /// Map operations and helpers, from a program and from the tool.
    Operations,
    /// Map operations of a tool of many processes.
    Processes,
    /// Programs run by each of Beeline's engines, by the kernel's compiler and natively. Not part
    /// of the usual run: beeline-peers does the same, and others' engines take part.
    Engines,
    /// The cost of tracing system calls: for a call, for a process, and for its children.
    Calls,
    /// A session on a machine with many processes.
    Scale,
    /// Processes of one user, and of many.
    Users,
    /// Opens counted under a container's filter; the kernel's column is strace's.
    Strace,
    /// Programs that live for a moment, and libraries that are loaded for one.
    Moments,
    /// A tool here with its kernel in a virtual machine; the kernel's column is the tool inside the
    /// machine. Not part of the usual run.
    Guest,
    /// The time of compiling, and of a call of compiled code.
    Compile,
    /// Verifying every program of libbpf's tools, and the kernel's own loads of them.
    Verify,
    /// A real program under a one-liner. Not part of the usual run.
    Demo,
    /// Tools on this machine, and their programs in a virtual machine. Not part of the usual run.
    DemoGuest,
}

const USUAL: [Topic; 16] = [
    Topic::Entry,
    Topic::Return,
    Topic::Count,
    Topic::Getpid,
    Topic::Stop,
    Topic::Footprint,
    Topic::Event,
    Topic::Operations,
    Topic::Processes,
    Topic::Calls,
    Topic::Scale,
    Topic::Users,
    Topic::Strace,
    Topic::Moments,
    Topic::Compile,
    Topic::Verify,
];

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let _turn = Turn::take();
    let engines = usable_engines(options.engine);
    let topics = if options.only.is_empty() {
        USUAL.to_vec()
    } else {
        options.only
    };
    let mut rows = Vec::new();
    for topic in topics {
        rows.extend(measured(topic, &engines, options.json)?);
    }
    if options.json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
    }
    Ok(())
}

/// Returns the requested engines, without those that the machine does not have, which are printed.
fn usable_engines(which: Option<Which>) -> Vec<Engine> {
    let wanted = match which {
        None => vec![Engine::Kernel, Engine::Beeline],
        Some(Which::Kernel) => vec![Engine::Kernel],
        Some(Which::Beeline) => vec![Engine::Beeline],
    };
    let usable = |engine: &Engine| match engine.available() {
        Ok(()) => true,
        Err(why) => {
            eprintln!("not measured on the {engine}: {why}");
            false
        }
    };
    wanted.into_iter().filter(usable).collect()
}

/// Takes a topic's figures; prints them, or returns them as rows of JSON.
fn measured(topic: Topic, on: &[Engine], json: bool) -> anyhow::Result<Vec<Value>> {
    match topic {
        Topic::Engines => {
            let contestants = engines::usual_contestants();
            let figures = engines::contest(&PROGRAMS, &contestants, ROUNDS)?;
            shown(&figures, json, engines::print)
        }
        Topic::Compile => {
            let mut call = Row::new("call of an embedded, empty program", "ns");
            call.beeline = Some(engines::empty_call(ROUNDS)?);
            let call = shown(&[call], json, table::print)?;
            let times = engines::compile_times(ROUNDS)?;
            let times = shown(&times, json, engines::print_compile_times)?;
            Ok([call, times].concat())
        }
        Topic::DemoGuest => demo_guest::run().map(|()| Vec::new()),
        other => shown(&probes(other, on)?, json, table::print),
    }
}

/// Prints rows, or returns them as JSON.
fn shown<R: Serialize>(rows: &[R], json: bool, print: fn(&[R])) -> anyhow::Result<Vec<Value>> {
    if json {
        return Ok(rows
            .iter()
            .map(serde_json::to_value)
            .collect::<Result<_, _>>()?);
    }
    print(rows);
    Ok(Vec::new())
}

/// Takes a measurement on the kernel and on Beeline, one row each.
fn probes(topic: Topic, engines: &[Engine]) -> anyhow::Result<Vec<Row>> {
    match topic {
        Topic::Entry => measure::empty_probes(engines, 'p'),
        Topic::Return => measure::empty_probes(engines, 'r'),
        Topic::Count => measure::counting(engines),
        Topic::Getpid => measure::getpid(engines),
        Topic::Stop => measure::stops(engines),
        Topic::Footprint => measure::footprints(engines),
        Topic::Event => measure::events(engines),
        Topic::Operations => operations::all(engines),
        Topic::Processes => processes::all(engines),
        Topic::Calls => calls::all(engines),
        Topic::Scale => scale::all(engines),
        Topic::Users => users::all(engines),
        Topic::Strace => strace::all(),
        Topic::Moments => moments::all(engines),
        Topic::Guest => guest::all(engines),
        Topic::Verify => verify::all(),
        Topic::Demo => demo::run(engines),
        Topic::Engines | Topic::Compile | Topic::DemoGuest => Ok(Vec::new()),
    }
}

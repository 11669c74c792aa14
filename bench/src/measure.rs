//! The measurements.

use crate::session::{LIBC, Programs, Target};
use crate::table::Row;
use anyhow::Context;
use beeline_e2e::{Engine, Footprint};
use std::path::Path;
use std::time::{Duration, Instant};

/// The kinds of first instruction, as the target names them.
const KINDS: [&str; 6] = ["nop5", "push", "endbr64", "mov", "compare", "sub"];
/// The kind of Go's functions, which are at fixed addresses.
const OF_GO: &str = "compare";

/// Returns the calls in a timed round: the kernel's probes cost a hundred times more.
fn calls(engine: Engine) -> u64 {
    match engine {
        Engine::Kernel => 1_000,
        Engine::Beeline => 50_000,
    }
}

const UNPROBED_CALLS: u64 = 200_000;
/// The rounds: many short ones, of which the best counts. A neighbour on the machine disturbs some
/// of them and not all.
const ROUNDS: u32 = 100;

/// Measures the added cost of an empty program at the entry ('p') or the return ('r') of a
/// function.
pub fn empty_probes(engines: &[Engine], kind: char) -> anyhow::Result<Vec<Row>> {
    let programs = Programs::build()?;
    let fixed = Programs::at_fixed_addresses()?;
    let place = if kind == 'p' { "entry" } else { "return" };
    let mut rows = Vec::new();
    let usual = KINDS.map(|first| (first, &programs, ""));
    for (first, programs, at) in usual.into_iter().chain([(OF_GO, &fixed, " as in Go")]) {
        let mut row = Row::new(
            format!("empty {place} probe, first instruction {first}{at}, added"),
            "ns/call",
        );
        let unprobed = programs.target().time(first, UNPROBED_CALLS, ROUNDS)?;
        row.unprobed = Some(unprobed);
        for &engine in engines {
            let probed = time_probed(programs, engine, kind, first);
            row.put(engine, probed.map(|probed| probed - unprobed));
        }
        rows.push(row);
    }
    Ok(rows)
}

fn time_probed(
    programs: &Programs,
    engine: Engine,
    kind: char,
    first: &str,
) -> anyhow::Result<f64> {
    let mut target = programs.target();
    let _tool = target.attach(engine, kind, &[format!("m_{first}")])?;
    target.time(first, calls(engine), ROUNDS)
}

/// bpftrace's one-liners: what each does, and its script.
const SCRIPTS: [(&str, &str); 7] = [
    (
        "bpftrace with a filter that does not hold, added",
        // It is evaluated each time: the target counts its calls in arg0, and does not come so far.
        "uprobe:{prog}:m_push /arg0 == 5000000/ { @ = count(); }",
    ),
    (
        "bpftrace @ = count(), added",
        "uprobe:{prog}:m_push { @ = count(); }",
    ),
    (
        "bpftrace @[tid] = count(), added",
        "uprobe:{prog}:m_push { @[tid] = count(); }",
    ),
    (
        "bpftrace @[comm] = count(), added",
        "uprobe:{prog}:m_push { @[comm] = count(); }",
    ),
    (
        "bpftrace @ = hist(arg0), added",
        "uprobe:{prog}:m_push { @ = hist(arg0); }",
    ),
    (
        "bpftrace @ = hist(retval), added",
        "uretprobe:{prog}:m_push { @ = hist(retval); }",
    ),
    (
        "bpftrace's time of a call by thread, added",
        "uprobe:{prog}:m_push { @start[tid] = nsecs; } \
         uretprobe:{prog}:m_push /@start[tid]/ \
         { @ = hist(nsecs - @start[tid]); delete(@start[tid]); }",
    ),
];

/// Measures the added cost of bpftrace's one-liners.
pub fn counting(engines: &[Engine]) -> anyhow::Result<Vec<Row>> {
    let programs = Programs::build()?;
    let mut rows = Vec::new();
    for (what, script) in SCRIPTS {
        let mut row = Row::new(what, "ns/call");
        let unprobed = programs.target().time("push", UNPROBED_CALLS, ROUNDS)?;
        row.unprobed = Some(unprobed);
        for &engine in engines {
            let mut target = programs.target();
            let probed = target.bpftrace(engine, script);
            let probed = probed.and_then(|_tool| target.time("push", calls(engine), ROUNDS));
            row.put(engine, probed.map(|probed| probed - unprobed));
        }
        rows.push(row);
    }
    Ok(rows)
}

/// Measures ten million calls of libc's getpid(), in seconds.
///
/// On the kernel, a hundredth of that is run and scaled up.
pub fn getpid(engines: &[Engine]) -> anyhow::Result<Vec<Row>> {
    const CALLS: u64 = 10_000_000;
    let programs = Programs::build()?;
    let mut row = Row::new("10,000,000 x getpid(), `return 0` at its entry", "s");
    let seconds = |per_call: f64| per_call * CALLS as f64 / 1e9;
    row.unprobed = Some(seconds(programs.target().time("getpid", CALLS, 1)?));
    for &engine in engines {
        let calls = if engine == Engine::Kernel {
            CALLS / 100
        } else {
            CALLS
        };
        let mut target = programs.target();
        let tool = target.attach_in(engine, Path::new(LIBC), 'p', &["getpid".to_owned()]);
        row.put(
            engine,
            tool.and_then(|_tool| target.time("getpid", calls, 1))
                .map(seconds),
        );
    }
    Ok(vec![row])
}

/// Measures the time that a busy thread of the target stands still while probes are attached and
/// detached, and the time that the tool takes to attach.
///
/// Measured once without a tool too: on a busy machine threads stand still by themselves.
pub fn stops(engines: &[Engine]) -> anyhow::Result<Vec<Row>> {
    let programs = Programs::build()?;
    let mut rows = Vec::new();
    for count in [1, 100] {
        let functions: Vec<String> = (0..count).map(|n| format!("m_many_{n}")).collect();
        let mut new = [
            ("target stands still at once, at most", "us"),
            ("target stands still in all", "us"),
            ("from starting the tool to attached", "ms"),
        ]
        .map(|(what, unit)| Row::new(format!("{what}, {count} probes"), unit));
        let idle = best_of_three(|| standstill(&programs, None))?;
        for (row, figure) in new.iter_mut().zip(idle).take(2) {
            row.unprobed = Some(figure);
        }
        for &engine in engines {
            match best_of_three(|| standstill(&programs, Some((engine, &functions)))) {
                Ok(figures) => {
                    for (row, figure) in new.iter_mut().zip(figures) {
                        row.put(engine, Ok(figure));
                    }
                }
                Err(why) => new[0].put(engine, Err(why)),
            }
        }
        rows.extend(new);
    }
    Ok(rows)
}

/// Returns each figure's smallest of three.
fn best_of_three(mut take: impl FnMut() -> anyhow::Result<[f64; 3]>) -> anyhow::Result<[f64; 3]> {
    let mut best = [f64::INFINITY; 3];
    for _ in 0..3 {
        let figures = take()?;
        best = std::array::from_fn(|i| best[i].min(figures[i]));
    }
    Ok(best)
}

/// Returns the microseconds of standstill, the longest and in all, and the milliseconds until
/// attached.
fn standstill(
    programs: &Programs,
    probes: Option<(Engine, &[String])>,
) -> anyhow::Result<[f64; 3]> {
    let mut target = programs.target();
    target.tell("spin")?;
    let begin = Instant::now();
    let mut attached = 0.0;
    if let Some((engine, functions)) = probes {
        let tool = target.attach(engine, 'p', functions)?;
        attached = begin.elapsed().as_secs_f64() * 1000.0;
        tool.wait();
    } else {
        std::thread::sleep(Duration::from_millis(50)); // about as long as attaching takes
    }
    let answer = target.tell("rest")?;
    let (longest, in_all) = answer
        .split_once(' ')
        .context("two numbers were expected")?;
    Ok([
        longest.parse::<f64>()? / 1000.0,
        in_all.parse::<f64>()? / 1000.0,
        attached,
    ])
}

/// Measures the growth of the target while bpftrace counts in it.
pub fn footprints(engines: &[Engine]) -> anyhow::Result<Vec<Row>> {
    let programs = Programs::build()?;
    let mut rows = [
        ("private memory added", "KiB"),
        ("mappings added", ""),
        ("threads added", ""),
        ("descriptors added", ""),
    ]
    .map(|(what, unit)| Row::new(what, unit));
    for &engine in engines {
        match growth(&programs, engine) {
            Ok(figures) => {
                for (row, figure) in rows.iter_mut().zip(figures) {
                    row.put(engine, Ok(figure));
                }
            }
            Err(why) => rows[0].put(engine, Err(why)),
        }
    }
    Ok(rows.into())
}

fn growth(programs: &Programs, engine: Engine) -> anyhow::Result<[f64; 4]> {
    let mut target = programs.target();
    target.time("push", 1000, 1)?;
    let before = sizes(&target)?;
    let _tool = target.bpftrace(engine, "uprobe:{prog}:m_push { @[comm] = count(); }")?;
    target.time("push", 1000, 1)?;
    let after = sizes(&target)?;
    Ok(std::array::from_fn(|i| after[i] - before[i]))
}

/// Returns private KiB, mappings, threads, descriptors.
fn sizes(target: &Target) -> anyhow::Result<[f64; 4]> {
    let pid = target.pid();
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let private = rollup.lines().filter(|line| line.starts_with("Private_"));
    let kibibytes = private
        .filter_map(|line| line.split_whitespace().nth(1)?.parse::<f64>().ok())
        .sum();
    let mappings = std::fs::read_to_string(format!("/proc/{pid}/maps"))?
        .lines()
        .count();
    let footprint = Footprint::of(pid);
    Ok([
        kibibytes,
        mappings as f64,
        footprint.threads as f64,
        footprint.descriptors.len() as f64,
    ])
}

/// Measures the time from the target's clock reading, through printf in the program, to the line
/// read from the tool.
pub fn events(engines: &[Engine]) -> anyhow::Result<Vec<Row>> {
    let programs = Programs::build()?;
    let mut rows =
        [50, 99].map(|percent| Row::new(format!("event to printed line, p{percent}"), "us"));
    for &engine in engines {
        match event_latencies(&programs, engine) {
            Ok(latencies) => {
                for (row, percent) in rows.iter_mut().zip([50, 99]) {
                    let at = (latencies.len() * percent / 100).min(latencies.len() - 1);
                    row.put(engine, Ok(latencies[at]));
                }
            }
            Err(why) => rows[0].put(engine, Err(why)),
        }
    }
    Ok(rows.into())
}

/// Returns latencies of some hundred events in microseconds, in ascending order.
fn event_latencies(programs: &Programs, engine: Engine) -> anyhow::Result<Vec<f64>> {
    let mut target = programs.target();
    let tool = target.bpftrace(
        engine,
        "uprobe:{prog}:m_stamp { printf(\"at %lld\\n\", arg0); }",
    )?;
    target.tell("stamp 500 2000")?;
    tool.settle();
    // An Instant does not show its reading; the same clock read next to it gives the distance.
    let (now, now_ns) = (Instant::now(), monotonic_ns());
    let lines = tool.stdout.timed();
    let events = lines.iter().filter_map(|(read, line)| {
        let happened: f64 = line.strip_prefix("at ")?.parse().ok()?;
        let read_ns = now_ns - now.duration_since(*read).as_secs_f64() * 1e9;
        Some((read_ns - happened) / 1000.0)
    });
    let mut latencies: Vec<f64> = events.collect();
    latencies.sort_by(f64::total_cmp);
    (!latencies.is_empty())
        .then_some(latencies)
        .context("the tool printed no event")
}

fn monotonic_ns() -> f64 {
    let uptime = beeline_e2e::monotonic();
    uptime.as_secs_f64() * 1e9
}

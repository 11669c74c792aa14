//! Measures the cost of a tool on one side and the kernel on the other, compared with the same tool
//! inside the guest, and with the bare channel.

mod arrivals;
mod pinning;

use crate::table::Row;
use anyhow::{Context, anyhow};
use beeline_e2e::{Engine, Guest, Options, PATIENCE, Scratch, Tool, beeline, find_program, until};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// The round trips on the bare channel, and the bytes of each.
const ROUND_TRIPS: usize = 500;
const MESSAGE: usize = 64;
/// The number of times that look-ups and round trips are measured, by turns.
const LOOK_UP_TURNS: u32 = 5;
/// The starts of a tool, of which the quickest counts: from the second on, the files that it reads
/// are in memory.
const STARTS: u32 = 3;
/// The bytes of the ring buffer that is mapped.
const RING: u32 = 64 << 20;
/// The MiB for several guests: some are still being freed when the next is made.
const MEMORY: u32 = 1024;

/// The figures that are measured with the guest's memory as well.
const IN_MEMORY: [&str; 3] = ["record", "flood", "mapping"];

const ECHO_PORT: u32 = 700;
const PROXY_PORT: u32 = 8790;
const TOOL: &str = "/bench/guest_tool";

/// Returns every row of this topic; none if there can be no guest, which is printed.
pub fn all(engines: &[Engine]) -> anyhow::Result<Vec<Row>> {
    let scratch = Scratch::new();
    let tool = scratch.build("guest_tool.c");
    let binary = beeline().with_file_name("beeline-guest");
    anyhow::ensure!(
        binary.is_file(),
        "no beeline-guest beside beeline: run make build first"
    );
    let cache = scratch.path().join("cache");
    // These guests are separate, with more CPUs, and run before there is another one to compete
    // with.
    let queue = match engines.contains(&Engine::Beeline) {
        true => pinning::row(binary.clone())?,
        false => None,
    };
    let arrivals = arrivals::rows(engines, &tool, binary.clone(), &cache)?;
    let files = vec![
        (tool.clone(), TOOL.to_owned()),
        (scratch.build("echo.c"), "/bench/echo".to_owned()),
        (binary, "/bench/beeline-guest".to_owned()),
    ];
    let options = Options {
        memory: MEMORY,
        files,
        ..Options::default()
    };
    let guest = match Guest::boot(&options) {
        Ok(guest) => guest,
        Err(why) => {
            eprintln!("not measured: {why}");
            return Ok(Vec::new());
        }
    };
    let echo = guest.start(&format!("/bench/echo vsock {ECHO_PORT}"));
    let proxy = guest.start(&format!(
        "/bench/beeline-guest --listen vsock:any:{PROXY_PORT} --audit /tmp/audit"
    ));
    for port in [ECHO_PORT, PROXY_PORT] {
        let listens = until(PATIENCE, || guest.connect_vsock(port).is_ok());
        anyhow::ensure!(listens, "nobody listens at port {port} of the guest");
    }
    let bench = Bench {
        guest: &guest,
        engines,
        tool: &tool,
        cache,
    };
    let mut rows = vec![bench.look_ups()?];
    let ring = RING.to_string();
    for (what, arguments) in [
        ("1,000 elements, by next key and look-up", &["dump"][..]),
        ("1,000 elements, by a batch", &["batch"]),
        ("test run to the ring-buffer record it writes", &["record"]),
        ("test run to the last of 1,000 records of 64 B", &["flood"]),
        ("mapping a ring buffer of 64 MB", &["mapping", &ring]),
    ] {
        rows.push(bench.measured(what, arguments, Memory::None));
        if IN_MEMORY.contains(&arguments[0]) {
            rows.push(bench.measured(
                &format!("{what}, shared memory"),
                arguments,
                Memory::Monitor,
            ));
        }
    }
    rows.push(bench.starts(
        "bpftrace, a kprobe, to its first tick",
        &[
            "bpftrace",
            "-e",
            "kprobe:ksys_read { @ = count(); } interval:ms:1 { exit(); }",
        ],
    ));
    rows.push(bench.starts(
        "bpftrace that only ticks",
        &["bpftrace", "-e", "interval:ms:1 { exit(); }"],
    ));
    drop((echo, proxy));
    rows.extend(arrivals);
    rows.extend(queue);
    Ok(rows)
}

struct Bench<'a> {
    guest: &'a Guest,
    engines: &'a [Engine],
    tool: &'a Path,
    cache: PathBuf,
}

impl Bench<'_> {
    /// Measures a look-up in a map, and the channel's time for as little, by turns: the speed of
    /// the machine varies.
    fn look_ups(&self) -> anyhow::Result<Row> {
        let what = "look-up in a map, median (alone: 64 B there and back)";
        let mut row = Row::new(what, "us");
        let mut alone = Vec::new();
        let mut taken: Vec<_> = self
            .engines
            .iter()
            .map(|engine| (*engine, Vec::new()))
            .collect();
        for _ in 0..LOOK_UP_TURNS {
            let stream = self.guest.connect_vsock(ECHO_PORT)?;
            alone.extend(middle(round_trips(stream)?));
            for (engine, taken) in &mut taken {
                taken.push(self.figure(*engine, &["look-up"], Memory::None)?);
            }
        }
        row.unprobed = middle(alone);
        for (engine, taken) in taken {
            row.put(engine, middle(taken).context("no figures"));
        }
        Ok(row)
    }

    /// Returns the small tool's measurements of itself, in microseconds: inside the guest, and from
    /// here, maybe with the guest's memory.
    fn measured(&self, what: &str, arguments: &[&str], memory: Memory) -> Row {
        let mut row = Row::new(what, "us");
        for &engine in self.engines {
            row.put(engine, self.figure(engine, arguments, memory));
        }
        row
    }

    fn figure(&self, engine: Engine, arguments: &[&str], memory: Memory) -> anyhow::Result<f64> {
        let figures = match engine {
            Engine::Kernel => self.inside(arguments)?,
            Engine::Beeline => self.on_host(arguments, memory)?,
        };
        let figures = figures.iter().map(|nanoseconds| nanoseconds / 1e3);
        middle(figures.collect()).context("no figures")
    }

    fn inside(&self, arguments: &[&str]) -> anyhow::Result<Vec<f64>> {
        let answer = self
            .guest
            .run(&format!("{TOOL} measure {}", arguments.join(" ")));
        anyhow::ensure!(answer.code == 0, "{}", answer.stderr);
        numbers(answer.stdout.lines())
    }

    fn on_host(&self, arguments: &[&str], memory: Memory) -> anyhow::Result<Vec<f64>> {
        let mut command = forwarded(self.guest, &self.cache, self.tool, memory);
        command.arg("measure").args(arguments);
        let ended = Tool::start(command).wait();
        anyhow::ensure!(ended.status.success(), "{}", ended.stderr.join("\n"));
        numbers(ended.stdout.iter().map(String::as_str))
    }

    /// Measures the time from a tool's start to its end, which it reaches by itself.
    fn starts(&self, what: &str, command: &[&str]) -> Row {
        let mut row = Row::new(what, "ms");
        for &engine in self.engines {
            row.put(engine, self.best_start(engine, command));
        }
        row
    }

    fn best_start(&self, engine: Engine, command: &[&str]) -> anyhow::Result<f64> {
        let mut best = f64::INFINITY;
        for _ in 0..STARTS {
            let begin = Instant::now();
            match engine {
                Engine::Kernel => {
                    let words = command.iter().map(|word| format!("'{word}'"));
                    let answer = self.guest.run(&words.collect::<Vec<_>>().join(" "));
                    anyhow::ensure!(answer.code == 0, "{}", answer.stderr);
                }
                Engine::Beeline => {
                    let program = find_program(command[0]).map_err(|why| anyhow!(why))?;
                    let mut host = forwarded(self.guest, &self.cache, &program, Memory::None);
                    host.args(&command[1..]);
                    let ended = Tool::start(host).wait();
                    anyhow::ensure!(ended.status.success(), "{}", ended.stderr.join("\n"));
                }
            }
            best = best.min(begin.elapsed().as_secs_f64() * 1e3);
        }
        Ok(best)
    }
}

/// The way in which a tool finds the guest's memory.
#[derive(Clone, Copy)]
enum Memory {
    /// It does not: the memory that it maps is sent.
    None,
    /// QEMU's monitor gives the place.
    Monitor,
    /// The memory is the guest's one file.
    File,
}

/// Returns `beeline run --guest` with a program.
fn forwarded(guest: &Guest, cache: &Path, program: &Path, memory: Memory) -> Command {
    let address = format!("uds:{}:{PROXY_PORT}", guest.vsock().display());
    let mut command = Command::new(beeline());
    // The facts that one start has learnt about the guest are known to the next one.
    command.env("BEELINE_CACHE", cache);
    command.args(["run", "--guest", &address]);
    match memory {
        Memory::None => {}
        Memory::Monitor => drop(command.arg("--qmp").arg(guest.qmp())),
        Memory::File => drop(command.arg("--memory").arg(guest.memory_file())),
    }
    command.arg("--").arg(program);
    command
}

/// Returns the microseconds of each.
fn round_trips(mut stream: UnixStream) -> anyhow::Result<Vec<f64>> {
    let mut message = [7; MESSAGE];
    let trip = |_| {
        let begin = Instant::now();
        stream.write_all(&message)?;
        stream.read_exact(&mut message)?;
        Ok(begin.elapsed().as_secs_f64() * 1e6)
    };
    (0..ROUND_TRIPS).map(trip).collect()
}

fn numbers<'a>(lines: impl Iterator<Item = &'a str>) -> anyhow::Result<Vec<f64>> {
    lines
        .map(|line| line.trim().parse().with_context(|| line.to_owned()))
        .collect()
}

/// Returns the median.
fn middle(mut figures: Vec<f64>) -> Option<f64> {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied()
}

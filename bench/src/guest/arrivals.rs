//! Measures the delay of a ring buffer's record: from its commit in the guest to the tool, which
//! polls or sleeps, on the host or beside it in the guest.
//!
//! Records are written at moments of the guest's own, with its time in them. Both clocks are
//! compared before and after each few records, through memory that both have mapped, which gives
//! the host's time. The maximum error is a part of the row.

use super::{Memory, PROXY_PORT, TOOL, forwarded, middle};
use crate::table::Row;
use anyhow::Context;
use beeline_e2e::{Engine, GUEST_PATIENCE, Guest, Options, PATIENCE, Tool, until};
use std::path::{Path, PathBuf};

/// One for the writer, and one for a tool in the guest that polls.
const CPUS: u32 = 2;

/// Comparisons with a larger error, in nanoseconds, are left out: others had the CPU in each of
/// their exchanges.
const WRONG: f64 = 2000.0;

/// A record: the time of writing, by the guest's clock, and the time of arrival, by the reader's
/// clock. In nanoseconds.
type Arrival = [f64; 2];

/// The host's time, the guest's at the same moment, and the maximum error between them. In
/// nanoseconds.
type Comparison = [f64; 3];

/// Returns the rows; none if there can be no such guest.
pub(super) fn rows(
    engines: &[Engine],
    tool: &Path,
    proxy: PathBuf,
    cache: &Path,
) -> anyhow::Result<Vec<Row>> {
    let options = Options {
        smp: CPUS,
        files: vec![
            (tool.to_owned(), TOOL.to_owned()),
            (proxy, "/bench/beeline-guest".to_owned()),
        ],
        ..Options::default()
    };
    let guest = match Guest::boot(&options) {
        Ok(guest) => guest,
        Err(why) => {
            eprintln!("not measured: {why}");
            return Ok(Vec::new());
        }
    };
    let proxy = guest.start(&format!(
        "/bench/beeline-guest --listen vsock:any:{PROXY_PORT} --audit /tmp/audit"
    ));
    let listens = until(PATIENCE, || guest.connect_vsock(PROXY_PORT).is_ok());
    anyhow::ensure!(listens, "the proxy does not listen");
    let bench = Arrivals {
        guest: &guest,
        tool,
        cache,
    };
    let mut rows = Vec::new();
    for manner in ["poll", "wait"] {
        let inside = engines
            .contains(&Engine::Kernel)
            .then(|| bench.inside(manner));
        let inside = inside.transpose()?;
        for in_memory in [true, false] {
            let on_host = engines
                .contains(&Engine::Beeline)
                .then(|| bench.on_host(manner, in_memory));
            rows.push(row(manner, in_memory, inside.clone(), on_host.transpose()?));
        }
    }
    drop(proxy);
    Ok(rows)
}

fn row(manner: &str, in_memory: bool, inside: Option<Delays>, on_host: Option<Delays>) -> Row {
    let tool = if manner == "poll" { "polls" } else { "sleeps" };
    let way = if in_memory { "shared memory" } else { "sent" };
    let best = |delays: &Option<Delays>| match delays {
        Some(delays) => format!("{:.0}", delays.least),
        None => "-".into(),
    };
    let wrong = on_host.as_ref().map_or(0.0, |delays| delays.wrong);
    let what = format!(
        "record to a tool that {tool}, {way} (best {}, {}; clocks +-{wrong:.1})",
        best(&inside),
        best(&on_host)
    );
    let mut row = Row::new(what, "us");
    row.kernel = inside.map(|delays| delays.middle);
    row.beeline = on_host.map(|delays| delays.middle);
    row
}

/// The delays of many records, in microseconds.
#[derive(Clone)]
struct Delays {
    least: f64,
    middle: f64,
    /// The error that all of them can have.
    wrong: f64,
}

impl Delays {
    fn of(delays: Vec<f64>, wrong: f64) -> anyhow::Result<Delays> {
        let least = delays.iter().copied().fold(f64::INFINITY, f64::min);
        Ok(Delays {
            least: least / 1e3,
            middle: middle(delays).context("no record came")? / 1e3,
            wrong: wrong / 1e3,
        })
    }
}

struct Arrivals<'a> {
    guest: &'a Guest,
    tool: &'a Path,
    cache: &'a Path,
}

impl Arrivals<'_> {
    /// Measures both ends in the guest, by one clock.
    fn inside(&self, manner: &str) -> anyhow::Result<Delays> {
        let tool = self.guest.start(&format!("{TOOL} arrivals {manner}"));
        tool.wait_for_line(|line| line.starts_with("program "));
        let program = number_behind(&tool.stdout().join("\n"), "program ")?;
        self.write(program, 0)?;
        let answer = tool.wait();
        anyhow::ensure!(answer.code == 0, "{}", answer.stderr);
        let arrivals = rows_of::<2>(answer.stdout.lines())?;
        Delays::of(arrivals.iter().map(|[from, to]| to - from).collect(), 0.0)
    }

    fn on_host(&self, manner: &str, in_memory: bool) -> anyhow::Result<Delays> {
        let begin = |arguments: &[&str], memory| {
            let mut command = forwarded(self.guest, self.cache, self.tool, memory);
            command.args(arguments);
            Tool::start(command)
        };
        // QEMU's monitor serves one tool at a time.
        let clocks = begin(&["clocks"], Memory::File);
        let array = number_behind(&line_of(&clocks, "array ")?, "array ")?;
        let tool = begin(
            &["arrivals", manner],
            if in_memory {
                Memory::Monitor
            } else {
                Memory::None
            },
        );
        let program = number_behind(&line_of(&tool, "program ")?, "program ")?;
        self.write(program, array)?;
        let [clocks, tool] = [clocks, tool].map(Tool::wait);
        for ended in [&clocks, &tool] {
            anyhow::ensure!(ended.status.success(), "{}", ended.stderr.join("\n"));
        }
        let arrivals: Vec<Arrival> = rows_of(tool.stdout.iter().map(String::as_str))?;
        let mut comparisons: Vec<Comparison> = rows_of(clocks.stdout.iter().map(String::as_str))?;
        comparisons.retain(|comparison| comparison[2] <= WRONG);
        delays_by(&comparisons, &arrivals)
    }

    fn write(&self, program: u32, array: u32) -> anyhow::Result<()> {
        let job = self.guest.start(&format!("{TOOL} write {program} {array}"));
        let answer = job.wait_at_most(GUEST_PATIENCE);
        anyhow::ensure!(answer.code == 0, "{}", answer.stderr);
        Ok(())
    }
}

fn line_of(tool: &Tool, start: &str) -> anyhow::Result<String> {
    tool.expect_line(|line| line.starts_with(start))
        .map_err(anyhow::Error::msg)
}

fn number_behind(text: &str, start: &str) -> anyhow::Result<u32> {
    let digits = text.trim().strip_prefix(start);
    digits
        .and_then(|digits| digits.parse().ok())
        .with_context(|| format!("{start:?} and a number in place of {text:?}"))
}

/// Returns the lines of so many numbers; other lines say something else.
fn rows_of<'a, const N: usize>(
    lines: impl Iterator<Item = &'a str>,
) -> anyhow::Result<Vec<[f64; N]>> {
    let rows = lines.filter_map(|line| {
        let numbers: Vec<f64> = line
            .split(' ')
            .map(|word| word.parse().ok())
            .collect::<Option<_>>()?;
        <[f64; N]>::try_from(numbers).ok()
    });
    let rows: Vec<_> = rows.collect();
    anyhow::ensure!(!rows.is_empty(), "no figures");
    Ok(rows)
}

/// Returns the delay of each record by the host's clock, where that ran evenly against the guest's
/// between the comparisons before and after it.
fn delays_by(comparisons: &[Comparison], arrivals: &[Arrival]) -> anyhow::Result<Delays> {
    let (mut delays, mut wrong) = (Vec::new(), 0_f64);
    for [written, seen] in arrivals {
        let between = |pair: &&[Comparison]| pair[0][1] <= *written && *written < pair[1][1];
        let Some([before, after]) = comparisons.windows(2).find(between).and_then(as_pair) else {
            continue;
        };
        let part = (written - before[1]) / (after[1] - before[1]);
        delays.push(seen - (before[0] + part * (after[0] - before[0])));
        wrong = wrong.max(before[2]).max(after[2]);
    }
    Delays::of(delays, wrong)
}

fn as_pair(pair: &[Comparison]) -> Option<&[Comparison; 2]> {
    pair.try_into().ok()
}

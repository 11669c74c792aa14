//! Measures a queue between two threads of a guest, each bound to a CPU there, while the host has
//! other work: with `beeline vcpu-pin`, and without.

use super::{PROXY_PORT, numbers};
use crate::table::Row;
use anyhow::Context;
use beeline_e2e::{Guest, Options, PATIENCE, Scratch, Tool, beeline, until};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The pairs of runs, one of each manner, in an order that changes from pair to pair, and the
/// factor of Student's distribution for an interval of 95 % of so many.
const PAIRS: usize = 10;
const STUDENT: f64 = 2.262;
/// A run: so many rounds of so many milliseconds; their mean counts.
const RUN: &str = "/bench/spsc 200 4";
const CPUS: u32 = 2;

/// Returns the row, without pinning in the kernel's column; none if there can be no such guest.
pub(super) fn row(proxy: PathBuf) -> anyhow::Result<Option<Row>> {
    let scratch = Scratch::new();
    let options = Options {
        smp: CPUS,
        files: vec![
            (
                scratch.build_with("spsc.c", &["-O2"]),
                "/bench/spsc".to_owned(),
            ),
            (proxy, "/bench/beeline-guest".to_owned()),
        ],
        ..Options::default()
    };
    let guest = match Guest::boot(&options) {
        Ok(guest) => guest,
        Err(why) => {
            eprintln!("not measured: {why}");
            return Ok(None);
        }
    };
    let proxy = guest.start(&format!(
        "/bench/beeline-guest --listen vsock:any:{PROXY_PORT} --audit /tmp/audit"
    ));
    let listens = until(PATIENCE, || guest.connect_vsock(PROXY_PORT).is_ok());
    anyhow::ensure!(listens, "the proxy does not listen");
    let load = Load::start();
    let (mut free, mut pinned) = (Vec::new(), Vec::new());
    for pair in 0..PAIRS {
        if pair % 2 == 0 {
            free.push(run(&guest)?);
            pinned.push(run_pinned(&guest)?);
        } else {
            pinned.push(run_pinned(&guest)?);
            free.push(run(&guest)?);
        }
    }
    drop((load, proxy));
    let (free, pinned) = (Interval::of(&free), Interval::of(&pinned));
    let mut row = Row::new(
        format!(
            "SPSC queue, host loaded (95 %: +-{:.0}, +-{:.0})",
            free.half, pinned.half
        ),
        "ns/item",
    );
    row.kernel = Some(free.mean);
    row.beeline = Some(pinned.mean);
    eprintln!(
        "the queue: the kernel's column is without vcpu-pin; the processor is emulated and this machine has {} CPUs, so this shows what \
         it costs to be moved about, and nothing of caches or hyper-threads",
        std::thread::available_parallelism().map_or(0, usize::from)
    );
    Ok(Some(row))
}

fn run(guest: &Guest) -> anyhow::Result<f64> {
    let answer = guest.run(RUN);
    anyhow::ensure!(answer.code == 0, "{answer:?}");
    let rounds = numbers(answer.stdout.lines())?;
    anyhow::ensure!(!rounds.is_empty(), "no round: {answer:?}");
    Ok(rounds.iter().sum::<f64>() / rounds.len() as f64)
}

fn run_pinned(guest: &Guest) -> anyhow::Result<f64> {
    let address = format!("uds:{}:{PROXY_PORT}", guest.vsock().display());
    let mut command = Command::new(beeline());
    command.args(["vcpu-pin", "--guest", &address, "--qmp"]);
    command.arg(guest.qmp());
    let tool = Tool::start(command);
    let ready = |line: &str| line.contains("ready to pin");
    let found = tool.stderr.wait_for(0, PATIENCE, ready);
    found.with_context(|| tool.words("is not ready"))?;
    let figure = run(guest)?;
    let ended = tool.interrupt();
    // Otherwise the figure would be one of the other manner.
    let pins = ended
        .stderr
        .iter()
        .filter(|line| line.contains("is pinned to"));
    anyhow::ensure!(pins.count() >= CPUS as usize, "not pinned: {ended:?}");
    Ok(figure)
}

/// A busy thread for each CPU.
struct Load(Arc<AtomicBool>);

impl Load {
    fn start() -> Load {
        let over = Arc::new(AtomicBool::new(false));
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            let over = Arc::clone(&over);
            std::thread::spawn(move || {
                while !over.load(Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        Load(over)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// A mean, and half of the interval around it that contains the true one with 95 %.
struct Interval {
    mean: f64,
    half: f64,
}

impl Interval {
    fn of(figures: &[f64]) -> Interval {
        let count = figures.len() as f64;
        let mean = figures.iter().sum::<f64>() / count;
        let squares = figures.iter().map(|figure| (figure - mean).powi(2));
        let deviation = (squares.sum::<f64>() / (count - 1.0)).sqrt();
        Interval {
            mean,
            half: STUDENT * deviation / count.sqrt(),
        }
    }
}

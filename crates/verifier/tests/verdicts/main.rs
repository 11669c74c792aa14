//! The kernel's own verifier tests: the verdict here is the kernel's.
//!
//! The programs are not part of this project. The test looks for them at `BEELINE_VERDICTS`, or in
//! `../shared/verdicts` beside the checkout: `selftests.jsonl.xz`, a JSON object per line with the
//! program, its maps and the kernel's verdict.
//!
//! For work on the verifier:
//!
//! ```text
//! cargo test -p beeline-verifier --test verdicts -- [OPTION ...]
//!   --id TEXT     only programs whose name has TEXT in it (may be repeated)
//!   --log LEVEL   compare the logs at this level too; prints both where one program is left
//!   --recorded    compare with the verdicts of the file, without asking the running kernel
//!   --all         also programs that were loaded with type information, which the file does not have
//!   --reasons     list refusals for different reasons
//!   --processed   list different numbers of instructions processed
//! ```

mod corpus;
mod oracle;
mod report;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use beeline_verifier::program::Program;
use beeline_verifier::types::KernelTypes;
use beeline_verifier::verdict::{LogLevel, Verdict};

use corpus::Row;
use report::{Outcome, Report};

/// A verifier's answer.
#[derive(Debug, Default)]
struct Answer {
    accepted: bool,
    /// The last line before the statistics.
    reason: String,
    processed: Option<u32>,
    /// Empty if unknown.
    log: String,
}

#[derive(Debug, Default)]
struct Options {
    ids: Vec<String>,
    log: Option<u32>,
    recorded: bool,
    all: bool,
    reasons: bool,
    processed: bool,
}

impl Options {
    /// Other arguments of test runners do not apply here.
    fn parse() -> Self {
        let mut options = Self::default();
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            match word.as_str() {
                "--id" => options.ids.extend(words.next()),
                "--log" => options.log = words.next().and_then(|it| it.parse().ok()),
                "--recorded" => options.recorded = true,
                "--all" => options.all = true,
                "--reasons" => options.reasons = true,
                "--processed" => options.processed = true,
                _ => {}
            }
        }
        options
    }

    fn wants(&self, row: &Row) -> bool {
        let named = self.ids.is_empty() || self.ids.iter().any(|it| row.id.contains(it.as_str()));
        named && (self.all || row.self_contained)
    }
}

fn main() -> ExitCode {
    let options = Options::parse();
    let rows = match corpus::read() {
        Ok(rows) => rows,
        Err(why) => {
            println!("skipped: {why}");
            return ExitCode::SUCCESS;
        }
    };
    let rows: Vec<Row> = rows.into_iter().filter(|row| options.wants(row)).collect();
    let ask_kernel = !options.recorded && beeline_fuzz::kernel::is_usable();
    let kernel = std::fs::read("/sys/kernel/btf/vmlinux").ok();
    let kernel = kernel.and_then(|btf| catch_unwind(|| KernelTypes::new(btf)).ok().flatten());
    remember_panics();
    let mut report = Report::new(&options, rows.len() == 1);
    for row in &rows {
        let theirs = match ask_kernel.then(|| oracle::ask(row, options.log.unwrap_or(1))) {
            None => row.recorded(),
            Some(Ok(answer)) => answer,
            Some(Err(why)) => {
                report.not_loadable(row, &why);
                continue;
            }
        };
        let (ours, took) = judge(row, kernel.as_ref(), options.log.unwrap_or(1));
        report.add(row, &ours, &theirs, took);
    }
    report.print();
    report.exit_code()
}

fn judge(row: &Row, kernel: Option<&KernelTypes>, log: u32) -> (Outcome, Duration) {
    let maps: Vec<_> = row.maps.iter().map(|(fd, map)| (*fd, map)).collect();
    let program = Program {
        kind: row.kind,
        gpl: true,
        insns: &row.insns,
        maps: &maps,
        types: None,
        kernel,
        ..Default::default()
    };
    let start = Instant::now();
    let verify = || beeline_verifier::verify(&program, LogLevel(log));
    let outcome = match catch_unwind(AssertUnwindSafe(verify)) {
        Ok(verdict) => Outcome::Answer(answer(verdict)),
        Err(_) => {
            let said = PANIC.lock().map(|it| it.clone());
            Outcome::Panic(said.unwrap_or_default())
        }
    };
    (outcome, start.elapsed())
}

fn answer(verdict: Verdict) -> Answer {
    Answer {
        accepted: verdict.result.is_ok(),
        reason: verdict.result.err().map_or_else(String::new, |it| {
            format!("{} (errno {})", it.reason, it.errno.0)
        }),
        processed: Some(verdict.effort.insns_processed),
        log: verdict.log,
    }
}

/// The place and reason of the last panic.
static PANIC: Mutex<String> = Mutex::new(String::new());

/// Panics are part of the report instead of standing between its lines.
fn remember_panics() {
    std::panic::set_hook(Box::new(|info| {
        if let Ok(mut said) = PANIC.lock() {
            *said = info.to_string().replace('\n', " ");
        }
    }));
}

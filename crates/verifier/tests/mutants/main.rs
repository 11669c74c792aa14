//! The verdict here is the running kernel's, on generated programs: random ones, and those of the
//! kernel's own tests (found as in the test `verdicts`) with some instructions, maps or types
//! changed.
//!
//! The test runs for half a minute, or for 20,000 programs. `BEELINE_SOAK` runs it for that many
//! seconds, `BEELINE_SEED` names the first program. A program with a difference is reduced, and
//! printed.
//!
//! ```text
//! cargo test -p beeline-verifier --test mutants -- [OPTION ...]
//!   --survey       goes on after a difference, and lists the kinds of them at the end
//!   --only SOURCE  programs from there only: random, extras, worldly, selftests
//!   --refusals     lists the reasons for refusals, and their numbers
//! ```

#[allow(dead_code, reason = "a program is judged with fewer helpers elsewhere")]
mod case;
mod change;
#[path = "../verdicts/corpus.rs"]
#[allow(dead_code, reason = "names and recorded verdicts are for others")]
mod corpus;
mod differ;
#[allow(dead_code, reason = "there are no locks in programs here")]
mod extras;
mod invent;
mod source;
mod worldly;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use case::{Judge, Verdicts};
use differ::Differences;
use source::Sources;

/// A verifier's answer, as the corpus has it.
#[derive(Debug, Default)]
#[allow(dead_code, reason = "recorded verdicts are not looked at")]
struct Answer {
    accepted: bool,
    reason: String,
    processed: Option<u32>,
    log: String,
}

const HALF_A_MINUTE: Duration = Duration::from_secs(30);
/// The most programs, unless it is to run longer.
const PROGRAMS: u64 = 20_000;
/// Longer than any verdict may take.
const SLOW: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
struct Options {
    survey: bool,
    only: Option<String>,
    refusals: bool,
}

impl Options {
    /// Other arguments of test runners do not apply here.
    fn parse() -> Self {
        let mut options = Self::default();
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            match word.as_str() {
                "--survey" => options.survey = true,
                "--refusals" => options.refusals = true,
                "--only" => options.only = words.next(),
                _ => {}
            }
        }
        options
    }
}

fn main() -> ExitCode {
    if !beeline_fuzz::kernel::is_usable() {
        return ExitCode::SUCCESS;
    }
    let options = Options::parse();
    let (first, duration) = (seed(), soak().max(HALF_A_MINUTE));
    let sources = Sources::new(options.only.as_deref());
    case::remember_panics();
    let mut judge = Judge::new();
    let mut counts = Counts::default();
    let mut differences = Differences::default();
    let mut refusals: BTreeMap<String, u64> = BTreeMap::new();
    let start = Instant::now();
    let mut seed = first;
    let last = match soak().is_zero() {
        true => first + PROGRAMS,
        false => u64::MAX,
    };
    while seed < last && start.elapsed() < duration && (options.survey || differences.is_empty()) {
        let case = sources.case(seed);
        let verdicts = judge.verdicts(&case);
        counts.add(&verdicts);
        if verdicts.differ() || verdicts.took > SLOW {
            differences.add(&mut judge, seed, &case, &verdicts);
        }
        if options.refusals
            && let Ok((errno @ 1.., log)) = judge.ours(&case, 1)
        {
            *refusals.entry(differ::reason(errno, &log)).or_default() += 1;
        }
        seed += 1;
    }
    for (reason, count) in &refusals {
        println!("{count:8} {reason}");
    }
    differences.print();
    println!(
        "BEELINE_SEED={first}: {} programs in {:.0?}: {counts:?}",
        seed - first,
        start.elapsed()
    );
    ExitCode::from(u8::from(!differences.is_empty()))
}

/// Programs by verdict.
#[derive(Debug, Default)]
struct Counts {
    accepted: u64,
    refused: u64,
    not_comparable: u64,
    slowest: Duration,
}

impl Counts {
    fn add(&mut self, verdicts: &Verdicts) {
        let count = match verdicts.kernel {
            None => &mut self.not_comparable,
            Some(0) => &mut self.accepted,
            Some(_) => &mut self.refused,
        };
        *count += 1;
        self.slowest = self.slowest.max(verdicts.took);
    }
}

/// Returns how far beyond half a minute it runs.
fn soak() -> Duration {
    Duration::from_secs(number("BEELINE_SOAK").unwrap_or(0))
}

/// Returns the first program's number; always the same, or, when soaking, a new one each time.
fn seed() -> u64 {
    let fresh = || {
        let now = std::time::UNIX_EPOCH.elapsed();
        now.map_or(1, |now| now.as_nanos() as u64 >> 10)
    };
    number("BEELINE_SEED").unwrap_or_else(|| if soak().is_zero() { 1 } else { fresh() })
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{variable}={text} is no number")))
}

//! An accepted program does nothing wrong. Random programs, most of which try to, and changed
//! programs of real tools run on random contexts and maps in the interpreter, which checks every
//! access and every register that is read. An accepted program has to pass three trials:
//!
//! - no run does anything wrong;
//! - along a run, every register and stack slot has one of the values that the verifier claims for
//!   it there;
//! - nothing is refused on any path when no path is left out because another seemed to cover it.
//!
//! The test runs for a quarter of a minute, or for so many programs. `BEELINE_SOAK` runs it for that
//! many seconds, `BEELINE_SEED` names the first program. A failing program is reduced, and printed.

#[path = "../../crates/agent/tests/common/mod.rs"]
mod agent;
#[path = "../../crates/verifier/tests/mutants/case.rs"]
#[allow(dead_code, reason = "the kernel is not asked here")]
mod case;
#[path = "../../crates/verifier/tests/mutants/change.rs"]
mod change;
#[path = "../../crates/verifier/tests/verdicts/corpus.rs"]
#[allow(dead_code, reason = "names and recorded verdicts are for others")]
mod corpus;
#[path = "../../crates/verifier/tests/mutants/extras.rs"]
mod extras;
#[path = "../../crates/verifier/tests/mutants/invent.rs"]
mod invent;
mod low;
mod sources;
mod trial;
mod world;
#[path = "../../crates/verifier/tests/mutants/worldly.rs"]
mod worldly;

use std::time::{Duration, Instant};

use beeline_e2e::{seed, soak};

use sources::Sources;
use trial::{Outcome, Trials};

/// A verifier's answer, as the corpus has it.
#[derive(Debug, Default)]
#[allow(dead_code, reason = "recorded verdicts are not looked at")]
struct Answer {
    accepted: bool,
    reason: String,
    processed: Option<u32>,
    log: String,
}

/// The minimum duration.
const USUAL: Duration = Duration::from_secs(15);
/// The most programs, unless it is to run longer.
const PROGRAMS: u64 = 100_000;
/// Seconds between progress messages while soaking.
const NEWS: Duration = Duration::from_secs(60);

#[test]
fn accepted_programs_do_nothing_wrong() {
    let (first, duration) = (seed(), soak().max(USUAL));
    let most = match soak().is_zero() {
        true => PROGRAMS,
        false => u64::MAX,
    };
    let sources = Sources::new();
    let mut trials = Trials::new();
    let mut counts = Counts::default();
    let start = Instant::now();
    let mut news = NEWS;
    let mut seed = first;
    while counts.programs < most && start.elapsed() < duration {
        let case = sources.case(seed);
        let outcome = trials.judge(&case, seed);
        if let Outcome::Wrong(fault) = &outcome {
            panic!(
                "BEELINE_SEED={seed}: {}",
                trials.explain(&case, seed, fault)
            );
        }
        counts.add(&outcome);
        seed = seed.wrapping_add(1);
        if start.elapsed() > news {
            news += NEWS;
            println!("BEELINE_SEED={first}: {counts:?}");
        }
    }
    println!(
        "BEELINE_SEED={first}: {:?} in {:.0?}: {counts:?}",
        trials.figures,
        start.elapsed()
    );
    assert!(
        counts.accepted * 4 > counts.programs,
        "too few programs are accepted"
    );
    assert!(
        counts.caught * 100 > counts.tried_refused,
        "the runs notice nothing"
    );
}

/// Programs by outcome.
#[derive(Debug, Default)]
struct Counts {
    programs: u64,
    accepted: u64,
    /// Some refused programs run all the same, to check that a wrong one would be noticed.
    tried_refused: u64,
    caught: u64,
}

impl Counts {
    fn add(&mut self, outcome: &Outcome) {
        self.programs += 1;
        match outcome {
            Outcome::Accepted | Outcome::Wrong(_) => self.accepted += 1,
            Outcome::Refused => {}
            Outcome::RefusedAndRun { caught } => {
                self.tried_refused += 1;
                self.caught += u64::from(*caught);
            }
        }
    }
}

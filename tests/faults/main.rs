//! Any one system call of Beeline fails, or one that it has a target make: the session soon ends,
//! correctly or with an error, and the target goes on as before.
//!
//! A first run counts the calls that could fail; then each of them fails in turn, in a session of
//! its own. The test tries a sample of them, chosen by `BEELINE_SEED`; with `BEELINE_SOAK`, as many
//! as fit into so many seconds. `BEELINE_FAULT`, as in "openat 17 EMFILE" or "target:mmap 2
//! ENOMEM", tries that one.

mod calls;
mod injector;
mod world;

use std::time::{Duration, Instant};

use beeline_e2e::{Dice, Turn, beeline_wanted, need, seed, soak};
use calls::{CALLS, Call, Caller, Case};
use world::World;

/// The time for which a sample is tried.
const SAMPLE: Duration = Duration::from_secs(15);

#[test]
fn sessions_that_probe_functions() {
    try_all("probes", Caller::Beeline);
}

#[test]
fn sessions_that_trace_calls() {
    try_all("calls", Caller::Beeline);
}

#[test]
fn calls_that_targets_are_made_to_make() {
    try_all("calls", Caller::Target);
}

fn try_all(mode: &'static str, caller: Caller) {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let mut world = World::new(mode);
    if let Ok(case) = std::env::var("BEELINE_FAULT") {
        let case = case
            .parse()
            .unwrap_or_else(|why| panic!("BEELINE_FAULT: {why}"));
        let told = world.play(Some(case));
        return println!("{told}");
    }
    let counts = world.dry_run();
    let unseen: Vec<_> = CALLS
        .iter()
        .filter(|call| call.caller == caller && caller == Caller::Target && counts(call) == 0)
        .map(|call| call.name)
        .collect();
    assert!(unseen.is_empty(), "not seen: {unseen:?}");
    let seed = seed();
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut cases = in_order(caller, &counts, &mut dice);
    let all = cases.len();
    let (begun, time) = (Instant::now(), SAMPLE.max(soak()));
    let (mut tried, mut met) = (0, 0);
    let mut wrong = Vec::new();
    while let Some(case) = cases.pop() {
        if begun.elapsed() > time {
            break;
        }
        tried += 1;
        let outcome = world.play(Some(case));
        met += u32::from(outcome.failed.is_some());
        if !soak().is_zero() {
            println!("{mode}: {case}: {}", outcome.in_short());
        }
        if !outcome.wrong.is_empty() {
            println!("{mode}: {case}: {outcome}");
            wrong.push(format!("{mode}: {case}: {:?}", outcome.wrong));
        }
    }
    assert!(met > 0, "none of {all} calls was made to fail");
    println!(
        "seed {seed}: {mode}: {tried} of {all} tried, {met} met, {} wrong",
        wrong.len()
    );
    for (words, times) in &world.words {
        println!("{times:5} {words}");
    }
    assert!(wrong.is_empty(), "seed {seed}: {wrong:#?}");
    world.finish();
}

/// Returns every case of a caller's, in an order in which each kind of call comes equally often as
/// long as any of it are left.
fn in_order(caller: Caller, counts: &dyn Fn(&Call) -> usize, dice: &mut Dice) -> Vec<Case> {
    let mut kinds: Vec<Vec<Case>> = Vec::new();
    for call in CALLS.iter().filter(|call| call.caller == caller) {
        let mut kind = Vec::new();
        for occurrence in 1..=counts(call) as u32 {
            kind.extend(call.errors.iter().map(|&error| Case {
                call,
                occurrence,
                error,
            }));
        }
        shuffle(&mut kind, dice);
        kinds.push(kind);
    }
    let mut cases = Vec::new();
    while kinds.iter().any(|kind| !kind.is_empty()) {
        let mut round: Vec<Case> = kinds.iter_mut().filter_map(Vec::pop).collect();
        shuffle(&mut round, dice);
        cases.extend(round);
    }
    cases.reverse();
    cases
}

fn shuffle(cases: &mut [Case], dice: &mut Dice) {
    for at in (1..cases.len()).rev() {
        cases.swap(at, dice.below(at as u64 + 1) as usize);
    }
}

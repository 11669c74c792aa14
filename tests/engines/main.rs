//! Engines agree: random programs, some of which tail call each other, leave the same r0, context,
//! map contents and ring-buffer records in each of them, on another machine, and in the kernel, as
//! often as time allows.
//!
//! `BEELINE_SOAK` runs them for that many seconds, `BEELINE_SEED` names the first program. A
//! program with a difference is reduced, and printed with the seed that reproduces it.

#[path = "../../crates/agent/tests/common/mod.rs"]
mod agent;
mod emulated;
mod judge;
#[path = "../../crates/codegen/tests/common/mod.rs"]
mod programs;
mod tails;
mod workers;
#[allow(dead_code, reason = "one way to run is for the test of soundness")]
mod world;

use std::time::Duration;

use beeline_e2e::{seed, skipped, soak};
use beeline_fuzz::asm::{EXIT, atomic, branch, load, mov, mov_reg, store};
use beeline_fuzz::{kernel as bpf, program, reduce::reduce};
use beeline_isa::opcode::{DW, JEQ, JSET, XCHG};
use beeline_isa::{Insn, Listing};
use parking_lot::Mutex;

use judge::{Judge, PLACES, is_for_kernel};
use workers::{Alone, Care, Ended, Tally};
use world::Here;

/// The minimum duration.
const USUAL: Duration = Duration::from_secs(25);

/// Returns whether a seed stands for programs that tail call each other.
fn is_of_tail_calls(seed: u64) -> bool {
    seed % 16 == 7
}

/// Returns the program of a seed that stands for one.
fn program_of(seed: u64) -> Vec<Insn> {
    // Mostly short ones, so that there can be many.
    let length = [2, 4, 4, 8, 8, 16, 32][(seed % 7) as usize];
    match seed % 4 {
        0 => program::looping(seed, length),
        1 if seed % 16 == 1 => program::worldly_with_may_goto(seed, length),
        _ => program::worldly(seed, length),
    }
}

/// Held by each test: processes are forked while no other thread holds anything.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn random_programs_leave_the_same_in_each_engine() {
    let _alone = ALONE.lock();
    let with_kernel = bpf::is_usable();
    if !with_kernel {
        skipped(
            "the kernel's runs, as it loads no program for us; the engines are compared with each other",
        );
    }
    let (first, duration) = (seed(), soak().max(USUAL));
    let tally = match workers::run(first, duration, with_kernel) {
        Ended::Agreed(tally) => tally,
        Ended::At { seed, what } => panic!("{}", explain(seed, &what, with_kernel)),
    };
    println!(
        "BEELINE_SEED={first}: no difference in {}",
        describe(&tally)
    );
    assert!(
        tally.given_up * 50 <= tally.runs[PLACES.len() - 1],
        "{} programs were given up by a verifier",
        tally.given_up
    );
}

fn describe(tally: &Tally) -> String {
    let counts = PLACES.iter().zip(tally.runs);
    let counts: Vec<String> = counts
        .map(|(place, runs)| format!("{runs} runs by {place}"))
        .collect();
    format!(
        "{}; {} given up by a verifier",
        counts.join(", "),
        tally.given_up
    )
}

/// Describes the failure of this seed's program, in as few instructions as reproduce it.
fn explain(seed: u64, what: &str, with_kernel: bool) -> String {
    if is_of_tail_calls(seed) {
        let verdict = Judge::new(0, with_kernel && !workers::is_of_kernel(what))
            .judge_tail_calls(seed, |_| ());
        let texts = tails::programs_of(seed, 0).map(|insns| Listing(&insns).to_string());
        return format!(
            "BEELINE_SEED={seed}: {what}: {verdict:?}\n{}",
            texts.join("\n")
        );
    }
    let insns = program_of(seed);
    if workers::is_of_kernel(what) {
        // Once is bad enough.
        let text = Listing(&insns);
        return format!("BEELINE_SEED={seed}: {what}; not to be repeated\n{text}");
    }
    let found = workers::verdict(&insns, with_kernel, Care::No);
    let Some(kind) = found.kind_of_difference() else {
        return format!(
            "BEELINE_SEED={seed}: {what}; when repeated: {found}\n{}",
            Listing(&insns)
        );
    };
    eprintln!("BEELINE_SEED={seed}: {what}: {found}");
    eprintln!("{}", Listing(&insns));
    // Only the kernel can say whether a part of a program is valid.
    let (small, verdict) = if with_kernel && is_for_kernel(&insns) {
        reduced(&insns, &kind)
    } else {
        (insns, found)
    };
    let text = Listing(&small);
    format!("BEELINE_SEED={seed}: {what}\nin as little as does it: {verdict}\n{text}")
}

/// Returns a part of a program with the same difference, and its verdict. Prefers one that depends
/// neither on addresses nor on leftovers on the stack, which parts of a program that does not may
/// well do.
fn reduced(insns: &[Insn], kind: &str) -> (Vec<Insn>, Alone) {
    let differs = |insns: &[Insn], care| {
        let verdict = workers::verdict(insns, true, care);
        verdict.kind_of_difference().as_deref() == Some(kind)
    };
    let care = if differs(insns, Care::Yes) {
        Care::Yes
    } else {
        Care::No
    };
    let small = reduce(insns, |attempt| differs(attempt, care));
    let verdict = workers::verdict(&small, true, Care::No);
    (small, verdict)
}

/// Linux 6.18 may get wrong which of two numbers an exchange fetches. Engines do it right, and
/// programs that are compared with it avoid the case.
#[test]
fn a_branch_on_what_was_exchanged_goes_both_ways() {
    let _alone = ALONE.lock();
    let insns = [
        load(6, 1, 0),
        mov(2, 1),
        store(10, -8, 2),
        // The context begins with an odd byte.
        branch(JSET, 6, 1, 2),
        mov(2, 200),
        store(10, -8, 2),
        mov(1, 0),
        atomic(DW, 10, -8, 1, XCHG),
        mov(0, 1),
        branch(JEQ, 1, 1, 1),
        mov(0, 2),
        EXIT,
    ];
    assert!(!is_for_kernel(&insns));
    let kept = (0..200).filter(|&seed| is_for_kernel(&program_of(seed)));
    assert!(kept.count() > 100, "the kernel sees too few programs");
    for engine in judge::engines() {
        let mut here = Here::new(0);
        let loaded = engine.load(&here.program(&insns)).expect("a good program");
        assert_eq!(here.run(&*loaded, &[]), Ok(1), "{}", engine.name());
    }
}

#[test]
fn random_outcomes_are_told_from_stable_ones() {
    let _alone = ALONE.lock();
    let mut judge = Judge::new(0, false);
    let leftovers = [load(0, 10, -8), EXIT];
    let address = [mov_reg(0, 10), EXIT];
    let context = [load(0, 1, 8), store(10, -8, 0), load(0, 10, -8), EXIT];
    assert!(judge.depends_on_chance(&leftovers));
    assert!(judge.depends_on_chance(&address));
    assert!(!judge.depends_on_chance(&context));
}

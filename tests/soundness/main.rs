//! What the verifier accepts does nothing wrong: random programs, most of which try to, run on random contexts and maps in the
//! interpreter, which checks every access and every register that is read.
//!
//! It goes on for half a minute, or for 60,000 programs. `BEELINE_SOAK` goes on for so many seconds, `BEELINE_SEED` names the first program. A program that
//! does something wrong is reduced, and printed.

#[path = "../../crates/verifier/tests/mutants/case.rs"]
#[allow(dead_code, reason = "the kernel is not asked here")]
mod case;
#[path = "../../crates/verifier/tests/mutants/change.rs"]
mod change;
#[path = "../../crates/image/tests/common/mod.rs"]
mod image;
#[path = "../../crates/verifier/tests/mutants/invent.rs"]
mod invent;
mod low;
#[path = "../engines/world.rs"]
#[allow(dead_code, reason = "what runs leave is not looked at here")]
mod world;
#[path = "../../crates/verifier/tests/mutants/worldly.rs"]
mod worldly;

use std::time::{Duration, Instant};

use beeline_compile::{Engine, Interpreter};
use beeline_e2e::{seed, soak};
use beeline_fuzz::{Random, reduce::reduce};
use beeline_isa::Insn;
use beeline_isa::opcode::{PSEUDO_MAP_FD, PSEUDO_MAP_VALUE};

use case::{Case, Judge};
use change::change;
use low::Context;
use world::{Here, is_helper};
use worldly::FIRST_FD;

const HALF_A_MINUTE: Duration = Duration::from_secs(30);
/// As many at the most, unless it is to go on for longer.
const PROGRAMS: u64 = 60_000;
/// Instructions of one run. Loops by `bpf_loop` and `may_goto` may be long.
const BUDGET: u64 = 1 << 18;
/// Runs of each program, on different numbers.
const RUNS: u64 = 16;

#[test]
fn accepted_programs_do_nothing_wrong() {
    let (first, duration) = (seed(), soak().max(HALF_A_MINUTE));
    let mut runner = Runner::new();
    let (mut programs, mut accepted, mut too_long, mut caught) = (0_u64, 0_u64, 0_u64, 0_u64);
    let start = Instant::now();
    let most = match soak().is_zero() {
        true => PROGRAMS,
        false => u64::MAX,
    };
    while programs < most && start.elapsed() < duration {
        let seed = first.wrapping_add(programs);
        programs += 1;
        let case = case_of(seed);
        if !runner.accepts(&case) {
            // Would it be noticed if one did something wrong?
            let tried = seed.is_multiple_of(8) && runner.fault(&case, seed).is_some();
            caught += u64::from(tried);
            continue;
        }
        accepted += 1;
        match runner.fault(&case, seed) {
            None => {}
            Some(fault) if is_too_long(&fault) => too_long += 1,
            Some(fault) => panic!(
                "BEELINE_SEED={seed}: {}",
                runner.explain(&case, seed, &fault)
            ),
        }
    }
    println!(
        "BEELINE_SEED={first}: {programs} programs, {accepted} accepted, with {RUNS} runs each; {too_long} ran for too long to be run to their end; of every eighth that was refused {caught} did something wrong"
    );
    assert!(accepted * 20 > programs, "too few programs are accepted");
    assert!(caught * 100 > programs, "the runs notice nothing");
}

/// The program with a seed.
fn case_of(seed: u64) -> Case {
    let mut random = Random::new(seed);
    random.bits();
    if !seed.is_multiple_of(3) {
        return invent::invent(&mut random);
    }
    let mut case = worldly::worldly(&mut random);
    if random.once_in(2) {
        // One of the maps would have another shape than those that programs run with.
        let maps = case.maps.clone();
        change(&mut random, &mut case);
        case.maps = maps;
    }
    case
}

fn is_too_long(fault: &str) -> bool {
    fault.contains("too long")
}

/// What programs are judged by and run in.
struct Runner {
    judge: Judge,
    here: Here,
    context: Context,
}

impl Runner {
    fn new() -> Self {
        Self {
            judge: Judge::new(),
            here: Here::new(0),
            context: Context::new(),
        }
    }

    fn accepts(&self, case: &Case) -> bool {
        let verdict = self.judge.ours_with(case, 0, Some(&is_helper));
        matches!(verdict, Ok((0, _)))
    }

    /// What an accepted program does wrong.
    fn fault(&mut self, case: &Case, seed: u64) -> Option<String> {
        let insns: Vec<Insn> = resolved(&case.insns);
        let program = match Interpreter::with_budget(BUDGET).load(&self.here.program(&insns)) {
            Ok(program) => program,
            // What no path reaches may be no instruction.
            Err(_) => return None,
        };
        let mut random = Random::new(seed);
        (0..RUNS).find_map(|_| {
            let context = self.context.renew(case.kind.prog_type, &mut random);
            let run = self.here.run_on(&*program, context, || random.number());
            run.err()
        })
    }

    fn explain(&mut self, case: &Case, seed: u64, fault: &str) -> String {
        let what = |fault: &str| {
            let letters = fault.chars().filter(|letter| letter.is_alphabetic());
            letters.collect::<String>()
        };
        let with = |insns: &[Insn]| Case {
            insns: insns.to_vec(),
            ..case.clone()
        };
        let small = reduce(&case.insns, |attempt| {
            let attempt = with(attempt);
            let fault_here = self.accepts(&attempt).then(|| self.fault(&attempt, seed));
            fault_here
                .flatten()
                .is_some_and(|it| what(&it) == what(fault))
        });
        let small = with(&small);
        let found = self.fault(&small, seed).unwrap_or_default();
        let log = self.judge.ours_with(&small, 2, Some(&is_helper));
        let (_, log) = log.unwrap_or_default();
        format!("{fault}\nin as little as does it: {found}\n{small}\n{log}")
    }
}

/// Maps by index.
fn resolved(insns: &[Insn]) -> Vec<Insn> {
    let mut second = false;
    let resolve = |insn: &Insn| {
        let names_map = matches!(insn.src, PSEUDO_MAP_FD | PSEUDO_MAP_VALUE);
        second = !second && insn.is_imm64();
        let mut insn = *insn;
        if second && names_map {
            insn.imm -= FIRST_FD;
        }
        insn
    };
    insns.iter().map(resolve).collect()
}

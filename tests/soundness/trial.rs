//! The three trials of an accepted program.

use beeline_codegen::{Bytecode as Loaded, Engine, Interpreter, Moment};
use beeline_fuzz::{Random, reduce::reduce};
use beeline_isa::Insn;
use beeline_isa::opcode::{PSEUDO_MAP_FD, PSEUDO_MAP_VALUE};
use beeline_verifier::oracle::{self, Follower};
use beeline_verifier::program::Map;

use crate::case::{Case, Judge};
use crate::low::Context;
use crate::world::{World, is_helper};

/// Instructions of one run. Loops by `bpf_loop` and `may_goto` may be long.
const BUDGET: u64 = 1 << 14;
/// Runs of each program, on different numbers.
const RUNS: u64 = 6;
/// The number of runs that are followed, and of instructions: that takes much longer than to run
/// them.
const FOLLOWED: u64 = 2;
const MOST_STEPS: u32 = 200;
/// The most instructions on all paths of a program together for all paths to be examined.
const MOST_ON_ALL_PATHS: u32 = 1_500;
/// Programs that take the verifier longer are left to other tests.
pub const MOST_VERIFIED: u32 = 20_000;
/// One in this many refused programs runs all the same.
const REFUSED_RUN: u64 = 32;

/// The result of a program.
#[derive(Debug)]
pub enum Outcome {
    Accepted,
    Refused,
    RefusedAndRun { caught: bool },
    Wrong(String),
}

/// Counts for the last line.
#[derive(Debug, Default)]
pub struct Figures {
    runs: u64,
    too_long: u64,
    steps_followed: u64,
    all_paths_followed: u64,
    no_such_map: u64,
    instructions: u64,
}

/// The verifier that judges programs, and the world in which they run.
pub struct Trials {
    judge: Judge,
    world: World,
    context: Context,
    pub figures: Figures,
}

impl Trials {
    pub fn new() -> Self {
        Self {
            judge: Judge::new(),
            world: World::new(),
            context: Context::new(),
            figures: Figures::default(),
        }
    }

    pub fn judge(&mut self, case: &Case, seed: u64) -> Outcome {
        match self.judge.accepts(case, &is_helper, MOST_VERIFIED) {
            // There is no such structure here, and no such program runs anywhere.
            Ok(Some(facts)) if facts.map_structure.is_some() => Outcome::Accepted,
            Ok(Some(_)) => match self.fault(case, seed) {
                None => Outcome::Accepted,
                Some(fault) => Outcome::Wrong(fault),
            },
            Ok(None) if seed.is_multiple_of(REFUSED_RUN) => Outcome::RefusedAndRun {
                caught: self.run_fault(case, seed).is_some(),
            },
            Ok(None) => Outcome::Refused,
            Err(panic) => Outcome::Wrong(format!("the verifier panics: {panic}")),
        }
    }

    /// Runs the trials of an accepted program; returns the first fault.
    fn fault(&mut self, case: &Case, seed: u64) -> Option<String> {
        self.figures.instructions += case.insns.len() as u64;
        self.path_fault(case)
            .or_else(|| self.run_fault(case, seed))
            .or_else(|| self.claim_fault(case, seed))
    }

    /// Returns the fault if a path that was left out does something that is refused.
    fn path_fault(&mut self, case: &Case) -> Option<String> {
        let outcome = self.judge.with_program(case, &is_helper, |program| {
            oracle::every_path(program, MOST_ON_ALL_PATHS)
        });
        match outcome {
            Some(Some(outcome)) => {
                self.figures.all_paths_followed += 1;
                let why = outcome.err().filter(|why| !is_of_a_covered_path(why));
                why.map(|why| format!("left out: {why}"))
            }
            _ => None,
        }
    }

    /// Returns the fault if a run does anything wrong.
    fn run_fault(&mut self, case: &Case, seed: u64) -> Option<String> {
        let (insns, maps) = resolved(case);
        let Some(numbers) = self.world.lay_out(&maps) else {
            self.figures.no_such_map += 1;
            return None;
        };
        // Code that no path reaches may be no instruction.
        let interpreter = Interpreter::with_budget(BUDGET);
        let program = interpreter.load(&Loaded::new(&insns)).ok()?;
        let mut random = Random::new(seed);
        (0..RUNS).find_map(|_| {
            self.figures.runs += 1;
            self.world.fill(&numbers, &mut random);
            let context = self.context.renew(case.kind.prog_type, &mut random);
            let fault = self.world.run_ready(&*program, context).err()?;
            let is_too_long = fault.contains("too long");
            self.figures.too_long += u64::from(is_too_long);
            (!is_too_long).then_some(fault)
        })
    }

    /// Returns the fault if a run has a value somewhere that the verifier rules out.
    fn claim_fault(&mut self, case: &Case, seed: u64) -> Option<String> {
        let (insns, maps) = resolved(case);
        let numbers = self.world.lay_out(&maps)?;
        let (world, figures) = (&mut self.world, &mut self.figures);
        let own_context = &mut self.context;
        let outcome = self.judge.with_program(case, &is_helper, |program| {
            let flow = oracle::flow(program).ok()?;
            let mut random = Random::new(!seed);
            (0..FOLLOWED).find_map(|_| {
                world.fill(&numbers, &mut random);
                let context = own_context.renew(case.kind.prog_type, &mut random);
                let start = context.as_ptr().expose_provenance() as u64;
                let mut follower = Follower::new(program, &flow);
                let mut steps = 0;
                let mut watch = |at: &Moment<'_>| {
                    steps += 1;
                    if steps > MOST_STEPS {
                        return Err(String::from("followed for too long"));
                    }
                    follower
                        .come_to(&oracle::Moment {
                            insn: at.insn,
                            registers: at.registers,
                            depth: at.depth,
                            stack: at.stack,
                            context: start,
                        })
                        .map_err(|why| format!("claimed otherwise: {why}"))
                };
                let interpreter = Interpreter::with_budget(BUDGET);
                let program = Loaded::new(&insns);
                let fault = world.run(interpreter, &program, context, &mut watch);
                figures.steps_followed += u64::from(steps);
                fault
                    .err()
                    .filter(|why| why.contains("claimed otherwise") && !is_of_a_covered_path(why))
            })
        });
        outcome.flatten()
    }

    /// Reduces a failing program; returns it with the verifier's log.
    pub fn explain(&mut self, case: &Case, seed: u64, fault: &str) -> String {
        let what = |fault: &str| {
            let letters = fault.chars().filter(|letter| letter.is_alphabetic());
            letters.take(20).collect::<String>()
        };
        let with = |insns: &[Insn]| Case {
            insns: insns.to_vec(),
            ..case.clone()
        };
        let mut fails = |attempt: &Case| match self.judge(attempt, seed | 1) {
            Outcome::Wrong(fault) => Some(fault),
            _ => None,
        };
        let small = reduce(&case.insns, |attempt| {
            fails(&with(attempt)).is_some_and(|it| what(&it) == what(fault))
        });
        let small = with(&small);
        let found = fails(&small).unwrap_or_default();
        let log = self.judge.ours_with(&small, 2, Some(&is_helper));
        let (_, log) = log.unwrap_or_default();
        format!("{fault}\nin as little as does it: {found}\n{small}\n{log}")
    }
}

/// Where less is known, more is let through: a pointer may be moved by any unknown number, but not
/// far by a known one (`check_reg_sane_offset`), and a part of a spilled pointer may be read at an
/// unknown place (`check_stack_read_var_off`). A slot of any bytes covers one with a pointer
/// (`stacksafe`), on which only pointer arithmetic is allowed, and which, if it points to the
/// stack, may not be stored in a caller's frame. So a path may be refused where another, that
/// covers it, is not; the results of such a pointer or number are checked on either.
fn is_of_a_covered_path(why: &str) -> bool {
    const RULES: [&str; 6] = [
        "cannot spill pointers to stack",
        "prohibited",
        "math between",
        "pointer offset",
        "pointer be out of bounds",
        "invalid size of register fill",
    ];
    RULES.iter().any(|words| why.contains(words))
}

/// Maps by index, and the maps.
fn resolved(case: &Case) -> (Vec<Insn>, Vec<&Map>) {
    let mut maps: Vec<&Map> = Vec::new();
    let mut fds: Vec<i32> = Vec::new();
    let mut insns = case.insns.clone();
    let mut second = false;
    for insn in &mut insns {
        let first = insn.is_imm64() && !second;
        second = first;
        if !first || !matches!(insn.src, PSEUDO_MAP_FD | PSEUDO_MAP_VALUE) {
            continue;
        }
        let known = fds.iter().position(|&fd| fd == insn.imm);
        let index = known.or_else(|| {
            let (fd, map) = case.maps.iter().find(|(fd, _)| *fd == insn.imm)?;
            fds.push(*fd);
            maps.push(map);
            Some(fds.len() - 1)
        });
        // An index of no map is refused, or never reached.
        insn.imm = index.map_or(-1, |index| index as i32);
    }
    (insns, maps)
}

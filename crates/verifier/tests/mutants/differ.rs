//! Programs with different verdicts, by the verifiers' messages.

use std::collections::BTreeMap;
use std::time::Duration;

use beeline_fuzz::reduce::reduce;
use beeline_uapi::ProgramType;

use crate::case::{Case, Judge, Verdicts};

/// The difference: the stricter verifier, and its reason without numbers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Difference {
    Panic(String),
    WeAccept(String),
    WeRefuse(String),
    Slow,
}

impl Difference {
    /// Returns whether Linux 6.18 is wrong here.
    fn is_known(&self, case: &Case) -> bool {
        match self {
            // It gets lost, and says so; in callbacks that no path calls, for example.
            Self::WeAccept(reason) => reason.contains("verifier bug"),
            // It compares an `int` with a `size_t`, so that negative ones pass.
            Self::WeRefuse(reason) => {
                case.kind.prog_type == ProgramType::TRACEPOINT
                    && reason.starts_with("invalid bpf_context access off=-")
            }
            _ => false,
        }
    }
}

/// Differences of one kind.
#[derive(Debug)]
struct Group {
    programs: u64,
    seed: u64,
    example: String,
}

/// All differences.
#[derive(Debug, Default)]
pub struct Differences(BTreeMap<Difference, Group>);

impl Differences {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn add(&mut self, judge: &mut Judge, seed: u64, case: &Case, verdicts: &Verdicts) {
        let found = difference(judge, case);
        if found.as_ref().is_some_and(|found| found.is_known(case)) {
            return;
        }
        let difference = found.clone().unwrap_or(Difference::Slow);
        if let Some(group) = self.0.get_mut(&difference) {
            group.programs += 1;
            return;
        }
        let small = match &found {
            Some(found) => reduced(judge, case, found),
            None => case.clone(),
        };
        let example = explain(judge, &small, verdicts.took);
        println!("{difference:?}: seed {seed}\n{example}");
        let group = Group {
            programs: 1,
            seed,
            example,
        };
        self.0.insert(difference, group);
    }

    pub fn print(&self) {
        for (difference, group) in &self.0 {
            println!(
                "=== {} times, first BEELINE_SEED={}: {difference:?}\n{}",
                group.programs, group.seed, group.example
            );
        }
    }
}

fn difference(judge: &mut Judge, case: &Case) -> Option<Difference> {
    let verdicts = judge.verdicts(case);
    if !verdicts.differ() {
        return None;
    }
    match judge.ours(case, 1) {
        Err(words) => Some(Difference::Panic(words)),
        Ok((0, _)) => {
            let (errno, log) = judge.kernel(case, 1)?;
            Some(Difference::WeAccept(reason(errno, &log)))
        }
        Ok((errno, log)) => Some(Difference::WeRefuse(reason(errno, &log))),
    }
}

fn reduced(judge: &mut Judge, case: &Case, found: &Difference) -> Case {
    let with = |insns: &[_]| Case {
        insns: insns.to_vec(),
        ..case.clone()
    };
    let insns = reduce(&case.insns, |attempt| {
        difference(judge, &with(attempt)).as_ref() == Some(found)
    });
    with(&insns)
}

/// Returns the last significant line, with every number replaced, so that similar ones match.
pub fn reason(errno: i32, log: &str) -> String {
    let lines = log.lines().rev();
    let asides = [
        "processed ",
        "verification time ",
        "stack depth ",
        "cur state:",
        "old state:",
    ];
    let mut said = lines.skip_while(|line| asides.iter().any(|it| line.starts_with(it)));
    let line = said.next().unwrap_or_default();
    let mut text = String::new();
    for letter in line.chars() {
        match letter {
            '0'..='9' if text.ends_with('N') => {}
            '0'..='9' => text.push('N'),
            other => text.push(other),
        }
    }
    format!("{text} (errno {errno})")
}

fn explain(judge: &mut Judge, case: &Case, took: Duration) -> String {
    let kernel = judge.kernel(case, 2).map(|(_, log)| log);
    let ours = match judge.ours(case, 2) {
        Ok((_, log)) => log,
        Err(words) => words,
    };
    format!(
        "{case}\n--- kernel\n{}\n--- ours ({took:.1?})\n{}",
        shortened(&kernel.unwrap_or_default()),
        shortened(&ours)
    )
}

/// The end of it.
fn shortened(log: &str) -> String {
    const LINES: usize = 60;
    let lines: Vec<&str> = log.lines().collect();
    let from = lines.len().saturating_sub(LINES);
    lines[from..].join("\n")
}

//! The differences between the two.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use crate::corpus::Row;
use crate::{Answer, Options};

/// The result of Beeline's verifier.
#[derive(Debug)]
pub enum Outcome {
    Answer(Answer),
    /// Its answer.
    Panic(String),
}

/// The counts for programs of one category, or of all.
#[derive(Debug, Default, Clone, Copy)]
struct Count {
    programs: usize,
    wrongly_accepted: usize,
    wrongly_rejected: usize,
    panics: usize,
    other_reason: usize,
    other_processed: usize,
    other_log: usize,
}

/// Collects differences.
#[derive(Debug)]
pub struct Report<'a> {
    options: &'a Options,
    /// One program only: everything about it is printed.
    single: bool,
    all: Count,
    by_category: BTreeMap<String, Count>,
    not_loadable: usize,
    slowest: Vec<(Duration, String)>,
    took: Duration,
}

impl<'a> Report<'a> {
    pub fn new(options: &'a Options, single: bool) -> Self {
        Self {
            options,
            single,
            all: Count::default(),
            by_category: BTreeMap::new(),
            not_loadable: 0,
            slowest: Vec::new(),
            took: Duration::ZERO,
        }
    }

    /// The kernel could not be asked.
    pub fn not_loadable(&mut self, row: &Row, why: &str) {
        self.not_loadable += 1;
        println!("not loadable: {}: {why}", row.id);
    }

    /// Compares two answers, and prints the differences.
    pub fn add(&mut self, row: &Row, ours: &Outcome, theirs: &Answer, took: Duration) {
        let mut count = Count {
            programs: 1,
            ..Count::default()
        };
        match ours {
            Outcome::Panic(said) => {
                count.panics = 1;
                println!("PANIC {}: {said}", row.id);
            }
            Outcome::Answer(ours) => self.compare(row, ours, theirs, &mut count),
        }
        self.took += took;
        self.slowest.push((took, row.id.clone()));
        self.slowest
            .sort_by_key(|(took, _)| std::cmp::Reverse(*took));
        self.slowest.truncate(3);
        self.all.add(count);
        let of_category = self.by_category.entry(row.category().to_owned());
        of_category.or_default().add(count);
    }

    fn compare(&self, row: &Row, ours: &Answer, theirs: &Answer, count: &mut Count) {
        let id = &row.id;
        match (ours.accepted, theirs.accepted) {
            (true, false) => {
                count.wrongly_accepted = 1;
                println!("WRONGLY ACCEPTED {id}\n    kernel: {}", theirs.reason);
            }
            (false, true) => {
                count.wrongly_rejected = 1;
                println!("WRONGLY REJECTED {id}\n    ours:   {}", ours.reason);
            }
            (false, false) if ours.reason != theirs.reason => {
                count.other_reason = 1;
                if self.options.reasons || self.single {
                    let (ours, theirs) = (&ours.reason, &theirs.reason);
                    println!("other reason: {id}\n    ours:   {ours}\n    kernel: {theirs}");
                }
            }
            _ => {}
        }
        if theirs.processed.is_some() && ours.processed != theirs.processed {
            count.other_processed = 1;
            if self.options.processed || self.single {
                let of = |it: &Answer| it.processed.unwrap_or(0);
                let (ours, theirs) = (of(ours), of(theirs));
                println!("processed: {id}: ours {ours}, kernel {theirs}");
            }
        }
        if self.options.log.is_some() {
            count.other_log = usize::from(self.compare_logs(row, ours, theirs));
        }
    }

    /// Returns whether the logs differ.
    fn compare_logs(&self, row: &Row, ours: &Answer, theirs: &Answer) -> bool {
        if self.single {
            println!("== ours\n{}== kernel\n{}==", ours.log, theirs.log);
        }
        // The kernel's log has the time that it took, and ends where its buffer does.
        let is_said = |line: &&str| !line.starts_with("verification time ");
        let mut lines = (
            ours.log.lines().filter(is_said),
            theirs.log.lines().filter(is_said),
        );
        for number in 1.. {
            match (lines.0.next(), lines.1.next()) {
                (None, None) => break,
                (ours, theirs) if ours.map(str::trim_end) != theirs.map(str::trim_end) => {
                    let or_end = |line: Option<&str>| line.unwrap_or("(end)").to_owned();
                    let (ours, theirs) = (or_end(ours), or_end(theirs));
                    println!(
                        "log: {}, line {number}\n    ours:   {ours}\n    kernel: {theirs}",
                        row.id
                    );
                    return true;
                }
                _ => {}
            }
        }
        false
    }

    /// Returns the table: categories with differences, and all together.
    pub fn print(&self) {
        println!(
            "{:40} {:>8} {:>8} {:>8} {:>6} {:>7} {:>9} {:>5}",
            "", "programs", "accepted", "rejected", "panics", "reasons", "processed", "logs"
        );
        for (category, count) in &self.by_category {
            if count.differ() {
                count.print(category);
            }
        }
        self.all.print("all");
        if self.not_loadable > 0 {
            println!("{} could not be loaded into the kernel", self.not_loadable);
        }
        let slowest = self
            .slowest
            .iter()
            .map(|(took, id)| format!("{id} {took:.1?}"));
        let slowest: Vec<String> = slowest.collect();
        println!("{:.1?} in all; slowest: {}", self.took, slowest.join(", "));
    }

    /// A program that the kernel refuses is never accepted; few that it accepts are refused.
    pub fn exit_code(&self) -> ExitCode {
        let all = self.all;
        let good = all.panics == 0
            && all.wrongly_accepted == 0
            && all.wrongly_rejected * 100 <= all.programs;
        ExitCode::from(u8::from(!good))
    }
}

impl Count {
    fn add(&mut self, other: Self) {
        self.programs += other.programs;
        self.wrongly_accepted += other.wrongly_accepted;
        self.wrongly_rejected += other.wrongly_rejected;
        self.panics += other.panics;
        self.other_reason += other.other_reason;
        self.other_processed += other.other_processed;
        self.other_log += other.other_log;
    }

    fn differ(&self) -> bool {
        self.wrongly_accepted
            + self.wrongly_rejected
            + self.panics
            + self.other_reason
            + self.other_processed
            + self.other_log
            > 0
    }

    fn print(&self, name: &str) {
        println!(
            "{name:40} {:8} {:8} {:8} {:6} {:7} {:9} {:5}",
            self.programs,
            self.wrongly_accepted,
            self.wrongly_rejected,
            self.panics,
            self.other_reason,
            self.other_processed,
            self.other_log
        );
    }
}

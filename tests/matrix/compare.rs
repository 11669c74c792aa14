//! Comparing the output of two runs of a tool.

use beeline_e2e::{histogram_total, shape};

use crate::entry::Compare;

/// The lines of a run that are compared, without what differs from run to run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// The lines, sorted: events of several CPUs come in no order.
    pub rows: Vec<String>,
    /// The events in histograms, or the sum that is compared.
    pub total: u64,
}

/// The names of the workloads' processes and their children, as tools print them.
const NAMES: &[&str] = &["tools", "true", "others", "counts", "leaky", "openssl"];

impl Seen {
    /// Returns what `compare` takes of a tool's output.
    pub fn of(lines: &[String], compare: Compare, pid: u32) -> Seen {
        let pid = pid.to_string();
        let kept = lines.iter().filter(|line| match compare {
            Compare::Ours => is_ours(line, &pid),
            Compare::All => !line.trim().is_empty(),
            Compare::Holding(words) | Compare::Distinct(words) => {
                words.iter().any(|word| line.contains(word))
            }
            Compare::Histogram => false,
            Compare::Sum(text) => line.contains(text),
        });
        let kept: Vec<&String> = kept.collect();
        let total = match compare {
            Compare::Histogram => histogram_total(lines),
            Compare::Sum(_) => kept.iter().filter_map(|line| last_number(line)).sum(),
            _ => 0,
        };
        let mut rows: Vec<String> = match compare {
            Compare::Histogram | Compare::Sum(_) => Vec::new(),
            _ => kept.into_iter().map(|line| plain(line, &pid)).collect(),
        };
        rows.sort();
        if matches!(compare, Compare::Distinct(_)) {
            rows.dedup();
        }
        Seen { rows, total }
    }

    /// Returns whether there is nothing to compare.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.total == 0
    }

    /// Says how much was seen.
    pub fn amount(&self) -> String {
        match (self.rows.len(), self.total) {
            (0, total) => format!("{total} events"),
            (1, _) => "1 line".to_owned(),
            (lines, _) => format!("{lines} lines"),
        }
    }
}

/// The agreement of two runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Agreement {
    /// The same lines, or sums.
    Same,
    /// The same lines but for the numbers in them, such as times.
    ButForFigures,
    /// The first difference.
    Differs(String),
}

/// Compares what the kernel's run showed with what Beeline's did.
pub fn agreement(kernel: &Seen, beeline: &Seen) -> Agreement {
    if kernel == beeline {
        return Agreement::Same;
    }
    let shapes = |seen: &Seen| {
        let mut shapes: Vec<_> = seen
            .rows
            .iter()
            .map(|row| shape(std::slice::from_ref(row)))
            .collect();
        shapes.sort();
        shapes
    };
    if kernel.total == beeline.total && shapes(kernel) == shapes(beeline) {
        return Agreement::ButForFigures;
    }
    if kernel.rows.is_empty() && beeline.rows.is_empty() {
        let (kernel, beeline) = (kernel.total, beeline.total);
        return Agreement::Differs(format!("kernel {kernel} events, Beeline {beeline}"));
    }
    let lacks = |one: &Seen, other: &Seen| {
        let (ours, theirs) = (shapes(one), shapes(other));
        let at = ours.iter().position(|row| !theirs.contains(row));
        at.map(|at| ours[at].concat())
    };
    let example = match (lacks(kernel, beeline), lacks(beeline, kernel)) {
        (Some(row), _) => format!("; only the kernel: {row}"),
        (None, Some(row)) => format!("; only Beeline: {row}"),
        (None, None) => String::new(),
    };
    Agreement::Differs(format!(
        "kernel {}, Beeline {}{example}",
        kernel.amount(),
        beeline.amount()
    ))
}

fn is_ours(line: &str, pid: &str) -> bool {
    // Paths hold such names, too.
    let ends_word = |letter: char| !letter.is_ascii_alphanumeric() && !"/-._".contains(letter);
    let mut words = line.split(ends_word);
    words.any(|word| word == pid || NAMES.contains(&word))
}

/// Returns a line without process ids, times and addresses, and with single spaces.
fn plain(line: &str, pid: &str) -> String {
    let words = line.split_whitespace().map(|word| {
        let bare = word.trim_matches(|letter: char| !letter.is_ascii_alphanumeric());
        let named = match bare {
            bare if bare == pid => "PID",
            bare if is_time(bare) => "TIME",
            bare if bare.starts_with("0x") && bare.len() > 8 => "ADDR",
            // An address as a key, or among other text.
            _ => match word.split_once("0x") {
                Some((before, rest)) => {
                    let after = rest.trim_start_matches(|digit: char| digit.is_ascii_hexdigit());
                    let is_address = rest.len() - after.len() > 8;
                    let address = format!("{before}ADDR{after}");
                    return if is_address { address } else { word.to_owned() };
                }
                None => return word.to_owned(),
            },
        };
        word.replace(bare, named)
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Returns whether a word is a day, a time of day, or a number with a fraction.
fn is_time(word: &str) -> bool {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let is_clock = word.split(':').count() == 3 && word.split([':', '.']).all(is_number);
    let is_day = word.split('/').count() == 3 && word.split('/').all(is_number);
    is_day
        || is_clock
        || word
            .split_once('.')
            .is_some_and(|(whole, part)| is_number(whole) && is_number(part))
}

fn last_number(line: &str) -> Option<u64> {
    let mut words = line.split(|letter: char| !letter.is_ascii_digit());
    words.rfind(|word| !word.is_empty())?.parse().ok()
}

#[test]
fn lines_are_compared_without_what_differs_between_runs() {
    let seen = |text: &str, pid| {
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        Seen::of(&lines, Compare::Ours, pid)
    };
    let kernel = seen("12:00:01  17   tools 3 /etc/x\n1 init 3 /etc/x", 17);
    let beeline = seen("12:00:09 9 tools 3 /etc/x", 9);
    assert_eq!(kernel.rows, ["TIME PID tools 3 /etc/x"]);
    assert_eq!(agreement(&kernel, &beeline), Agreement::Same);
    let keyed = |address: &str| seen(&format!("@tools[{address}]: 1"), 9);
    assert_eq!(keyed("0x7f0123456789").rows, ["@tools[ADDR]: 1"]);
    assert_eq!(keyed("0x10").rows, ["@tools[0x10]: 1"]);
    let other = seen("12:00:09 9 tools 4 /etc/x", 9);
    assert_eq!(agreement(&kernel, &other), Agreement::ButForFigures);
    let other = seen("12:00:09 9 tools 4 /etc/y", 9);
    assert!(matches!(agreement(&kernel, &other), Agreement::Differs(_)));
}

#[test]
fn sums_and_histograms_are_compared_by_their_totals() {
    let lines = [
        "  getppid   1001".to_owned(),
        " 8 -> 15 : 3 |** |".to_owned(),
    ];
    assert_eq!(Seen::of(&lines, Compare::Sum("getppid"), 1).total, 1001);
    assert_eq!(Seen::of(&lines, Compare::Histogram, 1).total, 3);
}

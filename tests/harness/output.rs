//! Makes the output of two runs comparable.

use crate::TICK;
use std::collections::BTreeMap;

/// Returns output without ticks and empty lines, with addresses as ADDR.
///
/// If `named` says that the script asks for process ids, the target's id becomes PID where one may
/// be: in the key of a map's line, never in a value.
pub fn tidy(lines: &[String], named: Option<u32>) -> Vec<String> {
    let pid = named.map(|pid| pid.to_string());
    let kept = lines
        .iter()
        .filter(|line| line.as_str() != TICK && !line.trim().is_empty());
    kept.map(|line| {
        let (key, value) = line.split_at(end_of_key(line));
        rename(key, |word| known_name(word, pid.as_deref()))
            + &rename(value, |word| known_name(word, None))
    })
    .collect()
}

/// Returns the end of the key in a map's line "@name[key]: value"; 0 if it is not such a line.
fn end_of_key(line: &str) -> usize {
    match (line.starts_with('@'), line.rfind("]:")) {
        (true, Some(end)) => end,
        _ => 0,
    }
}

/// Returns a name for a word that differs from run to run.
fn known_name(word: &str, pid: Option<&str>) -> Option<&'static str> {
    match word {
        word if Some(word) == pid => Some("PID"),
        word if is_address(word) => Some("ADDR"),
        _ => None,
    }
}

/// Replaces whole words by the results of `name`.
fn rename(line: &str, name: impl Fn(&str) -> Option<&'static str>) -> String {
    words_and_gaps(line)
        .map(|piece| name(piece).unwrap_or(piece))
        .collect()
}

/// Returns whether a number is a word of a text.
pub fn holds_word(text: &str, number: u32) -> bool {
    let number = number.to_string();
    words_and_gaps(text).any(|piece| piece == number)
}

/// Returns a text's words of letters and digits, and the single characters between them.
fn words_and_gaps(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let first = rest.chars().next()?;
        let end = match rest.find(|c: char| !c.is_ascii_alphanumeric()) {
            Some(0) => first.len_utf8(),
            Some(end) => end,
            None => rest.len(),
        };
        let (piece, after) = rest.split_at(end);
        rest = after;
        Some(piece)
    })
}

/// Returns whether the word is "0x..." or, in perf's notation, about twelve bare hexadecimal
/// digits.
fn is_address(word: &str) -> bool {
    let bare = word.len() >= 11
        && word.bytes().all(|b| b.is_ascii_hexdigit())
        && word.bytes().any(|b| b >= b'a');
    word.starts_with("0x") || bare
}

/// Returns the form of a text without its figures.
///
/// Every number (with a unit of a histogram's) is `#`, runs of spaces and of a histogram's bar
/// become one, and so do repeated lines.
pub fn shape(lines: &[String]) -> Vec<String> {
    let mut shapes: Vec<String> = lines.iter().map(|line| shape_of_line(line)).collect();
    shapes.dedup();
    shapes
}

fn shape_of_line(line: &str) -> String {
    let mut result = String::new();
    for c in line.trim().chars() {
        let last = result.chars().next_back();
        match c {
            '0'..='9' if last == Some('#') => {}
            '0'..='9' => result.push('#'),
            'K' | 'M' | 'G' | 'T' if last == Some('#') => {}
            ' ' if last == Some(' ') => {}
            '@' if matches!(last, Some('@' | '|')) => {}
            c => result.push(c),
        }
    }
    // An empty bar and a full one are both "|...|".
    match result.split_once('|') {
        Some((row, _)) if row.starts_with(['[', '#']) || row.starts_with('(') => format!("{row}|"),
        _ => result,
    }
}

/// Returns the keys and whole-number values of a map's lines `@name[key]: 5`.
pub fn map_counts(lines: &[String]) -> BTreeMap<String, u64> {
    let pairs = lines
        .iter()
        .filter(|line| line.starts_with('@'))
        .filter_map(|line| {
            let (key, value) = line.rsplit_once(": ")?;
            Some((key.to_owned(), value.trim().parse().ok()?))
        });
    pairs.collect()
}

/// Returns the sum of all rows of the histograms in a tool's output.
///
/// These are bpftrace's "[8, 16)   5 |@@  |" and the libbpf tools' "8 -> 15 : 5 |**  |".
pub fn histogram_total(lines: &[String]) -> u64 {
    let counts = lines.iter().filter_map(|line| {
        let (row, _bar) = line.split_once('|')?;
        row.split_whitespace().next_back()?.parse::<u64>().ok()
    });
    counts.sum()
}

/// Returns a line of bpftool's with the parts that differ from run to run and machine to machine as
/// `N`.
///
/// These are ids, times, and the sizes of memory and of compiled code.
pub fn without_sizes(line: &str) -> String {
    const VARYING: [&str; 12] = [
        "memlock ",
        "jited ",
        "loaded_at ",
        "map_ids ",
        "map[id:",
        "\"id\":",
        "\"loaded_at\":",
        "\"bytes_jited\":",
        "\"bytes_memlock\":",
        "\"map_ids\":[",
        "insns ",
        "found ",
    ];
    let mut line = match line.split_once(": ") {
        Some((id, rest)) if id.parse::<u32>().is_ok() && !rest.starts_with('(') => {
            format!("N: {rest}")
        }
        _ => line.to_owned(),
    };
    for name in VARYING {
        if let Some(at) = line.find(name) {
            let (before, after) = line.split_at(at + name.len());
            let rest = after.trim_start_matches(|letter: char| {
                letter.is_ascii_digit() || matches!(letter, '-' | ':' | 'T' | '+')
            });
            line = format!("{before}N{rest}");
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn tidy_drops_ticks_and_names_what_differs_between_runs() {
        let raw = lines("beeline-tick\n\n@[12, 0x7f00]: 123");
        assert_eq!(tidy(&raw, Some(12)), ["@[PID, ADDR]: 123"]);
    }

    #[test]
    fn a_number_that_happens_to_be_the_process_id_stays_a_number() {
        let raw = lines("@one: 1000\n@[1000, é]: 1000\n1000 1000\n[1000, 2000) 3 |@|");
        assert_eq!(
            tidy(&raw, Some(1000)),
            [
                "@one: 1000",
                "@[PID, é]: 1000",
                "1000 1000",
                "[1000, 2000) 3 |@|"
            ]
        );
        assert_eq!(tidy(&raw, None), raw);
    }

    #[test]
    fn a_number_is_found_as_a_whole_word_only() {
        assert!(holds_word("@[12, 7]: 5", 7));
        assert!(!holds_word("@[12, 7]: 5 12a", 2));
    }

    #[test]
    fn shape_forgets_figures_but_not_words() {
        let one = shape(&lines(
            "@: \n[1K, 2K)    5 |@@@@   |\n[2K, 4K)   11 |@@@@@@@|",
        ));
        let other = shape(&lines("@: \n[512, 1K)   16 |@@@|"));
        assert_eq!(one, other);
        assert_ne!(one, shape(&lines("@x: \n[512, 1K)   16 |@@@|")));
    }

    #[test]
    fn histogram_totals_are_read_in_both_notations() {
        assert_eq!(
            histogram_total(&lines("[4, 8)  3 |@@ |\n[8, 16)  4 |@@@|\n@: 9")),
            7
        );
        assert_eq!(
            histogram_total(&lines(" 4 -> 7   : 3   |** |\n 8 -> 15 : 1 |*  |")),
            4
        );
    }

    #[test]
    fn only_what_varies_is_left_out() {
        assert_eq!(
            without_sizes("17: hash  name held  flags 0x0"),
            "N: hash  name held  flags 0x0"
        );
        assert_eq!(
            without_sizes("\tkey 4B  value 8B  max_entries 4  memlock 1360B"),
            "\tkey 4B  value 8B  max_entries 4  memlock NB"
        );
        assert_eq!(
            without_sizes("   0: (18) r1 = map[id:9]"),
            "   0: (18) r1 = map[id:N]"
        );
    }
}

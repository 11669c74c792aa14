//! The results as Markdown.

use std::fmt::Write as _;

use crate::captured::FEATURES;
use crate::{Found, Row, Verdict};

/// The number of programs by verdict, of one package or of all.
#[derive(Debug, Default)]
struct Count {
    programs: usize,
    both_accept: usize,
    both_reject: usize,
    kernel_alone: usize,
    beeline_alone: usize,
    kernel_silent: usize,
    beeline_silent: usize,
    /// Programs that both accept after the same number of instructions.
    same_effort: usize,
}

impl Count {
    fn of<'a>(rows: impl Iterator<Item = &'a Row>) -> Self {
        let mut count = Self::default();
        for row in rows {
            count.programs += 1;
            let place = match (row.kernel.verdict, row.beeline.verdict) {
                (_, Verdict::None) => &mut count.beeline_silent,
                (Verdict::None, _) => &mut count.kernel_silent,
                (Verdict::Accept, Verdict::Accept) => &mut count.both_accept,
                (Verdict::Reject, Verdict::Reject) => &mut count.both_reject,
                (Verdict::Accept, Verdict::Reject) => &mut count.kernel_alone,
                (Verdict::Reject, Verdict::Accept) => &mut count.beeline_alone,
            };
            *place += 1;
            let accepted = row.kernel.verdict == Verdict::Accept && differs(row) == Some(false);
            let same = row.kernel.processed == row.beeline.processed;
            count.same_effort += usize::from(accepted && same);
        }
        count
    }

    fn line(&self, name: &str) -> String {
        let Self {
            programs,
            both_accept,
            both_reject,
            kernel_alone,
            beeline_alone,
            kernel_silent,
            beeline_silent,
            same_effort,
        } = self;
        format!(
            "| {name} | {programs} | {both_accept} | {both_reject} | {kernel_alone} | {beeline_alone} | {kernel_silent} | {beeline_silent} | {same_effort} |\n"
        )
    }
}

/// `None` if one of them has no verdict.
fn differs(row: &Row) -> Option<bool> {
    let (kernel, beeline) = (row.kernel.verdict, row.beeline.verdict);
    let both = kernel != Verdict::None && beeline != Verdict::None;
    both.then_some(kernel != beeline)
}

/// Returns the counts by package.
pub fn summary(found: &Found) -> String {
    let mut text = String::from(
        "| | programs | both accept | both reject | only the kernel accepts | only Beeline accepts | no verdict of the kernel's | none of Beeline's | accepted with as many instructions processed |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for (package, version) in &found.packages {
        let rows = found.rows.iter().filter(|row| row.package == *package);
        text += &Count::of(rows).line(&format!("{package} {version}"));
    }
    text += &Count::of(found.rows.iter()).line("all");
    text
}

/// Returns the whole page.
pub fn table(found: &Found) -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let release = release.trim();
    let mut text = format!(
        "# Programs of Debian's tools, and two verdicts\n\n\
         Every eBPF program in these packages: what Linux {release} says of it, and what Beeline says. `make corpora` writes this \
         page. The kernel has no verdict where it loads no such program at all, as kernels that are locked down do for fentry, \
         fexit and LSM programs. Some tools name the function that such a program attaches to when they run; without it the \
         program is refused.\n\n"
    );
    text += &summary(found);
    section(
        &mut text,
        "Where they differ",
        &["kernel", "Beeline"],
        || {
            let rows = found.rows.iter().filter(|row| differs(row) == Some(true));
            let reason = |reason: &str| cell(if reason.is_empty() { "accept" } else { reason });
            rows.map(|row| {
                (
                    row,
                    vec![reason(&row.kernel.reason), reason(&row.beeline.reason)],
                )
            })
            .collect()
        },
    );
    section(&mut text, "Refused by both", &["kernel", "Beeline"], || {
        let is_refused = |row: &&Row| {
            row.tool != FEATURES
                && row.kernel.verdict == Verdict::Reject
                && row.beeline.verdict == Verdict::Reject
        };
        let rows = found.rows.iter().filter(is_refused);
        rows.map(|row| {
            (
                row,
                vec![cell(&row.kernel.reason), cell(&row.beeline.reason)],
            )
        })
        .collect()
    });
    let title = "Refused by Beeline, where the kernel has no verdict";
    section(&mut text, title, &["Beeline"], || {
        let is_refused = |row: &&Row| {
            row.kernel.verdict == Verdict::None && row.beeline.verdict == Verdict::Reject
        };
        let rows = found.rows.iter().filter(is_refused);
        rows.map(|row| (row, vec![cell(&row.beeline.reason)]))
            .collect()
    });
    let columns = ["insns", "kernel", "Beeline", "processed", "by Beeline"];
    section(&mut text, "All but probes of features", &columns, || {
        let cells = |row: &Row| {
            let [kernel, beeline] = [&row.kernel, &row.beeline].map(|it| word(it.verdict));
            let processed = [&row.kernel, &row.beeline].map(|it| it.processed.to_string());
            let words = [row.insns.to_string(), kernel.to_owned(), beeline.to_owned()];
            words.into_iter().chain(processed).collect()
        };
        let rows = found.rows.iter().filter(|row| row.tool != FEATURES);
        rows.map(|row| (row, cells(row))).collect()
    });
    if !found.skipped.is_empty() {
        text += "\n## Not looked at\n\n| package | tool | why |\n| --- | --- | --- |\n";
        for it in &found.skipped {
            let (package, tool, why) = (it.package, cell(&it.tool), cell(&it.why));
            writeln!(text, "| {package} | {tool} | {why} |").unwrap();
        }
    }
    text
}

fn section<'a>(
    text: &mut String,
    title: &str,
    columns: &[&str],
    rows: impl FnOnce() -> Vec<(&'a Row, Vec<String>)>,
) {
    write!(text, "\n## {title}\n\n").unwrap();
    let rows = rows();
    if rows.is_empty() {
        text.push_str("None.\n");
        return;
    }
    let columns = columns.join(" | ");
    writeln!(text, "| tool | program | section | {columns} |").unwrap();
    let rules = " --- |".repeat(3 + columns.split(" | ").count());
    writeln!(text, "|{rules}").unwrap();
    for (row, cells) in rows {
        let [tool, program, section] = [&row.tool, &row.program, &row.section].map(|it| cell(it));
        let cells = cells.join(" | ");
        writeln!(text, "| {tool} | {program} | {section} | {cells} |").unwrap();
    }
}

fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Accept => "accept",
        Verdict::Reject => "reject",
        Verdict::None => "-",
    }
}

/// Escapes text so that it does not end its cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

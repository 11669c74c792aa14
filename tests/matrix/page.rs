//! The results as Markdown.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::family::FAMILIES;
use crate::results::{Line, Measured, Verdict};

const HEAD: &str = "# Tools

Each tool ran twice while a process did the same work: on the kernel, and under `beeline run`
(`--pid` named the process to tools that cannot). What it showed of that work was compared.
`make matrix` runs them all and writes this page.

All programs were kept in user space (`--where user`), as for a user without rights. Without that
option, and as root, programs at the kernel's own events run in the kernel, within
[limits](design/host-kernel.md#limits).

";

/// The meanings of the verdicts, behind the summary.
const MEANINGS: &str = "
- **same**: the same lines, or sums of what was counted. \"But for figures\": they hold times, ids
  or sizes, which differ from run to run.
- **works, not on this kernel**: it showed the work. This kernel has no kprobes, or does not load the
  tool's programs, so there was nothing to compare with.
- **differs**: it showed the work on both, and not in the same way.
- **needs the kernel**: it asked for events that only a kernel has, which are named as Beeline names
  them to the user.
- **fails**: it worked on the kernel, and not under Beeline.
- **shows nothing**: it ran on both, and had nothing to show of this work.
- **fails on both**: for a reason of its own, such as a program without probes.
";

/// Returns the page.
pub fn page(families: &BTreeMap<String, Measured>) -> String {
    let mut text = HEAD.to_owned();
    let measured: Vec<_> = FAMILIES
        .iter()
        .filter_map(|family| Some((family.title, families.get(family.name)?)))
        .collect();
    summary(&mut text, &measured);
    text += MEANINGS;
    for (title, family) in measured {
        let Measured {
            version,
            kernel,
            day,
            lines,
        } = family;
        let _ = write!(text, "\n## {title}\n\n{version}, Linux {kernel}, {day}\n\n");
        text += "| tool | under Beeline | |\n| --- | --- | --- |\n";
        let mut lines: Vec<_> = lines.iter().collect();
        lines.sort_by(|one, other| one.command.cmp(&other.command));
        for line in lines {
            let (command, detail) = (cell(&line.command), cell(&line.detail));
            let _ = writeln!(text, "| {command} | {} | {detail} |", line.verdict.words());
        }
    }
    text
}

fn summary(text: &mut String, measured: &[(&str, &Measured)]) {
    let titles: Vec<_> = Verdict::ALL.iter().map(|(_, words)| *words).collect();
    let _ = writeln!(text, "| | lines | {} |", titles.join(" | "));
    let _ = writeln!(text, "|{}", " --- |".repeat(titles.len() + 2));
    let mut row = |title: &str, lines: &[&Line]| {
        let of = |verdict| lines.iter().filter(|line| line.verdict == verdict).count();
        let counts: Vec<_> = Verdict::ALL
            .iter()
            .map(|(it, _)| of(*it).to_string())
            .collect();
        let _ = writeln!(
            text,
            "| {title} | {} | {} |",
            lines.len(),
            counts.join(" | ")
        );
    };
    for (title, family) in measured {
        row(title, &family.lines.iter().collect::<Vec<_>>());
    }
    let all = measured.iter().flat_map(|(_, family)| &family.lines);
    row("all", &all.collect::<Vec<_>>());
}

/// Escapes text so that it does not end its cell or read as markup.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
        .replace('<', "&lt;")
        .replace('*', "\\*")
        .replace('_', "\\_")
}

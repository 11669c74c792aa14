//! The verdict on a tool, from two runs.

use beeline_e2e::{Engine, Scratch};

use crate::compare::{Agreement, agreement};
use crate::entry::Entry;
use crate::family::Family;
use crate::results::{Line, Verdict};
use crate::run::{Run, run};

/// Returns a tool's command as the page shows it.
pub fn command(entry: &Entry) -> String {
    // bpftool's lines are scripts of its commands, which their names say enough of.
    let shown = entry.args.iter().filter(|word| !word.contains('\n'));
    let words = std::iter::once(&entry.tool).chain(shown);
    let words: Vec<_> = words
        .map(|word| word.replace("{pid}", "PID").replace("{prog}", "PROGRAM"))
        .collect();
    words.join(" ")
}

/// Runs a tool on the kernel and on Beeline, and judges. What differs is tried once more: a busy
/// machine may have cut a run short.
pub fn measure(entry: &Entry, family: &Family, programs: &Scratch) -> Line {
    let first = judged(entry, family, programs);
    let (verdict, detail) = match first.0 {
        Verdict::Differs | Verdict::Fails => {
            let second = judged(entry, family, programs);
            if second.0 < first.0 { second } else { first }
        }
        _ => first,
    };
    Line {
        command: command(entry),
        verdict,
        detail,
    }
}

/// Beeline's run comes first: where the tool fails because it needs the kernel, the kernel's run
/// tells only if it has what the tool needs.
fn judged(entry: &Entry, family: &Family, programs: &Scratch) -> (Verdict, String) {
    let of = |engine, brief| run(engine, entry, family, brief, programs);
    let runs = of(Engine::Beeline, false).and_then(|beeline| {
        let brief = !beeline.works && !needs(&beeline).is_empty();
        Ok((of(Engine::Kernel, brief)?, beeline))
    });
    match runs {
        Ok((kernel, beeline)) => {
            if std::env::var_os("MATRIX_SHOW").is_some() {
                eprintln!("--- kernel\n{kernel:#?}\n--- beeline\n{beeline:#?}");
            }
            judge(&kernel, &beeline)
        }
        Err(why) => (Verdict::Neither, why),
    }
}

/// Compares two runs.
pub fn judge(kernel: &Run, beeline: &Run) -> (Verdict, String) {
    let needs = needs(beeline);
    if let Some(harm) = &beeline.harm
        && kernel.harm.is_none()
    {
        return (Verdict::Fails, harm.clone());
    }
    match (kernel.works, beeline.works) {
        (_, false) if !needs.is_empty() => {
            let here = if kernel.works {
                ""
            } else {
                "; this kernel lacks it too"
            };
            (Verdict::Kernel, format!("{}{here}", needs.join(", ")))
        }
        (true, true) => compared(kernel, beeline, &needs),
        (false, true) if beeline.seen.is_empty() => (Verdict::Silent, last_words(beeline)),
        (false, true) => {
            let (amount, why) = (beeline.seen.amount(), reason(kernel));
            (Verdict::Alone, format!("{amount}; the kernel: {why}"))
        }
        (true, false) => (Verdict::Fails, reason(beeline)),
        (false, false) => (Verdict::Neither, reason(beeline)),
    }
}

fn compared(kernel: &Run, beeline: &Run, needs: &[String]) -> (Verdict, String) {
    let (seen, needs) = (&beeline.seen, needs.join(", "));
    let without = if needs.is_empty() {
        String::new()
    } else {
        format!("; without {needs}")
    };
    match agreement(&kernel.seen, seen) {
        Agreement::Same if seen.is_empty() && !needs.is_empty() => (Verdict::Kernel, needs),
        Agreement::Same if seen.is_empty() => (Verdict::Silent, last_words(beeline)),
        Agreement::Same => (Verdict::Same, seen.amount() + &without),
        Agreement::ButForFigures => (
            Verdict::Same,
            format!("{} but for figures{without}", seen.amount()),
        ),
        Agreement::Differs(_) if seen.is_empty() && !needs.is_empty() => (Verdict::Kernel, needs),
        Agreement::Differs(how) => {
            let lost = match [lost(kernel), lost(beeline)] {
                [0, 0] => String::new(),
                [kernel, beeline] => format!("; lost samples: kernel {kernel}, Beeline {beeline}"),
            };
            (Verdict::Differs, how + &lost + &without)
        }
    }
}

/// Returns what Beeline says that only a kernel has, without the rest of its sentence. bpftrace itself
/// says that there are no such events where it looks in lists of them.
fn needs(run: &Run) -> Vec<String> {
    let lines = run.stderr.iter().chain(&run.stdout);
    let said = lines.filter_map(|line| {
        if let Some((_, event)) = line.split_once("ERROR: No matches for ") {
            return Some(event.trim_end_matches('.').replace(' ', ":"));
        }
        let (what, _) = line
            .strip_prefix("beeline: ")?
            .split_once(": only a kernel has this")?;
        let (what, _) = what.split_once(" (").unwrap_or((what, ""));
        Some(what.to_owned())
    });
    let mut all: Vec<String> = Vec::new();
    for what in said {
        if !all.contains(&what) {
            all.push(what);
        }
    }
    all
}

/// Returns the number of samples that a tool says it has lost, for want of time to read them.
fn lost(run: &Run) -> u64 {
    let lines = run.stderr.iter().chain(&run.stdout);
    let counts = lines.filter_map(|line| {
        let (_, rest) = line.split_once("ost ")?;
        rest.split(' ').next()?.parse::<u64>().ok()
    });
    counts.sum()
}

/// Returns what a tool said that ended by itself.
fn last_words(run: &Run) -> String {
    match run.traced {
        true => String::new(),
        false => reason(run),
    }
}

/// Returns the line that says best why a tool failed.
fn reason(run: &Run) -> String {
    if let Some(harm) = &run.harm {
        return harm.clone();
    }
    let lines: Vec<_> = run
        .stderr
        .iter()
        .chain(&run.stdout)
        .map(|line| line.trim())
        .collect();
    let holds = |words: &[&str]| {
        lines
            .iter()
            .any(|line| words.iter().any(|word| line.contains(word)))
    };
    if holds(&[
        "kprobe_events",
        "kprobes/blacklist",
        "failed to create kprobe",
        "kprobe PMU",
    ]) {
        return "no kprobes".to_owned();
    }
    if holds(&["Failed to load program: Operation not permitted"]) {
        return "does not load its programs (EPERM)".to_owned();
    }
    let compiler = lines.iter().find_map(|line| line.split_once(" error: "));
    if let Some((_, error)) = compiler {
        return format!("does not compile: {error}");
    }
    let own = lines.iter().find_map(|line| line.split_once("ERROR: "));
    if let Some((_, error)) = own {
        return error.to_owned();
    }
    let last = lines.iter().rev().find(|line| !line.is_empty());
    last.map_or_else(
        || "says nothing".to_owned(),
        |line| line.chars().take(160).collect(),
    )
}

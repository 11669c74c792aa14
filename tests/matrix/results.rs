//! The results of the runs, as a file: a line `@` for each family, then one for each tool.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// The tool's fate under `beeline run`, beside the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// The same as on the kernel.
    Same,
    /// It works, and this machine's kernel does not run it.
    Alone,
    /// It works on both, and shows something else.
    Differs,
    /// It asks for what only a kernel has.
    Kernel,
    /// It works on the kernel, and fails for another reason.
    Fails,
    /// It runs on both, and shows nothing of the work.
    Silent,
    /// It fails on both, for a reason of its own.
    Neither,
}

impl Verdict {
    /// All, in the order of the page, with the page's words.
    pub const ALL: &[(Verdict, &str)] = &[
        (Verdict::Same, "same"),
        (Verdict::Alone, "works, not on this kernel"),
        (Verdict::Differs, "differs"),
        (Verdict::Kernel, "needs the kernel"),
        (Verdict::Fails, "fails"),
        (Verdict::Silent, "shows nothing"),
        (Verdict::Neither, "fails on both"),
    ];

    /// Returns the page's words for it.
    pub fn words(self) -> &'static str {
        let known = Verdict::ALL.iter().find(|(verdict, _)| *verdict == self);
        known.map_or("", |(_, words)| words)
    }
}

/// A family's results.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measured {
    /// Its version, the kernel's, and the day.
    pub version: String,
    /// The kernel's release.
    pub kernel: String,
    /// The day, in UTC.
    pub day: String,
    /// Its lines.
    pub lines: Vec<Line>,
}

/// A tool's result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The tool and its arguments.
    pub command: String,
    /// The verdict.
    pub verdict: Verdict,
    /// The number of lines that were compared, or the fault.
    pub detail: String,
}

/// Returns the file of results.
pub fn file() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/matrix/results.tsv"))
}

/// Reads results. Panics if they are not such a file.
pub fn parse(text: &str) -> BTreeMap<String, Measured> {
    let mut families: BTreeMap<String, Measured> = BTreeMap::new();
    let mut current = String::new();
    for line in text.lines() {
        let fields: Vec<_> = line.split('\t').map(str::to_owned).collect();
        match fields.as_slice() {
            [mark, name, version, kernel, day] if mark == "@" => {
                current.clone_from(name);
                let measured = Measured {
                    version: version.clone(),
                    kernel: kernel.clone(),
                    day: day.clone(),
                    lines: Vec::new(),
                };
                families.insert(name.clone(), measured);
            }
            [command, verdict, detail] => {
                let known = Verdict::ALL.iter().find(|(_, words)| words == verdict);
                let (verdict, _) = *known.unwrap_or_else(|| panic!("no verdict {verdict}"));
                let family = families.get_mut(&current).expect("a family comes first");
                family.lines.push(Line {
                    command: command.clone(),
                    verdict,
                    detail: detail.clone(),
                });
            }
            _ => panic!("not a line of results: {line:?}"),
        }
    }
    families
}

/// Writes results as [`parse`] reads them.
pub fn written(families: &BTreeMap<String, Measured>) -> String {
    let mut text = String::new();
    for (name, family) in families {
        let Measured {
            version,
            kernel,
            day,
            ..
        } = family;
        text += &format!("@\t{name}\t{version}\t{kernel}\t{day}\n");
        for line in &family.lines {
            let (command, detail) = (flat(&line.command), flat(&line.detail));
            text += &format!("{command}\t{}\t{detail}\n", line.verdict.words());
        }
    }
    text
}

fn flat(text: &str) -> String {
    text.replace(['\t', '\n', '\r'], " ")
}

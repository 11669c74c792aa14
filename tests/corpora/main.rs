//! Every eBPF program that Debian's tools carry, with the kernel's verdict beside Beeline's: makes `docs/corpora.md` anew, or
//! the file that is given.
//!
//! Programs of libbpf's tools are object files inside the tools ([`embedded`]). Those that bpftrace makes are written
//! down when it loads them ([`captured`]). Packages that are not installed are named as such.

mod capture_file;
mod captured;
mod embedded;
mod table;

use std::path::{Path, PathBuf};
use std::process::Command;

/// A program, and what was said about it.
#[derive(Debug, Clone)]
struct Row {
    package: &'static str,
    tool: String,
    program: String,
    /// Its section's name, or its type's number.
    section: String,
    insns: u64,
    kernel: Said,
    beeline: Said,
}

/// One verifier's word.
#[derive(Debug, Clone, Default)]
struct Said {
    verdict: Verdict,
    reason: String,
    processed: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Verdict {
    Accept,
    Reject,
    /// The kernel was not asked or may not look; Beeline crashed.
    #[default]
    None,
}

/// A tool without programs, and why.
#[derive(Debug, Clone)]
struct Skipped {
    package: &'static str,
    tool: String,
    why: String,
}

/// What was found.
#[derive(Debug, Default)]
struct Found {
    rows: Vec<Row>,
    skipped: Vec<Skipped>,
    /// Packages that were looked at, with their versions.
    packages: Vec<(&'static str, String)>,
}

/// Packages whose programs are inside their files.
const EMBEDDED: &[&str] = &["libbpf-tools", "bpftool", "systemd"];

/// A package whose programs are made when its tools run.
struct Made {
    package: &'static str,
    /// With what its tools' files end.
    ending: &'static str,
    /// What stands before and behind a tool's file on the command line.
    around: (&'static [&'static str], &'static [&'static str]),
}

const MADE: &[Made] = &[
    Made {
        package: "bpftrace",
        ending: ".bt",
        around: (&["bpftrace"], &[]),
    },
    Made {
        package: "bpfcc-tools",
        ending: "-bpfcc",
        around: (&[], &[]),
    },
    Made {
        package: "bpftool",
        ending: "bin/bpftool",
        around: (&[], &["feature", "probe"]),
    },
];

fn main() -> std::io::Result<()> {
    let output = std::env::args_os().nth(1).map_or_else(
        || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/corpora.md")),
        PathBuf::from,
    );
    let mut found = Found::default();
    for &package in EMBEDDED {
        if let Some(files) = found.package(package) {
            embedded::judge(package, &files, &mut found);
        }
    }
    let mut captured = captured::Corpus::new()?;
    for made in MADE {
        let files = found.package(made.package).unwrap_or_default();
        let is_tool = |file: &&PathBuf| file.to_string_lossy().ends_with(made.ending);
        for file in files.iter().filter(is_tool) {
            let (before, behind) = made.around;
            let words = before.iter().chain(behind).map(Path::new);
            let words: Vec<&Path> = words.collect();
            let (before, behind) = words.split_at(before.len());
            let command = [before, &[file.as_path()], behind].concat();
            captured.judge(made.package, file, &command, &mut found)?;
        }
    }
    std::fs::write(&output, table::table(&found))?;
    println!("{}", table::summary(&found));
    Ok(())
}

impl Found {
    /// A package's files, if it is installed.
    fn package(&mut self, package: &'static str) -> Option<Vec<PathBuf>> {
        let ask = |words: &[&str]| {
            let asked = Command::new(words[0]).args(&words[1..]).output().ok()?;
            let answer = String::from_utf8_lossy(&asked.stdout).into_owned();
            (asked.status.success() && !answer.is_empty()).then_some(answer)
        };
        let format = "-f=${Version}";
        let version = ask(&["dpkg-query", "-W", format, package]);
        let files = ask(&["dpkg-query", "-L", package]);
        let (Some(version), Some(files)) = (version, files) else {
            self.skip(package, "all", "the package is not installed");
            return None;
        };
        if self.packages.iter().all(|(known, _)| *known != package) {
            self.packages.push((package, version));
        }
        let files = files.lines().map(PathBuf::from);
        Some(files.filter(|it| it.is_file()).collect())
    }

    fn skip(&mut self, package: &'static str, tool: &str, why: &str) {
        self.skipped.push(Skipped {
            package,
            tool: tool.to_owned(),
            why: why.trim().to_owned(),
        });
    }
}

/// A file's name as people say it.
fn name_of(file: &Path) -> String {
    let name = file.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

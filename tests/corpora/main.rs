//! Judges every eBPF program in Debian's tools, by the kernel and by Beeline: rewrites
//! `docs/corpora.md`, or the given file.
//!
//! The programs of libbpf's tools are object files inside the tools ([`embedded`]), those of Go's
//! library are object files in its module ([`module`]). The programs of bpftrace and bcc are
//! recorded when they are loaded ([`captured`]). Of a newer Debian, only programs inside files are
//! judged. Packages that are not installed are listed as such. `scripts/corpora.sh` installs the
//! available ones.

mod bpfcc;
mod capture_file;
mod captured;
mod embedded;
mod module;
mod table;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A program, and the verdicts on it.
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

/// One verifier's verdict.
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
    /// The kernel was not asked or lacks the permission; or Beeline crashed.
    #[default]
    None,
}

/// A tool without programs, and the reason.
#[derive(Debug, Clone)]
struct Skipped {
    package: &'static str,
    tool: String,
    why: String,
}

/// The results.
#[derive(Debug, Default)]
struct Found {
    rows: Vec<Row>,
    skipped: Vec<Skipped>,
    /// Examined packages, with their versions.
    packages: Vec<(&'static str, String)>,
}

/// Packages whose programs are inside their files.
const EMBEDDED: &[&str] = &["libbpf-tools", "bpftool", "systemd"];

/// The same for a newer Debian, unpacked at `BEELINE_CORPORA_NEWER`: names for the table, and
/// directories.
const NEWER: &[(&str, &str)] = &[
    ("systemd of Debian 13", "systemd"),
    ("libsystemd-shared of Debian 13", "libsystemd-shared"),
    ("libbpf-tools of Debian 13", "libbpf-tools"),
];

/// A Go module whose programs are files in it, and its version.
const MODULE: (&str, &str) = ("github.com/cilium/ebpf", "v0.22.0");

/// A package whose programs are made when its tools run.
struct Made {
    package: &'static str,
    /// The suffix of its tools' files.
    ending: &'static str,
    /// The command line before a tool's file.
    before: &'static [&'static str],
    /// Returns the arguments after a tool's file, by its name; `None` for a tool that is not run.
    words: fn(&str) -> Option<&'static [&'static str]>,
}

const MADE: &[Made] = &[
    Made {
        package: "bpftrace",
        ending: ".bt",
        before: &["bpftrace"],
        words: |_| Some(&[]),
    },
    Made {
        package: "bpfcc-tools",
        ending: "-bpfcc",
        before: &[],
        words: bpfcc::words,
    },
    Made {
        package: "bpftool",
        ending: "bin/bpftool",
        before: &[],
        words: |_| Some(&["feature", "probe"]),
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
    found.newer();
    found.module();
    let why = "they are written in Rust: a nightly compiler and bpf-linker would have to make them";
    found.skip("aya's examples", "all", why);
    let python = Python::start();
    let mut captured = captured::Corpus::new()?;
    for made in MADE {
        let files = found.package(made.package).unwrap_or_default();
        let is_tool = |file: &&PathBuf| file.to_string_lossy().ends_with(made.ending);
        for file in files.iter().filter(is_tool) {
            let Some(words) = (made.words)(&name_of(file)) else {
                found.skip(made.package, &name_of(file), "it is not run");
                continue;
            };
            let before = made.before.iter().map(OsString::from);
            let words = words.iter().map(|word| python.named(word));
            let command: Vec<OsString> = before.chain([file.into()]).chain(words).collect();
            captured.judge(made.package, file, &command, &mut found)?;
        }
    }
    std::fs::write(&output, table::table(&found))?;
    println!("{}", table::summary(&found));
    Ok(())
}

/// An idle process of Debian's Python, for tools that inspect one; ended when dropped.
struct Python(Option<Child>);

impl Python {
    fn start() -> Self {
        let child = Command::new("/usr/bin/python3")
            .args(["-c", "import time; time.sleep(100000)"])
            .stdin(Stdio::null())
            .spawn();
        Self(child.ok())
    }

    /// Returns a word of a command line, with the process's number in place of its placeholder.
    fn named(&self, word: &str) -> OsString {
        match &self.0 {
            Some(child) if word == bpfcc::PYTHON => child.id().to_string().into(),
            _ => word.into(),
        }
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Found {
    /// Returns a package's files, if it is installed.
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

    /// Judges the programs of a newer Debian's packages, if they could be fetched.
    fn newer(&mut self) {
        let unpacked = std::env::var_os("BEELINE_CORPORA_NEWER").unwrap_or_default();
        for &(package, directory) in NEWER {
            let directory = Path::new(&unpacked).join(directory);
            let version = std::fs::read_to_string(directory.join("VERSION"));
            let files = module::collect(&directory, &|_| true);
            match (version, files) {
                (Ok(version), Ok(files)) => {
                    self.packages.push((package, version.trim().to_owned()));
                    embedded::judge(package, &files, self);
                }
                (Err(error), _) | (_, Err(error)) => {
                    self.skip(package, "all", &format!("it is not unpacked: {error}"));
                }
            }
        }
    }

    /// Judges the programs of Go's library, if `go` can fetch it.
    fn module(&mut self) {
        let (module, version) = MODULE;
        match module::objects(module, version) {
            Ok(files) => {
                self.packages.push((module, version.to_owned()));
                embedded::judge(module, &files, self);
            }
            Err(why) => self.skip(module, "all", &why),
        }
    }

    fn skip(&mut self, package: &'static str, tool: &str, why: &str) {
        self.skipped.push(Skipped {
            package,
            tool: tool.to_owned(),
            why: why.trim().to_owned(),
        });
    }
}

/// Returns a file's usual name; if every example has a file of that name, with the example's.
fn name_of(file: &Path) -> String {
    let name = |path: &Path| {
        let name = path.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    };
    match (name(file), file.parent()) {
        (own, Some(parent)) if own.starts_with("bpf_") => format!("{}/{own}", name(parent)),
        (own, _) => own,
    }
}

//! The families of tools: where each is found, and its lines of the matrix.

use std::path::{Path, PathBuf};
use std::process::Command;

use beeline_e2e::find_program;

use crate::entry::{Entry, entries};
use crate::{bcc, bpftool, bpftrace, go, libbpf, newer};

/// Tools that come together.
pub struct Family {
    /// Its name for `MATRIX` and in the file of results.
    pub name: &'static str,
    /// Its heading on the page.
    pub title: &'static str,
    /// True for tools that compile against a kernel's headers.
    pub wants_headers: bool,
    /// True for tools that print all on stderr, as a log.
    pub logs: bool,
    version: fn() -> Result<String, String>,
    entries: fn() -> Vec<Entry>,
    place: fn(&str) -> Result<Vec<PathBuf>, String>,
}

/// All families, in the order of the page.
pub const FAMILIES: &[Family] = &[
    Family {
        name: "bcc",
        title: "bcc",
        wants_headers: true,
        logs: false,
        version: || installed_version("bpfcc-tools"),
        entries: || entries(installed("bpfcc-tools", "-bpfcc"), bcc::TABLE),
        place,
    },
    Family {
        name: "libbpf",
        title: "libbpf tools",
        wants_headers: false,
        logs: false,
        version: || installed_version("libbpf-tools"),
        entries: || entries(installed("libbpf-tools", ""), libbpf::TABLE),
        place,
    },
    Family {
        name: "bpftrace",
        title: "bpftrace's own scripts",
        wants_headers: false,
        logs: false,
        version: || installed_version("bpftrace"),
        entries: || entries(installed("bpftrace", ".bt"), bpftrace::TABLE),
        place,
    },
    Family {
        name: "bpftool",
        title: "bpftool",
        wants_headers: false,
        logs: false,
        version: || installed_version("bpftool"),
        entries: bpftool::entries,
        place: |_| Ok(vec![find_program("sh")?, PathBuf::from("-c")]),
    },
    Family {
        name: "newer-libbpf",
        title: "libbpf tools of today",
        wants_headers: false,
        logs: false,
        version: || newer::version("libbpf-tools"),
        entries: || entries(newer::programs("-libbpf"), libbpf::TABLE),
        place: |tool| Ok(newer::place(tool)),
    },
    Family {
        name: "newer-bpftrace",
        title: "bpftrace of today, and its scripts",
        wants_headers: false,
        logs: false,
        version: || newer::version("bpftrace"),
        entries: || entries(newer::programs(".bt"), bpftrace::TABLE),
        place: |tool| Ok(newer::place(tool)),
    },
    Family {
        name: "go",
        title: "Go: the examples of cilium/ebpf",
        wants_headers: false,
        logs: true,
        version: go::version,
        entries: || entries(go::programs(), go::TABLE),
        place: |tool| Ok(vec![go::place(tool)]),
    },
];

/// Tools that would change the kernel's tracing for others, or look for other tools only.
const LEFT_OUT: &[&str] = &["reset-trace-bpfcc", "bpflist-bpfcc"];

impl Family {
    /// Returns its lines.
    pub fn entries(&self) -> Vec<Entry> {
        (self.entries)()
    }

    /// Returns the version that is here.
    ///
    /// # Errors
    /// It is not here.
    pub fn version(&self) -> Result<String, String> {
        (self.version)()
    }

    /// Returns the words by which a tool is started.
    ///
    /// # Errors
    /// It is not here.
    pub fn place(&self, tool: &str) -> Result<Vec<PathBuf>, String> {
        (self.place)(tool)
    }
}

fn installed_version(package: &str) -> Result<String, String> {
    let output = Command::new("dpkg-query")
        .args([
            "--show",
            "--showformat=${Package} ${Version}, Debian 12",
            package,
        ])
        .output()
        .map_err(|error| format!("dpkg-query: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("{package} is not installed")),
    }
}

/// Returns the programs of a package, by the end of their names.
fn installed(package: &str, end: &str) -> Vec<String> {
    let output = Command::new("dpkg").args(["--listfiles", package]).output();
    let files = output.map_or_else(|_| Vec::new(), |output| output.stdout);
    let files = String::from_utf8_lossy(&files).into_owned();
    let programs = files
        .lines()
        .map(Path::new)
        .filter(|file| file.parent().is_some_and(|place| place.ends_with("sbin")))
        .filter_map(|file| file.file_name()?.to_str())
        .filter(|name| name.ends_with(end) && !LEFT_OUT.contains(name));
    let mut programs: Vec<String> = programs.map(str::to_owned).collect();
    programs.sort();
    programs
}

fn place(tool: &str) -> Result<Vec<PathBuf>, String> {
    match tool.ends_with(".bt") {
        true => Ok(vec![find_program("bpftrace")?, find_program(tool)?]),
        false => Ok(vec![find_program(tool)?]),
    }
}

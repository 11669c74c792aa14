//! Programs that tools make when they run: starts each tool with `capture.c` inside, which records
//! the programs that it loads.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use beeline_e2e::Scratch;
use beeline_isa::Insn;
use beeline_uapi::ProgramType;
use beeline_verifier::types::KernelTypes;

use crate::capture_file::Captured;
use crate::{Found, Row, Said, name_of};

/// A tool that has loaded nothing more for this long has loaded everything.
const QUIET: Duration = Duration::from_secs(2);
/// A tool that has loaded nothing for this long never will.
const PATIENCE: Duration = Duration::from_secs(20);

/// Programs by which tools probe the kernel's features.
pub const FEATURES: &str = "(features)";

/// The programs of all tools so far.
pub struct Corpus {
    scratch: Scratch,
    shim: PathBuf,
    kernel: Option<KernelTypes>,
    /// Tools probe the kernel by the same programs over and over.
    seen: HashSet<(ProgramType, Vec<Insn>)>,
}

impl Corpus {
    pub fn new() -> io::Result<Self> {
        let scratch = Scratch::new();
        let shim = scratch.path().join("capture.so");
        let built = Command::new("cc")
            .args(["-O2", "-shared", "-fPIC", "-o"])
            .arg(&shim)
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/corpora/capture.c"))
            .status()?;
        if !built.success() {
            return Err(io::Error::other("capture.c does not compile"));
        }
        let kernel = fs::read("/sys/kernel/btf/vmlinux").ok();
        let kernel = kernel.and_then(|btf| catch_unwind(|| KernelTypes::new(btf)).ok().flatten());
        Ok(Self {
            scratch,
            shim,
            kernel,
            seen: HashSet::new(),
        })
    }

    /// Runs a tool, and asks both verifiers about every program that it loads.
    pub fn judge(
        &mut self,
        package: &'static str,
        file: &Path,
        command: &[OsString],
        found: &mut Found,
    ) -> io::Result<()> {
        let tool = name_of(file);
        let Some((program, words)) = command.split_first() else {
            return Ok(());
        };
        let directory = self.scratch.path().join(&tool);
        fs::create_dir(&directory)?;
        let said = directory.with_extension("said");
        let mut child = Command::new(program)
            .args(words)
            .env("LD_PRELOAD", &self.shim)
            .env("BEELINE_CAPTURE", &directory)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(&said)?)
            .spawn()?;
        wait_until_quiet(&mut child, &directory)?;
        let mut programs = 0;
        for captured in read_all(&directory)? {
            let is_probe = captured.name.is_empty() || captured.insns.len() <= 2;
            programs += usize::from(!is_probe);
            if self.seen.insert(captured.normal()) {
                let tool = if is_probe { FEATURES } else { &tool };
                found.rows.push(self.row(package, tool, &captured));
            }
        }
        if programs == 0 && !is_feature_probe(command) {
            let said = fs::read(&said)?;
            let said = String::from_utf8_lossy(&said);
            let is_error = |line: &&str| line.contains("ERROR") || line.contains("Exception: ");
            let error = said.lines().rev().find(is_error);
            found.skip(package, &tool, error.unwrap_or("it loads no program here"));
        }
        Ok(())
    }

    fn row(&self, package: &'static str, tool: &str, captured: &Captured) -> Row {
        let beeline = || captured.ask_beeline(self.kernel.as_ref());
        Row {
            package,
            tool: tool.to_owned(),
            program: captured.name.clone(),
            section: format!("type {}", captured.kind.prog_type.0),
            insns: captured.insns.len() as u64,
            kernel: captured.ask_kernel(),
            beeline: catch_unwind(AssertUnwindSafe(beeline)).unwrap_or_else(|_| Said {
                reason: "(crashed)".to_owned(),
                ..Said::default()
            }),
        }
    }
}

/// Returns whether it can do nothing but probe a feature.
fn is_feature_probe(command: &[OsString]) -> bool {
    command.iter().any(|word| word == "feature")
}

/// Waits for a tool's last program, and ends the tool. A busy tool may be compiling the next one.
fn wait_until_quiet(child: &mut Child, directory: &Path) -> io::Result<()> {
    let (start, mut changed, mut count) = (Instant::now(), Instant::now(), 0);
    let mut worked = Duration::ZERO;
    while child.try_wait()?.is_none() {
        let now = fs::read_dir(directory)?.count();
        if now > count {
            (count, changed) = (now, Instant::now());
            worked = work_of(child.id());
        }
        let patience = if count > 0 { QUIET } else { PATIENCE };
        if changed.elapsed() > patience {
            let work = work_of(child.id());
            if work - worked < patience / 16 || start.elapsed() > 3 * PATIENCE {
                child.kill()?;
                child.wait()?;
                break;
            }
            (worked, changed) = (work, Instant::now());
        }
        sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Returns the processor time of a process, in user space and in the kernel.
fn work_of(process: u32) -> Duration {
    /// `USER_HZ`.
    const TICK: Duration = Duration::from_millis(10);
    let about = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // After the name, which may hold anything: the state, ten numbers, then the two times.
    let (_, numbers) = about.rsplit_once(')').unwrap_or_default();
    let times = numbers.split_whitespace().skip(11).take(2);
    let ticks: u32 = times.filter_map(|ticks| ticks.parse::<u32>().ok()).sum();
    TICK * ticks
}

/// In the order of loading.
fn read_all(directory: &Path) -> io::Result<Vec<Captured>> {
    let files: io::Result<Vec<_>> = fs::read_dir(directory)?
        .map(|entry| Ok(entry?.path()))
        .collect();
    let mut files = files?;
    files.sort();
    let texts = files.iter().map(fs::read_to_string);
    let programs = texts.map(|text| Ok(Captured::parse(&text?)));
    programs.filter_map(io::Result::transpose).collect()
}

//! Targets, and their required state before and after a visit.

#![allow(dead_code)] // Each test file uses a part of it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use beeline_inject::{Permissions, Process, Region};

/// The exit code of `target.c` for success.
pub const FINE: i32 = 42;

/// The exit code of a target whose wait took too long.
pub const LATE: i32 = 43;

/// A program that ends when its standard input does.
pub struct Target {
    pub child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Target {
    /// Starts it and waits until it is ready.
    pub fn start(program: &Path, arguments: &[&str]) -> Self {
        let mut target = Self::spawn(Command::new(program).args(arguments));
        target.await_line("ready");
        target
    }

    pub fn spawn(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self {
            child,
            input,
            output,
        }
    }

    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    pub fn open(&self) -> Process {
        Process::open(self.pid()).unwrap()
    }

    /// Reads a line that must begin so, and returns the rest of it.
    pub fn await_line(&mut self, start: &str) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end()
            .strip_prefix(start)
            .unwrap_or_else(|| panic!("{line:?} for {start:?}"))
            .trim()
            .to_owned()
    }

    pub fn close_input(&mut self) {
        self.input = None;
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: plain numbers; the child is ours and not reaped.
        assert_eq!(unsafe { libc::kill(self.pid(), signal) }, 0);
    }

    /// Ends its input and waits for it.
    pub fn finish(mut self) -> ExitStatus {
        self.close_input();
        wait_at_most(&mut self.child, Duration::from_secs(20))
    }

    pub fn finish_fine(self) {
        assert_eq!(self.finish().code(), Some(FINE));
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn wait_at_most(child: &mut Child, time: Duration) -> ExitStatus {
    let deadline = Instant::now() + time;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if Instant::now() > deadline {
            let state =
                fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
            let _ = child.kill();
            panic!("it has not ended:\n{state}");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Compiles `tests/targets/NAME` with these options, into a file of its own.
pub fn compile(name: &str, options: &[&str]) -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/targets")
        .join(name);
    let unique = format!(
        "{name}-{}-{}",
        std::process::id(),
        COUNT.fetch_add(1, Ordering::Relaxed)
    );
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(unique);
    let done = Command::new("gcc")
        .args(["-O1", "-g", "-pthread", "-o"])
        .arg(&program)
        .arg(source)
        .args(options)
        .status();
    assert!(done.unwrap().success(), "gcc {name} {options:?}");
    program
}

/// The state that must be the same before and after a visit.
#[derive(Debug, PartialEq, Eq)]
pub struct Portrait {
    files: Vec<(PathBuf, PathBuf)>,
    threads: Vec<String>,
    masks: Vec<String>,
    text: Vec<(Region, u64)>,
}

impl Portrait {
    pub fn of(process: &Process) -> Self {
        let dir = PathBuf::from(format!("/proc/{}", process.pid()));
        let list = |name: &str| {
            let mut paths: Vec<PathBuf> = fs::read_dir(dir.join(name))
                .unwrap()
                .map(|entry| entry.unwrap().path())
                .collect();
            paths.sort();
            paths
        };
        let files = list("fd")
            .into_iter()
            .filter_map(|path| fs::read_link(&path).ok().map(|to| (path, to)))
            .collect();
        let threads: Vec<String> = list("task")
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        let status = fs::read_to_string(dir.join("status")).unwrap();
        let masks = status
            .lines()
            .filter(|line| line.starts_with("Sig") || line.starts_with("Tracer"));
        let masks = masks
            .filter(|line| !line.starts_with("SigQ"))
            .map(str::to_owned)
            .collect();
        Self {
            files,
            threads,
            masks,
            text: text(process),
        }
    }

    /// Returns whether the code is the same.
    pub fn has_same_text(&self, other: &Self) -> bool {
        self.text == other.text
    }

    /// Asserts that the process is in this state again. A thread that was released in a call with a
    /// signal mask of its own, such as `ppoll`, shows that mask again only when it has got the CPU
    /// and restarted the call.
    pub fn assert_restored(&self, process: &Process) {
        let begun = Instant::now();
        loop {
            let now = Self::of(process);
            if *self == now || begun.elapsed() > Duration::from_secs(10) {
                return assert_eq!(*self, now);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Returns a digest of each of its executable mappings.
fn text(process: &Process) -> Vec<(Region, u64)> {
    let code = |region: &Region| {
        region.permissions
            == Permissions {
                read: true,
                execute: true,
                ..Default::default()
            }
    };
    let digest = |region: Region| {
        let mut bytes = vec![0; (region.end - region.start) as usize];
        process.read_memory(region.start, &mut bytes).unwrap();
        let sum = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |sum, &byte| {
            (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        (region, sum)
    };
    process
        .regions()
        .unwrap()
        .into_iter()
        .filter(code)
        .map(digest)
        .collect()
}

/// Makes a memory file with these bytes at its start, `len` bytes long.
pub fn memory_file(bytes: &[u8], len: u64) -> fs::File {
    let fd = rustix::fs::memfd_create("beeline-test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let file = fs::File::from(fd);
    file.set_len(len).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, bytes, 0).unwrap();
    file
}

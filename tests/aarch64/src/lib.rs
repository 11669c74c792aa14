//! For tests: compiled programs for aarch64 run under qemu-user, many in one process.
//!
//! A [`Runner`] is a small C program, built for aarch64 when it is started; `runner.c` describes
//! its protocol.

use std::io::{self, BufReader, BufWriter, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use beeline_codegen::Code;
use tempfile::TempDir;

const COMPILER: &str = "aarch64-linux-gnu-gcc";
const EMULATOR: &str = "qemu-aarch64";

/// The process that runs programs.
pub struct Runner {
    child: Child,
    // Dropped before the child is waited for.
    pipes: Option<(BufWriter<ChildStdin>, BufReader<ChildStdout>)>,
    _program: TempDir,
}

/// A job for the runner. It runs the first program, whose tail calls lead to all of them, by their
/// numbers.
#[derive(Debug, Clone, Copy)]
pub struct Job<'a> {
    /// At least one.
    pub programs: &'a [Image<'a>],
    /// The memory at r1; null if there are no bytes.
    pub context: &'a [u8],
    /// The second argument of a program that needs no run; `None`: a run with the programs' maps
    /// and `runner.c`'s helpers.
    pub second: Option<u64>,
}

/// A program with its maps.
#[derive(Debug, Clone, Copy)]
pub struct Image<'a> {
    /// Entered at its first byte.
    pub code: &'a [u8],
    /// Arrays, by map index.
    pub maps: &'a [Array],
}

/// An array: a map whose values follow each other. Its handle is the address of 64 bits that hold
/// `value_bytes`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Array {
    /// Bytes of a value; not 0.
    pub value_bytes: usize,
    /// All values; a multiple of `value_bytes`.
    pub values: Vec<u8>,
}

/// The result of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// r0, or the signal that ended the program (`SIGALRM` if it did not end).
    pub result: Result<u64, i32>,
    /// Registers that have changed: bit n for xn, of x0 to x29.
    pub changed: u32,
    /// Bytes of stack written, including those of helpers; at most 16 KiB.
    pub stack_bytes: usize,
    /// The context's bytes.
    pub context: Vec<u8>,
    /// The values of each program's maps.
    pub maps: Vec<Vec<Vec<u8>>>,
}

impl Runner {
    /// Builds and starts a runner.
    ///
    /// # Errors
    /// Fails if this machine lacks the compiler or the emulator: the text says which.
    pub fn start() -> Result<Self, String> {
        let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
        let [source, program] = ["runner.c", "runner"].map(|name| directory.path().join(name));
        std::fs::write(&source, include_str!("runner.c")).map_err(|error| error.to_string())?;
        let built = Command::new(COMPILER)
            .args(["-std=gnu11", "-O2", "-static", "-o"])
            .args([&program, &source])
            .output()
            .map_err(|error| format!("{COMPILER}: {error}"))?;
        if !built.status.success() {
            return Err(format!(
                "{COMPILER}: {}",
                String::from_utf8_lossy(&built.stderr)
            ));
        }
        let mut child = Command::new(EMULATOR)
            .arg(&program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{EMULATOR}: {error}"))?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        Ok(Self {
            child,
            pipes: pipes.map(|(stdin, stdout)| (BufWriter::new(stdin), BufReader::new(stdout))),
            _program: directory,
        })
    }

    /// Runs programs, the first of which may tail call all of them. Each has one map of one value
    /// of 8 bytes: 100 in the first, 200 in the second.
    ///
    /// # Errors
    /// Fails if the code changes a register or uses stack without declaring it.
    pub fn run_programs(
        &mut self,
        codes: &[Code],
        context: &[u8],
        second: Option<u64>,
    ) -> Result<Outcome, String> {
        let maps: Vec<[Array; 1]> = (1..=codes.len() as u64)
            .map(|number| {
                let values = (number * 100).to_le_bytes().to_vec();
                let value_bytes = 8;
                [Array {
                    value_bytes,
                    values,
                }]
            })
            .collect();
        let images = codes.iter().zip(&maps).map(|(code, maps)| Image {
            code: &code.bytes,
            maps,
        });
        let uses_run = codes.iter().any(|code| code.uses_run);
        let job = Job {
            programs: &images.collect::<Vec<_>>(),
            context,
            second: second.filter(|_| !uses_run),
        };
        let outcome = self.run(&job).expect("the runner runs");
        let clobbers = codes.iter().fold(0, |all, code| all | code.clobbers.bits());
        let changed = outcome.changed;
        if changed & !clobbers != 0 {
            return Err(format!("{changed:x} changed, {clobbers:x} may"));
        }
        // The helpers' own stack does not count.
        let allowed = codes.iter().map(|code| code.stack_bytes as usize).sum();
        let taken = outcome.stack_bytes;
        if !uses_run && taken > allowed {
            return Err(format!("{taken} bytes of stack, of {allowed}"));
        }
        Ok(outcome)
    }

    /// Runs a job.
    ///
    /// # Errors
    /// Fails if the process is gone: it can run no other job.
    pub fn run(&mut self, job: &Job<'_>) -> io::Result<Outcome> {
        let (stdin, stdout) = self.pipes.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        send(stdin, job)?;
        let signal = word(stdout)?;
        let r0 = word(stdout)?;
        Ok(Outcome {
            result: if signal == 0 {
                Ok(r0)
            } else {
                Err(signal as i32)
            },
            changed: word(stdout)? as u32,
            stack_bytes: word(stdout)? as usize,
            context: bytes(stdout, job.context.len())?,
            maps: job
                .programs
                .iter()
                .map(|program| {
                    let maps = program.maps.iter();
                    maps.map(|map| bytes(stdout, map.values.len())).collect()
                })
                .collect::<io::Result<_>>()?,
        })
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        self.pipes = None;
        // It ends with its input. If it is stuck in a program, its alarm ends that.
        let _ended = self.child.wait();
    }
}

fn send(stdin: &mut impl Write, job: &Job<'_>) -> io::Result<()> {
    let mut number = |value: u64| stdin.write_all(&value.to_le_bytes());
    number(job.programs.len() as u64)?;
    number(job.context.len() as u64)?;
    number(job.second.is_none().into())?;
    number(job.second.unwrap_or(0))?;
    for program in job.programs {
        stdin.write_all(&(program.code.len() as u64).to_le_bytes())?;
        stdin.write_all(&(program.maps.len() as u64).to_le_bytes())?;
        stdin.write_all(program.code)?;
        for map in program.maps {
            let entries = map.values.len() / map.value_bytes;
            stdin.write_all(&(map.value_bytes as u64).to_le_bytes())?;
            stdin.write_all(&(entries as u64).to_le_bytes())?;
            stdin.write_all(&map.values)?;
        }
    }
    stdin.write_all(job.context)?;
    stdin.flush()
}

fn word(stdout: &mut impl Read) -> io::Result<u64> {
    let mut word = [0; 8];
    stdout.read_exact(&mut word)?;
    Ok(u64::from_le_bytes(word))
}

fn bytes(stdout: &mut impl Read, count: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; count];
    stdout.read_exact(&mut bytes)?;
    Ok(bytes)
}

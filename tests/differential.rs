//! Random operations on random maps give the same results on Beeline as on the kernel.
//!
//! `workloads/differ.c` does the operations, by bpf(2) and in programs; this test compares its
//! transcripts. `BEELINE_SEED` chooses another sequence, `BEELINE_SOAK` continues with fresh ones
//! for that many seconds.

use beeline_e2e::{Engine, Scratch, engines, need, seed, soak, stay_on_one_cpu};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// The kinds of maps of `differ.c`, in turn.
const KINDS: [&str; 11] = [
    "hash",
    "percpu_hash",
    "lru_hash",
    "lru_percpu_hash",
    "array",
    "percpu_array",
    "lpm_trie",
    "queue",
    "stack",
    "bloom",
    "ringbuf",
];
/// Rounds of one comparison; each is about 5,000 operations on one map.
const ROUNDS: u64 = 400;
/// The number of lines to show before the first difference.
const CONTEXT: usize = 5;

struct Differ {
    program: PathBuf,
    seed: u64,
}

impl Differ {
    /// Returns the transcript of some rounds.
    fn rounds(&self, engine: Engine, first: u64, count: u64, detail: &str) -> Vec<String> {
        let mut command: Command = engine.command(&self.program);
        command
            .args([self.seed, first, count].map(|number| number.to_string()))
            .arg(detail)
            .args(KINDS);
        let output = command
            .stdin(Stdio::null())
            .output()
            .expect("a command that starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "seed {} under {engine}: {}: {said}",
            self.seed,
            output.status
        );
        let text = String::from_utf8_lossy(&output.stdout);
        text.lines().map(str::to_owned).collect()
    }

    /// Compares the rounds' digests, and the operations of the first one that differs. Returns the
    /// last line.
    fn compare(&self, first: u64, count: u64) -> String {
        let [kernel, beeline] =
            [Engine::Kernel, Engine::Beeline].map(|by| self.rounds(by, first, count, "quiet"));
        let differing = kernel.iter().zip(&beeline).position(|(a, b)| a != b);
        if let Some(at) = differing {
            self.explain(first + at as u64, &kernel[at]);
        }
        assert_eq!(kernel.len(), beeline.len(), "seed {}", self.seed);
        kernel.last().cloned().unwrap_or_default()
    }

    fn explain(&self, round: u64, what: &str) -> ! {
        let [kernel, beeline] =
            [Engine::Kernel, Engine::Beeline].map(|by| self.rounds(by, round, 1, "verbose"));
        let seed = self.seed;
        let pairs = kernel.iter().zip(&beeline);
        let Some(at) = pairs.clone().position(|(a, b)| a != b) else {
            panic!("BEELINE_SEED={seed}: {what} differed once, but not when repeated");
        };
        let before = kernel[at.saturating_sub(CONTEXT)..at].join("\n");
        let count = pairs.filter(|(a, b)| a != b).count();
        panic!(
            "BEELINE_SEED={seed}: {count} operations differ of {what}\nfirst:\n{before}\n\
            kernel:\n{}\nbeeline:\n{}\n",
            kernel[at], beeline[at]
        );
    }
}

fn built(scratch: &Scratch) -> PathBuf {
    scratch.build_with("differ.c", &["-O2", "-Wno-missing-field-initializers"])
}

fn differ(program: &Path, seed: u64) -> Differ {
    Differ {
        program: program.to_owned(),
        seed,
    }
}

#[test]
fn random_operations_give_what_the_kernel_gives() {
    let engines = need!(engines());
    let both = if engines.len() == 2 {
        Ok(())
    } else {
        Err("it takes the kernel and Beeline to compare them")
    };
    need!(both);
    stay_on_one_cpu();
    let scratch = Scratch::new();
    let program = built(&scratch);
    let start = Instant::now();
    let mut next = seed();
    loop {
        let total = differ(&program, next).compare(0, ROUNDS);
        println!(
            "BEELINE_SEED={next}: {total} on each, {:?}",
            start.elapsed()
        );
        if start.elapsed() >= soak() {
            break;
        }
        next = next.wrapping_add(1);
    }
}

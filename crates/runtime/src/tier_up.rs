//! Tier-up: better code for programs that run already.
//!
//! A thread of its own has the optimizer compile the loaded programs. The new code is then placed
//! beside the old in each process that runs the program, and one word per link is changed, by which
//! the next call finds it. Nothing is stopped, no call is lost, and a thread inside the older code
//! finds it whole until Beeline leaves the process.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::Instant;

use crate::budget::Charge;
use crate::engines::Engines;
use crate::error::{Error, os};
use crate::program::Program;
use crate::runner::Runner;
use crate::tracees::Tracees;

/// The thread's front. The thread is not waited for at the end, as an optimizer may hang.
pub struct TierUp(Sender<Job>);

/// A program that waits for the thread. It may be gone by then, except for its place in memory.
struct Job {
    program: Weak<Program>,
    _charge: Charge,
}

/// Bytes of a program's place, and of the job's.
pub const JOB: u64 = 2 * (size_of::<Program>() + size_of::<Job>()) as u64;

/// The objects that the thread works with. It keeps nothing of the session alive.
struct Worker {
    engines: Arc<Engines>,
    tracees: Weak<Tracees>,
    runner: Weak<Runner>,
}

impl TierUp {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// [`Error::Os`] if the thread cannot be started.
    pub fn start(
        engines: &Arc<Engines>,
        tracees: &Arc<Tracees>,
        runner: &Arc<Runner>,
    ) -> Result<Self, Error> {
        let (jobs, queue) = channel();
        let worker = Worker {
            engines: engines.clone(),
            tracees: Arc::downgrade(tracees),
            runner: Arc::downgrade(runner),
        };
        std::thread::Builder::new()
            .name("beeline-tier-up".into())
            .spawn(move || worker.work(&queue))
            .map_err(os("starting a thread"))?;
        Ok(Self(jobs))
    }

    /// Queues the program for better code. The charge is for a [`JOB`].
    pub fn begin(&self, program: &Arc<Program>, charge: Charge) {
        // Without the thread it keeps the code that it has.
        let _ = self.0.send(Job {
            program: Arc::downgrade(program),
            _charge: charge,
        });
    }
}

impl Worker {
    fn work(&self, queue: &Receiver<Job>) {
        for Job { program, _charge } in queue {
            if self.tracees.strong_count() == 0 {
                return;
            }
            // The program is not held while it is compiled, since the tool may let go of it.
            let Some(source) = program.upgrade().map(|program| program.source.clone()) else {
                continue;
            };
            let start = Instant::now();
            let outcome = self.engines.optimized(&source);
            let Some(program) = program.upgrade() else {
                continue;
            };
            match outcome {
                Ok(better) => {
                    let engine = better.engine.clone();
                    match program.replace_code(better) {
                        Ok(()) => self.renew(&program, &engine, start),
                        Err(why) => self.keep(&program, why),
                    }
                }
                Err(error) => self.keep(&program, &error.to_string()),
            }
        }
    }

    fn renew(&self, program: &Arc<Program>, engine: &str, start: Instant) {
        if let (Some(tracees), Some(runner)) = (self.tracees.upgrade(), self.runner.upgrade()) {
            tracees.renew(program, &|error| self.keep(program, &error.to_string()));
            runner.renew(program.clone());
        }
        let (name, time) = (&program.name, start.elapsed());
        tracing::info!(name, engine, ?time, "replaced a program's code");
        self.engines.tell(&format!(
            "program {name}: code of {engine} after {time:.1?}"
        ));
    }

    fn keep(&self, program: &Program, why: &str) {
        let (name, engine) = (&program.name, &program.first().engine);
        tracing::info!(name, engine, why, "kept a program's code");
        self.engines
            .tell(&format!("program {name} keeps the code of {engine}: {why}"));
    }
}

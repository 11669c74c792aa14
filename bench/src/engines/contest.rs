//! Runs contestants in turns of short rounds, of which the best counts.

use super::programs::Program;
use super::report::Figure;
use super::workshop::Workshop;
use beeline_isa::abi::{Entry, HELPER_SLOTS, Run};
use std::hint::black_box;
use std::ptr;
use std::time::Duration;

/// A contestant, which runs programs.
pub trait Contestant {
    /// Returns a short name, the column's heading.
    fn name(&self) -> &'static str;

    /// Makes a program ready to run.
    ///
    /// # Errors
    /// Fails if the contestant cannot run the program.
    fn prepare(&self, program: &Program, workshop: &Workshop) -> anyhow::Result<Box<dyn Prepared>>;
}

/// A program that is ready to run, with its memory.
pub trait Prepared {
    /// Runs it so many times.
    ///
    /// # Errors
    /// Fails if the program does not run to its end.
    fn run(&mut self, times: u32) -> anyhow::Result<Outcome>;
}

/// The outcome of some runs.
#[derive(Debug, Clone, Copy)]
pub struct Outcome {
    /// The last run's r0; only the low half is compared, as the kernel returns no more.
    pub result: u64,
    /// The time of all runs together.
    pub took: Duration,
}

/// Times runs of something that cannot fail, by the CPU time of this thread.
///
/// A round may be longer than the time that other programs leave in one piece. `run` is inlined, so
/// that its call costs nothing.
#[inline(always)]
pub fn timed(times: u32, mut run: impl FnMut() -> u64) -> Outcome {
    let mut result = 0;
    let start = processor_time();
    for _ in 0..times {
        result = run();
    }
    Outcome {
        result,
        took: processor_time().saturating_sub(start),
    }
}

/// Times calls of machine code.
///
/// All are made by the same instructions, as the place of a loop costs as much as a short program.
///
/// # Safety
/// The code works on the memory that the context points to, and needs neither helpers nor maps.
#[inline(never)]
pub unsafe fn timed_calls(entry: Entry, context: *const u8, times: u32) -> Outcome {
    // SAFETY: the caller promises that the code works on the context's memory only, and needs
    // neither helpers nor maps.
    timed(times, || unsafe { entry(black_box(context), &NOTHING) })
}

/// No helper and no map.
pub(super) const NOTHING: Run = Run {
    helpers: [0; HELPER_SLOTS].as_ptr(),
    maps: ptr::null(),
    values: ptr::null(),
    map_count: 0,
    context: ptr::null(),
};

/// Returns the time for which this thread has had a processor.
pub(super) fn processor_time() -> Duration {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel writes one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut now) };
    Duration::new(now.tv_sec.cast_unsigned(), now.tv_nsec as u32)
}

/// The target time of a round: less than a neighbour on the machine leaves undisturbed.
const ROUND: Duration = Duration::from_millis(2);

struct Turn<'a> {
    name: &'static str,
    prepared: Box<dyn Prepared + 'a>,
    times: u32,
    best_ns: f64,
}

/// Lets every contestant run every program, in `rounds` rounds.
///
/// The first contestant is the reference for times and results. One that cannot run a program, or
/// gets another result, has no figure for it; the reason is printed on stderr.
///
/// # Errors
/// Fails if clang is missing, or a program that could run once fails later.
pub fn contest(
    programs: &[Program],
    contestants: &[Box<dyn Contestant>],
    rounds: u32,
) -> anyhow::Result<Vec<Figure>> {
    let workshop = Workshop::new()?;
    let mut figures = Vec::new();
    for program in programs {
        let mut turns = line_up(program, contestants, &workshop);
        for _ in 0..rounds {
            for turn in &mut turns {
                let outcome = turn.prepared.run(turn.times)?;
                turn.best_ns = turn.best_ns.min(each_ns(&outcome, turn.times));
            }
        }
        let native_ns = turns.first().map_or(f64::NAN, |first| first.best_ns);
        figures.extend(turns.iter().map(|turn| Figure {
            program: program.name,
            engine: turn.name,
            ns: turn.best_ns,
            ratio: turn.best_ns / native_ns,
        }));
    }
    Ok(figures)
}

/// Returns the contestants that can run a program and get the first one's result.
fn line_up<'a>(
    program: &Program,
    contestants: &'a [Box<dyn Contestant>],
    workshop: &Workshop,
) -> Vec<Turn<'a>> {
    let mut expected = None;
    let mut turns = Vec::new();
    for contestant in contestants {
        let first = contestant
            .prepare(program, workshop)
            .and_then(|mut prepared| {
                Ok((
                    prepared.run(1)?.result,
                    calibrated(&mut *prepared)?,
                    prepared,
                ))
            });
        let name = contestant.name();
        match first {
            Err(why) => eprintln!("{} by {name}: {why:#}", program.name),
            Ok((result, times, prepared)) => {
                let expected = *expected.get_or_insert(result as u32);
                if result as u32 == expected {
                    turns.push(Turn {
                        name,
                        prepared,
                        times,
                        best_ns: f64::INFINITY,
                    });
                } else {
                    eprintln!("{} by {name}: {result:#x}, not {expected:#x}", program.name);
                }
            }
        }
    }
    turns
}

/// Returns the number of runs in a round.
fn calibrated(prepared: &mut dyn Prepared) -> anyhow::Result<u32> {
    let mut times = 1_u32;
    loop {
        let took = prepared.run(times)?.took;
        if took >= ROUND / 4 || times >= 1 << 24 {
            let enough = ROUND.as_secs_f64() / took.as_secs_f64().max(1e-9) * f64::from(times);
            return Ok((enough as u32).max(1));
        }
        times *= 4;
    }
}

fn each_ns(outcome: &Outcome, times: u32) -> f64 {
    outcome.took.as_secs_f64() * 1e9 / f64::from(times)
}

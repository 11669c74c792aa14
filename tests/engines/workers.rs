//! Processes that judge programs, so that a crash of one is a result.

use std::fmt;
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use beeline_isa::Insn;

use crate::judge::{Judge, KERNEL, PLACES, Verdict};
use crate::{is_of_tail_calls, program_of};

/// The end of a worker.
pub enum Ended {
    Agreed(Tally),
    /// The program with this seed fails.
    At {
        seed: u64,
        what: String,
    },
}

/// Programs, by the places where they ran.
#[derive(Debug, Default, Clone, Copy)]
pub struct Tally {
    pub runs: [u64; PLACES.len()],
    /// The number that a verifier gave up on.
    pub given_up: u64,
}

/// A worker's report, in memory that it shares with its parent.
#[repr(C)]
#[derive(Default)]
struct Progress {
    seed: AtomicU64,
    place: AtomicU64,
    runs: [AtomicU64; PLACES.len()],
    given_up: AtomicU64,
}

/// Seconds for so many programs, after which a worker counts as hung.
const PATIENCE: u32 = 60;
const PROGRAMS_WATCHED: u64 = 256;
/// The exit status of a worker that found a difference.
const DIFFERENCE: i32 = 3;
/// The exit status of a worker that found a refusal.
const REFUSAL: i32 = 4;

/// Judges programs on every CPU.
pub fn run(first: u64, duration: Duration, with_kernel: bool) -> Ended {
    let end = Instant::now() + duration;
    let cpus = cpus();
    let workers: Vec<(i32, &Progress)> = (0..)
        .zip(&cpus)
        .map(|(number, &cpu)| {
            let progress = shared_progress();
            let (first, step) = (first.wrapping_add(number), cpus.len() as u64);
            let pid = fork(|| work(cpu, first, step, end, with_kernel, progress));
            (pid, progress)
        })
        .collect();
    let mut tally = Tally::default();
    let mut found = None;
    for &(pid, progress) in &workers {
        if found.is_some() {
            // SAFETY: our own child, which was not waited for yet.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        let status = wait(pid);
        found = found.or_else(|| failure(status, progress));
        for (sum, runs) in tally.runs.iter_mut().zip(&progress.runs) {
            *sum += runs.load(Relaxed);
        }
        tally.given_up += progress.given_up.load(Relaxed);
    }
    match found {
        None => Ended::Agreed(tally),
        Some((seed, what)) => Ended::At { seed, what },
    }
}

/// A worker: judges every `step`-th program.
fn work(
    cpu: u32,
    first: u64,
    step: u64,
    end: Instant,
    with_kernel: bool,
    progress: &Progress,
) -> i32 {
    stay_on(cpu);
    keep_memory();
    let mut judge = Judge::new(cpu, with_kernel);
    let mut seed = first;
    for number in 0_u64.. {
        if number % PROGRAMS_WATCHED == 0 {
            // SAFETY: sets the process's timer.
            unsafe { libc::alarm(PATIENCE) };
        }
        progress.seed.store(seed, Relaxed);
        let entering = |place| progress.place.store(place as u64, Relaxed);
        let verdict = if is_of_tail_calls(seed) {
            judge.judge_tail_calls(seed, entering)
        } else {
            judge.judge(&program_of(seed), entering)
        };
        match verdict {
            Verdict::Same(ran) => {
                for (runs, _) in progress.runs.iter().zip(ran).filter(|(_, ran)| *ran) {
                    runs.fetch_add(1, Relaxed);
                }
            }
            Verdict::GivenUp => {
                progress.given_up.fetch_add(1, Relaxed);
            }
            Verdict::Refused(_) => return REFUSAL,
            Verdict::Differs(_) => return DIFFERENCE,
        }
        if Instant::now() >= end {
            break;
        }
        seed = seed.wrapping_add(step);
    }
    0
}

/// Describes a worker's bad end by its last program; `None` for a good end.
fn failure(status: i32, progress: &Progress) -> Option<(u64, String)> {
    let place = PLACES[progress.place.load(Relaxed) as usize];
    let what = if libc::WIFSIGNALED(status) {
        died(libc::WTERMSIG(status), place)
    } else {
        match libc::WEXITSTATUS(status) {
            0 => return None,
            DIFFERENCE => "a difference".to_owned(),
            REFUSAL => "a refusal".to_owned(),
            status => format!("a worker ended with status {status} in {place}"),
        }
    };
    Some((progress.seed.load(Relaxed), what))
}

/// Returns whether the kernel ended a worker.
pub fn is_of_kernel(what: &str) -> bool {
    let ends = [
        died(libc::SIGKILL, PLACES[KERNEL]),
        died(libc::SIGSEGV, PLACES[KERNEL]),
    ];
    ends.iter().any(|end| end == what)
}

fn died(signal: i32, place: &str) -> String {
    match signal {
        libc::SIGALRM => format!("it does not end in {place}"),
        signal => format!("a crash in {place}, signal {signal}"),
    }
}

/// The verdict on a program that is judged alone.
#[derive(Debug, PartialEq, Eq)]
pub enum Alone {
    Same,
    Refused(String),
    Differs(String),
}

impl Alone {
    /// Returns the places that differ, and the difference.
    pub fn kind_of_difference(&self) -> Option<String> {
        match self {
            Self::Differs(what) => Some(what.split(" is ").next().unwrap_or(what).to_owned()),
            _ => None,
        }
    }
}

impl fmt::Display for Alone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Same => f.write_str("no difference"),
            Self::Refused(why) | Self::Differs(why) => f.write_str(why),
        }
    }
}

/// Refusal of programs whose results depend on addresses or on leftovers on the stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Care {
    Yes,
    No,
}

/// Judges one program everywhere, in a process of its own.
pub fn verdict(insns: &[Insn], with_kernel: bool, care: Care) -> Alone {
    let cpu = cpus()[0];
    let progress = shared_progress();
    let (mut from, mut to) = pipe();
    let pid = fork(|| {
        stay_on(cpu);
        // SAFETY: sets the process's timer.
        unsafe { libc::alarm(PATIENCE) };
        let entering = |place| progress.place.store(place as u64, Relaxed);
        let mut judge = Judge::new(cpu, with_kernel);
        let (status, text) = match judge.judge_everywhere(insns, entering) {
            Verdict::Same(_) => (0, String::new()),
            Verdict::GivenUp => (1, "a verifier gives it up".to_owned()),
            Verdict::Refused(why) => (1, why),
            Verdict::Differs(_) if care == Care::Yes && judge.depends_on_chance(insns) => {
                (1, "it depends on chance".to_owned())
            }
            Verdict::Differs(what) => (DIFFERENCE, what),
        };
        let _ = to.write_all(text.as_bytes());
        status
    });
    drop(to);
    let mut text = Vec::new();
    from.read_to_end(&mut text).expect("a pipe");
    let text = String::from_utf8_lossy(&text).into_owned();
    let status = wait(pid);
    let place = PLACES[progress.place.load(Relaxed) as usize];
    if libc::WIFSIGNALED(status) {
        return Alone::Differs(died(libc::WTERMSIG(status), place));
    }
    match libc::WEXITSTATUS(status) {
        0 => Alone::Same,
        1 => Alone::Refused(text),
        _ => Alone::Differs(text),
    }
}

fn fork(body: impl FnOnce() -> i32) -> i32 {
    // SAFETY: no other test runs meanwhile, so no other thread holds anything that the child needs.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "{}", std::io::Error::last_os_error());
    if pid == 0 {
        let run = std::panic::AssertUnwindSafe(body);
        let status = std::panic::catch_unwind(run).unwrap_or(101);
        // SAFETY: does not return.
        unsafe { libc::_exit(status) };
    }
    pid
}

fn wait(pid: i32) -> i32 {
    let mut status = 0;
    // SAFETY: our own child; the status has room.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    status
}

fn pipe() -> (std::fs::File, std::fs::File) {
    let mut ends = [0; 2];
    // SAFETY: there is room for two descriptors.
    let made = unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) };
    assert_eq!(made, 0);
    // SAFETY: descriptors with no other owner.
    let [from, to] = ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) });
    (from.into(), to.into())
}

/// Maps memory that a child shares with its parent.
fn shared_progress() -> &'static Progress {
    // SAFETY: a new mapping, zeroed, which is a good value of atomics; it stays.
    unsafe {
        let memory = libc::mmap(
            std::ptr::null_mut(),
            size_of::<Progress>(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        assert_ne!(memory, libc::MAP_FAILED);
        &*memory.cast()
    }
}

/// Returns the CPUs that this process may use.
fn cpus() -> Vec<u32> {
    // SAFETY: the set is plain data, and the call writes no more than it.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        assert_eq!(libc::sched_getaffinity(0, size_of_val(&set), &mut set), 0);
        set
    };
    (0..libc::CPU_SETSIZE as u32)
        // SAFETY: below the set's size.
        .filter(|&cpu| unsafe { libc::CPU_ISSET(cpu as usize, &set) })
        .collect()
}

/// Makes the allocator keep freed memory: the next program needs as much.
fn keep_memory() {
    const MUCH: i32 = 1 << 30;
    for (parameter, value) in [
        (libc::M_TRIM_THRESHOLD, MUCH),
        (libc::M_MMAP_THRESHOLD, MUCH),
        (libc::M_MXFAST, 0),
    ] {
        // SAFETY: sets a number.
        unsafe { libc::mallopt(parameter, value) };
    }
}

fn stay_on(cpu: u32) {
    crate::agent::maps::kernel::stay_on(cpu);
}

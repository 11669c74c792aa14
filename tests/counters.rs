//! Nothing is lost: programs' counters come out exactly, whatever happens to the threads that run
//! them.
//!
//! Targets are `workloads/callers.c`, the tool is `workloads/counters.c`.

use beeline_e2e::{
    Ended, Engine, Scratch, Tool, Turn, Workload, engines, file_offset, need, seed, soak,
};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

/// More than this machine has CPUs, so that they are preempted.
const THREADS: usize = 8;
/// The maps that count all calls.
const COUNTERS: [&str; 4] = ["percpu_array", "percpu_hash", "array", "hash"];

/// Targets and the tool that counts their calls.
struct Setting {
    program: PathBuf,
    places: String,
    tool: PathBuf,
    _scratch: Scratch,
}

/// The tool's final output: by map, the sum of each element.
struct Sums {
    by_map: HashMap<String, Vec<u64>>,
    /// Hits that ran no program, as Beeline reports them.
    missed: u64,
}

impl Setting {
    fn new() -> Setting {
        let scratch = Scratch::new();
        let program = scratch.build("callers.c");
        let places = ["s_hit", "s_signal"]
            .map(|name| file_offset(&program, name).expect("a symbol").to_string())
            .join(",");
        Setting {
            tool: scratch.build("counters.c"),
            program,
            places,
            _scratch: scratch,
        }
    }

    fn count(&self, engine: Engine, how: &str, targets: &[&Workload]) -> Tool {
        let mut command = engine.command(&self.tool);
        command.arg(&self.program).args([how, &self.places]);
        command.args(targets.iter().map(|target| target.pid().to_string()));
        let tool = Tool::start(command);
        tool.wait_for_line(|line| line == "attached");
        tool
    }
}

impl Sums {
    fn of(ended: &Ended) -> Sums {
        assert!(ended.status.success(), "{ended:?}");
        let numbers = |line: &String| {
            let (name, rest) = line.split_once(' ')?;
            let numbers: Option<Vec<u64>> = rest.split(' ').map(|word| word.parse().ok()).collect();
            Some((name.to_owned(), numbers?))
        };
        Sums {
            by_map: ended.stdout.iter().filter_map(numbers).collect(),
            missed: ended.missed(),
        }
    }

    /// Returns the same element of all maps that count.
    fn of_element(&self, index: usize) -> Vec<u64> {
        COUNTERS
            .iter()
            .map(|map| self.by_map[*map][index])
            .collect()
    }
}

/// Calls of each thread in one command, and the number of commands.
fn amount(engine: Engine) -> (u64, u64) {
    match engine {
        Engine::Kernel => (10_000, 1),
        Engine::Beeline if soak().is_zero() => (250_000, 4),
        Engine::Beeline => (500_000, 20),
    }
}

/// Moves the threads of a process from CPU to CPU until told to stop.
fn migrate(pid: u32, stop: &AtomicBool) {
    let mut state = seed() | 1;
    // SAFETY: a plain query.
    let cpus = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }.max(1) as u64;
    while !stop.load(Relaxed) {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
        for task in tasks.into_iter().flatten().flatten() {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            let tid = task.file_name().to_string_lossy().parse().unwrap_or(0);
            // SAFETY: the set is plain data, zeroed and then filled; the call reads it only. A
            // thread that has ended meanwhile is an error that does not matter.
            unsafe {
                let mut set: libc::cpu_set_t = std::mem::zeroed();
                libc::CPU_SET(((state >> 33) % cpus) as usize, &mut set);
                libc::sched_setaffinity(tid, size_of_val(&set), &set);
            }
        }
        thread::yield_now();
    }
}

/// Sets a flag when dropped, also by a panic.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

#[test]
fn sums_are_exact_when_threads_are_preempted_and_migrated() {
    let _turn = Turn::take();
    let setting = Setting::new();
    for engine in need!(engines()) {
        let mut target = Workload::start(&setting.program);
        let tool = setting.count(engine, "plain", &[&target]);
        let (calls, times) = amount(engine);
        let (stop, pid) = (AtomicBool::new(false), target.pid());
        thread::scope(|scope| {
            let _guard = SetOnDrop(&stop);
            scope.spawn(|| migrate(pid, &stop));
            for _ in 0..times {
                assert_eq!(target.tell(&format!("threads 0 {THREADS} {calls}")), "done");
            }
        });
        let sums = Sums::of(&tool.wait());
        for index in 0..THREADS {
            let expected = [calls * times; COUNTERS.len()];
            assert_eq!(sums.of_element(index), expected, "{engine}, thread {index}");
        }
        assert_eq!(sums.missed, 0, "{engine}");
        target.finish();
    }
}

#[test]
fn sums_are_exact_when_the_process_forks_meanwhile() {
    let _turn = Turn::take();
    let setting = Setting::new();
    for engine in need!(engines()) {
        let mut target = Workload::start(&setting.program);
        let tool = setting.count(engine, "plain", &[&target]);
        let (calls, _) = amount(engine);
        let answer = target.tell(&format!("forks 0 {THREADS} {calls}"));
        assert_eq!(answer, "done 0", "{engine}: children failed");
        let sums = Sums::of(&tool.wait());
        for index in 0..=THREADS {
            // The last index is that of the children, which the tool did not attach to.
            let expected = if index == THREADS { 0 } else { calls };
            let found = sums.of_element(index);
            assert_eq!(found, [expected; COUNTERS.len()], "{engine}, {index}");
        }
        assert_eq!(sums.missed, 0, "{engine}");
        target.finish();
    }
}

/// Two of four processes that count into the same maps are killed at some moment.
#[test]
fn sums_of_survivors_are_exact_when_others_are_killed() {
    let _turn = Turn::take();
    let setting = Setting::new();
    const EACH: usize = 2;
    for engine in need!(engines()) {
        let rounds = if soak().is_zero() { 5 } else { 50 };
        for round in 0..rounds {
            let mut targets: Vec<_> = (0..4).map(|_| Workload::start(&setting.program)).collect();
            let tool = setting.count(engine, "churn", &targets.iter().collect::<Vec<_>>());
            let (calls, _) = amount(engine);
            let pids: Vec<_> = targets.iter().map(Workload::pid).collect();
            let answers: Vec<_> = thread::scope(|scope| {
                let mut threads = Vec::new();
                for (i, target) in targets.iter_mut().enumerate() {
                    let command = format!("threads {} {EACH} {calls}", i * EACH);
                    threads.push(scope.spawn(move || target.ask(&command)));
                }
                // Some instant while they work, a different one each time.
                thread::sleep(std::time::Duration::from_micros(500 + round * 1700));
                for pid in &pids[..2] {
                    // SAFETY: kill touches no memory; the process is a child that was not waited
                    // for.
                    unsafe { libc::kill(*pid as i32, libc::SIGKILL) };
                }
                threads
                    .into_iter()
                    .map(|thread| thread.join().expect("no panic"))
                    .collect()
            });
            let sums = Sums::of(&tool.wait());
            let mut short = 0;
            for (i, answer) in answers.iter().enumerate() {
                for index in i * EACH..(i + 1) * EACH {
                    short += check_killed_or_exact(&sums.of_element(index), calls, answer, index);
                }
            }
            // A dead process keeps its CPU slot until that is noticed; a hit that waits too long
            // for it is missed, and reported.
            assert!(
                short <= sums.missed,
                "{engine}: {short} of {} missed",
                sums.missed
            );
            for answer in &answers[2..] {
                assert_eq!(answer.as_deref(), Ok("done"), "{engine}");
            }
            targets.drain(2..).for_each(Workload::finish);
        }
    }
}

/// Returns the number of calls of a living thread that were not counted, in none of the maps. A
/// killed program may have counted in only some of its maps.
fn check_killed_or_exact(
    found: &[u64],
    calls: u64,
    answer: &Result<String, String>,
    index: usize,
) -> u64 {
    let (least, most) = (found.iter().min(), found.iter().max());
    let (least, most) = (*least.expect("four sums"), *most.expect("four sums"));
    let torn = u64::from(answer.is_err());
    assert!(
        most <= calls && most - least <= torn,
        "index {index}: {found:?}"
    );
    if answer.is_ok() { calls - most } else { 0 }
}

/// Handlers that hit probes while their thread may be inside a program, which may hold a map's
/// lock.
#[test]
fn handlers_that_hit_probes_inside_programs_run_or_are_counted_as_missed() {
    let _turn = Turn::take();
    let setting = Setting::new();
    const CALLERS: usize = 4;
    for engine in need!(engines()) {
        for how in ["plain", "churn"] {
            let mut target = Workload::start(&setting.program);
            let tool = setting.count(engine, how, &[&target]);
            let (calls, _) = amount(engine);
            let answer = target.tell(&format!("signals 0 {CALLERS} {calls}"));
            let mut words = answer.split(' ');
            assert_eq!(words.next(), Some("done"), "{answer}");
            let signals: Vec<u64> = words.map(|word| word.parse().expect(&answer)).collect();
            let sums = Sums::of(&tool.wait());
            let handled: u64 = signals.iter().sum();
            let hits = CALLERS as u64 * calls + handled;
            for map in COUNTERS {
                let runs: u64 = sums.by_map[map].iter().sum();
                assert_eq!(runs + sums.missed, hits, "{engine} {how} {map}");
            }
            for (i, sum) in sums.of_element(0).iter().enumerate() {
                assert!(*sum <= calls, "{engine} {how} {}", COUNTERS[i]);
            }
            let refused: u64 = sums.by_map["refused"].iter().sum();
            println!(
                "{engine} {how}: {hits} hits, {handled} by handlers, {} missed, {refused} changes refused",
                sums.missed
            );
            target.finish();
        }
    }
}

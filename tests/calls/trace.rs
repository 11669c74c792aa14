//! The system calls of a target and all its descendants, as a tool sees them.
//!
//! Under Beeline `--pid` chooses the target and its descendants. The kernel's tracepoints see every
//! process, so there the script learns from `sched_process_fork` which processes belong to it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use beeline_e2e::{
    Engine, Tool, Turn, Workload, altered_text, beeline, compile_anew, engines, find_program,
    with_tracefs,
};

/// Prints every call and every return. The first word marks an event; then come the time and the
/// thread, and the call with its result.
const EVERY_CALL: &str = r#"tracepoint:raw_syscalls:sys_enter /{ours}/ { printf("E %llu %d +%d\n", nsecs, tid, args->id); }
    tracepoint:raw_syscalls:sys_exit /{ours}/ { printf("E %llu %d -%d %lld\n", nsecs, tid, args->id, args->ret); }"#;

/// On the kernel also the handlers that begin: see [`Interruptions`].
const EVERY_HANDLER: &str = r#"tracepoint:signal:signal_deliver /{ours} && args->sa_handler > 1/ { printf("E %llu %d !%d\n", nsecs, tid, args->sig); }"#;

/// The script that prints the events that [`threads`] reads.
pub fn every_call(engine: Engine) -> String {
    match engine {
        Engine::Kernel => format!("{EVERY_CALL} {EVERY_HANDLER}"),
        Engine::Beeline => EVERY_CALL.to_owned(),
    }
}

/// Each thread's events, in its own order; threads are ordered by their events, as their ids mean
/// nothing.
pub type Threads = Vec<Vec<String>>;

/// A workload with a tool on its system calls.
pub struct Traced {
    /// The traced workload.
    pub workload: Workload,
    /// The tool.
    pub tool: Tool,
    engine: Engine,
}

impl Traced {
    /// Starts a target and a bpftrace for it and its descendants: `{ours}` in the script is its
    /// filter.
    pub fn start(engine: Engine, target: Command, script: &str) -> Result<Traced, String> {
        Traced::attach(engine, Workload::start_command(target), script)
    }

    /// Does the same as [`Traced::start`], for a running target.
    pub fn attach(engine: Engine, workload: Workload, script: &str) -> Result<Traced, String> {
        let bpftrace = find_program("bpftrace")?;
        let mut command = on_family(engine, &bpftrace, workload.pid());
        command.env("BPFTRACE_PERF_RB_PAGES", "1024");
        let tool = Tool::bpftrace(command, &for_family(engine, script, workload.pid()));
        tool.wait_attached();
        Ok(Traced {
            workload,
            tool,
            engine,
        })
    }

    /// Ends the tool, and asserts that the target has its own code back and ends as it should.
    pub fn finish(self) -> Vec<String> {
        let (workload, lines) = self.finish_tool();
        workload.finish();
        lines
    }

    /// Does the same as [`Traced::finish`], but the target runs on.
    pub fn finish_tool(self) -> (Workload, Vec<String>) {
        let Traced {
            workload,
            tool,
            engine,
        } = self;
        tool.settle();
        let ended = tool.interrupt();
        assert!(ended.status.success(), "{engine}: {ended:?}");
        let lost = ended.stdout.iter().find(|line| line.starts_with("Lost "));
        assert_eq!(lost, None, "{engine}: the test's buffer is too small");
        assert_eq!(altered_text(workload.pid()), [""; 0], "{engine}");
        (workload, ended.stdout)
    }
}

/// Returns the tool's command, for one process and its descendants.
pub fn on_family(engine: Engine, tool: &Path, pid: u32) -> Command {
    match engine {
        Engine::Kernel => with_tracefs(tool),
        Engine::Beeline => {
            let mut command = Command::new(beeline());
            command
                .args(["run", "--pid", &pid.to_string(), "--"])
                .arg(tool);
            compile_anew(&mut command);
            command
        }
    }
}

fn for_family(engine: Engine, script: &str, pid: u32) -> String {
    match engine {
        Engine::Beeline => script.replace("{ours}", "1"),
        Engine::Kernel => {
            let script = script.replace("{ours}", &format!("(pid == {pid} || @ours[tid])"));
            format!(
                "tracepoint:sched:sched_process_fork /pid == {pid} || @ours[tid]/ \
                {{ @ours[args->child_pid] = 1; }} END {{ clear(@ours); }} {script}"
            )
        }
    }
}

/// Makes a new target play `scenes`, once for each engine, and asserts that the same calls are seen
/// with the same results. Returns the events.
pub fn same_calls(target: impl Fn() -> Command, scenes: &[&str]) -> Result<Threads, String> {
    same_calls_but(target, scenes, |_| false)
}

/// Does the same as [`same_calls`], without the calls whose numbers `ignored` accepts: those made
/// at random.
pub fn same_calls_but(
    target: impl Fn() -> Command,
    scenes: &[&str],
    ignored: impl Fn(u32) -> bool,
) -> Result<Threads, String> {
    let _turn = Turn::take();
    let all = play(target, scenes, ignored)?;
    if let [kernel, beeline] = all.as_slice() {
        assert_same(kernel, beeline, scenes);
    }
    Ok(all.into_iter().next_back().unwrap_or_default())
}

/// Does the same as [`same_calls`], in any order and for any thread.
pub fn same_calls_of_all(target: impl Fn() -> Command, scenes: &[&str]) -> Result<(), String> {
    let _turn = Turn::take();
    let together = |threads: Threads| {
        let mut all = threads.concat();
        all.sort();
        vec![all]
    };
    let all = play(target, scenes, |_| false)?;
    let all: Vec<_> = all.into_iter().map(together).collect();
    if let [kernel, beeline] = all.as_slice() {
        assert_same(kernel, beeline, scenes);
    }
    Ok(())
}

/// Returns each engine's events of the scenes.
fn play(
    target: impl Fn() -> Command,
    scenes: &[&str],
    ignored: impl Fn(u32) -> bool,
) -> Result<Vec<Threads>, String> {
    let mut all = Vec::new();
    for engine in engines()? {
        let mut traced = Traced::start(engine, target(), &every_call(engine))?;
        for scene in scenes {
            let answer = traced.workload.tell(scene);
            assert_eq!(answer, format!("done {scene}"), "{engine}");
        }
        all.push(threads(&traced.finish(), &ignored));
    }
    Ok(all)
}

/// Makes a new target play scenes, once for each engine, and asserts that the script prints the
/// same maps, among them the expected line.
pub fn same_counts(
    program: &Path,
    script: &str,
    scenes: &[&str],
    expected: &str,
) -> Result<(), String> {
    let _turn = Turn::take();
    let mut all = Vec::new();
    for engine in engines()? {
        let mut traced = Traced::start(engine, plain(program)(), script)?;
        for scene in scenes {
            let answer = traced.workload.tell(scene);
            assert_eq!(answer, format!("done {scene}"), "{engine}");
        }
        let lines = traced.finish().into_iter();
        let counts: BTreeSet<_> = lines.filter(|line| line.starts_with('@')).collect();
        assert!(counts.contains(expected), "{engine}: {counts:?}");
        all.push(counts);
    }
    if let [kernel, beeline] = all.as_slice() {
        assert_eq!(beeline, kernel, "beeline (left), the kernel (right)");
    }
    Ok(())
}

/// Describes the differences between two families, which are too long to read as a whole.
fn assert_same(kernel: &Threads, beeline: &Threads, scenes: &[&str]) {
    let missing: Vec<_> = unmatched(kernel, beeline);
    let strange: Vec<_> = unmatched(beeline, kernel);
    assert!(
        missing.is_empty() && strange.is_empty(),
        "{scenes:?}: {} threads on the kernel, {} on beeline\nonly on the kernel:\n{}\nonly on beeline:\n{}",
        kernel.len(),
        beeline.len(),
        missing.join("\n"),
        strange.join("\n")
    );
}

/// Returns the threads of `these` that match none of `those`.
fn unmatched(these: &Threads, those: &Threads) -> Vec<String> {
    let mut left = those.clone();
    let mut unmatched = Vec::new();
    for thread in these {
        match left.iter().position(|other| other == thread) {
            Some(at) => drop(left.remove(at)),
            None => unmatched.push(shortened(thread)),
        }
    }
    unmatched
}

/// Writes "(...) x N" for a call that was made many times over.
fn shortened(thread: &[String]) -> String {
    let mut words = Vec::new();
    let mut rest = thread;
    while let [first, ..] = rest {
        let pair = &rest[..rest.len().min(2)];
        let times = rest.chunks(2).take_while(|other| *other == pair).count();
        if times > 2 {
            words.push(format!("({}) x {times}", pair.join(" ")));
            rest = &rest[2 * times..];
        } else {
            words.push(first.clone());
            rest = &rest[1..];
        }
    }
    words.join(" ")
}

/// Groups the events that [`every_call`] prints by thread.
pub fn threads(lines: &[String], ignored: impl Fn(u32) -> bool) -> Threads {
    let mut events: Vec<_> = lines.iter().filter_map(|line| event(line)).collect();
    events.sort_by_key(|&(time, ..)| time);
    let mut threads: BTreeMap<&str, Vec<Event>> = BTreeMap::new();
    for (_, tid, event) in events {
        threads.entry(tid).or_default().push(event);
    }
    let words = |events: Vec<Event>| {
        let seen = Interruptions::default().seen_by_the_process(&events);
        let kept = seen.into_iter().filter(|event| !ignored(event.number()));
        kept.map(Event::word).collect()
    };
    let mut threads: Threads = threads.into_values().map(words).collect();
    // The number of threads that do nothing that counts is random as well: Go's runtime starts them
    // as it needs them.
    threads.retain(|thread| !thread.is_empty());
    threads.sort();
    threads
}

/// A thread's events: its actions, and its interruptions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Call(u32),
    Return(u32, i64),
    Handler,
}

const SIGRETURN: u32 = libc::SYS_rt_sigreturn as u32;
const RESTART: u32 = libc::SYS_restart_syscall as u32;

/// Returns an event's time, thread and description.
fn event(line: &str) -> Option<(u64, &str, Event)> {
    let words: Vec<_> = line.strip_prefix("E ")?.split(' ').collect();
    let [time, tid, call, result @ ..] = words.as_slice() else {
        return None;
    };
    // The kernel gives the return from a handler no number.
    let number = || match call.get(1..)? {
        "-1" => Some(SIGRETURN),
        number => number.parse().ok(),
    };
    let event = match (call.chars().next()?, result) {
        ('+', []) => Event::Call(number()?),
        ('-', [result]) => Event::Return(number()?, result.parse().ok()?),
        ('!', []) => Event::Handler,
        _ => return None,
    };
    Some((time.parse().ok()?, tid, event))
}

impl Event {
    fn number(self) -> u32 {
        match self {
            Event::Call(number) | Event::Return(number, _) => number,
            Event::Handler => SIGRETURN,
        }
    }

    /// Process ids and addresses differ in each run.
    fn word(self) -> String {
        match self {
            Event::Call(number) => format!("+{number}"),
            Event::Return(number, 1..) if GIVE_PIDS.contains(&i64::from(number)) => {
                format!("-{number}=PID")
            }
            Event::Return(number, 4096..) => format!("-{number}=ADDR"),
            Event::Return(number, result) => format!("-{number}={result}"),
            Event::Handler => "handler".to_owned(),
        }
    }
}

/// Calls that signals interrupt return twice: within the kernel, with a secret result, before the
/// handler runs; and to the process, after it, unless they are made again. Beeline sees the second,
/// in the process, where a call that is made again was never interrupted. This turns the kernel's
/// account into the process's.
#[derive(Default)]
struct Interruptions {
    /// The calls that the running handlers have interrupted.
    interrupted: Vec<Option<(u32, i64)>>,
    seen: Vec<Event>,
}

impl Interruptions {
    fn seen_by_the_process(mut self, events: &[Event]) -> Vec<Event> {
        let mut events = events.iter().copied();
        while let Some(event) = events.next() {
            match event {
                Event::Handler => self.begin_handler(),
                Event::Call(SIGRETURN | RESTART) => {}
                Event::Return(SIGRETURN, result) => {
                    if self.end_handler(result) {
                        // The repeated call is reported a second time.
                        events.next();
                    }
                }
                Event::Return(RESTART, result) => self.end_restarted(result),
                other => self.seen.push(other),
            }
        }
        self.seen
    }

    fn begin_handler(&mut self) {
        self.interrupted.push(match self.seen.last() {
            Some(&Event::Return(number, result)) => {
                self.seen.pop();
                Some((number, result))
            }
            _ => None,
        });
    }

    /// Ends a handler by the result that it leaves; returns whether the interrupted call is made
    /// again.
    fn end_handler(&mut self, result: i64) -> bool {
        let Some(Some((number, first))) = self.interrupted.pop() else {
            return false;
        };
        let is_interrupted = (-516..=-512).contains(&first);
        let again = is_interrupted && result != -i64::from(libc::EINTR);
        if !again {
            self.seen.push(Event::Return(number, result));
        }
        again
    }

    /// A call that was stopped and continued has a call of its own in the kernel.
    fn end_restarted(&mut self, result: i64) {
        if let Some(Event::Return(_, first)) = self.seen.last_mut() {
            *first = result;
        }
    }
}

const GIVE_PIDS: [i64; 12] = [
    libc::SYS_fork,
    libc::SYS_vfork,
    libc::SYS_clone,
    libc::SYS_clone3,
    libc::SYS_wait4,
    libc::SYS_waitid,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_gettid,
    libc::SYS_set_tid_address,
    libc::SYS_setsid,
    libc::SYS_getpgid,
];

/// Returns a command that runs a built program.
pub fn plain(program: &Path) -> impl Fn() -> Command + use<> {
    let program: PathBuf = program.to_owned();
    move || Command::new(&program)
}

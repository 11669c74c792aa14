//! A target, sessions that trace it, and the checks after each.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use beeline_e2e::{
    Engine, Footprint, Scratch, Workload, altered_text, beeline, file_offset, until,
};

use crate::calls::{Call, Case};
use crate::injector::{Failed, Seen, Traced};

/// A session that has not ended by then hangs. Some wait for a target, for two seconds each time.
const PATIENCE: Duration = Duration::from_secs(20);
/// Processes that a session has started may end a little later.
const MOMENT: Duration = Duration::from_secs(5);
/// Marks the environment of the processes that a session starts.
const MARK: &str = "BEELINE_FAULTS_RUN";

/// The target, and its tracers.
pub struct World {
    mode: &'static str,
    program: PathBuf,
    offset: u64,
    target: Workload,
    before: Footprint,
    runs: u32,
    /// The messages of Beeline and the tool, without figures, and their counts.
    pub words: BTreeMap<String, u32>,
    _scratch: Scratch,
}

/// The result of a session.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The failed checks.
    pub wrong: Vec<String>,
    /// The call that failed, if it was made.
    pub failed: Option<Failed>,
    status: Option<ExitStatus>,
    stdout: Vec<String>,
    stderr: Vec<String>,
    took: Duration,
    counts: BTreeMap<&'static str, u32>,
    pid: i32,
    /// The place of the call, if something is wrong.
    places: Vec<String>,
}

impl World {
    /// A target without a session.
    pub fn new(mode: &'static str) -> World {
        let scratch = Scratch::new();
        let program = scratch.build("faults.c");
        let offset = file_offset(&program, "f_add").expect("a function of the workload");
        let mut target = Workload::start(&program);
        assert_eq!(target.go(), "done 5050");
        let before = Footprint::of(target.pid());
        World {
            mode,
            program,
            offset,
            target,
            before,
            runs: 0,
            words: BTreeMap::new(),
            _scratch: scratch,
        }
    }

    /// Counts each call in a session in which none fails.
    pub fn dry_run(&mut self) -> impl Fn(&Call) -> usize + use<> {
        let outcome = self.play(None);
        assert!(outcome.wrong.is_empty(), "without a fault: {outcome:#?}");
        let counts = outcome.counts;
        move |call| counts.get(call.name).map_or(0, |count| *count as usize)
    }

    /// Runs one session, in which a call fails.
    pub fn play(&mut self, case: Option<Case>) -> Outcome {
        self.runs += 1;
        let mark = format!("{}-{}", std::process::id(), self.runs);
        let begun = Instant::now();
        let mut session = Traced::start(self.command(&mark), case);
        let mut outcome = Outcome {
            pid: session.pid,
            ..Outcome::default()
        };
        let attached = session
            .stdout
            .wait_for(0, PATIENCE, |line| line == "attached");
        if attached.is_some() {
            self.work(&mut outcome, "while it is traced");
        }
        drop(session.stdin.take());
        let mut ended = session.wait(PATIENCE.saturating_sub(begun.elapsed()));
        if ended.is_none() {
            outcome
                .wrong
                .push(format!("does not end: {}", threads(session.pid)));
            session.kill();
            ended = session.wait(PATIENCE);
        }
        outcome.took = begun.elapsed();
        outcome.stdout = session.stdout.to_the_end(MOMENT);
        outcome.stderr = session.stderr.to_the_end(MOMENT);
        let (status, seen) = ended.expect("killed at the latest");
        outcome.status = Some(status);
        Seen {
            counts: outcome.counts,
            failed: outcome.failed,
        } = seen;
        outcome.judge(status, self.mode);
        self.look_behind(&mut outcome, &mark);
        self.note_words(&outcome);
        if let (false, Some(failed)) = (outcome.wrong.is_empty(), &outcome.failed) {
            outcome.places = failed.places(&beeline());
        }
        outcome
    }

    fn command(&self, mark: &str) -> Command {
        let pid = self.target.pid().to_string();
        let mut command = Engine::Beeline.command(&self.program);
        let tool: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
        command = Command::new(beeline());
        command.arg(&tool[0]).args(["--pid", &pid]).args(&tool[1..]);
        command
            .args([self.mode, &pid])
            .arg(&self.program)
            .arg(self.offset.to_string());
        command.env("BEELINE_CACHE", "").env(MARK, mark);
        command
    }

    /// Makes the target work one round.
    fn work(&mut self, outcome: &mut Outcome, when: &str) {
        match self.target.ask("go") {
            Ok(answer) if answer == "done 5050" => {}
            other => outcome.wrong.push(format!("the target {when}: {other:?}")),
        }
    }

    /// Checks that the target is unchanged, and nothing is left of the session.
    fn look_behind(&mut self, outcome: &mut Outcome, mark: &str) {
        let pid = self.target.pid();
        self.work(outcome, "behind the session");
        let before = self.before.clone();
        let own = format!("/memfd:beeline-{}-", outcome.pid);
        let left = || left(pid, &before, &own);
        if !until(Duration::from_millis(100), || left().is_empty()) {
            outcome.wrong.push(format!("left behind: {:?}", left()));
            let detach = Command::new(beeline())
                .args(["detach", &pid.to_string()])
                .output();
            let detach = detach.map(|output| String::from_utf8_lossy(&output.stderr).into_owned());
            self.work(outcome, "behind what was left");
            if !left().is_empty() {
                outcome
                    .wrong
                    .push(format!("left for ever: {:?} {detach:?}", left()));
            }
        }
        if !until(MOMENT, || marked(mark).is_empty()) {
            outcome.wrong.push(format!("goes on: {:?}", marked(mark)));
            for left in marked(mark) {
                // SAFETY: plain numbers: a process that this session has started.
                unsafe { libc::kill(left.0, libc::SIGKILL) };
            }
        }
        if outcome
            .wrong
            .iter()
            .any(|what| what.contains("the target") || what.contains("for ever"))
        {
            self.target = Workload::start(&self.program);
            self.before = Footprint::of(self.target.pid());
        }
    }

    fn note_words(&mut self, outcome: &Outcome) {
        let words = outcome.in_short();
        let words: String = words
            .chars()
            .map(|c| if c.is_ascii_digit() { '#' } else { c })
            .collect();
        *self.words.entry(words).or_default() += 1;
    }

    /// Ends the target, and checks that it ends well.
    pub fn finish(self) {
        self.target.finish();
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (thread, subject) = self
            .failed
            .as_ref()
            .map_or(("?", "?"), |failed| (&failed.thread, &failed.subject));
        let status = self
            .status
            .map_or_else(String::new, |status| status.to_string());
        writeln!(
            f,
            "{:?} ({thread}: {subject}; {status}, {} ms)",
            self.wrong,
            self.took.as_millis()
        )?;
        writeln!(f, "    printed {:?}, said {:?}", self.stdout, self.stderr)?;
        for place in &self.places {
            writeln!(f, "    {place}")?;
        }
        Ok(())
    }
}

impl Outcome {
    /// Describes the end of the session and its messages, in a line.
    pub fn in_short(&self) -> String {
        let status = self
            .status
            .map_or_else(String::new, |status| status.to_string());
        format!("{status}: {}", self.stderr.join(" | "))
    }

    /// Checks the session's end and its messages.
    fn judge(&mut self, status: ExitStatus, mode: &str) {
        let said = self.stderr.join("\n");
        let calls = if mode == "calls" { 100 } else { 0 };
        let right = format!("in 100 out 100 records 200 calls {calls}");
        let mut wrong = Vec::new();
        if said.contains("panicked") {
            wrong.push("panicked");
        }
        if said.contains("another length") {
            wrong.push("what is read from the ring is wrong");
        }
        // The message cannot be printed.
        let is_dumb = self
            .failed
            .as_ref()
            .is_some_and(|failed| failed.subject.starts_with("pipe:"));
        let is_told = said.contains("beeline: ") || is_dumb;
        match status.code() {
            None => wrong.push("ended by a signal"),
            Some(0) if self.stdout != ["attached", &right] && !is_told => wrong.push("silent loss"),
            Some(0) => {}
            Some(_) if said.is_empty() && !is_dumb => wrong.push("failed without a word"),
            Some(_) => {}
        }
        if self.took > Duration::from_secs(5) {
            wrong.push("slow");
        }
        self.wrong.extend(wrong.into_iter().map(str::to_owned));
    }
}

/// Returns the differences between the target now and before. Returns none while another session,
/// whose memory does not carry this one's name, is there as well.
fn left(pid: u32, before: &Footprint, own: &str) -> Vec<String> {
    let now = Footprint::of(pid);
    let is_others = |what: &String| what.contains("/memfd:beeline-") && !what.contains(own);
    if now.mappings.iter().any(is_others) {
        return Vec::new();
    }
    let mut left = altered_text(pid);
    left.extend(
        now.descriptors
            .symmetric_difference(&before.descriptors)
            .cloned(),
    );
    left.extend(now.mappings.symmetric_difference(&before.mappings).cloned());
    if (now.threads, now.tracer) != (before.threads, before.tracer) {
        left.push(format!("{} threads, traced by {}", now.threads, now.tracer));
    }
    left
}

/// Returns the processes that a session has started, with their names.
fn marked(mark: &str) -> Vec<(i32, String)> {
    let wanted = format!("{MARK}={mark}");
    let entries = fs::read_dir("/proc").expect("there is a /proc");
    let pids = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid: i32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
        let is_marked = environment
            .split(|byte| *byte == 0)
            .any(|one| one == wanted.as_bytes());
        let name = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        is_marked.then(|| (pid, name.replace('\0', " ")))
    })
    .collect()
}

/// Describes the states of a process's threads.
fn threads(pid: i32) -> String {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten();
    let mut all = String::new();
    for task in tasks {
        let read = |what| fs::read_to_string(task.path().join(what)).unwrap_or_default();
        all += &format!("{} in {}; ", read("comm").trim(), read("syscall").trim());
    }
    all
}

//! Runs a tool while a process works, once on the kernel and once under `beeline run`.

use std::process::Command;
use std::time::{Duration, Instant};

use beeline_e2e::{
    Engine, Scratch, Tool, altered_text, beeline, compile_anew, is_alive, until,
    with_kernel_headers, with_tracefs,
};

use crate::compare::Seen;
use crate::entry::Entry;
use crate::family::Family;
use crate::work::Worker;

/// The time for a tool to show that it has begun; bcc's compile first.
const BEGINNING: Duration = Duration::from_secs(8);
/// The time from its first line until its probes are taken to be attached.
const SETTLING: Duration = Duration::from_millis(1200);
/// The time in which its output comes to rest after the work.
const RESTING: Duration = Duration::from_millis(1000);
/// The time for a tool to end by Ctrl-C.
const ENDING: Duration = Duration::from_secs(15);

/// A run of a tool.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// It traced until it was told to end, or did its work and ended without an error.
    pub works: bool,
    /// It traced until it was told to end.
    pub traced: bool,
    /// The part of its output that is compared.
    pub seen: Seen,
    /// All that it printed.
    pub stdout: Vec<String>,
    /// The lines on its standard error, Beeline's among them.
    pub stderr: Vec<String>,
    /// The fault of the traced process, or at the end of the tool.
    pub harm: Option<String>,
}

/// Runs a tool on an engine. A `brief` run ends before the work: it tells only if the tool traces.
///
/// # Errors
/// The machine lacks what the work needs.
pub fn run(
    engine: Engine,
    entry: &Entry,
    family: &Family,
    brief: bool,
    programs: &Scratch,
) -> Result<Run, String> {
    let scratch = Scratch::new();
    let mut worker = Worker::start(entry.work, &scratch, programs)?;
    let pid = worker.pid();
    let command = command(engine, entry, family, &worker, &scratch)?;
    let tool = Tool::start_on_terminal(command);
    if worker.works() {
        let first = if family.logs {
            &tool.stderr
        } else {
            &tool.stdout
        };
        let said = || !first.so_far().is_empty() || !is_alive(tool.pid());
        if until(BEGINNING, said) {
            until(SETTLING, || !is_alive(tool.pid()));
        }
    } else {
        until(BEGINNING, || !is_alive(tool.pid()));
    }
    let lived = is_alive(tool.pid());
    let mut harm = None;
    if lived && !brief {
        harm = worker.work().err();
        rest(&tool);
    }
    let interrupted = is_alive(tool.pid());
    if interrupted {
        tool.send_interrupt();
    }
    if !until(ENDING, || !is_alive(tool.pid())) {
        harm = harm.or(Some("does not end by SIGINT".to_owned()));
        tool.signal_group(libc::SIGTERM);
        if !until(ENDING, || !is_alive(tool.pid())) {
            tool.signal_group(libc::SIGKILL);
        }
    }
    let ended = tool.wait();
    let altered = if worker.works() {
        altered_text(pid)
    } else {
        Vec::new()
    };
    if engine == Engine::Beeline && !altered.is_empty() {
        harm = harm.or(Some(format!("leaves altered code: {altered:?}")));
    }
    harm = harm.or(worker.finish().err());
    let own = ended
        .stderr
        .iter()
        .filter(|line| !line.starts_with("beeline: "));
    let lines: Vec<_> = ended.stdout.iter().chain(own).cloned().collect();
    let lines = without_directories(&lines, [&scratch, programs]);
    Ok(Run {
        traced: interrupted,
        works: interrupted || ended.status.success(),
        seen: Seen::of(&lines, entry.compare, pid),
        stdout: ended.stdout,
        stderr: ended.stderr,
        harm,
    })
}

/// Returns lines without the names of directories, which are others in each run. Some of bcc's tools
/// show as little of a command as `CUT`.
fn without_directories(lines: &[String], directories: [&Scratch; 2]) -> Vec<String> {
    const CUT: usize = 20;
    let paths = directories.map(|one| one.path().display().to_string());
    let bare = |line: &String| {
        paths.iter().fold(line.clone(), |line, path| {
            let start = path.get(..CUT).unwrap_or(path);
            line.replace(path, "DIRECTORY").replace(start, "DIRECTORY")
        })
    };
    lines.iter().map(bare).collect()
}

/// Go's programs print what they see on stderr, as a log.
fn printed(tool: &Tool) -> usize {
    tool.stdout.so_far().len() + tool.stderr.so_far().len()
}

/// Waits until nothing has been printed for a while, or the tool has ended.
fn rest(tool: &Tool) {
    let (began, mut last, mut lines) = (Instant::now(), Instant::now(), 0);
    until(RESTING * 4, || {
        let now = printed(tool);
        if now != lines {
            (last, lines) = (Instant::now(), now);
        }
        let calm = last.elapsed() > RESTING / 2 && began.elapsed() > RESTING;
        calm || !is_alive(tool.pid())
    });
}

fn command(
    engine: Engine,
    entry: &Entry,
    family: &Family,
    worker: &Worker,
    scratch: &Scratch,
) -> Result<Command, String> {
    let tool = family.place(&entry.tool)?;
    let mut command = match engine {
        Engine::Kernel => with_tracefs(&tool[0]),
        Engine::Beeline => {
            let mut command = Command::new(beeline());
            command.args(["run", "--where", "user"]);
            if worker.is_one() {
                command.args(["--pid", &worker.pid().to_string()]);
            }
            command.arg("--").arg(&tool[0]);
            compile_anew(&mut command);
            command
        }
    };
    command.args(&tool[1..]);
    let built = |place: &str, source: &str| match entry.args.iter().any(|word| word.contains(place))
    {
        true => scratch
            .build_bpf(source)
            .map(|file| file.display().to_string()),
        false => Ok(String::new()),
    };
    let object = built("{object}", "attached.bpf.c")?;
    let iterator = built("{iterator}", "iterates.bpf.c")?;
    let filled = |word: &String| {
        word.replace("{object}", &object)
            .replace("{iterator}", &iterator)
            .replace("{pid}", &worker.pid().to_string())
            .replace("{prog}", &worker.program())
            .replace("{scratch}", &scratch.path().display().to_string())
    };
    command.args(entry.args.iter().map(filled));
    match family.wants_headers {
        true => with_kernel_headers(command),
        false => Ok(command),
    }
}

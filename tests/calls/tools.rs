//! Debian's tools for system calls, unmodified, print the same of a target under Beeline as on the
//! kernel; or, if they need kprobes, which not every kernel has, the same as strace for that
//! target.

use std::process::Command;
use std::time::Duration;

use beeline_e2e::{
    Engine, PATIENCE, Scratch, Tool, Turn, Workload, engines, find_program, need, until,
    with_kernel_headers,
};

use crate::trace::on_family;

/// A tool that prints a row for each event of a scene.
struct Snoop<'a> {
    tool: &'a str,
    /// `PID` stands for the target's id.
    arguments: &'a [&'a str],
    scene: &'a str,
    /// The rows of one round.
    wanted: usize,
    /// Returns a line without the parts that differ between runs; `None` if it is not the target's.
    /// Takes the target's id.
    row: &'a dyn Fn(&str, u32) -> Option<String>,
    /// Returns whether it is the last row of a round.
    is_last: &'a dyn Fn(&str) -> bool,
}

/// The number of times to play a scene.
const ROUNDS: usize = 2;

/// The target, on one CPU: tools show the events of several in no order.
fn target(scratch: &Scratch) -> Workload {
    let mut command = Command::new("taskset");
    command
        .args(["--cpu-list", "0"])
        .arg(scratch.build("calls/tools.c"));
    Workload::start_command(command)
}

impl Snoop<'_> {
    /// Asserts that both engines show the same rows in the same order.
    fn same(&self) {
        let _turn = Turn::take();
        need!(find_program(self.tool));
        let mut all = Vec::new();
        for engine in need!(engines()) {
            all.push((engine, need!(self.rows(engine))));
        }
        if let [(_, kernel), (_, beeline)] = all.as_slice() {
            assert_eq!(beeline, kernel, "beeline (left), the kernel (right)");
        }
    }

    /// Asserts that Beeline shows the same as strace: the calls that `told` makes rows of, with
    /// their results.
    fn as_strace(&self, calls: &str, told: impl Fn(&Traced) -> Option<String>) {
        let _turn = Turn::take();
        need!(beeline_e2e::beeline_wanted());
        need!(find_program(self.tool));
        let known = need!(strace(self.scene, calls));
        let known: Vec<_> = known.iter().filter_map(told).collect();
        assert_eq!(known.len(), self.wanted, "{known:?}");
        let rows = need!(self.rows(Engine::Beeline));
        assert_eq!(
            rows,
            vec![known; ROUNDS].concat(),
            "beeline (left), strace (right)"
        );
    }

    /// Returns the rows that the tool prints for the rounds.
    fn rows(&self, engine: Engine) -> Result<Vec<String>, String> {
        let scratch = Scratch::new();
        let mut workload = target(&scratch);
        let pid = workload.pid();
        let tool = self.start(engine, pid)?;
        let rows = || -> Vec<String> {
            let lines = tool.stdout.so_far();
            let rows = lines.iter().filter_map(|line| (self.row)(line, pid));
            rows.collect()
        };
        let mut play = || {
            let answer = workload.tell(self.scene);
            assert_eq!(answer, format!("done {}", self.scene), "{engine}");
        };
        // Headings may come before it is attached: it is attached when it has shown the end of a
        // round, and it is done when it has shown the end of each.
        let mut rounds = 0;
        let ends = |rows: &[String]| rows.iter().filter(|row| (self.is_last)(row)).count();
        let is_attached = || {
            play();
            rounds += 1;
            until(Duration::from_millis(300), || ends(&rows()) > 0)
        };
        let attached = until(PATIENCE, is_attached);
        assert!(attached, "{engine}: it shows {:?}", tool.stdout.so_far());
        until(Duration::from_millis(500), || ends(&rows()) >= rounds);
        let seen = rows().len();
        (0..ROUNDS).for_each(|_| play());
        until(PATIENCE, || rows().len() >= seen + ROUNDS * self.wanted);
        let rows = rows().split_off(seen);
        tool.interrupt();
        assert_eq!(rows.len(), ROUNDS * self.wanted, "{engine}: {rows:?}");
        assert_eq!(beeline_e2e::altered_text(pid), [""; 0], "{engine}");
        workload.finish();
        Ok(rows)
    }

    fn start(&self, engine: Engine, pid: u32) -> Result<Tool, String> {
        Ok(Tool::start_on_terminal(command(
            engine,
            self.tool,
            self.arguments,
            pid,
        )?))
    }
}

fn command(engine: Engine, name: &str, arguments: &[&str], pid: u32) -> Result<Command, String> {
    let mut command = on_family(engine, &find_program(name)?, pid);
    let pid = pid.to_string();
    command.args(arguments.iter().map(|one| one.replace("PID", &pid)));
    match name.ends_with("-bpfcc") {
        true => with_kernel_headers(command),
        false => Ok(command),
    }
}

/// A call that strace has seen.
#[derive(Debug)]
struct Traced {
    name: String,
    arguments: Vec<String>,
    result: i64,
    errno: Option<String>,
}

/// Returns the calls of the given names, of a target and its children, in one round of a scene.
fn strace(scene: &str, calls: &str) -> Result<Vec<Traced>, String> {
    let strace = find_program("strace")?;
    let scratch = Scratch::new();
    let mut workload = target(&scratch);
    let file = scratch.path().join("trace");
    let mut command = Command::new(strace);
    command
        .args(["-f", "-qq", "-s", "100", "--signal=none", "-e"])
        .arg(format!("trace={calls},getppid"))
        .arg("-o")
        .arg(&file)
        .args(["-p", &workload.pid().to_string()]);
    let tool = Tool::start(command);
    let text = || std::fs::read_to_string(&file).unwrap_or_default();
    // It is attached when it has seen something.
    let is_attached = || {
        assert_eq!(workload.tell("ids"), "done ids");
        until(Duration::from_millis(300), || text().contains("getppid"))
    };
    assert!(until(PATIENCE, is_attached), "strace shows nothing");
    assert_eq!(workload.tell(scene), format!("done {scene}"));
    tool.interrupt();
    workload.finish();
    let text = text();
    let calls = text.lines().filter_map(traced);
    Ok(calls.filter(|call| call.name != "getppid").collect())
}

/// `PID NAME(ARGUMENT, ARGUMENT) = RESULT ERRNO (TEXT)`
fn traced(line: &str) -> Option<Traced> {
    let (_, line) = line.split_once(' ')?;
    let (name, rest) = line.trim_start().split_once('(')?;
    let (arguments, result) = rest.rsplit_once(" = ")?;
    let mut words = result.split(' ');
    Some(Traced {
        name: name.to_owned(),
        arguments: arguments
            .trim_end()
            .trim_end_matches(')')
            .split(", ")
            .map(|one| one.trim_matches('"').to_owned())
            .collect(),
        result: words.next()?.parse().ok()?,
        errno: words.next().map(str::to_owned),
    })
}

/// Returns the words of a line after the target's id.
fn behind_pid(line: &str, pid: u32) -> Option<String> {
    let (_, rest) = line.split_once(&pid.to_string())?;
    let words: Vec<_> = rest.split_whitespace().collect();
    let pid = pid.to_string();
    // A process that changes its name appears under the new one.
    let named = |word: &&str| if *word == pid { "PID" } else { *word }.to_owned();
    let words: Vec<_> = words.iter().map(named).collect();
    Some(words.join(" "))
}

fn ends_with_no_such_file(row: &str) -> bool {
    row.ends_with("/no/such/file")
}

const OPENSNOOP: Snoop = Snoop {
    tool: "opensnoop",
    arguments: &["-p", "PID"],
    scene: "files",
    wanted: 7,
    row: &behind_pid,
    is_last: &ends_with_no_such_file,
};

#[test]
fn opensnoop_shows_files_and_errors() {
    OPENSNOOP.same();
}

#[test]
fn opensnoop_shows_failures_only_if_told() {
    let arguments = &["-x", "-p", "PID"];
    Snoop {
        arguments,
        wanted: 1,
        ..OPENSNOOP
    }
    .same();
}

#[test]
fn killsnoop_shows_signals_and_what_came_of_them() {
    Snoop {
        tool: "killsnoop",
        arguments: &["-p", "PID"],
        scene: "kills",
        wanted: 5,
        row: &behind_pid,
        is_last: &|row| row.contains(" 99 "),
    }
    .same();
}

#[test]
fn mountsnoop_shows_mounts_and_flags() {
    Snoop {
        tool: "mountsnoop",
        arguments: &["-p", "PID"],
        scene: "mounts",
        wanted: 2,
        row: &behind_pid,
        is_last: &|row| row.contains("umount("),
    }
    .same();
}

/// Returns the programs that the target's children run; not its own, and no process ids.
fn executed(line: &str, _pid: u32) -> Option<String> {
    let mut words = line.split_whitespace();
    let (name, _, _) = (words.next()?, words.next()?, words.next()?);
    let is_row = |name: &str| matches!(name, "true" | "sh" | "tools");
    is_row(name).then(|| format!("{name} {}", words.collect::<Vec<_>>().join(" ")))
}

#[test]
fn execsnoop_shows_programs_and_arguments() {
    Snoop {
        tool: "execsnoop",
        arguments: &["-x"],
        scene: "execs",
        wanted: 5,
        row: &executed,
        is_last: &|row| row.starts_with("sh "),
    }
    .same();
}

fn of_file(call: &Traced, path: usize) -> Option<String> {
    let errno = call.errno.as_deref().map_or(Some(0), errno)?;
    let path = call.arguments.get(path)?;
    Some(format!("tools {} {errno} {path}", call.result))
}

fn errno(name: &str) -> Option<i32> {
    Some(match name {
        "ENOENT" => libc::ENOENT,
        "EINVAL" => libc::EINVAL,
        "EFAULT" => libc::EFAULT,
        _ => return None,
    })
}

const BCC_OPENSNOOP: Snoop = Snoop {
    tool: "opensnoop-bpfcc",
    ..OPENSNOOP
};

#[test]
fn opensnoop_of_bcc_shows_what_strace_does() {
    BCC_OPENSNOOP.as_strace("open,openat", |call| {
        let path = usize::from(call.name == "openat");
        of_file(call, path)
    });
}

/// Without the paths: the tool takes the first argument of the kernel's function, a `struct
/// pt_regs`, for one.
#[test]
fn statsnoop_of_bcc_shows_what_strace_does() {
    let row = |line: &str, pid: u32| {
        let row = behind_pid(line, pid)?;
        Some(row.split(' ').take(3).collect::<Vec<_>>().join(" "))
    };
    Snoop {
        tool: "statsnoop-bpfcc",
        arguments: &["-p", "PID"],
        scene: "stats",
        wanted: 4,
        row: &row,
        is_last: &|row| row.ends_with(&format!(" {}", libc::ENOENT)),
    }
    .as_strace("stat,statx,statfs", |call| {
        of_file(call, 0).and_then(|row| Some(row.rsplit_once(' ')?.0.to_owned()))
    });
}

#[test]
fn killsnoop_of_bcc_shows_what_strace_does() {
    Snoop {
        tool: "killsnoop-bpfcc",
        arguments: &["-p", "PID"],
        scene: "kills",
        wanted: 3,
        row: &behind_pid,
        is_last: &|row| row.contains(" 99 "),
    }
    .as_strace("kill", |call| {
        let signal = match call.arguments.get(1)?.as_str() {
            "SIGUSR1" => libc::SIGUSR1,
            other => other.parse().ok()?,
        };
        let errno = call.errno.as_deref().map_or(Some(0), errno)?;
        Some(format!("tools {signal} PID {}", -errno))
    });
}

#[test]
fn execsnoop_of_bcc_shows_what_strace_does() {
    Snoop {
        tool: "execsnoop-bpfcc",
        arguments: &["-x"],
        scene: "execs",
        wanted: 5,
        row: &executed,
        is_last: &|row| row.starts_with("sh "),
    }
    .as_strace("execve", |call| {
        // ["true", "one", "two words"], 0x7ffd /* 9 vars */
        let text = call.arguments.join(", ");
        let (path, rest) = text.split_once(", [")?;
        let (arguments, _) = rest.split_once(']')?;
        let arguments: Vec<_> = arguments
            .split(", ")
            .map(|one| one.trim_matches('"'))
            .collect();
        let name = match call.result {
            0 => path.trim_matches('"').rsplit('/').next()?,
            _ => "tools",
        };
        let errno = call.errno.as_deref().map_or(Some(0), errno)?;
        let path = path.trim_matches('"');
        let arguments = arguments.get(1..)?.join(" ");
        Some(format!("{name} {} {path} {arguments}", -errno))
    });
}

#[test]
fn syncsnoop_of_bcc_shows_each_call() {
    Snoop {
        tool: "syncsnoop-bpfcc",
        arguments: &[],
        scene: "syncs",
        wanted: 1,
        row: &|line, _| line.ends_with("sync()").then(|| "sync()".to_owned()),
        is_last: &|row| row == "sync()",
    }
    .as_strace("sync", |call| Some(format!("{}()", call.name)));
}

/// Without the path: the tool reads it as kernel memory, which a process's memory is under Beeline
/// only.
#[test]
fn trace_of_bcc_shows_arguments() {
    let row = |line: &str, pid: u32| {
        let row = behind_pid(line, pid)?;
        Some(
            row.split(' ')
                .filter(|word| !word.starts_with('/'))
                .collect::<Vec<_>>()
                .join(" "),
        )
    };
    let event = r#"t:syscalls:sys_enter_openat "%s %x", args->filename, args->flags"#;
    Snoop {
        tool: "trace-bpfcc",
        arguments: &["-p", "PID", event],
        scene: "files",
        wanted: 4,
        row: &row,
        is_last: &|row| row.ends_with(&format!(" {:x}", libc::O_RDWR)),
    }
    .same();
}

/// A tool that prints counts each second.
struct Counts<'a> {
    tool: &'a str,
    arguments: &'a [&'a str],
    scene: &'a str,
    /// The counts in a round, by the words of a line before or after the count.
    known: &'a [(&'a str, u64)],
}

impl Counts<'_> {
    fn same(&self) {
        let _turn = Turn::take();
        for engine in need!(engines()) {
            need!(self.check(engine));
        }
    }

    fn check(&self, engine: Engine) -> Result<(), String> {
        let scratch = Scratch::new();
        let mut workload = target(&scratch);
        let command = command(engine, self.tool, self.arguments, workload.pid())?;
        let tool = Tool::start_on_terminal(command);
        // Both come when everything is attached: a heading, or the time of the first full second.
        tool.wait_for_line(|line| {
            line.starts_with("Tracing")
                || line.starts_with(|first: char| first == '[' || first.is_ascii_digit())
        });
        // Events counted between a print and the clearing after it are lost to the tool itself.
        std::thread::sleep(Duration::from_millis(400));
        for _ in 0..ROUNDS {
            let answer = workload.tell(self.scene);
            assert_eq!(answer, format!("done {}", self.scene), "{engine}");
        }
        let counts = || -> Vec<u64> {
            let lines = tool.stdout.so_far();
            let of_name = |name: &str| lines.iter().filter_map(|line| count_of(line, name)).sum();
            self.known.iter().map(|(name, _)| of_name(name)).collect()
        };
        let known = self.known.iter().map(|(_, each)| ROUNDS as u64 * each);
        let known: Vec<_> = known.collect();
        until(PATIENCE, || counts() >= known);
        assert_eq!(counts(), known, "{engine}: {:?}", tool.stdout.so_far());
        tool.interrupt();
        workload.finish();
        Ok(())
    }
}

/// Returns the count before or after a name that a line begins or ends with, or after one in its
/// middle (`contended 7 times`).
fn count_of(line: &str, name: &str) -> Option<u64> {
    let line = line.trim();
    let midst = || line.split_once(name)?.1.trim().split(' ').next();
    let count = line.strip_prefix(name).or_else(|| line.strip_suffix(name));
    count.or_else(midst)?.trim().parse().ok()
}

#[test]
fn syscount_counts_calls() {
    for tool in ["syscount", "syscount-bpfcc"] {
        Counts {
            tool,
            arguments: &["-i", "1", "-p", "PID"],
            scene: "ids",
            known: &[("getppid", 1001), ("read", 1), ("write", 1)],
        }
        .same();
    }
}

/// It looks for functions in the kernel's lists, of which one is in debugfs only.
#[test]
fn funccount_of_bcc_counts_functions_by_a_pattern() {
    let _turn = Turn::take();
    need!(beeline_e2e::beeline_wanted());
    let counts = Counts {
        tool: "funccount-bpfcc",
        arguments: &["-i", "1", "-p", "PID", "__x64_sys_getpp*"],
        scene: "ids",
        known: &[("__x64_sys_getppid", 1001)],
    };
    need!(counts.check(Engine::Beeline));
}

#[test]
fn argdist_of_bcc_counts_arguments() {
    let event = "t:syscalls:sys_enter_openat():int:args->flags";
    Counts {
        tool: "argdist-bpfcc",
        arguments: &["-i", "1", "-p", "PID", "-C", event],
        scene: "files",
        known: &[("args->flags = 2", 1), ("args->flags = 524288", 3)],
    }
    .same();
}

#[test]
fn futexctn_counts_waits() {
    Counts {
        tool: "futexctn",
        arguments: &["-s", "-T", "-p", "PID", "1"],
        scene: "waits",
        known: &[(" contended ", 20)],
    }
    .same();
}

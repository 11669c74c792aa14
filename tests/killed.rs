//! SIGKILL may end Beeline at any moment: the processes that it traces go on correctly, and
//! `beeline detach` removes the remains.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use beeline_e2e::{
    Dice, Engine, PATIENCE, Scratch, Turn, Workload, altered_text, beeline, beeline_wanted,
    find_program, members_of_group, need, seed, soak, until,
};

/// Probes in the program and in libc, at the entry and at the return, one of which reads memory and
/// so needs a signal handler; and system calls, all of them and one.
const SCRIPT: &str = "uprobe:{prog}:wl_add { @in = count(); } uretprobe:{prog}:wl_add { @out = count(); } \
    uprobe:/lib/x86_64-linux-gnu/libc.so.6:nanosleep { @nap = *(uint64*)arg0; } \
    tracepoint:raw_syscalls:sys_enter { @ids[args->id] = count(); } tracepoint:syscalls:sys_exit_write { @written = sum(args->ret); }";

/// The number of Beelines to kill by default.
const TIMES: u32 = 25;

/// A Beeline with its tool, in a process group of their own.
struct Victim(Child);

impl Victim {
    fn tracing(bpftrace: &Path, program: &Path, pid: u32) -> Self {
        let mut command = Engine::Beeline.command(bpftrace);
        let script = SCRIPT.replace("{prog}", &program.display().to_string());
        command.args(["-p", &pid.to_string(), "-e", &script]);
        Self::start(command)
    }

    fn start(mut command: Command) -> Self {
        command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Self(command.spawn().expect("cannot run beeline"))
    }

    /// Kills Beeline first, and then the processes that it has started.
    fn kill(mut self) {
        self.0.kill().expect("cannot kill beeline");
        self.0.wait().expect("cannot wait for beeline");
        let group = self.0.id();
        let kill_rest = || {
            let members = members_of_group(group);
            for member in &members {
                // SAFETY: plain numbers: a process of the group that this test has made.
                unsafe { libc::kill(*member as i32, libc::SIGKILL) };
            }
            members.is_empty()
        };
        assert!(until(PATIENCE, kill_rest), "the tool does not end");
    }
}

fn status(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default()
}

/// Returns whether a tracer holds the process, or Beeline has mapped something into it.
fn is_touched(pid: u32) -> bool {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    !status(pid).contains("TracerPid:\t0\n") || maps.contains("/memfd:beeline-")
}

fn detach(pid: u32) -> Output {
    let mut command = Command::new(beeline());
    command.args(["detach", &pid.to_string()]);
    command.output().expect("cannot run beeline")
}

/// Asserts that the target still makes progress, and that no tracer holds any of its threads.
fn assert_alive(target: &mut Workload, round: u32) {
    let threads = fs::read_dir(format!("/proc/{}/task", target.pid())).expect("it is there");
    for thread in threads.flatten() {
        let status = fs::read_to_string(thread.path().join("status")).unwrap_or_default();
        assert!(!status.contains("State:\tt"), "round {round}: {status}");
    }
    let mut turns = || {
        let answer = target.tell("turns");
        let (turns, verdict) = answer.split_once(' ').expect("a number and a word");
        assert_eq!(verdict, "right", "round {round}");
        turns.parse::<u64>().expect("a number")
    };
    let before = turns();
    assert!(
        until(PATIENCE, || turns() > before),
        "round {round}: it stands still"
    );
}

#[test]
fn a_target_outlives_its_beelines() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let bpftrace = need!(find_program("bpftrace"));
    let scratch = Scratch::new();
    let program = scratch.build("killed.c");
    let mut target = Workload::start(&program);
    let pid = target.pid();
    let seed = seed();
    println!("seed {seed}");
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let (begun, mut round) = (Instant::now(), 0);
    let (mut held, mut leaving) = (0, 0);
    while round < TIMES || begun.elapsed() < soak() {
        round += 1;
        let victim = Victim::tracing(&bpftrace, &program, pid);
        assert!(
            until(PATIENCE, || is_touched(pid)),
            "round {round}: it is not traced"
        );
        // Attaching takes some twenty milliseconds; one in four is killed later, as it detaches.
        if dice.below(4) == 0 {
            std::thread::sleep(Duration::from_millis(150));
            interrupt(&victim);
            std::thread::sleep(Duration::from_micros(dice.below(60_000)));
            leaving += 1;
        } else {
            std::thread::sleep(Duration::from_micros(dice.below(30_000)));
        }
        held += u32::from(!status(pid).contains("TracerPid:\t0\n"));
        victim.kill();
        assert_alive(&mut target, round);
        if dice.below(3) == 0 {
            let mut command = Command::new(beeline());
            command.args(["detach", &pid.to_string()]);
            let victim = Victim::start(command);
            std::thread::sleep(Duration::from_micros(dice.below(8_000)));
            victim.kill();
            assert_alive(&mut target, round);
        }
        if dice.below(5) != 0 {
            detach(pid);
            assert_alive(&mut target, round);
        }
    }
    println!("{round} killed: {held} while a thread was held, {leaving} while leaving");
    let detached = detach(pid);
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("it is there");
    let left: Vec<&str> = maps
        .lines()
        .filter(|line| line.contains("/memfd:beeline-"))
        .collect();
    assert!(left.is_empty(), "{left:?} {detached:?}");
    assert_eq!(altered_text(pid), Vec::<String>::new());
    assert_eq!(target.go(), "right");
    target.finish();
}

fn interrupt(victim: &Victim) {
    // SAFETY: plain numbers; the child is ours and not reaped.
    unsafe { libc::kill(victim.0.id() as i32, libc::SIGINT) };
}

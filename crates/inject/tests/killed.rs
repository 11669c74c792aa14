//! A tracer may be killed at any moment: the target goes on as if it had never been held.

mod common;

use std::fs;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use beeline_inject::{Error, MapFlags, Mapping, Process, ProtFlags, Watched};
use common::{FINE, LATE, Portrait, Target, compile, memory_file};

/// Names the target and the task of the process that these tests kill.
const PID: &str = "BEELINE_TEST_HOLDS";
const TASK: &str = "BEELINE_TEST_TASK";

/// Stays this long in a call of the target.
const WITHIN: &str = "within";
/// Stops the target, maps and unmaps, and releases it, all the time.
const VISITS: &str = "visits";
/// Follows the target through the start of a program until its libraries are mapped.
const FOLLOWS: &str = "follows";
const STAY: Duration = Duration::from_millis(400);

/// Starts a process that does something with a target.
fn holder(target: &Target, task: &str) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "helper_that_holds", "--nocapture"])
        .env(PID, target.pid().to_string())
        .env(TASK, task)
        .stdout(Stdio::null());
    command.spawn().unwrap()
}

/// Not a test by itself: [`holder`] runs it.
#[test]
fn helper_that_holds() {
    let Ok(pid) = std::env::var(PID) else {
        return;
    };
    let Ok(process) = Process::open(pid.parse().unwrap()) else {
        return;
    };
    match std::env::var(TASK).unwrap().as_str() {
        WITHIN => stay_within(&process),
        FOLLOWS => {
            let watched = Watched::seize(&process, process.pid()).unwrap();
            println!("follows");
            let _ = watched.run_until_loaded(|_| ());
        }
        _ => loop {
            match visit(&process) {
                Ok(()) => {}
                Err(Error::Exited { .. }) => return,
                Err(error) => panic!("{error}"),
            }
        },
    }
}

/// Runs a slow call, unrelated to the way that the kernel continues others.
fn stay_within(process: &Process) {
    let mut stopped = process.stop().unwrap();
    let epoll = stopped.syscall(libc::SYS_epoll_create1, [0; 6]).unwrap();
    let room = 4096;
    let events = stopped
        .mmap_anonymous(room, ProtFlags::WRITE, MapFlags::empty(), 0)
        .unwrap();
    let millis = STAY.as_millis() as u64;
    let _ = stopped.syscall(libc::SYS_epoll_wait, [epoll, events, 1, millis, 0, 0]);
}

fn visit(process: &Process) -> Result<(), Error> {
    let file = memory_file(b"file", 8192);
    let mut stopped = process.stop()?;
    let placed = stopped.map_file(&Mapping {
        file: file.as_fd(),
        offset: 0,
        len: 8192,
        protection: ProtFlags::READ,
        flags: MapFlags::SHARED,
        address: 0,
    })?;
    stopped.munmap(placed, 8192)?;
    for thread in stopped.threads().to_vec() {
        stopped.set_ip(thread.tid(), thread.ip())?;
    }
    stopped.resume().map(drop)
}

/// Waits until a thread of the target waits in the call of [`stay_within`].
fn await_call(target: &Target) {
    let is_in_call = || {
        let tasks = fs::read_dir(format!("/proc/{}/task", target.pid())).unwrap();
        tasks.flatten().any(|task| {
            let call = fs::read_to_string(task.path().join("syscall")).unwrap_or_default();
            let mut words = call.split_whitespace();
            let number = words.next().and_then(|word| word.parse().ok());
            number == Some(libc::SYS_epoll_wait) && words.nth(3) == Some("0x190")
        })
    };
    let begun = Instant::now();
    while !is_in_call() {
        assert!(begun.elapsed() < Duration::from_secs(10), "no call");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Kills the tracer in the middle of a call that a thread of the target makes for it.
fn kill_within_a_call(target: &Target, meanwhile: impl FnOnce(&Target)) {
    assert_eq!(STAY.as_millis(), 0x190);
    let mut holder = holder(target, WITHIN);
    await_call(target);
    meanwhile(target);
    kill(&mut holder);
    std::thread::sleep(STAY);
}

fn kill(holder: &mut Child) {
    holder.kill().unwrap();
    holder.wait().unwrap();
}

fn c_target() -> PathBuf {
    compile("target.c", &["-fPIE", "-pie"])
}

/// Asserts that nothing traces the process and that none of its threads is stopped.
fn assert_free(target: &Target) {
    let tasks = fs::read_dir(format!("/proc/{}/task", target.pid())).unwrap();
    for task in tasks.flatten() {
        let status = fs::read_to_string(task.path().join("status")).unwrap_or_default();
        assert!(
            !status.contains("\nState:\tt") && !status.contains("\nState:\tT"),
            "{status}"
        );
        assert!(
            status.contains("\nTracerPid:\t0") || status.is_empty(),
            "{status}"
        );
    }
}

#[test]
fn within_a_call_of_a_thread_that_computes() {
    for options in [&["-fPIE", "-pie"][..], &["-static"]] {
        let target = Target::start(&compile("target.c", options), &["registers"]);
        for _ in 0..4 {
            kill_within_a_call(&target, |_| ());
        }
        assert_free(&target);
        target.finish_fine();
    }
}

#[test]
fn within_a_call_of_a_thread_that_waits() {
    let program = c_target();
    let calls = [
        "nanosleep",
        "poll",
        "futex",
        "ppoll",
        "epoll",
        "epoll_pwait",
        "sigtimedwait",
        "recv",
        "read",
    ];
    let targets = calls.map(|call| (call, Target::start(&program, &["blocked", call])));
    std::thread::sleep(Duration::from_millis(50));
    std::thread::scope(|scope| {
        for (_, target) in &targets {
            scope.spawn(|| kill_within_a_call(target, |_| ()));
        }
    });
    for (call, target) in targets {
        assert_free(&target);
        let code = target.finish().code();
        // The calls that the kernel does not continue restart their time.
        let is_late = code == Some(LATE) && !["nanosleep", "poll", "futex"].contains(&call);
        assert!(code == Some(FINE) || is_late, "{call}: {code:?}");
    }
}

#[test]
fn within_a_call_signals_are_kept_and_interrupt() {
    let mut target = Target::start(&c_target(), &["interrupted"]);
    std::thread::sleep(Duration::from_millis(50));
    kill_within_a_call(&target, |target| target.signal(libc::SIGUSR1));
    target.await_line("ready");
    target.finish_fine();

    let mut target = Target::start(&c_target(), &["suspended"]);
    std::thread::sleep(Duration::from_millis(50));
    target.signal(libc::SIGHUP);
    kill_within_a_call(&target, |_| ());
    target.signal(libc::SIGUSR1);
    target.await_line("ready");
    target.finish_fine();
}

#[test]
fn within_a_call_restartable_sequences_start_anew() {
    let target = Target::start(&c_target(), &["restartable"]);
    for _ in 0..4 {
        kill_within_a_call(&target, |_| ());
    }
    target.finish_fine();
}

#[test]
fn within_a_call_of_a_thread_that_sends_calls_to_itself() {
    let target = Target::start(&c_target(), &["dispatching"]);
    kill_within_a_call(&target, |_| ());
    target.finish_fine();
}

/// The next tracer finds the thread where the first one, now dead, has left it.
#[test]
fn another_takes_over() {
    let target = Target::start(&c_target(), &["registers"]);
    let process = target.open();
    let before = Portrait::of(&process);
    for _ in 0..4 {
        let mut holder = holder(&target, WITHIN);
        await_call(&target);
        kill(&mut holder);
        let mut stopped = process.stop().unwrap();
        let ip = stopped.threads()[0].ip();
        let regions = stopped.regions().unwrap();
        let at = regions.iter().find(|region| region.contains(ip)).unwrap();
        assert!(at.path.to_string_lossy().contains("target.c"), "{at:?}");
        assert_eq!(
            stopped.syscall(libc::SYS_getpid, [0; 6]).unwrap(),
            target.pid() as u64
        );
    }
    // Everything but two descriptors and a page for each visit is as it was.
    let after = Portrait::of(&process);
    assert!(before.has_same_text(&after));
    target.finish_fine();
}

/// Kills one tracer of the target after another, after a random time each.
fn kill_often(target: &Target, times: u32) {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let mut seed = now.unwrap().as_nanos() as u64 | 1;
    println!("seed {seed}");
    for _ in 0..times {
        let mut holder = holder(target, VISITS);
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        std::thread::sleep(Duration::from_micros(1500 + seed % 8000));
        kill(&mut holder);
    }
    assert_free(target);
}

#[test]
fn at_any_moment() {
    let program = c_target();
    for arguments in [
        &["registers"][..],
        &["threads", "6"],
        &["storm"],
        &["restartable"],
    ] {
        println!("{arguments:?}");
        let target = Target::start(&program, arguments);
        kill_often(&target, 150);
        target.finish_fine();
    }
}

/// Except `epoll_wait` and its like: a tracer killed before it has seen that such a call gave up on
/// the stop request cannot restart it.
#[test]
fn at_any_moment_of_a_wait() {
    let program = c_target();
    for call in ["read", "nanosleep", "poll", "futex"] {
        println!("{call}");
        let target = Target::start(&program, &["blocked", call]);
        kill_often(&target, 60);
        target.finish_fine();
    }
}

/// A program whose loader is watched starts all the same.
#[test]
fn at_any_moment_of_a_start() {
    let library = compile("library.c", &["-shared", "-fPIC"]);
    let program = compile("uses_library.c", &[library.to_str().unwrap()]);
    let script = format!("echo ready; read go; exec {}", program.display());
    let mut while_it_began = 0;
    for round in 0..60 {
        let mut target = Target::spawn(Command::new("sh").args(["-c", &script]));
        target.await_line("ready");
        let mut holder = holder(&target, FOLLOWS);
        let pid = target.pid();
        let is_followed = || {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
            !status.contains("\nTracerPid:\t0\n")
        };
        let begun = Instant::now();
        while !is_followed() {
            assert!(begun.elapsed() < Duration::from_secs(10), "not followed");
            std::thread::sleep(Duration::from_micros(200));
        }
        target.close_input();
        std::thread::sleep(Duration::from_micros(round * 60));
        while_it_began += u32::from(is_followed());
        kill(&mut holder);
        target.await_line("constructor");
        target.await_line("main");
        target.finish_fine();
    }
    println!("{while_it_began} killed while it began");
}

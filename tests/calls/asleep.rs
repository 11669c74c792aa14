//! Threads that sleep in calls while a tool attaches, and while it detaches.

use std::path::Path;
use std::process::Command;

use beeline_e2e::{
    Footprint, PATIENCE, Scratch, Turn, Workload, altered_text, beeline, engines, find_program,
    need, until,
};

use crate::trace::{Threads, Traced, every_call, plain, threads};

/// The calls that the threads of asleep.c sleep in with glibc; its first thread waits for a line.
pub const WITH_GLIBC: [i64; 6] = [
    libc::SYS_read,
    libc::SYS_read,
    libc::SYS_read,
    libc::SYS_futex,
    libc::SYS_clock_nanosleep,
    libc::SYS_epoll_wait,
];

/// The same with musl, which makes other calls.
const WITH_MUSL: [i64; 6] = [
    libc::SYS_read,
    libc::SYS_read,
    libc::SYS_read,
    libc::SYS_futex,
    libc::SYS_nanosleep,
    libc::SYS_epoll_pwait,
];

/// Returns the numbers of the calls that a process's threads sleep in, sorted.
fn sleeping(pid: u32) -> Vec<i64> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten();
    let number = |task: std::fs::DirEntry| {
        let text = std::fs::read_to_string(task.path().join("syscall")).ok()?;
        text.split(' ').next()?.parse().ok()
    };
    let mut numbers: Vec<i64> = tasks.map(|task| number(task).unwrap_or(-1)).collect();
    numbers.sort_unstable();
    numbers
}

/// Waits until a process's threads sleep as they should.
pub fn wait_asleep(pid: u32, wanted: &[i64]) {
    let mut wanted = wanted.to_vec();
    wanted.sort_unstable();
    let is_asleep = || sleeping(pid) == wanted;
    assert!(
        until(PATIENCE, is_asleep),
        "the threads sleep in {:?}, not {wanted:?}",
        sleeping(pid)
    );
}

/// Asserts that a process is as it was, for Beeline too.
pub fn assert_untouched(pid: u32, before: &Footprint) {
    assert!(
        until(PATIENCE, || altered_text(pid).is_empty()),
        "patched still: {:?}",
        altered_text(pid)
    );
    until(PATIENCE, || Footprint::of(pid) == *before);
    assert_eq!(
        Footprint::of(pid),
        *before,
        "left behind (left), before (right)"
    );
    let listed = Command::new(beeline())
        .arg("ps")
        .output()
        .expect("beeline runs");
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    let is_listed = text.split_whitespace().any(|word| word == pid.to_string());
    assert!(!is_listed, "beeline ps lists it: {text}");
}

/// Attaches a tool while all threads sleep, sees them work, and detaches it while they sleep; then
/// does it once more. Compares every call but those that `ignored` accepts.
fn tools_come_and_go(program: &Path, sleep: [i64; 6], ignored: impl Fn(u32) -> bool + Copy) {
    let _turn = Turn::take();
    let mut all = Vec::new();
    for engine in need!(engines()) {
        let mut workload = Workload::start_command(plain(program)());
        let pid = workload.pid();
        wait_asleep(pid, &sleep);
        let before = Footprint::of(pid);
        let mut seen = Vec::new();
        for _ in 0..2 {
            let mut traced = need!(Traced::attach(engine, workload, &every_call(engine)));
            assert_eq!(traced.workload.tell("wake"), "done wake", "{engine}");
            wait_asleep(pid, &sleep);
            assert_eq!(traced.workload.tell("wake"), "done wake", "{engine}");
            wait_asleep(pid, &sleep);
            let (left, lines) = traced.finish_tool();
            workload = left;
            seen.push(from_the_first_call(threads(&lines, ignored)));
            assert_untouched(pid, &before);
            assert_eq!(workload.tell("wake"), "done wake", "{engine}");
            wait_asleep(pid, &sleep);
        }
        workload.finish();
        all.push(seen);
    }
    if let [kernel, beeline] = all.as_slice() {
        assert_eq!(beeline, kernel, "beeline (left), the kernel (right)");
    }
}

/// Without the return from the call that a thread slept in when the tool attached: where the code
/// does not say which call it makes, only the kernel knows.
fn from_the_first_call(mut threads: Threads) -> Threads {
    for thread in &mut threads {
        if thread.first().is_some_and(|first| first.starts_with('-')) {
            thread.remove(0);
        }
    }
    threads.sort();
    threads
}

#[test]
fn sleepers_of_glibc_are_woken_and_let_go() {
    let scratch = Scratch::new();
    tools_come_and_go(&scratch.build("calls/asleep.c"), WITH_GLIBC, |_| false);
}

#[test]
fn sleepers_of_a_static_program_are_woken_and_let_go() {
    let scratch = Scratch::new();
    let program = scratch.build_with("calls/asleep.c", &["-static"]);
    tools_come_and_go(&program, WITH_GLIBC, |_| false);
}

#[test]
fn sleepers_of_musl_are_woken_and_let_go() {
    let musl = need!(find_program("musl-gcc"));
    let scratch = Scratch::new();
    let program = scratch.build_by(&musl, "calls/asleep.c", &["-static"]);
    // Its calls that a cancelled thread ends cannot be hooked: it compares their addresses.
    let seen = [libc::SYS_getppid, libc::SYS_tkill].map(|number| number as u32);
    tools_come_and_go(&program, WITH_MUSL, move |number| !seen.contains(&number));
}

#[test]
fn sleepers_of_go_are_woken_and_let_go() {
    let go = need!(find_program("go"));
    let scratch = Scratch::new();
    need!(tools_come_and_go_in_go(
        &scratch.build_go(&go, "calls/asleep.go")
    ));
}

/// Only the table of Go's own runtime gives the addresses of its functions.
#[test]
fn sleepers_of_stripped_go_are_woken_and_let_go() {
    let go = need!(find_program("go"));
    let scratch = Scratch::new();
    let program = scratch.build_go(&go, "calls/asleep.go");
    let stripped = Command::new("strip").arg("-s").arg(&program).status();
    assert!(stripped.expect("strip").success());
    need!(tools_come_and_go_in_go(&program));
}

fn tools_come_and_go_in_go(program: &Path) -> Result<(), String> {
    let _turn = Turn::take();
    for engine in engines()? {
        let mut workload = Workload::start_command(plain(program)());
        let pid = workload.pid();
        for _ in 0..3 {
            let four_read = || {
                let reading = |number: &&i64| **number == libc::SYS_read;
                sleeping(pid).iter().filter(reading).count() >= 4
            };
            assert!(until(PATIENCE, four_read), "{:?}", sleeping(pid));
            let mut traced = Traced::attach(engine, workload, &every_call(engine))?;
            for _ in 0..5 {
                assert_eq!(traced.workload.tell("wake"), "done wake", "{engine}");
            }
            let (left, lines) = traced.finish_tool();
            workload = left;
            let asked = lines
                .iter()
                .filter(|line| line.starts_with("E ") && line.ends_with("+110"))
                .count();
            assert_eq!(asked, 5 * 4 * 3, "{engine}: calls of getppid");
            assert_eq!(altered_text(pid), [""; 0], "{engine}");
            assert_eq!(workload.tell("wake"), "done wake", "{engine}");
        }
        workload.finish();
    }
    Ok(())
}

//! Virtual CPUs that follow a guest's threads: pinned while the threads are bound, and free again
//! however that ends.

use crate::proxy::Proxy;
use crate::*;
use beeline_e2e::{GUEST_PATIENCE, Job, PATIENCE, Tool, beeline, beeline_wanted, until};
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

const AFFINITY: &str = "/test/affinity";
/// The most looks in a second; see the crate.
const LOOKS: u32 = 50;

/// A guest with two CPUs, and the program that binds itself to them.
fn boot_two() -> Result<Guest, String> {
    let scratch = Scratch::new();
    let mut files = vec![(scratch.build("affinity.c"), AFFINITY.to_owned())];
    files.extend(proxy::built().map(|file| (file, proxy::PLACE.to_owned())));
    Guest::boot(&Options {
        smp: 2,
        files,
        ..Options::default()
    })
}

/// Returns whether this machine can show it. It needs two CPUs to tell "pinned" from "free".
fn two_cpus() -> Result<(), String> {
    match allowed_of("self").as_deref() {
        Some("0-1") => Ok(()),
        other => Err(format!(
            "this runs on CPUs {other:?}, and the test is for 0-1"
        )),
    }
}

/// Returns `Cpus_allowed_list` of a thread or process.
fn allowed_of(thread: &str) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    let mut lines = status.lines();
    let list = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    Some(list.trim().to_owned())
}

/// Returns the CPUs of QEMU's threads that may not run on both.
fn pinned(guest: &Guest) -> Vec<String> {
    let threads = fs::read_dir(format!("/proc/{}/task", guest.pid())).expect("QEMU runs");
    let threads = threads.flatten();
    let lists = threads.filter_map(|thread| {
        let thread = thread.file_name().into_string().ok()?;
        allowed_of(&format!("{}/task/{thread}", guest.pid()))
    });
    let mut pinned: Vec<String> = lists.filter(|list| list != "0-1").collect();
    pinned.sort();
    pinned
}

fn becomes(guest: &Guest, expected: &[&str], what: &str, tool: &Tool) {
    let reached = until(PATIENCE, || pinned(guest) == expected);
    let is = pinned(guest);
    assert!(
        reached,
        "{what}: {is:?} in place of {expected:?}; {}",
        tool.words("said")
    );
}

fn start(guest: &Guest, proxy: &Proxy, words: &[&str]) -> Tool {
    let mut command = Command::new(beeline());
    command.args(["vcpu-pin", "--guest", proxy.address(), "--qmp"]);
    command.arg(guest.qmp()).args(words);
    let tool = Tool::start(command);
    let ready = |line: &str| line.contains("ready to pin") || line.contains("watching");
    let found = tool.stderr.wait_for(0, PATIENCE, ready);
    assert!(found.is_some(), "{}", tool.words("is not ready"));
    tool
}

fn bind<'a>(guest: &'a Guest, words: &str) -> Job<'a> {
    let job = guest.start(&format!("{AFFINITY} {words}"));
    job.wait_for_line(|line| line == "bound");
    job
}

#[test]
fn virtual_cpus_are_pinned_where_threads_are_bound_and_free_again() {
    need!(beeline_wanted());
    need!(two_cpus());
    let guest = need!(boot_two());
    let proxy = Proxy::start(&guest);
    assert_eq!(pinned(&guest), [""; 0]);

    // Unbound by the thread itself; by the thread's end; and two at a time.
    let tool = start(&guest, &proxy, &["--cpus", "1,0"]);
    becomes(&guest, &[], "nobody is bound", &tool);
    let job = bind(&guest, "0");
    becomes(
        &guest,
        &["1"],
        "bound to CPU 0, the first of the list",
        &tool,
    );
    job.signal("USR1");
    job.wait_for_line(|line| line == "free");
    becomes(&guest, &[], "free again", &tool);
    job.signal("KILL");
    job.wait();
    let (first, second) = (bind(&guest, "1"), bind(&guest, "0"));
    becomes(&guest, &["0", "1"], "two are bound", &tool);
    first.signal("KILL");
    first.wait();
    becomes(&guest, &["1"], "one has ended", &tool);
    second.signal("KILL");
    second.wait();
    becomes(&guest, &[], "both have ended", &tool);
    // A second thread that becomes the first one by running another program.
    let job = bind(&guest, "0 exec");
    becomes(&guest, &["1"], "the second thread is bound", &tool);
    job.signal("KILL");
    job.wait();
    becomes(&guest, &[], "what it became has ended", &tool);

    // Unbound by the end of the tool, with the thread still bound; the next tool finds nothing, as
    // it came later.
    let job = bind(&guest, "1");
    becomes(
        &guest,
        &["0"],
        "bound to CPU 1, the second of the list",
        &tool,
    );
    tool.signal_group(libc::SIGTERM);
    let ended = tool.wait();
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    assert_eq!(pinned(&guest), [""; 0], "the tool has ended");
    drop(job);

    // Fewer CPUs than the guest has; and none.
    let tool = start(&guest, &proxy, &["--cpus", "1"]);
    let job = bind(&guest, "1");
    let said = tool
        .stderr
        .wait_for(0, PATIENCE, |line| line.contains("is bound to its CPU 1"));
    assert!(said.is_some(), "{}", tool.words("does not tell"));
    assert_eq!(pinned(&guest), [""; 0], "there is no CPU for it");
    let other = bind(&guest, "0");
    becomes(&guest, &["1"], "there is one for this", &tool);
    tool.interrupt();
    drop((job, other));
    let tool = start(&guest, &proxy, &["--policy", "deny"]);
    let job = bind(&guest, "0");
    let said = tool
        .stderr
        .wait_for(0, PATIENCE, |line| line.contains("is bound to its CPU 0"));
    assert!(said.is_some(), "{}", tool.words("does not tell"));
    assert_eq!(pinned(&guest), [""; 0], "it is denied");
    tool.interrupt();
    drop(job);
    floods(&guest, &proxy);
    is_rebooted(&guest, proxy);
}

/// A guest that changes its mind as often as it can costs the host only a limited amount of work.
fn floods(guest: &Guest, proxy: &Proxy) {
    let tool = start(guest, proxy, &[]);
    let began = Instant::now();
    let job = bind(guest, "0 loop");
    std::thread::sleep(Duration::from_secs(3));
    job.signal("KILL");
    job.wait();
    becomes(guest, &[], "the loop has ended", &tool);
    let said = tool.stderr.so_far();
    let changes = said
        .iter()
        .filter(|line| line.contains("virtual CPU 0 (thread"))
        .count();
    let most = LOOKS as usize * (began.elapsed().as_secs() as usize + 1);
    assert!(
        changes > 0 && changes <= most,
        "{changes} changes, of {most}"
    );
    let ended = tool.interrupt();
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
}

fn is_rebooted(guest: &Guest, proxy: Proxy) {
    let tool = start(guest, &proxy, &[]);
    let job = bind(guest, "0");
    becomes(guest, &["0"], "before the reboot", &tool);
    guest.reboot();
    let ended = tool.wait_at_most(GUEST_PATIENCE);
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert!(
        ended.stderr.join("\n").contains("the guest is lost"),
        "{ended:?}"
    );
    assert_eq!(pinned(guest), [""; 0], "after the reboot");
    proxy.forget();
    drop(job);
}

#[test]
fn cpus_that_there_are_not_are_refused() {
    need!(beeline_wanted());
    need!(two_cpus());
    let guest = need!(boot_two());
    let proxy = Proxy::start(&guest);
    let qmp = guest.qmp().display().to_string();
    for (words, expected) in [
        (["--qmp", &qmp, "--cpus", "0,1023"], "may not run on 1023"),
        (["--qmp", &qmp, "--cpus", "x"], "no list of CPUs"),
        (["--qmp", "/nonexistent", "--cpus", "0"], "-qmp unix:"),
    ] {
        let mut command = Command::new(beeline());
        command
            .args(["vcpu-pin", "--guest", proxy.address()])
            .args(words);
        let ended = Tool::start(command).wait();
        assert!(!ended.status.success(), "{ended:?}");
        assert!(ended.stderr.join("\n").contains(expected), "{ended:?}");
    }
}

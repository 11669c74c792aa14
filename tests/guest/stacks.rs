//! Stacks of the guest's processes have the names of their functions here as well, from the guest's
//! files.

use super::*;
use crate::place::{Output, Place, Setting};
use std::collections::BTreeSet;

/// The program's place in the guest. There is another program of this name on this machine, whose
/// functions would be wrong.
const PROGRAM: &str = "/bin/perl";
/// The functions on its stack, the innermost first.
const CALLS: [&str; 3] = ["innermost", "middle", "outer"];

/// Puts the program into the guest, and starts it.
fn start<'a>(guest: &'a Guest) -> Job<'a> {
    let scratch = Scratch::new();
    let program = std::fs::read(scratch.build("sleeps.c")).expect("it was built");
    assert!(
        std::path::Path::new(PROGRAM).exists(),
        "this machine has one too"
    );
    guest.put(&program, PROGRAM);
    guest.start(PROGRAM)
}

#[test]
fn user_stacks_have_the_names_of_the_guests_functions() {
    let guest = need!(shared());
    let setting = need!(Setting::new(&guest));
    let job = start(&guest);
    let pid = job.pid();
    let mut found = Vec::new();
    for &place in &setting.places {
        let output = setting.run(place, &["offcputime", "-u", "-p", &pid.to_string(), "1"]);
        assert!(are_calls(&output), "{place}: {output:?}");
        // But for the times, and for stacks of which there may be one more.
        let names = output.stdout.iter().map(|line| line.trim());
        let is_known = |name: &&str| CALLS.iter().any(|call| name.contains(call));
        found.push(
            names
                .filter(is_known)
                .map(str::to_owned)
                .collect::<BTreeSet<_>>(),
        );
    }
    if let [inside, host] = found.as_slice() {
        assert_eq!(host, inside, "by beeline (left) and inside (right)");
    }
    if setting.places.contains(&Place::Host) {
        let script = format!(
            "tracepoint:syscalls:sys_enter_nanosleep /pid == {pid}/ {{ @[ustack(4)] = count(); }} interval:ms:500 {{ exit(); }}"
        );
        let output = setting.run(Place::Host, &["bpftrace", "-e", &script]);
        assert!(are_calls(&output), "{output:?}");
        files_are_the_guests(&setting, pid);
    }
}

/// True if the calls are on it, one after the other.
fn are_calls(output: &Output) -> bool {
    let mut lines = output.stdout.iter();
    let mut calls = CALLS.into_iter();
    calls.all(|name| lines.any(|line| line.contains(name)))
}

/// The tool finds in `/proc/PID` the files that the process runs, and nothing else.
fn files_are_the_guests(setting: &Setting, pid: u32) {
    let script = format!(
        "cd / && p=/proc/{pid} && readlink $p/exe $p/root && sha256sum <$p/exe && sha256sum <$p/root{PROGRAM} && \
         sha256sum <$p/root$p/root{PROGRAM}; cat $p/root/etc/inittab $p/root$p/maps"
    );
    let output = setting.run(Place::Host, &["sh", "-c", &script]);
    let sum = setting.guest.check(&format!("sha256sum <{PROGRAM}"));
    let sum = sum.trim_end();
    let exe = format!("/proc/{pid}/root{PROGRAM}");
    assert_eq!(output.stdout, [&exe, "/", sum, sum, sum], "{output:?}");
    // The list of functions that a process compiles itself.
    let list = format!("/tmp/perf-{pid}.map");
    setting.guest.put(b"7f0000000000 10 compiled\n", &list);
    let path = format!("/proc/{pid}/root{list}");
    let listed = setting.run(Place::Host, &["cat", &path]);
    assert_eq!(listed.stdout, ["7f0000000000 10 compiled"], "{listed:?}");
    let missing = output
        .stderr
        .iter()
        .filter(|line| line.contains("No such file"));
    assert_eq!(missing.count(), 2, "{output:?}");
}

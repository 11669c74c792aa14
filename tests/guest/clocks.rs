//! The clocks of a tool on this machine agree with those that its programs read in the guest,
//! whenever the guest has booted.

use super::*;
use crate::clockwork::Clockwork;
use beeline_e2e::{Ended, beeline_wanted, find_program};
use std::path::Path;
use std::time::Duration;

/// Debian's user "nobody".
const NOBODY: u32 = 65534;
/// The most by which two readings of one clock may differ on a busy machine, in nanoseconds.
const CLOSE: u64 = 1_000_000_000;

/// Returns the numbers behind a word at a line's beginning.
fn numbers(ended: &Ended, word: &str) -> Vec<u64> {
    let line = ended.stdout.iter().find(|line| line.starts_with(word));
    let line = line.unwrap_or_else(|| panic!("no {word}: {ended:?}"));
    let words = line.split_whitespace().skip(1);
    words.map(|word| word.parse().expect("a number")).collect()
}

#[test]
fn a_tools_clocks_are_those_of_a_guest_of_any_age() {
    const HOUR: i64 = 3_600_000_000_000;
    need!(beeline_wanted());
    let scratch = Scratch::new();
    let program = scratch.build("clocks.c");
    // A clock cannot be negative; this machine has been up for longer than that.
    let ages = [-10_000_000_000, 30 * HOUR];
    for (age, user) in [(ages[0], None), (ages[1], None), (ages[1], Some(NOBODY))] {
        let guest = Clockwork::start(age);
        let before = guest.read();
        let ended = guest.run(user, &scratch, &[], &[&program, &program]);
        let after = guest.read();
        assert!(ended.status.success(), "{age} {user:?}: {ended:?}");
        for (name, before, after) in [
            ("monotonic", before.monotonic, after.monotonic),
            ("raw", before.monotonic, after.monotonic),
            ("coarse", before.monotonic, after.monotonic),
            ("boottime", before.boottime, after.boottime),
            ("realtime", before.realtime as u64, after.realtime as u64),
        ] {
            // The raw clock of a machine that has run for long has drifted from the other.
            let close = if name == "raw" { 100 * CLOSE } else { CLOSE };
            for shown in numbers(&ended, name) {
                assert!(
                    (before - close..after + close).contains(&shown),
                    "{age} {user:?}: {name} is {shown}, not from {before} to {after}"
                );
            }
        }
        let user = u64::from(user.unwrap_or(0));
        assert_eq!(numbers(&ended, "user"), [user, user]);
    }
}

#[test]
fn a_guest_that_stopped_for_a_while_is_told_of_once() {
    need!(beeline_wanted());
    let scratch = Scratch::new();
    let guest = Clockwork::start(0);
    let sleep = need!(find_program("sleep"));
    let ended = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(500));
            guest.grow(-7_000_000_000);
        });
        guest.run(None, &scratch, &[], &[&sleep, Path::new("3")])
    });
    let told = |line: &&String| line.contains("14 s behind");
    assert_eq!(ended.stderr.iter().filter(told).count(), 1, "{ended:?}");
}

/// In a real guest: programs read its clock, and bpftrace its own.
#[test]
fn bpftrace_computes_times_from_its_clock_and_the_guests() {
    need!(beeline_wanted());
    let guest = need!(shared());
    let setting = need!(place::Setting::new(&guest));
    let host = setting
        .places
        .iter()
        .find(|it| **it != place::Place::Inside);
    let host = *need!(host.ok_or("only the kernel is asked for".to_owned()));
    let text = "kprobe:ksys_read /comm == \"dd\"/ { \
                printf(\"at %s %llu\\n\", strftime(\"%s\", nsecs), elapsed / 1000000000); }";
    let tool = setting.bpftrace(host, text);
    let now = || {
        let since = std::time::SystemTime::UNIX_EPOCH.elapsed();
        since.expect("it is later than 1970").as_secs()
    };
    let before = now();
    guest.check("dd if=/dev/zero of=/dev/null bs=1 count=1 2>/dev/null");
    tool.settle();
    let output = tool.interrupt();
    let after = now();
    let line = output.stdout.iter().find(|line| line.starts_with("at "));
    let line = line.unwrap_or_else(|| panic!("nothing was read: {output:?}"));
    let times: Vec<i64> = line
        .split_whitespace()
        .skip(1)
        .map(|word| word.parse().expect("a number"))
        .collect();
    let [at, elapsed] = times[..] else {
        panic!("{line}");
    };
    let at = at as u64;
    assert!((before - 1..=after + 1).contains(&at), "{before} {line}");
    assert!((0..120).contains(&elapsed), "{line}");
}

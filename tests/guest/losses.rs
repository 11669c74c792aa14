//! A user is told which guest a tool is connected to, and a tool ends that has lost its guest,
//! whether it wants to or not.

use super::*;
use crate::clockwork::Clockwork;
use beeline_e2e::{beeline_wanted, find_program};
use std::path::Path;
use std::time::Duration;

/// A tool that does not end when it is told to.
const STUBBORN: &str = "trap '' TERM; while :; do sleep 0.1; done";

#[test]
fn a_stubborn_tool_ends_with_a_silent_guest() {
    need!(beeline_wanted());
    let scratch = Scratch::new();
    let guest = Clockwork::start(0);
    let shell = need!(find_program("sh"));
    let ended = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(300));
            guest.fall_silent();
        });
        let tool = [&shell, Path::new("-c"), Path::new(STUBBORN)];
        guest.run(None, &scratch, &["--guest-timeout", "2"], &tool)
    });
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    let said = |words: &str| {
        ended
            .stderr
            .iter()
            .filter(|line| line.contains(words))
            .count()
    };
    assert_eq!(said("nothing has been heard for 2 s"), 1, "{ended:?}");
    assert_eq!(
        said("has not ended within 3 s, and is killed"),
        1,
        "{ended:?}"
    );
    // One line, by whichever name the guest has.
    let line = format!(
        "beeline: guest clock\\u001b[2Jwork\\nbeeline:  (Linux 1.2.3), policy testing, by {}",
        guest.address()
    );
    assert_eq!(ended.stderr[0], line, "{ended:?}");
}

#[test]
fn options_that_make_no_sense_are_refused() {
    need!(beeline_wanted());
    let scratch = Scratch::new();
    let guest = Clockwork::start(0);
    let tool = need!(find_program("true"));
    for seconds in ["0", "1", "601", "x"] {
        let ended = guest.run(None, &scratch, &["--guest-timeout", seconds], &[&tool]);
        assert_eq!(ended.status.code(), Some(2), "{ended:?}");
        let said = ended.stderr.join("\n");
        assert!(said.contains("--guest-timeout"), "{said}");
    }
    // Neither would be in the guest.
    for words in [["-c", "/bin/true"], ["-p", "1"]] {
        let tool = ["bpftrace", words[0], words[1], "-e", "BEGIN { exit(); }"].map(Path::new);
        let ended = guest.run(None, &scratch, &[], &tool);
        assert_eq!(ended.status.code(), Some(2), "{ended:?}");
        assert!(
            ended.stderr.join("").contains("on this machine"),
            "{ended:?}"
        );
    }
}

//! A program that runs in a guest while a test does something else.

use super::{Answer, GUEST_PATIENCE, Guest};
use crate::until;
use std::time::Duration;

/// A running program in a guest.
pub struct Job<'a> {
    guest: &'a Guest,
    id: u64,
    command: String,
}

impl Job<'_> {
    pub(super) fn new<'a>(guest: &'a Guest, command: &str) -> Job<'a> {
        // In the shell's place, so that signals reach it.
        let id = guest.control.send(&format!("exec {command}"), &[]);
        Job {
            guest,
            id,
            command: command.to_owned(),
        }
    }

    /// The lines of its standard output so far.
    pub fn stdout(&self) -> Vec<String> {
        self.read("out")
    }

    fn read(&self, what: &str) -> Vec<String> {
        let text = self
            .guest
            .run(&format!("cat /run/jobs/{}.{what}", self.id))
            .stdout;
        text.lines().map(str::to_owned).collect()
    }

    /// Waits until it has printed a line that `wanted` accepts. Panics with its words if that does not come.
    pub fn wait_for_line(&self, wanted: impl Fn(&str) -> bool) {
        let found = until(GUEST_PATIENCE, || {
            self.stdout().iter().any(|line| wanted(line))
        });
        assert!(
            found,
            "in the guest: {} did not print what was expected\n--- stdout\n{}\n--- stderr\n{}",
            self.command,
            self.stdout().join("\n"),
            self.read("err").join("\n")
        );
    }

    /// Sends it a signal by its name without SIG.
    pub fn signal(&self, name: &str) {
        let id = self.id;
        self.guest
            .check(&format!("kill -{name} $(cat /run/jobs/{id}.pid)"));
    }

    /// Interrupts it as Ctrl-C does and waits for its end.
    pub fn interrupt(self) -> Answer {
        self.signal("INT");
        self.wait()
    }

    /// Waits for its end. Panics if that does not come in [`GUEST_PATIENCE`].
    pub fn wait(self) -> Answer {
        self.wait_at_most(GUEST_PATIENCE)
    }

    /// As [`Job::wait`], with another patience.
    pub fn wait_at_most(self, patience: Duration) -> Answer {
        self.guest.answer(self.id, &self.command, patience)
    }
}

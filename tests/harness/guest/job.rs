//! A program that runs in a guest while a test does something else.

use super::{Answer, GUEST_PATIENCE, Guest};
use crate::until;
use std::time::Duration;

/// A running program in a guest. It is killed when dropped.
pub struct Job<'a> {
    guest: &'a Guest,
    id: u64,
    command: String,
    has_ended: bool,
}

impl Job<'_> {
    pub(super) fn new<'a>(guest: &'a Guest, command: &str) -> Job<'a> {
        // The program replaces the shell, so that signals reach it.
        let id = guest.control.send(&format!("exec {command}"), &[]);
        Job {
            guest,
            id,
            command: command.to_owned(),
            has_ended: false,
        }
    }

    /// Returns the lines of its standard output so far.
    pub fn stdout(&self) -> Vec<String> {
        self.read("out")
    }

    /// Returns the lines of its standard error so far.
    pub fn stderr(&self) -> Vec<String> {
        self.read("err")
    }

    fn read(&self, what: &str) -> Vec<String> {
        let text = self
            .guest
            .run(&format!("tail -c +1 /run/jobs/{}.{what}", self.id))
            .stdout;
        text.lines().map(str::to_owned).collect()
    }

    /// Waits until it has printed a line that `wanted` accepts.
    ///
    /// Panics with its output if it does not.
    pub fn wait_for_line(&self, wanted: impl Fn(&str) -> bool) {
        let found = until(GUEST_PATIENCE, || {
            self.stdout().iter().any(|line| wanted(line))
        });
        assert!(
            found,
            "in the guest: {} did not print what was expected\n--- stdout\n{}\n--- stderr\n{}",
            self.command,
            self.stdout().join("\n"),
            self.stderr().join("\n")
        );
    }

    /// Sends it a signal by its name without SIG.
    pub fn signal(&self, name: &str) {
        self.guest.check(&self.kill(name));
    }

    /// Returns its process id in the guest.
    pub fn pid(&self) -> u32 {
        let pid = self.guest.check(&format!("cat /run/jobs/{}.pid", self.id));
        pid.trim().parse().expect("a number")
    }

    fn kill(&self, name: &str) -> String {
        let id = self.id;
        format!("read -r pid </run/jobs/{id}.pid && kill -{name} $pid")
    }

    /// Interrupts it like Ctrl-C and waits for its end.
    pub fn interrupt(self) -> Answer {
        self.signal("INT");
        self.wait()
    }

    /// Waits for its end. Panics if that takes longer than [`GUEST_PATIENCE`].
    pub fn wait(self) -> Answer {
        self.wait_at_most(GUEST_PATIENCE)
    }

    /// Waits like [`Job::wait`], with another patience.
    pub fn wait_at_most(mut self, patience: Duration) -> Answer {
        let answer = self.guest.answer(self.id, &self.command, patience);
        self.has_ended = true;
        answer
    }
}

impl Drop for Job<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            // Does not wait, because the guest may be gone.
            self.guest.control.send(&self.kill("KILL"), &[]);
        }
    }
}

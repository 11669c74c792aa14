//! A target that does a known amount of work on request.

use crate::{Lines, PATIENCE, until};
use std::io::Write;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::Duration;

/// The exit code of every workload that ran unharmed.
pub const EXIT_CODE: i32 = 7;

/// A program that says "ready", works for each line it is sent, and answers.
///
/// It is killed when dropped.
pub struct Workload {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: Lines,
    stderr: Lines,
    seen: usize,
}

impl Workload {
    /// Starts a built program and waits for its "ready".
    pub fn start(program: &Path) -> Workload {
        Workload::start_command(Command::new(program))
    }

    /// Starts any command that speaks the protocol and waits for its "ready".
    pub fn start_command(mut command: Command) -> Workload {
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        let mut workload = Workload {
            stdin: child.stdin.take(),
            stdout: Lines::collect(child.stdout.take().expect("stdout is piped")),
            stderr: Lines::collect(child.stderr.take().expect("stderr is piped")),
            seen: 0,
            child,
        };
        assert_eq!(workload.answer(), "ready", "{command:?}");
        workload
    }

    /// Returns its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Lets it work one round; returns its answer, which holds a checksum of all results.
    pub fn go(&mut self) -> String {
        self.tell("go")
    }

    /// Sends a line and waits for the answer. Panics if there is none.
    pub fn tell(&mut self, line: &str) -> String {
        self.ask(line).unwrap_or_else(|why| panic!("{why}"))
    }

    /// Sends a line; the answer is the next line of output.
    pub fn send(&mut self, line: &str) {
        self.write(line).unwrap_or_else(|why| panic!("{why}"));
    }

    /// Asks like [`Workload::tell`].
    ///
    /// # Errors
    /// Fails if there is no answer: the text describes the target's fate.
    pub fn ask(&mut self, line: &str) -> Result<String, String> {
        self.write(line)?;
        self.next_line()
    }

    fn write(&mut self, line: &str) -> Result<(), String> {
        let stdin = self.stdin.as_mut().expect("open until finish");
        // In one piece: some targets take the result of one read for a line.
        if let Err(error) = stdin.write_all(format!("{line}\n").as_bytes()) {
            return Err(format!(
                "the target died: {error}; {:?}",
                self.child.try_wait()
            ));
        }
        Ok(())
    }

    /// Returns its next line of output. Panics if there is none.
    pub fn answer(&mut self) -> String {
        self.next_line().unwrap_or_else(|why| panic!("{why}"))
    }

    fn next_line(&mut self) -> Result<String, String> {
        let Some((seen, line)) = self.stdout.wait_for(self.seen, PATIENCE, |_| true) else {
            // Output from before its death may not have been read yet.
            let said = self.stderr.to_the_end(Duration::from_secs(2));
            let state = self.child.try_wait();
            return Err(format!(
                "the target does not answer: {state:?}; it wrote {said:?}"
            ));
        };
        self.seen = seen;
        Ok(line)
    }

    /// Lets it end by itself, and asserts that it returns its own exit code and has printed nothing
    /// but its own output.
    pub fn finish(mut self) {
        let status = self.wait();
        assert_eq!(
            status.code(),
            Some(EXIT_CODE),
            "the target ended with {status}"
        );
        let stdout = self.stdout.to_the_end(PATIENCE);
        assert_eq!(
            stdout.len(),
            self.seen,
            "strange lines on the target's stdout: {stdout:?}"
        );
        let stderr = self.stderr.to_the_end(PATIENCE);
        assert!(
            stderr.is_empty(),
            "strange lines on the target's stderr: {stderr:?}"
        );
    }

    /// Ends its input and waits for its end, whatever that is. Panics if it does not end.
    pub fn wait(&mut self) -> ExitStatus {
        drop(self.stdin.take());
        let mut status = None;
        until(PATIENCE, || {
            status = self.child.try_wait().expect("cannot wait for the target");
            status.is_some()
        });
        status.unwrap_or_else(|| {
            panic!(
                "the target {} does not end; it wrote {:?}",
                self.pid(),
                self.stderr.so_far()
            )
        })
    }

    /// Kills it and leaves it unwaited-for: a zombie, until dropped.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
    }
}

impl Drop for Workload {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

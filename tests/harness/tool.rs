//! A running eBPF tool.

use crate::{Lines, PATIENCE, map_counts, members_of_group, send, until};
use std::fs::File;
use std::io::Write;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

/// The text that the addition of [`Tool::bpftrace`] to a script prints every 50 ms.
///
/// bpftrace attaches probes in the order of the script and the ticking one comes last, so the first
/// tick says that all are attached.
pub const TICK: &str = "beeline-tick";

/// A tool with its own process group, as a shell would start it.
///
/// When dropped, it is killed with all processes that it started.
pub struct Tool {
    child: Child,
    /// Its standard output.
    pub stdout: Lines,
    /// Its standard error.
    pub stderr: Lines,
    command: String,
}

/// A tool that has ended.
#[derive(Debug)]
pub struct Ended {
    /// The exit status.
    pub status: ExitStatus,
    /// The lines of its standard output.
    pub stdout: Vec<String>,
    /// The lines of its standard error.
    pub stderr: Vec<String>,
}

impl Tool {
    /// Starts `command` with piped input and output.
    ///
    /// Panics if it cannot be started, because then a test's setup is broken.
    pub fn start(mut command: Command) -> Tool {
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Tool::spawn(command, None)
    }

    fn spawn(mut command: Command, screen: Option<File>) -> Tool {
        command.process_group(0);
        let mut child = command
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        let described = format!("{command:?}");
        drop(command); // and with it our end of a terminal, or its output would have no end
        let stdout = match screen {
            Some(screen) => Lines::collect(screen),
            None => Lines::collect(child.stdout.take().expect("stdout is piped")),
        };
        let stderr = Lines::collect(child.stderr.take().expect("stderr is piped"));
        Tool {
            child,
            stdout,
            stderr,
            command: described,
        }
    }

    /// Starts it like [`Tool::start`], with a terminal as standard output: most tools hold back
    /// output to a pipe.
    pub fn start_on_terminal(mut command: Command) -> Tool {
        let (terminal, screen) = open_terminal();
        command
            .stdin(Stdio::piped())
            .stdout(terminal)
            .stderr(Stdio::piped());
        Tool::spawn(command, Some(screen))
    }

    /// Starts `command`, a bpftrace without its program, with `script` and the ticking probe at its
    /// end.
    pub fn bpftrace(mut command: Command, script: &str) -> Tool {
        command.arg("-e");
        command.arg(format!(
            "{script} interval:ms:50 {{ printf(\"{TICK}\\n\") }}"
        ));
        Tool::start(command)
    }

    /// Waits until the probes of [`Tool::bpftrace`] are attached.
    ///
    /// Panics with the tool's output if they are not.
    pub fn wait_attached(&self) {
        self.wait_for_line(|line| line == TICK);
    }

    /// Waits for a line of output that `wanted` accepts.
    ///
    /// Panics with the tool's output if there is none.
    pub fn wait_for_line(&self, wanted: impl Fn(&str) -> bool) -> String {
        self.expect_line(wanted)
            .unwrap_or_else(|words| panic!("{words}"))
    }

    /// Waits like [`Tool::wait_for_line`].
    ///
    /// # Errors
    /// Fails if there is no such line: the text is the tool's output.
    pub fn expect_line(&self, wanted: impl Fn(&str) -> bool) -> Result<String, String> {
        let found = self.stdout.wait_for(0, PATIENCE, wanted);
        found
            .map(|(_, line)| line)
            .ok_or_else(|| self.words("did not print what was expected"))
    }

    /// Waits like [`Tool::wait_for_line`], for a line on its standard error.
    pub fn wait_to_be_told(&self, wanted: impl Fn(&str) -> bool) -> String {
        let found = self.stderr.wait_for(0, PATIENCE, wanted);
        found
            .map(|(_, line)| line)
            .unwrap_or_else(|| panic!("{}", self.words("did not say what was expected")))
    }

    /// Waits for two more ticks: events in the target before now have been printed after them.
    pub fn settle(&self) {
        let mut seen = self.stdout.so_far().len();
        for _ in 0..2 {
            if let Some((at, _)) = self.stdout.wait_for(seen, PATIENCE, |line| line == TICK) {
                seen = at;
            }
        }
    }

    /// Returns the id of the process that was started (Beeline's own, if Beeline runs the tool).
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns every process of the tool's group: itself, and all that it started, but for the one
    /// by which Beeline tells which signals were for the whole group.
    pub fn processes(&self) -> Vec<u32> {
        let mut members = members_of_group(self.pid());
        members.retain(|pid| {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
            name.is_ok_and(|name| name.trim_end() != "group-signals")
        });
        members
    }

    /// Ends it like Ctrl-C on a terminal, with a SIGINT to the whole group.
    ///
    /// Beeline passes on signals from processes, and not those from a terminal, so it gets none
    /// here: the tool would get two.
    pub fn interrupt(self) -> Ended {
        self.send_interrupt();
        self.wait()
    }

    /// Sends the signals of [`Tool::interrupt`], and does not wait.
    pub fn send_interrupt(&self) {
        let (leader, members) = (self.pid(), self.processes());
        let is_beeline = std::fs::read_to_string(format!("/proc/{leader}/comm"))
            .is_ok_and(|comm| comm.trim_end() == "beeline");
        let is_passed_by = |pid: u32| is_beeline && pid == leader && members.len() > 1;
        for pid in members.iter().filter(|pid| !is_passed_by(**pid)) {
            send(*pid, libc::SIGINT);
        }
    }

    /// Sends a signal to every process of the group.
    pub fn signal_group(&self, signal: i32) {
        // SAFETY: `kill` accesses no memory; the group is our own child's, which has not been
        // waited for.
        unsafe { libc::kill(-(self.pid() as i32), signal) };
    }

    /// Sends it a line. Panics if it does not read.
    pub fn send(&mut self, line: &str) {
        let stdin = self.child.stdin.as_mut().expect("open until its end");
        let sent = stdin.write_all(format!("{line}\n").as_bytes());
        sent.unwrap_or_else(|error| panic!("{}", self.words(&format!("does not read: {error}"))));
    }

    /// Waits for it to end by itself. Panics with its output if it does not.
    pub fn wait(self) -> Ended {
        self.wait_at_most(PATIENCE)
    }

    /// Waits like [`Tool::wait`], with another patience.
    pub fn wait_at_most(mut self, patience: Duration) -> Ended {
        drop(self.child.stdin.take());
        let mut status = None;
        until(patience, || {
            status = self.child.try_wait().expect("cannot wait for the tool");
            status.is_some()
        });
        let Some(status) = status else {
            panic!("{}", self.words("did not end"));
        };
        Ended {
            status,
            stdout: self.stdout.to_the_end(Duration::from_secs(5)),
            stderr: self.stderr.to_the_end(Duration::from_secs(5)),
        }
    }

    /// Returns the text for a failure: the command, the problem, and all output.
    pub fn words(&self, what: &str) -> String {
        let (stdout, stderr) = (
            self.stdout.so_far().join("\n"),
            self.stderr.so_far().join("\n"),
        );
        format!(
            "{} {what}\n--- stdout\n{stdout}\n--- stderr\n{stderr}",
            self.command
        )
    }
}

impl Ended {
    /// Returns the hits that ran no program, as Beeline reports them at the end.
    pub fn missed(&self) -> u64 {
        let missed = self.stderr.iter().find_map(|line| {
            let (before, _) = line.split_once(" probe hits ran no program")?;
            before.rsplit(' ').next()?.parse().ok()
        });
        missed.unwrap_or(0)
    }

    /// Asserts that the tool's maps count as much as they should, up to the hits that it reports as
    /// missed.
    pub fn assert_counted(&self, known: &[(&str, u64)]) {
        assert!(self.status.success(), "{self:?}");
        let counts = map_counts(&self.stdout);
        let short = known.iter().map(|&(key, wanted)| {
            let counted = counts.get(key).copied().unwrap_or(0);
            let short = wanted.checked_sub(counted);
            short.unwrap_or_else(|| panic!("{key}: {counted}, more than {wanted}"))
        });
        let (short, missed) = (short.sum::<u64>(), self.missed());
        assert!(short <= missed, "{short} short, {missed} missed: {self:?}");
    }
}

impl Drop for Tool {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            self.signal_group(libc::SIGKILL);
            let _ = self.child.wait();
        }
    }
}

/// Opens a new pseudo-terminal; returns the end to print to, and the end to read from.
fn open_terminal() -> (OwnedFd, File) {
    let (mut screen, mut terminal) = (-1, -1);
    let (name, mode, size) = (std::ptr::null_mut(), std::ptr::null(), std::ptr::null());
    // SAFETY: the two integers are live and writable, and null is allowed for the rest.
    let result = unsafe { libc::openpty(&mut screen, &mut terminal, name, mode, size) };
    assert_eq!(
        result,
        0,
        "no pseudo-terminal: {}",
        std::io::Error::last_os_error()
    );
    // SAFETY: openpty has returned two open descriptors that nothing else owns.
    unsafe {
        for fd in [screen, terminal] {
            libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC);
        }
        (OwnedFd::from_raw_fd(terminal), File::from_raw_fd(screen))
    }
}

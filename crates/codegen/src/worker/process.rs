//! The process behind a worker, and frames of bytes to it and back.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::wire::{HEADER, MAX_FRAME, frame_length};

/// A running compiler. Only this process has the other end of its standard input.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    input: ChildStdin,
    output: ChildStdout,
    /// The identity of the file that it runs, see [`super::Worker`].
    pub(super) identity: String,
}

/// The reasons why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("it cannot be started: {0}")]
    NotStarted(io::Error),
    #[error("it is stopped, as the session ends")]
    Stopped,
    #[error("it has died ({0}); start it by hand to see why")]
    Died(io::Error),
    #[error("it gave no answer in {0:?}")]
    TooSlow(Duration),
    #[error("it gave no answer before, and is not asked again")]
    GivenUp,
    #[error("it does not speak as it should; is it of another version than beeline?")]
    Nonsense,
}

impl Process {
    pub(super) fn start(path: &Path, identity: String) -> Result<Self, Failure> {
        let mut child = Command::new(path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Drops LLVM's messages about its own crashes.
            .stderr(Stdio::null())
            // Signals from the user's terminal are not for it.
            .process_group(0)
            .spawn()
            .map_err(Failure::NotStarted)?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Failure::Nonsense);
        };
        let process = Self {
            child,
            input,
            output,
            identity,
        };
        for end in [process.input.as_fd(), process.output.as_fd()] {
            rustix::io::ioctl_fionbio(end, true)
                .map_err(|error| Failure::NotStarted(error.into()))?;
        }
        Ok(process)
    }

    /// Returns a handle that names the process even when its number is another's.
    pub(super) fn handle(&self) -> Result<OwnedFd, Failure> {
        let pid = Pid::from_child(&self.child);
        pidfd_open(pid, PidfdFlags::empty()).map_err(|error| Failure::NotStarted(error.into()))
    }

    /// Sends a frame and waits for one.
    pub(super) fn exchange(
        &mut self,
        request: &[u8],
        patience: Duration,
    ) -> Result<Vec<u8>, Failure> {
        let deadline = Deadline {
            end: Instant::now() + patience,
            patience,
        };
        let length = u32::try_from(request.len()).map_err(|_| Failure::Nonsense)?;
        self.send(&length.to_le_bytes(), &deadline)?;
        self.send(request, &deadline)?;
        let mut header = [0; HEADER];
        self.receive(&mut header, &deadline)?;
        let length = frame_length(header).ok_or(Failure::Nonsense)?;
        let mut answer = vec![0; length.min(MAX_FRAME)];
        self.receive(&mut answer, &deadline)?;
        Ok(answer)
    }

    fn send(&mut self, mut bytes: &[u8], deadline: &Deadline) -> Result<(), Failure> {
        while !bytes.is_empty() {
            deadline.wait(&self.input, PollFlags::OUT)?;
            match self.input.write(bytes) {
                Ok(sent) => bytes = bytes.get(sent..).unwrap_or_default(),
                Err(error) => passing(error)?,
            }
        }
        Ok(())
    }

    fn receive(&mut self, mut bytes: &mut [u8], deadline: &Deadline) -> Result<(), Failure> {
        while !bytes.is_empty() {
            deadline.wait(&self.output, PollFlags::IN)?;
            match self.output.read(bytes) {
                Ok(0) => return Err(Failure::Died(ErrorKind::UnexpectedEof.into())),
                Ok(received) => bytes = bytes.get_mut(received..).unwrap_or_default(),
                Err(error) => passing(error)?,
            }
        }
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It keeps nothing, so nothing is lost; and one that hangs would not notice that its input
        // has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Passes errors of pipes on, except those after which one tries again.
fn passing(error: io::Error) -> Result<(), Failure> {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::Interrupted => Ok(()),
        _ => Err(Failure::Died(error)),
    }
}

struct Deadline {
    end: Instant,
    patience: Duration,
}

impl Deadline {
    fn wait(&self, end: impl AsFd, for_what: PollFlags) -> Result<(), Failure> {
        let left = self.end.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).map_err(|_| Failure::TooSlow(self.patience))?;
        match poll(&mut [PollFd::new(&end, for_what)], Some(&timeout)) {
            Ok(0) => Err(Failure::TooSlow(self.patience)),
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(Failure::Died(error.into())),
        }
    }
}

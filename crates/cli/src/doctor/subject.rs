//! Processes to try things on.

use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::sync::atomic::AtomicU64;

use rustix::process::Pid;

use super::child::{fork, wait_for};

/// A process that waits until this is dropped. It is a copy of this process, so what has an address
/// here has it there.
#[derive(Debug)]
pub struct Subject {
    pid: Pid,
    /// It waits for the end of this pipe.
    lifeline: Option<PipeWriter>,
    is_child: bool,
}

/// A word of each subject's memory.
static WORD: AtomicU64 = AtomicU64::new(FIRST);
/// The word's value in a new subject.
pub const FIRST: u64 = 0x6265_656c_696e_6531;

impl Subject {
    /// Starts a child of this process.
    ///
    /// # Errors
    ///
    /// Those of pipe(2) and fork(2).
    pub fn child() -> io::Result<Self> {
        let (waits, lifeline) = io::pipe()?;
        let pid = fork_waiting(&waits, &lifeline)?;
        Ok(Self {
            pid,
            lifeline: Some(lifeline),
            is_child: true,
        })
    }

    /// Starts a process of this user's that does not descend from this one, as its parent has
    /// ended.
    ///
    /// # Errors
    ///
    /// Those of pipe(2) and fork(2).
    pub fn stranger() -> io::Result<Self> {
        let (waits, lifeline) = io::pipe()?;
        let (mut told, mut tells) = io::pipe()?;
        let parent = fork(|| {
            let pid = fork_waiting(&waits, &lifeline).map_or(0, Pid::as_raw_pid);
            let _ = tells.write_all(&pid.to_ne_bytes());
        })?;
        let mut pid = [0; size_of::<i32>()];
        drop(tells);
        // The stranger has a copy of this end: what counts is what comes, not the pipe's end.
        let read = told.read_exact(&mut pid);
        wait_for(parent);
        read?;
        let pid = Pid::from_raw(i32::from_ne_bytes(pid));
        Ok(Self {
            pid: pid.ok_or(io::ErrorKind::WouldBlock)?,
            lifeline: Some(lifeline),
            is_child: false,
        })
    }

    /// Returns its number.
    pub fn pid(&self) -> i32 {
        self.pid.as_raw_pid()
    }

    /// Returns the address of a word in its memory, which holds [`FIRST`] and is not used.
    pub fn word() -> u64 {
        WORD.as_ptr().expose_provenance() as u64
    }

    /// Returns the address of code that it does not run again.
    pub fn code() -> u64 {
        let code: fn() -> io::Result<Self> = Self::stranger;
        code as usize as u64
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        drop(self.lifeline.take());
        if self.is_child {
            wait_for(self.pid);
        }
    }
}

/// Forks a process that waits for the end of a pipe.
fn fork_waiting(waits: &PipeReader, lifeline: &PipeWriter) -> io::Result<Pid> {
    use std::os::fd::AsRawFd;
    let (mut waits, lifeline) = (waits, lifeline.as_raw_fd());
    fork(|| {
        // SAFETY: this process is a copy that uses the descriptor no more, and ends by `_exit`,
        // which runs no destructor that would close it again.
        unsafe { libc::close(lifeline) };
        let _ = waits.read(&mut [0]);
    })
}

//! The number of threads of targets that Beeline holds, visible to a process beside it.
//!
//! A held thread goes on only when Beeline lets it, and a thread that makes an upcall waits for the
//! answer. If Beeline is stopped (by SIGSTOP, Ctrl-Z), the process beside it makes it go on once
//! more, until no thread is held or waits for it. Then Beeline stops itself.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use rustix::process::{
    Pid, PidfdFlags, Signal, getpid, getppid, kill_process, pidfd_open, pidfd_send_signal,
};

use crate::proc::state_and_flags;

/// See the module documentation. It lies in memory that both processes share, which is zero at
/// first.
#[repr(C)]
#[derive(Debug)]
pub struct Holds {
    /// Threads that are held, or will be as soon as they come to where they are expected.
    held: AtomicU32,
    /// Beeline's process id as it sees itself.
    pid: AtomicU32,
    /// 1: it has been stopped, and goes on only until no thread is held.
    stops: AtomicU32,
    /// 1: it has stopped itself, or is about to.
    rests: AtomicU32,
}

/// The interval between two looks at Beeline.
const LOOK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};
/// The offset of the counts in their file.
const OFFSET: u64 = 4096;

static ALONE: Holds = Holds {
    held: AtomicU32::new(0),
    pid: AtomicU32::new(0),
    stops: AtomicU32::new(0),
    rests: AtomicU32::new(0),
};
static SHARED: OnceLock<&Holds> = OnceLock::new();

/// Returns this process's own counts, which no other process sees before [`Holds::share`].
pub fn holds() -> &'static Holds {
    SHARED.get().copied().unwrap_or(&ALONE)
}

impl Holds {
    /// Counts what this process holds in a memory file from now on, behind its first page. Call it
    /// before anything is held.
    ///
    /// # Errors
    ///
    /// The system's error if the file cannot be enlarged or mapped.
    pub fn share(file: &File) -> io::Result<()> {
        let own = Self::map(file)?;
        own.pid.store(getpid().as_raw_pid().unsigned_abs(), SeqCst);
        // A second caller finds it done.
        let _ = SHARED.set(own);
        Ok(())
    }

    /// Watches the parent of this process, with counts in a file, until it ends: makes it go on
    /// when it is stopped.
    ///
    /// # Errors
    ///
    /// The system's error if the file cannot be enlarged or mapped, or the parent cannot be watched
    /// or signalled.
    pub fn watch(file: &File) -> io::Result<()> {
        let counts = Self::map(file)?;
        let parent = getppid().map_or(0, Pid::as_raw_pid);
        let Some(beeline) =
            Pid::from_raw(parent).filter(|_| counts.pid.load(SeqCst) == parent.unsigned_abs())
        else {
            return Ok(());
        };
        let process = pidfd_open(beeline, PidfdFlags::empty())?;
        let stat = File::open(format!("/proc/{parent}/stat"))?;
        while !has_ended(&process) {
            let is_due = || counts.rests.load(SeqCst) == 0 || counts.held.load(SeqCst) > 0;
            if !is_stopped(&stat) || !is_due() {
                continue;
            }
            counts.stops.store(1, SeqCst);
            // A SIGCONT from another process is noticed from now on.
            match is_stopped(&stat) {
                true => pidfd_send_signal(&process, Signal::CONT)?,
                false => counts.stops.store(0, SeqCst),
            }
        }
        Ok(())
    }

    /// True if this Beeline has been stopped. Then it must let go of all threads and hold no new
    /// one.
    pub fn are_to_end(&self) -> bool {
        self.stops.load(SeqCst) != 0 || self.rests()
    }

    /// True if it has stopped itself since, and nothing has made it go on yet.
    pub fn rests(&self) -> bool {
        self.rests.load(SeqCst) != 0
    }

    /// Stops this process if it has been stopped and holds no thread.
    pub fn stop_if_none(&self) {
        if self.stops.load(SeqCst) != 0 && self.held.load(SeqCst) == 0 {
            self.rests.store(1, SeqCst);
            self.stops.store(0, SeqCst);
            // A process may send itself anything. Its threads stop one after the other, this one
            // maybe when it has returned from here.
            let _ = kill_process(getpid(), Signal::STOP);
        }
    }

    /// Notes that this process should go on. A signal handler may call this.
    pub fn go_on(&self) {
        self.stops.store(0, SeqCst);
        self.rests.store(0, SeqCst);
    }

    fn map(file: &File) -> io::Result<&'static Self> {
        if file.metadata()?.len() < 2 * OFFSET {
            file.set_len(2 * OFFSET)?;
        }
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: this is fresh memory, which is never unmapped. All bytes are valid for it, and it
        // is only reached as atomics.
        unsafe {
            let place = mmap(
                std::ptr::null_mut(),
                OFFSET as usize,
                access,
                flags,
                file,
                OFFSET,
            )?;
            Ok(&*place.cast::<Self>())
        }
    }
}

fn has_ended(process: &OwnedFd) -> bool {
    poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&LOOK)) != Ok(0)
}

fn is_stopped(stat: &File) -> bool {
    let mut bytes = [0; 512];
    let len = stat.read_at(&mut bytes, 0).unwrap_or(0);
    state_and_flags(&bytes[..len]).is_some_and(|(state, _)| state == 'T')
}

/// One thread of a target that is held, or that may be at any moment, as long as this lives.
#[derive(Debug)]
pub struct Hold(&'static Holds);

impl Hold {
    /// Counts a thread.
    pub fn begin() -> Self {
        let holds = holds();
        holds.held.fetch_add(1, SeqCst);
        Self(holds)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.held.fetch_sub(1, SeqCst);
    }
}

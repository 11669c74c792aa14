//! The number of threads of targets that Beeline holds, where a process beside it sees it.
//!
//! A thread that is held goes on only when Beeline lets it, and one that asks something waits for the answer. Should Beeline be stopped
//! (by SIGSTOP, Ctrl-Z), the process beside it has it go on once more: until nobody is held or waits for it, and then it stops itself.

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

/// See the module. In memory that both processes have, which is zero at first.
#[repr(C)]
#[derive(Debug)]
pub struct Holds {
    /// Threads that are held, or will be as soon as they come to where they are expected.
    held: AtomicU32,
    /// Beeline, as it sees itself.
    pid: AtomicU32,
    /// 1: it has been stopped, and goes on only until nobody is held.
    stops: AtomicU32,
    /// 1: it has stopped itself, or is about to.
    rests: AtomicU32,
}

/// Between two looks at Beeline.
const LOOK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};
/// Where the counts are in their file.
const OFFSET: u64 = 4096;

static ALONE: Holds = Holds {
    held: AtomicU32::new(0),
    pid: AtomicU32::new(0),
    stops: AtomicU32::new(0),
    rests: AtomicU32::new(0),
};
static SHARED: OnceLock<&Holds> = OnceLock::new();

/// This process's own, seen by nobody else before [`Holds::share`].
pub fn holds() -> &'static Holds {
    SHARED.get().copied().unwrap_or(&ALONE)
}

impl Holds {
    /// From now on what this process holds is counted in a memory file, behind its first page. To be done before anything is held.
    pub fn share(file: &File) -> io::Result<()> {
        let own = Self::map(file)?;
        own.pid.store(getpid().as_raw_pid().unsigned_abs(), SeqCst);
        // Who comes second finds it done.
        let _ = SHARED.set(own);
        Ok(())
    }

    /// Until the parent of this process ends, whose counts are in a file: has it go on when it is stopped.
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
            // If somebody else has it go on from now on, it is told.
            match is_stopped(&stat) {
                true => pidfd_send_signal(&process, Signal::CONT)?,
                false => counts.stops.store(0, SeqCst),
            }
        }
        Ok(())
    }

    /// Has this Beeline been stopped? Then it is to let go of all, and hold nobody new.
    pub fn are_to_end(&self) -> bool {
        self.stops.load(SeqCst) != 0 || self.rests()
    }

    /// Has it stopped itself since, and nobody has had it go on yet?
    pub fn rests(&self) -> bool {
        self.rests.load(SeqCst) != 0
    }

    /// Stops this process if it has been stopped and holds nobody.
    pub fn stop_if_none(&self) {
        if self.stops.load(SeqCst) != 0 && self.held.load(SeqCst) == 0 {
            self.rests.store(1, SeqCst);
            self.stops.store(0, SeqCst);
            // We may send ourselves anything. Our threads stop one after the other, this one maybe when it has returned from here.
            let _ = kill_process(getpid(), Signal::STOP);
        }
    }

    /// Somebody wants this process to go on. A signal handler may call this.
    pub fn go_on(&self) {
        self.stops.store(0, SeqCst);
        self.rests.store(0, SeqCst);
    }

    fn map(file: &File) -> io::Result<&'static Self> {
        if file.metadata()?.len() < 2 * OFFSET {
            file.set_len(2 * OFFSET)?;
        }
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: fresh memory, which is never unmapped. All bytes are good for it, and it is only reached as atomics.
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
    /// Counts it.
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

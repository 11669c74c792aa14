//! A process of Beeline's process group that does nothing but note the signals it gets: each of them
//! was for the whole group.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use beeline_inject::procfs::Stat;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

/// More than the greatest number of a signal that ends a session.
const NUMBERS: usize = 32;

/// The time at which each signal last came, by its number; 0: never.
type Times = [AtomicU64; NUMBERS];

/// The process and what it notes. It ends with Beeline at the latest.
#[derive(Debug)]
pub struct Sentinel {
    pid: libc::pid_t,
    times: &'static Times,
}

impl Sentinel {
    /// Starts it; returns `None` if the machine is short of something. Each of the signals must have
    /// a handler here: ignored ones would not come to it.
    pub fn start(signals: &[i32]) -> Option<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
        let page = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                size_of::<Times>(),
                access,
                MapFlags::SHARED,
            )
        };
        // SAFETY: the mapping is zeroed, aligned, as long as needed, and stays.
        let times = unsafe { &*page.ok()?.cast::<Times>() };
        let parent = std::process::id();
        let arguments = Stat::of(parent as i32).and_then(|stat| stat.arguments());
        // SAFETY: sets consist of integers and are initialized by `sigemptyset`. The child of `fork`
        // only makes system calls and stores into the mapping, so it needs nothing that other
        // threads may have held.
        unsafe {
            let mut wanted: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut wanted);
            for signal in signals {
                libc::sigaddset(&mut wanted, *signal);
            }
            let mut before: libc::sigset_t = std::mem::zeroed();
            libc::sigprocmask(libc::SIG_BLOCK, &wanted, &mut before);
            let child = libc::fork();
            if child == 0 {
                forget_name(arguments);
                watch(&wanted, times, parent);
            }
            libc::sigprocmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
            (child > 0).then_some(Self { pid: child, times })
        }
    }

    /// Ends it, and leaves nothing of it behind.
    pub fn end(&self) {
        // SAFETY: plain system calls; the process is our own child and has not been waited for.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, std::ptr::null_mut(), 0);
        }
    }

    /// Returns the time at which a signal last came to it, as [`now`] counts; 0: never.
    pub fn seen(&self, signal: u64) -> u64 {
        let time = usize::try_from(signal)
            .ok()
            .and_then(|number| self.times.get(number));
        time.map_or(0, |time| time.load(Ordering::Acquire))
    }
}

/// Makes this process look like none of Beeline's to `pkill beeline` and its like: a signal that
/// comes to it by its name was not for the whole group.
///
/// # Safety
///
/// Only in a child of `fork`, with where the parent has its arguments.
unsafe fn forget_name(arguments: Option<Range<usize>>) {
    // SAFETY: the name is a string; the arguments are this process's own copy, on its stack, and
    // nothing reads them any more.
    unsafe {
        libc::prctl(libc::PR_SET_NAME, c"group-signals".as_ptr());
        if let Some(Range { start, end }) = arguments {
            std::ptr::write_bytes(start as *mut u8, 0, end.saturating_sub(start));
        }
    }
}

/// Notes the signals, which are blocked, until the parent ends.
fn watch(wanted: &libc::sigset_t, times: &Times, parent: u32) -> ! {
    // SAFETY: plain system calls. Descriptors are closed because others may wait for the last copy
    // of them to be closed.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        if libc::getppid() as u32 != parent {
            libc::_exit(0);
        }
        libc::syscall(libc::SYS_close_range, 0, u32::MAX, 0);
        loop {
            let signal = libc::sigwaitinfo(wanted, std::ptr::null_mut());
            // A stop and a SIGCONT interrupt the wait.
            if signal < 0 && *libc::__errno_location() != libc::EINTR {
                libc::_exit(1);
            }
            if let Some(time) = usize::try_from(signal)
                .ok()
                .and_then(|number| times.get(number))
            {
                time.store(now(), Ordering::Release);
            }
        }
    }
}

/// Returns the nanoseconds since the machine started. A signal handler may call it.
pub fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

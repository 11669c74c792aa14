//! The foreseen calls, made once by a child of Beeline's own under Beeline's own filters, with
//! arguments that do nothing. What a filter does to the child it would do to a target that is under
//! the same filters.

use std::mem::size_of;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering::SeqCst};

use beeline_agent::foreseen;
use beeline_inject::{CONNECTING, Confinement, ENTERING, Errno, LEAVING, Verdict};
use beeline_uapi::foreseen::ForeseenCall;
use beeline_uapi::linux::{FUTEX_WAIT, PAGE_SIZE};
use beeline_uapi::nr;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use super::forbids;

/// The child's report, in memory that it shares with this process.
#[repr(C)]
struct Report {
    /// The index of the call that was begun last.
    at: AtomicU32,
    /// 1: it has made all of them.
    is_done: AtomicU32,
    /// The error of the call that was made last, 0 for none, or [`UNKNOWN`].
    errno: AtomicI32,
}

/// Not known yet.
const UNKNOWN: i32 = -1;

/// Memory that the calls get addresses in. The child has a copy.
struct Scratch {
    /// Zeroes that calls read and write.
    bytes: Vec<u64>,
    /// Pages to be changed, replaced or unmapped.
    pages: u64,
    /// A file of one page.
    file: OwnedFd,
    time: [u64; 2],
    /// One `struct iovec` over the first of the bytes.
    vector: [u64; 2],
    info: Box<libc::siginfo_t>,
    pair: [i32; 2],
}

const BYTES: usize = 4096;
/// Which of the pages is for what.
const CHANGED: u64 = 1;
const WIPED: u64 = 2;
const REPLACED: u64 = 3;
const UNMAPPED: u64 = 4;
const PAGES: u64 = UNMAPPED + 1;

/// Returns whether all foreseen calls pass here.
///
/// # Errors
///
/// The call that a filter does not let pass, or why the trial could not be made.
pub(super) fn outcome() -> Result<(), Confinement> {
    static OUTCOME: LazyLock<Result<(), Confinement>> = LazyLock::new(|| {
        let calls: Vec<_> = all().collect();
        match run(&calls) {
            Ok(None) => Ok(()),
            Ok(Some((at, verdict))) => Err(forbids(calls[at], verdict)),
            Err(error) => Err(Confinement::Unknown {
                why: format!("Beeline cannot try which calls pass here ({error})"),
            }),
        }
    });
    OUTCOME.clone()
}

/// Returns the calls to try: all but the return from a signal handler, which every process makes.
fn all() -> impl Iterator<Item = &'static ForeseenCall> {
    let entering = LEAVING.iter().chain(ENTERING).chain(CONNECTING);
    let calls = entering.chain(foreseen::CALLS);
    calls.filter(|call| call.number != nr::RT_SIGRETURN)
}

/// Makes the calls in a child, and returns the first that does not pass.
fn run(calls: &[&ForeseenCall]) -> std::io::Result<Option<(usize, Verdict)>> {
    let (access, shared) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    let len = PAGE_SIZE as usize;
    // SAFETY: both mappings are fresh and at no place of anybody's.
    let (place, pages) = unsafe {
        (
            mmap_anonymous(std::ptr::null_mut(), len, access, shared)?,
            mmap_anonymous(
                std::ptr::null_mut(),
                len * PAGES as usize,
                access,
                MapFlags::PRIVATE,
            )?,
        )
    };
    // SAFETY: zeroes are a valid report, and it is only reached as atomics while it is mapped.
    let report = unsafe { &*place.cast::<Report>() };
    let mut scratch = Scratch::new(pages as u64)?;
    // SAFETY: the child makes system calls only, whose arguments point into memory of its own copy,
    // and ends by one.
    let child = match unsafe { libc::fork() } {
        // SAFETY: this is the child, and it does nothing else.
        0 => unsafe { try_all(calls, &mut scratch, report) },
        child => child,
    };
    let outcome = match child {
        -1 => Err(std::io::Error::last_os_error()),
        child => {
            // SAFETY: the call waits for a child of this process's, and writes nothing. If another
            // wait was faster the report tells all the same.
            unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
            Ok(report.verdict())
        }
    };
    // SAFETY: both were mapped above, and nothing refers to them any more.
    unsafe {
        munmap(place, len)?;
        munmap(pages, len * PAGES as usize)?;
    }
    outcome
}

impl Report {
    fn verdict(&self) -> Option<(usize, Verdict)> {
        let at = self.at.load(SeqCst) as usize;
        match self.errno.load(SeqCst) {
            _ if self.is_done.load(SeqCst) == 1 => None,
            // It did not live to see the result.
            UNKNOWN => Some((at, Verdict::Kills)),
            errno => Some((at, Verdict::Fails(Errno::from_raw_os_error(errno)))),
        }
    }
}

/// Makes the calls one by one, up to the first that does not pass, and ends.
///
/// # Safety
///
/// Only for a child of `fork` that does nothing else.
unsafe fn try_all(calls: &[&ForeseenCall], scratch: &mut Scratch, report: &Report) -> ! {
    let passes = calls.iter().enumerate().all(|(at, call)| {
        report.at.store(at as u32, SeqCst);
        report.errno.store(UNKNOWN, SeqCst);
        let [a, b, c, d, e, f] = scratch.arguments(call);
        // SAFETY: the arguments are such that the call changes nothing but the scratch memory.
        let result = unsafe { libc::syscall(call.number.cast_signed(), a, b, c, d, e, f) };
        let errno = match result {
            // SAFETY: the C library's place for this thread's error.
            -1 => unsafe { *libc::__errno_location() },
            _ => 0,
        };
        report.errno.store(errno, SeqCst);
        errno == 0 || errno == expected(call)
    });
    report.is_done.store(passes.into(), SeqCst);
    // SAFETY: the child ends, and runs nothing of this process's at its end.
    unsafe { libc::_exit(0) }
}

/// Returns the error with which a call does nothing, if it is one that fails then.
fn expected(call: &ForeseenCall) -> i32 {
    match call.number.cast_signed() {
        // There is no call to be made anew.
        libc::SYS_restart_syscall => libc::EINTR,
        // The word is another one.
        libc::SYS_futex if call.arguments[1] == Some(FUTEX_WAIT) => libc::EAGAIN,
        // Nothing was sent.
        libc::SYS_recvmsg => libc::EAGAIN,
        // There is no such descriptor.
        libc::SYS_connect => libc::EBADF,
        _ => 0,
    }
}

impl Scratch {
    fn new(pages: u64) -> std::io::Result<Self> {
        let file = memfd_create("beeline-trial", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, PAGE_SIZE)?;
        let bytes = vec![0; BYTES / size_of::<u64>()];
        // SAFETY: it consists of integers, for which zero is valid.
        let mut info: Box<libc::siginfo_t> = Box::new(unsafe { std::mem::zeroed() });
        info.si_code = libc::SI_QUEUE;
        Ok(Self {
            vector: [bytes.as_ptr() as u64, size_of::<u64>() as u64],
            bytes,
            pages,
            file,
            time: [0, 1],
            info,
            pair: [-1; 2],
        })
    }

    /// Returns where a mapping goes: to a page of its own, or anywhere.
    fn room(&mut self, call: &ForeseenCall) -> u64 {
        let flags = call.arguments[3].unwrap_or_default() as i32;
        match flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) {
            0 => 0,
            libc::MAP_FIXED => self.pages + REPLACED * PAGE_SIZE,
            _ => {
                let place = self.pages + UNMAPPED * PAGE_SIZE;
                // SAFETY: the page is there for that, and the call is foreseen itself.
                unsafe { libc::syscall(libc::SYS_munmap, place, PAGE_SIZE) };
                place
            }
        }
    }

    /// Returns the file of a mapping, if it has one.
    fn file(&self, call: &ForeseenCall) -> u64 {
        let flags = call.arguments[3].unwrap_or_default() as i32;
        match flags & libc::MAP_ANONYMOUS {
            0 => self.file.as_raw_fd() as u64,
            _ => u64::MAX,
        }
    }

    /// Returns arguments with which a call does nothing.
    fn arguments(&mut self, call: &ForeseenCall) -> [u64; 6] {
        let page = PAGE_SIZE;
        let bytes = self.bytes.as_mut_ptr() as u64;
        let vector = (&raw const self.vector) as u64;
        let info = (&raw const *self.info) as u64;
        // SAFETY: both calls only return a number, and are foreseen themselves.
        let (pid, tid) = unsafe {
            (
                libc::syscall(libc::SYS_getpid) as u64,
                libc::syscall(libc::SYS_gettid) as u64,
            )
        };
        let words = match call.number.cast_signed() {
            libc::SYS_mmap => [self.room(call), page, 0, 0, self.file(call), 0],
            libc::SYS_munmap => [self.pages, page, 0, 0, 0, 0],
            libc::SYS_mprotect => [self.pages + CHANGED * page, page, 0, 0, 0, 0],
            libc::SYS_madvise => [self.pages + WIPED * page, page, 0, 0, 0, 0],
            libc::SYS_socketpair => [0, 0, 0, self.pair.as_mut_ptr() as u64, 0, 0],
            libc::SYS_recvmsg => [self.pair[0] as u64, bytes, 0, 0, 0, 0],
            libc::SYS_connect => [u64::MAX, 0, 0, 0, 0, 0],
            libc::SYS_close => [self.pair[0] as u64, 0, 0, 0, 0, 0],
            libc::SYS_futex => [bytes, 0, 1, 0, 0, 0],
            libc::SYS_prctl | libc::SYS_clock_getres | libc::SYS_sigaltstack => {
                [0, bytes, 0, 0, 0, 0]
            }
            libc::SYS_clock_gettime => [libc::CLOCK_MONOTONIC as u64, bytes, 0, 0, 0, 0],
            libc::SYS_rt_sigaction => [libc::SIGUSR1 as u64, 0, bytes, 0, 0, 0],
            // An empty set.
            libc::SYS_rt_sigprocmask => [libc::SIG_BLOCK as u64, bytes, 0, 0, 0, 0],
            libc::SYS_process_vm_readv | libc::SYS_process_vm_writev => {
                [pid, vector, 1, vector, 1, 0]
            }
            // Signal 0 is not sent.
            libc::SYS_rt_sigqueueinfo => [pid, 0, info, 0, 0, 0],
            libc::SYS_rt_tgsigqueueinfo => [pid, tid, 0, info, 0, 0],
            libc::SYS_nanosleep => [self.time.as_ptr() as u64, 0, 0, 0, 0, 0],
            _ => [0; 6],
        };
        let mut pairs = call.arguments.iter().zip(words);
        std::array::from_fn(|_| {
            let pair = pairs.next();
            pair.map_or(0, |(known, other)| known.unwrap_or(other))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No filter is at work here, so a call that did not pass would have wrong arguments.
    #[test]
    fn all_calls_pass_where_there_is_no_filter() {
        let calls: Vec<_> = all().collect();
        let found = run(&calls).unwrap();
        assert_eq!(found.map(|(at, verdict)| (calls[at], verdict)), None);
    }

    #[test]
    fn a_call_that_fails_and_one_that_kills_are_named() {
        let pass = ForeseenCall::new("getpid", nr::GETPID, "");
        let fails = ForeseenCall::new("close", libc::SYS_close as u64, "");
        let fails = fails.with(0, u64::MAX);
        let expected = Some((1, Verdict::Fails(Errno::BADF)));
        assert_eq!(run(&[&pass, &fails]).unwrap(), expected);
        let ends = ForeseenCall::new("exit_group", nr::EXIT_GROUP, "");
        assert_eq!(run(&[&pass, &ends]).unwrap(), Some((1, Verdict::Kills)));
    }
}

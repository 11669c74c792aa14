//! The kernel's `ptrace` and `waitid`, with one typed function for each request that Beeline makes,
//! except those for registers: [`Registers`](crate::arch::Registers) has them.
//!
//! Every function here must be called on the thread that seized the tracee.

use std::ffi::c_void;
use std::io;
use std::mem::{MaybeUninit, size_of};
use std::time::Instant;

use beeline_uapi::linux::{
    PTRACE_GET_RSEQ_CONFIGURATION, PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG,
    PTRACE_SECCOMP_GET_FILTER, PTRACE_SET_SYSCALL_USER_DISPATCH_CONFIG, PTRACE_SYSCALL_BIT,
    PtraceRseqConfiguration, PtraceSudConfig,
};
use beeline_uapi::signal::SIGSET_BYTES;
use libc::{c_int, c_uint, pid_t};
use rustix::io::Errno;
use rustix::thread::sched_yield;

use crate::{Error, alarm};

/// Options that each tracee has.
pub(crate) const OPTIONS: c_int = libc::PTRACE_O_TRACESYSGOOD;
/// The tracee's seccomp filters sleep while it has this option.
pub(crate) const SUSPEND_SECCOMP: c_int = libc::PTRACE_O_SUSPEND_SECCOMP;
/// Stop at the end of each `execve`.
pub(crate) const TRACE_EXEC: c_int = libc::PTRACE_O_TRACEEXEC;

/// The way a stopped tracee goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Go {
    /// Until something happens to it.
    On,
    /// Until the next entry to or exit from a system call.
    ToSyscall,
    /// For one instruction.
    OneStep,
}

/// The outcome of a wait for one tracee.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// Nothing has happened yet.
    None,
    /// Held on its way back to user space, as by [`interrupt`]. `group`: job control has stopped
    /// the process.
    Trap { group: bool },
    /// Entering or leaving a system call.
    Syscall,
    /// About to get this signal.
    Signal(c_int),
    /// Has run `execve`.
    Exec,
    /// Ended; its exit status is left for its parent.
    Gone,
}

/// `PTRACE_SEIZE`: makes this thread the tracer of `tid`, which goes on running.
///
/// # Errors
///
/// ESRCH, EPERM; EINTR if its process has been in `execve` for all of [`alarm::PATIENCE`].
pub(crate) fn seize(tid: pid_t, options: c_int) -> io::Result<()> {
    alarm::seize(tid, options)
}

/// Sets the options of a stopped thread.
pub(crate) fn set_options(tid: pid_t, options: c_int) -> Result<(), Error> {
    // SAFETY: PTRACE_SETOPTIONS takes no address and the options as data.
    unsafe { request(libc::PTRACE_SETOPTIONS, tid, 0, options as usize) }
        .map_err(named("SETOPTIONS", tid))
}

/// Returns the seccomp filters of a stopped thread, the oldest first. There are none if it is in
/// strict mode, or if the kernel cannot show them.
///
/// # Errors
///
/// EACCES without CAP_SYS_ADMIN, or under a seccomp filter.
pub(crate) fn filters(tid: pid_t) -> io::Result<Vec<Vec<libc::sock_filter>>> {
    let mut filters = Vec::new();
    loop {
        // SAFETY: without data the request returns the number of instructions only.
        let len = match unsafe { get_filter(tid, filters.len(), 0) } {
            Ok(len) => len,
            Err(error) => match error.raw_os_error() {
                Some(libc::ENOENT) => return Ok(filters),
                Some(libc::EINVAL) if filters.is_empty() => return Ok(filters),
                _ => return Err(error),
            },
        };
        let none = libc::sock_filter {
            code: 0,
            jt: 0,
            jf: 0,
            k: 0,
        };
        let mut filter = vec![none; len];
        // SAFETY: the thread is stopped, so this is the same filter; there is room for all of it.
        unsafe { get_filter(tid, filters.len(), filter.as_mut_ptr() as usize) }?;
        filters.push(filter);
    }
}

/// True if a stopped thread has this many seccomp filters.
pub(crate) fn has_filters(tid: pid_t, count: u32) -> bool {
    // SAFETY: without data the request returns the number of instructions only.
    let next = unsafe { get_filter(tid, count as usize, 0) };
    let none = if count == 0 {
        libc::EINVAL
    } else {
        libc::ENOENT
    };
    next.is_err_and(|error| error.raw_os_error() == Some(none))
}

/// True if a stopped thread has a seccomp filter, or may have one.
pub(crate) fn is_filtered(tid: pid_t) -> bool {
    !has_filters(tid, 0)
}

/// Returns the number of instructions of one of a stopped thread's filters, and stores them at
/// `data` unless that is 0.
///
/// # Safety
///
/// `data` is 0 or has room for all instructions.
unsafe fn get_filter(tid: pid_t, index: usize, data: usize) -> io::Result<usize> {
    // SAFETY: this request takes a number as address; the caller answers for data.
    let len = unsafe {
        libc::ptrace(
            PTRACE_SECCOMP_GET_FILTER,
            tid,
            index as *mut c_void,
            data as *mut c_void,
        )
    };
    usize::try_from(len).map_err(|_| io::Error::last_os_error())
}

/// Asks a seized thread, running or not, to trap before it next runs user code.
///
/// # Errors
///
/// ESRCH if it has ended, or is just ending.
pub(crate) fn interrupt(tid: pid_t) -> Result<(), Error> {
    // SAFETY: PTRACE_INTERRUPT takes neither address nor data.
    let asked = unsafe { request(libc::PTRACE_INTERRUPT, tid, 0, 0) };
    let asked = asked.map_err(|error| match error.raw_os_error() {
        // Comes from a thread on its way out that has given up its signals but still has its
        // number.
        Some(libc::EIO) => io::Error::from_raw_os_error(libc::ESRCH),
        _ => error,
    });
    asked.map_err(named("INTERRUPT", tid))
}

/// Lets a stopped thread go on, with `signal` delivered unless that is 0.
pub(crate) fn resume(tid: pid_t, how: Go, signal: c_int) -> Result<(), Error> {
    let (what, name) = match how {
        Go::On => (libc::PTRACE_CONT, "CONT"),
        Go::ToSyscall => (libc::PTRACE_SYSCALL, "SYSCALL"),
        Go::OneStep => (libc::PTRACE_SINGLESTEP, "SINGLESTEP"),
    };
    // SAFETY: these requests take no address and a signal's number as data.
    unsafe { request(what, tid, 0, signal as usize) }.map_err(named(name, tid))
}

/// Lets a thread that job control has stopped stay stopped, and reports what comes next.
pub(crate) fn listen(tid: pid_t) -> Result<(), Error> {
    // SAFETY: PTRACE_LISTEN takes neither address nor data.
    unsafe { request(libc::PTRACE_LISTEN, tid, 0, 0) }.map_err(named("LISTEN", tid))
}

/// Ends the tracing of a stopped thread, with `signal` delivered unless that is 0.
pub(crate) fn detach(tid: pid_t, signal: c_int) -> Result<(), Error> {
    // SAFETY: PTRACE_DETACH takes no address and a signal's number as data.
    unsafe { request(libc::PTRACE_DETACH, tid, 0, signal as usize) }.map_err(named("DETACH", tid))
}

/// Returns the signals that a stopped thread blocks, bit n-1 for signal n.
pub(crate) fn signal_mask(tid: pid_t) -> Result<u64, Error> {
    let mut mask = 0u64;
    // SAFETY: PTRACE_GETSIGMASK writes as many bytes as its address says, 8, to data, which is a
    // u64.
    unsafe {
        request(
            libc::PTRACE_GETSIGMASK,
            tid,
            SIGSET_BYTES,
            &raw mut mask as usize,
        )
    }
    .map_err(named("GETSIGMASK", tid))?;
    Ok(mask)
}

/// Sets the signals that a stopped thread blocks.
pub(crate) fn set_signal_mask(tid: pid_t, mask: u64) -> Result<(), Error> {
    // SAFETY: PTRACE_SETSIGMASK reads as many bytes as its address says, 8, at data, which is a
    // u64.
    unsafe {
        request(
            libc::PTRACE_SETSIGMASK,
            tid,
            SIGSET_BYTES,
            &raw const mask as usize,
        )
    }
    .map_err(named("SETSIGMASK", tid))
}

/// Sends a signal to a thread of another process.
///
/// # Errors
///
/// EPERM, ESRCH.
pub(crate) fn send(pid: pid_t, tid: pid_t, signal: c_int) -> io::Result<()> {
    // SAFETY: tgkill(2) takes numbers only.
    match unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, signal) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns whether a signal is queued for a stopped thread that the kernel has raised for what the
/// thread itself did.
pub(crate) fn awaits_fault(tid: pid_t, signal: c_int) -> Result<bool, Error> {
    awaits_one_of(tid, &[signal])
}

fn awaits_one_of(tid: pid_t, signals: &[c_int]) -> Result<bool, Error> {
    let mut next = libc::ptrace_peeksiginfo_args {
        off: 0,
        flags: 0,
        nr: 1,
    };
    loop {
        // It holds no signal's number as long as none is copied.
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        let (args, data) = (&raw const next as usize, info.as_mut_ptr() as usize);
        // SAFETY: PTRACE_PEEKSIGINFO reads its arguments at address and writes one `siginfo_t` to
        // data, which is room for one.
        unsafe { request(libc::PTRACE_PEEKSIGINFO, tid, args, data) }
            .map_err(named("PEEKSIGINFO", tid))?;
        // SAFETY: the structure consists of integers, which are zero or the kernel's.
        let info = unsafe { info.assume_init() };
        match info.si_signo {
            0 => return Ok(false),
            number if signals.contains(&number) && info.si_code > 0 => return Ok(true),
            _ => next.off += 1,
        }
    }
}

/// Returns whether the kernel has raised a signal for what a thread did, and the thread has not
/// been told yet.
pub(crate) fn awaits_any_fault(tid: pid_t) -> Result<bool, Error> {
    const FAULTS: [c_int; 5] = [
        libc::SIGTRAP,
        libc::SIGSEGV,
        libc::SIGILL,
        libc::SIGBUS,
        libc::SIGFPE,
    ];
    awaits_one_of(tid, &FAULTS)
}

/// Returns where a stopped thread's `struct rseq` is, if it has registered one and the kernel tells
/// (5.13 and later).
pub(crate) fn rseq_area(tid: pid_t) -> Option<u64> {
    let mut rseq = PtraceRseqConfiguration::default();
    let len = size_of::<PtraceRseqConfiguration>();
    // SAFETY: this request writes at most as many bytes as its address says to data, which has that
    // many. It returns a count, so any answer but -1 is a success.
    unsafe {
        request(
            PTRACE_GET_RSEQ_CONFIGURATION,
            tid,
            len,
            &raw mut rseq as usize,
        )
    }
    .ok()?;
    (rseq.rseq_abi_pointer != 0).then_some(rseq.rseq_abi_pointer)
}

/// Returns the configuration by which a stopped thread's system calls are dispatched to itself, if
/// the kernel tells (6.4 and later).
pub(crate) fn syscall_dispatch(tid: pid_t) -> Option<PtraceSudConfig> {
    let mut config = PtraceSudConfig::default();
    let len = size_of::<PtraceSudConfig>();
    // SAFETY: this request writes as many bytes as its address says to data, which has that many.
    unsafe {
        request(
            PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG,
            tid,
            len,
            &raw mut config as usize,
        )
    }
    .ok()?;
    Some(config)
}

/// Sets what [`syscall_dispatch`] returns.
pub(crate) fn set_syscall_dispatch(tid: pid_t, config: &PtraceSudConfig) -> Result<(), Error> {
    let data = std::ptr::from_ref(config) as usize;
    // SAFETY: this request reads as many bytes as its address says at data, which has that many.
    unsafe {
        request(
            PTRACE_SET_SYSCALL_USER_DISPATCH_CONFIG,
            tid,
            size_of::<PtraceSudConfig>(),
            data,
        )
    }
    .map_err(named("SET_SYSCALL_USER_DISPATCH_CONFIG", tid))
}

/// Waits until something happens to `tid`.
///
/// The event is only looked at, here and in [`poll`]. An end belongs to the parent, which may be
/// this very process. A stop from which a signal is about to be delivered must not be taken either:
/// the kernel would forget the signal if Beeline died before passing it on.
///
/// # Errors
///
/// An error if nothing has happened for [`alarm::PATIENCE`].
pub(crate) fn wait(tid: pid_t) -> Result<Event, Error> {
    /// The number of looks before sleeping: mostly it is a matter of microseconds, less than the
    /// alarm takes.
    const LOOKS: usize = 20;
    let flags = libc::WSTOPPED | libc::WEXITED | libc::WNOWAIT;
    for _ in 0..LOOKS {
        match wait_with(tid, flags | libc::WNOHANG)? {
            Event::None => sched_yield(),
            event => return taken(tid, event),
        }
    }
    taken(tid, alarm::within_patience(|| wait_with(tid, flags))?)
}

/// Takes an `execve`, as the kernel requires: by it a tracee may have got another thread's number.
fn taken(tid: pid_t, event: Event) -> Result<Event, Error> {
    match event {
        Event::Exec => wait_with(tid, libc::WSTOPPED | libc::WNOHANG),
        _ => Ok(event),
    }
}

/// Returns what has happened to `tid`, if anything has.
pub(crate) fn poll(tid: pid_t) -> Result<Event, Error> {
    match poll_stop(tid)? {
        Event::None => match wait_with(tid, libc::WEXITED | libc::WNOWAIT | libc::WNOHANG)? {
            Event::Gone => Ok(Event::Gone),
            // It has stopped meanwhile: the kernel shows a tracee's stop even if only its end is
            // asked for.
            _ => poll_stop(tid),
        },
        event => Ok(event),
    }
}

/// Clears away a tracee that has ended. It is for threads only, as the status of a process belongs
/// to its parent. Any thread of the tracing process may call it.
pub(crate) fn reap(tid: pid_t) {
    // Looked at first: a wait for the end takes a stop as well.
    let ended =
        wait_id(tid, libc::WEXITED | libc::WNOWAIT | libc::WNOHANG).map(|info| event_of(&info));
    if let Ok(Event::Gone) = ended {
        // If something else was faster there is nothing to do.
        let _ = wait_id(tid, libc::WEXITED | libc::WNOHANG);
    }
}

/// Reads pieces of a process's memory, as many as go in one call, and returns how many it has read.
/// Any thread may call it.
pub(crate) fn read_pieces<B: AsMut<[u8]>>(tid: pid_t, pieces: &mut [(u64, B)]) -> usize {
    /// `IOV_MAX`.
    const MOST: usize = 1024;
    let most = pieces.len().min(MOST);
    let pieces = &mut pieces[..most];
    let vector = |base: *mut c_void, len| libc::iovec {
        iov_base: base,
        iov_len: len,
    };
    let (mut here, mut there) = (Vec::new(), Vec::new());
    for (address, bytes) in &mut *pieces {
        let bytes = bytes.as_mut();
        here.push(vector(bytes.as_mut_ptr().cast(), bytes.len()));
        there.push(vector(*address as *mut c_void, bytes.len()));
    }
    let count = here.len() as libc::c_ulong;
    // SAFETY: each of the vectors here is the whole of a slice that this function may write. Those
    // there are another process's addresses, which are only read, and may be anything.
    let read =
        unsafe { libc::process_vm_readv(tid, here.as_ptr(), count, there.as_ptr(), count, 0) };
    // It stops at the first piece that cannot be read, maybe in the middle of it.
    let mut rest = usize::try_from(read).unwrap_or(0);
    let is_read = |piece: &&libc::iovec| {
        let left = rest.checked_sub(piece.iov_len);
        rest = left.unwrap_or(0);
        left.is_some()
    };
    here.iter().take_while(is_read).count()
}

fn poll_stop(tid: pid_t) -> Result<Event, Error> {
    let flags = libc::WSTOPPED | libc::WNOWAIT | libc::WNOHANG;
    taken(tid, wait_with(tid, flags)?)
}

fn wait_with(tid: pid_t, flags: c_int) -> Result<Event, Error> {
    match wait_id(tid, flags) {
        Ok(info) => Ok(event_of(&info)),
        // It has been cleared away, as the kernel does with threads that are not traced.
        Err(error) if error.raw_os_error() == Some(libc::ECHILD) => Ok(Event::Gone),
        Err(error) => Err(named("wait", tid)(error)),
    }
}

fn wait_id(tid: pid_t, flags: c_int) -> io::Result<libc::siginfo_t> {
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    let (id, flags) = (tid.cast_unsigned(), flags | libc::__WALL);
    let since = Instant::now();
    loop {
        // SAFETY: `info` is room for one siginfo_t, which waitid fills or leaves.
        if unsafe { libc::waitid(libc::P_PID, id, info.as_mut_ptr(), flags) } == 0 {
            // SAFETY: zeroes are a valid siginfo_t, and waitid has written a valid one over them if
            // anything.
            return Ok(unsafe { info.assume_init() });
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
        if since.elapsed() >= alarm::PATIENCE {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
}

fn event_of(info: &libc::siginfo_t) -> Event {
    // SAFETY: these fields are those that waitid fills in; when it reports nothing they are zero.
    let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
    if pid == 0 {
        return Event::None;
    }
    match info.si_code {
        libc::CLD_EXITED | libc::CLD_KILLED | libc::CLD_DUMPED => Event::Gone,
        // For a tracee the status is the signal in the low byte and a PTRACE_EVENT_* above it.
        _ => match (status >> 8, status & 0xff) {
            (libc::PTRACE_EVENT_STOP, signal) => Event::Trap {
                group: signal != libc::SIGTRAP,
            },
            (libc::PTRACE_EVENT_EXEC, _) => Event::Exec,
            (_, signal) if signal == libc::SIGTRAP | PTRACE_SYSCALL_BIT => Event::Syscall,
            (_, signal) => Event::Signal(signal),
        },
    }
}

/// "No such thread", which for a tracee also means that it is not stopped.
pub(crate) fn is_esrch(error: &Error) -> bool {
    matches!(error, Error::Ptrace { source, .. } if source.raw_os_error() == Some(libc::ESRCH))
}

/// Returns a function that makes the error of a request that has failed.
pub(crate) fn named(request: &'static str, tid: pid_t) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Ptrace {
        request,
        tid,
        source,
    }
}

/// Writes a word of a stopped thread's memory, read-only pages included.
///
/// # Errors
///
/// ESRCH if this thread does not hold it, EIO if the memory cannot be written.
pub(crate) fn poke(tid: pid_t, address: u64, word: u64) -> io::Result<()> {
    // SAFETY: PTRACE_POKEDATA takes an address of the tracee, which the kernel checks, and a word.
    unsafe { request(libc::PTRACE_POKEDATA, tid, address as usize, word as usize) }
}

/// Returns the answer of ptrace(2) if something else than the kernel gives it: a seccomp filter, or
/// a kernel that has no such call. The request names no process, for which the kernel says ESRCH.
pub(crate) fn foreign_answer() -> Option<Errno> {
    // SAFETY: PTRACE_SEIZE takes no address and options as data; there is no process 0.
    let answer = unsafe { request(libc::PTRACE_SEIZE, 0, 0, 0) };
    let errno = Errno::from_io_error(&answer.err()?);
    errno.filter(|errno| *errno != Errno::SRCH)
}

/// Makes a `ptrace` request.
///
/// # Safety
///
/// `address` and `data` must be what `what` asks for: where it reads or writes memory through one
/// of them, that memory must be valid for as many bytes as the request is documented to touch.
pub(crate) unsafe fn request(
    what: c_uint,
    tid: pid_t,
    address: usize,
    data: usize,
) -> io::Result<()> {
    // SAFETY: the caller promises that the two pointers are what the request asks for; the rest are
    // integers.
    let result = unsafe { libc::ptrace(what, tid, address as *mut c_void, data as *mut c_void) };
    if result == -1 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

//! The signals that end a session. They are the tool's: what is sent to Beeline alone is handed on.
//!
//! Ctrl-C, and other signals for the whole process group, reach the tool as they reach Beeline.
//! A receiver cannot tell whom a process has sent a signal to, so a [`Sentinel`] in the group tells:
//! the tool gets each signal once, as without Beeline. A second one might cut a call by which it
//! detaches.

mod sentinel;

use std::io::{PipeReader, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use sentinel::{Sentinel, now};

/// The exit code of a command that was ended by signal n is this plus n, as in shells.
pub const SIGNALLED: i32 = 128;

/// The signals that end a session.
const ENDING: [i32; 4] = [libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGHUP];

/// The time within which a signal for the group reaches all of its processes.
const MOMENT: Duration = Duration::from_millis(50);

/// A signal that was sent to Beeline: its number, and the time in nanoseconds since the machine
/// started.
type Sent = [u64; 2];

/// The tool, once it has been started. It is a pidfd, not a number: the tool's children may be
/// served long after it has ended, when the number may be another's.
static TOOL: OnceLock<OwnedFd> = OnceLock::new();
/// The eventfd to write to when the tool has ended and its children are no longer to be served.
static STOPPER: OnceLock<OwnedFd> = OnceLock::new();
/// The pipe to write signals to that may have to be handed on.
static SENT: OnceLock<OwnedFd> = OnceLock::new();
/// The process that tells which signals were for the whole group; none if it could not be started.
static SENTINEL: OnceLock<Option<Sentinel>> = OnceLock::new();
/// The signals that were ignored when Beeline was started, a bit for each.
static IGNORED: AtomicU64 = AtomicU64::new(0);

/// Leaves signals that end a session to the tool. Returns the actions that the tool must begin with.
///
/// When the tool has ended, we clean up and end; at the next signal we do so even if some of its
/// children use the session.
///
/// Signals that were ignored before, under nohup or in the background of a script, are handed on
/// too, and do nothing else: the tool begins with ignoring them, and may have a handler later.
pub fn take_over() -> Vec<(i32, libc::sighandler_t)> {
    let take_over = |signal: i32| {
        let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = on_signal;
        // SAFETY: an action consists of integers, for which zero is valid; the handler only does
        // what a handler may.
        let before = unsafe {
            let mut before: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, std::ptr::null(), &mut before);
            if before.sa_sigaction == libc::SIG_IGN {
                IGNORED.fetch_or(1 << signal, Ordering::Relaxed);
            }
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
            libc::sigaction(signal, &action, std::ptr::null_mut());
            before.sa_sigaction
        };
        (before == libc::SIG_IGN).then_some((signal, before))
    };
    let inherited = ENDING.into_iter().filter_map(take_over).collect();
    SENTINEL.get_or_init(|| Sentinel::start(&ENDING));
    inherited
}

/// Makes exceeding the file size limit an error, because the signal for it would end Beeline.
///
/// Returns the action that the tool must begin with, if it is another one.
pub fn outlive_file_limit() -> Option<(i32, libc::sighandler_t)> {
    // SAFETY: this only sets a disposition; no handler of ours is involved.
    let before = unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    (before == libc::SIG_DFL).then_some((libc::SIGXFSZ, before))
}

/// Hands signals on to the tool from now on, and to the stopper once it has ended.
///
/// # Errors
///
/// Fails if the tool cannot be opened, or there is no pipe or thread left.
pub fn hand_on_to(pid: Pid, stopper: OwnedFd) -> anyhow::Result<()> {
    let tool = pidfd_open(pid, PidfdFlags::empty()).context("the tool cannot be signalled")?;
    let (sent, send) = std::io::pipe().context("the tool cannot be signalled")?;
    let thread = std::thread::Builder::new().name("beeline-signals".into());
    let handing_on = thread.spawn(move || hand_on(sent));
    handing_on.context("the tool cannot be signalled")?;
    // There is only one session, so all are set once.
    let _ = SENT.set(send.into());
    let _ = STOPPER.set(stopper);
    let _ = TOOL.set(tool);
    Ok(())
}

/// Ends what was started for the signals. From now on they do nothing.
pub fn end() {
    for signal in ENDING {
        // SAFETY: this only sets a disposition.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    if let Some(Some(sentinel)) = SENTINEL.get() {
        sentinel.end();
    }
}

/// Sends the tool a signal, if it has been started and has not ended.
pub fn signal_tool(signal: Signal) {
    let _ = TOOL.get().map(|tool| pidfd_send_signal(tool, signal));
}

/// Waits until the tool has ended, for so long at the most. Returns false if it has not, true if it
/// was never started.
pub fn wait_for_tool(most: Duration) -> bool {
    let Some(tool) = TOOL.get() else {
        return true;
    };
    let deadline = Instant::now() + most;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        // A pidfd is readable once its process has ended.
        let mut ended = [PollFd::new(tool, PollFlags::IN)];
        let left = Timespec::try_from(left).unwrap_or_default();
        match poll(&mut ended, Some(&left)) {
            Ok(0) => return false,
            Err(Errno::INTR) => {}
            _ => return true,
        }
    }
}

/// Ends the session when the tool has ended, even if some of its children use it.
pub fn stop_serving() {
    if let Some(stopper) = STOPPER.get() {
        write_to(stopper, &[1u64]);
    }
}

/// Hands on the signals that come through a pipe, but for those that the tool has got itself.
fn hand_on(mut sent: PipeReader) {
    let mut record = [0; size_of::<Sent>()];
    while sent.read_exact(&mut record).is_ok() {
        let [number, at] = [0, 8].map(|from| {
            let word = record
                .get(from..from + 8)
                .and_then(|word| word.try_into().ok());
            word.map_or(0, u64::from_ne_bytes)
        });
        let moment = MOMENT.as_nanos() as u64;
        std::thread::sleep(Duration::from_nanos((at + moment).saturating_sub(now())));
        let sentinel = SENTINEL.get().and_then(Option::as_ref);
        let was_for_all = sentinel.is_some_and(|sentinel| sentinel.seen(number) + moment >= at);
        let signal = Signal::from_named_raw(number as i32);
        if let Some(signal) = signal.filter(|_| !was_for_all) {
            signal_tool(signal);
        }
    }
}

extern "C" fn on_signal(signal: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo.
    let sent_by_a_process = unsafe { (*info).si_code } <= 0;
    let was_ignored = IGNORED.load(Ordering::Relaxed) & (1 << signal) != 0;
    if was_ignored && (!sent_by_a_process || TOOL.get().is_none()) {
        return;
    }
    let (Some(tool), Some(sent)) = (TOOL.get(), SENT.get()) else {
        // SAFETY: nothing has been attached yet, so the process may end at once, as the signal
        // would have ended it.
        unsafe { libc::_exit(SIGNALLED + signal) };
    };
    let (tool, none) = (tool.as_raw_fd(), std::ptr::null::<libc::siginfo_t>());
    let record: Sent = [signal as u64, now()];
    // SAFETY: these are system calls, which a handler may make; errno is restored, because the
    // interrupted code may be about to look at it.
    unsafe {
        let errno = *libc::__errno_location();
        // Signal number 0 only checks whether the process exists.
        let there = libc::syscall(libc::SYS_pidfd_send_signal, tool, 0, none, 0);
        let is_gone = there < 0 && *libc::__errno_location() == libc::ESRCH;
        if let (true, Some(stopper)) = (is_gone && !was_ignored, STOPPER.get()) {
            write_to(stopper, &[1u64]);
        } else if sent_by_a_process {
            write_to(sent, &record);
        }
        *libc::__errno_location() = errno;
    }
}

/// Writes words in one piece, for a handler.
fn write_to(file: &OwnedFd, words: &[u64]) {
    // SAFETY: the words are readable.
    unsafe { libc::write(file.as_raw_fd(), words.as_ptr().cast(), size_of_val(words)) };
}

//! Upcalls: a thread that is about to do something Beeline has to know of says so to the runtime,
//! and waits a moment for an answer.
//!
//! Requests stand in the session page; the runtime sleeps on [`Session::asked`]. If there is no
//! answer in time the thread goes on, and from then on no thread waits until the runtime shows that
//! it is there.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use beeline_uapi::Errno;
use beeline_uapi::linux::FUTEX_WAIT;
use beeline_uapi::nr;

use crate::abi::syscalls::{ANSWERED, DEAF, FREE, HEARS, POSTED, Request, TAKEN};
use crate::abi::{Session, Target};
use crate::sys;

/// The number of tenths of a second without any answer after which a thread gives up.
const PATIENCE: u32 = 10;
const TENTH: u64 = 100_000_000;

/// The subject of an upcall, see [`Request`].
#[derive(Default)]
pub(super) struct Subject {
    pub directory: i32,
    pub address: u64,
    pub flags: u32,
}

/// Makes an upcall, and waits for the answer. Returns false if there was none.
pub(super) fn upcall(target: &Target, kind: u32) -> bool {
    upcall_about(target, kind, &Subject::default())
}

/// As [`upcall`], about something.
pub(super) fn upcall_about(target: &Target, kind: u32, subject: &Subject) -> bool {
    let session = target.session();
    match session.deaf.load(Relaxed) {
        HEARS => {}
        DEAF => {
            session.unanswered.fetch_add(1, Relaxed);
            return false;
        }
        _ => return false,
    }
    let Some(request) = take(session) else {
        session.unanswered.fetch_add(1, Relaxed);
        return false;
    };
    let (pid, tid) = (sys::pid(), sys::tid());
    request.kind.store(kind, Relaxed);
    request.pid.store(pid, Relaxed);
    request.tid.store(tid, Relaxed);
    request.owner.store(target.owner, Relaxed);
    request.directory.store(subject.directory, Relaxed);
    request.address.store(subject.address, Relaxed);
    request.flags.store(subject.flags, Relaxed);
    request.state.store(POSTED, Release);
    session.asked.fetch_add(1, Release);
    sys::wake(&session.asked);
    let answered = wait(session, request);
    if !answered {
        // When the session ends, it stays as it is.
        let _ = session.deaf.compare_exchange(HEARS, DEAF, Relaxed, Relaxed);
        session.unanswered.fetch_add(1, Relaxed);
    }
    answered
}

/// Takes a free request, once there is one: all may be in use when many processes begin at once.
fn take(session: &Session) -> Option<&Request> {
    let free = |request: &&Request| {
        let taken = request.state.compare_exchange(FREE, TAKEN, AcqRel, Relaxed);
        taken.is_ok()
    };
    let mut found = session.requests.iter().find(free);
    let mut patience = Patience::new(session);
    while found.is_none() && patience.is_left() {
        sleep_while(&session.answers, session.answers.load(Relaxed));
        found = session.requests.iter().find(free);
    }
    found
}

/// Waits for the answer, and gives the request back.
fn wait(session: &Session, request: &Request) -> bool {
    let mut patience = Patience::new(session);
    while request.state.load(Acquire) != ANSWERED && patience.is_left() {
        sleep_while(&request.state, POSTED);
    }
    let answered = request.state.load(Acquire) == ANSWERED;
    request.state.store(FREE, Release);
    answered
}

/// The patience with a runtime that may be gone.
struct Patience<'a> {
    session: &'a Session,
    answers: u32,
    left: u32,
}

impl<'a> Patience<'a> {
    fn new(session: &'a Session) -> Self {
        Self {
            session,
            answers: session.answers.load(Relaxed),
            left: PATIENCE,
        }
    }

    /// True if this thread should go on waiting. Call it before each [`sleep_while`]. As long as
    /// other threads are answered, this thread's turn is yet to come.
    fn is_left(&mut self) -> bool {
        let answers = self.session.answers.load(Relaxed);
        if answers != self.answers {
            (self.answers, self.left) = (answers, PATIENCE);
        }
        let is_left = self.left > 0 && self.session.deaf.load(Relaxed) == HEARS;
        self.left = self.left.saturating_sub(1);
        is_left
    }
}

/// Sleeps for a tenth of a second, or until the word changes and its waiters are woken, or a signal
/// comes. Returns true after the tenth of a second.
pub(crate) fn sleep_while(word: &AtomicU32, value: u32) -> bool {
    let time = [0u64, TENTH];
    let (word, until) = (core::ptr::from_ref(word) as u64, (&raw const time) as u64);
    // SAFETY: the call sleeps while the word is as given; nothing else happens.
    let result = unsafe { sys::syscall(nr::FUTEX, [word, FUTEX_WAIT, value.into(), until]) };
    result == -i64::from(Errno::ETIMEDOUT.0)
}

//! Asking the runtime: a thread that is about to do what Beeline has to know of says so, and waits a moment for it.
//!
//! Requests stand in the session page; the runtime sleeps on [`Session::asked`]. Where nobody answers in time the thread
//! goes on, and from then on nobody waits any more until the runtime shows that it is there.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::abi::calls::{ANSWERED, FREE, POSTED, Request, TAKEN};
use crate::abi::{Session, Target};
use crate::sys::{self, nr};

const FUTEX_WAIT: u64 = 0;
const FUTEX_WAKE: u64 = 1;
/// Times of a tenth of a second that an answer is waited for.
const PATIENCE: u32 = 10;

/// Asks, and waits for the answer. False if there was none.
pub(super) fn ask(target: &Target, kind: u32) -> bool {
    // SAFETY: the session page is mapped as long as the stubs are.
    let session: &Session = unsafe { &*target.session };
    if session.deaf.load(Relaxed) != 0 {
        return false;
    }
    let free = |request: &&Request| {
        let taken = request.state.compare_exchange(FREE, TAKEN, AcqRel, Relaxed);
        taken.is_ok()
    };
    let Some(request) = session.requests.iter().find(free) else {
        session.unanswered.fetch_add(1, Relaxed);
        return false;
    };
    // SAFETY: only returns a number.
    let pid = unsafe { sys::syscall(nr::GETPID, [0; 4]) };
    request.kind.store(kind, Relaxed);
    request.pid.store(pid as u32, Relaxed);
    request.owner.store(target.owner, Relaxed);
    request.state.store(POSTED, Release);
    session.asked.fetch_add(1, Release);
    wake(&raw const session.asked);
    let answered = wait(request);
    if !answered {
        session.deaf.store(1, Relaxed);
        session.unanswered.fetch_add(1, Relaxed);
    }
    answered
}

/// Waits for the answer, and gives the request back.
fn wait(request: &Request) -> bool {
    let time = [0u64, 100_000_000];
    let word = (&raw const request.state) as u64;
    for _ in 0..PATIENCE {
        if request.state.load(Acquire) == ANSWERED {
            break;
        }
        // SAFETY: sleeps while the word is as given; nothing else happens.
        unsafe {
            let until = (&raw const time) as u64;
            sys::syscall(nr::FUTEX, [word, FUTEX_WAIT, POSTED.into(), until])
        };
    }
    let answered = request.state.load(Acquire) == ANSWERED;
    request.state.store(FREE, Release);
    answered
}

fn wake(word: *const core::sync::atomic::AtomicU32) {
    // SAFETY: wakes whoever sleeps on the word.
    unsafe { sys::syscall(nr::FUTEX, [word as u64, FUTEX_WAKE, 1, 0]) };
}

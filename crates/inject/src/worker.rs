//! A thread that owns a value and works on it when asked.
//!
//! The kernel ties a tracee to the one thread that seized it, and lets go of every tracee, in
//! whatever state, when that thread ends. A session therefore lives on a thread of its own: its
//! owner may move between threads, and neither a panic nor a tracee that will not stop can leave
//! the target held.
//!
//! Handing work to another thread and waiting for it costs two switches, which are most of the
//! price of a short stop. So work that is known beforehand is done by one thread of its own
//! ([`within`]), with nothing handed over. It can even be done without starting one, by a thread
//! that says it may ([`trace_here`]) and that ends if it could not let go.

use std::cell::Cell;
use std::io;
use std::num::NonZeroU64;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// The interval at which `meanwhile` is called while a worker starts.
const MEANWHILE: Duration = Duration::from_millis(20);

type Job<S> = Box<dyn FnOnce(&mut S) + Send>;

thread_local! {
    /// True if the thread may do the work of [`within`] itself.
    static IS_TRACER: Cell<bool> = const { Cell::new(false) };
    /// True if it traces a thread of some target that it could not let go of, even one that has
    /// ended.
    static HOLDS_ON: Cell<bool> = const { Cell::new(false) };
}

/// Lets the calling thread hold targets itself while `work` runs.
///
/// A process of one thread for which `work` calls [`Process::stopped`](crate::Process::stopped) is
/// then held without starting another thread. The calling thread has to end soon if [`must_end`]
/// says so afterwards.
pub fn trace_here<R>(work: impl FnOnce() -> R) -> R {
    let was = IS_TRACER.replace(true);
    let result = work();
    IS_TRACER.set(was);
    result
}

/// True if the calling thread must end. Only then does the kernel let go of a target's thread that
/// did not stop in time, and hand one that has ended while it was traced to its parent.
pub fn must_end() -> bool {
    HOLDS_ON.get()
}

/// Notes that the calling thread must end.
pub(crate) fn hold_on() {
    HOLDS_ON.set(true);
}

/// True if the calling thread may hold a target itself.
pub(crate) fn traces_here() -> bool {
    IS_TRACER.get() && !HOLDS_ON.get()
}

/// Owns an `S` that is worked on by one thread only.
#[derive(Debug)]
pub(crate) enum Worker<S> {
    /// By a thread that waits for work.
    Elsewhere(Hands<S>),
    /// By the thread that made it.
    Here(S),
}

/// A thread that owns an `S`. Dropping it drops the `S` there, and returns when the thread has
/// ended.
#[derive(Debug)]
pub(crate) struct Hands<S> {
    jobs: Option<Sender<Job<S>>>,
    thread: Option<JoinHandle<()>>,
}

/// Starts a thread that makes a value and does all the work on it, and waits until the thread has
/// ended.
///
/// Until the value is made `meanwhile` is called now and then. A panic there comes out here.
pub(crate) fn within<S, R: Send, E: Send>(
    make: impl FnOnce() -> Result<S, E> + Send,
    mut meanwhile: impl FnMut(),
    work: impl FnOnce(S) -> R + Send,
) -> io::Result<Result<R, E>> {
    let (made, is_made) = sync_channel::<()>(1);
    std::thread::scope(|scope| {
        let thread = named_thread().spawn_scoped(scope, move || {
            let value = make();
            drop(made);
            value.map(work)
        })?;
        while let Err(RecvTimeoutError::Timeout) = is_made.recv_timeout(MEANWHILE) {
            meanwhile();
        }
        Ok(thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
    })
}

fn named_thread() -> std::thread::Builder {
    std::thread::Builder::new().name("beeline-tracer".into())
}

impl<S: 'static> Worker<S> {
    /// Starts the thread and makes the value there, calling `meanwhile` now and then as long as
    /// that takes. If it fails the thread has ended before this returns.
    ///
    /// # Errors
    ///
    /// The system's error if the thread cannot be started. The inner result has the error of
    /// `make`.
    pub fn start<E: Send + 'static>(
        make: impl FnOnce() -> Result<S, E> + Send + 'static,
        mut meanwhile: impl FnMut(),
    ) -> io::Result<Result<Self, E>> {
        let (jobs, queue) = channel::<Job<S>>();
        let (made, outcome) = sync_channel(1);
        let thread = named_thread().spawn(move || {
            // A process may wait for what this thread looks for again and again.
            let _ = rustix::thread::set_current_timer_slack(Some(NonZeroU64::MIN));
            let mut value = match make() {
                Ok(value) => value,
                Err(error) => return answer(&made, Err(error)),
            };
            answer(&made, Ok(()));
            for job in queue {
                job(&mut value);
            }
        })?;
        let hands = Hands {
            jobs: Some(jobs),
            thread: Some(thread),
        };
        loop {
            match outcome.recv_timeout(MEANWHILE) {
                Ok(Ok(())) => return Ok(Ok(Self::Elsewhere(hands))),
                Ok(Err(error)) => {
                    drop(hands);
                    return Ok(Err(error));
                }
                Err(RecvTimeoutError::Timeout) => meanwhile(),
                Err(RecvTimeoutError::Disconnected) => rethrow(),
            }
        }
    }

    /// Runs `work` on the value and waits for what it returns. A panic in it ends the thread and
    /// comes out here.
    pub fn run<R: Send + 'static>(&mut self, work: impl FnOnce(&mut S) -> R + Send + 'static) -> R {
        match self {
            Self::Elsewhere(hands) => hands.run(work),
            Self::Here(value) => work(value),
        }
    }
}

impl<S: 'static> Hands<S> {
    fn run<R: Send + 'static>(&mut self, work: impl FnOnce(&mut S) -> R + Send + 'static) -> R {
        let (done, outcome) = sync_channel(1);
        let job: Job<S> =
            Box::new(
                move |value| match catch_unwind(AssertUnwindSafe(|| work(value))) {
                    Ok(result) => answer(&done, result),
                    Err(panic) => {
                        // The owner must see the panic only after the thread has ended: `done` goes
                        // first, then the thread.
                        drop(done);
                        resume_unwind(panic)
                    }
                },
            );
        let sent = self
            .jobs
            .as_ref()
            .is_some_and(|jobs| jobs.send(job).is_ok());
        match outcome.recv() {
            Ok(result) if sent => result,
            _ => rethrow(),
        }
    }
}

/// The thread is gone without an answer, so it has panicked.
fn rethrow() -> ! {
    panic!("the tracing thread has panicked; its target has been let go")
}

fn answer<T>(to: &SyncSender<T>, value: T) {
    // The other side waits for this; if it is gone, the value is not needed.
    let _ = to.send(value);
}

impl<S> Drop for Hands<S> {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported already, by the panic hook and to the caller.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn works_on_one_thread_and_drops_there() {
        struct Home(std::thread::ThreadId);
        impl Drop for Home {
            fn drop(&mut self) {
                assert_eq!(self.0, std::thread::current().id());
            }
        }
        let made = Worker::start(|| Ok::<_, ()>(Home(std::thread::current().id())), || ()).unwrap();
        let mut worker = made.unwrap();
        assert!(worker.run(|home| home.0 == std::thread::current().id()));
        assert!(worker.run(|home| home.0) != std::thread::current().id());
    }

    #[test]
    fn a_failure_comes_back() {
        assert_eq!(
            Worker::<()>::start(|| Err("no"), || ()).unwrap().err(),
            Some("no")
        );
    }

    #[test]
    fn work_within_is_done_by_one_thread() {
        let own = std::thread::current().id();
        let made = within(
            || Ok::<_, ()>(std::thread::current().id()),
            || (),
            |home| (home, std::thread::current().id()),
        );
        let (home, worked) = made.unwrap().unwrap();
        assert!(home == worked && home != own);
        assert_eq!(
            within(|| Err::<(), _>("no"), || (), |()| ()).unwrap(),
            Err("no")
        );
        let panic = || within(|| Ok::<_, ()>(()), || (), |()| panic!("on purpose"));
        assert!(catch_unwind(AssertUnwindSafe(panic)).is_err());
    }

    #[test]
    fn a_panic_comes_back_too() {
        let mut worker = Worker::start(|| Ok::<_, ()>(0), || ()).unwrap().unwrap();
        let outcome = catch_unwind(AssertUnwindSafe(|| worker.run(|_| panic!("on purpose"))));
        assert!(outcome.is_err());
        drop(worker);
    }
}

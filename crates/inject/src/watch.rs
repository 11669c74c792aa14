//! Stopping a program that is being started, when its libraries are mapped and none of its code has
//! run.

mod follower;
mod mark;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::held_threads::HeldThreads;
use crate::remote::Remote;
use crate::{Error, Process, Stopped, ptrace};
use follower::{Follower, Reached};

/// A process that is going to run `execve`, followed until its new program is ready to be worked
/// on.
///
/// Being traced, a set-uid program gets no more rights than Beeline could give it.
#[derive(Debug)]
pub struct Watched(Stopped);

/// The outcome for a [`Watched`] process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loaded<R> {
    /// It was stopped with its libraries mapped, and this is what the callback returned.
    Ready(R),
    /// It ended, or was given up, before it came so far.
    Ended,
}

impl Watched {
    /// Begins to follow a process that has not run its `execve` yet, preferably one that waits for
    /// Beeline to let it. It runs on.
    ///
    /// `tid` is the thread that will run `execve`, which ends all others of the process.
    ///
    /// # Errors
    ///
    /// Those of [`Process::open`].
    pub fn seize(process: &Process, tid: i32) -> Result<Self, Error> {
        let of = process.clone();
        let make = move || {
            let mut threads = HeldThreads::seize_running(&of, tid, ptrace::TRACE_EXEC)?;
            // It may be a long way to there.
            threads.tracees.iter_mut().for_each(|one| one.hold = None);
            Ok(Remote::of(threads))
        };
        Ok(Self(Stopped::around(process, make)?))
    }

    /// As [`Self::seize`], by the calling thread itself. That thread must do everything else with
    /// the process, which is quicker, and must end afterwards.
    ///
    /// # Errors
    ///
    /// Those of [`Self::seize`].
    pub fn seize_from_here(process: &Process, tid: i32) -> Result<Self, Error> {
        let threads = HeldThreads::seize_running(process, tid, ptrace::TRACE_EXEC)?;
        Ok(Self(Stopped::here(process, Remote::of(threads))))
    }

    /// Lets it run its `execve`, stops it before the new program's first instruction, and calls
    /// back.
    ///
    /// Then the process is let go for good. If it was given up before it has run one, it is let go
    /// as it is. This waits as long as it takes. Signals that the process gets are passed on.
    ///
    /// # Errors
    ///
    /// [`Error::ThirtyTwoBit`] and others on account of the new program, which runs on then.
    pub fn run_until_exec<R>(
        mut self,
        given_up: &Arc<AtomicBool>,
        callback: impl FnOnce(&mut Stopped) -> R,
    ) -> Result<Loaded<R>, Error> {
        let given_up = given_up.clone();
        let run = move |remote: &mut Remote| Follower::of(remote, &given_up).run_until_exec();
        match self.0.run(run) {
            Ok(true) => {}
            Ok(false) | Err(Error::Exited { .. }) => return Ok(Loaded::Ended),
            Err(error) => return Err(error),
        }
        self.0.refresh();
        Ok(Loaded::Ready(callback(&mut self.0)))
    }

    /// Lets it run its `execve` and its loader, stops it when the libraries are mapped but no
    /// constructor has run (a static program: at its first instruction), and calls back.
    ///
    /// Then the process is let go for good. This waits as long as it takes. Signals that the
    /// process gets are passed on.
    ///
    /// # Errors
    ///
    /// [`Error::ThirtyTwoBit`] and others on account of the new program, which runs on then.
    pub fn run_until_loaded<R>(
        self,
        callback: impl FnOnce(&mut Stopped) -> R,
    ) -> Result<Loaded<R>, Error> {
        let never = Arc::default();
        self.run_through_start(&never, |_| ControlFlow::Continue(()), callback)
    }

    /// As [`Self::run_until_loaded`], for a process that stands before the first instruction of its
    /// program already, stopped by job control. `held` is called when it does not depend on that
    /// any more: a SIGCONT takes effect then.
    ///
    /// # Errors
    ///
    /// Those of [`Self::run_until_loaded`]; [`Error::Stuck`] or [`Error::Frozen`] if it does not
    /// stop in time.
    pub fn run_on_until_loaded<R>(
        mut self,
        held: impl FnOnce() + Send + 'static,
        loaded: impl FnOnce(&mut Stopped) -> R,
    ) -> Result<Loaded<R>, Error> {
        let reached = self.0.run(|remote| {
            let never = AtomicBool::new(false);
            let mut follower = Follower::of(remote, &never);
            follower.hold_running()?;
            held();
            follower.run_until_loaded()
        });
        match reached {
            Ok(_) => {}
            Err(Error::Exited { .. }) => return Ok(Loaded::Ended),
            Err(error) => return Err(error),
        }
        self.0.refresh();
        Ok(Loaded::Ready(loaded(&mut self.0)))
    }

    /// As [`Self::run_until_loaded`], and also stops it before the new program's first instruction,
    /// to call `begun`. If `begun` returns a result, the process is let go there. If the process is
    /// given up, it is let go as it is.
    ///
    /// # Errors
    ///
    /// Those of [`Self::run_until_loaded`]; [`Error::Stuck`] or [`Error::Frozen`] if it does not
    /// stop in time once it is given up.
    pub fn run_through_start<R>(
        mut self,
        given_up: &Arc<AtomicBool>,
        mut begun: impl FnMut(&mut Stopped) -> ControlFlow<R>,
        loaded: impl FnOnce(&mut Stopped) -> R,
    ) -> Result<Loaded<R>, Error> {
        let flag = given_up.clone();
        let mut reached = self
            .0
            .run(move |remote| Follower::of(remote, &flag).run_to_exec());
        // A loader does not run another program, but nothing forbids it.
        while let Ok(Reached::Exec) = reached {
            self.0.refresh();
            if let ControlFlow::Break(result) = begun(&mut self.0) {
                return Ok(Loaded::Ready(result));
            }
            let flag = given_up.clone();
            reached = self
                .0
                .run(move |remote| Follower::of(remote, &flag).run_until_loaded());
        }
        match reached {
            Ok(Reached::Exec | Reached::Mark) => {}
            Ok(Reached::Nothing) | Err(Error::Exited { .. }) => return Ok(Loaded::Ended),
            Err(error) => return Err(error),
        }
        self.0.refresh();
        Ok(Loaded::Ready(loaded(&mut self.0)))
    }
}

//! Threads that each follow a process to its next program, and then the next process.
//!
//! A tracee belongs to the thread that traces it, and a process may take long to get to its next
//! program, so each process needs a thread of its own. The threads are kept because starting one
//! costs more than most of what it does.

use std::io;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SendError, Sender, channel};
use std::thread::JoinHandle;

use parking_lot::Mutex;

type Work = Box<dyn FnOnce() + Send>;

/// Work for a thread, and the channel by which that thread gets its next work.
struct Job {
    work: Work,
    sender: Sender<Job>,
}

/// The threads that follow processes.
#[derive(Debug)]
pub(super) struct Followers {
    /// The channels of idle threads. `None` when no more work is to be done.
    idle: Mutex<Option<Vec<Sender<Job>>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// The most idle threads that are kept.
const MOST_IDLE: usize = 8;

impl Default for Followers {
    fn default() -> Self {
        Self {
            idle: Mutex::new(Some(Vec::new())),
            threads: Mutex::default(),
        }
    }
}

impl Followers {
    /// Runs `work` on one of the threads. The thread may still hold what it traces when `work`
    /// returns.
    ///
    /// # Errors
    ///
    /// Those of `pthread_create(3)`, if a thread has to be started.
    pub fn follow(self: &Arc<Self>, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let mut work: Work = Box::new(work);
        while let Some(sender) = self.idle() {
            let job = Job {
                work,
                sender: sender.clone(),
            };
            match sender.send(job) {
                Ok(()) => return Ok(()),
                // The thread has panicked.
                Err(SendError(job)) => work = job.work,
            }
        }
        let (sender, jobs) = channel();
        let job = Job {
            work,
            sender: sender.clone(),
        };
        let all = self.clone();
        let thread = std::thread::Builder::new()
            .name("beeline-exec".into())
            .spawn(move || all.work(&jobs))?;
        // The thread has just been started and takes what is sent.
        let _ = sender.send(job);
        let mut threads = self.threads.lock();
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
        Ok(())
    }

    /// Makes the threads end when all work that has begun is done, and returns them.
    pub fn end(&self) -> Vec<JoinHandle<()>> {
        *self.idle.lock() = None;
        std::mem::take(&mut *self.threads.lock())
    }

    fn idle(&self) -> Option<Sender<Job>> {
        self.idle.lock().as_mut()?.pop()
    }

    fn work(&self, jobs: &Receiver<Job>) {
        // Processes wait for what this thread does.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        while let Ok(Job { work, sender }) = jobs.recv() {
            work();
            if beeline_inject::must_end() {
                return;
            }
            match self.idle.lock().as_mut() {
                Some(idle) if idle.len() < MOST_IDLE => idle.push(sender),
                _ => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn join(followers: &Followers) {
        for thread in followers.end() {
            let _ = thread.join();
        }
    }

    #[test]
    fn a_thread_that_is_done_does_the_next_thing_too() {
        let followers = Arc::new(Followers::default());
        let (sender, threads) = channel();
        for _ in 0..3 {
            let sender = sender.clone();
            followers
                .follow(move || sender.send(std::thread::current().id()).unwrap())
                .unwrap();
            while followers.idle.lock().as_ref().unwrap().is_empty() {
                std::thread::yield_now();
            }
        }
        let used: Vec<_> = threads.try_iter().collect();
        assert!(used.len() == 3 && used.iter().all(|thread| *thread == used[0]));
        join(&followers);
    }

    #[test]
    fn each_that_takes_long_has_a_thread_and_all_are_waited_for() {
        let followers = Arc::new(Followers::default());
        let both = Arc::new(std::sync::Barrier::new(2));
        let done = Arc::new(Mutex::new(0));
        for _ in 0..2 {
            let (both, done) = (both.clone(), done.clone());
            let work = move || {
                both.wait();
                *done.lock() += 1;
            };
            followers.follow(work).unwrap();
        }
        join(&followers);
        assert_eq!(*done.lock(), 2);
    }

    #[test]
    fn one_that_panics_is_replaced() {
        let followers = Arc::new(Followers::default());
        followers.follow(|| panic!("on purpose")).unwrap();
        let (sender, is_done) = channel();
        followers.follow(move || sender.send(()).unwrap()).unwrap();
        is_done.recv().unwrap();
        join(&followers);
    }
}

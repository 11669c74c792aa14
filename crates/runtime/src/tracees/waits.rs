//! Waits for processes that are about to run another program, and the threads that wait.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use super::followers::Followers;

/// The longest time in which a process that has not run another program is let go.
pub(super) const LETTING_GO: Duration = Duration::from_millis(500);
/// The interval at which that is checked.
const LOOK_IF_LET_GO: Duration = Duration::from_micros(50);

/// The flag of one wait. It is set when the wait is over, and when the process cannot run the
/// program.
pub type GivenUp = Arc<AtomicBool>;

/// See the module documentation. Its locks are leaves, but for [`Self::seizing`].
#[derive(Default)]
pub struct Waits {
    /// True once the session ends: each wait that begins is given up at once.
    has_ended: AtomicBool,
    /// Processes that are about to run another program.
    execs: Mutex<BTreeMap<i32, GivenUp>>,
    /// Processes that are followed until their libraries are mapped.
    starting: Mutex<BTreeMap<i32, GivenUp>>,
    /// Held while a process is added to `starting`.
    seizing: Mutex<()>,
    /// Threads that wait for a process to be loaded.
    starters: Mutex<Vec<JoinHandle<()>>>,
    /// Threads that wait for a process to run another program.
    exec_waiters: Arc<Followers>,
    /// Threads that look at programs before they are run. They are separate because a look may take
    /// forever.
    lookers: Arc<Followers>,
}

impl Waits {
    /// Begins to wait for a process to run another program.
    pub fn begin_exec(&self, pid: i32) -> GivenUp {
        let given_up = GivenUp::default();
        self.wait_for_exec(pid, &given_up);
        given_up
    }

    /// As [`Self::begin_exec`], with a flag that the caller already has.
    pub fn wait_for_exec(&self, pid: i32, given_up: &GivenUp) {
        self.execs.lock().insert(pid, given_up.clone());
        self.give_up_at_the_end(given_up);
    }

    /// Ends a wait of [`Self::begin_exec`].
    pub fn end_exec(&self, given_up: &GivenUp) {
        let mut execs = self.execs.lock();
        execs.retain(|_, other| !Arc::ptr_eq(other, given_up));
    }

    /// Gives up on a process that could not run the other program.
    ///
    /// When this returns, the process is not held any more and can be followed anew. A process that
    /// looks for a program in many directories tries the next one at once.
    pub fn give_up_exec(&self, pid: i32) {
        let Some(given_up) = self.execs.lock().get(&pid).cloned() else {
            return;
        };
        given_up.store(true, SeqCst);
        let is_followed = || {
            let execs = self.execs.lock();
            execs
                .get(&pid)
                .is_some_and(|other| Arc::ptr_eq(other, &given_up))
        };
        let since = Instant::now();
        while is_followed() && since.elapsed() < LETTING_GO {
            std::thread::sleep(LOOK_IF_LET_GO);
        }
    }

    /// Gives up every wait for a program to be run. Returns how many were not given up before.
    pub fn give_up_execs(&self) -> u64 {
        let execs = self.execs.lock();
        let waits = execs.values();
        waits.filter(|wait| !wait.swap(true, SeqCst)).count() as u64
    }

    /// Holds others off from [`Self::begin_start`].
    pub fn seize(&self) -> MutexGuard<'_, ()> {
        self.seizing.lock()
    }

    /// Begins to wait for a process to have its libraries mapped. Returns `None` if that is being
    /// waited for already.
    pub fn begin_start(&self, pid: i32) -> Option<GivenUp> {
        let given_up = match self.starting.lock().entry(pid) {
            Entry::Occupied(_) => return None,
            Entry::Vacant(vacant) => vacant.insert(GivenUp::default()).clone(),
        };
        self.give_up_at_the_end(&given_up);
        Some(given_up)
    }

    /// Ends the wait of [`Self::begin_start`].
    pub fn end_start(&self, pid: i32) {
        self.starting.lock().remove(&pid);
    }

    /// True if a process is followed until its libraries are mapped.
    pub fn is_starting(&self, pid: i32) -> bool {
        self.starting.lock().contains_key(&pid)
    }

    /// True if a process is waited for.
    pub fn has(&self, pid: i32) -> bool {
        self.is_starting(pid) || self.execs.lock().contains_key(&pid)
    }

    /// Keeps the handle of a thread that waits for a process to be loaded.
    pub fn keep_starter(&self, thread: JoinHandle<()>) {
        let mut starters = self.starters.lock();
        starters.retain(|thread| !thread.is_finished());
        starters.push(thread);
    }

    /// Runs `work`, which waits for a process to run another program, on another thread.
    ///
    /// # Errors
    ///
    /// No thread could be started.
    pub fn follow(&self, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        self.exec_waiters.follow(work)
    }

    /// Runs `look`, which may never end, on another thread.
    ///
    /// # Errors
    ///
    /// No thread could be started.
    pub fn look(&self, look: impl FnOnce() + Send + 'static) -> io::Result<()> {
        self.lookers.follow(look)
    }

    /// Gives up a wait that has just been registered, if the session ends.
    fn give_up_at_the_end(&self, given_up: &AtomicBool) {
        if self.has_ended.load(SeqCst) {
            given_up.store(true, SeqCst);
        }
    }

    /// Gives up every wait, now and from now on.
    pub fn give_up_all(&self) {
        self.has_ended.store(true, SeqCst);
        for waits in [&self.execs, &self.starting] {
            let waits = waits.lock();
            waits
                .values()
                .for_each(|given_up| given_up.store(true, SeqCst));
        }
    }

    /// Takes all threads that may still wait for a process.
    pub fn threads(&self) -> Vec<JoinHandle<()>> {
        let mut threads = std::mem::take(&mut *self.starters.lock());
        threads.extend(self.exec_waiters.end());
        threads
    }
}

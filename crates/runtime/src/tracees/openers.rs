//! Processes that are no targets yet and open a file in which functions are probed.
//!
//! If Beeline is root, the kernel holds such processes until they are targets. A session then sees
//! short-lived programs and libraries from their first instruction on.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use beeline_inject::{Hold as Held, Loaded, Watched, holds, regions_of};

use super::Tracees;
use super::candidates::is_part_of_us;
use crate::error::Error;
use crate::fanotify::{Gate, HeldOpen, Inode, Opens};
use crate::proc;
use crate::retry_open;
use crate::scope::Scope;
use crate::target::Hold;

/// The longest time that an open is held.
const LONGEST: Duration = Duration::from_millis(200);
/// The longest wait for a process that is to run a program, after its open is let go.
const LONGEST_EXEC: Duration = Duration::from_secs(1);
/// The interval at which held opens, and a possible stop of Beeline, are checked.
const LOOK: Duration = Duration::from_millis(20);
/// Descriptors that are left for other uses. Each held open takes a descriptor and fails if there
/// is none.
const DESCRIPTORS_LEFT: u64 = 512;

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct Openers {
    gate: Option<Gate>,
    /// Present while opens are held: if Beeline is stopped, it first lets them pass.
    holding: Option<Held>,
    thread: Option<JoinHandle<()>>,
    /// True once holding has failed; the user knows.
    has_failed: bool,
}

/// An open that is held.
struct Waiting {
    since: Instant,
    open: Weak<HeldOpen>,
    /// Set when its program is not waited for any more.
    given_up: Arc<AtomicBool>,
}

impl Waiting {
    /// Lets the process go on if it has waited too long. Returns false if nothing more is to be
    /// done.
    fn look(&self) -> bool {
        let waited = self.since.elapsed();
        let is_over = waited > LONGEST || holds().are_to_end();
        if let Some(open) = self.open.upgrade().filter(|_| is_over) {
            open.pass();
        }
        if waited > LONGEST_EXEC {
            self.given_up.store(true, SeqCst);
        }
        waited <= LONGEST_EXEC
    }
}

impl Tracees {
    /// Holds processes that open one of the files that are now sought in all processes, and no
    /// others.
    pub(super) fn hold_openers(self: &Arc<Self>) {
        let links = self.links();
        let is_sought =
            self.scope == Scope::All && self.calls.lock().is_empty() && !holds().are_to_end();
        let wide = links.iter().filter(|link| is_sought && link.pid.is_none());
        let places = wide.flat_map(|link| link.places());
        let files: BTreeMap<Inode, &Path> =
            places.map(|place| (place.inode(), &*place.path)).collect();
        if let Err(error) = self.hold_opens_of(&files) {
            (self.report)(&format!(
                "opens of probed files cannot be held (fanotify: {error}): a program that ends within a tenth of a second, or a library \
                 that is loaded for as long, may be missed; run as root, or probe a system call as well"
            ));
        }
    }

    /// Sets the files for which opens are held. An error is returned once; from then on nothing is
    /// held.
    fn hold_opens_of(self: &Arc<Self>, files: &BTreeMap<Inode, &Path>) -> std::io::Result<()> {
        let mut openers = self.openers.lock();
        let is_idle = files.is_empty() && openers.gate.is_none();
        if is_idle || openers.has_failed || self.stop.load(SeqCst) {
            return Ok(());
        }
        let outcome = self.change_gate(&mut openers, files);
        if outcome.is_err() {
            openers.gate = None;
            openers.holding = None;
            openers.has_failed = true;
        }
        outcome
    }

    fn change_gate(
        self: &Arc<Self>,
        openers: &mut Openers,
        files: &BTreeMap<Inode, &Path>,
    ) -> std::io::Result<()> {
        let gate = match &mut openers.gate {
            Some(gate) => gate,
            None => {
                let gate = Gate::new()?;
                let (opens, tracees) = (gate.opens(), self.clone());
                let thread = std::thread::Builder::new().name("beeline-opens".into());
                openers.thread = Some(thread.spawn(move || tracees.attend_openers(&opens))?);
                openers.gate.insert(gate)
            }
        };
        if !files.is_empty() {
            openers.holding.get_or_insert_with(Held::begin);
        }
        if !are_descriptors_left() {
            return Err(rustix::io::Errno::MFILE.into());
        }
        gate.hold(files)?;
        if gate.is_open() {
            openers.holding = None;
        }
        Ok(())
    }

    /// Stops holding opens at the session's end. When the returned thread has ended, no process is
    /// held any more.
    pub(super) fn let_openers_pass(&self) -> Option<JoinHandle<()>> {
        std::mem::take(&mut *self.openers.lock()).thread
    }

    /// Makes held processes targets until the session ends.
    ///
    /// This thread opens no file that may be probed, and takes no lock under which another thread
    /// may open one.
    fn attend_openers(self: &Arc<Self>, opens: &Opens) {
        let own = std::process::id() as i32;
        let mut waiting = Vec::<Waiting>::new();
        while !self.stop.load(SeqCst) {
            for open in opens.next(LOOK) {
                let pid = proc::process_of(open.tid());
                let pid = pid.filter(|pid| *pid != own && !holds().are_to_end());
                waiting.extend(pid.and_then(|pid| self.attend_open(pid, open)));
            }
            waiting.retain(Waiting::look);
        }
        waiting
            .iter()
            .for_each(|one| one.given_up.store(true, SeqCst));
    }

    /// Hands one held open to another thread.
    fn attend_open(self: &Arc<Self>, pid: i32, open: HeldOpen) -> Option<Waiting> {
        let open = Arc::new(open);
        let waiting = Waiting {
            since: Instant::now(),
            open: Arc::downgrade(&open),
            given_up: Arc::default(),
        };
        let (tracees, given_up) = (self.clone(), waiting.given_up.clone());
        let work = move || {
            // If the process may not be traced, that is reported when it maps the file.
            let _ = match (tracees.is_to_come(pid), open.is_exec()) {
                (false, _) => Ok(()),
                (true, true) => tracees.follow_opener(pid, &open, given_up),
                (true, false) => tracees.come_to_opener(pid, open),
            };
        };
        self.exec_waiters.follow(work).ok()?;
        Some(waiting)
    }

    /// True if a process is to be a target, and is neither one yet nor about to be.
    fn is_to_come(&self, pid: i32) -> bool {
        let tool = self.tool.load(SeqCst);
        let is_ours = pid == std::process::id() as i32
            || pid == tool
            || self.descendants.tools().contains(&pid)
            || is_part_of_us(pid);
        if is_ours || self.is_dismissed(pid) {
            return false;
        }
        if self.starting.lock().contains_key(&pid) || self.execs.lock().contains_key(&pid) {
            return false;
        }
        let target = self.targets.lock().get(&pid).cloned();
        // A target that is being worked on reports what it maps, or is about to.
        target.is_none_or(|target| target.try_lock().is_some_and(|target| !target.follows()))
    }

    /// Makes a process a target that reports what it maps from now on, if it opens the file to map
    /// it.
    fn come_to_opener(self: &Arc<Self>, pid: i32, open: Arc<HeldOpen>) -> Result<(), Error> {
        if !is_loading(pid, open.tid()) {
            return Ok(());
        }
        let process = self.open(pid)?;
        let (Some(target), cleared) = self.make_target(&process) else {
            return Ok(());
        };
        cleared?;
        self.plan_calls(&process);
        let mut target = target.lock();
        let mut stopped = process.stop_releasing(move || open.pass())?;
        let wanted = self.wanted_of_calls(pid);
        self.follow_for_functions(&mut target, &wanted, &mut Hold::Held(&mut stopped));
        Ok(())
    }

    /// Makes a process a target that is about to run a probed program.
    fn follow_opener(
        self: &Arc<Self>,
        pid: i32,
        open: &HeldOpen,
        given_up: Arc<AtomicBool>,
    ) -> Result<(), Error> {
        let process = self.open(pid)?;
        let watched = retry_open::past_all_but_starter(|| {
            Ok(Watched::seize_from_here(&process, open.tid())?)
        })?;
        self.execs.lock().insert(pid, given_up.clone());
        self.give_up_at_the_end(&given_up);
        open.pass();
        let outcome =
            watched.run_until_exec(&given_up, |stopped| self.has_run_exec(&process, stopped));
        self.execs
            .lock()
            .retain(|_, other| !Arc::ptr_eq(other, &given_up));
        match outcome? {
            Loaded::Ready(outcome) => outcome,
            Loaded::Ended => Ok(()),
        }
    }
}

/// True if a thread waits in an open of its process's loader, and not of a program that reads the
/// file.
fn is_loading(pid: i32, tid: i32) -> bool {
    let Some(ip) = proc::ip_in_call(pid, tid) else {
        return false;
    };
    let regions = regions_of(pid).unwrap_or_default();
    let region = regions.iter().find(|region| region.contains(ip));
    let name = region.and_then(|region| region.path.file_name());
    name.is_some_and(|name| name.as_encoded_bytes().starts_with(b"ld"))
}

/// The kernel hands out the lowest number that is free.
fn are_descriptors_left() -> bool {
    use rustix::process::{Resource, getrlimit};
    let most = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let next = rustix::fs::memfd_create("beeline-next", rustix::fs::MemfdFlags::CLOEXEC);
    next.is_ok_and(|next| std::os::fd::AsRawFd::as_raw_fd(&next) as u64 + DESCRIPTORS_LEFT <= most)
}

//! Catches processes that open a probed file before they are targets.
//!
//! If Beeline is root, the kernel holds such processes until they are targets. A session then sees
//! short-lived programs and libraries from their first instruction on.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use beeline_inject::{Hold as Held, Loaded, Watched, holds, regions_of};

use super::Tracees;
use super::admission::is_part_of_us;
use super::waits::GivenUp;
use crate::error::Error;
use crate::fanotify::{Gate, HeldOpen, Inode, Opens};
use crate::proc;
use crate::retry_open;
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
    given_up: GivenUp,
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

impl Openers {
    /// Sets the files for which opens are held, for a session that goes on. An error is returned
    /// once; from then on nothing is held. `serve` makes held processes targets, on a thread of its
    /// own.
    fn hold(
        &mut self,
        files: &BTreeMap<Inode, &Path>,
        serve: impl FnOnce(Opens) + Send + 'static,
    ) -> io::Result<()> {
        let is_idle = files.is_empty() && self.gate.is_none();
        if is_idle || self.has_failed {
            return Ok(());
        }
        let outcome = self.change_gate(files, serve);
        if outcome.is_err() {
            self.gate = None;
            self.holding = None;
            self.has_failed = true;
        }
        outcome
    }

    fn change_gate(
        &mut self,
        files: &BTreeMap<Inode, &Path>,
        serve: impl FnOnce(Opens) + Send + 'static,
    ) -> io::Result<()> {
        let gate = match &mut self.gate {
            Some(gate) => gate,
            None => {
                let gate = Gate::new()?;
                let opens = gate.opens();
                let thread = std::thread::Builder::new().name("beeline-opens".into());
                self.thread = Some(thread.spawn(move || serve(opens))?);
                self.gate.insert(gate)
            }
        };
        if !files.is_empty() {
            self.holding.get_or_insert_with(Held::begin);
        }
        if !are_descriptors_left() {
            return Err(rustix::io::Errno::MFILE.into());
        }
        gate.hold(files)?;
        if gate.is_open() {
            self.holding = None;
        }
        Ok(())
    }

    /// Stops holding opens at the session's end. When the returned thread has ended, no process is
    /// held any more.
    pub fn let_pass(&mut self) -> Option<JoinHandle<()>> {
        std::mem::take(self).thread
    }
}

impl Tracees {
    /// Holds processes that open one of the files that are now sought in all processes, and no
    /// others.
    pub(super) fn hold_openers(self: &Arc<Self>) {
        let links = self.registry.functions();
        let is_sought =
            !self.registry.is_narrow() && !self.registry.has_calls() && !holds().are_to_end();
        let wide = links.iter().filter(|link| is_sought && link.pid.is_none());
        let places = wide.flat_map(|link| link.places());
        let files: BTreeMap<Inode, &Path> =
            places.map(|place| (place.inode(), &*place.path)).collect();
        let mut openers = self.openers.lock();
        if self.has_ended() {
            return;
        }
        let server = OpenerServer {
            tracees: self.clone(),
        };
        let outcome = openers.hold(&files, move |opens| server.run(&opens));
        drop(openers);
        if let Err(error) = outcome {
            self.diagnostics.say(&format!(
                "opens of probed files cannot be held (fanotify: {error}): a program that ends within a tenth of a second, or a library \
                 that is loaded for as long, may be missed; run as root, or probe a system call as well"
            ));
        }
    }
}

/// Makes processes targets that open a probed file.
#[derive(Clone)]
struct OpenerServer {
    tracees: Arc<Tracees>,
}

impl OpenerServer {
    /// Makes held processes targets until the session ends.
    ///
    /// This thread opens no file that may be probed, and takes no lock under which another thread
    /// may open one.
    fn run(&self, opens: &Opens) {
        let own = std::process::id() as i32;
        let mut waiting = Vec::<Waiting>::new();
        while !self.tracees.has_ended() {
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
    fn attend_open(&self, pid: i32, open: HeldOpen) -> Option<Waiting> {
        let open = Arc::new(open);
        let waiting = Waiting {
            since: Instant::now(),
            open: Arc::downgrade(&open),
            given_up: Arc::default(),
        };
        let (server, given_up) = (self.clone(), waiting.given_up.clone());
        let work = move || {
            // If the process may not be traced, that is reported when it maps the file.
            let _ = match (server.is_to_come(pid), open.is_exec()) {
                (false, _) => Ok(()),
                (true, true) => server.follow_opener(pid, &open, given_up),
                (true, false) => server.come_to_opener(pid, open),
            };
        };
        self.tracees.waits.follow(work).ok()?;
        Some(waiting)
    }

    /// True if a process is to be a target, and is neither one yet nor about to be.
    fn is_to_come(&self, pid: i32) -> bool {
        let tracees = &self.tracees;
        let is_ours = pid == std::process::id() as i32
            || tracees.admission.is_tool(pid)
            || is_part_of_us(pid);
        if is_ours || tracees.targets.is_dismissed(pid) || tracees.waits.has(pid) {
            return false;
        }
        let target = tracees.targets.table.get(pid);
        // A target that is being worked on reports what it maps, or is about to.
        target.is_none_or(|target| target.try_lock().is_some_and(|target| !target.follows()))
    }

    /// Makes a process a target that reports what it maps from now on, if it opens the file to map
    /// it.
    fn come_to_opener(&self, pid: i32, open: Arc<HeldOpen>) -> Result<(), Error> {
        if !is_loading(pid, open.tid()) {
            return Ok(());
        }
        let process = self.tracees.targets.open(pid)?;
        let (Some(target), cleared) = self.tracees.targets.make(&process)? else {
            return Ok(());
        };
        cleared?;
        self.tracees.plan_calls(&process);
        let mut target = target.lock();
        let mut stopped = process.stop_releasing(move || open.pass())?;
        let wanted = self.tracees.targets.wanted_of_calls(pid);
        self.tracees
            .follow_for_functions(&mut target, &wanted, &mut Hold::Held(&mut stopped));
        Ok(())
    }

    /// Makes a process a target that is about to run a probed program.
    fn follow_opener(&self, pid: i32, open: &HeldOpen, given_up: GivenUp) -> Result<(), Error> {
        let tracees = &self.tracees;
        let process = self.tracees.targets.open(pid)?;
        let watched = retry_open::past_all_but_starter(|| {
            Ok(Watched::seize_from_here(&process, open.tid())?)
        })?;
        tracees.waits.wait_for_exec(pid, &given_up);
        open.pass();
        let outcome =
            watched.run_until_exec(&given_up, |stopped| tracees.has_run_exec(&process, stopped));
        tracees.waits.end_exec(&given_up);
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

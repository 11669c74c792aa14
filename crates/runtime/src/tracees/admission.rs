//! Admission: which processes the session looks at, and which of those it may trace.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicI32, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use beeline_codegen::worker::LLVM;
use beeline_inject::{Confinement, Options, Process, Seccomp};
use parking_lot::Mutex;

use super::descendants::Descendants;
use super::process_table::ProcessTable;
use super::program;
use crate::confinement::{self, filters_of};
use crate::error::Error;
use crate::proc::{parent, start_time};
use crate::retry_open;
use crate::scope::Scope;

/// The time that a process that was let go gets to install its seccomp filter. After that the
/// kernel says that it is under one.
const LEFT_ALONE: Duration = Duration::from_secs(1);

/// See the module documentation. Under `processes` the locks of [`Descendants`] are taken; the
/// others are leaves.
pub(super) struct Admission {
    scope: Scope,
    /// The tool's process; 0 before it is started.
    tool: Arc<AtomicI32>,
    /// The processes that the tool has started.
    pub descendants: Descendants,
    /// The number of seccomp filters that the tool was started under. The last is the supervisor's.
    filters: OnceLock<u32>,
    processes: Mutex<ProcessTable>,
    /// Processes that were let go because they are about to be under a seccomp filter, and when.
    confined: Mutex<BTreeMap<i32, Instant>>,
    /// Processes that `beeline detach` has taken the session out of, and when they started.
    dismissed: Mutex<BTreeMap<i32, Option<u64>>>,
}

impl Admission {
    pub fn new(scope: Scope, tool: Arc<AtomicI32>) -> Self {
        Self {
            scope,
            tool,
            descendants: Descendants::default(),
            filters: OnceLock::new(),
            processes: Mutex::default(),
            confined: Mutex::default(),
            dismissed: Mutex::default(),
        }
    }

    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    /// Returns the tool's process, or 0.
    pub fn tool(&self) -> i32 {
        self.tool.load(SeqCst)
    }

    /// Records that the tool has been started and is under no filter of its own yet.
    pub fn tool_started(&self, tool: i32) {
        if let Some(filters) = filters_of(tool) {
            let _ = self.filters.set(filters);
        }
    }

    /// True for the tool, and for its descendants that make eBPF calls.
    pub fn is_tool(&self, pid: i32) -> bool {
        pid == self.tool() || self.descendants.tools().contains(&pid)
    }

    /// True for a process that the tool has started, or that descends from one.
    pub fn is_child(&self, pid: i32) -> bool {
        let tool = self.tool();
        tool != 0 && self.descendants.has(pid, tool)
    }

    /// True if the session depends on which processes exist.
    pub fn looks_around(&self) -> bool {
        self.scope.looks_around()
    }

    /// Refreshes the process table. Returns the new processes, and true if it was time to look.
    pub fn look_around(&self) -> (BTreeSet<i32>, bool) {
        let mut processes = self.processes.lock();
        let has_looked = processes.look();
        (processes.young(), has_looked)
    }

    /// Forgets whether new members are descendants, so that they are asked about anew.
    pub fn doubt_new_descendants(&self) {
        let members = self.descendants.take_new();
        self.processes.lock().doubt(&members);
    }

    /// Notes that processes run other programs now, unless they have ended.
    pub fn renew(&self, pids: &[i32]) {
        self.processes.lock().renew(pids);
    }

    /// Returns the processes that a link may concern. `only` is the one that the link itself names.
    pub fn candidates_now(&self, only: Option<i32>) -> Vec<i32> {
        if only.is_none() && self.looks_around() {
            self.processes.lock().list();
        }
        self.candidates(only)
    }

    /// The same, for the processes that were there at the last look.
    pub fn candidates(&self, only: Option<i32>) -> Vec<i32> {
        let (own, tool) = (std::process::id() as i32, self.tool());
        let tools = self.descendants.tools();
        let mut found = match (only, &self.scope) {
            (Some(pid), _) => return vec![pid],
            (None, Scope::Processes(pids)) => return pids.clone(),
            (None, Scope::All) => self.processes.lock().pids(),
            (None, Scope::Children) => {
                let is_member = |pid| self.descendants.is_member(pid, tool);
                self.processes.lock().descendants((tool, &tools), is_member)
            }
        };
        let is_ours = |pid: &i32| *pid == own || *pid == tool || tools.contains(pid);
        found.retain(|pid| !is_ours(pid));
        found
    }

    /// Opens a process. New dismissals must have been noted.
    ///
    /// Descendants of the tool are under the supervisor's filter, which lets Beeline's calls pass.
    /// Other filters, and further ones, are looked at: see [`confinement`].
    ///
    /// # Errors
    ///
    /// The process was let go for its filter a moment ago, `beeline detach` has taken the session
    /// out of it, or it may not be traced: see [`Process::open`].
    pub fn open(&self, pid: i32) -> Result<Process, Error> {
        self.check(pid)?;
        match self.is_under_ours(pid) {
            true => retry_open::open(pid, Seccomp::Trust),
            false => confinement::open(pid),
        }
    }

    /// Opens a copy that `fork` has made of a process, which waits for Beeline.
    ///
    /// # Errors
    ///
    /// Those of [`Self::open`].
    pub fn open_copy(&self, pid: i32, of: &Process) -> Result<Process, Error> {
        self.check(pid)?;
        match self.is_under_ours(pid) {
            true => retry_open::open_copy(pid, Seccomp::Trust, of),
            false => confinement::open(pid),
        }
    }

    /// Opens a descendant of the tool, a thread of which waits for Beeline meanwhile. `None` if that
    /// may take long, because something holds the process or its filters have to be looked at.
    ///
    /// # Errors
    ///
    /// Those of [`Self::open`].
    pub fn open_at_once(&self, pid: i32) -> Result<Option<Process>, Error> {
        self.check(pid)?;
        let seccomp = Seccomp::Trust;
        let is_ours = self.is_under_ours(pid);
        Ok(is_ours
            .then(|| Process::open_with(pid, Options { seccomp }).ok())
            .flatten())
    }

    /// True if a process that was opened before is still under no filter but the supervisor's.
    ///
    /// # Errors
    ///
    /// As [`Self::open`], if it is to be left alone now.
    pub fn may_stay_in(&self, pid: i32) -> Result<bool, Error> {
        self.check(pid)?;
        Ok(self.is_under_ours(pid))
    }

    /// Fails for a process that is to be left alone now.
    fn check(&self, pid: i32) -> Result<(), Error> {
        self.check_if_confining(pid)?;
        match self.is_dismissed(pid) {
            true => Err(Error::Target {
                pid,
                why: "`beeline detach` has taken this session out of it".into(),
            }),
            false => Ok(()),
        }
    }

    /// True for a descendant of the tool that is under the supervisor's filter alone.
    fn is_under_ours(&self, pid: i32) -> bool {
        let tool = self.tool();
        tool != 0
            && self.filters.get().copied() == filters_of(pid)
            && self.descendants.has(pid, tool)
    }

    /// Notes that a process is being let go for the filter that it is about to install.
    pub fn confine(&self, pid: i32) {
        self.confined.lock().insert(pid, Instant::now());
    }

    /// Fails for a process that was let go for a filter a moment ago.
    ///
    /// # Errors
    ///
    /// [`Error::Inject`] with [`beeline_inject::Error::Seccomp`] for such a process.
    pub fn check_if_confining(&self, pid: i32) -> Result<(), Error> {
        let mut confined = self.confined.lock();
        confined.retain(|_, since| since.elapsed() < LEFT_ALONE);
        match confined.contains_key(&pid) {
            true => {
                let why = "it is just coming under a filter".to_owned();
                let why = Confinement::Unknown { why };
                Err(beeline_inject::Error::Seccomp { pid, why }.into())
            }
            false => Ok(()),
        }
    }

    /// Notes that `beeline detach` has taken the session out of a process: it is left alone.
    pub fn dismiss(&self, pid: i32) {
        self.dismissed.lock().insert(pid, start_time(pid));
    }

    /// True if the session was taken out of this process, or is being taken out.
    pub fn is_dismissed(&self, pid: i32) -> bool {
        let since = self.dismissed.lock().get(&pid).copied();
        since.is_some_and(|since| since == start_time(pid))
    }

    /// Forgets dismissed processes that have ended.
    pub fn forget_dismissed(&self) {
        self.dismissed
            .lock()
            .retain(|pid, since| *since == start_time(*pid));
    }
}

/// True for a process that Beeline has started beside the tool: a compiler, or a process about to
/// become one.
///
/// Not every child of Beeline is one: the first process of a container adopts all processes that
/// have lost their parents.
pub(super) fn is_part_of_us(pid: i32) -> bool {
    let own = std::process::id() as i32;
    let is_compiler = |file: &PathBuf| {
        let name = file.file_name().map(OsStr::as_encoded_bytes);
        name.is_some_and(|name| name.starts_with(LLVM.as_bytes()))
            || program(own).as_ref() == Some(file)
    };
    parent(pid) == Some(own) && program(pid).as_ref().is_some_and(is_compiler)
}

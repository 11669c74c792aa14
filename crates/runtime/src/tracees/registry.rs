//! The attach registry: the links that processes get, and where attaching them has failed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use beeline_agent::abi::{SEEKS_CALLS, SEEKS_FUNCTIONS};
use parking_lot::Mutex;

use crate::backend::Id;
use crate::link::{CallLink, Uprobe};
use crate::scope::Scope;

/// The pause before a process that could not be attached to is tried again.
const PAUSE: Duration = Duration::from_secs(5);

/// See the module documentation. Its locks are leaves: nothing else is locked under them.
pub(super) struct Registry {
    scope: Scope,
    functions: Mutex<BTreeMap<Id, Arc<Uprobe>>>,
    calls: Mutex<BTreeMap<Id, Arc<CallLink>>>,
    /// Attachments that failed, so that each is reported once and retried seldom.
    failures: Mutex<BTreeMap<(i32, Id), Instant>>,
}

impl Registry {
    pub fn new(scope: Scope) -> Self {
        Self {
            scope,
            functions: Mutex::default(),
            calls: Mutex::default(),
            failures: Mutex::default(),
        }
    }

    pub fn add(&self, link: &Arc<Uprobe>) {
        self.functions.lock().insert(link.id, link.clone());
    }

    pub fn remove(&self, link: Id) {
        self.functions.lock().remove(&link);
    }

    pub fn add_call(&self, link: &Arc<CallLink>) {
        self.calls.lock().insert(link.id, link.clone());
    }

    pub fn remove_call(&self, link: Id) {
        self.calls.lock().remove(&link);
    }

    /// Removes all links.
    pub fn clear(&self) {
        self.functions.lock().clear();
        self.calls.lock().clear();
    }

    /// Returns the links to functions.
    pub fn functions(&self) -> Vec<Arc<Uprobe>> {
        self.functions.lock().values().cloned().collect()
    }

    pub fn has_functions(&self) -> bool {
        !self.functions.lock().is_empty()
    }

    /// Returns the links to system calls.
    pub fn calls(&self) -> Vec<Arc<CallLink>> {
        self.calls.lock().values().cloned().collect()
    }

    pub fn has_calls(&self) -> bool {
        !self.calls.lock().is_empty()
    }

    /// True if the user has named the processes that the session may reach.
    pub fn is_narrow(&self) -> bool {
        self.scope.is_narrow()
    }

    /// True if the link concerns a process that the user named.
    pub fn is_named(&self, link: &Uprobe) -> bool {
        link.pid.is_some() || self.is_narrow()
    }

    /// True if the system calls of any process are hooked. Children of processes of the scope are
    /// then traced as their parents are.
    pub fn hooks_calls(&self) -> bool {
        self.has_calls() || self.follows_programs_for_functions()
    }

    /// True if programs that the tool starts are followed.
    pub fn follows_programs(&self) -> bool {
        self.scope.looks_around() && (self.has_calls() || self.has_wide_function())
    }

    /// True if programs that a tool starts are followed for probed functions too. Such a program is
    /// short-lived, and the work of its children is counted.
    fn follows_programs_for_functions(&self) -> bool {
        self.scope.looks_around() && self.has_wide_function()
    }

    /// True if a link to functions is for all processes of the scope.
    fn has_wide_function(&self) -> bool {
        let functions = self.functions.lock();
        functions.values().any(|link| link.pid.is_none())
    }

    /// Returns the `SEEKS_*` flags for the code that starts processes.
    pub fn seeks(&self) -> u32 {
        let mut sought = 0;
        if self.is_narrow() {
            return sought;
        }
        if self.has_calls() {
            sought |= SEEKS_CALLS;
        }
        if self.has_wide_function() {
            sought |= SEEKS_FUNCTIONS;
        }
        sought
    }

    /// Notes that a link could not be attached to a process. Returns true for the first time.
    pub fn note_failure(&self, pid: i32, link: Id) -> bool {
        let mut failures = self.failures.lock();
        failures.insert((pid, link), Instant::now()).is_none()
    }

    /// True if a link could not be attached to a process a moment ago.
    pub fn has_failed_lately(&self, pid: i32, link: Id) -> bool {
        let failures = self.failures.lock();
        let since = failures.get(&(pid, link));
        since.is_some_and(|since| since.elapsed() < PAUSE)
    }

    /// Forgets the failures of processes that run other programs now.
    pub fn forget_failures(&self, pids: &[i32]) {
        let mut failures = self.failures.lock();
        failures.retain(|(pid, _), _| !pids.contains(pid));
    }
}

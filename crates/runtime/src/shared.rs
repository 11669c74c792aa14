//! The state that all targets of a session share.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};

use beeline_inject::Unblocked;
use beeline_verifier::types::KernelTypes;
use parking_lot::Mutex;

use crate::agent::Agent;
use crate::cgroup::Cgroups;
use crate::domain::Domains;
use crate::file_syscalls::CallFiles;
use crate::link::Files;
use crate::rules::{Isolation, Rules, Stacks};
use crate::stack_tables::StackTables;
use crate::tasks::TaskLayout;

/// See the module documentation.
#[derive(Debug)]
pub struct Shared {
    /// The agent.
    pub agent: Arc<Agent>,
    /// The groups of processes that may share memory.
    pub domains: Arc<Domains>,
    /// The rule by which targets are assigned to them.
    pub isolation: Isolation,
    /// The number of CPUs that per-CPU values are kept for.
    pub cpus: u32,
    /// The tool's command line.
    pub tool: Vec<OsString>,
    /// Files that probes are placed in.
    pub files: Files,
    /// Files with hooked system calls.
    pub calls: CallFiles,
    /// The unwind tables of files.
    pub stack_tables: StackTables,
    /// The way of walks along stacks.
    pub stacks: Stacks,
    /// The cgroups that targets are told of.
    pub cgroups: Cgroups,
    /// The number of times that an element of a map of objects was removed or replaced, or a link
    /// detached. Each may put something out of reach.
    pub removals: AtomicU64,
    /// Threads by process that are to block SIGTRAP again when the session leaves.
    unblocked: Mutex<BTreeMap<i32, BTreeSet<Unblocked>>>,
    /// See [`Self::task_layout`].
    task_layout: OnceLock<Option<TaskLayout>>,
    /// See [`Self::kernel_types`].
    kernel_types: OnceLock<Option<KernelTypes>>,
}

impl Shared {
    /// Makes the files of a new session.
    ///
    /// # Errors
    ///
    /// Those of [`Agent::new`] and [`Domains::new`].
    pub fn new(tool: Vec<OsString>, cpus: u32, rules: Rules) -> io::Result<Self> {
        Ok(Self {
            agent: Arc::new(Agent::new()?),
            domains: Arc::new(Domains::new()?),
            isolation: rules.isolation,
            cpus,
            tool,
            files: Files::default(),
            calls: CallFiles::default(),
            stack_tables: StackTables::default(),
            stacks: rules.stacks,
            cgroups: Cgroups::default(),
            removals: AtomicU64::new(0),
            unblocked: Mutex::default(),
            task_layout: OnceLock::new(),
            kernel_types: OnceLock::new(),
        })
    }

    /// Notes threads of a process that no longer block SIGTRAP, because they may trap.
    pub fn note_unblocked(&self, pid: i32, threads: Vec<Unblocked>) {
        if !threads.is_empty() {
            let mut unblocked = self.unblocked();
            unblocked.entry(pid).or_default().extend(threads);
        }
    }

    /// Notes that some objects may have become unreachable.
    pub fn note_removal(&self) {
        self.removals.fetch_add(1, SeqCst);
    }

    /// The processes that [`Self::note_unblocked`] has noted threads of.
    pub fn processes_unblocked(&self) -> Vec<i32> {
        self.unblocked().keys().copied().collect()
    }

    /// Takes the threads that [`Self::note_unblocked`] has noted for a process.
    pub fn take_unblocked(&self, pid: i32) -> BTreeSet<Unblocked> {
        self.unblocked().remove(&pid).unwrap_or_default()
    }

    fn unblocked(&self) -> parking_lot::MutexGuard<'_, BTreeMap<i32, BTreeSet<Unblocked>>> {
        self.unblocked.lock()
    }

    /// Returns the layout of a task in the running kernel, or `None` if the kernel does not
    /// describe it. It is read at the first call.
    pub fn task_layout(&self) -> Option<&TaskLayout> {
        self.task_layout.get_or_init(TaskLayout::of_kernel).as_ref()
    }

    /// Returns the running kernel's structures, which programs may look at, or `None` if the kernel
    /// does not describe them. They are read at the first call.
    pub fn kernel_types(&self) -> Option<&KernelTypes> {
        let read = || KernelTypes::new(std::fs::read("/sys/kernel/btf/vmlinux").ok()?);
        self.kernel_types.get_or_init(read).as_ref()
    }
}

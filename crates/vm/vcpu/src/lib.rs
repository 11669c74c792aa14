//! Pinning of virtual CPUs: a guest's wishes for its CPUs, carried out on the threads that run
//! them.
//!
//! A thread in a guest that binds itself to a CPU (`sched_setaffinity`) means a core with its
//! caches and its neighbours. But the virtual CPU behind it is a thread of QEMU's that the host's
//! scheduler moves about. Here the host has programs of its own in the guest
//! ([`beeline_vm_loader`]), which keep the masks of threads there. It asks QEMU which thread runs
//! which virtual CPU ([`beeline_vm_qmp`]), and pins those threads as a [`Plan`] says: onto CPUs
//! that the operator gave, and no others. A pin is undone when the guest's thread ends or is free
//! again, when the connection to the guest ends (after a reboot, for example), and when the
//! [`Pinner`] is dropped.
//!
//! A guest cannot make the host spin: it is looked at only every [`PACE`], whatever happens in it.
//! A guest may lie; the worst outcome is pins that the operator allows.
//!
//! Its terms are in docs/glossary.md.

#![forbid(unsafe_code)]

pub mod cpus;
pub mod placement;
mod program;
mod threads;

use std::collections::BTreeSet;
use std::io;
use std::time::{Duration, Instant};

use beeline_vm_loader::{Attachment, Guest, Loaded, Selection, Watching};
use beeline_vm_qmp::Vcpu;

pub use placement::{Mask, Plan, Policy};
pub use threads::Change;

use cpus::CpuList;
use threads::Threads;

/// The shortest pause between two looks at a guest: 50 a second.
pub const PACE: Duration = Duration::from_millis(20);
/// The longest pause: it makes up for a bell that was not heard.
const SWEEP: Duration = Duration::from_secs(1);
/// Rings of the bell that are taken before a look. The ring that they come through holds 256.
const RINGS: usize = 256;

/// The reason why nothing is pinned.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The guest.
    #[error(transparent)]
    Guest(#[from] beeline_vm_loader::Error),
    /// The thread that QEMU names does not exist, or has ended.
    #[error("virtual CPU {vcpu} has no thread {thread} on this host")]
    NoThread {
        /// The virtual CPU.
        vcpu: u32,
        /// The number that QEMU says.
        thread: i32,
    },
    /// QEMU names threads of several processes.
    #[error(
        "the virtual CPUs' threads are not of one process; is that the virtual machine's own monitor?"
    )]
    Strangers,
    /// The host's kernel refuses.
    #[error("virtual CPU {vcpu} (thread {thread}): {cause}")]
    Affinity {
        /// The virtual CPU.
        vcpu: u32,
        /// Its thread on the host.
        thread: i32,
        /// The cause.
        cause: io::Error,
    },
    /// CPUs were given on which the virtual machine may not run.
    #[error(
        "the virtual CPUs may not run on {0} of this host (see taskset -p and the machine's cgroup)"
    )]
    NotAllowed(CpuList),
}

/// The settings.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The policy.
    pub policy: Policy,
    /// The host's CPUs that virtual ones may be pinned to, in this order. If none are given: those
    /// that all of them may run on.
    pub cpus: Option<CpuList>,
}

/// The outcome of a look.
#[derive(Debug)]
pub enum Report {
    /// A thread of the guest is bound to CPUs of the guest.
    Wish {
        /// Its number in the guest.
        thread: u32,
        /// The guest's CPUs.
        vcpus: Vec<u32>,
    },
    /// It is not bound any more.
    Free {
        /// Its number in the guest.
        thread: u32,
    },
    /// A virtual CPU was pinned, or released.
    Done(Change),
    /// A pin or a release has failed.
    Failed(Error),
}

/// Pins a guest's virtual CPUs until it is dropped.
#[derive(Debug)]
pub struct Pinner {
    /// Dropped first: whatever the guest does, the threads are restored.
    threads: Threads,
    plan: Plan,
    loaded: Loaded,
    bound: BTreeSet<(u32, Vec<u32>)>,
    last_look: Option<Instant>,
}

impl Pinner {
    /// Begins: the programs are in the guest, and nothing is pinned yet.
    ///
    /// # Errors
    ///
    /// [`Error::NoThread`], [`Error::Strangers`] or [`Error::Affinity`] if QEMU's threads are not
    /// as they should be, [`Error::NotAllowed`] if they may not run on the given CPUs,
    /// [`Error::Guest`] if the guest does not take the programs.
    pub fn start(guest: Guest, vcpus: &[Vcpu], options: &Options) -> Result<Self, Error> {
        let threads = Threads::new(vcpus)?;
        let allowed = threads.common();
        let cpus = match &options.cpus {
            None => allowed,
            Some(given) => {
                let mut refused = given.clone();
                refused.0.retain(|cpu| !allowed.0.contains(cpu));
                if !refused.0.is_empty() {
                    return Err(Error::NotAllowed(refused));
                }
                given.clone()
            }
        };
        let numbers = vcpus.iter().map(|vcpu| vcpu.index);
        let plan = Plan::new(options.policy, numbers, &cpus, &cpus::cores(&cpus));
        let mut loaded = guest.load(&program::object(), &Selection::default())?;
        loaded.watch(&Watching {
            maps: vec![program::BELL.into()],
            ..Watching::default()
        })?;
        loaded.attach(&Attachment::default())?;
        Ok(Self {
            threads,
            plan,
            loaded,
            bound: BTreeSet::new(),
            last_look: None,
        })
    }

    /// Returns the plan that says which virtual CPU is pinned where.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Waits until the guest has news, a second at the most, or an
    /// [interruption](beeline_vm_loader::Interrupter); then pins and releases as needed. After an
    /// error there is no guest any more: drop this, and all pins are undone.
    ///
    /// # Errors
    ///
    /// [`Error::Guest`]. Pins and releases that fail are [`Report::Failed`].
    pub fn step(&mut self) -> Result<Vec<Report>, Error> {
        let sweep = self
            .last_look
            .map_or_else(Instant::now, |last| last + SWEEP);
        let rang = self.loaded.next_event(Some(sweep))?.is_some();
        if !rang && Instant::now() < sweep {
            return Ok(Vec::new());
        }
        if let Some(last) = self.last_look {
            std::thread::sleep((last + PACE).saturating_duration_since(Instant::now()));
        }
        for _ in 0..RINGS {
            if self.loaded.next_event(Some(Instant::now()))?.is_none() {
                break;
            }
        }
        self.last_look = Some(Instant::now());
        self.look()
    }

    fn look(&mut self) -> Result<Vec<Report>, Error> {
        let wishes = self.loaded.map(program::WISHES)?.elements()?;
        let bound: BTreeSet<(u32, Vec<u32>)> = wishes
            .iter()
            .filter_map(|(thread, mask)| {
                let thread = u32::from_ne_bytes(thread.as_slice().try_into().ok()?);
                Some((thread, self.plan.bound(mask)))
            })
            .filter(|(_, vcpus)| !vcpus.is_empty())
            .collect();
        let mut reports = Vec::new();
        for (thread, vcpus) in bound.difference(&self.bound) {
            let (thread, vcpus) = (*thread, vcpus.clone());
            reports.push(Report::Wish { thread, vcpus });
        }
        for (thread, _) in &self.bound {
            if !bound.iter().any(|(other, _)| other == thread) {
                reports.push(Report::Free { thread: *thread });
            }
        }
        self.bound = bound;
        let pins = self.plan.pins(wishes.values());
        let done = self.threads.apply(&pins).into_iter();
        reports.extend(done.map(|done| match done {
            Ok(change) => Report::Done(change),
            Err(error) => Report::Failed(error),
        }));
        Ok(reports)
    }
}

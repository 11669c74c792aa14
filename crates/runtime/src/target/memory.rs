//! A target's memory as Beeline uses it: its own mappings there, and the facts that programs find.

use std::collections::BTreeMap;
use std::mem::offset_of;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use beeline_agent::abi::{self, Control, Site};
use beeline_inject::{Mapping, Process, Region, Stopped};

use super::home::{Home, MANIFEST_START, manifest_start};
use super::modules::Walks;
use super::signals::Signals;
use super::syscall_patches::StoredPatch;
use super::{Hold, mapping};
use crate::backend::Id;
use crate::detach::Layers;
use crate::domain::Domain;
use crate::environment::Environment;
use crate::error::{Error, os};
use crate::private::find_tid_offset;
use crate::proc;
use crate::program::Program;
use crate::retry_open;
use crate::rules::Isolation;
use crate::shared::Shared;
use crate::trampoline_pool::Pool;

/// The time that a new program gets to set up its threads before they are looked at, for each look.
const SETTLED: Duration = Duration::from_millis(200);
/// The number of looks: some threads never keep their ids.
const LOOKS: u32 = 3;

/// A target's process, and what is mapped into it.
#[derive(Debug)]
pub(super) struct TargetMemory {
    pub process: Process,
    /// Marks what the process holds in shared memory.
    pub owner: u32,
    pub shared: Arc<Shared>,
    /// The processes that share memory with it.
    pub domain: Arc<Domain>,
    pub environment: Option<Environment>,
    /// True once its private memory holds what programs have to find there.
    pub is_filled: bool,
    pub home: Arc<OnceLock<Home>>,
    /// Pools near sites that the home pool is too far from.
    pub far_pools: Vec<Pool>,
    /// The patches stored at system calls, by address. Shared with forked children, most of which
    /// run another program next.
    pub syscall_patches: Arc<BTreeMap<u64, StoredPatch>>,
    /// The value of [`Shared::removals`] at the last search for maps out of reach.
    pub removals: u64,
    /// The preparations for walks of its stacks.
    pub walks: Walks,
    /// When it became a target.
    pub since: Instant,
    /// One more than the number of times that ids were looked for.
    looks: u32,
}

impl TargetMemory {
    /// Creates the memory of a process that may be traced. The process is not touched yet.
    pub fn new(process: Process, owner: u32, shared: Arc<Shared>, domain: Arc<Domain>) -> Self {
        Self {
            process,
            owner,
            shared,
            domain,
            environment: None,
            is_filled: false,
            home: Arc::default(),
            far_pools: Vec::new(),
            syscall_patches: Arc::default(),
            removals: 0,
            walks: Walks::default(),
            since: Instant::now(),
            looks: 1,
        }
    }

    /// Creates the memory of a forked child, in the place of its copies of this one. Other mappings
    /// of Beeline's in the child are passed as `others`.
    ///
    /// # Errors
    ///
    /// [`Error::Os`] if a pool cannot be copied or the child's memory cannot be written,
    /// [`Error::Inject`] if the child cannot be stopped or nothing can be mapped into it,
    /// [`Error::Target`] if it runs another program by now.
    pub fn fork<'m>(
        &self,
        process: &Process,
        owner: u32,
        environment: &Environment,
        others: impl Iterator<Item = Mapping<'m>>,
    ) -> Result<Self, Error> {
        let (pid, cpus) = (process.pid(), self.shared.cpus);
        // Opened once: it is the memory of the program that has asked, whatever runs there later.
        let memory = process.memory()?;
        let mut write = |at, bytes: &[u8]| {
            let written = memory.write_all_at(bytes, at);
            written.map_err(os("filling a child's memory"))
        };
        let environment = environment.fork(&self.shared, pid, owner, &mut write)?;
        let copies = self.far_pools.iter().map(Pool::copy);
        let far_pools = copies
            .collect::<Result<Vec<_>, _>>()
            .map_err(os("creating a pool"))?;
        let mut child = Self {
            process: process.clone(),
            owner,
            shared: self.shared.clone(),
            domain: self.domain.clone(),
            home: Arc::new(OnceLock::from(Home::of(&environment))),
            environment: Some(environment),
            is_filled: true,
            far_pools,
            syscall_patches: self.syscall_patches.clone(),
            removals: self.removals,
            walks: self.walks.clone(),
            since: Instant::now(),
            looks: 1,
        };
        child.replace_pools(others)?;
        let environment = child.environment()?;
        let pids = (pid, process.own_pid());
        for (at, bytes) in environment.private.refill(pids, cpus)? {
            write(at, &bytes)?;
        }
        Ok(child)
    }

    /// Maps the pools of a forked child over whatever is at their places.
    ///
    /// If the C library's own `fork` was not used, or has not got that far yet, the child's memory
    /// still has the thread id of its parent's thread.
    fn replace_pools<'m>(
        &mut self,
        others: impl Iterator<Item = Mapping<'m>>,
    ) -> Result<(), Error> {
        let mut mappings: Vec<_> = self.pools().map(mapping::replaced).collect();
        for other in others {
            mappings.push(other);
        }
        let process = &self.process;
        let environment = self.environment()?;
        let (scratch, home) = (environment.private.scratch(), environment.home.base());
        let ours = environment.manifest();
        let expected = manifest_start(ours.magic, ours.session, ours.owner);
        let replace = |stopped: &mut Stopped| {
            let tid_offset = find_tid_offset(process, stopped);
            let mut words = [0; MANIFEST_START];
            // The words up to and including the owner, which is the parent. The process may run
            // another program by now.
            let is_copy = stopped.read(home, &mut words).is_ok() && words[..12] == expected[..12];
            let outcome = match is_copy {
                true => stopped
                    .map_files_through(scratch, &mappings)
                    .map_err(Error::from),
                false => Err(self.error("it runs another program by now")),
            };
            (tid_offset, outcome)
        };
        // Another session may be looking at it.
        let stopped = retry_open::past_others(|| Ok(process.stopped(replace)?));
        let (tid_offset, outcome) = stopped?;
        drop(mappings);
        self.environment_mut()?.set_tid_offset(tid_offset);
        outcome.map(drop)
    }

    /// True if the process has ended or runs another program now.
    pub fn is_gone(&self) -> bool {
        let Some(environment) = &self.environment else {
            return !self.process.is_alive();
        };
        let mut magic = [0; 8];
        let read = self
            .process
            .read_memory(environment.home.base(), &mut magic);
        match read {
            Ok(()) => u64::from_ne_bytes(magic) != abi::MANIFEST_MAGIC,
            // This error says nothing about the process.
            Err(error) if error.is_of_too_many_files() => false,
            Err(_) => true,
        }
    }

    /// Refuses a process that has run another program since, which has nothing of Beeline's.
    ///
    /// It must be called while the process is stopped and before anything is stored that leads to a
    /// pool.
    ///
    /// # Errors
    ///
    /// [`Error::Target`] for such a process.
    pub fn check_same(&self, stopped: &Stopped) -> Result<(), Error> {
        let Some(environment) = &self.environment else {
            return Ok(());
        };
        match environment.is_in(stopped) {
            true => Ok(()),
            false => Err(self.error("it runs another program by now")),
        }
    }

    /// Refuses a process that has become another user's since: it must get nothing of the old one's.
    ///
    /// It must be called while the process is stopped and before anything is mapped.
    ///
    /// # Errors
    ///
    /// [`Error::Target`] for such a process.
    pub fn check_domain(&self) -> Result<(), Error> {
        let is_apart = self.shared.isolation == Isolation::ByUser;
        match is_apart && self.domain.has_lost(self.process.pid()) {
            true => Err(self.error("it runs as another user now")),
            false => Ok(()),
        }
    }

    /// Returns the process's name. The process chooses it, so characters that control a terminal
    /// are replaced.
    pub fn name(&self) -> String {
        let name = proc::text(format!("/proc/{}/comm", self.process.pid()));
        let name = name.unwrap_or_default();
        name.trim_end().replace(char::is_control, "\u{fffd}")
    }

    /// Returns the paths, as Beeline finds them, of the files that code is mapped from.
    pub fn texts(&self, regions: &[Region]) -> Vec<PathBuf> {
        let root = format!("/proc/{}/root", self.process.pid());
        let texts = regions
            .iter()
            .filter(|region| region.permissions.execute && region.inode != 0);
        texts
            .map(|region| {
                PathBuf::from(&root).join(region.path.strip_prefix("/").unwrap_or(&region.path))
            })
            .collect()
    }

    pub fn pools(&self) -> impl Iterator<Item = &Pool> {
        self.environment
            .iter()
            .map(|environment| &environment.home)
            .chain(&self.far_pools)
    }

    pub fn pools_mut(&mut self) -> impl Iterator<Item = &mut Pool> {
        self.environment
            .iter_mut()
            .map(|environment| &mut environment.home)
            .chain(&mut self.far_pools)
    }

    /// Returns what programs here find.
    ///
    /// # Errors
    ///
    /// [`Error::Target`] if the agent is not mapped.
    pub fn environment(&self) -> Result<&Environment, Error> {
        self.environment
            .as_ref()
            .ok_or_else(|| self.error("the agent is not mapped"))
    }

    /// As [`Self::environment`], to be changed.
    ///
    /// # Errors
    ///
    /// [`Error::Target`] if the agent is not mapped.
    pub fn environment_mut(&mut self) -> Result<&mut Environment, Error> {
        let pid = self.process.pid();
        self.environment.as_mut().ok_or_else(|| Error::Target {
            pid,
            why: "the agent is not mapped".into(),
        })
    }

    pub fn error(&self, why: impl Into<String>) -> Error {
        Error::Target {
            pid: self.process.pid(),
            why: why.into(),
        }
    }

    /// Lets programs see this process as their task.
    ///
    /// # Errors
    ///
    /// [`Error::Target`] if the agent is not mapped, [`Error::Inject`] if the process's memory
    /// cannot be written, [`Error::Os`] if the home pool is full.
    pub fn show_task(&mut self) -> Result<(), Error> {
        let (process, shared) = (self.process.clone(), self.shared.clone());
        self.environment_mut()?
            .show_task(&shared, process.pid(), |at, bytes| {
                Ok(process.write_memory(at, bytes)?)
            })
    }

    /// Looks for where threads keep their ids, if that was not visible yet. A program that has just
    /// begun has no thread pointer.
    ///
    /// # Errors
    ///
    /// [`Error::Inject`] if the process cannot be stopped.
    pub fn look_for_ids(&mut self) -> Result<(), Error> {
        if !self.is_to_look_for_ids() {
            return Ok(());
        }
        let Some(environment) = &mut self.environment else {
            return Ok(());
        };
        self.looks += 1;
        let (process, domain, owner) = (&self.process, &self.domain, self.owner);
        Hold::Brief.with(process, |stopped| {
            // Slots are held in the name that a thread has now.
            let mut leases = domain.page().leases.iter();
            let offset = find_tid_offset(process, stopped);
            if offset != abi::TID_UNKNOWN && !leases.any(|one| one.owner() == owner) {
                environment.set_tid_offset(offset);
            }
            Ok(())
        })
    }

    pub fn is_to_look_for_ids(&self) -> bool {
        let is_unknown = |environment: &Environment| {
            environment.record().tid_offset == abi::TID_UNKNOWN && self.looks <= LOOKS
        };
        self.environment.as_ref().is_some_and(is_unknown)
            && self.since.elapsed() > SETTLED * self.looks
    }

    /// True if it has a child that shares its memory, and the thread that made the child may wait
    /// for it (`vfork`).
    pub fn waits_for_child(&self) -> bool {
        let Some(environment) = &self.environment else {
            return false;
        };
        let place = environment.private.control() + offset_of!(abi::Control, children) as u64;
        let mut children = [0; 4];
        self.process.read_memory(place, &mut children).is_ok() && children != [0; 4]
    }

    /// Updates what programs see as their task.
    ///
    /// # Errors
    ///
    /// [`Error::Inject`] if the process's memory cannot be written.
    pub fn update_task(&mut self) -> Result<(), Error> {
        let is_due = |environment: &Environment| environment.is_task_due();
        // After an `execve` the addresses are another program's.
        if !self.environment.as_ref().is_some_and(is_due) || self.is_gone() {
            return Ok(());
        }
        let process = &self.process;
        match &mut self.environment {
            Some(environment) => environment.update_task(&self.shared, |at, bytes| {
                Ok(process.write_memory(at, bytes)?)
            }),
            None => Ok(()),
        }
    }

    /// Tells programs which cgroups they run in, if any program asks.
    ///
    /// # Errors
    ///
    /// [`Error::Os`] if the home pool is full.
    pub fn refresh_cgroups(&mut self) -> Result<(), Error> {
        match &mut self.environment {
            Some(environment) => {
                environment.refresh_cgroups(&self.shared.cgroups, self.process.pid())
            }
            None => Ok(()),
        }
    }

    /// Makes a program's links run its best code from now on.
    ///
    /// A trampoline that calls the program itself goes on with the older code; such a program has
    /// no effect.
    ///
    /// # Errors
    ///
    /// [`Error::Os`] if the home pool is full.
    pub fn renew(&mut self, program: &Program) -> Result<(), Error> {
        match &mut self.environment {
            Some(environment) => environment.renew(program),
            None => Ok(()),
        }
    }

    /// Updates the rings of a perf event array that has changed and that may be used here.
    ///
    /// # Errors
    ///
    /// [`Error::Os`] if a ring's descriptor cannot be duplicated, [`Error::Target`] if the process
    /// runs another program by now, [`Error::Inject`] if it cannot be stopped or nothing can be
    /// mapped into it.
    pub fn rings_changed(&mut self, map: Id) -> Result<(), Error> {
        match &self.environment {
            Some(environment) if environment.has_map(map) => self.map_rings(map, &mut Hold::Brief),
            _ => Ok(()),
        }
    }

    /// Returns where the target notes that one of its sites is not as it was left.
    pub fn disturbed_at(&self) -> Option<u64> {
        let environment = self.environment.as_ref()?;
        Some(environment.private.control() + offset_of!(Control, disturbed) as u64)
    }

    /// True if it has noted that.
    pub fn is_disturbed(&self) -> bool {
        let mut word = [0; 4];
        let at = self.disturbed_at();
        at.is_some_and(|at| self.process.read_memory(at, &mut word).is_ok()) && word != [0; 4]
    }

    /// True if another session's patch lies over that of a site.
    pub fn is_under(&self, address: u64, record: u64, layers: &Layers) -> bool {
        let Some(environment) = &self.environment else {
            return false;
        };
        // SAFETY: the record was placed in the home pool as a `Site`.
        let own = unsafe { environment.home.get::<Site>(record) }.layer;
        layers.is_under(address, own)
    }

    /// Returns the agent's signal handlers here.
    pub fn signals(&self) -> Signals<'_> {
        Signals(self)
    }
}

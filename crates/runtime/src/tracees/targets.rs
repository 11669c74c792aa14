//! Turns processes into targets, and drops targets whose process has ended.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::Sender;

use beeline_inject::{Process, Region};
use parking_lot::Mutex;

use super::admission::Admission;
use super::diagnostics::Diagnostics;
use super::leftovers::Leftovers;
use super::owners::Owners;
use super::process_table::YOUTH;
use super::registry::Registry;
use super::rounds::SECOND;
use super::target_table::{SharedTarget, TargetTable};
use super::upcall_servers::News;
use crate::detach;
use crate::domain::Domain;
use crate::error::{Error, os};
use crate::liveness::SessionId;
use crate::rules::Isolation;
use crate::scope::Scope;
use crate::shared::Shared;
use crate::target::{Target, Wanted};

/// See the module documentation.
pub(super) struct Targets {
    shared: Arc<Shared>,
    admission: Arc<Admission>,
    registry: Arc<Registry>,
    diagnostics: Arc<Diagnostics>,
    pub table: TargetTable,
    pub owners: Arc<Owners>,
    pub leftovers: Leftovers,
    /// Is told of each new domain.
    servers: Sender<News>,
    /// Held while a process that is no target yet is examined, and while something is taken out of
    /// one. A second thread that wants to do the same then finds it done.
    making: Mutex<()>,
}

impl Targets {
    pub fn new(
        shared: Arc<Shared>,
        admission: Arc<Admission>,
        registry: Arc<Registry>,
        diagnostics: Arc<Diagnostics>,
        servers: Sender<News>,
    ) -> Self {
        Self {
            table: TargetTable::default(),
            owners: Owners::start(shared.clone()),
            leftovers: Leftovers::default(),
            servers,
            shared,
            admission,
            registry,
            diagnostics,
            making: Mutex::default(),
        }
    }

    /// Opens a process.
    ///
    /// # Errors
    ///
    /// It may not be traced: see [`Admission::open`].
    pub fn open(&self, pid: i32) -> Result<Process, Error> {
        self.note_dismissals();
        self.admission.open(pid)
    }

    /// Returns a known process, or opens it.
    ///
    /// A process that is traced already may just now be held by another thread of Beeline, and
    /// would then look taken.
    ///
    /// # Errors
    ///
    /// Those of [`Self::open`].
    pub fn known_or_open(&self, pid: i32) -> Result<Process, Error> {
        if let Some(target) = self.table.get(pid) {
            let known = target.lock();
            if !known.is_gone() {
                return Ok(known.process().clone());
            }
            drop(known);
            self.bury_one(pid, target);
        }
        self.open(pid)
    }

    /// Opens a process that asks under a target's tag.
    ///
    /// If it is the target, it has been opened before, and only a confined process has to be
    /// checked again, unless its filters are looked at in each stop.
    ///
    /// # Errors
    ///
    /// Those of [`Self::open`].
    pub fn open_again(&self, pid: i32, owner: u32) -> Result<Process, Error> {
        let known = self.table.tagged(owner).map(|tagged| tagged.process);
        match known.filter(|process| process.pid() == pid) {
            Some(process) if process.judges_filters() || !process.is_confined()? => Ok(process),
            Some(process) if self.admission.may_stay_in(pid)? => Ok(process),
            _ => self.open(pid),
        }
    }

    /// Returns the target for a process, and makes one if needed. What killed sessions left in the
    /// process is taken out first.
    ///
    /// A child that was forked from a target has that target's patched code but nothing behind it,
    /// so it begins anew. The result is `None` if it is too early for that: the process will ask to
    /// be made a target, or shares its parent's memory.
    ///
    /// # Errors
    ///
    /// Those of [`Self::fresh`]: nothing may be shared with the process. Beside the target, those
    /// of [`Self::clear_dead`].
    pub fn make(
        &self,
        process: &Process,
    ) -> Result<(Option<SharedTarget>, Result<(), Error>), Error> {
        let known = || self.table.get(process.pid());
        if let Some(target) = known() {
            return Ok((Some(target), Ok(())));
        }
        let _alone = self.making.lock();
        if let Some(target) = known() {
            return Ok((Some(target), Ok(())));
        }
        let own = SessionId::own();
        let present = detach::presences(process).unwrap_or_default();
        let cleared = self.leftovers.clear(process, &present);
        let has_others =
            self.diagnostics.has_unfollowed() || present.iter().any(|one| one.session != own);
        let mut inherited = present.iter().filter(|one| one.session == own);
        let is_time = inherited.all(|presence| {
            let is_abandoned = presence.is_abandoned(process, has_others);
            if is_abandoned {
                // If the removal fails, attaching says why.
                let _ = presence.remove(process);
            }
            is_abandoned
        });
        let target = match is_time {
            true => Some(self.begin(process)?),
            false => None,
        };
        Ok((target, cleared))
    }

    fn begin(&self, process: &Process) -> Result<SharedTarget, Error> {
        let new = self.fresh(process)?;
        let (pid, owner, domain) = (process.pid(), new.owner(), new.domain().id.0);
        tracing::info!(pid, domain, "new target");
        let target = self.table.get_or_insert(new);
        if target.lock().owner() != owner {
            // A fork of a target was adopted meanwhile.
            self.owners.died(owner);
        }
        Ok(target)
    }

    /// Makes a forked child, which waits for it, a target of its own. `regions` is what it has
    /// mapped.
    ///
    /// # Errors
    ///
    /// The child may not be traced, or its parent has got more since it was forked.
    pub fn adopt(&self, pid: i32, parent: &Mutex<Target>, regions: &[Region]) -> Result<(), Error> {
        self.note_dismissals();
        let of = parent.lock().process().clone();
        let process = self.admission.open_copy(pid, &of)?;
        if self.table.has(pid) {
            return Ok(());
        }
        let domain = parent.lock().domain().clone();
        let owner = self.owners.new_tag();
        if !domain.admit(owner) {
            return Err(Error::Target {
                pid,
                why: "its parent ended too long ago".into(),
            });
        }
        self.owners.watch(&process, owner, domain);
        let child = parent
            .lock()
            .fork(&process, owner, regions)
            .and_then(|child| {
                child.ok_or_else(|| Error::Target {
                    pid,
                    why: "its parent has got more since it was forked".into(),
                })
            });
        let mut child = child.inspect_err(|_| self.owners.died(owner))?;
        // Links that name a process are not for its children.
        for link in self.registry.functions() {
            if link.pid.is_some_and(|only| only != pid) {
                child.detach(link.id);
            }
        }
        self.insert(child);
        Ok(())
    }

    /// Adds a target. One that its process had before is gone.
    fn insert(&self, new: Target) {
        if let Some(old) = self.table.insert(new) {
            let owner = old.lock().owner();
            self.owners.died(owner);
            self.table.remember(old);
        }
    }

    /// Makes a process that has just run another program a new target. Nothing of the old one is
    /// left.
    ///
    /// It is one step: any other thread that looks at the process finds that it is taken care of.
    ///
    /// # Errors
    ///
    /// Those of [`Self::fresh`]. The process is no target then.
    pub fn renew(&self, process: &Process) -> Result<(), Error> {
        let new = match self.fresh(process) {
            Ok(new) => new,
            Err(error) => {
                if let Some(old) = self.table.get(process.pid()) {
                    self.bury_one(process.pid(), old);
                }
                return Err(error);
            }
        };
        self.insert(new);
        Ok(())
    }

    /// Makes a process that has been left a target anew. `owner` is the tag of the old one, which the
    /// caller has locked.
    ///
    /// # Errors
    ///
    /// Those of [`Self::fresh`].
    pub fn replace(&self, process: &Process, owner: u32) -> Result<(), Error> {
        let new = self.fresh(process)?;
        self.is_new_again(&[process.pid()]);
        if let Some(old) = self.table.insert(new) {
            self.owners.died(owner);
            self.table.remember(old);
        }
        Ok(())
    }

    /// Makes a target, in the domain of its process.
    ///
    /// # Errors
    ///
    /// [`Error::Os`] if the process's credentials cannot be read, or if the memory of a new domain
    /// cannot be created.
    fn fresh(&self, process: &Process) -> Result<Target, Error> {
        let owner = self.owners.new_tag();
        let domain = self.domain_of(process, owner)?;
        self.owners.watch(process, owner, domain.clone());
        let (process, shared) = (process.clone(), self.shared.clone());
        Ok(Target::new(process, owner, shared, domain))
    }

    /// Returns the domain of a process that is to be a target, which it has entered under a tag.
    fn domain_of(&self, process: &Process, owner: u32) -> Result<Arc<Domain>, Error> {
        let domains = &self.shared.domains;
        let is_tool = self.admission.is_tool(process.pid());
        let stranger = match self.shared.isolation {
            Isolation::ByUser if !is_tool => {
                let stranger = domains.stranger(process);
                stranger.map_err(os("reading a process's credentials"))?
            }
            _ => None,
        };
        let Some(credentials) = stranger else {
            let domain = match is_tool {
                true => domains.tool(),
                false => domains.home(),
            };
            let _is_never_retired = domain.admit(owner);
            return Ok(domain.clone());
        };
        let mut is_new = false;
        let begin = |domain: &Domain| {
            let (page, home) = (domain.page(), domains.home().page());
            page.seeks.store(self.registry.seeks(), SeqCst);
            page.any_path.store(home.any_path.load(SeqCst), SeqCst);
            is_new = true;
        };
        let domain = domains.enter(&credentials, (process.pid(), owner), begin);
        if is_new {
            let _ = self.servers.send(News::Look);
        }
        if let Err(error) = &domain
            && error.kind() == ErrorKind::QuotaExceeded
        {
            let why = format!("{error}: further processes of it are not traced");
            self.diagnostics.once(why);
        }
        domain.map_err(os("creating the memory of a security domain"))
    }

    /// Takes out of a process what killed sessions have left there.
    ///
    /// # Errors
    ///
    /// A session stays that has hooked system calls: see [`Leftovers::clear`].
    pub fn clear_dead(&self, process: &Process) -> Result<(), Error> {
        let _alone = self.making.lock();
        self.leftovers.clear(process, &detach::presences(process)?)
    }

    /// Forgets processes that have ended or run another program now, and frees what they held in
    /// shared memory.
    ///
    /// Deaths are reported, but a report is missed if the target is being worked on at that moment.
    /// If the scope is all processes, a process that is not new is checked once a second and before
    /// it is attached to.
    pub fn bury(&self, round: u32) {
        let ended = self.owners.take_ended();
        let domains = self.shared.domains.all();
        let leases = domains.iter().flat_map(|domain| &domain.page().leases);
        let at_work: BTreeSet<u32> = leases.map(|lease| lease.owner()).collect();
        let is_gone = |pid: i32, target: &Target| {
            let is_its_turn = pid.unsigned_abs() % SECOND == round % SECOND;
            let owner = target.owner();
            // A process that was running an eBPF program when it ran another executable may have
            // left a lock.
            let is_due = is_its_turn
                || target.age() < YOUTH
                || self.registry.is_narrow()
                || at_work.contains(&owner);
            ended.contains(&owner) || is_due && target.is_gone()
        };
        let (pids, gone): (Vec<_>, Vec<_>) = self.table.remove_gone(is_gone).into_iter().unzip();
        self.is_new_again(&pids);
        let owners: Vec<u32> = gone.iter().map(|target| target.lock().owner()).collect();
        self.owners.bury(owners.into_iter());
        self.owners.free_left();
        self.table.forget_departed();
        gone.into_iter()
            .for_each(|target| self.table.remember(target));
    }

    /// As [`Self::bury`], for a target that has been found to be gone.
    pub fn bury_one(&self, pid: i32, target: SharedTarget) {
        if !self.table.remove(pid, &target) {
            return;
        }
        self.is_new_again(&[pid]);
        let owner = target.lock().owner();
        self.owners.died(owner);
        self.table.remember(target);
    }

    /// Forgets everything about processes that run other programs now, unless they have ended.
    fn is_new_again(&self, pids: &[i32]) {
        pids.iter()
            .for_each(|pid| drop(self.shared.take_unblocked(*pid)));
        if !pids.is_empty() {
            self.registry.forget_failures(pids);
            self.admission.renew(pids);
        }
    }

    /// Returns what is wanted of the calls of a process of the scope.
    pub fn wanted_of_calls(&self, pid: i32) -> Wanted {
        Wanted {
            links: self.registry.calls(),
            follows: self.is_followed(pid),
            is_under_filter: self.admission.is_child(pid),
        }
    }

    /// True if Beeline has to know when a process forks, runs another program or loads a library,
    /// for the sake of probed functions.
    fn is_followed(&self, pid: i32) -> bool {
        let admission = &self.admission;
        if admission.is_tool(pid) {
            return false;
        }
        let is_in_scope = || match admission.scope() {
            Scope::All => self.table.has(pid) || admission.is_child(pid),
            Scope::Processes(pids) => pids.contains(&pid),
            Scope::Children => admission.is_child(pid),
        };
        let links = self.registry.functions();
        let mut links = links.iter();
        links.any(|link| link.pid.map_or_else(is_in_scope, |only| only == pid))
    }

    /// True if the session was taken out of this process, or is being taken out.
    pub fn is_dismissed(&self, pid: i32) -> bool {
        self.note_dismissals();
        self.admission.is_dismissed(pid)
    }

    /// Records the dismissals that `beeline detach` has posted to the session, and tells the user.
    pub fn note_dismissals(&self) {
        let domains = self.shared.domains.all();
        let slots = domains.iter().flat_map(|domain| {
            let slots = domain.page().dismissed.iter();
            slots.map(|slot| (domain.id, slot))
        });
        for (domain, slot) in slots {
            // Mostly there is nothing; the page should not be written to then.
            if slot.load(SeqCst) == 0 {
                continue;
            }
            // Any process that has the page can have written any number.
            let target = self.table.tagged(slot.swap(0, SeqCst));
            let Some(target) = target.filter(|target| target.domain == domain) else {
                continue;
            };
            let pid = target.process.pid();
            self.admission.dismiss(pid);
            self.diagnostics.dismissed(pid);
        }
    }
}

//! Security domains: the groups of processes that may share memory.
//!
//! Two processes belong to one domain only if the kernel would let each trace the other
//! (`__ptrace_may_access` in `kernel/ptrace.c`): what they share gives them no more than they have.
//! Each domain has a session page of its own. The *home* domain is that of Beeline and the tool.
//!
//! Under [`Isolation::None`](crate::Isolation) there is the home domain alone; `tracees::targets` asks
//! for the domain of each new target. A domain without targets is *retired* after some time: what is
//! in its memory goes into memory that no process has, and the rest is freed.

mod credentials;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use beeline_agent::abi::{Lease, MOVING_OWNER, Session};
use beeline_inject::Process;
use beeline_uapi::Errno;
use beeline_uapi::linux::FUTEX_WAITV_MAX;
use libc::c_void;
use parking_lot::{Mutex, RwLock};
use rustix::io::Errno as OsErrno;
use rustix::thread::futex;
use rustix::time::{ClockId, Timespec, clock_gettime};

use crate::liveness::{Liveness, SessionId};
use crate::memory::Memory;
use crate::relay::CutOff;
pub use credentials::Credentials;

/// One domain.
#[derive(Debug)]
pub struct Domain {
    /// Its id.
    pub id: DomainId,
    /// Names its user, for messages.
    pub name: String,
    /// The credentials that all of its processes have; `None` for those of the tool.
    credentials: Option<Credentials>,
    /// Holds a [`Session`].
    memory: Arc<Memory>,
    members: Arc<Mutex<Members>>,
    /// Why its events do not get through any more.
    broken: Arc<OnceLock<String>>,
    /// The names of maps of which a process of it has kept a lock.
    damaged: Arc<Mutex<BTreeSet<String>>>,
    /// Sentences for the user about maps that it does not get, or only in part.
    notes: Arc<Mutex<BTreeSet<String>>>,
    /// Keeps the kernel from giving the numbers of its namespaces to others.
    _namespaces: Vec<File>,
    _liveness: Arc<Liveness>,
}

/// The targets of a domain.
#[derive(Debug)]
struct Members {
    /// Their tags.
    tags: BTreeSet<u32>,
    /// When the last target left, or the domain was made.
    since: Instant,
    is_retired: bool,
}

/// Names a domain within its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DomainId(pub u32);

impl DomainId {
    /// That of Beeline and the tool.
    pub const HOME: Self = Self(0);
    /// The tool's own processes. They share everything with their home domain, and belong to nobody
    /// who must be kept from something.
    pub const TOOL: Self = Self(u32::MAX);
    /// The kernel, which has sources of rings as a domain does.
    pub const KERNEL: Self = Self(u32::MAX - 1);

    /// Returns the domain that has the session page of this one.
    pub fn of_page(self) -> Self {
        match self {
            Self::TOOL => Self::HOME,
            id => id,
        }
    }
}

impl Domain {
    /// Makes the files of a new domain.
    ///
    /// # Errors
    ///
    /// Those of [`Memory::new`], [`Memory::seal_size`] and [`Liveness::begin`].
    fn new(id: DomainId, name: String, credentials: Option<Credentials>) -> io::Result<Self> {
        let file_name = SessionId::own().name("session");
        let memory = Memory::new(&file_name, size_of::<Session>())?;
        memory.seal_size()?;
        let members = Members {
            tags: BTreeSet::new(),
            since: Instant::now(),
            is_retired: false,
        };
        Ok(Self {
            id,
            name,
            credentials,
            members: Arc::new(Mutex::new(members)),
            broken: Arc::default(),
            damaged: Arc::default(),
            notes: Arc::default(),
            _namespaces: Vec::new(),
            _liveness: Arc::new(Liveness::begin(&memory)?),
            memory: Arc::new(memory),
        })
    }

    /// Makes a domain without processes, for fuzzing.
    ///
    /// # Errors
    ///
    /// Those of making its files.
    pub fn without_processes(id: u32) -> io::Result<Arc<Self>> {
        Self::new(DomainId(id), format!("user {id}"), None).map(Arc::new)
    }

    /// Makes a domain without processes, for tests.
    #[cfg(test)]
    pub fn for_test(id: u32) -> Arc<Self> {
        Self::without_processes(id).expect("there is memory")
    }

    /// Takes in a target, by its tag. Returns false if the domain has been retired.
    #[must_use]
    pub fn admit(&self, tag: u32) -> bool {
        let mut members = self.members.lock();
        if !members.is_retired {
            members.tags.insert(tag);
        }
        !members.is_retired
    }

    /// Forgets a target that has ended, and no longer holds anything in the domain's memory.
    pub fn dismiss(&self, tag: u32) {
        let mut members = self.members.lock();
        members.tags.remove(&tag);
        members.since = Instant::now();
    }

    /// True if this is the tag of one of its targets.
    pub fn has(&self, tag: u32) -> bool {
        self.members.lock().tags.contains(&tag)
    }

    /// True if a process of it has become another user's.
    pub fn has_lost(&self, pid: i32) -> bool {
        let (Some(own), Some(now)) = (&self.credentials, Credentials::of(pid)) else {
            return false;
        };
        !now.can_return_to(own)
    }

    /// True if it is this domain, or one that was retired and had the same processes.
    pub fn is_like(&self, other: &Self) -> bool {
        let is_same = || self.credentials.is_some() && self.credentials == other.credentials;
        self.id.of_page() == other.id.of_page() || is_same()
    }

    /// True if these are the credentials of its processes.
    pub fn is_of(&self, credentials: &Credentials) -> bool {
        self.credentials.as_ref() == Some(credentials)
    }

    /// True if [`Self::has_damaged`] has noted this map.
    pub fn is_damaged(&self, map: &str) -> bool {
        self.damaged.lock().contains(map)
    }

    /// Takes note that a process of it keeps a lock of its shard of a map, or has overwritten it.
    pub fn has_damaged(&self, map: &str) {
        self.damaged.lock().insert(map.to_owned());
        self.note(format!(
            "a process of {} keeps a lock of that user's part of map {map}, or has overwritten it: the tool does \
             not see all that is there",
            self.name
        ));
    }

    /// Takes note that it cannot have a map, which another domain has, for this reason.
    pub fn is_kept_from(&self, map: &str, why: &str) {
        self.note(format!(
            "map {map} is in use by other users' processes, and cannot be kept apart: {why}; programs that use it \
             do not run in processes of {} (`--no-isolation` lets all targets share memory)",
            self.name
        ));
    }

    /// Takes note that elements were lost when it was retired.
    pub fn has_left_too_much(&self, map: &str, error: Errno) {
        let error = io::Error::from_raw_os_error(error.0);
        self.note(format!(
            "elements of map {map} that processes of {} have left are lost: {error}",
            self.name
        ));
    }

    fn note(&self, sentence: String) {
        self.notes.lock().insert(sentence);
    }

    /// Returns what has been noted, in sentences for the user.
    pub fn notes(&self) -> BTreeSet<String> {
        self.notes.lock().clone()
    }

    /// True if it has been retired.
    pub fn is_retired(&self) -> bool {
        self.members.lock().is_retired
    }

    /// Retires the domain if it has had no targets for that long. It takes in none from then on.
    fn retire(&self, after: Duration) -> bool {
        let mut members = self.members.lock();
        members.is_retired = members.tags.is_empty() && members.since.elapsed() >= after;
        members.is_retired
    }

    /// Returns the session page's file.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Returns what takes note that one of its processes has written nonsense into memory that
    /// Beeline reads. It is told the reason.
    pub fn cut_off(&self) -> CutOff {
        let broken = self.broken.clone();
        Arc::new(move |why| {
            let _ = broken.set(why.to_owned());
        })
    }

    /// Returns the reason, if that has happened.
    pub fn why_cut_off(&self) -> Option<&str> {
        self.broken.get().map(String::as_str)
    }

    /// Returns the session page, mapped here.
    pub fn page(&self) -> &Session {
        // SAFETY: the file has the size of a `Session`, was zeroed, and holds only atomics.
        unsafe { &*self.memory.base().cast::<Session>() }
    }
}

/// All slots of a domain, taken by Beeline: no program that uses maps runs in it.
#[derive(Debug)]
pub struct AllSlots<'a>(&'a [Lease]);

impl Domain {
    /// Waits until all slots are free, and takes them. A thread that wants one waits for it for a
    /// tenth of a second, so do not keep them for long. Returns `None` if they do not become free in
    /// a fifth of that time.
    pub fn take_all_slots(&self, cpus: u32) -> Option<AllSlots<'_>> {
        const LONGEST: Duration = Duration::from_millis(20);
        const PAUSE: Duration = Duration::from_micros(50);
        let leases = self.page().leases.get(..cpus as usize)?;
        let end = Instant::now() + LONGEST;
        for (index, lease) in leases.iter().enumerate() {
            while !lease.take_for(MOVING_OWNER, 0) {
                if Instant::now() > end {
                    drop(AllSlots(leases.get(..index)?));
                    return None;
                }
                std::thread::sleep(PAUSE);
            }
        }
        Some(AllSlots(leases))
    }
}

impl AllSlots<'_> {
    /// True if no thread has run out of patience: all slots are still taken.
    pub fn are_taken(&self) -> bool {
        self.0.iter().all(|lease| lease.owner() == MOVING_OWNER)
    }
}

impl Drop for AllSlots<'_> {
    fn drop(&mut self) {
        self.0
            .iter()
            .for_each(|lease| lease.take_from(MOVING_OWNER));
    }
}

/// The most domains of one user at a time. Each process that is not dumpable makes one, and each user
/// namespace: their memory is the session's.
const MOST_OF_USER: usize = 256;

/// The domains of a session.
#[derive(Debug)]
pub struct Domains {
    home: Arc<Domain>,
    tool: Arc<Domain>,
    others: RwLock<BTreeMap<Credentials, Arc<Domain>>>,
    /// The number of those that were made.
    made: AtomicU32,
}

impl Domains {
    /// Creates the home domain.
    ///
    /// # Errors
    ///
    /// Those of making its files.
    pub fn new() -> io::Result<Self> {
        // That a user may run Beeline's file but not read it says nothing of the targets.
        let own = Credentials::of(std::process::id() as i32)
            .map(|own| Credentials { alone: None, ..own });
        let name = "the tool's user".to_owned();
        let home = Domain::new(DomainId::HOME, name, own)?;
        let tool = Domain {
            id: DomainId::TOOL,
            name: home.name.clone(),
            credentials: None,
            memory: home.memory.clone(),
            members: home.members.clone(),
            broken: home.broken.clone(),
            damaged: home.damaged.clone(),
            notes: home.notes.clone(),
            _namespaces: Vec::new(),
            _liveness: home._liveness.clone(),
        };
        Ok(Self {
            home: Arc::new(home),
            tool: Arc::new(tool),
            others: RwLock::default(),
            made: AtomicU32::new(0),
        })
    }

    /// Returns the tool's own domain.
    pub fn home(&self) -> &Arc<Domain> {
        &self.home
    }

    /// Returns the domain of the tool's own processes.
    pub fn tool(&self) -> &Arc<Domain> {
        &self.tool
    }

    /// Returns all domains with session pages of their own, home first.
    pub fn all(&self) -> Vec<Arc<Domain>> {
        let others = self.others.read();
        std::iter::once(&self.home)
            .chain(others.values())
            .cloned()
            .collect()
    }

    /// Returns the credentials of a process that does not belong to the home domain. A process that
    /// has ended belongs nowhere, and makes no difference.
    ///
    /// # Errors
    ///
    /// The process lives, and its credentials cannot be read.
    pub fn stranger(&self, process: &Process) -> io::Result<Option<Credentials>> {
        match Credentials::of(process.pid()) {
            Some(own) if self.home.is_of(&own) => Ok(None),
            None if process.is_alive() => Err(io::ErrorKind::PermissionDenied.into()),
            credentials => Ok(credentials),
        }
    }

    /// Takes a process into the domain of those with its credentials, under a tag of its own. If
    /// there is none, `begin` prepares a new one before anybody else sees it.
    ///
    /// # Errors
    ///
    /// Those of making its files; [`io::ErrorKind::QuotaExceeded`] if the user has too many.
    pub fn enter(
        &self,
        credentials: &Credentials,
        (pid, tag): (i32, u32),
        begin: impl FnOnce(&Domain),
    ) -> io::Result<Arc<Domain>> {
        let known = |others: &BTreeMap<_, Arc<Domain>>| {
            let known = others.get(credentials)?;
            known.admit(tag).then(|| known.clone())
        };
        if let Some(known) = known(&self.others.read()) {
            return Ok(known);
        }
        let mut others = self.others.write();
        if let Some(known) = known(&others) {
            return Ok(known);
        }
        let user = |one: &&Credentials| one.users[0] == credentials.users[0];
        if others.keys().filter(user).count() >= MOST_OF_USER {
            let why = format!("{credentials} has {MOST_OF_USER} security domains already");
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, why));
        }
        let id = DomainId(self.made.fetch_add(1, SeqCst) + 1);
        let mut domain = Domain::new(id, credentials.to_string(), Some(credentials.clone()))?;
        domain._namespaces = credentials.open_namespaces(pid);
        begin(&domain);
        tracing::info!(domain = id.0, %credentials, "new security domain");
        let domain = Arc::new(domain);
        let _is_new = domain.admit(tag);
        others.insert(credentials.clone(), domain.clone());
        // Whoever waits for all domains begins anew.
        wake(&self.home.page().asked);
        wake(&self.home.page().doorbell);
        Ok(domain)
    }

    /// Removes the domains that have had no targets for that long, and returns them. The counts in
    /// their session pages are added to those at home.
    pub fn retire(&self, after: Duration) -> Vec<Arc<Domain>> {
        if self.others.read().is_empty() {
            return Vec::new();
        }
        let mut others = self.others.write();
        let retired = others.extract_if(.., |_, domain| domain.retire(after));
        let retired: Vec<_> = retired.map(|(_, domain)| domain).collect();
        let home = self.home.page();
        for domain in &retired {
            tracing::info!(
                domain = domain.id.0,
                name = domain.name,
                "retired a security domain"
            );
            let page = domain.page();
            for (to, from) in [
                (&home.missed, &page.missed),
                (&home.refused, &page.refused),
                (&home.unguarded, &page.unguarded),
                (&home.unanswered, &page.unanswered),
            ] {
                to.fetch_add(from.load(SeqCst), SeqCst);
            }
        }
        retired
    }
}

/// Changes a word that somebody waits for.
pub fn wake(word: &AtomicU32) {
    word.fetch_add(1, SeqCst);
    let _ = futex::wake(word, futex::Flags::empty(), 1);
}

/// Waits until one of some words is woken that still have these values, at most for some time.
///
/// Words beyond the number that the kernel takes, and all if it takes only one (before Linux 5.16),
/// are looked at each millisecond.
pub fn wait_for_any(words: &[(&AtomicU32, u32)], most: Duration) {
    const OFTEN: Duration = Duration::from_millis(1);
    // An error is a changed word or a signal: the caller looks again either way.
    if let [(word, value)] = words {
        let most = Timespec::try_from(most).ok();
        let _ = futex::wait(word, futex::Flags::empty(), *value, most.as_ref());
        return;
    }
    let wait = |(word, value): &(&AtomicU32, u32)| {
        let mut wait = futex::Wait::new();
        wait.val = (*value).into();
        wait.uaddr = word.as_ptr().cast::<c_void>().into();
        wait.flags = futex::WaitFlags::SIZE_U32;
        wait
    };
    let waits: Vec<_> = words.iter().take(FUTEX_WAITV_MAX).map(wait).collect();
    let most = if waits.len() < words.len() {
        OFTEN
    } else {
        most
    };
    let now = Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default();
    let until = Timespec::try_from(now + most).ok();
    let flags = futex::WaitvFlags::empty();
    match futex::waitv(&waits, flags, until.as_ref(), futex::ClockId::Monotonic) {
        Ok(_) | Err(OsErrno::AGAIN | OsErrno::INTR | OsErrno::TIMEDOUT) => {}
        // There is no such call, or a seccomp filter forbids it.
        Err(_) => std::thread::sleep(OFTEN),
    }
}

#[cfg(test)]
mod tests;

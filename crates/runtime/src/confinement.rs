//! Processes under seccomp filters, and whether they may be entered.
//!
//! A filter may kill a process for a system call that Beeline makes in it. So a process under
//! filters is entered only if they are known to let pass all that Beeline foresees there:
//! [`LEAVING`], [`ENTERING`] and [`foreseen::CALLS`].
//!
//! - **They can be read**, by root under no filter. They are read from each thread whenever it is
//!   stopped, and analysed ([`analysis`]). While a thread makes calls for Beeline its filters are
//!   suspended, so a filter may answer the calls of [`ENTERING`] by an error. If Beeline is killed
//!   at such a call the filters are back at once, so none may kill for it.
//! - **They are Beeline's own**, as those of one container's processes are ([`kin`]). Then Beeline
//!   makes the calls itself first, in a child that nobody misses ([`trial`]).
//! - **They were seen** when the process installed them, as a target ([`note_seen`]).

mod analysis;
mod kin;
mod trial;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use beeline_agent::foreseen;
use beeline_inject::{
    Confinement, ENTERING, LEAVING, Process, Seccomp, Verdict, why_filters_are_hidden,
};
use beeline_uapi::foreseen::ForeseenCall;
use libc::sock_filter;
use parking_lot::Mutex;

use crate::error::Error;
use crate::proc::{self, start_time};
use crate::retry_open;
pub use analysis::{decoded, filter_at, objection};

/// The most outcomes that are remembered.
const REMEMBERED: usize = 4096;

/// Why filters cannot be read; `None` if they can.
static HIDDEN: LazyLock<Option<String>> = LazyLock::new(|| match why_filters_are_hidden() {
    Ok(why) => why.map(str::to_owned),
    Err(error) => Some(format!("Beeline cannot read its own status ({error})")),
});

/// Outcomes of [`judge`], by the filters' instructions.
static JUDGED: Mutex<BTreeMap<Vec<Filter>, Result<(), Confinement>>> = Mutex::new(BTreeMap::new());

/// The instructions of a filter, in a form that can be compared.
type Filter = Vec<(u16, u8, u8, u32)>;

/// Processes whose filters have been looked at.
static LOOKED_AT: Mutex<BTreeMap<i32, Look>> = Mutex::new(BTreeMap::new());

/// Processes whose filters were seen when they were installed.
static SEEN: Mutex<BTreeMap<i32, Look>> = Mutex::new(BTreeMap::new());

/// The outcome of a look at a process's filters.
#[derive(Debug, Clone)]
struct Look {
    start: Option<u64>,
    /// The number of its filters then.
    filters: u32,
    outcome: Result<(), Confinement>,
}

/// Opens a process that Beeline wants to trace.
///
/// # Errors
///
/// [`beeline_inject::Error::Seccomp`] if it is under a filter that does not let pass what Beeline
/// does, or may not; else those of [`Process::open`].
pub fn open(pid: i32) -> Result<Process, Error> {
    if HIDDEN.is_some() {
        return open_unseen(pid);
    }
    let process = retry_open::open(pid, Seccomp::Suspend(judge))?;
    if !process.was_confined() {
        return Ok(process);
    }
    let look = |outcome| Look {
        start: start_time(pid),
        filters: filters_of(pid).unwrap_or_default(),
        outcome,
    };
    let now = look(Ok(()));
    let is_same = |look: &Look| (look.start, look.filters) == (now.start, now.filters);
    let known = LOOKED_AT.lock().get(&pid).cloned();
    let outcome = match known.filter(is_same) {
        Some(known) => known.outcome,
        // A fork has its parent's. If it has others, the next stop tells.
        None if parent_is_fit(pid, now.filters) => Ok(()),
        None => {
            let outcome = match retry_open::patiently(|| Ok(process.stop()?)) {
                Ok(_) => Ok(()),
                Err(Error::Inject(beeline_inject::Error::Seccomp { why, .. })) => Err(why),
                Err(error) => return Err(error),
            };
            remember(&LOOKED_AT, pid, look(outcome.clone()));
            outcome
        }
    };
    match outcome {
        Ok(()) => Ok(process),
        Err(why) => Err(beeline_inject::Error::Seccomp { pid, why }.into()),
    }
}

/// True if the filters of a process's parent have been found fit, and it has as many.
fn parent_is_fit(pid: i32, filters: u32) -> bool {
    let Some(parent) = proc::parent(pid) else {
        return false;
    };
    let known = LOOKED_AT.lock().get(&parent).cloned();
    known.is_some_and(|look| {
        look.outcome.is_ok() && look.filters == filters && look.start == start_time(parent)
    })
}

/// Opens a process that Beeline is present in, so its filters are known to let it leave.
///
/// # Errors
///
/// Those of [`Process::open`].
pub fn open_to_leave(pid: i32) -> Result<Process, Error> {
    retry_open::open(
        pid,
        match *HIDDEN {
            Some(_) => Seccomp::Trust,
            None => Seccomp::Suspend(|_| Ok(())),
        },
    )
}

/// Opens a process whose filters cannot be read.
fn open_unseen(pid: i32) -> Result<Process, Error> {
    let refused = match retry_open::open(pid, Seccomp::Refuse) {
        Err(Error::Inject(beeline_inject::Error::Seccomp { why, .. })) => why,
        other => return other,
    };
    let outcome = match refused {
        Confinement::Unknown { .. } if were_seen(pid) => Ok(()),
        Confinement::Unknown { .. } => match kin::have_our_filters(pid) {
            Ok(()) => trial::outcome(),
            Err(why) => {
                let hidden = HIDDEN.as_deref().unwrap_or_default();
                let why = format!("{hidden}, and {why}");
                Err(Confinement::Unknown { why })
            }
        },
        other => Err(other),
    };
    match outcome {
        Ok(()) => retry_open::open(pid, Seccomp::Trust),
        Err(why) => Err(beeline_inject::Error::Seccomp { pid, why }.into()),
    }
}

/// Judges the filters of a thread.
fn judge(filters: &[Vec<sock_filter>]) -> Result<(), Confinement> {
    let plain = |filter: &Vec<sock_filter>| -> Filter {
        let instructions = filter.iter();
        instructions
            .map(|one| (one.code, one.jt, one.jf, one.k))
            .collect()
    };
    let key: Vec<Filter> = filters.iter().map(plain).collect();
    if let Some(known) = JUDGED.lock().get(&key) {
        return known.clone();
    }
    let outcome = check(filters, true);
    let mut judged = JUDGED.lock();
    if judged.len() >= REMEMBERED {
        judged.clear();
    }
    judged.insert(key, outcome.clone());
    outcome
}

/// Fails if Beeline could not stay in a process with this further filter.
///
/// # Errors
///
/// The reason.
pub fn check_further(filter: Vec<sock_filter>) -> Result<(), Confinement> {
    check(&[filter], HIDDEN.is_none())
}

/// Notes that a target is about to install a filter with which Beeline can stay.
pub fn note_seen(pid: i32) {
    let now = filters_of(pid).unwrap_or_default();
    let look = Look {
        start: start_time(pid),
        filters: now + 1,
        outcome: Ok(()),
    };
    // What it was under before was known as well: it is a target.
    remember(&SEEN, pid, look);
}

fn were_seen(pid: i32) -> bool {
    let seen = SEEN.lock().get(&pid).cloned();
    seen.is_some_and(|look| {
        let counts = filters_of_threads(pid).unwrap_or_default();
        look.start == start_time(pid) && counts.iter().all(|count| *count <= look.filters)
    })
}

fn remember(looks: &Mutex<BTreeMap<i32, Look>>, pid: i32, look: Look) {
    let mut looks = looks.lock();
    if looks.len() >= REMEMBERED {
        looks.retain(|pid, look| start_time(*pid) == look.start);
    }
    looks.insert(pid, look);
}

/// The foreseen calls and how they must be answered.
fn check(filters: &[Vec<sock_filter>], are_suspended: bool) -> Result<(), Confinement> {
    let is_harmless = |verdict: &Verdict| are_suspended && matches!(verdict, Verdict::Fails(_));
    let must_pass = LEAVING
        .iter()
        .chain(foreseen::CALLS)
        .map(|call| (call, false));
    let all = must_pass.chain(ENTERING.iter().map(|call| (call, true)));
    for (call, may_fail) in all {
        let mut objections = filters.iter().filter_map(|one| objection(one, call));
        let found = objections.find(|verdict| !(may_fail && is_harmless(verdict)));
        if let Some(verdict) = found {
            return Err(forbids(call, verdict));
        }
    }
    Ok(())
}

fn forbids(call: &ForeseenCall, verdict: Verdict) -> Confinement {
    Confinement::Forbids {
        number: call.number,
        call: call.name,
        purpose: call.purpose,
        verdict,
    }
}

/// Returns the number of seccomp filters that a process's first thread is under.
pub fn filters_of(pid: i32) -> Option<u32> {
    filters_in(&proc::status(pid).ok()?)
}

/// Returns the number of seccomp filters of each of its threads.
fn filters_of_threads(pid: i32) -> Option<Vec<u32>> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let count = |thread: std::io::Result<std::fs::DirEntry>| {
        let status = proc::text(thread.ok()?.path().join("status")).ok()?;
        filters_in(&status)
    };
    threads.map(count).collect()
}

fn filters_in(status: &str) -> Option<u32> {
    let mut lines = status.lines();
    let line = lines.find_map(|line| line.strip_prefix("Seccomp_filters:"))?;
    line.trim().parse().ok()
}

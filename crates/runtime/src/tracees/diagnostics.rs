//! Messages to the user about processes: each is shown once, however many processes or rounds it
//! concerns.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use beeline_agent::abi::Session;
use beeline_inject::Confinement;
use parking_lot::Mutex;

use super::{maps_file_of, program};
use crate::domain::{Domain, DomainId};
use crate::error::Error;
use crate::file_syscalls::LONGEST_LOOK;
use crate::link::Uprobe;
use crate::proc;
use crate::session::Report;
use crate::target::{SlippedCall, Target, WhyUnseen};

/// The most places of [`Diagnostics::slipped`] that the user is told of.
const SLIPPED_TOLD: usize = 16;

/// See the module documentation. Its locks are leaves: nothing else is locked under them.
pub(super) struct Diagnostics {
    report: Report,
    /// True once the user has been told that too few open files are allowed for all processes to be
    /// traced.
    is_short_of_files: AtomicBool,
    /// True once the user has been told of a process without hooked system calls.
    has_told_unhooked: AtomicBool,
    /// The notes of domains that the user has been told of.
    noted: Mutex<BTreeSet<String>>,
    /// The domains of [`Self::of_domains`] that the user has been told of.
    cut_off: Mutex<BTreeSet<DomainId>>,
    /// Those of [`Self::busy`], likewise.
    busy: Mutex<BTreeSet<DomainId>>,
    /// True once the user has been told of a process that is not followed.
    has_told_unfollowed: AtomicBool,
    /// The messages about processes that were named together with others and are left out.
    left_out: Mutex<BTreeSet<(i32, String)>>,
    /// Names of programs that are not traced.
    untraceable: Mutex<BTreeSet<String>>,
    /// Programs, by name and number of unhooked instructions, that have such instructions.
    unhooked: Mutex<BTreeSet<(String, usize)>>,
    /// The messages about files with code that had not been scanned when it was mapped.
    late: Mutex<BTreeSet<String>>,
    /// Instructions that let calls slip through.
    slipped: Mutex<BTreeSet<String>>,
    /// Programs that are not followed because they gain rights.
    privileged: Mutex<BTreeSet<PathBuf>>,
    /// Programs that were let go for a seccomp filter, by name. False if something is left in them.
    confining: Mutex<BTreeSet<(String, bool)>>,
    /// The number of processes that were lost from sight when they forked or ran another program,
    /// and why the last one was.
    lost: Mutex<(u64, String)>,
}

impl Diagnostics {
    pub fn new(report: Report) -> Self {
        Self {
            report,
            is_short_of_files: AtomicBool::new(false),
            has_told_unhooked: AtomicBool::new(false),
            noted: Mutex::default(),
            cut_off: Mutex::default(),
            busy: Mutex::default(),
            has_told_unfollowed: AtomicBool::new(false),
            left_out: Mutex::default(),
            untraceable: Mutex::default(),
            unhooked: Mutex::default(),
            late: Mutex::default(),
            slipped: Mutex::default(),
            privileged: Mutex::default(),
            confining: Mutex::default(),
            lost: Mutex::default(),
        }
    }

    /// Tells the user something, each time.
    pub fn say(&self, what: &str) {
        (self.report)(what);
    }

    /// A process that was named together with others cannot be traced.
    pub fn left_out(&self, pid: i32, error: &Error) {
        let why = error.to_string();
        if self.left_out.lock().insert((pid, why.clone())) {
            self.say(&left_out(pid, &why));
        }
    }

    /// Processes are left out that could have been traced if Beeline might open more files.
    pub fn short_of_files(&self, error: &Error) {
        if error.is_of_too_many_files() && !self.is_short_of_files.swap(true, SeqCst) {
            self.say(&format!(
                "{error}: this and other processes are not traced; let Beeline have more files open (ulimit -n)"
            ));
        }
    }

    /// A process maps a probed file and cannot be traced, now or ever.
    pub fn untraceable(&self, pid: i32, link: &Uprobe, error: &Error) {
        use beeline_inject::Error::{Seccomp, ThirtyTwoBit};
        let is_lasting = matches!(error, Error::Inject(Seccomp { .. } | ThirtyTwoBit { .. }));
        if !is_lasting || !maps_file_of(link, pid) {
            return;
        }
        let name = proc::text(format!("/proc/{pid}/comm")).unwrap_or_default();
        let name = name.trim_end().replace(char::is_control, "\u{fffd}");
        let told = format!(
            "{error}; {name} maps a file that is probed, and is not traced: only the kernel's own probes, without Beeline, see it"
        );
        if self.untraceable.lock().insert(name) {
            self.say(&told);
        }
    }

    /// A process's system calls could not be hooked; reported if the user can mend that. Among all
    /// processes there are always some that may not be touched or that are just ending.
    pub fn without_calls(&self, error: &Error) {
        self.short_of_files(error);
        if let Error::Target { .. } = error
            && !self.has_told_unhooked.swap(true, SeqCst)
        {
            self.say(&error.to_string());
        }
    }

    /// `count` instructions of a program are not hooked that may make calls which eBPF programs
    /// wait for.
    pub fn unhooked(&self, pid: i32, name: String, count: usize) {
        let noun = if count == 1 {
            "instruction"
        } else {
            "instructions"
        };
        let what = format!(
            "process {pid} ({name}): the calls of {count} `syscall` {noun} are not seen; `beeline ps` says which and why"
        );
        if self.unhooked.lock().insert((name, count)) {
            self.say(&what);
        }
    }

    /// A target maps files with calls that are not seen, or not yet.
    pub fn late_code(&self, target: &mut Target) {
        let Some((name, news)) = target.news_of_late_code() else {
            return;
        };
        let pid = target.process().pid();
        for (path, why) in news {
            let path = path.display().to_string();
            let path = path.replace(char::is_control, "\u{fffd}");
            let why = match why {
                WhyUnseen::Late => format!(
                    "{path} is much code: system calls that are made there itself are seen as soon as it has been looked through"
                ),
                WhyUnseen::GivenUp => format!(
                    "{path} is more code than can be looked through in {} s: system calls that are made there itself are not seen",
                    LONGEST_LOOK.as_secs()
                ),
            };
            if self.late.lock().insert(why.clone()) {
                self.say(&format!("process {pid} ({name}): {why}"));
            }
        }
    }

    /// A thread sleeps in a call that programs wait for and did not see. Only the first places are
    /// reported.
    pub fn slipped(&self, pid: i32, call: &SlippedCall) {
        let SlippedCall {
            name,
            place,
            number,
        } = call;
        let mut told = self.slipped.lock();
        if told.len() < SLIPPED_TOLD && told.insert(format!("{name} {place}")) {
            self.say(&format!(
                "process {pid} ({name}): it sleeps in system call {number}, made by an instruction at {place} that nobody knew of; calls from there are not seen"
            ));
        }
    }

    /// A program gains rights when it is run, and is not followed.
    pub fn privileged(&self, program: PathBuf) {
        let what = format!(
            "{} gains rights when it is run (set-uid, set-gid or capabilities), and would not if it were traced: it is not followed; \
             run Beeline with CAP_SYS_PTRACE to follow it",
            program.display()
        );
        if self.privileged.lock().insert(program) {
            self.say(&what);
        }
    }

    /// A process puts itself under a seccomp filter that forbids calls of Beeline's, as `why` says.
    /// `outcome` is that of letting it go.
    pub fn confining(&self, pid: i32, name: &str, why: &Confinement, outcome: &Result<(), Error>) {
        let what = match outcome {
            Ok(()) => "it is not traced any more".to_owned(),
            Err(error) => error.to_string(),
        };
        let key = (name.to_owned(), outcome.is_ok());
        if self.confining.lock().insert(key) {
            self.say(&format!(
                "process {pid} ({name}) puts itself under a seccomp filter that forbids calls which Beeline makes in it ({why}): {what}"
            ));
        }
    }

    /// A process cannot be followed to what it forks, runs and loads.
    pub fn unfollowed(&self, why: &str) {
        if !self.has_told_unfollowed.swap(true, SeqCst) {
            self.say(&format!(
                "{why}; until then what it forks, runs or loads for less than a tenth of a second may be missed"
            ));
        }
    }

    /// True once [`Self::unfollowed`] has told of a process.
    pub fn has_unfollowed(&self) -> bool {
        self.has_told_unfollowed.load(SeqCst)
    }

    /// Counts a process that was lost from sight, at least for a time. If it has ended, that may be
    /// the reason, and it counts only if the error names an obstacle.
    pub fn followed(&self, pid: i32, outcome: Result<(), Error>) {
        if let Err(error) = outcome
            && (error.is_obstacle() || program(pid).is_some())
        {
            let mut lost = self.lost.lock();
            *lost = (lost.0 + 1, error.to_string());
        }
    }

    /// The session has been taken out of a process by `beeline detach`.
    pub fn dismissed(&self, pid: i32) {
        let name = proc::text(format!("/proc/{pid}/comm")).unwrap_or_default();
        self.say(&format!(
            "process {pid} ({}) is not traced any more: `beeline detach` has taken this session out of it",
            name.trim_end()
        ));
    }

    /// A process has become another user's. `outcome` says how long it was not traced while it moved
    /// to that user's domain.
    pub fn moved(&self, pid: i32, outcome: &Result<Duration, Error>) {
        let what = match outcome {
            Ok(Duration::ZERO) => return,
            Ok(gap) => format!(
                "it was not traced for {} ms, in which Beeline has parted it from its old user's processes",
                gap.as_millis() + 1
            ),
            Err(error) => format!("it cannot be traced as that user's: {error}"),
        };
        self.say(&format!("process {pid} runs as another user now: {what}"));
    }

    /// A process could not be left as it was.
    pub fn not_left(&self, pid: i32, error: &Error) {
        if !std::path::Path::new(&format!("/proc/{pid}/maps")).exists() {
            return;
        }
        self.say(&match error {
            Error::Target { .. } => error.to_string(),
            _ => format!(
                "process {pid} is not left as it was: {error}; `beeline detach {pid}` it later"
            ),
        });
    }

    /// Tells something, unless the user has been told the same.
    pub fn once(&self, note: String) {
        if self.noted.lock().insert(note.clone()) {
            self.say(&note);
        }
    }

    /// Tells, once each, of domains in which somebody has written nonsense, and what was noted of the
    /// others.
    pub fn of_domains(&self, domains: &[Arc<Domain>]) {
        for domain in domains {
            for note in domain.notes() {
                self.once(note);
            }
            let Some(why) = domain.why_cut_off() else {
                continue;
            };
            if self.cut_off.lock().insert(domain.id) {
                self.say(&format!(
                    "a process of {} has overwritten what Beeline shares with it: {why}; events of that user's \
                     processes are not shown any more",
                    domain.name
                ));
            }
        }
    }

    /// Processes of a domain keep Beeline busy for nothing; told once.
    pub fn busy(&self, domain: &Domain) {
        if self.busy.lock().insert(domain.id) {
            self.say(&format!(
                "a process of {} keeps Beeline busy for nothing: it is told again and again of forks, programs or code \
                 of which nothing comes; when that user's processes fork, run other programs or map code, they wait longer",
                domain.name
            ));
        }
    }

    /// A process of a domain has lied too often about what it does, the last time in the name of
    /// process `pid`, as it is seen from where it runs.
    pub fn liar(&self, domain: &Domain, pid: i32) {
        self.say(&format!(
            "a process of {} makes false requests of Beeline, the last in the name of process {pid}: that user's \
             processes are not followed any more when they fork, run other programs or map code",
            domain.name
        ));
    }

    /// Tells, at the session's end, what was missed.
    pub fn totals(&self, domains: &[Arc<Domain>]) {
        let total = |count: fn(&Session) -> &AtomicU64| -> u64 {
            let counts = domains
                .iter()
                .map(|domain| count(domain.page()).load(SeqCst));
            counts.fold(0, u64::saturating_add)
        };
        let refused = total(|page| &page.refused);
        if refused > 0 {
            self.say(&format!(
                "{refused} changes of maps were not made: a lock was held too long"
            ));
        }
        let missed = total(|page| &page.missed);
        if missed > 0 {
            self.say(&format!(
                "{missed} probe hits ran no program: no CPU slot, no room for a return or none on a signal stack was free"
            ));
        }
        let unanswered = total(|page| &page.unanswered);
        if unanswered > 0 {
            self.say(&format!(
                "{unanswered} times a process forked, ran another program or mapped code and was not followed in time: \
                 system calls of it may be missing"
            ));
        }
        let (lost, why) = std::mem::take(&mut *self.lost.lock());
        if lost > 0 {
            self.say(&format!(
                "{lost} times a process forked, ran another program or mapped code and was not followed; the last: {why}"
            ));
        }
        let lost = total(|page| &page.errands.lost);
        if lost > 0 {
            self.say(&format!(
                "{lost} operations of programs in processes on a map in the kernel were not made: Beeline did not answer in \
                 time, or a program looked up too many values"
            ));
        }
        let unguarded = total(|page| &page.unguarded);
        if unguarded > 0 {
            self.say(&format!(
                "{unguarded} times a program went on without a bpf_spin_lock: its holder did not run"
            ));
        }
    }
}

/// Formats the message about a process that was named together with others and is left out.
pub fn left_out(pid: i32, why: &str) -> String {
    let comm = proc::text(format!("/proc/{pid}/comm")).unwrap_or_default();
    let name = match comm.trim() {
        "" => String::new(),
        comm => format!(" ({comm})"),
    };
    format!("process {pid}{name} is left out: {why}")
}

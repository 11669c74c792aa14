//! One process: can it be traced, and what stands in the way?

use std::fs;
use std::os::unix::fs::MetadataExt;

use beeline_inject::Error;
use beeline_runtime::{detach, proc, traceable};

use super::finding::Finding;
use super::rights::has_capability;
use super::status::Status;
use super::tracing::{no_tracing, stop_and_go};

/// A process that is asked about.
#[derive(Debug)]
pub struct Target {
    pid: i32,
    status: Option<Status>,
    /// The answer of the code by which `beeline run --pid` opens it.
    opened: Result<(), beeline_runtime::Error>,
}

impl Target {
    /// Looks at a process.
    pub fn look(pid: i32) -> Self {
        let opened = traceable(vec![pid], |_| {}).map(drop);
        Self {
            pid,
            status: Status::of(pid),
            opened,
        }
    }

    /// Returns its number.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Returns its name.
    pub fn comm(&self) -> String {
        let comm = proc::text(format!("/proc/{}/comm", self.pid)).unwrap_or_default();
        comm.trim_end().to_owned()
    }

    /// True if there is something to look at.
    pub fn is_there(&self) -> bool {
        self.status
            .as_ref()
            .is_some_and(|status| !matches!(status.state(), Some('Z' | 'X')))
    }

    fn refusal(&self) -> Option<&Error> {
        match &self.opened {
            Err(beeline_runtime::Error::Inject(error)) => Some(error),
            _ => None,
        }
    }

    /// Is it there, and a process with code of its own?
    pub fn process(&self) -> Finding {
        let Some(status) = &self.status else {
            return Finding::no(format!(
                "there is no process {}: it has ended, lives in another PID namespace, or /proc hides it (hidepid)",
                self.pid
            ))
            .fix("name a process that `ps` shows here");
        };
        match self.refusal() {
            Some(
                error @ (Error::Exited { .. } | Error::KernelThread { .. } | Error::Itself { .. }),
            ) => Finding::no(error.to_string()),
            _ if !self.is_there() => Finding::no(Error::Exited { pid: self.pid }.to_string()),
            Some(error @ Error::NoSuchProcess { .. }) => Finding::no(format!(
                "{error}; a thread of another process has this number"
            ))
            .fix(self.process_of_thread()),
            _ => Finding::ok(format!(
                "{}, {} threads",
                self.comm(),
                status.threads().unwrap_or_default()
            )),
        }
    }

    fn process_of_thread(&self) -> String {
        match proc::process_of(self.pid) {
            Some(process) => format!("name its process, {process}"),
            None => "name its process".to_owned(),
        }
    }

    /// Whose is it?
    pub fn owner(&self) -> Finding {
        let us = rustix::process::geteuid().as_raw();
        match self.status.as_ref().and_then(Status::user) {
            None => Finding::warn("unknown: its status cannot be read"),
            Some(owner) if owner == us => Finding::ok(format!("user {owner}, as Beeline")),
            Some(owner) => match self.refusal() {
                Some(error @ Error::NotPermitted { .. }) if us != 0 => no_tracing(error),
                _ => Finding::ok(format!(
                    "user {owner}; Beeline is user {us}{}",
                    by_capability()
                )),
            },
        }
    }

    /// Is it dumpable? If not, the kernel gives its files in `/proc` to root.
    pub fn dumpable(&self) -> Finding {
        let owner = fs::metadata(format!("/proc/{}/stat", self.pid)).map(|file| file.uid());
        let user = self.status.as_ref().and_then(Status::user);
        match (owner.ok(), user) {
            (Some(owner), Some(user)) if owner == user && user == 0 => {
                Finding::ok("it is root's, whose files do not tell")
            }
            (Some(owner), Some(user)) if owner == user => Finding::ok("it is dumpable"),
            (Some(_), Some(_)) => match self.refusal() {
                Some(error @ Error::NotPermitted { .. }) => {
                    let finding = no_tracing(error);
                    Finding {
                        detail: "it is not dumpable (prctl PR_SET_DUMPABLE, a set-uid program, or one that its user may not read)".to_owned(),
                        ..finding
                    }
                }
                _ => Finding::ok(format!("it is not dumpable{}", by_capability())),
            },
            _ => Finding::warn("unknown: its files cannot be looked at"),
        }
    }

    /// Does something trace it?
    pub fn tracer(&self) -> Finding {
        match (
            self.refusal(),
            self.status.as_ref().and_then(Status::tracer),
        ) {
            (Some(error @ Error::Traced { .. }), _) => no_tracing(error),
            (_, None) => Finding::ok("nothing traces it"),
            (_, Some(tracer)) => Finding::warn(format!("thread {tracer} traced it a moment ago")),
        }
    }

    /// Is it a 64-bit program?
    pub fn program(&self) -> Finding {
        match self.refusal() {
            Some(error @ Error::ThirtyTwoBit { .. }) => no_tracing(error),
            None | Some(Error::Seccomp { .. }) => Finding::ok("a 64-bit program"),
            Some(_) => Finding::warn("unknown: it cannot be opened"),
        }
    }

    /// Under which filters is it?
    pub fn seccomp(&self) -> Finding {
        let own = Status::own();
        let own = own.as_ref().and_then(Status::filters);
        let Some(status) = &self.status else {
            return Finding::warn("unknown: its status cannot be read");
        };
        let filters = match (status.seccomp(), status.filters()) {
            (None | Some(0), _) => return Finding::ok("it is under no filter"),
            (Some(1), _) => "it is in strict mode: it may only read, write and exit".to_owned(),
            (_, Some(count)) if own == Some(count) => format!(
                "it is under {count} filter(s), as many as Beeline: likely those of one container"
            ),
            (_, Some(count)) => format!(
                "it is under {count} filter(s), Beeline under {}",
                own.unwrap_or_default()
            ),
            (_, None) => "it is under filters".to_owned(),
        };
        match self.refusal() {
            Some(error @ Error::Seccomp { .. }) => Finding {
                detail: format!(
                    "{filters}; such processes are refused: what Beeline has them do could kill them"
                ),
                ..no_tracing(error)
            },
            _ => Finding::ok(filters),
        }
    }

    /// Is it in the namespaces of this process?
    pub fn namespaces(&self) -> Finding {
        let link = |whose: &str, kind: &str| fs::read_link(format!("/proc/{whose}/ns/{kind}"));
        let mut others = Vec::new();
        for kind in ["user", "pid", "mnt"] {
            match (link(&self.pid.to_string(), kind), link("self", kind)) {
                (Ok(its), Ok(ours)) if its == ours => {}
                (Ok(_), Ok(_)) => others.push(kind),
                // The kernel shows them to those who may trace the process.
                (Err(error), _) | (_, Err(error)) => {
                    return Finding::warn(format!("unknown: {error}"));
                }
            }
        }
        match (others.as_slice(), self.refusal()) {
            ([], _) => Finding::ok("user, pid and mnt are those of Beeline"),
            (_, Some(error @ Error::NotPermitted { .. })) if others.contains(&"user") => Finding {
                detail: format!("another user namespace: {error}"),
                ..no_tracing(error)
            },
            (others, _) => Finding::ok(format!(
                "{} of its own: it is in another container or sandbox",
                others.join(", ")
            )),
        }
    }

    /// Are sessions of Beeline's there?
    pub fn sessions(&self) -> Finding {
        match detach::in_process(self.pid) {
            Err(error) => Finding::warn(format!("unknown: {error}")),
            Ok(sessions) if sessions.is_empty() => Finding::ok("no session of Beeline's is there"),
            Ok(sessions) => {
                let calls = sessions
                    .iter()
                    .any(|session| session.is_live && session.calls.hooked > 0);
                let list = sessions.iter().map(|session| match session.is_live {
                    true => format!("session {} ({})", session.session.pid, session.tool),
                    false => format!("what killed session {} left", session.session.pid),
                });
                let list: Vec<_> = list.collect();
                let detail = format!("{} is there", list.join(", "));
                match calls {
                    true => Finding::warn(format!(
                        "{detail} and traces its system calls, which one session at a time does"
                    ))
                    .fix(format!(
                        "end that session, or `beeline detach {}`",
                        self.pid
                    )),
                    false => Finding::ok(detail),
                }
            }
        }
    }

    /// Can it be opened and held?
    pub fn trial(&self) -> Finding {
        match (&self.opened, self.refusal()) {
            (_, Some(error)) => no_tracing(error),
            (Err(error), None) => Finding::no(error.to_string()),
            (Ok(()), None) => match stop_and_go(self.pid) {
                Ok(()) => Finding::ok("it was stopped, ran a system call and was let go"),
                Err(error) => no_tracing(&error),
            },
        }
    }
}

/// Says by what right another's process is traced.
fn by_capability() -> &'static str {
    match has_capability("CAP_SYS_PTRACE") {
        true => ", with CAP_SYS_PTRACE",
        false => "",
    }
}

//! One process: if it can be traced, and what stands in the way.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

use beeline_inject::{Error, Refusal};
use beeline_runtime::{detach, proc, traceable};

use super::finding::Finding;
use super::rights::{has_capability, is_in_inner_namespace};
use super::status::Status;
use super::tracing::{confined, no_tracing, others_process, stop_and_go};

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

    /// True if the kernel forbids to trace it.
    fn is_forbidden(&self) -> bool {
        matches!(self.refusal(), Some(Error::NotPermitted { .. }))
    }

    /// Checks that it is there, and a process with code of its own.
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
            _ => Finding::ok(match status.threads() {
                Some(count @ 2..) => format!("{}, {count} threads", comm(self.pid)),
                _ => comm(self.pid),
            }),
        }
    }

    fn process_of_thread(&self) -> String {
        match proc::process_of(self.pid) {
            Some(process) => format!("name its process, {process}"),
            None => "name its process".to_owned(),
        }
    }

    /// Checks that this user may trace its owner's processes.
    pub fn owner(&self) -> Finding {
        let us = rustix::process::geteuid().as_raw();
        match self.status.as_ref().and_then(Status::user) {
            None => Finding::warn("unknown: its status cannot be read"),
            Some(owner) if owner == us => Finding::ok(format!("user {owner}, as Beeline")),
            Some(owner) if self.is_forbidden() && !has_capability("CAP_SYS_PTRACE") => {
                others_process(owner, us)
            }
            Some(owner) => Finding::ok(format!(
                "user {owner}; Beeline is user {us}{}",
                by_capability()
            )),
        }
    }

    /// Checks that it is dumpable. If not, the kernel gives its files in `/proc` to root.
    pub fn dumpable(&self) -> Finding {
        let owner = fs::metadata(format!("/proc/{}/stat", self.pid)).map(|file| file.uid());
        let user = self.status.as_ref().and_then(Status::user);
        match (owner.ok(), user, self.refusal()) {
            (Some(0), Some(0), _) => Finding::ok("unknown: /proc does not tell of root's"),
            (Some(owner), Some(user), _) if owner == user => Finding::ok("it is dumpable"),
            (
                Some(_),
                Some(_),
                Some(
                    error @ Error::NotPermitted {
                        why: Refusal::NotDumpable,
                        ..
                    },
                ),
            ) => no_tracing(error),
            (Some(_), Some(_), _) => Finding::ok(format!("it is not dumpable{}", by_capability())),
            _ => Finding::warn("unknown: its files cannot be looked at"),
        }
    }

    /// Checks that nothing traces it.
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

    /// Checks that it is a 64-bit program.
    pub fn program(&self) -> Finding {
        match self.refusal() {
            Some(error @ Error::ThirtyTwoBit { .. }) => no_tracing(error),
            None | Some(Error::Seccomp { .. }) => Finding::ok("a 64-bit program"),
            Some(_) => Finding::warn("unknown: it cannot be opened"),
        }
    }

    /// Checks that its filters do not stand in the way.
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
                "it is under as many filters as Beeline ({count}): likely those of one container"
            ),
            (_, Some(count)) => format!(
                "its filters: {count}; Beeline's: {}",
                own.unwrap_or_default()
            ),
            (_, None) => "it is under filters".to_owned(),
        };
        match self.refusal() {
            Some(Error::Seccomp { why, .. }) => {
                let finding = confined(why);
                Finding {
                    detail: format!("{filters}; {}", finding.detail),
                    ..finding
                }
            }
            _ => Finding::ok(filters),
        }
    }

    /// Compares its namespaces with those of this process.
    pub fn namespaces(&self) -> Finding {
        let link = |whose: &str, kind: &str| fs::read_link(format!("/proc/{whose}/ns/{kind}"));
        let mut others = Vec::new();
        for kind in ["user", "pid", "mnt"] {
            match (link(&self.pid.to_string(), kind), link("self", kind)) {
                (Ok(its), Ok(ours)) if its == ours => {}
                (Ok(_), Ok(_)) => others.push(kind),
                (Err(error), _) | (_, Err(error)) => return self.unknown_namespaces(&error),
            }
        }
        match (others.as_slice(), self.refusal()) {
            ([], _) => Finding::ok("user, pid and mnt are Beeline's"),
            (_, Some(error)) if self.is_forbidden() && others.contains(&"user") => {
                in_another_namespace(error)
            }
            (others, _) => Finding::ok(format!(
                "{} of its own: a container or a sandbox",
                others.join(", ")
            )),
        }
    }

    /// The kernel shows namespaces to those who may trace the process.
    fn unknown_namespaces(&self, error: &io::Error) -> Finding {
        match self.refusal() {
            Some(
                error @ Error::NotPermitted {
                    why: Refusal::Other,
                    ..
                },
            ) if is_in_inner_namespace() => in_another_namespace(error),
            _ => Finding::warn(format!("unknown: {error}")),
        }
    }

    /// Lists the sessions of Beeline's that are there.
    pub fn sessions(&self) -> Finding {
        let sessions = match detach::in_process(self.pid) {
            Ok(sessions) => sessions,
            Err(_) => return Finding::warn("unknown: it cannot be opened"),
        };
        let list = sessions.iter().map(|session| match session.is_live {
            true => format!("session {} ({})", session.session.pid, session.tool),
            false => format!("what killed session {} left", session.session.pid),
        });
        let list: Vec<_> = list.collect();
        Finding::ok(match list.as_slice() {
            [] => "no session of Beeline's is there".to_owned(),
            list => format!(
                "{}; of several sessions, one can trace the system calls",
                list.join(", ")
            ),
        })
    }

    /// Checks that it can be opened and held, as a session would.
    pub fn trial(&self) -> Finding {
        match (&self.opened, self.refusal()) {
            (_, Some(error)) => no_tracing(error),
            (Err(error), None) => Finding::no(error.to_string()),
            (Ok(()), None) => stop_and_go(self.pid),
        }
    }
}

fn in_another_namespace(error: &Error) -> Finding {
    Finding {
        detail: "it is in another user namespace, or has more capabilities than Beeline".to_owned(),
        ..no_tracing(error)
    }
}

/// Returns a process's name.
pub fn comm(pid: i32) -> String {
    let comm = proc::text(format!("/proc/{pid}/comm")).unwrap_or_default();
    comm.trim_end().to_owned()
}

/// Says by what right another's process is traced.
fn by_capability() -> &'static str {
    match has_capability("CAP_SYS_PTRACE") {
        true => ", with CAP_SYS_PTRACE",
        false => "",
    }
}

//! Seccomp filters: those that this process is under, and what they answer.

use std::io;

use beeline_inject::{Confinement, Error, with_remedy};
use beeline_runtime::traceable;
use beeline_supervisor::Interception;
use beeline_supervisor::trial::{listen, notifies};

use super::calls::{Answer, BPF, Harmless, NEEDED, PERF_EVENT_OPEN, USEFUL, errno_name};
use super::finding::Finding;
use super::machine::release;
use super::rights::{has_capability, is_bpf_for_the_privileged};
use super::status::Status;
use super::subject::Subject;
use super::tracing::{confined, no_subject};

/// The way out where there is a filter.
pub const WITHOUT_FILTER: &str = "run without this seccomp filter: `docker run --security-opt seccomp=unconfined` (podman likewise), \
     in Kubernetes `securityContext: {seccompProfile: {type: Unconfined}}`, under systemd no SystemCallFilter=";

/// The kernel from which on bpf(2) refuses unprivileged users certain commands only.
const REFUSES_COMMANDS_ONLY: (u32, u32) = (5, 19);

/// Reads which filters this process is under.
pub fn seccomp() -> Finding {
    let Some(own) = Status::own() else {
        return Finding::warn("unknown: /proc/self/status cannot be read");
    };
    match (own.seccomp(), own.filters()) {
        (Some(0), _) => Finding::ok("this process is under no filter"),
        (Some(_), Some(1)) => Finding::ok("this process is under a filter"),
        (Some(_), Some(count)) => Finding::ok(format!("this process is under {count} filters")),
        // Before Linux 5.9.
        (Some(_), None) => {
            Finding::ok("this process is under filters; the kernel does not count them")
        }
        (None, _) => Finding::ok("this kernel has no seccomp"),
    }
}

/// Checks that a process may be traced which is under the filters of this one.
pub fn filtered_processes() -> Finding {
    let subject = match Subject::child() {
        Ok(subject) => subject,
        Err(error) => return no_subject(&error),
    };
    match traceable(vec![subject.pid()], |_| {}) {
        Ok(_) if is_filtered() => {
            Finding::ok("processes under this process's filters can be traced")
        }
        Ok(_) => Finding::ok("processes that this one starts are under no filter"),
        Err(beeline_runtime::Error::Inject(Error::Seccomp { why, .. })) => {
            let detail = format!(
                "processes under this process's filters are refused: {}",
                confined(&why).detail
            );
            Finding::no(detail).fix(match why {
                Confinement::Forbids { call, .. } => allow(&[call]),
                _ => WITHOUT_FILTER.to_owned(),
            })
        }
        // What stands in the way is told where tracing is tried.
        Err(error) => Finding::warn(format!("unknown: {error}")),
    }
}

/// Checks that the calls which Beeline makes reach the kernel.
pub fn calls() -> Finding {
    let (needed, useful) = (refused(&NEEDED), refused(&USEFUL));
    if needed.is_empty() && useful.is_empty() {
        let all = NEEDED.iter().chain(&USEFUL).map(|call| call.name);
        let all: Vec<_> = all.collect();
        return Finding::ok(format!("{} reach the kernel", all.join(", ")));
    }
    // Beeline does without a call that fails, but not if it is killed for it.
    let is_deadly = |(_, answer): &(_, Answer)| matches!(answer, Answer::Killed(_));
    let is_enough = needed.is_empty() && !useful.iter().any(is_deadly);
    let all = [needed, useful].concat();
    let list: Vec<_> = all
        .iter()
        .map(|(name, answer)| format!("{name} ({})", answer.in_words()))
        .collect();
    let names: Vec<_> = all.iter().map(|(name, _)| *name).collect();
    let (who, fix) = match is_filtered() {
        true => ("a seccomp filter", allow(&names)),
        false => (
            "the kernel",
            format!("run a kernel that has {}", names.join(", ")),
        ),
    };
    let detail = format!("{who} refuses {}", list.join(", "));
    match is_enough {
        true => Finding::warn(format!("{detail}; Beeline does without")).fix(fix),
        false => Finding::no(detail).fix(fix),
    }
}

/// Returns the calls that the kernel does not answer itself, and their answers.
fn refused(calls: &[Harmless]) -> Vec<(&'static str, Answer)> {
    let answers = calls.iter().map(|call| (call.name, call.answer()));
    answers
        .filter(|(_, answer)| *answer != Answer::Kernel)
        .collect()
}

/// Returns what to change for calls that a filter refuses.
pub fn allow(names: &[&str]) -> String {
    format!(
        "let the seccomp profile allow {}; or {WITHOUT_FILTER}",
        names.join(", ")
    )
}

/// Checks that a filter with a listener can be installed, by which a supervisor gets calls.
pub fn listener() -> Finding {
    match listen() {
        Ok(()) => Finding::ok("a filter with a listener can be installed"),
        Err(error) => no_listener(&error),
    }
}

fn no_listener(error: &io::Error) -> Finding {
    match error.raw_os_error() {
        Some(libc::EBUSY) => Finding::no(
            "a supervisor listens to this process's calls already (EBUSY), and the kernel allows one",
        )
        .fix("run Beeline outside the other supervisor: another `beeline run`, or a sandbox or container with seccomp notifications"),
        Some(errno @ (libc::EPERM | libc::EACCES | libc::ENOSYS)) if is_filtered() => {
            Finding::no(format!("a seccomp filter refuses seccomp(2) with {}", errno_name(errno)))
                .fix(allow(&["seccomp"]))
        }
        Some(errno @ (libc::ENOSYS | libc::EINVAL)) => Finding::no(format!(
            "the kernel has no filters with listeners ({})",
            errno_name(errno)
        ))
        .fix("run a kernel with CONFIG_SECCOMP_FILTER (not gVisor's)"),
        _ => Finding::no(with_remedy(error)),
    }
}

/// Finds out what answers bpf(2).
pub fn bpf() -> Finding {
    answered(&BPF, BPF.answer(), may_kernel_refuse_bpf())
}

/// Finds out what answers perf_event_open(2).
pub fn perf_event_open() -> Finding {
    answered(&PERF_EVENT_OPEN, PERF_EVENT_OPEN.answer(), false)
}

/// Names the author of an answer. `may_refuse`: the kernel itself may say EPERM.
fn answered(call: &Harmless, answer: Answer, may_refuse: bool) -> Finding {
    let words = answer.in_words();
    match answer {
        Answer::Kernel => Finding::ok("reaches the kernel"),
        Answer::Unknown => Finding::warn("could not be tried"),
        _ if !is_filtered() => Finding::ok(format!(
            "the kernel answers {words} itself: there is no filter"
        )),
        // A call that another filter answers does not reach a filter's listener, so this is sure.
        Answer::Errno(libc::EPERM) if may_refuse => match notifies() {
            Ok([true, _]) => Finding::ok(format!(
                "the kernel answers {words} (kernel.unprivileged_bpf_disabled); no filter does, as it can be intercepted"
            )),
            Ok(_) => Finding::warn(format!(
                "a seccomp filter answers {words}, as it cannot be intercepted"
            )),
            Err(_) => Finding::warn(format!(
                "{words}, from a seccomp filter or from the kernel (kernel.unprivileged_bpf_disabled): not sure which"
            )),
        },
        _ => Finding::warn(format!(
            "a seccomp filter answers {words}: the kernel would say EINVAL"
        ))
        .fix(format!("let the seccomp profile allow {}", call.name)),
    }
}

/// True if the kernel itself may refuse any command of bpf(2) to this user.
fn may_kernel_refuse_bpf() -> bool {
    release().is_none_or(|release| release < REFUSES_COMMANDS_ONLY)
        && is_bpf_for_the_privileged()
        && !has_capability("CAP_BPF")
        && !has_capability("CAP_SYS_ADMIN")
}

/// Checks that a tool's bpf(2) and perf_event_open(2) can be intercepted, and says how. A failure of
/// the listener itself is told there, and repeated here.
pub fn interception() -> Finding {
    let refused = refused(&[BPF, PERF_EVENT_OPEN]);
    let names: Vec<_> = refused.iter().map(|(name, _)| *name).collect();
    let answers = refused
        .iter()
        .map(|(name, answer)| format!("{name} ({})", answer.in_words()));
    let answers = answers.collect::<Vec<_>>().join(", ");
    match Interception::needs_signals() {
        Ok(false) => match listen() {
            Ok(()) => Finding::ok("by seccomp notification"),
            Err(error) => no_listener(&error),
        },
        Ok(true) if answers.is_empty() => {
            Finding::ok("by SIGSYS, as a seccomp filter refuses what seccomp notifications need")
        }
        Ok(true) => Finding::ok(format!("by SIGSYS, as a seccomp filter answers {answers}")),
        Err(_) if !names.is_empty() => Finding::no(format!(
            "a seccomp filter answers {answers} before Beeline is asked, and leaves no other way"
        ))
        .fix(allow(&names)),
        Err(error) => match listen() {
            Ok(()) => Finding::no(error.to_string()).fix(WITHOUT_FILTER),
            Err(error) => no_listener(&error),
        },
    }
}

/// True if this process is under a filter, or may be.
fn is_filtered() -> bool {
    Status::own().is_none_or(|own| own.seccomp().is_some_and(|mode| mode != 0))
}

//! The rules that forbid tracing a process.

use beeline_uapi::linux::{YAMA_SCOPE_CAPABILITY, YAMA_SCOPE_RELATIONAL};
use rustix::io::Errno;
use rustix::thread::{CapabilitySet, capabilities};

use crate::{procfs, ptrace};

/// The rule that forbids tracing a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// It belongs to another user.
    #[error(
        "it belongs to user {owner} and Beeline runs as user {us}; run Beeline as that user or with CAP_SYS_PTRACE"
    )]
    OtherUser {
        /// Its real user id.
        owner: u32,
        /// Beeline's effective user id.
        us: u32,
    },
    /// It has made itself non-dumpable, or has run a set-uid program.
    #[error(
        "it is not dumpable (prctl PR_SET_DUMPABLE, or a set-uid program); run Beeline with CAP_SYS_PTRACE"
    )]
    NotDumpable,
    /// The Yama security module.
    #[error("kernel.yama.ptrace_scope is {scope}: {}", of_scope(*scope))]
    Yama {
        /// The value of the setting.
        scope: u32,
    },
    /// A seccomp filter that Beeline itself is under, or a kernel without ptrace(2).
    #[error(
        "a seccomp filter that Beeline is under, or a sandbox's kernel, answers every ptrace(2) with \"{errno}\"; have the filter allow ptrace, or run Beeline outside of it"
    )]
    Filter {
        /// The error number that ptrace(2) returns.
        errno: Errno,
    },
    /// No rule that Beeline knows.
    #[error(
        "the kernel says EPERM (a security module, a user namespace, or more capabilities than ours); run Beeline as root in the host's namespace"
    )]
    Other,
}

impl Refusal {
    /// Returns the rule by which this process may trace none at all, not even its children, if such
    /// a rule is known.
    pub fn of_every_process() -> Option<Self> {
        if let Some(errno) = ptrace::foreign_answer() {
            return Some(Self::Filter { errno });
        }
        let scope = yama_scope().filter(|scope| *scope >= YAMA_SCOPE_CAPABILITY)?;
        is_forbidden_by(scope).then_some(Self::Yama { scope })
    }
}

/// True if Yama lets this process trace only what descends from it, and what has asked to be traced.
pub fn strangers_have_to_ask() -> bool {
    yama_scope().is_some_and(|scope| scope == YAMA_SCOPE_RELATIONAL && is_forbidden_by(scope))
}

/// Returns Yama's setting, if the kernel has it.
pub fn yama_scope() -> Option<u32> {
    let text = procfs::text("/proc/sys/kernel/yama/ptrace_scope").ok()?;
    text.trim().parse().ok()
}

/// True if Yama, with this setting, may refuse this process what it asks for.
pub(crate) fn is_forbidden_by(scope: u32) -> bool {
    let is_overridden =
        || capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_PTRACE));
    match scope {
        0 => false,
        YAMA_SCOPE_RELATIONAL | YAMA_SCOPE_CAPABILITY => !is_overridden(),
        _ => true,
    }
}

/// Says what a setting of Yama's means, and what to do.
fn of_scope(scope: u32) -> &'static str {
    match scope {
        YAMA_SCOPE_RELATIONAL => {
            "only its ancestors may trace it, as it has not asked to be traced; start it by `beeline start` or with LD_PRELOAD=libbeeline_start.so, have it call prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0), or run Beeline with CAP_SYS_PTRACE"
        }
        YAMA_SCOPE_CAPABILITY => {
            "only CAP_SYS_PTRACE allows tracing; run Beeline with it, or set kernel.yama.ptrace_scope to 1 or 0"
        }
        _ => "nobody may trace, and the setting stays until the next boot; boot with another one",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In the range that yama_lsm.c accepts.
    #[test]
    fn each_setting_of_yamas_has_its_own_remedy() {
        let said = |scope| Refusal::Yama { scope }.to_string();
        assert!(said(1).contains("ptrace_scope is 1"), "{}", said(1));
        assert!(said(1).contains("PR_SET_PTRACER"), "{}", said(1));
        assert!(said(1).contains("libbeeline_start.so"), "{}", said(1));
        // It would be of no use there.
        for scope in 2..=3 {
            assert!(!said(scope).contains("PR_SET_PTRACER"), "{}", said(scope));
        }
        assert!(said(2).contains("CAP_SYS_PTRACE"), "{}", said(2));
        assert!(!said(3).contains("CAP_SYS_PTRACE"), "{}", said(3));
    }
}

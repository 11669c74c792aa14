//! The host's kernel, for the tool's processes that may use it.

use std::path::PathBuf;

use beeline_runtime::backend::Backend;
use beeline_uapi::linux::{CAP_BPF, CAP_PERFMON, CAP_SYS_ADMIN};

/// Returns the reason, in words, for which Beeline does not ask the kernel on behalf of a thread of
/// the tool's; `None` if it does.
///
/// The thread must have the capabilities itself. A tool may have given up its rights, or have started
/// a process without them, and must gain nothing by Beeline's.
pub(crate) fn refusal(backend: &dyn Backend, tid: i32) -> Option<String> {
    if let Some(why) = backend.kernel_refusal() {
        return Some(why.to_owned());
    }
    // Capabilities in another user namespace are none in the kernel's.
    let own = match user_namespace("self") == user_namespace(&tid.to_string()) {
        true => effective_capabilities(tid),
        false => 0,
    };
    let has = |capability: u64| own >> capability & 1 != 0;
    match has(CAP_SYS_ADMIN) || (has(CAP_BPF) && has(CAP_PERFMON)) {
        true => None,
        false => Some("the tool's process lacks CAP_BPF and CAP_PERFMON".to_owned()),
    }
}

/// Returns the name of a process's user namespace; none if it has ended.
fn user_namespace(process: &str) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{process}/ns/user")).ok()
}

/// Returns none if the thread has ended.
fn effective_capabilities(tid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{tid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    line.and_then(|all| u64::from_str_radix(all.trim(), 16).ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_is_not_there_has_no_capabilities() {
        assert_eq!(effective_capabilities(i32::MAX), 0);
    }

    #[test]
    fn the_own_capabilities_are_those_in_the_status() {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let own = effective_capabilities(std::process::id().cast_signed());
        assert!(status.contains(&format!("CapEff:\t{own:016x}")), "{status}");
    }
}

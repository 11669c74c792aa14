//! The host's kernel, for the tool's processes that may use it.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;

use beeline_runtime::backend::Backend;
use beeline_supervisor::Call;
use beeline_uapi::Errno;
use beeline_uapi::linux::{CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON, CAP_SYS_ADMIN};

/// The capabilities that matter to what programs may do in the kernel.
const RELEVANT: u64 = 1 << CAP_SYS_ADMIN | 1 << CAP_BPF | 1 << CAP_PERFMON | 1 << CAP_NET_ADMIN;

/// Returns the reason, in words, for which Beeline does not ask the kernel on behalf of a thread of
/// the tool's; `None` if it does.
///
/// The thread must have the capabilities that Beeline has. A tool may have given up its rights, or
/// have started a process without them, and must gain nothing by Beeline's.
pub(crate) fn refusal(backend: &dyn Backend, tid: i32) -> Option<String> {
    if let Some(why) = backend.kernel_refusal() {
        return Some(why.to_owned());
    }
    let ours = effective_capabilities("self") & RELEVANT;
    // Capabilities in another user namespace are none in the kernel's.
    let thread = tid.to_string();
    let is_ours = user_namespace("self").is_some_and(|ours| user_namespace(&thread) == Some(ours));
    match is_ours && ours & !effective_capabilities(&thread) == 0 {
        true => None,
        false => Some("the tool's process lacks capabilities that Beeline has".to_owned()),
    }
}

/// Returns a perf event of the kernel's that the tool has opened.
///
/// # Errors
///
/// `EBADF` for another kind of file, and those of [`Call::tool_file`].
pub(crate) fn tools_event(call: &Call<'_>, fd: i32) -> Result<OwnedFd, Errno> {
    let file = call.tool_file(fd)?;
    let name = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
    match name.is_ok_and(|name| name.as_os_str() == "anon_inode:[perf_event]") {
        true => Ok(file),
        false => Err(Errno::EBADF),
    }
}

/// Returns the name of a process's user namespace; none if it has ended.
fn user_namespace(process: &str) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{process}/ns/user")).ok()
}

/// Returns none if the thread has ended.
fn effective_capabilities(thread: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    line.and_then(|all| u64::from_str_radix(all.trim(), 16).ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_is_not_there_has_no_capabilities() {
        assert_eq!(effective_capabilities("2147483647"), 0);
    }

    #[test]
    fn the_own_capabilities_are_those_in_the_status() {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let own = effective_capabilities("self");
        assert!(status.contains(&format!("CapEff:\t{own:016x}")), "{status}");
    }
}

//! The host's kernel, for the tool's processes that may use it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use beeline_runtime::backend::Backend;
use beeline_supervisor::Call;
use beeline_supervisor::keys::errno;
use beeline_uapi::Errno;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::fds::Descriptors;
use crate::objects::ProgramObject;

/// Returns the reason, in words, for which Beeline does not ask the kernel on behalf of a thread of
/// the tool's; `None` if it does.
///
/// The thread must have all the capabilities that Beeline has. A tool may have given up its rights,
/// or have started a process without them, and must gain nothing by Beeline's.
pub(crate) fn refusal(backend: &dyn Backend, tid: i32) -> Option<String> {
    if let Some(why) = backend.kernel_refusal() {
        return Some(why.to_owned());
    }
    match has_our_capabilities(tid) {
        true => None,
        false => Some("the tool's process lacks capabilities that Beeline has".to_owned()),
    }
}

/// Returns whether a thread's programs at system calls run in the kernel, as `--where functions`
/// wants. If they do not, the user is told.
pub(crate) fn runs_system_calls(backend: &dyn Backend, tid: i32) -> bool {
    if !backend.system_calls_are_kernels() {
        return false;
    }
    let refusal = refusal(backend, tid);
    if let Some(why) = &refusal {
        backend.unsupported(&format!(
            "`--where functions`: programs at system calls run in the processes, as with \
             `--where auto`: {why}"
        ));
    }
    refusal.is_none()
}

/// Returns whether a thread of the tool's has all the rights that Beeline has, and is the same user
/// to the kernel, so that it gains nothing if Beeline opens a file for it.
pub(crate) fn has_our_rights(tid: i32) -> bool {
    let theirs = tid.to_string();
    let is_same = |line| {
        let ours = status("self", line);
        ours.is_some() && ours == status(&theirs, line)
    };
    has_our_capabilities(tid) && ["Uid:", "Gid:", "Groups:"].into_iter().all(is_same)
}

/// Returns whether a thread of the tool's has all capabilities that Beeline has, in the same user
/// namespace: in another one they are none to the kernel.
fn has_our_capabilities(tid: i32) -> bool {
    let ours = effective_capabilities("self");
    shares_namespace(tid, "user") && ours & !effective_capabilities(&tid.to_string()) == 0
}

/// Attaches the kernel's program, which is loaded if there is none. If that fails, the user is
/// told.
///
/// # Errors
///
/// Those of [`Backend::program_in_kernel`], and that of `attach`.
pub(crate) fn attach<T>(
    backend: &dyn Backend,
    program: &ProgramObject,
    attach: impl Fn(BorrowedFd<'_>) -> io::Result<T>,
) -> Result<T, Errno> {
    let loaded = backend.program_in_kernel(program.held.id)?;
    attach(loaded.as_fd()).map_err(|error| not_attached(backend, program, errno(error)))
}

/// As [`attach`], once objects that the tool closed before are out of the way.
///
/// # Errors
///
/// Those of [`attach`].
pub(crate) fn attach_after_closes<T>(
    (backend, fds): (&dyn Backend, &Descriptors),
    program: &ProgramObject,
    attach: impl Fn(BorrowedFd<'_>) -> io::Result<T>,
) -> Result<T, Errno> {
    let loaded = backend.program_in_kernel(program.held.id)?;
    let attached = fds.after_closes(|| attach(loaded.as_fd()).map_err(errno));
    attached.map_err(|errno| not_attached(backend, program, errno))
}

fn not_attached(backend: &dyn Backend, program: &ProgramObject, errno: Errno) -> Errno {
    let name = match program.name.as_str() {
        "" => "without a name",
        name => name,
    };
    let error = io::Error::from_raw_os_error(errno.0);
    backend.unsupported(&format!(
        "the kernel does not attach the program {name}: {error}"
    ));
    errno
}

/// Returns whether a thread of the tool's is in the same namespace as Beeline: `net` or `pid`, say.
pub(crate) fn shares_namespace(tid: i32, kind: &str) -> bool {
    let ours = namespace("self", kind);
    ours.is_some() && ours == namespace(&tid.to_string(), kind)
}

/// Does something in the network namespace of a thread of the tool's: numbers of devices are that
/// namespace's, and the kernel asks who calls.
///
/// # Errors
///
/// Those of setns(2), and those of `work`.
pub(crate) fn in_network_of<T: Send>(
    tid: i32,
    work: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    if shares_namespace(tid, "net") {
        return work();
    }
    let namespace = File::open(format!("/proc/{tid}/ns/net"))?;
    // A thread of its own, as a thread cannot be sure to come back.
    let there = || {
        let kind = Some(LinkNameSpaceType::Network);
        move_into_link_name_space(namespace.as_fd(), kind)?;
        work()
    };
    std::thread::scope(|scope| {
        let outcome = scope.spawn(there).join();
        outcome.unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
    })
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

/// Returns the name of a process's namespace; none if it has ended.
fn namespace(process: &str, kind: &str) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{process}/ns/{kind}")).ok()
}

/// Returns none if the thread has ended.
fn effective_capabilities(thread: &str) -> u64 {
    let all = status(thread, "CapEff:");
    all.and_then(|all| u64::from_str_radix(&all, 16).ok())
        .unwrap_or_default()
}

/// Returns what a line of a thread's `/proc/PID/status` says; `None` if the thread has ended.
fn status(thread: &str, line: &str) -> Option<String> {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    let found = status.lines().find_map(|one| one.strip_prefix(line));
    found.map(|text| text.trim().to_owned())
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

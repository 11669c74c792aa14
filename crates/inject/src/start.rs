//! Starting a program that does not begin yet.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

/// Starts a program and leaves it stopped, as by SIGSTOP, before its first instruction; SIGCONT lets it begin. Nobody
/// traces it then.
///
/// As it was traced while it was started, a set-uid program gets no more rights than the caller has.
pub fn start_stopped(command: &mut Command) -> io::Result<Child> {
    // SAFETY: one system call, which a child may make between `fork` and `exec`.
    unsafe {
        command.pre_exec(|| match libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        });
    }
    // The program is there when this returns, and this thread traces it.
    let child = command.spawn()?;
    let pid = child.id() as i32;
    let mut status = 0;
    // SAFETY: waits for the child of this thread that was just started, and fills the status.
    if unsafe { libc::waitpid(pid, &raw mut status, 0) } != pid {
        return Err(io::Error::last_os_error());
    }
    if libc::WIFSTOPPED(status) {
        // SAFETY: takes a number; the child is in the stop behind its `execve`.
        let let_go = unsafe { libc::ptrace(libc::PTRACE_DETACH, pid, 0, libc::SIGSTOP) };
        if let_go == -1 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(child)
}

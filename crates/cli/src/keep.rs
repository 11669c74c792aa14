//! What stays when a session has ended, and something that the tool has started has not: the kernel asks about its calls as long as
//! it lives, and somebody has to say that they are to be made.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};

use anyhow::Context;

use crate::say;

/// The hidden command that does it; its standard input is the listener.
pub const COMMAND: &str = "keep";

/// Starts a process that lets pass what comes from this listener, and tells the user.
pub fn start(listener: OwnedFd) {
    match spawn(listener) {
        Ok(child) => say(&format!(
            "what the tool has started lives on, so process {} of Beeline stays in the background until that has ended",
            child.id()
        )),
        Err(error) => say(&format!(
            "what the tool has started lives on, and many of its calls will fail: Beeline cannot start a process that stays with it: {error}"
        )),
    }
}

/// It holds nothing of ours but the listener: whoever reads what we print shall see its end.
fn spawn(listener: OwnedFd) -> std::io::Result<Child> {
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0("beeline")
        .arg(COMMAND)
        .current_dir("/")
        .stdin(listener)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    // SAFETY: one system call between fork and exec. It cannot fail in a process that is new.
    unsafe {
        command.pre_exec(|| {
            libc::setsid();
            Ok(())
        });
    }
    command.spawn()
}

/// The command itself.
pub fn keep() -> anyhow::Result<ExitCode> {
    let listener = std::io::stdin().as_fd().try_clone_to_owned();
    let listener = listener.context("taking over the listener")?;
    beeline_door::let_pass(listener).context("taking calls")?;
    Ok(ExitCode::SUCCESS)
}

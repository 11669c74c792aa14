//! What stays when a session has ended, or was killed, and something that the tool has started has not: the kernel asks about its calls
//! as long as it lives, and somebody has to say that they are to be made. It is there from the beginning, and waits.

use std::fs::File;
use std::io::PipeWriter;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Mutex;

use anyhow::Context;
use beeline_door::Tool;
use rustix::fs::{MemfdFlags, memfd_create};

use crate::say;

/// The hidden command that does it. Its standard input is the listener; its standard output a pipe that hangs up when it is to begin; its
/// standard error the file that the last call's cookie is in.
pub const COMMAND: &str = "keep";

/// Has a process stay with what this tool starts.
pub fn with_keeper(tool: Tool) -> anyhow::Result<Tool> {
    let last = memfd_create("beeline-last-call", MemfdFlags::CLOEXEC);
    let last = last.map_err(std::io::Error::from).map(File::from);
    let last = last.context("creating a memory file")?;
    let started = start(tool.listener()?, last.try_clone()?.into());
    let (pid, lifeline) =
        started.context("starting a process that stays with what the tool starts")?;
    let lifeline = Mutex::new(Some(lifeline));
    Ok(tool.leave_to(last, move || {
        lifeline.lock().map(|mut lifeline| lifeline.take()).ok();
        say(&format!(
            "what the tool has started lives on, so process {pid} of Beeline stays in the background until that has ended"
        ));
    }))
}

/// Its number, and what hangs up when this process ends or drops it.
fn start(listener: OwnedFd, last: OwnedFd) -> std::io::Result<(u32, PipeWriter)> {
    let (hears, lifeline) = std::io::pipe()?;
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0("beeline")
        .arg(COMMAND)
        .current_dir("/")
        .stdin(listener)
        .stdout(hears)
        .stderr(Stdio::from(last));
    // SAFETY: system calls between fork and exec, which cannot fail there. It is no child of the terminal's any more, and what is meant
    // for us does not end it.
    unsafe {
        command.pre_exec(|| {
            libc::setsid();
            for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM] {
                libc::signal(signal, libc::SIG_IGN);
            }
            Ok(())
        });
    }
    Ok((command.spawn()?.id(), lifeline))
}

/// The command itself.
pub fn keep() -> anyhow::Result<ExitCode> {
    let own = |fd: std::io::Result<OwnedFd>| fd.context("taking over a session");
    let listener = own(std::io::stdin().as_fd().try_clone_to_owned())?;
    let lifeline = own(std::io::stdout().as_fd().try_clone_to_owned())?;
    let last = own(std::io::stderr().as_fd().try_clone_to_owned())?;
    // Memory is not short for this process's sake. Only root may say so.
    let _ = std::fs::write("/proc/self/oom_score_adj", "-900");
    beeline_door::let_pass(listener, &lifeline, &last.into())?;
    Ok(ExitCode::SUCCESS)
}

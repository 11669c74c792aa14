//! `beeline detach`: removes Beeline from a process, regardless of the session that put it there,
//! or removes the leftovers of killed sessions from all processes.

use std::process::ExitCode;

use anyhow::bail;
use beeline_runtime::detach::{self, Presence};

use crate::say;

/// Restores the process.
///
/// # Errors
///
/// Fails if Beeline is not in the process, or cannot be removed from it.
pub fn detach(pid: i32) -> anyhow::Result<ExitCode> {
    let presences = detach::in_process(pid)?;
    if presences.is_empty() {
        bail!("Beeline is not in process {pid}; `beeline ps` lists where it is");
    }
    for presence in presences {
        presence.dismiss()?;
        tell(&presence);
    }
    Ok(ExitCode::SUCCESS)
}

/// Removes the leftovers of killed sessions from all processes.
///
/// A process in which this fails does not keep it from the others.
///
/// # Errors
///
/// None: a failure is printed and becomes the exit code.
pub fn detach_dead() -> anyhow::Result<ExitCode> {
    let mut found = detach::everywhere();
    found.retain(|presence| !presence.is_live);
    if found.is_empty() {
        println!("Killed sessions have left nothing in processes that you may trace.");
    }
    let mut code = ExitCode::SUCCESS;
    for presence in found {
        match presence.detach_if_dead() {
            Ok(true) => tell(&presence),
            // The process has ended, or another command was quicker.
            Ok(false) => {}
            Err(error) => {
                say(&error.to_string());
                code = ExitCode::FAILURE;
            }
        }
    }
    Ok(code)
}

fn tell(presence: &Presence) {
    let sites = presence.sites.len();
    println!(
        "{sites} site{} of session {} restored in process {}",
        if sites == 1 { "" } else { "s" },
        presence.session,
        presence.pid
    );
}

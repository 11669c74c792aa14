//! `beeline detach`: take Beeline out of a process, whoever put it there; or what killed sessions have left out of all.

use std::process::ExitCode;

use anyhow::bail;
use beeline_runtime::detach::{self, Presence};

use crate::say;

/// Restores the process.
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

/// Takes out what killed sessions have left in any process. What cannot be taken out of one does not keep it from the others.
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
            // The process has ended, or somebody else was quicker.
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

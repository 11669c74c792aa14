//! `beeline detach PID`: take Beeline out of a process, whoever put it there.

use std::process::ExitCode;

use anyhow::bail;
use beeline_runtime::leave;

/// Restores the process.
pub fn detach(pid: i32) -> anyhow::Result<ExitCode> {
    let presences = leave::in_process(pid)?;
    if presences.is_empty() {
        bail!("Beeline is not in process {pid}; `beeline ps` lists where it is");
    }
    for presence in presences {
        presence.leave()?;
        let sites = presence.sites.len();
        println!(
            "{sites} site{} of session {} restored in process {pid}",
            if sites == 1 { "" } else { "s" },
            presence.session
        );
    }
    Ok(ExitCode::SUCCESS)
}

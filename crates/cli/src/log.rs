//! `BEELINE_LOG`: prints the decisions of a session on stderr.

use std::io::{IsTerminal, stderr};

use tracing_subscriber::EnvFilter;

const VARIABLE: &str = "BEELINE_LOG";

/// Starts to log, if the variable asks for it.
///
/// It holds a level (`info`, `debug`, `trace`), or directives such as
/// `beeline_runtime::target=debug`.
///
/// # Errors
/// Fails if the variable holds something else; the text says so.
pub fn start() -> Result<(), String> {
    let Some(value) = std::env::var_os(VARIABLE).filter(|value| !value.is_empty()) else {
        return Ok(());
    };
    let text = value.to_string_lossy();
    let filter = EnvFilter::try_new(&*text).map_err(|why| {
        format!("{VARIABLE}={text}: {why}; it takes a level (info, debug, trace) or module=level")
    })?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(stderr)
        .with_ansi(stderr().is_terminal())
        .init();
    Ok(())
}

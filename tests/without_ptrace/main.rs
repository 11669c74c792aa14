//! Programs that ask to be traced, and processes that nobody may trace.

mod asking;
mod refused;
mod yama;

use std::path::PathBuf;

use beeline_e2e::beeline;

/// Returns a library of those by which programs ask to be traced.
///
/// # Errors
/// It was not built.
fn start_library(name: &str) -> Result<PathBuf, String> {
    let library = beeline().with_file_name(name);
    match library.is_file() {
        true => Ok(library),
        false => Err(format!("no {}: make build", library.display())),
    }
}

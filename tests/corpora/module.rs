//! Object files in a Go module, which `go` fetches.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Returns a module's files, and its version. Errors: the reason why there are none.
pub fn objects(module: &str, version: &str) -> Result<Vec<PathBuf>, String> {
    let asked = Command::new("go")
        .args(["mod", "download", "-json", &format!("{module}@{version}")])
        .current_dir("/")
        .output()
        .map_err(|error| format!("go does not run: {error}"))?;
    let answer: Value = serde_json::from_slice(&asked.stdout).map_err(|error| error.to_string())?;
    if let Some(error) = answer["Error"].as_str() {
        return Err(error.to_owned());
    }
    let directory = answer["Dir"].as_str().ok_or("go names no directory")?;
    // The names that `bpf2go` and the module's own tests give little-endian objects.
    let is_object = |name: &str| name.ends_with("_bpfel.o") || name.ends_with("-el.elf");
    collect(Path::new(directory), &is_object).map_err(|error| error.to_string())
}

/// Returns the files below a directory whose names are `wanted`, in order.
pub fn collect(directory: &Path, wanted: &dyn Fn(&str) -> bool) -> std::io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        // Links lead to files that are here as well, or nowhere.
        let kind = entry.file_type()?;
        if kind.is_dir() {
            found.extend(collect(&entry.path(), wanted)?);
        } else if kind.is_file() && wanted(&entry.file_name().to_string_lossy()) {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

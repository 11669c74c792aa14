//! Object files in a Go module, which `go` fetches.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// A module's files, and its version. Errors: why there are none.
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
    let mut found = Vec::new();
    collect(Path::new(directory), &mut found).map_err(|error| error.to_string())?;
    found.sort();
    Ok(found)
}

/// Little-endian objects, by the names that `bpf2go` and the module's own tests give them.
fn collect(directory: &Path, found: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let name = path.to_string_lossy();
        if path.is_dir() {
            collect(&path, found)?;
        } else if name.ends_with("_bpfel.o") || name.ends_with("-el.elf") {
            found.push(path);
        }
    }
    Ok(())
}

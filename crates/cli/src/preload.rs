//! The library by which a command's children ask to be traced, where Yama lets only ancestors trace.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use beeline_inject::yama_scope;
use beeline_uapi::linux::YAMA_SCOPE_RELATIONAL;

use crate::say;

/// The library's file name.
pub const LIBRARY: &str = "libbeeline_start.so";
/// Its directory, seen from that of `beeline`: as built, and as installed.
const PLACES: [&str; 2] = [".", "../lib/beeline"];
/// The loader's variable with the libraries to load first, and the characters that separate them.
const VARIABLE: &str = "LD_PRELOAD";
const SEPARATORS: [char; 2] = [':', ' '];

/// Returns the library's absolute path, if it is where it is built or installed.
pub fn library() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    let directory = program.parent()?;
    let files = PLACES
        .iter()
        .map(|place| directory.join(place).join(LIBRARY));
    // Without `..`, as `lib` may be a link.
    files
        .flat_map(|file| file.canonicalize())
        .find(|file| file.is_file())
}

/// True if children of a command that is started have to ask to be traced.
pub fn is_needed() -> bool {
    yama_scope() == Some(YAMA_SCOPE_RELATIONAL)
}

/// Has a command and its children load the library, and says so if they cannot.
pub fn load_into(command: &mut Command) {
    let cannot = |why: &str| {
        say(&format!(
            "children of the command cannot be traced later but by their ancestors (kernel.yama.ptrace_scope is {YAMA_SCOPE_RELATIONAL}): {why}"
        ));
    };
    let Some(library) = library() else {
        return cannot(&format!(
            "there is no {LIBRARY} beside beeline or in ../lib/beeline; `make build` and the packages put it there"
        ));
    };
    if library.to_string_lossy().contains(SEPARATORS) {
        let library = library.display();
        return cannot(&format!(
            "{VARIABLE} cannot name {library}, as blanks and colons separate its names; install Beeline elsewhere"
        ));
    }
    command.env(VARIABLE, behind(std::env::var_os(VARIABLE), library));
}

/// Adds the library to those that are loaded anyway.
fn behind(others: Option<OsString>, library: PathBuf) -> OsString {
    match others.filter(|others| !others.is_empty()) {
        None => library.into(),
        Some(mut list) => {
            list.push(":");
            list.push(library);
            list
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_libraries_are_loaded_too() {
        let library = || PathBuf::from("/usr/lib/beeline/libbeeline_start.so");
        assert_eq!(behind(None, library()), *library());
        assert_eq!(behind(Some(OsString::new()), library()), *library());
        assert_eq!(
            behind(Some("one.so two.so".into()), library()),
            "one.so two.so:/usr/lib/beeline/libbeeline_start.so"
        );
    }
}

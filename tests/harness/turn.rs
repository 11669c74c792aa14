//! Runs one test at a time.

use std::fs::File;

/// The right to trace, held while a test runs.
///
/// The kernel's probes are put into every process that maps the file, so a test that looks at a
/// target's text or counts calls in libc must not run beside another. The lock is a file's, so it
/// holds between test programs as well as threads.
pub struct Turn(#[allow(dead_code, reason = "held for its lock")] File);

impl Turn {
    /// Waits until no other test has the turn.
    pub fn take() -> Turn {
        let path = std::env::temp_dir().join("beeline-e2e.lock");
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .unwrap_or_else(|error| panic!("cannot open {}: {error}", path.display()));
        file.lock().expect("cannot lock the tests' lock file");
        Turn(file)
    }
}

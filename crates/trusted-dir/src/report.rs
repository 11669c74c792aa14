//! Tells the user of directories that are not used.
//!
//! Those who need a directory are deep inside, and the environment that names it is the process's,
//! so the place to tell is the process's too.

use std::collections::BTreeSet;
use std::sync::{Mutex, OnceLock, PoisonError};

type Say = fn(&str);

static SAY: OnceLock<Say> = OnceLock::new();

/// Sets where lines go. Without it they go to stderr.
pub fn report_to(say: Say) {
    // Only the first counts.
    let _ = SAY.set(say);
}

/// Tells the user a line, unless it was told before.
pub fn report_once(line: &str) {
    static TOLD: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
    if told.insert(line.to_owned()) {
        SAY.get_or_init(|| |line| eprintln!("beeline: {line}"))(line);
    }
}

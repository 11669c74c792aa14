//! The processes that a session may reach when its tool asks for all of them.
//!
//! Many tools open a probe for every process and filter afterwards, or (bpftrace 0.17 with `-p`)
//! not at all. If the user named one process, Beeline must not reach into every process that maps a
//! library.

use std::ffi::OsString;
use std::path::Path;

use beeline_inject::Refusal;

use crate::confinement;
use crate::error::Error;
use crate::tracees::left_out;

/// The meaning of "every process".
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// All processes that Beeline may trace, except itself and the tool.
    All,
    /// These only.
    Processes(Vec<i32>),
    /// The processes that the tool starts.
    Children,
}

impl Scope {
    /// True if the user has named the processes that the session may reach.
    pub fn is_narrow(&self) -> bool {
        *self != Self::All
    }

    /// True if the session depends on which processes exist.
    pub fn looks_around(&self) -> bool {
        !matches!(self, Self::Processes(_))
    }

    /// Takes the scope from the tool's own command line: `-p PID` (or `--pid`) names a process, and
    /// for bpftrace `-c` a command.
    pub fn of_command(command: &[OsString]) -> Self {
        let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
        let mut pids = Vec::new();
        for (i, word) in words.iter().enumerate().skip(1) {
            let value = match word.as_ref() {
                "-p" | "--pid" => words.get(i + 1).map(AsRef::as_ref),
                _ => word
                    .strip_prefix("--pid=")
                    .or_else(|| word.strip_prefix("-p")),
            };
            pids.extend(value.and_then(|value| value.parse::<i32>().ok()));
        }
        // Something else may start it: `timeout 10 bpftrace`.
        let is_bpftrace =
            |word: &std::borrow::Cow<str>| Path::new(word.as_ref()).ends_with("bpftrace");
        let options = words.iter().skip_while(|word| !is_bpftrace(word));
        if !pids.is_empty() {
            Self::Processes(pids)
        } else if options.skip(1).any(|word| word == "-c") {
            Self::Children
        } else {
            Self::All
        }
    }
}

/// Returns those of the named processes that may be traced, and reports the others. It is an error
/// if there are none.
///
/// # Errors
///
/// [`Error::Inject`] of the last one if none of them may be traced.
pub fn traceable(pids: Vec<i32>, report: impl Fn(&str)) -> Result<Vec<i32>, Error> {
    let (mut found, mut failed) = (Vec::new(), Vec::new());
    for pid in pids {
        match confinement::open(pid).and_then(|_| may_trace(pid)) {
            Ok(()) => found.push(pid),
            Err(error) => failed.push((pid, error)),
        }
    }
    if found.is_empty()
        && let Some((_, error)) = failed.pop()
    {
        return Err(error);
    }
    for (pid, error) in failed {
        report(&left_out(pid, &error.to_string()));
    }
    Ok(found)
}

/// Fails if this process may trace none at all. A filter of its own does not show when a process is
/// opened.
fn may_trace(pid: i32) -> Result<(), Error> {
    match Refusal::of_every_process() {
        None => Ok(()),
        Some(why) => Err(beeline_inject::Error::NotPermitted { pid, why }.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(line: &str) -> Scope {
        Scope::of_command(&line.split(' ').map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn a_named_process_bounds_the_scope() {
        assert_eq!(scope("bpftrace -p 12 -e x"), Scope::Processes(vec![12]));
        assert_eq!(scope("funclatency -p12 f"), Scope::Processes(vec![12]));
        assert_eq!(scope("memleak --pid=12"), Scope::Processes(vec![12]));
        assert_eq!(scope("/usr/bin/bpftrace -e x -c true"), Scope::Children);
        assert_eq!(scope("timeout 9 bpftrace -e x -c true"), Scope::Children);
        assert_eq!(scope("sh -c bpftrace"), Scope::All);
        assert_eq!(scope("bashreadline"), Scope::All);
        assert_eq!(scope("bpftrace -e x -print"), Scope::All);
    }
}

//! The choice of processes that a link may concern.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::atomic::Ordering::SeqCst;

use beeline_codegen::worker::LLVM;

use super::{Tracees, program};
use crate::error::Error;
use crate::link::Uprobe;
use crate::proc::{self, parent};
use crate::scope::Scope;

impl Tracees {
    /// True if the link concerns a process that the user named.
    pub(super) fn named(&self, link: &Uprobe) -> bool {
        link.pid.is_some() || self.is_narrow()
    }

    /// True if the user has named the processes that the session may reach.
    pub(super) fn is_narrow(&self) -> bool {
        self.scope != Scope::All
    }

    /// Runs `attempt` for each named process.
    ///
    /// If there are several, those that fail are left out and reported. It is an error if all of
    /// them fail.
    pub(super) fn each_named(
        &self,
        pids: &[i32],
        mut attempt: impl FnMut(i32) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut failed = Vec::new();
        for &pid in pids {
            match attempt(pid) {
                Err(error) if pids.len() == 1 => return Err(error),
                Err(error) => failed.push((pid, error)),
                Ok(()) => {}
            }
        }
        if failed.len() == pids.len()
            && let Some((_, error)) = failed.pop()
        {
            return Err(error);
        }
        for (pid, error) in failed {
            self.tell_left_out(pid, &error);
        }
        Ok(())
    }

    /// Tells the user, once per message, of a process that was named together with others.
    pub(super) fn tell_left_out(&self, pid: i32, error: &Error) {
        let why = error.to_string();
        if self.left_out.lock().insert((pid, why.clone())) {
            (self.report)(&left_out(pid, &why));
        }
    }

    /// Returns the processes that a link may concern. `only` is the one that the link itself names.
    pub(super) fn candidates_now(&self, only: Option<i32>) -> Vec<i32> {
        if only.is_none() && self.looks_around() {
            self.processes.lock().list();
        }
        self.candidates(only)
    }

    /// The same, for the processes that were there at the last look.
    pub(super) fn candidates(&self, only: Option<i32>) -> Vec<i32> {
        let (own, tool) = (std::process::id() as i32, self.tool.load(SeqCst));
        let tools = self.descendants.tools();
        let mut found = match (only, &self.scope) {
            (Some(pid), _) => return vec![pid],
            (None, Scope::Processes(pids)) => return pids.clone(),
            (None, Scope::All) => self.processes.lock().pids(),
            (None, Scope::Children) => {
                let is_member = |pid| self.descendants.is_member(pid, tool);
                self.processes.lock().descendants((tool, &tools), is_member)
            }
        };
        let is_ours = |pid: &i32| *pid == own || *pid == tool || tools.contains(pid);
        found.retain(|pid| !is_ours(pid));
        found
    }

    /// True if the session depends on which processes exist.
    pub(super) fn looks_around(&self) -> bool {
        !matches!(self.scope, Scope::Processes(_))
    }
}

/// Formats the message about a process that was named together with others and is left out.
pub fn left_out(pid: i32, why: &str) -> String {
    let comm = proc::text(format!("/proc/{pid}/comm")).unwrap_or_default();
    let name = match comm.trim() {
        "" => String::new(),
        comm => format!(" ({comm})"),
    };
    format!("process {pid}{name} is left out: {why}")
}

/// True for a process that Beeline has started beside the tool: a compiler, or a process about to
/// become one.
///
/// Not every child of Beeline is one: the first process of a container adopts all processes that
/// have lost their parents.
pub(super) fn is_part_of_us(pid: i32) -> bool {
    let own = std::process::id() as i32;
    let is_compiler = |file: &PathBuf| {
        let name = file.file_name().map(OsStr::as_encoded_bytes);
        name.is_some_and(|name| name.starts_with(LLVM.as_bytes()))
            || program(own).as_ref() == Some(file)
    };
    parent(pid) == Some(own) && program(pid).as_ref().is_some_and(is_compiler)
}

//! Which processes a link may concern.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::atomic::Ordering::SeqCst;

use beeline_codegen::worker::LLVM;

use super::{Tracees, lock, program};
use crate::error::Error;
use crate::link::Uprobe;
use crate::proc::{self, parent};
use crate::scope::Scope;

impl Tracees {
    /// Is the process that the link concerns one that the user named?
    pub(super) fn named(&self, link: &Uprobe) -> bool {
        link.pid.is_some() || self.is_narrow()
    }

    /// Has the user named the processes that the session may reach?
    pub(super) fn is_narrow(&self) -> bool {
        self.scope != Scope::All
    }

    /// Does something with processes that were named. Of several those where it fails are left out, and told; it is an error if it
    /// fails in all.
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

    /// Tells the user of a process that he has named with others; the same once.
    pub(super) fn tell_left_out(&self, pid: i32, error: &Error) {
        let why = error.to_string();
        if lock(&self.left_out).insert((pid, why.clone())) {
            (self.report)(&left_out(pid, &why));
        }
    }

    /// The processes that a link may concern; `only` is the one that it names itself.
    pub(super) fn candidates_now(&self, only: Option<i32>) -> Vec<i32> {
        if only.is_none() && self.looks_around() {
            lock(&self.processes).list();
        }
        self.candidates(only)
    }

    /// The same, of those that were there at the last look.
    pub(super) fn candidates(&self, only: Option<i32>) -> Vec<i32> {
        let (own, tool) = (std::process::id() as i32, self.tool.load(SeqCst));
        let tools = self.descendants.tools();
        let mut found = match (only, &self.scope) {
            (Some(pid), _) => return vec![pid],
            (None, Scope::Processes(pids)) => return pids.clone(),
            (None, Scope::All) => lock(&self.processes).pids(),
            (None, Scope::Children) => {
                let is_member = |pid| self.descendants.is_member(pid, tool);
                lock(&self.processes).descendants((tool, &tools), is_member)
            }
        };
        let is_ours = |pid: &i32| *pid == own || *pid == tool || tools.contains(pid);
        found.retain(|pid| !is_ours(pid));
        found
    }

    /// Does it matter which processes there are?
    pub(super) fn looks_around(&self) -> bool {
        !matches!(self.scope, Scope::Processes(_))
    }
}

/// How the user is told of a process that he has named with others, and that is left out.
pub fn left_out(pid: i32, why: &str) -> String {
    let comm = proc::text(format!("/proc/{pid}/comm")).unwrap_or_default();
    let name = match comm.trim() {
        "" => String::new(),
        comm => format!(" ({comm})"),
    };
    format!("process {pid}{name} is left out: {why}")
}

/// Have we started it beside the tool: a compiler, or what is about to become one? Not every child of ours is that: to the
/// first process of a container come all whose parents have ended.
pub(super) fn is_part_of_us(pid: i32) -> bool {
    let own = std::process::id() as i32;
    let is_compiler = |file: &PathBuf| {
        let name = file.file_name().map(OsStr::as_encoded_bytes);
        name.is_some_and(|name| name.starts_with(LLVM.as_bytes()))
            || program(own).as_ref() == Some(file)
    };
    parent(pid) == Some(own) && program(pid).as_ref().is_some_and(is_compiler)
}

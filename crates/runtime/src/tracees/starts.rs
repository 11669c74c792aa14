//! Programs that the tool starts itself. They are held before their first instruction, and again
//! when their libraries are mapped.

use std::collections::btree_map::Entry;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::JoinHandle;

use beeline_inject::{Loaded, Stopped, Watched};

use super::{Tracees, program};
use crate::error::{Error, os};
use crate::link::Uprobe;
use crate::proc::stack_start;
use crate::target::Hold;

impl Tracees {
    /// True if programs that the tool starts are followed.
    pub fn follows_programs(&self) -> bool {
        let is_for_all = |link: &Arc<Uprobe>| link.pid.is_none();
        self.looks_around()
            && (!self.calls.lock().is_empty() || self.links.lock().values().any(is_for_all))
    }

    /// Handles a process that the tool has started and that waits to run another program.
    ///
    /// A copy of the tool is followed from here on. If it cannot be followed, it goes on unseen.
    pub fn begins_program(self: &Arc<Self>, pid: i32) {
        if self.follows_programs() {
            let outcome = self.follows_start(pid);
            self.followed(pid, outcome.map(drop));
        }
    }

    /// Follows a child of a tool that is still a copy of the tool to the program that it will run.
    ///
    /// It is stopped when that program's libraries are mapped and none of its code has run.
    pub(super) fn follows_start(self: &Arc<Self>, pid: i32) -> Result<bool, Error> {
        let tool = self.tool.load(SeqCst);
        let tools = self.descendants.tools();
        let is_tool = pid == tool || tools.contains(&pid);
        let is_copy = || {
            let mut tools = tools.iter().chain([&tool]);
            tools.any(|tool| is_copy_of(pid, *tool))
        };
        if tool == 0 || is_tool || !is_copy() || !self.descendants.has(pid, tool) {
            return Ok(self.starting.lock().contains_key(&pid));
        }
        // A caller that is told that the process is followed may let it run the program.
        let _alone = self.seizing.lock();
        let given_up = Arc::new(AtomicBool::new(false));
        match self.starting.lock().entry(pid) {
            Entry::Occupied(_) => return Ok(true),
            Entry::Vacant(vacant) => vacant.insert(given_up.clone()),
        };
        let follower = self.follow(pid, given_up, is_copy);
        if !matches!(follower, Ok(Some(_))) {
            self.starting.lock().remove(&pid);
        }
        let Some(follower) = follower? else {
            return Ok(false);
        };
        let mut followers = self.followers.lock();
        followers.retain(|follower| !follower.is_finished());
        followers.push(follower);
        Ok(true)
    }

    /// Follows a process on a thread of its own until its program is loaded, and attaches every
    /// link then. A process that was quicker and already runs the program is not followed.
    fn follow(
        self: &Arc<Self>,
        pid: i32,
        given_up: Arc<AtomicBool>,
        is_copy: impl Fn() -> bool,
    ) -> Result<Option<JoinHandle<()>>, Error> {
        self.give_up_at_the_end(&given_up);
        let process = self.open(pid)?;
        let watched = Watched::seize(&process, pid)?;
        if !is_copy() {
            return Ok(None);
        }
        let tracees = self.clone();
        let follow = move || {
            let begun = |stopped: &mut Stopped| {
                if tracees.wanted_of_calls(pid).is_empty() {
                    return ControlFlow::Continue(());
                }
                // The loader's calls are the program's, too.
                let outcome = tracees.has_run_exec(&process, stopped);
                if !tracees.links.lock().is_empty() {
                    tracees.followed(pid, outcome);
                    return ControlFlow::Continue(());
                }
                // Libraries are hooked as they are mapped.
                tracees.starting.lock().remove(&pid);
                ControlFlow::Break(outcome)
            };
            let outcome = watched.run_through_start(&given_up, begun, |stopped| {
                tracees.starting.lock().remove(&pid);
                tracees.attach_all_to(&process, stopped)?;
                let wanted = tracees.wanted_of_calls(pid);
                tracees.hook_calls_of(&process, &wanted, &mut Hold::Held(stopped))
            });
            tracees.starting.lock().remove(&pid);
            let outcome = outcome
                .map_err(Error::from)
                .and_then(|loaded| match loaded {
                    Loaded::Ready(attached) => attached,
                    Loaded::Ended => Ok(()),
                });
            if let Err(error) = outcome
                && program(pid).is_some()
            {
                (tracees.report)(&error.to_string());
            }
        };
        std::thread::Builder::new()
            .name("beeline-start".into())
            .spawn(follow)
            .map(Some)
            .map_err(os("starting a thread"))
    }
}

/// True if a process that descends from another is still the copy that `fork` made: both run one
/// file, and no `exec` has laid out a new stack.
fn is_copy_of(pid: i32, tool: i32) -> bool {
    program(pid).is_some_and(|path| Some(path) == program(tool))
        && stack_start(pid) == stack_start(tool)
}

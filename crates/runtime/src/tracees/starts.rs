//! Programs that the tool starts itself. They are held before their first instruction, and again
//! when their libraries are mapped.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::thread::JoinHandle;

use beeline_inject::{Loaded, Stopped, Watched};

use super::waits::GivenUp;
use super::{Tracees, program};
use crate::error::{Error, os};
use crate::proc::stack_start;
use crate::target::{Hold, Target};

impl Tracees {
    /// Handles a process that the tool has started and that waits to run another program.
    ///
    /// A copy of the tool is followed from here on. If it cannot be followed, it goes on unseen.
    pub fn begins_program(self: &Arc<Self>, pid: i32) {
        if self.follows_programs() {
            let outcome = self.follows_start(pid);
            self.diagnostics.followed(pid, outcome.map(drop));
        }
    }

    /// Follows a child of a tool that is still a copy of the tool to the program that it will run.
    ///
    /// It is stopped when that program's libraries are mapped and none of its code has run.
    pub(super) fn follows_start(self: &Arc<Self>, pid: i32) -> Result<bool, Error> {
        // No copy of the tool is a target.
        if self.is_target(pid) {
            return Ok(self.waits.is_starting(pid));
        }
        let tool = self.admission.tool();
        let tools = self.admission.descendants.tools();
        let is_tool = pid == tool || tools.contains(&pid);
        let is_copy = || {
            let mut tools = tools.iter().chain([&tool]);
            tools.any(|tool| is_copy_of(pid, *tool))
        };
        if tool == 0 || is_tool || !is_copy() || !self.admission.descendants.has(pid, tool) {
            return Ok(self.waits.is_starting(pid));
        }
        // A caller that is told that the process is followed may let it run the program.
        let _alone = self.waits.seize();
        let Some(given_up) = self.waits.begin_start(pid) else {
            return Ok(true);
        };
        let follower = self.follow(pid, given_up, is_copy);
        if !matches!(follower, Ok(Some(_))) {
            self.waits.end_start(pid);
        }
        let Some(follower) = follower? else {
            return Ok(false);
        };
        self.waits.keep_starter(follower);
        Ok(true)
    }

    /// True if a process is known to be a target. Nothing is waited for.
    fn is_target(&self, pid: i32) -> bool {
        let known = self.targets.table.get(pid);
        let is_there = |target: &Target| !target.is_gone();
        known.is_some_and(|target| target.try_lock().is_some_and(|target| is_there(&target)))
    }

    /// Follows a process on a thread of its own until its program is loaded, and attaches every
    /// link then. A process that was quicker and already runs the program is not followed.
    fn follow(
        self: &Arc<Self>,
        pid: i32,
        given_up: GivenUp,
        is_copy: impl Fn() -> bool,
    ) -> Result<Option<JoinHandle<()>>, Error> {
        let process = self.targets.open(pid)?;
        let watched = Watched::seize(&process, pid)?;
        if !is_copy() {
            return Ok(None);
        }
        let tracees = self.clone();
        let follow = move || {
            let begun = |stopped: &mut Stopped| {
                if tracees.targets.wanted_of_calls(pid).is_empty() {
                    tracees.prepare_tool(stopped);
                    if tracees.registry.follows_programs() {
                        return ControlFlow::Continue(());
                    }
                    tracees.waits.end_start(pid);
                    return ControlFlow::Break(Ok(()));
                }
                // The loader's calls are the program's, too.
                let outcome = tracees.has_run_exec(&process, stopped);
                if tracees.registry.has_functions() {
                    tracees.diagnostics.followed(pid, outcome);
                    return ControlFlow::Continue(());
                }
                // Libraries are hooked as they are mapped.
                tracees.waits.end_start(pid);
                ControlFlow::Break(outcome)
            };
            let outcome = watched.run_through_start(&given_up, begun, |stopped| {
                tracees.waits.end_start(pid);
                tracees.attach_all_to(&process, stopped)?;
                let wanted = tracees.targets.wanted_of_calls(pid);
                tracees.hook_calls_of(&process, &wanted, &mut Hold::Held(stopped))
            });
            tracees.waits.end_start(pid);
            let outcome = outcome
                .map_err(Error::from)
                .and_then(|loaded| match loaded {
                    Loaded::Ready(attached) => attached,
                    Loaded::Ended => Ok(()),
                });
            if let Err(error) = outcome
                && program(pid).is_some()
            {
                tracees.diagnostics.say(&error.to_string());
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

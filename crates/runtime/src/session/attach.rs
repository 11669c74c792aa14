//! Making links: a program and the place that it is attached to.

use std::sync::Arc;

use beeline_agent::abi::syscalls::CALL_NUMBERS;
use beeline_uapi::Errno;

use super::Runtime;
use crate::backend::{AttachPoint, CallContext, Edge, Id};
use crate::error::Error;
use crate::link::{CallLink, FilePlace, Link, Uprobe};
use crate::program::Program;

impl Runtime {
    /// Attaches a program. The link is not listed yet.
    pub(super) fn attach_link(
        &self,
        id: Id,
        program: Arc<Program>,
        point: &AttachPoint,
    ) -> Result<Link, Errno> {
        // Only system calls have a result that can be overridden before they are made
        // (`kprobe_override`).
        let makes_results = matches!(
            point,
            AttachPoint::SystemCall {
                context: CallContext::Probe,
                edge: Edge::Enter,
                ..
            }
        );
        if program.needs.overrides && !makes_results {
            return Err(Errno(libc::EINVAL));
        }
        match *point {
            AttachPoint::Uprobe {
                retprobe,
                pid,
                cookie,
                ..
            } => {
                let place = self.place_of(point)?.ok_or(Errno(libc::EINVAL))?;
                let exits = match retprobe && place.moves_stacks() {
                    true => Some(self.exits_of(&place)?),
                    false => None,
                };
                self.attach_uprobe(Uprobe {
                    id,
                    program,
                    place,
                    retprobe,
                    exits,
                    pid,
                    cookie,
                })
            }
            AttachPoint::SystemCall {
                number,
                edge,
                context,
                cookie,
            } => self.attach_call(CallLink {
                id,
                program,
                number,
                edge,
                context,
                cookie,
            }),
            AttachPoint::Timer { period } => {
                self.runner.every(id, program.clone(), period);
                Ok(Link::Timer(program))
            }
        }
    }

    fn attach_uprobe(&self, uprobe: Uprobe) -> Result<Link, Errno> {
        let uprobe = Arc::new(uprobe);
        let attached = self.tracees.attach(&uprobe);
        attached.map_err(|error| self.refuse(&error))?;
        Ok(Link::Uprobe(uprobe))
    }

    /// Returns the exits of a function with a return address that must stay as it is.
    fn exits_of(&self, place: &FilePlace) -> Result<Vec<FilePlace>, Errno> {
        let exits = self.shared.files.exits(place);
        let (exits, jumps) = exits.map_err(|error| self.refuse(&error))?;
        if let Some(jump) = jumps.first() {
            (self.report)(&format!(
                "the function at {:#x} in {} ends by a jump to another one, at {jump:#x}: how that returns is not seen; \
                 probe the return of the other one",
                place.offset,
                place.path.display()
            ));
        }
        Ok(exits)
    }

    fn attach_call(&self, call: CallLink) -> Result<Link, Errno> {
        let is_known = |number: u32| (number as usize) < CALL_NUMBERS;
        if !call.number.is_none_or(is_known) {
            return Err(Errno(libc::EINVAL));
        }
        let call = Arc::new(call);
        let attached = self.tracees.attach_call(&call);
        attached.map_err(|error| self.refuse(&error))?;
        Ok(Link::Call(call))
    }

    /// Returns the place in a file that an attach point names, if a program can be attached there.
    pub(super) fn place_of(&self, point: &AttachPoint) -> Result<Option<FilePlace>, Errno> {
        match point {
            AttachPoint::Uprobe {
                path,
                offset,
                retprobe,
                ..
            } => {
                let place = self
                    .shared
                    .files
                    .place(path, *offset)
                    .map_err(|error| self.refuse(&error))?;
                if *retprobe && place.returns_twice() {
                    let why =
                        "it returns more often than it is called, so its return cannot be watched"
                            .to_owned();
                    return Err(self.refuse(&Error::Site {
                        path: path.clone(),
                        offset: *offset,
                        why,
                    }));
                }
                Ok(Some(place))
            }
            AttachPoint::SystemCall { .. } | AttachPoint::Timer { .. } => Ok(None),
        }
    }
}

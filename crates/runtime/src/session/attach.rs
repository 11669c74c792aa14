//! Making links: a program and the place that it is attached to.

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

use beeline_agent::abi::syscalls::CALL_NUMBERS;
use beeline_uapi::Errno;

use super::Runtime;
use crate::backend::{AttachPoint, CallContext, Edge, Id, ProbeSpec};
use crate::error::Error;
use crate::link::{CallLink, FilePlace, Link, Probe, Uprobe};
use crate::map::MapObject;
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
        // Before any process has the map: the refusal of one process is not the tool's. A timer may
        // turn out to be part of a profiler, and claims nothing before its first tick.
        self.each_map(&program, MapObject::check_enters_processes)?;
        if !matches!(point, AttachPoint::Timer { .. }) {
            self.each_map(&program, MapObject::claim_for_processes)?;
        }
        self.attach_at(id, program, point)
    }

    /// Does something with each map of a program that fails, with the reason in words, if processes
    /// may not have it.
    fn each_map(
        &self,
        program: &Program,
        work: impl Fn(&MapObject) -> Result<(), String>,
    ) -> Result<(), Errno> {
        program.maps.iter().try_for_each(|map| {
            work(map).map_err(|why| {
                let map = map.spec.name.clone();
                self.refuse(&Error::InKernel { map, why })
            })
        })
    }

    fn attach_at(&self, id: Id, program: Arc<Program>, point: &AttachPoint) -> Result<Link, Errno> {
        match *point {
            AttachPoint::Uprobe { retprobe, pid, .. }
            | AttachPoint::UprobeMulti { retprobe, pid, .. } => {
                let specs = specs_of(point);
                let probe = |spec: &ProbeSpec| self.probe(point, spec, retprobe);
                let probes: Vec<_> = specs.iter().map(probe).collect::<Result<_, _>>()?;
                if probes.is_empty() {
                    return Err(Errno(libc::EINVAL));
                }
                self.attach_uprobe(Uprobe {
                    id,
                    program,
                    probes,
                    retprobe,
                    pid,
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

    /// Looks up one of a link's places.
    fn probe(&self, point: &AttachPoint, spec: &ProbeSpec, retprobe: bool) -> Result<Probe, Errno> {
        let path = path_of(point).ok_or(Errno(libc::EINVAL))?;
        let place = self.place(path, spec.offset, retprobe)?;
        let exits = match retprobe && place.moves_stacks() {
            true => Some(self.exits_of(&place)?),
            false => None,
        };
        // bcc passes any number. Where no memory that can be written is mapped from, the kernel
        // waits for such memory in vain.
        let semaphore = Some(spec.semaphore).filter(|at| *at != 0 && place.may_write(*at));
        Ok(Probe {
            place,
            exits,
            cookie: spec.cookie,
            semaphore,
        })
    }

    /// Fails unless a program can be attached to the places in a file that an attach point names.
    pub(super) fn check_places(&self, point: &AttachPoint) -> Result<(), Errno> {
        let Some(path) = path_of(point) else {
            return Ok(());
        };
        let retprobe = matches!(
            point,
            AttachPoint::Uprobe { retprobe: true, .. }
                | AttachPoint::UprobeMulti { retprobe: true, .. }
        );
        let check = |spec: &ProbeSpec| self.place(path, spec.offset, retprobe).map(drop);
        specs_of(point).iter().try_for_each(check)
    }

    fn place(&self, path: &Path, offset: u64, retprobe: bool) -> Result<FilePlace, Errno> {
        let place = self.shared.files.place(path, offset);
        let place = place.map_err(|error| self.refuse(&error))?;
        if retprobe && place.returns_twice() {
            let why = "it returns more often than it is called, so its return cannot be watched";
            return Err(self.refuse(&Error::Site {
                path: path.into(),
                offset,
                why: why.to_owned(),
            }));
        }
        Ok(place)
    }
}

/// Returns the file that an attach point is in.
fn path_of(point: &AttachPoint) -> Option<&Path> {
    match point {
        AttachPoint::Uprobe { path, .. } | AttachPoint::UprobeMulti { path, .. } => Some(path),
        AttachPoint::SystemCall { .. } | AttachPoint::Timer { .. } => None,
    }
}

/// Returns the places of an attach point in its file.
fn specs_of(point: &AttachPoint) -> Cow<'_, [ProbeSpec]> {
    match point {
        AttachPoint::Uprobe {
            offset,
            cookie,
            semaphore,
            ..
        } => Cow::Owned(vec![ProbeSpec {
            offset: *offset,
            cookie: *cookie,
            semaphore: *semaphore,
        }]),
        AttachPoint::UprobeMulti { probes, .. } => Cow::Borrowed(&**probes),
        AttachPoint::SystemCall { .. } | AttachPoint::Timer { .. } => Cow::Borrowed(&[]),
    }
}

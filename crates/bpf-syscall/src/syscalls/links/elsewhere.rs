//! Links to what only a kernel has: cgroups, devices, network namespaces, iterators. The host's
//! kernel makes them.

mod iterators;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use beeline_kernel::link::{self, LinkSpec, Options, Relative};
use beeline_supervisor::attr::BpfAttr;
use beeline_supervisor::keys::errno;
use beeline_supervisor::{Answer, Call};
use beeline_uapi::attr::{LinkCreate, LinkCreateNetfilter, LinkCreateRelative};
use beeline_uapi::{AttachType, Errno, flags};

use super::Links;
use crate::host_kernel;
use crate::kernel_places::Place;
use crate::objects::{LinkTo, Object, ProgramObject};
use crate::refused::by_kernel_only;

impl Links<'_> {
    /// Links a program to such a place.
    pub(super) fn link_elsewhere(
        &self,
        call: &Call<'_>,
        attr: &BpfAttr,
        program: Arc<ProgramObject>,
    ) -> Answer {
        let wanted: LinkCreate = attr.view();
        let kind = wanted.attach_type;
        let place = Place::for_tool(&**self.backend, call.tid, kind).inspect_err(|why| {
            let what = by_kernel_only(&format!("links of type {kind}"), why);
            self.backend.unsupported(&what);
        });
        let place = place.map_err(|_| Errno::EINVAL)?;
        let file = place.file(call, wanted.target_fd)?;
        let link = |options| {
            let spec = LinkSpec {
                attach_type: kind,
                target: place.target(wanted.target_fd, file.as_ref()),
                flags: wanted.flags,
                options,
            };
            self.link_in_kernel(program.clone(), 0, |program| {
                host_kernel::in_network_of(call.tid, || link::create(program, &spec))
            })
        };
        match place {
            Place::Cgroup | Place::Device if kind != AttachType::XDP => {
                let options: LinkCreateRelative = attr.view();
                let to = self.relative(options.relative_fd, wanted.flags)?;
                link(Options::Relative {
                    to: Relative::to(to.as_ref()),
                    revision: options.expected_revision,
                })
            }
            Place::Iterator => {
                let info = self.iterator_info(call, attr, &program)?;
                match info.bytes.is_empty() {
                    true => link(Options::Plain),
                    false => link(Options::Iterator(&info.bytes)),
                }
            }
            Place::Netfilter => {
                let options: LinkCreateNetfilter = attr.view();
                link(Options::Netfilter {
                    family: options.pf,
                    hook: options.hooknum,
                    priority: options.priority,
                    flags: options.flags,
                })
            }
            Place::Cgroup | Place::Device | Place::Network | Place::Sockets | Place::Own => {
                link(Options::Plain)
            }
        }
    }

    /// Returns the kernel's program or link in the place of the tool's, to which a place is relative.
    fn relative(&self, fd: i32, flags: u32) -> Result<Option<OwnedFd>, Errno> {
        if fd == 0 {
            return Ok(None);
        }
        if flags & flags::ID != 0 {
            // The tool knows the session's ids, of which the kernel knows nothing.
            self.backend
                .unsupported("a place that is relative to a program's or link's id");
            return Err(Errno::EINVAL);
        }
        let copy = |file: BorrowedFd<'_>| file.try_clone_to_owned();
        let found = match self.fds.find(fd)? {
            Some(Object::Program(program)) => {
                let program = self.backend.program_in_kernel(program.held.id)?;
                copy(program.as_fd()).map_err(errno)
            }
            Some(Object::Link(link)) => match &link.to {
                LinkTo::Kernel(link) => link.with(copy),
                _ => Err(Errno::EBADF),
            },
            _ => Err(Errno::EBADF),
        };
        found.map(Some)
    }
}

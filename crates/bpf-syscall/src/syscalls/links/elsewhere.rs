//! Links to what only a kernel has: cgroups, devices, network namespaces, iterators. The host's
//! kernel makes them.

mod iterators;

use std::sync::Arc;

use beeline_kernel::link::{self, LinkSpec, Options, Relative};
use beeline_supervisor::attr::BpfAttr;
use beeline_supervisor::{Answer, Call};
use beeline_uapi::attr::{LinkCreate, LinkCreateNetfilter, LinkCreateRelative};
use beeline_uapi::{AttachType, Errno};

use super::Links;
use crate::host_kernel;
use crate::kernel_places::Place;
use crate::neighbours;
use crate::objects::ProgramObject;
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
        let link = |flags, options| {
            let spec = LinkSpec {
                attach_type: kind,
                target: place.target(wanted.target_fd, file.as_ref()),
                flags,
                options,
            };
            self.link_in_kernel(program.clone(), 0, |program| {
                host_kernel::in_network_of(call.tid, || link::create(program, &spec))
            })
        };
        match place {
            Place::Cgroup | Place::Device if kind != AttachType::XDP => {
                let options: LinkCreateRelative = attr.view();
                let named = (options.relative_fd, wanted.flags);
                let (to, flags) = neighbours::relative(&**self.backend, self.fds, named)?;
                let options = Options::Relative {
                    to: Relative::to(to.as_ref()),
                    revision: options.expected_revision,
                };
                link(flags, options)
            }
            Place::Iterator => {
                let info = self.iterator_info(call, attr, &program)?;
                match info.bytes.is_empty() {
                    true => link(wanted.flags, Options::Plain),
                    false => link(wanted.flags, Options::Iterator(&info.bytes)),
                }
            }
            Place::Netfilter => {
                let options: LinkCreateNetfilter = attr.view();
                link(
                    wanted.flags,
                    Options::Netfilter {
                        family: options.pf,
                        hook: options.hooknum,
                        priority: options.priority,
                        flags: options.flags,
                    },
                )
            }
            Place::Cgroup | Place::Device | Place::Network | Place::Sockets | Place::Own => {
                link(wanted.flags, Options::Plain)
            }
        }
    }
}

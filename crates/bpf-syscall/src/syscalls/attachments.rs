//! Programs at places that keep them: `BPF_PROG_ATTACH`, `BPF_PROG_DETACH`, and options of sockets.
//! Only a kernel has such places, and the host's is asked.

mod query;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use beeline_kernel::link::{self, LinkSpec, Options, Relative};
use beeline_runtime::backend::Backend;
use beeline_supervisor::attr::BpfAttr;
use beeline_supervisor::keys::errno;
use beeline_supervisor::{Answer, Call, Reply};
use beeline_uapi::attr::ProgAttach;
use beeline_uapi::{AttachType, Errno, ProgramType};

use super::tool_attr::ToolAttr;
use crate::fds::ThreadFds;
use crate::host_kernel;
use crate::kernel_places::Place;
use crate::local::Local;
use crate::neighbours;
use crate::reclaim::Reaper;
use crate::refused::{NOT_YET, by_kernel_only};

/// Attaches programs to such places, and takes them away.
pub(super) struct Attachments<'a> {
    call: &'a Call<'a>,
    attr: ToolAttr<'a>,
    backend: &'a dyn Backend,
    fds: ThreadFds<'a>,
    reaper: &'a Reaper,
}

impl<'a> Attachments<'a> {
    pub(super) fn new(local: &'a Local, call: &'a Call<'a>) -> Self {
        Self {
            call,
            attr: ToolAttr::of(call),
            backend: &*local.backend,
            fds: local.fds.of(call.tid),
            reaper: &local.reaper,
        }
    }

    /// Carries out `BPF_PROG_ATTACH`.
    pub(super) fn attach(&self, attr: &BpfAttr) -> Answer {
        let wanted: ProgAttach = attr.ends_at(size_of::<ProgAttach>())?.view();
        let program = self.fds.program(wanted.attach_bpf_fd)?;
        self.at_place(&wanted, |spec| {
            let replaces = self.loaded(wanted.replace_bpf_fd)?;
            let replaces = replaces.as_ref().map(|program| program.as_fd());
            let parts = (self.backend, self.fds.table);
            host_kernel::attach_after_closes(parts, &program, |program| {
                host_kernel::in_network_of(self.call.tid, || link::attach(program, spec, replaces))
            })
        })
    }

    /// Carries out `BPF_PROG_DETACH`.
    pub(super) fn take_away(&self, attr: &BpfAttr) -> Answer {
        let wanted: ProgAttach = attr.ends_at(size_of::<ProgAttach>())?.view();
        self.at_place(&wanted, |spec| {
            let program = self.loaded(wanted.attach_bpf_fd)?;
            let program = program.as_ref().map(|program| program.as_fd());
            let take = || link::take_away(program, spec);
            host_kernel::in_network_of(self.call.tid, take).map_err(errno)
        })
    }

    /// Has the tool's programs for devices be the kernel's, as the tool begins to speak to the
    /// kernel by netlink: it may name one in a message, which nobody but the kernel reads.
    pub(super) fn before_netlink(&self) -> Answer {
        const BY_NETLINK: [ProgramType; 6] = [
            ProgramType::SCHED_CLS,
            ProgramType::SCHED_ACT,
            ProgramType::XDP,
            ProgramType::LWT_IN,
            ProgramType::LWT_OUT,
            ProgramType::LWT_XMIT,
        ];
        let has_one = |kind: &ProgramType| self.fds.table.has_program_of(*kind);
        let may_ask = || host_kernel::refusal(self.backend, self.call.tid).is_none();
        if !BY_NETLINK.iter().any(has_one) || !may_ask() {
            return Ok(Reply::Continue);
        }
        let all = std::fs::read_dir(format!("/proc/{}/fd", self.call.tid));
        for entry in all.into_iter().flatten().flatten() {
            let Some(Ok(fd)) = entry.file_name().to_str().map(str::parse) else {
                continue;
            };
            if let Ok(program) = self.fds.program(fd)
                && BY_NETLINK.contains(&program.prog_type)
                // If it cannot be there, the user is told, and the kernel refuses the message.
                && let Ok(loaded) = self.backend.program_in_kernel(program.held.id)
            {
                self.fds
                    .make_kernels((self.call, self.reaper), fd, loaded.as_fd())?;
            }
        }
        Ok(Reply::Continue)
    }

    /// Answers `setsockopt(2)` with a program.
    pub(super) fn to_socket(
        &self,
        (socket, option): (i32, i32),
        (value, size): (u64, u32),
    ) -> Answer {
        // The kernel's answer to everything that names no program of the session's is right.
        let is_number = size as usize == size_of::<i32>();
        let fd = is_number.then(|| self.call.memory.read_u32(value));
        let Some(Ok(fd)) = fd else {
            return Ok(Reply::Continue);
        };
        let Ok(program) = self.fds.program(fd.cast_signed()) else {
            return Ok(Reply::Continue);
        };
        if let Some(why) = host_kernel::refusal(self.backend, self.call.tid) {
            let what = by_kernel_only("programs at sockets", &why);
            self.backend.unsupported(&what);
            return Err(Errno::EPERM);
        }
        let file = self.call.tool_file(socket)?;
        host_kernel::attach(self.backend, &program, |program| {
            link::attach_to_socket(program, file.as_fd(), option)
        })?;
        Ok(Reply::Value(0))
    }

    /// Does something with the place that a tool names.
    fn at_place(
        &self,
        wanted: &ProgAttach,
        work: impl FnOnce(&LinkSpec<'_>) -> Result<(), Errno>,
    ) -> Answer {
        let kind = wanted.attach_type;
        let place = self.place(kind)?;
        // The others are linked to, and are no program's for good.
        if matches!(place, Place::Netfilter | Place::Own | Place::Iterator) {
            let what = by_kernel_only(&format!("programs of attach type {kind}"), NOT_YET);
            self.backend.unsupported(&what);
            return Err(Errno::EINVAL);
        }
        let named = (wanted.relative_fd, wanted.attach_flags);
        let (to, flags) = neighbours::relative(self.backend, self.fds, named)?;
        let file = match place {
            // The caller's own: the kernel takes no descriptor here.
            Place::Network if wanted.target_fd != 0 => return Err(Errno::EINVAL),
            Place::Network => None,
            _ => place.file(self.call, wanted.target_fd)?,
        };
        let options = Options::Relative {
            to: Relative::to(to.as_ref()),
            revision: wanted.expected_revision,
        };
        work(&LinkSpec {
            attach_type: kind,
            target: place.target(wanted.target_fd, file.as_ref()),
            flags,
            options,
        })?;
        Ok(Reply::Value(0))
    }

    /// Returns the kind of place of programs with an attach type, unless the kernel is not asked.
    fn place(&self, kind: AttachType) -> Result<Place, Errno> {
        let place = Place::for_tool(self.backend, self.call.tid, kind).inspect_err(|why| {
            let what = by_kernel_only(&format!("programs of attach type {kind}"), why);
            self.backend.unsupported(&what);
        });
        place.map_err(|_| Errno::EINVAL)
    }

    /// Returns the kernel's program in the place of the tool's; none for 0.
    fn loaded(&self, fd: i32) -> Result<Option<Arc<OwnedFd>>, Errno> {
        if fd == 0 {
            return Ok(None);
        }
        let program = self.fds.program(fd)?;
        self.backend.program_in_kernel(program.held.id).map(Some)
    }
}

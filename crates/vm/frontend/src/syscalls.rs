//! The system calls of a tool, and the area that answers each.
//!
//! The kinds of system calls ([`ToolCall`]) and the calls on a BPF file system ([`BpfFsCall`]) are
//! the supervisor's. There are two tables here: of these kinds ([`Dispatcher::answer`]), and of the
//! commands of `bpf(2)` ([`Dispatcher::carry_out`]). Local sessions have others
//! (`beeline-bpf-syscall`), with a handler for each command, because they carry commands out
//! themselves. Here a command's layout says what goes to the guest, whichever command it is.
//!
//! An area is a module with one type, which is made for a call and holds the parts of the guest
//! that it needs.
//!
//! The areas share `kernel` (requests to the guest), `descriptors` (the tool's), `forward` and
//! `attr` (the way of a `bpf(2)` command to the guest and back) and `memory_files`.

mod attr;
mod btf;
mod descriptors;
mod elements;
pub(crate) mod files;
mod forward;
mod info;
mod iterators;
mod kernel;
mod links;
pub(crate) mod lookup_channel;
mod maps;
mod memory_files;
mod mmap;
mod perf;
mod pins;
pub(crate) mod prefetch;
mod programs;
mod refused;
mod trace;
mod wait;

use std::sync::Arc;

use beeline_supervisor::attr::BpfAttr;
use beeline_supervisor::bpffs::BpfFsCall;
use beeline_supervisor::{Answer, Call, Reply, ToolCall};
use beeline_uapi::fields::u32_at;
use beeline_uapi::{Command, Errno};
use beeline_vm_protocol::layout::{Layout, layout};

use crate::Guest;
use crate::objects::Object;
use btf::BtfObjects;
use descriptors::Descriptors;
use elements::Elements;
use files::Files;
use forward::{BpfCall, Forward};
use info::ObjectInfo;
use iterators::Iterators;
use links::Links;
use maps::Maps;
use mmap::Mmap;
use perf::PerfEvents;
use pins::Pins;
use programs::Programs;
use refused::Refusals;
use wait::Wait;

pub(crate) use btf::Types;

/// The offset at which most attributes have the object that they are about.
const FIRST: usize = 0;

/// Leads a call to the area that answers it.
pub(crate) struct Dispatcher<'a> {
    guest: &'a Guest,
    call: &'a Call<'a>,
}

impl<'a> Dispatcher<'a> {
    pub(crate) fn new(guest: &'a Guest, call: &'a Call<'a>) -> Self {
        Self { guest, call }
    }

    /// Answers a system call.
    pub(crate) fn answer(&self, asked: ToolCall) -> Answer {
        let Self { guest, call } = *self;
        match asked {
            ToolCall::Bpf {
                command,
                attr,
                size,
            } => self.bpf(command, &call.attribute(attr, size)?),
            ToolCall::PerfEventOpen => PerfEvents::new(guest, call).open(),
            ToolCall::Ioctl => PerfEvents::new(guest, call).ioctl(),
            ToolCall::Read { fd, buffer, count } => {
                PerfEvents::new(guest, call).read(fd, buffer, count)
            }
            ToolCall::Mmap => Mmap::new(guest, call).map(),
            ToolCall::EpollCtl => Wait::new(guest, call).epoll_ctl(),
            ToolCall::Poll { fds, count } => Wait::new(guest, call).poll(fds, count),
            ToolCall::Select { count, readable } => Wait::new(guest, call).select(count, readable),
            ToolCall::SigReturn => Wait::new(guest, call).settle(),
            ToolCall::Path(path) => Files::new(guest, call).file(path),
            ToolCall::Statfs { path, buffer } => Files::new(guest, call).statfs(path, buffer),
            ToolCall::Uname { buffer } => Files::new(guest, call).uname(buffer),
            ToolCall::Other(nr) => BpfFsCall::new(guest, call)
                .answer(nr)
                .unwrap_or(Ok(Reply::Continue)),
            ToolCall::RunProgram | ToolCall::AttachToSocket { .. } | ToolCall::BeginNetlink => {
                Ok(Reply::Continue)
            }
        }
    }

    /// Returns whether a frequent call is one that no area answers.
    pub(crate) fn is_plainly_kernels(&self, asked: ToolCall) -> bool {
        let Self { guest, call } = *self;
        match asked {
            ToolCall::Path(path) => Files::new(guest, call).is_elsewhere(path.directory, path.path),
            ToolCall::Poll { .. } | ToolCall::Select { .. } => guest.objects.none_to_wait_for(),
            ToolCall::Read { fd, .. } => PerfEvents::new(guest, call).is_no_object(fd),
            ToolCall::SigReturn => guest.rings.none_to_settle(),
            _ => false,
        }
    }

    /// Answers `bpf(command, attr, size)`.
    fn bpf(&self, command: Command, attr: &[u8]) -> Answer {
        let Self { guest, call } = *self;
        match command {
            Command::OBJ_PIN => return Pins::new(guest, call).pin(&BpfAttr::parse(attr)?),
            Command::OBJ_GET => return Pins::new(guest, call).get(&BpfAttr::parse(attr)?),
            _ => {}
        }
        let Some(layout) = layout(command, attr) else {
            return Refusals::new(guest).command(command, attr);
        };
        let first = self.first(command, layout, attr)?;
        let answer = self.carry_out(&BpfCall {
            command,
            layout,
            attr,
            first: first.as_ref(),
        });
        // If the tool has closed the object meanwhile, this is its last use. Dropping it tells the
        // guest, which may wait.
        if let Some(last) = first.and_then(Arc::into_inner) {
            call.let_others_lead();
            drop(last);
        }
        answer
    }

    /// Returns the object that a command is about, if it has one.
    fn first(
        &self,
        command: Command,
        layout: Layout,
        attr: &[u8],
    ) -> Result<Option<Arc<Object>>, Errno> {
        let Self { guest, call } = *self;
        match layout.objects.first() {
            _ if command == Command::TASK_FD_QUERY => {
                ObjectInfo::new(guest, call).queried(attr).map(Some)
            }
            Some(object) if object.at == FIRST || command.is_batch() => {
                let fd = u32_at(attr, object.at) as i32;
                let found = Descriptors::new(guest, call).object(fd);
                found.map(Some).map_err(|error| as_of(command, error))
            }
            _ => Ok(None),
        }
    }

    /// Carries out a command of `bpf(2)` that goes to the guest.
    fn carry_out(&self, bpf: &BpfCall<'_>) -> Answer {
        let Self { guest, call } = *self;
        if let Some(map) = bpf.first.filter(|_| bpf.command.is_for_elements()) {
            return Elements::new(guest, call).carry_out(bpf, map);
        }
        match bpf.command {
            Command::MAP_CREATE => Maps::new(guest, call).create(bpf),
            Command::MAP_GET_FD_BY_ID => Maps::new(guest, call).open(bpf),

            Command::PROG_LOAD => Programs::new(guest, call).load(bpf),
            Command::PROG_GET_FD_BY_ID => Programs::new(guest, call).open(bpf),
            Command::PROG_TEST_RUN => Programs::new(guest, call).test_run(bpf),
            Command::ENABLE_STATS => Programs::new(guest, call).enable_stats(bpf),

            Command::LINK_CREATE => Links::new(guest, call).create(bpf),
            Command::LINK_GET_FD_BY_ID => Links::new(guest, call).open(bpf),
            Command::RAW_TRACEPOINT_OPEN => Links::new(guest, call).open_raw_tracepoint(bpf),
            Command::ITER_CREATE => Iterators::new(guest, call).create(bpf),

            Command::BTF_LOAD => BtfObjects::new(guest, call).load(bpf),
            Command::BTF_GET_FD_BY_ID => BtfObjects::new(guest, call).open(bpf),

            Command::OBJ_GET_INFO_BY_FD => ObjectInfo::new(guest, call).by_fd(bpf),

            // The layout says all that there is to do: `BPF_MAP_FREEZE`, `BPF_PROG_BIND_MAP`,
            // `BPF_LINK_UPDATE`, `BPF_LINK_DETACH`, `BPF_TASK_FD_QUERY`, `BPF_*_GET_NEXT_ID`.
            _ => Forward::new(guest, call).answer(bpf),
        }
    }
}

/// Returns the kernel's error for a descriptor that a command cannot be about.
fn as_of(command: Command, error: Errno) -> Errno {
    match (command, error) {
        (Command::OBJ_GET_INFO_BY_FD, Errno(libc::EBADF)) => Errno(libc::EBADFD),
        _ => error,
    }
}

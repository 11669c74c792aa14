//! The system calls of a tool, and the area that answers each.
//!
//! There are two tables: of system calls ([`Dispatcher::answer`]), and of the commands of `bpf(2)`
//! ([`Dispatcher::carry_out`]). An area is a module with one type, which is made for a call and
//! holds the parts of the guest that it needs.
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

use beeline_supervisor::attr::{ATTR_LIMIT, BpfAttr};
use beeline_supervisor::bpffs::BpfFsCall;
use beeline_supervisor::{Answer, Call, POLL, Reply, SELECT};
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
    pub(crate) fn answer(&self, nr: i64) -> Answer {
        let Self { guest, call } = *self;
        let [a, b, c, ..] = call.args;
        match nr {
            libc::SYS_bpf => self.bpf(),
            libc::SYS_perf_event_open => PerfEvents::new(guest, call).open(),
            libc::SYS_ioctl => PerfEvents::new(guest, call).ioctl(),
            libc::SYS_read => PerfEvents::new(guest, call).read(a, b, c),
            libc::SYS_mmap => Mmap::new(guest, call).map(),
            libc::SYS_epoll_ctl => Wait::new(guest, call).epoll_ctl(),
            POLL | libc::SYS_ppoll => Wait::new(guest, call).poll(a, b),
            SELECT | libc::SYS_pselect6 => Wait::new(guest, call).select(a, b),
            libc::SYS_rt_sigreturn => Wait::new(guest, call).settle(),
            libc::SYS_statfs => Files::new(guest, call).statfs(a, b),
            libc::SYS_uname => Files::new(guest, call).uname(a),
            _ => match call.path_call(nr) {
                Some(asked) => Files::new(guest, call).file(asked),
                None => BpfFsCall::new(guest, call)
                    .answer(nr)
                    .unwrap_or(Ok(Reply::Continue)),
            },
        }
    }

    /// Returns whether a frequent call is one that no area answers.
    pub(crate) fn is_plainly_kernels(&self, nr: i64) -> bool {
        let Self { guest, call } = *self;
        if let Some(asked) = call.path_call(nr) {
            return Files::new(guest, call).is_elsewhere(asked.directory, asked.path);
        }
        match nr {
            POLL | libc::SYS_ppoll | SELECT | libc::SYS_pselect6 => {
                guest.objects.none_to_wait_for()
            }
            libc::SYS_read => PerfEvents::new(guest, call).is_no_object(call.args[0]),
            libc::SYS_rt_sigreturn => guest.rings.none_to_settle(),
            _ => false,
        }
    }

    /// Answers `bpf(command, attr, size)`.
    fn bpf(&self) -> Answer {
        let Self { guest, call } = *self;
        let [command, address, size, ..] = call.args;
        let command = Command(command as u32);
        let size = size as u32 as usize;
        if size > ATTR_LIMIT {
            return Err(Errno(libc::E2BIG));
        }
        let attr = call.memory.bytes(address, size)?;
        match command {
            Command::OBJ_PIN => return Pins::new(guest, call).pin(&BpfAttr::parse(&attr)?),
            Command::OBJ_GET => return Pins::new(guest, call).get(&BpfAttr::parse(&attr)?),
            _ => {}
        }
        let Some(layout) = layout(command, &attr) else {
            return Refusals::new(guest).command(command, &attr);
        };
        let first = self.first(command, layout, &attr)?;
        let answer = self.carry_out(&BpfCall {
            command,
            layout,
            attr: &attr,
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

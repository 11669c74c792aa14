//! The system calls of a tool, and the area that answers each.
//!
//! The kinds of system calls ([`ToolCall`]) and the calls on a BPF file system ([`BpfFsCall`]) are
//! the supervisor's. There are two tables here: of these kinds, and of the commands of `bpf(2)`. A
//! guest has others (`beeline-vm-frontend`): its kernel carries out the commands, so that most of
//! them are one case there, and only those that make or change an object are told apart.
//!
//! An area is a module with one type or two, which are made for a call and borrow the parts of the
//! session that they need. The areas share `attr` and `tool_attr` (the attribute of `bpf(2)`, to
//! read and to write) and `descriptors` (the new ones, by which calls answer).

mod attachments;
mod attr;
mod btf;
mod descriptors;
mod elements;
mod files;
mod ids;
mod info;
mod kernels_maps;
mod links;
mod maps;
mod perf;
mod pins;
mod programs;
mod task_fd;
mod test_run;
mod tool_attr;
mod wait;

use beeline_supervisor::attr::BpfAttr;
use beeline_supervisor::bpffs::BpfFsCall;
use beeline_supervisor::{Answer, Call, Reply, ToolCall};
use beeline_uapi::{Command, Errno};

use crate::host_kernel;
use crate::local::Local;
use crate::reclaim::Reclaim;
use crate::refused::by_kernel_only;
use attachments::Attachments;
use btf::BtfObjects;
use elements::{Batches, Elements};
use files::Files;
use ids::{Ids, Numbered};
use info::ObjectInfo;
use kernels_maps::KernelsMaps;
use links::Links;
use maps::Maps;
use perf::{PerfEvents, PerfIoctl};
use pins::Pins;
use programs::Programs;
use task_fd::TaskFds;
use test_run::TestRuns;
use wait::Wait;

/// Leads a call to the area that answers it.
pub(crate) struct Dispatcher<'a> {
    local: &'a Local,
    call: &'a Call<'a>,
}

impl<'a> Dispatcher<'a> {
    pub(crate) fn new(local: &'a Local, call: &'a Call<'a>) -> Self {
        Self { local, call }
    }

    /// Answers a system call.
    pub(crate) fn answer(&self, asked: ToolCall) -> Answer {
        let Self { local, call } = *self;
        match asked {
            ToolCall::Bpf {
                command,
                attr,
                size,
            } => self.bpf(command, &call.attribute(attr, size)?),
            ToolCall::PerfEventOpen => self.with_room(|| PerfEvents::new(local, call).open()),
            ToolCall::Ioctl => self.with_room(|| PerfIoctl::new(local, call).ioctl()),
            ToolCall::Mmap => self.with_room(|| Wait::new(local, call).mmap()),
            ToolCall::EpollCtl => Wait::new(local, call).epoll_ctl(),
            ToolCall::Poll { fds, count } => Wait::new(local, call).poll(fds, count),
            ToolCall::Select { count, readable } => Wait::new(local, call).select(count, readable),
            ToolCall::Path(path) => Files::new(local, call).answer(path),
            ToolCall::Statfs { path, buffer } => Files::new(local, call).statfs(path, buffer),
            ToolCall::AttachToSocket {
                socket,
                option,
                value,
                size,
            } => Attachments::new(local, call).to_socket((socket, option), (value, size)),
            ToolCall::BeginNetlink => Attachments::new(local, call).before_netlink(),
            ToolCall::RunProgram => self.run_program(),
            ToolCall::Other(nr) => BpfFsCall::new(local, call)
                .answer(nr)
                .unwrap_or(Err(Errno::ENOSYS)),
            ToolCall::Read { .. } | ToolCall::SigReturn | ToolCall::Uname { .. } => {
                Err(Errno::ENOSYS)
            }
        }
    }

    /// Returns whether the kernel answers a system call as if Beeline were not there.
    pub(crate) fn is_plainly_kernels(&self, asked: ToolCall) -> bool {
        let Self { local, call } = *self;
        match asked {
            ToolCall::Path(path) => Files::new(local, call).is_elsewhere(path),
            ToolCall::Poll { .. } | ToolCall::Select { .. } => !local.fds.has_rings(),
            ToolCall::RunProgram => !local.backend.follows_programs(),
            _ => false,
        }
    }

    /// Answers a command of `bpf(2)`.
    fn command(&self, command: Command, attr: &BpfAttr) -> Answer {
        let Self { local, call } = *self;
        if let Some(answer) = KernelsMaps::new(local, call).answer(command, attr) {
            return answer;
        }
        match command {
            Command::MAP_CREATE => self.with_room(|| Maps::new(local, call).create(attr)),
            Command::MAP_FREEZE => Maps::new(local, call).freeze(attr),

            Command::MAP_LOOKUP_ELEM => Elements::new(local, call).lookup(attr),
            Command::MAP_LOOKUP_AND_DELETE_ELEM => {
                Elements::new(local, call).lookup_and_delete(attr)
            }
            Command::MAP_UPDATE_ELEM => Elements::new(local, call).update(attr),
            Command::MAP_DELETE_ELEM => Elements::new(local, call).delete(attr),
            Command::MAP_GET_NEXT_KEY => Elements::new(local, call).next_key(attr),
            Command::MAP_LOOKUP_BATCH => Batches::new(local, call).lookup(attr),
            Command::MAP_LOOKUP_AND_DELETE_BATCH => {
                Batches::new(local, call).lookup_and_delete(attr)
            }
            Command::MAP_UPDATE_BATCH => Batches::new(local, call).update(attr),
            Command::MAP_DELETE_BATCH => Batches::new(local, call).delete(attr),

            Command::PROG_LOAD => self.with_room(|| Programs::new(local, call).load(attr)),
            Command::PROG_BIND_MAP => Programs::new(local, call).bind_map(attr),
            Command::PROG_TEST_RUN => TestRuns::new(local, call).run(attr),
            Command::BTF_LOAD => self.with_room(|| BtfObjects::new(local, call).load(attr)),

            Command::LINK_CREATE => self.with_room(|| Links::new(local, call).create(call, attr)),
            Command::LINK_DETACH => Links::new(local, call).detach(attr),
            Command::ITER_CREATE => Links::new(local, call).iterate(attr),
            Command::RAW_TRACEPOINT_OPEN => {
                self.with_room(|| Links::new(local, call).open_raw_tracepoint(attr))
            }

            Command::OBJ_GET_INFO_BY_FD => ObjectInfo::new(local, call).by_fd(attr),
            Command::MAP_GET_NEXT_ID => Ids::new(local, call).next(attr, Numbered::Map),
            Command::PROG_GET_NEXT_ID => Ids::new(local, call).next(attr, Numbered::Program),
            Command::LINK_GET_NEXT_ID => Ids::new(local, call).next(attr, Numbered::Link),
            Command::BTF_GET_NEXT_ID => Ids::new(local, call).next(attr, Numbered::Btf),
            Command::MAP_GET_FD_BY_ID => Ids::new(local, call).open(attr, Numbered::Map),
            Command::PROG_GET_FD_BY_ID => Ids::new(local, call).open(attr, Numbered::Program),
            Command::LINK_GET_FD_BY_ID => Ids::new(local, call).open(attr, Numbered::Link),
            Command::BTF_GET_FD_BY_ID => Ids::new(local, call).open(attr, Numbered::Btf),

            Command::OBJ_PIN => Pins::new(local, call).pin(attr),
            Command::OBJ_GET => Pins::new(local, call).get(attr),

            Command::TASK_FD_QUERY => TaskFds::new(local, call).query(attr),
            Command::ENABLE_STATS => self.enable_stats(),
            Command::TOKEN_CREATE => Err(Errno::EOPNOTSUPP),
            Command::PROG_ATTACH => Attachments::new(local, call).attach(attr),
            Command::PROG_DETACH => Attachments::new(local, call).take_away(attr),
            Command::PROG_QUERY => Attachments::new(local, call).query(attr),
            // Commands of newer kernels.
            _ => Err(Errno::EINVAL),
        }
    }

    /// Answers `bpf(command, attribute, size)`.
    fn bpf(&self, command: Command, attr: &[u8]) -> Answer {
        let answer = self.command(command, &BpfAttr::parse(attr)?);
        let tid = self.call.tid;
        tracing::trace!(tid, %command, failed = ?answer.as_ref().err(), "bpf");
        answer
    }

    /// Answers `BPF_ENABLE_STATS`. The kernel counts the runs of programs there from now on, and
    /// Beeline those of test runs.
    fn enable_stats(&self) -> Answer {
        const WHAT: &str = "counting the time and the runs of programs";
        let Self { local, call } = *self;
        if let Some(why) = host_kernel::refusal(&*local.backend, call.tid) {
            local.backend.unsupported(&by_kernel_only(WHAT, &why));
            return Err(Errno::EPERM);
        }
        local.backend.count_runs();
        local.backend.unsupported(
            "the runs of programs are counted in the kernel and in test runs, not in processes",
        );
        Ok(Reply::Continue)
    }

    /// Answers `execve`. The program starts whatever the outcome here.
    fn run_program(&self) -> Answer {
        let Self { local, call } = *self;
        if let Ok(pid) = call.process() {
            local.backend.begins_program(pid);
        }
        Ok(Reply::Continue)
    }

    /// Makes something that takes memory; see [`Reclaim::with_room`].
    fn with_room(&self, make: impl Fn() -> Answer) -> Answer {
        Reclaim::new(self.local, self.call).with_room(make)
    }
}

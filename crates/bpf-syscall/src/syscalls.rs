//! The system calls of a tool, and the area that answers each.
//!
//! There are two tables: of system calls, and of the commands of `bpf(2)`. An area is a module with
//! one type or two, which are made for a call and borrow the parts of the session that they need.
//! The areas share `attr` and `tool_attr` (the attribute of `bpf(2)`, to read and to write) and
//! `descriptors` (the new ones, by which calls answer).

mod attr;
mod btf;
mod descriptors;
mod elements;
mod files;
mod ids;
mod info;
mod links;
mod maps;
mod perf;
mod pins;
mod programs;
mod tool_attr;
mod wait;

use beeline_supervisor::attr::{ATTR_LIMIT, BpfAttr};
use beeline_supervisor::bpffs::BpfFsCall;
use beeline_supervisor::{Answer, Call, POLL, Reply, SELECT};
use beeline_uapi::{Command, Errno};

use crate::local::Local;
use crate::reclaim::Reclaim;
use btf::BtfObjects;
use elements::{Batches, Elements};
use files::Files;
use ids::{Ids, Numbered};
use info::ObjectInfo;
use links::Links;
use maps::Maps;
use perf::{PerfEvents, PerfIoctl};
use pins::Pins;
use programs::Programs;
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
    pub(crate) fn answer(&self, nr: i64) -> Answer {
        let Self { local, call } = *self;
        let [a, b, ..] = call.args;
        match nr {
            libc::SYS_bpf => self.bpf(),
            libc::SYS_perf_event_open => self.with_room(|| PerfEvents::new(local, call).open()),
            libc::SYS_ioctl => self.with_room(|| PerfIoctl::new(local, call).ioctl()),
            libc::SYS_mmap => self.with_room(|| Wait::new(local, call).mmap()),
            libc::SYS_epoll_ctl => Wait::new(local, call).epoll_ctl(),
            POLL | libc::SYS_ppoll => Wait::new(local, call).poll(a, b),
            SELECT | libc::SYS_pselect6 => Wait::new(local, call).select(a, b),
            libc::SYS_statfs => Files::new(local, call).statfs(a, b),
            libc::SYS_execve | libc::SYS_execveat => self.run_program(),
            _ => match call.path_call(nr) {
                Some(asked) => Files::new(local, call).answer(asked),
                None => BpfFsCall::new(local, call)
                    .answer(nr)
                    .unwrap_or(Err(Errno::ENOSYS)),
            },
        }
    }

    /// Returns whether the kernel answers a system call as if Beeline were not there.
    pub(crate) fn is_plainly_kernels(&self, nr: i64) -> bool {
        let Self { local, call } = *self;
        if let Some(asked) = call.path_call(nr) {
            return Files::new(local, call).is_elsewhere(asked);
        }
        match nr {
            POLL | libc::SYS_ppoll | SELECT | libc::SYS_pselect6 => !local.fds.has_rings(),
            libc::SYS_execve | libc::SYS_execveat => !local.backend.follows_programs(),
            _ => false,
        }
    }

    /// Answers a command of `bpf(2)`.
    fn command(&self, command: Command, attr: &BpfAttr) -> Answer {
        let Self { local, call } = *self;
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
            Command::PROG_TEST_RUN => Programs::new(local, call).test_run(attr),
            Command::BTF_LOAD => self.with_room(|| BtfObjects::new(local, call).load(attr)),

            Command::LINK_CREATE => self.with_room(|| Links::new(local, call).create(attr)),
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

            Command::TASK_FD_QUERY => Err(Errno::ENOENT),
            Command::ENABLE_STATS => Err(Errno::EPERM),
            Command::TOKEN_CREATE => Err(Errno::EOPNOTSUPP),
            // Attaching to cgroups, iterators, and commands of newer kernels.
            _ => Err(Errno::EINVAL),
        }
    }

    /// Answers `bpf(command, attribute, size)`.
    fn bpf(&self) -> Answer {
        let call = self.call;
        let [command, address, size, ..] = call.args;
        let size = size as u32 as usize;
        if size > ATTR_LIMIT {
            return Err(Errno::E2BIG);
        }
        let attr = &BpfAttr::parse(&call.memory.bytes(address, size)?)?;
        let command = Command(command as u32);
        let answer = self.command(command, attr);
        tracing::trace!(tid = call.tid, %command, failed = ?answer.as_ref().err(), "bpf");
        answer
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

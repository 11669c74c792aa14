//! Commands on maps that exist in the kernel only. The tool's descriptors are the kernel's, so it
//! makes the calls itself: keys and values that are descriptors of its own, such as sockets, then
//! mean what they mean to it.

use std::os::fd::AsFd;

use beeline_runtime::backend::Backend;
use beeline_supervisor::attr::BpfAttr;
use beeline_supervisor::keys::{Anonymous, anonymous};
use beeline_supervisor::{Answer, Call, Memory, Reply};
use beeline_uapi::fields::u32_at;
use beeline_uapi::{Command, Errno, MapType, attr as uapi};

use crate::fds::ThreadFds;
use crate::host_kernel;
use crate::local::Local;
use crate::objects::{Map, Object};
use crate::reclaim::Reaper;

/// The offset of a program's descriptor in a value of a map of devices or processors
/// (`struct bpf_devmap_val`, `struct bpf_cpumap_val`).
const PROGRAM_FD: usize = 4;

/// Lets the tool work on maps that exist in the kernel only.
pub(super) struct KernelsMaps<'a> {
    call: &'a Call<'a>,
    memory: Memory<'a>,
    backend: &'a dyn Backend,
    fds: ThreadFds<'a>,
    reaper: &'a Reaper,
}

impl<'a> KernelsMaps<'a> {
    pub(super) fn new(local: &'a Local, call: &'a Call<'a>) -> Self {
        Self {
            call,
            memory: call.memory,
            backend: &*local.backend,
            fds: local.fds.of(call.tid),
            reaper: &local.reaper,
        }
    }

    /// Answers a command on elements, or `BPF_MAP_FREEZE`, and others on objects that are not the
    /// session's but the kernel's; `None` if its object is another.
    pub(super) fn answer(&self, command: Command, attr: &BpfAttr) -> Option<Answer> {
        if self.is_on_strangers(command, attr) {
            return Some(Ok(Reply::Continue));
        }
        let is_on_map = command.is_for_elements() || command == Command::MAP_FREEZE;
        if !is_on_map || !self.fds.table.has_stand_ins() {
            return None;
        }
        let element: uapi::Element = attr.view();
        let fd = match command.is_batch() {
            true => attr.view::<uapi::Batch>().map_fd,
            false => element.map_fd,
        };
        match self.fds.find(fd) {
            Ok(Some(Object::Map(map))) if map.is_kernels => {
                let ready = match command {
                    Command::MAP_UPDATE_ELEM => self.pass_program(&map, element.value),
                    _ => Ok(()),
                };
                Some(ready.map(|()| Reply::Continue))
            }
            _ => None,
        }
    }

    /// Returns whether a command is on a program or map that the tool did not get from Beeline: one
    /// that a program of its own has loaded in the kernel, as those of light skeletons do.
    fn is_on_strangers(&self, command: Command, attr: &BpfAttr) -> bool {
        let fd = match command {
            Command::OBJ_GET_INFO_BY_FD => attr.view::<uapi::Info>().bpf_fd,
            Command::PROG_TEST_RUN => attr.view::<uapi::TestRun>().prog_fd,
            Command::LINK_CREATE => attr.view::<uapi::LinkCreate>().prog_fd,
            Command::RAW_TRACEPOINT_OPEN => attr.view::<uapi::RawTracepoint>().prog_fd,
            command if command.is_for_elements() && !command.is_batch() => {
                attr.view::<uapi::Element>().map_fd
            }
            _ => return false,
        };
        let is_kernels = || {
            let named = anonymous(&self.call.tid.to_string(), fd);
            matches!(
                named,
                Some(Anonymous::KernelMap(_) | Anonymous::KernelProgram(_))
            )
        };
        self.backend.may_decide()
            && matches!(self.fds.find(fd), Ok(None))
            && is_kernels()
            && host_kernel::refusal(self.backend, self.call.tid).is_none()
    }

    /// Has the program that a value names be the kernel's, for the tool's call.
    fn pass_program(&self, map: &Map, value: u64) -> Result<(), Errno> {
        let holds_programs = matches!(
            map.spec.map_type,
            MapType::DEVMAP | MapType::DEVMAP_HASH | MapType::CPUMAP
        );
        if !holds_programs || map.spec.value_size as usize <= PROGRAM_FD {
            return Ok(());
        }
        let value = self.memory.bytes(value, map.spec.value_size as usize)?;
        let fd = u32_at(&value, PROGRAM_FD).cast_signed();
        let Ok(program) = self.fds.program(fd) else {
            return Ok(());
        };
        let loaded = self.backend.program_in_kernel(program.held.id)?;
        self.fds
            .make_kernels((self.call, self.reaper), fd, loaded.as_fd())
    }
}

//! `ioctl` with a command of perf events.

use std::os::fd::AsFd;

use beeline_kernel::attach::set_program;
use beeline_runtime::backend::Backend;
use beeline_supervisor::{Answer, Call, Reply};
use beeline_uapi::Errno;
use beeline_uapi::perf::ioc;

use crate::fds::ThreadFds;
use crate::host_kernel;
use crate::local::Local;
use crate::objects::{Event, Object, ProgramObject, Ring};
use crate::refused::by_kernel_only;

/// Controls perf events.
pub(in crate::syscalls) struct PerfIoctl<'a> {
    call: &'a Call<'a>,
    backend: &'a dyn Backend,
    fds: ThreadFds<'a>,
}

impl<'a> PerfIoctl<'a> {
    pub(in crate::syscalls) fn new(local: &'a Local, call: &'a Call<'a>) -> Self {
        Self {
            call,
            backend: &*local.backend,
            fds: local.fds.of(call.tid),
        }
    }

    /// Answers `ioctl(descriptor, command, argument)` with a command of perf events.
    pub(in crate::syscalls) fn ioctl(&self) -> Answer {
        let [fd, command, argument, ..] = self.call.args;
        let command = command as u32;
        match self.fds.find(fd as i32) {
            Ok(Some(Object::Event(event))) => self.event_ioctl(&event, command, argument),
            Ok(Some(Object::Ring(ring))) => self.ring_ioctl(&ring, command, argument),
            _ if command == ioc::SET_BPF => match self.fds.program(argument as i32) {
                Ok(program) => self.set_program_in_kernel(fd as i32, &program),
                Err(_) => Ok(Reply::Continue),
            },
            _ => Ok(Reply::Continue),
        }
    }

    /// Gives an event that the kernel has opened for the tool its program.
    fn set_program_in_kernel(&self, fd: i32, program: &ProgramObject) -> Answer {
        if let Some(why) = host_kernel::refusal(self.backend, self.call.tid) {
            let what = by_kernel_only("programs at events that count or sample", &why);
            self.backend.unsupported(&what);
            return Err(Errno::EOPNOTSUPP);
        }
        let event = host_kernel::tools_event(self.call, fd)?;
        self.fds.table.move_timers_to_kernel(program)?;
        host_kernel::attach(self.backend, program, |program| {
            set_program(event.as_fd(), program)
        })?;
        Ok(Reply::Value(0))
    }

    fn event_ioctl(&self, event: &Event, command: u32, argument: u64) -> Answer {
        match command {
            ioc::SET_BPF => {
                let program = self.fds.program(argument as i32)?;
                let may_use_kernel = host_kernel::refusal(self.backend, self.call.tid).is_none();
                event.set_program_after_closes(self.fds.table, &program, 0, may_use_kernel)?;
            }
            ioc::ENABLE => event.enable()?,
            ioc::DISABLE => event.disable(),
            ioc::RESET => {}
            ioc::ID => self.write_event_id(argument, event.id)?,
            _ => return Err(not_for_this(command)),
        }
        Ok(Reply::Value(0))
    }

    fn ring_ioctl(&self, ring: &Ring, command: u32, argument: u64) -> Answer {
        let enable = |on| self.backend.perf_ring_enable(ring.held.id, on);
        match command {
            ioc::ENABLE => enable(true)?,
            ioc::DISABLE => enable(false)?,
            ioc::PAUSE_OUTPUT => self.backend.perf_ring_pause(ring.held.id, argument != 0)?,
            ioc::RESET => {}
            ioc::ID => self.write_event_id(argument, ring.held.id.0)?,
            _ => return Err(not_for_this(command)),
        }
        Ok(Reply::Value(0))
    }

    fn write_event_id(&self, address: u64, id: u32) -> Result<(), Errno> {
        self.call
            .memory
            .write(address, &u64::from(id).to_ne_bytes())
    }
}

/// Returns the kernel's error for a command that it knows, or for one that it does not.
fn not_for_this(command: u32) -> Errno {
    match command {
        ioc::REFRESH
        | ioc::PERIOD
        | ioc::SET_BPF
        | ioc::SET_OUTPUT
        | ioc::SET_FILTER
        | ioc::PAUSE_OUTPUT
        | ioc::QUERY_BPF
        | ioc::MODIFY_ATTRIBUTES => Errno::EINVAL,
        _ => Errno(libc::ENOTTY),
    }
}

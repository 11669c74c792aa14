//! `perf_event_open`, and `ioctl` and `read` on the descriptors that it returns.
//!
//! Reads are between the tool and the kernel of this machine, except for reads of as many bytes as
//! values have: those come to the supervisor (`beeline_supervisor::seccomp_filter`). For other
//! reads, the descriptor of an object without content is at its end ([`crate::objects`]).

use std::fs::File;
use std::mem::offset_of;
use std::sync::Arc;

use beeline_supervisor::attr::PerfAttr;
use beeline_supervisor::{Answer, Call, Reply};
use beeline_uapi::Errno;
use beeline_uapi::attr;
use beeline_uapi::fields::{put_u32, put_u64, u32_at, u64_at};
use beeline_uapi::perf::{
    PERF_COUNT_SW_BPF_OUTPUT, PERF_FLAG_FD_CLOEXEC, PERF_TYPE_HARDWARE, PERF_TYPE_HW_CACHE,
    PERF_TYPE_MAX, PERF_TYPE_RAW, PERF_TYPE_SOFTWARE, ioc,
};
use beeline_vm_protocol::info::Kind;
use beeline_vm_protocol::messages::guest_message::Body as Said;
use beeline_vm_protocol::messages::host_message::Body as Asked;
use beeline_vm_protocol::messages::{PerfEventControl, PerfEventOpen, Read};
use object::{Object as _, ReadCache};

use super::descriptors::Descriptors;
use super::kernel::Kernel;
use crate::Guest;
use crate::connection::EPROTO;
use crate::objects::Object;

const EINVAL: Errno = Errno(libc::EINVAL);
const EFAULT: Errno = Errno(libc::EFAULT);

/// Offsets in `struct perf_event_attr` of the fields that are looked at here.
const TYPE: usize = offset_of!(attr::PerfEvent, r#type);
const CONFIG: usize = offset_of!(attr::PerfEvent, config);
const CONFIG1: usize = offset_of!(attr::PerfEvent, config1);

/// Types of counters.
const COUNTERS: [u32; 4] = [
    PERF_TYPE_HARDWARE,
    PERF_TYPE_SOFTWARE,
    PERF_TYPE_HW_CACHE,
    PERF_TYPE_RAW,
];
/// The longest name of a function or path of a file.
const NAME: usize = 4096;

/// Returns whether such an event wakes its reader for each record, and keeps the records that are
/// not read yet.
fn wakes_for_each(attr: &[u8]) -> bool {
    const OTHERWISE: u64 = attr::PerfEvent::WATERMARK | attr::PerfEvent::WRITE_BACKWARD;
    const FLAGS: usize = offset_of!(attr::PerfEvent, bits);
    const WAKEUP_EVENTS: usize = offset_of!(attr::PerfEvent, wakeup_events);
    u64_at(attr, FLAGS) & OTHERWISE == 0 && u32_at(attr, WAKEUP_EVENTS) == 1
}

/// Opens perf events, controls them and reads their values.
pub(super) struct PerfEvents<'a> {
    call: &'a Call<'a>,
    descriptors: Descriptors<'a>,
    kernel: Kernel<'a>,
}

impl<'a> PerfEvents<'a> {
    pub(super) fn new(guest: &'a Guest, call: &'a Call<'a>) -> Self {
        Self {
            call,
            descriptors: Descriptors::new(guest, call),
            kernel: Kernel::new(guest, call),
        }
    }

    /// Answers `perf_event_open(attr, pid, cpu, group, flags)`.
    pub(super) fn open(&self) -> Answer {
        let [address, pid, cpu, group, flags, _] = self.call.args;
        let mut attr = self.event_attr(address)?;
        let (kind, config) = (u32_at(&attr, TYPE), u64_at(&attr, CONFIG));
        let is_ring = kind == PERF_TYPE_SOFTWARE && config == PERF_COUNT_SW_BPF_OUTPUT;
        let wakes_for_each = wakes_for_each(&attr);
        if pid as i32 == 0 && COUNTERS.contains(&kind) && !is_ring {
            self.kernel.connection.say_once(
                "perf_event_open of the tool itself (pid 0): it is no process of the guest's, and nothing of it can be counted there",
            );
            return Err(Errno(libc::ESRCH));
        }
        let name = self.probe_name(&mut attr)?;
        let build_id = match name.starts_with('/') {
            true => self.build_id(&name).unwrap_or_default(),
            false => Vec::new(),
        };
        let group = match group as i32 {
            -1 => 0,
            fd => self.descriptors.object(fd)?.handle,
        };
        let request = PerfEventOpen {
            attr,
            name,
            pid: pid as i32,
            cpu: cpu as i32,
            group,
            flags: flags & !PERF_FLAG_FD_CLOEXEC,
            build_id,
        };
        let handle = match self.kernel.ask(Asked::PerfEventOpen(request))? {
            Said::Opened(opened) if opened.handle != 0 => opened.handle,
            _ => return Err(EPROTO),
        };
        let mut event = Object::new(self.kernel.connection, handle, Kind::Event);
        event.is_ring = is_ring;
        event.wakes_for_each = wakes_for_each;
        Ok(Reply::Descriptor {
            file: self.descriptors.objects.add(Arc::new(event))?,
            cloexec: flags & PERF_FLAG_FD_CLOEXEC != 0,
        })
    }

    fn event_attr(&self, address: u64) -> Result<Vec<u8>, Errno> {
        let size_at = address.checked_add(PerfAttr::SIZE_AT).ok_or(EFAULT)?;
        let size = self.call.memory.read_u32(size_at)?;
        let size = match size {
            0 => PerfAttr::SIZE_VER0,
            size => size,
        };
        if !(PerfAttr::SIZE_VER0..=PerfAttr::SIZE).contains(&size) {
            // Tells the tool the size that is known here.
            self.call.memory.write_u32(size_at, PerfAttr::SIZE)?;
            return Err(Errno(libc::E2BIG));
        }
        let mut attr = self.call.memory.bytes(address, size as usize)?;
        put_u32(&mut attr, PerfAttr::SIZE_AT as usize, size);
        Ok(attr)
    }

    /// Returns the function or file that a probe's attribute points to.
    fn probe_name(&self, attr: &mut [u8]) -> Result<String, Errno> {
        let address = u64_at(attr, CONFIG1);
        if u32_at(attr, TYPE) < PERF_TYPE_MAX || address == 0 {
            return Ok(String::new());
        }
        put_u64(attr, CONFIG1, 0);
        let name = self.call.memory.string(address, NAME)?;
        String::from_utf8(name).map_err(|_| EINVAL)
    }

    /// Returns the build id of the tool's file; `None` if it has none. With it, the guest checks
    /// that its own file is the one in which the tool has read the offsets.
    fn build_id(&self, path: &str) -> Option<Vec<u8>> {
        let path = self.call.path_as_seen_here(path.into()).ok()?;
        let file = ReadCache::new(File::open(path).ok()?);
        let elf = object::File::parse(&file).ok()?;
        Some(elf.build_id().ok()??.to_vec())
    }

    /// Answers `ioctl(descriptor, command, argument)` with a command of perf events.
    pub(super) fn ioctl(&self) -> Answer {
        let [fd, command, argument, ..] = self.call.args;
        let command = command as u32;
        let Some(event) = self.descriptors.find(fd as i32) else {
            return Ok(Reply::Continue);
        };
        let mut request = PerfEventControl {
            handle: event.handle,
            command,
            argument,
            text: String::new(),
        };
        match command {
            ioc::ID => request.argument = 0,
            ioc::PERIOD => {
                let period = self.call.memory.bytes(argument, 8)?;
                request.argument = u64_at(&period, 0);
            }
            ioc::SET_BPF => request.argument = self.descriptors.handle_of(argument as u32)?.into(),
            ioc::SET_OUTPUT => {
                request.argument = match argument as i32 {
                    -1 => 0,
                    fd => self.descriptors.handle_of(fd as u32)?.into(),
                }
            }
            ioc::SET_FILTER => {
                let text = self.call.memory.string(argument, NAME)?;
                request.text = String::from_utf8(text).map_err(|_| EINVAL)?;
                request.argument = 0;
            }
            ioc::QUERY_BPF | ioc::MODIFY_ATTRIBUTES => {
                self.kernel.connection.say(&format!(
                    "perf ioctl {command:#x}: not carried out in guests"
                ));
                return Err(EINVAL);
            }
            _ => {}
        }
        match self.kernel.ask(Asked::PerfEventControl(request))? {
            Said::Done(_) => {}
            Said::EventNumber(number) if command == ioc::ID => {
                self.call
                    .memory
                    .write(argument, &number.number.to_ne_bytes())?;
            }
            _ => return Err(EPROTO),
        }
        Ok(Reply::Value(0))
    }
    /// Returns whether a descriptor to be read is not an object's.
    pub(super) fn is_no_object(&self, fd: u64) -> bool {
        self.descriptors.objects.is_unused() || self.descriptors.find(fd as i32).is_none()
    }

    /// Answers `read(descriptor, buffer, count)`.
    pub(super) fn read(&self, fd: u64, buffer: u64, count: u64) -> Answer {
        let Some(object) = self.descriptors.find(fd as i32) else {
            return Ok(Reply::Continue);
        };
        match object.kind {
            Kind::Event => {}
            // An iterator's text is sent through the descriptor.
            Kind::Other => return Ok(Reply::Continue),
            Kind::Map | Kind::Program | Kind::Btf | Kind::Link => return Err(EINVAL),
        }
        let request = Read {
            handle: object.handle,
            room: count as u32,
        };
        match self.kernel.ask(Asked::Read(request))? {
            Said::Content(values) if values.data.len() as u64 <= count => {
                self.call.memory.write(buffer, &values.data)?;
                Ok(Reply::Value(values.data.len() as i64))
            }
            _ => Err(EPROTO),
        }
    }
}

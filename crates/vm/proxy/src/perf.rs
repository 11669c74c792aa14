//! `perf_event_open(2)` and the commands of events.

use std::ffi::CString;
use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::OnceLock;

use beeline_uapi::attr::PerfEvent;
use beeline_uapi::fields::{put_u64, u32_at, u64_at};
use beeline_uapi::perf::*;
use beeline_vm_protocol::info::Kind;
use beeline_vm_protocol::messages::{PerfEventControl, PerfEventOpen};

use crate::attach_points;
use crate::build_id;
use crate::fs_roots::Root;
use crate::handles::{Handles, Object};
use crate::refusal::Refusal;
use crate::sys;

/// Offsets in `struct perf_event_attr`.
const TYPE: usize = offset_of!(PerfEvent, r#type);
const SIZE: usize = offset_of!(PerfEvent, size);
const CONFIG: usize = offset_of!(PerfEvent, config);
const CONFIG1: usize = offset_of!(PerfEvent, config1);
const CONFIG2: usize = offset_of!(PerfEvent, config2);
/// `PERF_ATTR_SIZE_VER0`, and an upper bound for every version.
const LENGTHS: std::ops::RangeInclusive<usize> = PerfEvent::SIZE_VER0 as usize..=256;

/// `PERF_FLAG_FD_NO_GROUP`, `PERF_FLAG_FD_OUTPUT` and `PERF_FLAG_FD_CLOEXEC`;
/// `PERF_FLAG_PID_CGROUP` takes a descriptor.
const FLAGS: u64 = PERF_FLAG_FD_NO_GROUP | PERF_FLAG_FD_OUTPUT | PERF_FLAG_FD_CLOEXEC;

/// The source of an event of a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Kprobe,
    Uprobe,
    Tracepoint,
    Breakpoint,
    Counter,
}

/// Returns the number that the kernel has given to a source of probes.
fn probe_type(name: &str) -> Option<u32> {
    let path = format!("bus/event_source/devices/{name}");
    let file = Root::Sys.open_behind(&path, "type", rustix::fs::OFlags::RDONLY);
    let mut text = String::new();
    std::io::Read::read_to_string(&mut std::fs::File::from(file.ok()?), &mut text).ok()?;
    text.trim().parse().ok()
}

fn source(number: u32) -> Result<Source, Refusal> {
    static PROBES: OnceLock<[Option<u32>; 2]> = OnceLock::new();
    let [kprobe, uprobe] = PROBES.get_or_init(|| ["kprobe", "uprobe"].map(probe_type));
    Ok(match number {
        PERF_TYPE_TRACEPOINT => Source::Tracepoint,
        PERF_TYPE_BREAKPOINT => Source::Breakpoint,
        _ if *kprobe == Some(number) => Source::Kprobe,
        _ if *uprobe == Some(number) => Source::Uprobe,
        PERF_TYPE_HARDWARE | PERF_TYPE_SOFTWARE | PERF_TYPE_HW_CACHE | PERF_TYPE_RAW => {
            Source::Counter
        }
        _ => {
            let why = format!("events of type {number} are not opened for hosts");
            return Err(Refusal::new(libc::EOPNOTSUPP, why));
        }
    })
}

/// An event that is to be opened.
#[derive(Debug)]
pub struct Event {
    attr: Vec<u8>,
    source: Source,
    name: Option<CString>,
    request: PerfEventOpen,
    /// Its name in the policy.
    pub place: String,
}

impl Event {
    /// Checks a host's request.
    ///
    /// # Errors
    ///
    /// `EINVAL` for an attribute or a name that is not as it should be, `EOPNOTSUPP` for a kind of
    /// event that is not opened for hosts; for uprobes those of [`attach_points::executable`] and
    /// [`build_id::compare`].
    pub fn new(mut request: PerfEventOpen) -> Result<Self, Refusal> {
        let mut attr = std::mem::take(&mut request.attr);
        if !LENGTHS.contains(&attr.len()) || u32_at(&attr, SIZE) as usize != attr.len() {
            let why = "the attribute is not as long as it says";
            return Err(Refusal::new(libc::EINVAL, why));
        }
        if request.flags & !FLAGS != 0 {
            let why = "an event of a cgroup is named by a descriptor of the guest's, which a host has none of";
            return Err(Refusal::new(libc::EOPNOTSUPP, why));
        }
        let source = source(u32_at(&attr, TYPE))?;
        let (config, offset) = (u64_at(&attr, CONFIG), u64_at(&attr, CONFIG2));
        let mut name = std::mem::take(&mut request.name);
        let place = match source {
            Source::Kprobe if name.is_empty() => format!("kprobe:{offset:#x}"),
            Source::Kprobe if offset != 0 => format!("kprobe:{name}+{offset:#x}"),
            Source::Kprobe => format!("kprobe:{name}"),
            Source::Uprobe => {
                name = attach_points::executable(&name)?;
                build_id::compare(&name, &request.build_id)?;
                format!("uprobe:{name}:{offset:#x}")
            }
            Source::Tracepoint => attach_points::of_tracepoint(config),
            Source::Breakpoint => format!("breakpoint:{:#x}", u64_at(&attr, CONFIG1)),
            Source::Counter => format!("perf_event:{}:{config:#x}", u32_at(&attr, TYPE)),
        };
        let probe = matches!(source, Source::Kprobe | Source::Uprobe);
        if !name.is_empty() && !probe {
            return Err(Refusal::new(libc::EINVAL, "only probes have names"));
        }
        let name = match probe && !name.is_empty() {
            true => Some(CString::new(name).map_err(|_| Refusal::new(libc::EINVAL, ""))?),
            false => None,
        };
        if probe {
            put_u64(&mut attr, CONFIG1, 0);
        }
        Ok(Self {
            attr,
            source,
            name,
            request,
            place,
        })
    }

    /// Opens it.
    ///
    /// # Errors
    ///
    /// `EBADF` or `EINVAL` if the group's handle is no event's, and the kernel's errors.
    pub fn open(mut self, handles: &Handles) -> Result<Object, Refusal> {
        let group = match self.request.group {
            0 => None,
            handle => Some(handles.of_kind(handle, Kind::Event)?),
        };
        if let Some(name) = &self.name {
            let address = name.as_ptr().expose_provenance() as u64;
            put_u64(&mut self.attr, CONFIG1, address);
        }
        let (pid, cpu, flags) = (self.request.pid, self.request.cpu, self.request.flags);
        // The kernel writes its own length if it does not accept this one.
        self.attr.resize(*LENGTHS.end(), 0);
        // SAFETY: the attribute is at least as long as its size says. The only address in it, a
        // probe's name, is null or leads to a terminated text of this value's.
        let opened = unsafe {
            let group = group.as_ref().map(|group| group.fd.as_fd());
            sys::perf_event_open(&mut self.attr, pid, cpu, group, flags)
        };
        let opened = opened.map_err(|errno| {
            let mut refusal = Refusal::from(errno);
            if self.source == Source::Kprobe && errno == rustix::io::Errno::NOENT {
                refusal.why = format!("the guest's kernel has no {}", self.place);
            }
            refusal
        })?;
        Ok(Object::new(opened, Kind::Event, Some(self.place))?)
    }
}

/// Carries out a command. Returns the event's number where that is asked for.
///
/// # Errors
///
/// `EBADF` or `EINVAL` if a handle is not of the right object, `EINVAL` for a filter with a zero in
/// it, `EOPNOTSUPP` for any other command, and the kernel's errors.
pub fn control(
    request: &PerfEventControl,
    event: &Object,
    handles: &Handles,
) -> Result<Option<u64>, Refusal> {
    let fd = event.fd.as_fd();
    let (command, argument) = (request.command, request.argument);
    let handle = || u32::try_from(argument).map_err(|_| Refusal::new(libc::EBADF, ""));
    match command {
        ioc::ENABLE | ioc::DISABLE | ioc::REFRESH | ioc::RESET | ioc::PAUSE_OUTPUT => {
            sys::ioctl(fd, command, argument)?
        }
        ioc::PERIOD => sys::ioctl_with_number(fd, command, argument)?,
        ioc::ID => return Ok(Some(sys::ioctl_number(fd, command)?)),
        ioc::SET_BPF => {
            let program = handles.of_kind(handle()?, Kind::Program)?;
            sys::ioctl(fd, command, program.fd.as_raw_fd() as u64)?;
        }
        // No event: its output is separate again.
        ioc::SET_OUTPUT if argument == 0 => sys::ioctl(fd, command, u64::MAX)?,
        ioc::SET_OUTPUT => {
            let other = handles.of_kind(handle()?, Kind::Event)?;
            sys::ioctl(fd, command, other.fd.as_raw_fd() as u64)?;
        }
        ioc::SET_FILTER => {
            let text = CString::new(request.text.as_str());
            let text = text.map_err(|_| Refusal::new(libc::EINVAL, ""))?;
            sys::ioctl_text(fd, command, &text)?;
        }
        _ => {
            let why = format!("the command {command:#x} of events is not carried out for hosts");
            return Err(Refusal::new(libc::EOPNOTSUPP, why));
        }
    }
    Ok(None)
}

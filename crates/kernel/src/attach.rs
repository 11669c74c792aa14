//! Attaching programs to the kernel's events. A link lasts as long as its descriptor.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use beeline_uapi::attr::PerfEvent;
use beeline_uapi::perf::{
    PERF_COUNT_SW_BPF_OUTPUT, PERF_COUNT_SW_CPU_CLOCK, PERF_FLAG_FD_CLOEXEC, PERF_SAMPLE_RAW,
    PERF_TYPE_SOFTWARE, ioc,
};
use beeline_uapi::{AttachType, Command};

use crate::attr::{Attr, word};

/// Runs a program at a raw tracepoint, or, without a name, at the place that it was loaded for
/// (`BPF_RAW_TRACEPOINT_OPEN`).
///
/// # Errors
/// The errno of bpf(2): `ENOENT` if there is no such tracepoint, `EINVAL` for a program of another
/// type.
pub fn raw_tracepoint(program: impl AsFd, name: Option<&CStr>, cookie: u64) -> io::Result<OwnedFd> {
    let mut attr = Attr::default();
    attr.put_fd(word!(RawTracepoint.prog_fd), Some(program.as_fd()));
    if let Some(name) = name {
        // SAFETY: the kernel reads up to the 0 at its end.
        unsafe { attr.point(word!(RawTracepoint.name), name.to_bytes_with_nul()) };
    }
    attr.put_long(word!(RawTracepoint.cookie), cookie);
    attr.make(Command::RAW_TRACEPOINT_OPEN)
}

/// Links a program to a perf event (`BPF_LINK_CREATE` with `BPF_PERF_EVENT`).
///
/// # Errors
/// The errno of bpf(2): `EINVAL` for a program of another type, `EEXIST` if the event has one.
pub fn link_to_event(
    program: impl AsFd,
    event: BorrowedFd<'_>,
    cookie: u64,
) -> io::Result<OwnedFd> {
    let mut attr = Attr::default();
    attr.put_fd(word!(LinkCreate.prog_fd), Some(program.as_fd()));
    attr.put_fd(word!(LinkCreate.target_fd), Some(event));
    attr.put(word!(LinkCreate.attach_type), AttachType::PERF_EVENT.0);
    attr.put_long(word!(LinkCreatePerfEvent.bpf_cookie), cookie);
    attr.make(Command::LINK_CREATE)
}

/// Has a perf event run a program for as long as it is open (`PERF_EVENT_IOC_SET_BPF`).
///
/// # Errors
/// The errno of ioctl(2): `EINVAL` for a program of another type, `EEXIST` if the event has one.
pub fn set_program(event: BorrowedFd<'_>, program: impl AsFd) -> io::Result<()> {
    control(event, ioc::SET_BPF, program.as_fd().as_raw_fd())
}

/// Opens the perf event by which programs on a CPU send records (`PERF_COUNT_SW_BPF_OUTPUT`), for a
/// ring that is readable with every record.
///
/// # Errors
/// The errno of perf_event_open(2).
pub fn output_event(cpu: u32) -> io::Result<OwnedFd> {
    let attr = PerfEvent {
        config: PERF_COUNT_SW_BPF_OUTPUT,
        sample_period: 1,
        sample_type: PERF_SAMPLE_RAW,
        wakeup_events: 1,
        ..PerfEvent::default()
    };
    software_event(attr, cpu)
}

/// Opens a CPU's clock (`PERF_COUNT_SW_CPU_CLOCK`), which samples in every period.
///
/// # Errors
/// The errno of perf_event_open(2).
pub fn clock(cpu: u32, period: Duration, enabled: bool) -> io::Result<OwnedFd> {
    let attr = PerfEvent {
        config: PERF_COUNT_SW_CPU_CLOCK,
        sample_period: period.as_nanos() as u64,
        bits: if enabled { 0 } else { PerfEvent::DISABLED },
        ..PerfEvent::default()
    };
    software_event(attr, cpu)
}

/// Starts or stops a perf event (`PERF_EVENT_IOC_ENABLE`, `PERF_EVENT_IOC_DISABLE`).
///
/// # Errors
/// The errno of ioctl(2).
pub fn enable(event: BorrowedFd<'_>, on: bool) -> io::Result<()> {
    let command = if on { ioc::ENABLE } else { ioc::DISABLE };
    control(event, command, 0)
}

/// Opens an event of the kernel's own on a CPU, for all processes.
fn software_event(attr: PerfEvent, cpu: u32) -> io::Result<OwnedFd> {
    let attr = PerfEvent {
        r#type: PERF_TYPE_SOFTWARE,
        size: PerfEvent::SIZE_VER5,
        ..attr
    };
    let (every_process, no_group) = (-1, -1);
    // SAFETY: the kernel reads the attribute, no more than the size that it gives.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            std::ptr::from_ref(&attr),
            every_process,
            cpu.cast_signed(),
            no_group,
            PERF_FLAG_FD_CLOEXEC,
        )
    };
    match i32::try_from(fd) {
        // SAFETY: the kernel has just made it for us, and nothing else owns it.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Calls a command of perf events that takes a number.
fn control(event: BorrowedFd<'_>, command: u32, argument: i32) -> io::Result<()> {
    // SAFETY: these commands take a descriptor or nothing, and touch no memory of this process.
    match unsafe { libc::ioctl(event.as_raw_fd(), command as libc::Ioctl, argument) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

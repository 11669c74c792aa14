//! The answer for a link: `struct bpf_link_info`.

mod uprobe_multi;

use beeline_kernel::link::Facts;
use beeline_runtime::backend::{AttachPoint, CallContext, Edge};
use beeline_uapi::fields::{u32_at, u64_at};
use beeline_uapi::info::{
    LinkInfo, LinkInfoAny, LinkInfoEvent, LinkInfoKprobe, LinkInfoNamed, LinkInfoRawTracepoint,
    LinkInfoTracepoint, LinkInfoTracing, LinkInfoUprobe,
};
use beeline_uapi::perf::{PERF_COUNT_SW_CPU_CLOCK, PERF_TYPE_SOFTWARE};
use beeline_uapi::{Errno, PerfEventType};
use zerocopy::{FromBytes, IntoBytes, KnownLayout};

use super::answer::Buffers;
use crate::objects::{Btf, KernelLink, Link, LinkTo};
use crate::syscall_table::SystemCall;
use crate::tracepoints::Tracepoint;
use uprobe_multi::Uprobes;

/// Fills the structure.
pub(super) fn describe(
    link: &Link,
    buffers: Buffers<'_>,
    info: &mut LinkInfoAny,
) -> Result<(), Errno> {
    info.link.r#type = link.link_type();
    info.link.id = link.id;
    info.link.prog_id = link.program.held.id.0;
    let point = match &link.to {
        LinkTo::Event(event) => {
            return describe_event(event.point(), link.cookie, buffers, info);
        }
        LinkTo::Place { point, .. } => point,
        LinkTo::Kernel(kernels) => return describe_kernels(kernels, buffers, info),
    };
    if let AttachPoint::UprobeMulti {
        path,
        retprobe,
        pid,
        probes,
    } = point
    {
        let uprobes = Uprobes {
            path,
            retprobe: *retprobe,
            pid: *pid,
            probes,
        };
        return uprobes.describe(buffers, as_kind(info)?);
    }
    if let Some(tracepoint) = Tracepoint::of_raw(point) {
        let info: &mut LinkInfoRawTracepoint = as_kind(info)?;
        info.cookie = link.cookie;
        let place = (info.tp_name, &mut info.tp_name_len);
        return fill_c_string(buffers, place, tracepoint.name().as_bytes());
    }
    let program = &link.program;
    let info: &mut LinkInfoTracing = as_kind(info)?;
    info.attach_type = program.expected_attach_type;
    info.target_obj_id = Btf::KERNELS;
    info.target_btf_id = program.attach_btf_id;
    info.cookie = link.cookie;
    Ok(())
}

/// Fills the part of its kind on a link in the host's kernel, which knows it.
fn describe_kernels(
    link: &KernelLink,
    buffers: Buffers<'_>,
    info: &mut LinkInfoAny,
) -> Result<(), Errno> {
    let Facts { info: facts, name } = link.with(beeline_kernel::link::facts)?;
    let to = info.as_mut_bytes();
    let mut tools_name = None;
    if let Some((at, name)) = name {
        let room = u32_at(to, at + size_of::<u64>());
        tools_name = Some((at, u64_at(to, at), room, name));
    }
    to[size_of::<LinkInfo>()..].copy_from_slice(&facts[size_of::<LinkInfo>()..]);
    let Some((at, address, mut room, name)) = tools_name else {
        return Ok(());
    };
    let filled = fill_c_string(buffers, (address, &mut room), name.as_bytes());
    to[at..][..size_of::<u64>()].copy_from_slice(&address.to_ne_bytes());
    to[at + size_of::<u64>()..][..size_of::<u32>()].copy_from_slice(&room.to_ne_bytes());
    filled
}

/// Fills the part on a perf event.
fn describe_event(
    point: &AttachPoint,
    cookie: u64,
    buffers: Buffers<'_>,
    info: &mut LinkInfoAny,
) -> Result<(), Errno> {
    match point {
        AttachPoint::Timer { .. } => {
            let info: &mut LinkInfoEvent = as_kind(info)?;
            info.perf_event.r#type = PerfEventType::EVENT;
            info.config = PERF_COUNT_SW_CPU_CLOCK;
            info.r#type = PERF_TYPE_SOFTWARE;
            info.cookie = cookie;
            Ok(())
        }
        AttachPoint::Uprobe {
            path,
            offset,
            retprobe,
            semaphore,
            ..
        } => {
            let info: &mut LinkInfoUprobe = as_kind(info)?;
            info.named.offset = *offset as u32;
            info.cookie = cookie;
            info.ref_ctr_offset = *semaphore;
            info.named.perf_event.r#type = if *retprobe {
                PerfEventType::URETPROBE
            } else {
                PerfEventType::UPROBE
            };
            let name = path.as_os_str().as_encoded_bytes();
            fill_event_name(buffers, &mut info.named, name)
        }
        // No event has many places.
        AttachPoint::UprobeMulti { .. } => Err(Errno::EINVAL),
        AttachPoint::SystemCall {
            number,
            edge,
            context,
            ..
        } => {
            if let Some(tracepoint) = Tracepoint::of_point(point) {
                let info: &mut LinkInfoTracepoint = as_kind(info)?;
                info.named.perf_event.r#type = PerfEventType::TRACEPOINT;
                info.cookie = cookie;
                let name = tracepoint.name();
                return fill_event_name(buffers, &mut info.named, name.as_bytes());
            }
            let info: &mut LinkInfoKprobe = as_kind(info)?;
            info.named.perf_event.r#type = match edge {
                Edge::Enter => PerfEventType::KPROBE,
                Edge::Exit => PerfEventType::KRETPROBE,
            };
            // The probe is at the function's start, its address is not disclosed, and no run was
            // missed.
            info.named.offset = 0;
            info.addr = 0;
            info.missed = 0;
            info.cookie = cookie;
            let call = number
                .and_then(SystemCall::by_number)
                .ok_or(Errno::EINVAL)?;
            let function = match context {
                CallContext::FunctionProbe(function) => function.name.to_owned(),
                _ => call.function(),
            };
            fill_event_name(buffers, &mut info.named, function.as_bytes())
        }
    }
}

/// Returns the structure as that of a kind of links. All of them fit.
fn as_kind<T: FromBytes + IntoBytes + KnownLayout>(
    info: &mut LinkInfoAny,
) -> Result<&mut T, Errno> {
    let seen = T::mut_from_prefix(info.as_mut_bytes());
    seen.map(|(kind, _)| kind).map_err(|_| Errno::EINVAL)
}

fn fill_event_name(
    buffers: Buffers<'_>,
    info: &mut LinkInfoNamed,
    name: &[u8],
) -> Result<(), Errno> {
    fill_c_string(buffers, (info.name, &mut info.name_len), name)
}

/// Fills a name of which the length counts the NUL.
fn fill_c_string(buffers: Buffers<'_>, place: (u64, &mut u32), name: &[u8]) -> Result<(), Errno> {
    buffers.fill_name(place, name, name.len() + 1)
}

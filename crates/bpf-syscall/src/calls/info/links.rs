//! The answer for a link: `struct bpf_link_info`.

use beeline_runtime::backend::{AttachPoint, CallContext, Edge};
use beeline_uapi::perf::{PERF_COUNT_SW_CPU_CLOCK, PERF_TYPE_SOFTWARE};
use beeline_uapi::{Errno, PerfEventType};

use super::answer::Filled;
use super::layout::link::{self, perf_event, raw_tracepoint, tracing};
use crate::objects::{Btf, Link, LinkTo};
use crate::syscall_table::SystemCall;
use crate::tracepoints::Tracepoint;

/// Fills the structure.
pub(super) fn describe(link: &Link, info: &mut Filled<'_>) -> Result<(), Errno> {
    info.put_u32(link::TYPE, link.link_type().0);
    info.put_u32(link::ID, link.id);
    info.put_u32(link::PROG_ID, link.program.held.id.0);
    let point = match &link.to {
        LinkTo::Event(event) => return describe_event(event.point(), link.cookie, info),
        LinkTo::Place { point, .. } => point,
    };
    if let Some(tracepoint) = Tracepoint::of_raw(point) {
        info.put_u64(raw_tracepoint::COOKIE, link.cookie);
        let fields = (raw_tracepoint::TP_NAME, raw_tracepoint::TP_NAME_LEN);
        return fill_c_string(info, fields, tracepoint.name().as_bytes());
    }
    let program = &link.program;
    info.put_u32(tracing::ATTACH_TYPE, program.expected_attach_type.0);
    info.put_u32(tracing::TARGET_OBJ_ID, Btf::KERNELS);
    info.put_u32(tracing::TARGET_BTF_ID, program.attach_btf_id);
    info.put_u64(tracing::COOKIE, link.cookie);
    Ok(())
}

/// Fills the part on a perf event.
fn describe_event(point: &AttachPoint, cookie: u64, info: &mut Filled<'_>) -> Result<(), Errno> {
    match point {
        AttachPoint::Timer { .. } => {
            info.put_u32(perf_event::TYPE, PerfEventType::EVENT.0);
            info.put_u64(perf_event::EVENT_CONFIG, PERF_COUNT_SW_CPU_CLOCK);
            info.put_u32(perf_event::EVENT_TYPE, PERF_TYPE_SOFTWARE);
            info.put_u64(perf_event::EVENT_COOKIE, cookie);
            Ok(())
        }
        AttachPoint::Uprobe {
            path,
            offset,
            retprobe,
            ..
        } => {
            info.put_u32(perf_event::UPROBE_OFFSET, *offset as u32);
            info.put_u64(perf_event::UPROBE_COOKIE, cookie);
            info.put_u64(perf_event::UPROBE_REF_CTR_OFFSET, 0);
            let kind = if *retprobe {
                PerfEventType::URETPROBE
            } else {
                PerfEventType::UPROBE
            };
            info.put_u32(perf_event::TYPE, kind.0);
            fill_event_name(info, path.as_os_str().as_encoded_bytes())
        }
        AttachPoint::SystemCall {
            number,
            edge,
            context,
            ..
        } => {
            if let Some(tracepoint) = Tracepoint::of_point(point) {
                info.put_u32(perf_event::TYPE, PerfEventType::TRACEPOINT.0);
                info.put_u64(perf_event::TRACEPOINT_COOKIE, cookie);
                return fill_event_name(info, tracepoint.name().as_bytes());
            }
            let kind = match edge {
                Edge::Enter => PerfEventType::KPROBE,
                Edge::Exit => PerfEventType::KRETPROBE,
            };
            info.put_u32(perf_event::TYPE, kind.0);
            // The probe is at the function's start, its address is not disclosed, and no run was
            // missed.
            info.put_u32(perf_event::KPROBE_OFFSET, 0);
            info.put_u64(perf_event::KPROBE_ADDR, 0);
            info.put_u64(perf_event::KPROBE_MISSED, 0);
            info.put_u64(perf_event::KPROBE_COOKIE, cookie);
            let call = number
                .and_then(SystemCall::by_number)
                .ok_or(Errno::EINVAL)?;
            let function = match context {
                CallContext::FunctionProbe(function) => function.name.to_owned(),
                _ => call.function(),
            };
            fill_event_name(info, function.as_bytes())
        }
    }
}

fn fill_event_name(info: &mut Filled<'_>, name: &[u8]) -> Result<(), Errno> {
    fill_c_string(info, (perf_event::NAME, perf_event::NAME_LEN), name)
}

/// Fills a name of which the length counts the NUL.
fn fill_c_string(info: &mut Filled<'_>, fields: (usize, usize), name: &[u8]) -> Result<(), Errno> {
    info.fill_name(fields, name, name.len() + 1)
}

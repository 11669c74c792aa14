//! `BPF_TASK_FD_QUERY`: the program behind a descriptor of any process of the tool's, and the place
//! that it is attached to. bpftool's `perf list` goes through all descriptors of all processes.

use std::mem::offset_of;

use beeline_runtime::backend::{AttachPoint, CallContext, Edge};
use beeline_supervisor::attr::BpfAttr;
use beeline_supervisor::{Answer, Call, Reply};
use beeline_uapi::attr::TaskFdQuery;
use beeline_uapi::{Errno, TaskFdType, offset_behind};

use super::tool_attr::ToolAttr;
use crate::fds::ThreadFds;
use crate::local::Local;
use crate::objects::{Event, Link, LinkTo, Object};
use crate::syscall_table::SystemCall;
use crate::tracepoints::Tracepoint;

/// Says what is behind descriptors.
pub(super) struct TaskFds<'a> {
    local: &'a Local,
    call: &'a Call<'a>,
}

/// A program at its place.
struct Found {
    program: u32,
    kind: TaskFdType,
    name: String,
    offset: u64,
    address: u64,
}

impl<'a> TaskFds<'a> {
    pub(super) fn new(local: &'a Local, call: &'a Call<'a>) -> Self {
        Self { local, call }
    }

    /// Answers the command. Its errors are those of the kernel's `bpf_task_fd_query`.
    pub(super) fn query(&self, attr: &BpfAttr) -> Answer {
        attr.ends_at(offset_behind!(TaskFdQuery, probe_addr))?;
        let wanted: TaskFdQuery = attr.view();
        if wanted.flags != 0 {
            return Err(Errno::EINVAL);
        }
        let is_there = std::fs::exists(format!("/proc/{}", wanted.pid)).unwrap_or(false);
        let tid = i32::try_from(wanted.pid)
            .ok()
            .filter(|&pid| pid > 0 && is_there)
            .ok_or(Errno::ENOENT)?;
        let table = &self.local.fds;
        let found = match (ThreadFds { table, tid }).find(wanted.fd)? {
            Some(Object::Event(event)) => at_event(&event)?,
            Some(Object::Link(link)) => at_raw_tracepoint(&link).ok_or(Errno::ENOTSUPP)?,
            Some(Object::Ring(_)) => return Err(Errno::ENOENT),
            _ => return Err(Errno::ENOTSUPP),
        };
        self.write(&wanted, &found)
    }

    /// Writes what was found. A name that does not fit is cut, and the call fails with ENOSPC; the
    /// other fields are there all the same.
    fn write(&self, wanted: &TaskFdQuery, found: &Found) -> Answer {
        let (name, room) = (found.name.as_bytes(), wanted.buf_len as usize);
        let attr = ToolAttr::of(self.call);
        let len = offset_of!(TaskFdQuery, buf_len) as u64;
        attr.put_u32(len, name.len() as u32)?;
        let has_buffer = room > 0 && wanted.buf != 0;
        if has_buffer {
            let mut text = name.get(..room - 1).unwrap_or(name).to_vec();
            text.push(0);
            self.call.memory.write(wanted.buf, &text)?;
        }
        let program = offset_of!(TaskFdQuery, prog_id) as u64;
        attr.put_u32(program, found.program)?;
        let kind = offset_of!(TaskFdQuery, fd_type) as u64;
        attr.put_u32(kind, found.kind.0)?;
        let offset = offset_of!(TaskFdQuery, probe_offset) as u64;
        attr.put_u64(offset, found.offset)?;
        let address = offset_of!(TaskFdQuery, probe_addr) as u64;
        attr.put_u64(address, found.address)?;
        match has_buffer && name.len() >= room {
            true => Err(Errno::ENOSPC),
            false => Ok(Reply::Value(0)),
        }
    }
}

/// The only links that the kernel tells about here; it has another command for all.
fn at_raw_tracepoint(link: &Link) -> Option<Found> {
    let LinkTo::Place { point, .. } = &link.to else {
        return None;
    };
    Some(Found {
        program: link.program.held.id.0,
        kind: TaskFdType::RAW_TRACEPOINT,
        name: Tracepoint::of_raw(point)?.name(),
        offset: 0,
        address: 0,
    })
}

fn at_event(event: &Event) -> Result<Found, Errno> {
    let program = event.program().ok_or(Errno::ENOENT)?.held.id.0;
    let point = event.point();
    if let Some(tracepoint) = Tracepoint::of_point(point) {
        return Ok(Found {
            program,
            kind: TaskFdType::TRACEPOINT,
            name: tracepoint.name(),
            offset: 0,
            address: 0,
        });
    }
    match point {
        AttachPoint::Timer { .. } | AttachPoint::UprobeMulti { .. } => Err(Errno::EOPNOTSUPP),
        AttachPoint::Uprobe {
            path,
            offset,
            retprobe,
            semaphore,
            ..
        } => Ok(Found {
            program,
            kind: match retprobe {
                true => TaskFdType::URETPROBE,
                false => TaskFdType::UPROBE,
            },
            name: path.display().to_string(),
            offset: *offset,
            address: *semaphore,
        }),
        AttachPoint::SystemCall {
            number,
            edge,
            context,
            ..
        } => {
            let call = number
                .and_then(SystemCall::by_number)
                .ok_or(Errno::EOPNOTSUPP)?;
            Ok(Found {
                program,
                kind: match edge {
                    Edge::Enter => TaskFdType::KPROBE,
                    Edge::Exit => TaskFdType::KRETPROBE,
                },
                name: match context {
                    CallContext::FunctionProbe(function) => function.name.to_owned(),
                    _ => call.function(),
                },
                offset: 0,
                // Not disclosed, as to users who may not see the kernel's addresses.
                address: 0,
            })
        }
    }
}

//! Calls on a descriptor itself: `read(2)` of a perf event's values, and `BPF_TASK_FD_QUERY`.
//!
//! Reads are between the tool and the kernel of this machine, except for reads of as many bytes as
//! values have: those come to the supervisor (see [`crate::filter`]). For other reads, the
//! descriptor of an object without content is at its end ([`super::objects`]).

use std::path::Path;
use std::sync::Arc;

use beeline_supervisor::{Answer, Reply};
use beeline_uapi::Errno;
use beeline_vm_protocol::info::Kind;
use beeline_vm_protocol::layout::number_at;
use beeline_vm_protocol::messages::Read;
use beeline_vm_protocol::messages::guest_message::Body as Said;
use beeline_vm_protocol::messages::host_message::Body as Asked;

use crate::Handler;
use crate::commands::EPROTO;
use crate::objects::Object;

const ENOTSUPP: Errno = Errno::ENOTSUPP;
const EINVAL: Errno = Errno(libc::EINVAL);

/// Offsets in the attribute of `BPF_TASK_FD_QUERY`.
const PID: usize = 0;
const FD: usize = 4;
const FLAGS: usize = 8;

impl Handler<'_> {
    /// Returns whether a descriptor to be read is not an object's.
    pub(super) fn is_no_object(&self, fd: u64) -> bool {
        let objects = &self.guest.objects;
        objects.is_unused() || !matches!(objects.find(self.tid, fd as i32), Ok(Some(_)))
    }

    /// Answers `read(descriptor, buffer, count)`.
    pub(super) fn read(&self, fd: u64, buffer: u64, count: u64) -> Answer {
        let Ok(Some(object)) = self.guest.objects.find(self.tid, fd as i32) else {
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
        match self.guest.ask(Asked::Read(request))? {
            Said::Content(values) if values.data.len() as u64 <= count => {
                self.memory.write(buffer, &values.data)?;
                Ok(Reply::Value(values.data.len() as i64))
            }
            _ => Err(EPROTO),
        }
    }

    /// Returns the object that `BPF_TASK_FD_QUERY` is about: any process may have a descriptor of
    /// it.
    pub(super) fn queried(&self, attr: &[u8]) -> Result<Arc<Object>, Errno> {
        let (pid, fd) = (number_at(attr, PID) as i32, number_at(attr, FD) as i32);
        if number_at(attr, FLAGS) != 0 {
            return Err(EINVAL);
        }
        if pid <= 0 || !Path::new(&format!("/proc/{pid}")).exists() {
            return Err(Errno(libc::ENOENT));
        }
        if let Some(object) = self.guest.objects.find(pid, fd)? {
            return Ok(object);
        }
        if self.process() != Ok(pid) {
            self.guest.connection.say_once(
                "BPF_TASK_FD_QUERY: in guests only what the tool itself has opened is known, not what other processes have",
            );
        }
        // The kernel's answer for anything but a perf event or a raw tracepoint.
        Err(ENOTSUPP)
    }
}

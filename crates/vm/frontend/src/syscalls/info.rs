//! `BPF_OBJ_GET_INFO_BY_FD` and `BPF_TASK_FD_QUERY`: information on objects.

use std::mem::offset_of;
use std::path::Path;
use std::sync::Arc;

use beeline_supervisor::{Answer, Call, Reply};
use beeline_uapi::fields::{u32_at, u64_at};
use beeline_uapi::info::LinkInfoPerfEvent;
use beeline_uapi::{Errno, attr, offset_behind};
use beeline_vm_protocol::info::{Kind, link_types};

use super::btf::BtfObjects;
use super::forward::{BpfCall, Forward};
use super::kernel::Kernel;
use crate::Guest;
use crate::objects::{Object, Objects};

const EINVAL: Errno = Errno(libc::EINVAL);

/// Offsets in the attribute of `BPF_OBJ_GET_INFO_BY_FD`.
const LEN: usize = offset_of!(attr::Info, info_len);
const INFO: usize = offset_of!(attr::Info, info);
/// Offsets in the attribute of `BPF_TASK_FD_QUERY`.
const PID: usize = offset_of!(attr::TaskFdQuery, pid);
const FD: usize = offset_of!(attr::TaskFdQuery, fd);
const FLAGS: usize = offset_of!(attr::TaskFdQuery, flags);

/// Tells a tool about objects.
pub(super) struct ObjectInfo<'a> {
    call: &'a Call<'a>,
    objects: &'a Objects,
    forward: Forward<'a>,
    kernel: Kernel<'a>,
    btf: BtfObjects<'a>,
}

impl<'a> ObjectInfo<'a> {
    pub(super) fn new(guest: &'a Guest, call: &'a Call<'a>) -> Self {
        Self {
            call,
            objects: &guest.objects,
            forward: Forward::new(guest, call),
            kernel: Kernel::new(guest, call),
            btf: BtfObjects::new(guest, call),
        }
    }

    /// Answers `BPF_OBJ_GET_INFO_BY_FD`.
    pub(super) fn by_fd(&self, bpf: &BpfCall<'_>) -> Answer {
        // The pointers in a link's information depend on the link.
        if let Some(link) = bpf.first.filter(|object| object.kind == Kind::Link) {
            self.tell_links_type(bpf.attr, link)?;
        }
        let mut taken = self.forward.take(bpf)?;
        if let Some(object) = bpf.first {
            taken.take_inside(object.kind)?;
        }
        let done = match bpf.first.and_then(|object| object.types) {
            Some(id) => self.btf.ask(id, taken.message.clone())?,
            None => self.forward.ask(&taken)?,
        };
        self.forward.give_back(&taken, &done).map(Reply::Value)
    }

    /// Writes a link's type into the structure that the tool wants filled.
    fn tell_links_type(&self, attr: &[u8], link: &Object) -> Result<(), Errno> {
        const TYPES: usize = offset_behind!(LinkInfoPerfEvent, r#type);
        let address = u64_at(attr, INFO);
        let info = self.kernel.info(link.handle, TYPES)?;
        let room = u32_at(attr, LEN) as usize;
        if room >= TYPES && info.len() == TYPES {
            for &at in link_types(&info) {
                let field = address.checked_add(at as u64);
                let field = field.ok_or(Errno(libc::EFAULT))?;
                let number = u32_at(&info, at);
                self.call.memory.write_u32(field, number)?;
            }
        }
        Ok(())
    }

    /// Returns the object that `BPF_TASK_FD_QUERY` is about: any process may have a descriptor of
    /// it.
    pub(super) fn queried(&self, attr: &[u8]) -> Result<Arc<Object>, Errno> {
        let (pid, fd) = (u32_at(attr, PID) as i32, u32_at(attr, FD) as i32);
        if u32_at(attr, FLAGS) != 0 {
            return Err(EINVAL);
        }
        if pid <= 0 || !Path::new(&format!("/proc/{pid}")).exists() {
            return Err(Errno(libc::ENOENT));
        }
        if let Some(object) = self.objects.find(pid, fd)? {
            return Ok(object);
        }
        if self.call.process() != Ok(pid) {
            self.kernel.connection.say_once(
                "BPF_TASK_FD_QUERY: in guests only what the tool itself has opened is known, not what other processes have",
            );
        }
        // The kernel's answer for anything but a perf event or a raw tracepoint.
        Err(Errno::ENOTSUPP)
    }
}

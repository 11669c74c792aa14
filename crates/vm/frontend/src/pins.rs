//! Pinned objects: names for objects of the guest's in the session's own BPF file system.
//!
//! The guest sees nothing of it. A pinned object is held by its handle like one that the tool has a
//! descriptor of, and goes, like all others, with the connection at the latest.

use std::sync::Arc;

use beeline_supervisor::attr::BpfAttr;
use beeline_supervisor::bpffs::{BpfFs, HasBpfFs};
use beeline_supervisor::{Answer, Mode, Reply};
use beeline_uapi::{Command, Errno};
use beeline_vm_protocol::info::Kind;
use beeline_vm_protocol::layout::{number_at, put_number};
use beeline_vm_protocol::messages::Bpf;

use crate::commands::EPROTO;
use crate::objects::Object;
use crate::{Guest, Handler};

const EINVAL: Errno = Errno(libc::EINVAL);
/// Offsets in `struct bpf_map_info` and `struct bpf_link_info` of the object's number.
const ID: usize = 4;

impl HasBpfFs for Guest {
    type Pinned = Arc<Object>;

    fn bpffs(&self) -> &BpfFs<Arc<Object>> {
        &self.bpffs
    }

    fn to_be_pinned(&self, tid: i32, fd: i32) -> Option<Arc<Object>> {
        let object = self.objects.find(tid, fd).ok()??;
        matches!(object.kind, Kind::Map | Kind::Program | Kind::Link).then_some(object)
    }
}

impl Handler<'_> {
    /// Carries out `BPF_OBJ_GET`.
    pub(super) fn obj_get(&self, attr: &BpfAttr) -> Answer {
        let (object, mode) = self.bpffs().pinned(attr)?;
        let object = match (object.kind, mode) {
            (Kind::Link, Mode::BOTH) => Arc::new(self.open_again(&object, 0)?),
            (Kind::Link, _) => return Err(EINVAL),
            (Kind::Map, mode) if mode != object.mode => {
                Arc::new(self.open_again(&object, attr.u32(12) & Mode::FLAGS)?)
            }
            _ => object,
        };
        Ok(Reply::Descriptor {
            file: self.guest.objects.add(object)?,
            cloexec: true,
        })
    }

    /// Opens another descriptor in the guest. For a map, it may give less access, or more if the
    /// pinned one gives less. For a link, it has the name that the kernel gives to all but the
    /// first.
    fn open_again(&self, object: &Object, flags: u32) -> Result<Object, Errno> {
        let (command, len) = match object.kind {
            Kind::Link => (Command::LINK_GET_FD_BY_ID, 4),
            _ => (Command::MAP_GET_FD_BY_ID, 12),
        };
        let mut attr = vec![0; len];
        let id = number_at(&self.info(object.handle, ID + 4)?, ID);
        put_number(&mut attr, 0, id);
        put_number(&mut attr, 8, flags);
        let done = self.ask_bpf(Bpf {
            command: command.0,
            attr,
            ..Bpf::default()
        })?;
        match (done.errno, done.handle) {
            (0, 0) => Err(EPROTO),
            (0, handle) => {
                let mut again = Object::new(&self.guest.connection, handle, object.kind);
                again.facts = object.facts;
                again.mode = Mode::of_flags(flags)?;
                again.is_first = false;
                Ok(again)
            }
            (errno, _) => Err(Errno(errno as i32)),
        }
    }
}

//! Pinned objects: names for objects of the guest's in the session's own BPF file system.
//!
//! The guest sees nothing of it. A pinned object is held by its handle like one that the tool has a
//! descriptor of, and goes, like all others, with the connection at the latest.

use std::mem::offset_of;
use std::sync::Arc;

use beeline_supervisor::attr::BpfAttr;
use beeline_supervisor::bpffs::{BpfFs, BpfFsCall, HasBpfFs};
use beeline_supervisor::{Answer, Call, Mode};
use beeline_uapi::attr::{GetId, ObjPin};
use beeline_uapi::fields::{put_u32, u32_at};
use beeline_uapi::info::{LinkInfo, MapInfo};
use beeline_uapi::{Command, Errno, offset_behind};
use beeline_vm_protocol::info::Kind;
use beeline_vm_protocol::messages::Bpf;

use super::descriptors::Descriptors;
use super::kernel::Kernel;
use crate::Guest;
use crate::objects::Object;

const EINVAL: Errno = Errno(libc::EINVAL);
/// The offset of the object's number in `struct bpf_map_info` and `struct bpf_link_info`.
const ID: usize = offset_of!(LinkInfo, id);
const _: () = assert!(offset_of!(MapInfo, id) == ID);

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

/// Gives objects names, and opens them by their names.
pub(super) struct Pins<'a> {
    bpffs: BpfFsCall<'a, Guest>,
    descriptors: Descriptors<'a>,
    kernel: Kernel<'a>,
}

impl<'a> Pins<'a> {
    pub(super) fn new(guest: &'a Guest, call: &'a Call<'a>) -> Self {
        Self {
            bpffs: BpfFsCall::new(guest, call),
            descriptors: Descriptors::new(guest, call),
            kernel: Kernel::new(guest, call),
        }
    }

    /// Answers `BPF_OBJ_PIN`.
    pub(super) fn pin(&self, attr: &BpfAttr) -> Answer {
        self.bpffs.obj_pin(attr)
    }

    /// Answers `BPF_OBJ_GET`.
    pub(super) fn get(&self, attr: &BpfAttr) -> Answer {
        let (object, mode) = self.bpffs.pinned(attr)?;
        let object = match (object.kind, mode) {
            (Kind::Link, Mode::BOTH) => Arc::new(self.open_again(&object, 0)?),
            (Kind::Link, _) => return Err(EINVAL),
            (Kind::Map, mode) if mode != object.mode => {
                Arc::new(self.open_again(&object, attr.view::<ObjPin>().file_flags & Mode::FLAGS)?)
            }
            _ => object,
        };
        self.descriptors.give(object)
    }

    /// Opens another descriptor in the guest. For a map, it may give less access, or more if the
    /// pinned one gives less. For a link, it has the name that the kernel gives to all but the
    /// first.
    fn open_again(&self, object: &Object, flags: u32) -> Result<Object, Errno> {
        let (command, len) = match object.kind {
            Kind::Link => (Command::LINK_GET_FD_BY_ID, offset_behind!(GetId, start_id)),
            _ => (Command::MAP_GET_FD_BY_ID, offset_behind!(GetId, open_flags)),
        };
        let mut attr = vec![0; len];
        let id = u32_at(&self.kernel.info(object.handle, ID + size_of::<u32>())?, ID);
        put_u32(&mut attr, offset_of!(GetId, start_id), id);
        put_u32(&mut attr, offset_of!(GetId, open_flags), flags);
        let open = Bpf {
            command: command.0,
            attr,
            ..Bpf::default()
        };
        let mut again = self.kernel.make(open, object.kind)?;
        again.facts = object.facts;
        again.mode = Mode::of_flags(flags)?;
        again.is_first = false;
        Ok(again)
    }
}

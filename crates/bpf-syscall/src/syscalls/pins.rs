//! `BPF_OBJ_PIN` and `BPF_OBJ_GET`.

use beeline_supervisor::attr::BpfAttr;
use beeline_supervisor::bpffs::BpfFsCall;
use beeline_supervisor::{Answer, Call, Mode};
use beeline_uapi::Errno;

use super::descriptors::NewDescriptors;
use crate::local::Local;
use crate::objects::Object;
use crate::pinned::Pinned;

/// Gives objects names in the BPF file system, and opens objects by name.
pub(super) struct Pins<'a> {
    bpffs: BpfFsCall<'a, Local>,
    descriptors: NewDescriptors<'a>,
}

impl<'a> Pins<'a> {
    pub(super) fn new(local: &'a Local, call: &'a Call<'a>) -> Self {
        Self {
            bpffs: BpfFsCall::new(local, call),
            descriptors: NewDescriptors::new(local, call),
        }
    }

    /// Carries out `BPF_OBJ_PIN`.
    pub(super) fn pin(&self, attr: &BpfAttr) -> Answer {
        self.bpffs.obj_pin(attr)
    }

    /// Carries out `BPF_OBJ_GET`.
    pub(super) fn get(&self, attr: &BpfAttr) -> Answer {
        let (Pinned { object, .. }, mode) = self.bpffs.pinned(attr)?;
        if matches!(object, Object::Link(_)) && mode != Mode::BOTH {
            return Err(Errno::EINVAL);
        }
        self.descriptors.another(object, mode)
    }
}

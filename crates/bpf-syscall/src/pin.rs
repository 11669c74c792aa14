//! `BPF_OBJ_GET`, and the objects that have names.

use std::sync::Arc;

use beeline_supervisor::attr::BpfAttr;
use beeline_supervisor::bpffs::{BpfFs, HasBpfFs};
use beeline_supervisor::{Answer, Mode};
use beeline_uapi::Errno;

use crate::elements::Use;
use crate::local::Handler;
use crate::local::Local;
use crate::objects::Object;

const EINVAL: Errno = Errno(libc::EINVAL);

/// An object of the session's with a name, which counts as a use of it.
#[derive(Clone)]
pub struct Pinned {
    pub(crate) object: Object,
    _use: Arc<Use>,
}

impl HasBpfFs for Local {
    type Pinned = Pinned;

    fn bpffs(&self) -> &BpfFs<Pinned> {
        &self.bpffs
    }

    fn to_be_pinned(&self, tid: i32, fd: i32) -> Option<Pinned> {
        let object = self.fds.find(tid, fd).ok()??;
        let can_be = matches!(
            object,
            Object::Map(_) | Object::Program(_) | Object::Link(_)
        );
        can_be.then(|| Pinned {
            _use: Arc::new(Use::of(&object)),
            object,
        })
    }
}

impl Handler<'_> {
    pub(crate) fn obj_get(&self, attr: &BpfAttr) -> Answer {
        let (Pinned { object, .. }, mode) = self.bpffs().pinned(attr)?;
        if matches!(object, Object::Link(_)) && mode != Mode::BOTH {
            return Err(EINVAL);
        }
        self.another_descriptor(object, mode)
    }
}

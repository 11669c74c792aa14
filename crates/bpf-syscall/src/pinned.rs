//! Objects with names in the session's BPF file system.

use std::sync::Arc;

use beeline_supervisor::bpffs::{BpfFs, HasBpfFs};

use crate::local::Local;
use crate::members::Use;
use crate::objects::Object;

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
        let object = self.fds.of(tid).find(fd).ok()??;
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

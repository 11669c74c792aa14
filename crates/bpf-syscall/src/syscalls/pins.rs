//! `BPF_OBJ_PIN` and `BPF_OBJ_GET`.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use beeline_kernel::pinned;
use beeline_runtime::backend::{Backend, MapSpec, SpecialFields};
use beeline_supervisor::attr::BpfAttr;
use beeline_supervisor::bpffs::BpfFsCall;
use beeline_supervisor::keys::errno;
use beeline_supervisor::{Answer, Call, Mode};
use beeline_uapi::{Errno, flags};

use super::descriptors::NewDescriptors;
use crate::host_kernel;
use crate::local::Local;
use crate::objects::{Held, Map, Object};
use crate::pinned::Pinned;

/// Gives objects names in the BPF file system, and opens objects by name.
pub(super) struct Pins<'a> {
    backend: &'a Arc<dyn Backend>,
    tid: i32,
    bpffs: BpfFsCall<'a, Local>,
    descriptors: NewDescriptors<'a>,
}

impl<'a> Pins<'a> {
    pub(super) fn new(local: &'a Local, call: &'a Call<'a>) -> Self {
        Self {
            backend: &local.backend,
            tid: call.tid,
            bpffs: BpfFsCall::new(local, call),
            descriptors: NewDescriptors::new(local, call),
        }
    }

    /// Carries out `BPF_OBJ_PIN`.
    pub(super) fn pin(&self, attr: &BpfAttr) -> Answer {
        self.bpffs.obj_pin(attr)
    }

    /// Carries out `BPF_OBJ_GET`: of an object of the session's, or else of a map that others have
    /// pinned in the kernel's BPF file system.
    pub(super) fn get(&self, attr: &BpfAttr) -> Answer {
        let (Pinned { object, .. }, mode) = match self.bpffs.pinned(attr) {
            Ok(found) => found,
            Err(why) => return self.get_from_kernel(attr, why),
        };
        if matches!(object, Object::Link(_)) && mode != Mode::BOTH {
            return Err(Errno::EINVAL);
        }
        self.descriptors.another(object, mode)
    }

    /// Opens a map of the kernel's that the thread may open itself. `why` is the error if there is
    /// none.
    fn get_from_kernel(&self, attr: &BpfAttr, why: Errno) -> Answer {
        let (path, access) = self.bpffs.path_to_get(attr)?;
        // As the thread sees it, which may have file systems of its own.
        let inside = path.strip_prefix("/").unwrap_or(&path);
        let seen = PathBuf::from(format!("/proc/{}/root", self.tid)).join(inside);
        if !seen.exists() || !host_kernel::has_our_rights(self.tid) {
            return Err(why);
        }
        let file = match pinned::open(&seen, access).map_err(errno) {
            // The kernel is not to be asked at all, as under a filter.
            Err(Errno::EPERM) => return Err(why),
            opened => opened?,
        };
        if !pinned::is_map(file.as_fd()) {
            return self.unsupported(&path, "a program or a link that is another's");
        }
        let (made_as, name) = pinned::map_spec(file.as_fd()).map_err(errno)?;
        let spec = MapSpec {
            map_type: made_as.map_type,
            key_size: made_as.key_size,
            value_size: made_as.value_size,
            max_entries: made_as.max_entries,
            flags: made_as.flags,
            map_extra: made_as.map_extra,
            name,
            inner: None,
            fields: SpecialFields::default(),
            value_type: None,
        };
        let mode = Mode::of_flags(access)?;
        let held = match self.backend.map_of_kernel(&in_mode(&spec, mode), file) {
            Err(Errno::EPERM) => return Err(why),
            Err(Errno::EOPNOTSUPP) => {
                let what = format!("a {} map that is another's", spec.map_type);
                return self.unsupported(&path, &what);
            }
            held => Held::new(self.backend, held?),
        };
        self.descriptors
            .first_in_mode(Object::Map(Arc::new(Map::new(held, spec))), mode)
    }

    fn unsupported(&self, path: &Path, what: &str) -> Answer {
        let what = format!("{}: {what}; only the kernel can use it", path.display());
        self.backend.unsupported(&what);
        Err(Errno::EOPNOTSUPP)
    }
}

/// Returns the map as programs of a tool may use it that opens it in this mode.
fn in_mode(spec: &MapSpec, mode: Mode) -> MapSpec {
    let only_read = if mode.write { 0 } else { flags::RDONLY_PROG };
    MapSpec {
        flags: spec.flags | only_read,
        ..spec.clone()
    }
}

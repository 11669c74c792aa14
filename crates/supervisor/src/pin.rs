//! `BPF_OBJ_PIN` and `BPF_OBJ_GET`: giving an object a name in the BPF file system, and finding it by that.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use beeline_uapi::Errno;

use crate::attr::BpfAttr;
use crate::bpffs::{BpfFs, HasBpfFs};
use crate::call::{Answer, Call};
use crate::elements::Use;
use crate::local::Door;
use crate::mode::Mode;
use crate::notify::Reply;
use crate::objects::Object;

const EINVAL: Errno = Errno(libc::EINVAL);
const ENOENT: Errno = Errno(libc::ENOENT);
/// The path is relative to the descriptor in the attribute.
const BPF_F_PATH_FD: u32 = 1 << 14;

/// Where a path leads.
enum Named {
    /// Into the BPF file system, to this path below its root.
    Inside(PathBuf),
    /// Elsewhere.
    Outside(PathBuf),
}

/// An object of the session's with a name, which is a use of it.
#[derive(Clone)]
pub(crate) struct Pinned {
    pub(crate) object: Object,
    _use: Arc<Use>,
}

impl HasBpfFs for Door {
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

impl Call<'_> {
    pub(crate) fn obj_get(&self, attr: &BpfAttr) -> Answer {
        let (Pinned { object, .. }, mode) = self.pinned(attr)?;
        if matches!(object, Object::Link(_)) && mode != Mode::BOTH {
            return Err(EINVAL);
        }
        self.another_descriptor(object, mode)
    }
}

impl<D: HasBpfFs> Call<'_, D> {
    /// The errors are in the kernel's order: the attribute, the object, the path.
    pub(crate) fn obj_pin(&self, attr: &BpfAttr) -> Answer {
        let flags = attr.ends_at(20)?.u32(12);
        if flags & !BPF_F_PATH_FD != 0 {
            return Err(EINVAL);
        }
        let path_at = relative_to(attr, flags)?;
        let object = self.door.to_be_pinned(self.tid, attr.i32(8));
        let object = object.ok_or(EINVAL)?;
        match self.named(path_at, attr.u64(0))? {
            Named::Inside(path) => self.door.bpffs().pin(&path, object)?,
            Named::Outside(path) => return Err(why_not_pinned(&path)),
        }
        Ok(Reply::Value(0))
    }

    /// What `BPF_OBJ_GET` names, and what may be done with it by the descriptor that it gives.
    pub(crate) fn pinned(&self, attr: &BpfAttr) -> Result<(D::Pinned, Mode), Errno> {
        let flags = attr.ends_at(20)?.u32(12);
        if attr.u32(8) != 0 {
            return Err(EINVAL);
        }
        let path_at = relative_to(attr, flags)?;
        let mode = Mode::of_flags(flags & !BPF_F_PATH_FD)?;
        match self.named(path_at, attr.u64(0))? {
            Named::Inside(path) => Ok((self.door.bpffs().get(&path)?, mode)),
            Named::Outside(path) => Err(why_not_found(&path)),
        }
    }

    fn named(&self, directory: i32, path: u64) -> Result<Named, Errno> {
        const LONGEST: usize = libc::PATH_MAX as usize;
        let path = self.memory.string(path, LONGEST)?;
        match path.len() {
            0 => return Err(ENOENT),
            LONGEST => return Err(Errno(libc::ENAMETOOLONG)),
            _ => {}
        }
        let path = self.absolute(directory, &path)?;
        let inside = self
            .door
            .bpffs()
            .inside(path.as_os_str().as_encoded_bytes());
        Ok(match inside {
            Some(inside) => Named::Inside(inside),
            None => Named::Outside(path),
        })
    }
}

/// The descriptor that the path is relative to, which is only allowed with its flag.
fn relative_to(attr: &BpfAttr, flags: u32) -> Result<i32, Errno> {
    let fd = attr.i32(16);
    match flags & BPF_F_PATH_FD {
        0 if fd != 0 => Err(EINVAL),
        0 => Ok(libc::AT_FDCWD),
        _ => Ok(fd),
    }
}

/// No BPF file system: EPERM, unless the path itself is wrong.
fn why_not_pinned(path: &Path) -> Errno {
    match (path.symlink_metadata(), path.parent().map(Path::metadata)) {
        (Ok(_), _) => Errno(libc::EEXIST),
        (Err(_), Some(Ok(parent))) if !parent.is_dir() => Errno(libc::ENOTDIR),
        (Err(_), Some(Ok(_))) => Errno(libc::EPERM),
        (Err(error), _) => crate::fds::errno(error),
    }
}

/// Other files are no objects: EACCES.
fn why_not_found(path: &Path) -> Errno {
    match path.metadata() {
        Ok(_) => Errno(libc::EACCES),
        Err(error) => crate::fds::errno(error),
    }
}

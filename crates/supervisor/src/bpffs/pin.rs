//! `BPF_OBJ_PIN` and `BPF_OBJ_GET`: give an object a name in the BPF file system, and find it by
//! that name.

use std::path::{Path, PathBuf};

use beeline_uapi::attr::ObjPin;
use beeline_uapi::{Errno, flags, offset_behind};

use super::{BpfFsCall, HasBpfFs};
use crate::attr::BpfAttr;
use crate::call::Answer;
use crate::keys::errno;
use crate::mode::Mode;
use crate::notify::Reply;

const EINVAL: Errno = Errno(libc::EINVAL);
const ENOENT: Errno = Errno(libc::ENOENT);

/// The destination of a path.
enum Named {
    /// A path into the BPF file system, relative to its root.
    Inside(PathBuf),
    /// A path that leads elsewhere.
    Outside(PathBuf),
}

impl<D: HasBpfFs> BpfFsCall<'_, D> {
    /// Carries out `BPF_OBJ_PIN`.
    ///
    /// The errors come in the kernel's order: the attribute, the object, the path.
    ///
    /// # Errors
    ///
    /// EINVAL for unknown flags or fields or a descriptor that cannot be pinned, EPERM for a path
    /// outside any BPF file system, EEXIST if the name is taken, and others of reading the path and
    /// of looking it up.
    pub fn obj_pin(&self, attr: &BpfAttr) -> Answer {
        let attr = parse(attr)?;
        if attr.file_flags & !flags::PATH_FD != 0 {
            return Err(EINVAL);
        }
        let path_at = relative_to(&attr)?;
        let object = self.owner.to_be_pinned(self.tid, attr.bpf_fd);
        let object = object.ok_or(EINVAL)?;
        match self.named(path_at, attr.pathname)? {
            Named::Inside(path) => self.owner.bpffs().pin(&path, object)?,
            Named::Outside(path) => return Err(why_not_pinned(&path)),
        }
        Ok(Reply::Value(0))
    }

    /// Returns the object that `BPF_OBJ_GET` names, and the mode of the descriptor that it returns.
    ///
    /// # Errors
    ///
    /// EINVAL for unknown flags or fields, ENOENT or ENAMETOOLONG for the path, EACCES for a file
    /// that is not an object, and others of reading the path and of looking it up.
    pub fn pinned(&self, attr: &BpfAttr) -> Result<(D::Pinned, Mode), Errno> {
        let attr = parse(attr)?;
        if attr.bpf_fd != 0 {
            return Err(EINVAL);
        }
        let path_at = relative_to(&attr)?;
        let mode = Mode::of_flags(attr.file_flags & !flags::PATH_FD)?;
        match self.named(path_at, attr.pathname)? {
            Named::Inside(path) => Ok((self.owner.bpffs().get(&path)?, mode)),
            Named::Outside(path) => Err(why_not_found(&path)),
        }
    }

    /// Returns the path that `BPF_OBJ_GET` names, as the tool sees it, and the flags that it asks
    /// with.
    ///
    /// # Errors
    ///
    /// Those of [`Self::pinned`] that are not about the object.
    pub fn path_to_get(&self, attr: &BpfAttr) -> Result<(PathBuf, u32), Errno> {
        let attr = parse(attr)?;
        let path = self.path(relative_to(&attr)?, attr.pathname)?;
        Ok((path, attr.file_flags & !flags::PATH_FD))
    }

    fn path(&self, directory: i32, path: u64) -> Result<PathBuf, Errno> {
        const LONGEST: usize = libc::PATH_MAX as usize;
        let path = self.memory.string(path, LONGEST)?;
        match path.len() {
            0 => Err(ENOENT),
            LONGEST => Err(Errno(libc::ENAMETOOLONG)),
            _ => self.absolute(directory, &path),
        }
    }

    fn named(&self, directory: i32, path: u64) -> Result<Named, Errno> {
        let path = self.path(directory, path)?;
        let inside = self
            .owner
            .bpffs()
            .inside(path.as_os_str().as_encoded_bytes());
        Ok(match inside {
            Some(inside) => Named::Inside(inside),
            None => Named::Outside(path),
        })
    }
}

fn parse(attr: &BpfAttr) -> Result<ObjPin, Errno> {
    Ok(attr.ends_at(offset_behind!(ObjPin, path_fd))?.view())
}

/// Returns the descriptor that the path is relative to, which is only allowed with its flag.
fn relative_to(attr: &ObjPin) -> Result<i32, Errno> {
    match attr.file_flags & flags::PATH_FD {
        0 if attr.path_fd != 0 => Err(EINVAL),
        0 => Ok(libc::AT_FDCWD),
        _ => Ok(attr.path_fd),
    }
}

/// Returns the error for a path outside any BPF file system: EPERM, unless the path itself is
/// wrong.
fn why_not_pinned(path: &Path) -> Errno {
    match (path.symlink_metadata(), path.parent().map(Path::metadata)) {
        (Ok(_), _) => Errno(libc::EEXIST),
        (Err(_), Some(Ok(parent))) if !parent.is_dir() => Errno(libc::ENOTDIR),
        (Err(_), Some(Ok(_))) => Errno(libc::EPERM),
        (Err(error), _) => errno(error),
    }
}

/// Returns the error for a file that is not an object: EACCES.
fn why_not_found(path: &Path) -> Errno {
    match path.metadata() {
        Ok(_) => Errno(libc::EACCES),
        Err(error) => errno(error),
    }
}

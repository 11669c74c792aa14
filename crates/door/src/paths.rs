//! System calls that name a file: those under `/sys/fs/bpf` are answered from the session's own BPF file system
//! ([`crate::bpffs`]), those to tracepoints on system calls from the session's own tracefs where the kernel's cannot be read
//! ([`crate::tracefs`]), and the links in `/proc/PID/fd` say what the tool's descriptors are to it. The kernel makes all others.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use beeline_runtime::backend::Errno;
use rustix::fs::{AtFlags, Mode, RenameFlags};

use crate::bpffs::{Place, errno};
use crate::call::{Answer, Call};
use crate::notify::Reply;
use crate::objects::Object;

/// The directory of calls that have no argument for it.
pub(crate) const HERE: u64 = libc::AT_FDCWD as u64;

// Of `linux/magic.h`.
const BPF_FS_MAGIC: u64 = 0xcafe_4a11;
const TRACE_FS_MAGIC: u64 = 0x7472_6163;

const EXDEV: Errno = Errno(libc::EXDEV);
const EINVAL: Errno = Errno(libc::EINVAL);

impl Call<'_> {
    /// The path at an address, below the root of the BPF file system; `None` for all paths that are not in it. What
    /// is relative to a directory there is the kernel's business, since that directory is a real one.
    pub(crate) fn inside(&self, directory: u64, path: u64) -> Option<PathBuf> {
        let path = self.memory.string(path, libc::PATH_MAX as usize).ok()?;
        self.inside_of(directory, &path)
    }

    /// As [`Self::inside`], of a path that has been read.
    pub(crate) fn inside_of(&self, directory: u64, path: &[u8]) -> Option<PathBuf> {
        let directory = directory as i32;
        if path.starts_with(b"/") {
            return self.door.bpffs.inside(path);
        }
        if path.is_empty() || directory != libc::AT_FDCWD {
            return None;
        }
        let path = self.absolute(directory, path).ok()?;
        self.door.bpffs.inside(path.as_os_str().as_bytes())
    }

    /// Does a path lead to nothing that any handler looks at? What cannot be read leads nowhere.
    pub(crate) fn is_elsewhere(&self, directory: u64, path: u64) -> bool {
        const ANSWERED: [&[u8]; 2] = [b"/sys/", b"/proc/"];
        let Ok(path) = self.memory.string(path, libc::PATH_MAX as usize) else {
            return true;
        };
        !ANSWERED.iter().any(|start| path.starts_with(start))
            && self.inside_of(directory, &path).is_none()
    }

    /// Where a path leads that is answered here, in the BPF file system or in tracefs; `None` for all others.
    fn served(&self, directory: u64, path: u64) -> Option<Result<Place, Errno>> {
        let path = self.memory.string(path, libc::PATH_MAX as usize).ok()?;
        match self.inside_of(directory, &path) {
            Some(inside) => Some(self.place(&inside)),
            None => self.door.tracefs.place(&path).map(Ok),
        }
    }

    fn place(&self, inside: &Path) -> Result<Place, Errno> {
        self.door.bpffs.place(inside)
    }

    /// `mkdir(path, mode)`.
    pub(crate) fn mkdir(&self, at: u64, path: u64, mode: u64) -> Answer {
        let Some(inside) = self.inside(at, path) else {
            return Ok(Reply::Continue);
        };
        let place = self.place(&inside)?;
        let mode = Mode::from_bits_truncate(mode as u32);
        rustix::fs::mkdirat(&place.directory, &place.name, mode).map_err(|error| match error {
            // The root's name here.
            rustix::io::Errno::INVAL => Errno(libc::EEXIST),
            error => errno(error),
        })?;
        Ok(Reply::Value(0))
    }

    /// `unlink(path)` and `rmdir(path)`, also relative to a descriptor of a directory there: the object is to go at once.
    pub(crate) fn unlink(&self, at: u64, path: u64, flags: u64) -> Answer {
        let path = self.memory.string(path, libc::PATH_MAX as usize);
        let path = path.and_then(|path| match path.is_empty() {
            true => Err(Errno(libc::ENOENT)),
            false => self.absolute(at as i32, &path),
        });
        let inside = |path: PathBuf| self.door.bpffs.inside(path.as_os_str().as_bytes());
        let Some(inside) = path.ok().and_then(inside) else {
            return Ok(Reply::Continue);
        };
        let flags = AtFlags::from_bits_truncate(flags as u32);
        self.door.bpffs.unlink(&inside, flags)?;
        Ok(Reply::Value(0))
    }

    /// `rename(from, to)`.
    pub(crate) fn rename(&self, from: (u64, u64), to: (u64, u64), flags: u64) -> Answer {
        match (self.inside(from.0, from.1), self.inside(to.0, to.1)) {
            (None, None) => Ok(Reply::Continue),
            (Some(from), Some(to)) => {
                let flags = RenameFlags::from_bits_truncate(flags as u32);
                self.door.bpffs.rename(&from, &to, flags)?;
                Ok(Reply::Value(0))
            }
            _ => Err(EXDEV),
        }
    }

    /// `access(path, mode)`.
    pub(crate) fn access(&self, at: u64, path: u64, mode: u64) -> Answer {
        let Some(place) = self.served(at, path) else {
            return Ok(Reply::Continue);
        };
        let place = place?;
        let mode = rustix::fs::Access::from_bits(mode as u32).ok_or(EINVAL)?;
        rustix::fs::accessat(&place.directory, &place.name, mode, AtFlags::empty())
            .map_err(errno)?;
        Ok(Reply::Value(0))
    }

    /// `stat(path, buffer)`. There are no symbolic links to follow.
    pub(crate) fn stat(&self, at: u64, path: u64, buffer: u64) -> Answer {
        let Some(place) = self.served(at, path) else {
            return Ok(Reply::Continue);
        };
        let place = place?;
        let stat = rustix::fs::statat(&place.directory, &place.name, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(errno)?;
        self.write_struct(buffer, &stat)
    }

    /// `statx(.., path, flags, mask, buffer)`.
    pub(crate) fn statx(&self, at: u64, path: u64, mask: u64, buffer: u64) -> Answer {
        let Some(place) = self.served(at, path) else {
            return Ok(Reply::Continue);
        };
        let place = place?;
        let mask = rustix::fs::StatxFlags::from_bits_retain(mask as u32);
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        let statx = rustix::fs::statx(&place.directory, &place.name, flags, mask).map_err(errno)?;
        self.write_struct(buffer, &statx)
    }

    /// `getxattr(path, name, ..)` and `listxattr(path, ..)`: files there have no attributes.
    pub(crate) fn xattr(&self, path: u64, answer: Result<i64, Errno>) -> Answer {
        let Some(inside) = self.inside(HERE, path) else {
            return Ok(Reply::Continue);
        };
        let place = self.place(&inside)?;
        rustix::fs::statat(&place.directory, &place.name, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(errno)?;
        answer.map(Reply::Value)
    }

    /// `statfs(path, buffer)`: how tools know a BPF file system, and tracefs.
    pub(crate) fn statfs(&self, path: u64, buffer: u64) -> Answer {
        let Some(inside) = self.inside(HERE, path) else {
            let path = self.memory.string(path, libc::PATH_MAX as usize);
            let place = path.ok().and_then(|path| self.door.tracefs.place(&path));
            return match place {
                Some(_) => self.write_statfs(buffer, TRACE_FS_MAGIC),
                None => Ok(Reply::Continue),
            };
        };
        let place = self.place(&inside)?;
        rustix::fs::statat(&place.directory, &place.name, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(errno)?;
        self.write_statfs(buffer, BPF_FS_MAGIC)
    }

    /// `fstatfs(descriptor, buffer)` of a directory there.
    pub(crate) fn fstatfs(&self, fd: u64, buffer: u64) -> Answer {
        let link = std::fs::read_link(format!("/proc/{}/fd/{}", self.tid, fd as i32));
        let inside =
            link.is_ok_and(|to| self.door.bpffs.inside(to.as_os_str().as_bytes()).is_some());
        if inside {
            self.write_statfs(buffer, BPF_FS_MAGIC)
        } else {
            Ok(Reply::Continue)
        }
    }

    /// `readlink(path, buffer, size)` of the tool's own descriptors: what tools know an object's kind by.
    pub(crate) fn readlink(&self, path: u64, buffer: u64, size: u64) -> Answer {
        const LONGEST: usize = 64;
        let path = self.memory.string(path, LONGEST).unwrap_or_default();
        let fd = self.own_descriptor(&path, "fd");
        let object = fd.and_then(|fd| self.door.fds.find(self.tid, fd).ok()?);
        let Some(object) = object else {
            return Ok(Reply::Continue);
        };
        let kind = match object {
            Object::Map(_) => "anon_inode:bpf-map",
            Object::Program(_) => "anon_inode:bpf-prog",
            Object::Link(_) => "anon_inode:bpf_link",
            Object::Btf(_) => "anon_inode:btf",
            Object::Event(_) | Object::Ring(_) => "anon_inode:[perf_event]",
        };
        self.write_link(kind, buffer, size)
    }
}

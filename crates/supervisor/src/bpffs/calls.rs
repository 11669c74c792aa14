//! System calls that name a path in the BPF file system.
//!
//! Calls that need no owner-specific answer are answered here as a whole; the others are answered
//! by the [`Place`] that a path leads to.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, Mode, RenameFlags, StatxFlags};

use beeline_uapi::Errno;

use super::{BpfFsCall, HasBpfFs, Place, errno};
use crate::arch;
use crate::call::{Answer, Call, HERE};
use crate::notify::Reply;

const EXDEV: Errno = Errno(libc::EXDEV);
const EINVAL: Errno = Errno(libc::EINVAL);

impl<D: HasBpfFs> BpfFsCall<'_, D> {
    /// Returns the path at an address, below the root of the BPF file system; `None` for all paths
    /// that are not in it.
    pub fn inside(&self, directory: u64, path: u64) -> Option<PathBuf> {
        let path = self.memory.string(path, libc::PATH_MAX as usize).ok()?;
        self.inside_of(directory, &path)
    }

    /// Like [`Self::inside`], for a path that has been read already.
    pub fn inside_of(&self, directory: u64, path: &[u8]) -> Option<PathBuf> {
        if path.is_empty() {
            return None;
        }
        let path = self.absolute(directory as i32, path).ok()?;
        self.owner.bpffs().inside(path.as_os_str().as_bytes())
    }

    /// Answers a call that changes the BPF file system or asks for facts that are the same for all
    /// of it; `None` for all other calls.
    pub fn answer(&self, nr: i64) -> Option<Answer> {
        let [a, b, c, d, e, _] = self.args;
        Some(match nr {
            libc::SYS_mkdirat => self.mkdir(a, b, c),
            arch::MKDIR => self.mkdir(HERE, a, b),
            libc::SYS_unlinkat => self.unlink(a, b, c),
            arch::UNLINK => self.unlink(HERE, a, 0),
            arch::RMDIR => self.unlink(HERE, a, libc::AT_REMOVEDIR as u64),
            arch::RENAME => self.rename((HERE, a), (HERE, b), 0),
            libc::SYS_renameat => self.rename((a, b), (c, d), 0),
            libc::SYS_renameat2 => self.rename((a, b), (c, d), e),
            libc::SYS_getxattr | libc::SYS_lgetxattr => self.xattr(a, Err(Errno(libc::EOPNOTSUPP))),
            libc::SYS_listxattr | libc::SYS_llistxattr => self.xattr(a, Ok(0)),
            libc::SYS_fstatfs => self.fstatfs(a, b),
            libc::SYS_chdir => self.chdir(a),
            libc::SYS_fchdir => self.enter(&format!("/proc/{}/fd/{}", self.tid, a as i32)),
            _ => return None,
        })
    }

    /// Lets the kernel answer `chdir(path)`.
    fn chdir(&self, path: u64) -> Answer {
        let path = self.memory.string(path, libc::PATH_MAX as usize);
        let Ok(path) = path.and_then(|path| self.absolute(HERE as i32, &path)) else {
            return Ok(Reply::Continue);
        };
        let path = path.strip_prefix("/").unwrap_or(&path);
        self.enter(&format!("/proc/{}/root/{}", self.tid, path.display()))
    }

    /// Notes a directory that a process goes to; the path may have symbolic links. A name that is not
    /// UTF-8 is none of the file system's.
    fn enter(&self, directory: &str) -> Answer {
        if let Ok(real) = std::fs::canonicalize(directory) {
            self.owner.bpffs().enter(&real);
        }
        Ok(Reply::Continue)
    }

    /// Answers `mkdir(path, mode)`.
    fn mkdir(&self, at: u64, path: u64, mode: u64) -> Answer {
        let Some(inside) = self.inside(at, path) else {
            return Ok(Reply::Continue);
        };
        let place = self.owner.bpffs().place(&inside)?;
        let mode = Mode::from_bits_truncate(mode as u32);
        self.owner.bpffs().note_use();
        rustix::fs::mkdirat(&place.directory, &place.name, mode).map_err(|error| match error {
            // This is the root's name here.
            rustix::io::Errno::INVAL => Errno(libc::EEXIST),
            error => errno(error),
        })?;
        Ok(Reply::Value(0))
    }

    /// Answers `unlink(path)` and `rmdir(path)`, also relative to a directory's descriptor there:
    /// the object must go at once.
    fn unlink(&self, at: u64, path: u64, flags: u64) -> Answer {
        let path = self.memory.string(path, libc::PATH_MAX as usize);
        let path = path.and_then(|path| match path.is_empty() {
            true => Err(Errno(libc::ENOENT)),
            false => self.absolute(at as i32, &path),
        });
        let inside = |path: PathBuf| self.owner.bpffs().inside(path.as_os_str().as_bytes());
        let Some(inside) = path.ok().and_then(inside) else {
            return Ok(Reply::Continue);
        };
        let flags = AtFlags::from_bits_truncate(flags as u32);
        self.owner.bpffs().unlink(&inside, flags)?;
        Ok(Reply::Value(0))
    }

    /// Answers `rename(from, to)`.
    fn rename(&self, from: (u64, u64), to: (u64, u64), flags: u64) -> Answer {
        match (self.inside(from.0, from.1), self.inside(to.0, to.1)) {
            (None, None) => Ok(Reply::Continue),
            (Some(from), Some(to)) => {
                let flags = RenameFlags::from_bits_truncate(flags as u32);
                self.owner.bpffs().rename(&from, &to, flags)?;
                Ok(Reply::Value(0))
            }
            _ => Err(EXDEV),
        }
    }

    /// Answers `getxattr(path, name, ..)` and `listxattr(path, ..)`: files in the BPF file system
    /// have no attributes.
    fn xattr(&self, path: u64, answer: Result<i64, Errno>) -> Answer {
        let Some(inside) = self.inside(HERE, path) else {
            return Ok(Reply::Continue);
        };
        let place = self.owner.bpffs().place(&inside)?;
        rustix::fs::statat(&place.directory, &place.name, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(errno)?;
        answer.map(Reply::Value)
    }

    /// Answers `fstatfs(descriptor, buffer)` on a directory there.
    fn fstatfs(&self, fd: u64, buffer: u64) -> Answer {
        let link = std::fs::read_link(format!("/proc/{}/fd/{}", self.tid, fd as i32));
        let inside = link.is_ok_and(|to| {
            self.owner
                .bpffs()
                .inside(to.as_os_str().as_bytes())
                .is_some()
        });
        if inside {
            self.write_statfs(buffer, libc::BPF_FS_MAGIC as u64)
        } else {
            Ok(Reply::Continue)
        }
    }

    /// Answers `statfs(path, buffer)`, by which tools recognise a BPF file system.
    ///
    /// # Errors
    ///
    /// Those of [`BpfFs::place`](super::BpfFs::place), the kernel's of fstatat(2), and those of
    /// [`Call::write_statfs`].
    pub fn statfs_inside(&self, inside: &Path, buffer: u64) -> Answer {
        let place = self.owner.bpffs().place(inside)?;
        rustix::fs::statat(&place.directory, &place.name, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(errno)?;
        self.write_statfs(buffer, libc::BPF_FS_MAGIC as u64)
    }
}

impl Call<'_> {
    /// Answers `access(path, mode)`.
    ///
    /// # Errors
    ///
    /// EINVAL for an unknown mode, and the kernel's of faccessat(2).
    pub fn access_place(&self, place: &Place, mode: u64) -> Answer {
        let mode = Access::from_bits(mode as u32).ok_or(EINVAL)?;
        rustix::fs::accessat(&place.directory, &place.name, mode, AtFlags::empty())
            .map_err(errno)?;
        Ok(Reply::Value(0))
    }

    /// Answers `stat(path, buffer)`. There are no symbolic links to follow.
    ///
    /// # Errors
    ///
    /// The kernel's of fstatat(2), and those of [`Self::write_struct`].
    pub fn stat_place(&self, place: &Place, buffer: u64) -> Answer {
        let stat = rustix::fs::statat(&place.directory, &place.name, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(errno)?;
        self.write_struct(buffer, &stat)
    }

    /// Answers `statx(.., path, flags, mask, buffer)`.
    ///
    /// # Errors
    ///
    /// The kernel's of statx(2), and those of [`Self::write_struct`].
    pub fn statx_place(&self, place: &Place, mask: u64, buffer: u64) -> Answer {
        let mask = StatxFlags::from_bits_retain(mask as u32);
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        let statx = rustix::fs::statx(&place.directory, &place.name, flags, mask).map_err(errno)?;
        self.write_struct(buffer, &statx)
    }
}

//! The kernel's file systems, mounted anywhere or not at all.
//!
//! A file system that is not mounted is mounted without a place, so that only this process's
//! descriptor leads to it. So a guest is left as it was, and needs no mount namespace.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};

/// A file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Root {
    /// `/proc`.
    Proc,
    /// `/sys`.
    Sys,
    /// `/sys/kernel/tracing`.
    Tracing,
    /// `/sys/kernel/debug`.
    Debug,
    /// `/sys/kernel/security`.
    Security,
    /// `/boot`, which is the guest's own.
    Boot,
}

impl Root {
    /// Returns its customary place, its name and its magic number.
    fn facts(self) -> (&'static str, Option<(&'static CStr, u64)>) {
        match self {
            Root::Proc => ("/proc", Some((c"proc", libc::PROC_SUPER_MAGIC as u64))),
            Root::Sys => ("/sys", Some((c"sysfs", libc::SYSFS_MAGIC as u64))),
            Root::Tracing => (
                "/sys/kernel/tracing",
                Some((c"tracefs", libc::TRACEFS_MAGIC as u64)),
            ),
            Root::Debug => (
                "/sys/kernel/debug",
                Some((c"debugfs", libc::DEBUGFS_MAGIC as u64)),
            ),
            Root::Security => (
                "/sys/kernel/security",
                Some((c"securityfs", libc::SECURITYFS_MAGIC as u64)),
            ),
            Root::Boot => ("/boot", None),
        }
    }

    /// Returns its directory.
    ///
    /// # Errors
    ///
    /// It is not there and cannot be mounted.
    fn directory(self) -> Result<BorrowedFd<'static>, Errno> {
        static OPENED: [OnceLock<Result<OwnedFd, Errno>>; 6] = [const { OnceLock::new() }; 6];
        let opened = OPENED[self as usize].get_or_init(|| self.open_directory());
        opened.as_ref().map(OwnedFd::as_fd).map_err(|errno| *errno)
    }

    fn open_directory(self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let (path, file_system) = self.facts();
        let mounted = rustix::fs::open(path, flags, Mode::empty());
        let Some((name, magic)) = file_system else {
            return mounted;
        };
        if let Ok(mounted) = mounted
            && rustix::fs::fstatfs(&mounted)?.f_type as u64 == magic
        {
            return Ok(mounted);
        }
        let context = rustix::mount::fsopen(name, FsOpenFlags::FSOPEN_CLOEXEC)?;
        rustix::mount::fsconfig_create(context.as_fd())?;
        let attributes = MountAttrFlags::MOUNT_ATTR_NOEXEC | MountAttrFlags::MOUNT_ATTR_NODEV;
        rustix::mount::fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)
    }

    /// Opens a file below it, and nothing else: no step leads out of it, over a symbolic link, or
    /// into another file system.
    ///
    /// # Errors
    ///
    /// The kernel's, among them `EXDEV` and `ELOOP` for a step that leads elsewhere.
    pub fn open(self, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        beneath(self.directory()?, path, flags, ResolveFlags::NO_SYMLINKS)
    }

    /// The same, if a first part of the path may be or hold symbolic links.
    ///
    /// # Errors
    ///
    /// Those of [`Self::open`].
    pub fn open_behind(self, link: &str, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        let directory = beneath(
            self.directory()?,
            link,
            OFlags::PATH | OFlags::DIRECTORY,
            ResolveFlags::empty(),
        )?;
        beneath(directory.as_fd(), path, flags, ResolveFlags::NO_SYMLINKS)
    }

    /// Opens what a link of the kernel's own leads to, wherever that is: the path is a file system's
    /// of the kernel, and the last part is such a link.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn open_linked(self, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        let flags = flags | OFlags::CLOEXEC | opening(flags);
        rustix::fs::openat(self.directory()?, path, flags, Mode::empty())
    }

    /// Returns where a link of the kernel's own leads, in the kernel's words.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn read_link(self, path: &str) -> Result<String, Errno> {
        let target = rustix::fs::readlinkat(self.directory()?, path, Vec::new())?;
        Ok(target.to_string_lossy().into_owned())
    }

    /// Reads a small file's content.
    ///
    /// # Errors
    ///
    /// Those of [`Self::read_all`].
    pub fn read(self, path: &str) -> Result<String, Errno> {
        let bytes = self.read_all(path)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Reads a file's content, which should not be large.
    ///
    /// # Errors
    ///
    /// Those of [`Self::open`], and of reading.
    pub fn read_all(self, path: &str) -> Result<Vec<u8>, Errno> {
        const STEP: usize = 64 << 10;
        let file = self.open(path, OFlags::RDONLY)?;
        let mut bytes = Vec::new();
        loop {
            bytes.reserve(STEP);
            if rustix::io::read(&file, rustix::buffer::spare_capacity(&mut bytes))? == 0 {
                return Ok(bytes);
            }
        }
    }
}

fn beneath(
    directory: BorrowedFd<'_>,
    path: &str,
    flags: OFlags,
    also: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    let path = if path.is_empty() { "." } else { path };
    let how = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV | also;
    rustix::fs::openat2(
        directory,
        path,
        flags | OFlags::CLOEXEC | opening(flags),
        Mode::empty(),
        how,
    )
}

/// Returns further flags for opening a file. One that is only looked at is not opened, and takes none.
fn opening(flags: OFlags) -> OFlags {
    match flags.contains(OFlags::PATH) {
        true => OFlags::empty(),
        false => OFlags::NOCTTY | OFlags::NONBLOCK,
    }
}

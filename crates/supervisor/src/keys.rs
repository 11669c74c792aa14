//! Files behind descriptors, by device and inode.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use beeline_uapi::Errno;
use rustix::fs::{AtFlags, CWD, StatxFlags, makedev, statx};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

const EBADF: Errno = Errno(libc::EBADF);

/// A file's device and inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key {
    /// `st_dev`.
    pub device: u64,
    /// `st_ino`.
    pub inode: u64,
}

/// The file behind a descriptor of a thread; EBADF if it has no such descriptor.
pub fn key_of_descriptor(tid: i32, fd: i32) -> Result<Key, Errno> {
    if fd < 0 {
        return Err(EBADF);
    }
    // Without asking a file system behind a network that may not answer: none of ours is on
    // one.
    let path = format!("/proc/{tid}/fd/{fd}");
    let file = statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::INO).map_err(|_| EBADF)?;
    let device = makedev(file.stx_dev_major, file.stx_dev_minor);
    Ok(Key {
        device,
        inode: file.stx_ino,
    })
}

/// Our end and the tool's.
pub fn anchor() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?)
}

/// The key of an open file. Errors are `fstat`'s.
pub fn key_of(file: impl AsFd) -> io::Result<Key> {
    let stat = rustix::fs::fstat(file)?;
    Ok(Key {
        device: stat.st_dev,
        inode: stat.st_ino,
    })
}

/// The number that tells one eventfd from another, as all are the same file.
pub fn eventfd_number(process: &str, fd: i32) -> Option<u32> {
    let text = std::fs::read_to_string(format!("/proc/{process}/fdinfo/{fd}")).ok()?;
    let mut lines = text.lines();
    let number = lines.find_map(|line| line.strip_prefix("eventfd-id:"))?;
    number.trim().parse().ok()
}

/// The kernel's number of an I/O error; EIO if it has none.
pub fn errno(error: io::Error) -> Errno {
    Errno(error.raw_os_error().unwrap_or(libc::EIO))
}

/// An empty or filled memory file that behaves like a small file of sysfs or tracefs.
pub fn memory_file(name: &str, content: &[u8]) -> Result<OwnedFd, Errno> {
    use std::io::{Seek, Write};
    let fd = rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC)
        .map_err(|error| Errno(error.raw_os_error()))?;
    let mut file = File::from(fd);
    file.write_all(content)
        .and_then(|()| file.rewind())
        .map_err(errno)?;
    Ok(file.into())
}

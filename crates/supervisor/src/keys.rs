//! Identifies the files behind descriptors by device and inode.

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

/// Returns the key of the file behind a thread's descriptor.
///
/// # Errors
/// EBADF if the thread has no such descriptor.
pub fn key_of_descriptor(tid: i32, fd: i32) -> Result<Key, Errno> {
    if fd < 0 {
        return Err(EBADF);
    }
    // Does not ask a network file system, which may not answer: none of our files are on one.
    let path = format!("/proc/{tid}/fd/{fd}");
    let file = statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::INO).map_err(|_| EBADF)?;
    let device = makedev(file.stx_dev_major, file.stx_dev_minor);
    Ok(Key {
        device,
        inode: file.stx_ino,
    })
}

/// Creates an anchor: our end and the tool's.
///
/// # Errors
///
/// The system's error of socketpair(2).
pub fn anchor() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?)
}

/// Returns the key of an open file.
///
/// # Errors
/// Those of `fstat`.
pub fn key_of(file: impl AsFd) -> io::Result<Key> {
    let stat = rustix::fs::fstat(file)?;
    Ok(Key {
        device: stat.st_dev,
        inode: stat.st_ino,
    })
}

/// A file without an inode of its own, known by the number that the kernel gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Anonymous {
    /// An eventfd.
    Eventfd(u32),
    /// A map of the kernel's.
    KernelMap(u32),
    /// A program of the kernel's.
    KernelProgram(u32),
}

/// Returns the number of such a file behind a process's descriptor; `None` for any other file.
pub fn anonymous(process: &str, fd: i32) -> Option<Anonymous> {
    let text = std::fs::read_to_string(format!("/proc/{process}/fdinfo/{fd}")).ok()?;
    let number = |name| {
        let mut lines = text.lines();
        let number = lines.find_map(|line| line.strip_prefix(name))?;
        number.trim().parse().ok()
    };
    let eventfd = number("eventfd-id:").map(Anonymous::Eventfd);
    let map = || number("map_id:").map(Anonymous::KernelMap);
    let program = || number("prog_id:").map(Anonymous::KernelProgram);
    eventfd.or_else(map).or_else(program)
}

/// Returns the kernel's number for an I/O error; EIO if it has none.
pub fn errno(error: io::Error) -> Errno {
    Errno(error.raw_os_error().unwrap_or(libc::EIO))
}

/// Creates a memory file, empty or filled, that behaves like a small file of sysfs or tracefs.
///
/// # Errors
///
/// The kernel's of memfd_create(2) and write(2).
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

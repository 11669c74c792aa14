//! The system calls that no library has, all of them with buffers of this process's own.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use beeline_uapi::Command;
use beeline_uapi::fields::{put_u32, put_u64};
use beeline_uapi::perf::PERF_FLAG_FD_CLOEXEC;
use beeline_vm_protocol::layout::ATTR_BYTES;
use rustix::io::Errno;
use zerocopy::{Immutable, IntoBytes};

/// `union bpf_attr`, with the buffers that its pointers lead to.
#[derive(Debug, Clone)]
pub struct Attr {
    words: [u64; ATTR_BYTES / 8],
}

impl Attr {
    /// Creates an attribute that starts with the given bytes; the others are 0.
    pub fn new(bytes: &[u8]) -> Self {
        let mut attr = Self::zeroed();
        let len = bytes.len().min(ATTR_BYTES);
        attr.bytes_mut()[..len].copy_from_slice(&bytes[..len]);
        attr
    }

    /// Creates an attribute that starts with the structure of a command.
    pub fn of<T: IntoBytes + Immutable>(of: &T) -> Self {
        Self::new(of.as_bytes())
    }

    /// Returns the attribute as the kernel sees it.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: these are the words of this very array, borrowed for as long; any bytes are
        // valid.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast(), ATTR_BYTES) }
    }

    /// Likewise.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: these are the words of this very array, borrowed exclusively for as long; any
        // bytes are valid.
        unsafe { std::slice::from_raw_parts_mut(self.words.as_mut_ptr().cast(), ATTR_BYTES) }
    }

    /// Creates an attribute with all bytes 0.
    pub const fn zeroed() -> Self {
        Self {
            words: [0; ATTR_BYTES / 8],
        }
    }

    /// Sets a field of 4 bytes.
    pub fn set(&mut self, at: usize, value: u32) {
        put_u32(self.bytes_mut(), at, value);
    }

    /// Sets a field of 4 bytes.
    #[must_use]
    pub fn with(mut self, at: usize, value: u32) -> Self {
        self.set(at, value);
        self
    }

    /// Sets a field of 4 bytes to a descriptor.
    #[must_use]
    pub fn with_fd(self, at: usize, fd: BorrowedFd<'_>) -> Self {
        self.with(at, fd.as_raw_fd() as u32)
    }

    /// Makes a field of 8 bytes point to a buffer.
    pub fn point(&mut self, at: usize, buffer: &mut [u8]) {
        let address = buffer.as_mut_ptr().expose_provenance() as u64;
        put_u64(self.bytes_mut(), at, address);
    }
}

/// `bpf(2)`. Returns its result.
///
/// # Errors
///
/// The kernel's.
///
/// # Safety
///
/// Every field that the command takes for an address is 0 or leads to as many bytes as the command
/// reads and writes there, which no other code has borrowed.
pub unsafe fn bpf(command: Command, attr: &mut Attr, size: usize) -> Result<u64, Errno> {
    let size = size.min(ATTR_BYTES);
    // SAFETY: the attribute is live and at least that long; the caller promises the same of
    // everything that it leads to.
    let returned = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            libc::c_long::from(command.0),
            attr.words.as_mut_ptr(),
            size,
        )
    };
    result(returned)
}

/// `perf_event_open(2)`, with the event closed on exec.
///
/// # Errors
///
/// The kernel's.
///
/// # Safety
///
/// Fields of `attr` that the event's type takes for addresses lead to terminated texts.
pub unsafe fn perf_event_open(
    attr: &mut [u8],
    pid: i32,
    cpu: i32,
    group: Option<BorrowedFd<'_>>,
    flags: u64,
) -> Result<OwnedFd, Errno> {
    let group = group.map_or(-1, |group| group.as_raw_fd());
    // SAFETY: the kernel reads as many bytes as the structure's own `size` says, which the caller
    // has checked; it writes that field at most.
    let returned = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            attr.as_mut_ptr(),
            pid,
            cpu,
            group,
            flags | PERF_FLAG_FD_CLOEXEC,
        )
    };
    // SAFETY: the descriptor was just made, and no other code owns it.
    result(returned).map(|fd| unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// `ioctl(2)` with a number.
///
/// # Errors
///
/// The kernel's.
pub fn ioctl(fd: BorrowedFd<'_>, command: u32, argument: u64) -> Result<(), Errno> {
    // SAFETY: only called with commands of perf events that take numbers.
    let returned = unsafe { libc::ioctl(fd.as_raw_fd(), libc::Ioctl::from(command), argument) };
    result(returned.into()).map(drop)
}

/// `ioctl(2)` with a text.
///
/// # Errors
///
/// The kernel's.
pub fn ioctl_text(fd: BorrowedFd<'_>, command: u32, text: &std::ffi::CStr) -> Result<(), Errno> {
    // SAFETY: only called with a command of perf events that reads a text.
    let returned =
        unsafe { libc::ioctl(fd.as_raw_fd(), libc::Ioctl::from(command), text.as_ptr()) };
    result(returned.into()).map(drop)
}

/// `ioctl(2)` with a number that the kernel reads from memory.
///
/// # Errors
///
/// The kernel's.
pub fn ioctl_with_number(fd: BorrowedFd<'_>, command: u32, number: u64) -> Result<(), Errno> {
    // SAFETY: only called with a command of perf events that reads 8 bytes.
    let returned = unsafe {
        libc::ioctl(
            fd.as_raw_fd(),
            libc::Ioctl::from(command),
            &raw const number,
        )
    };
    result(returned.into()).map(drop)
}

/// `ioctl(2)` that returns a number.
///
/// # Errors
///
/// The kernel's.
pub fn ioctl_number(fd: BorrowedFd<'_>, command: u32) -> Result<u64, Errno> {
    let mut number = 0_u64;
    // SAFETY: only called with a command of perf events that writes 8 bytes.
    let returned =
        unsafe { libc::ioctl(fd.as_raw_fd(), libc::Ioctl::from(command), &raw mut number) };
    result(returned.into()).map(|_| number)
}

fn result(returned: libc::c_long) -> Result<u64, Errno> {
    if returned < 0 {
        let error = std::io::Error::last_os_error();
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO));
    }
    Ok(returned as u64)
}

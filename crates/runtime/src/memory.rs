//! Memory files, which are shared with tools and targets. Each object has its own.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use beeline_uapi::linux::PAGE_SIZE;
use rustix::fs::{MemfdFlags, Mode, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

/// Bytes of a page.
pub const PAGE: usize = PAGE_SIZE as usize;

/// Rounds up to whole pages.
pub fn pages(bytes: usize) -> usize {
    bytes.next_multiple_of(PAGE)
}

/// A memory file, mapped here read-write for as long as it lives.
#[derive(Debug)]
pub struct Memory {
    file: OwnedFd,
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to this value alone and is plain memory; what is shared in it is
// accessed by atomics or under the rules of its owner.
unsafe impl Send for Memory {}
// SAFETY: the mapping is plain memory; what is shared in it is accessed by atomics or under the
// rules of its owner.
unsafe impl Sync for Memory {}

impl Memory {
    /// Creates a zeroed file of `len` bytes (rounded up to pages), named `beeline-<name>` in
    /// `/proc/PID/maps`.
    ///
    /// # Errors
    ///
    /// Those of `memfd_create(2)`, `fchmod(2)`, `ftruncate(2)` and `mmap(2)`.
    pub fn new(name: &str, len: usize) -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create(format!("beeline-{name}"), flags)?;
        close_to_others(file.as_fd())?;
        let len = pages(len.max(1));
        rustix::fs::ftruncate(&file, len as u64)?;
        let base = Self::map(file.as_fd(), len)?;
        Ok(Self { file, base, len })
    }

    /// Maps the first `len` bytes (rounded up to pages) of a file that is there already.
    ///
    /// # Errors
    ///
    /// Those of `mmap(2)`.
    pub fn over(file: OwnedFd, len: usize) -> io::Result<Self> {
        let len = pages(len.max(1));
        let base = Self::map(file.as_fd(), len)?;
        Ok(Self { file, base, len })
    }

    /// Takes over the first `len` bytes of another file.
    ///
    /// # Errors
    ///
    /// Those of `lseek(2)` and `sendfile(2)`; [`io::ErrorKind::UnexpectedEof`] if the other file is
    /// shorter.
    pub fn take_from(&self, other: &Self, len: usize) -> io::Result<()> {
        rustix::fs::seek(&self.file, rustix::fs::SeekFrom::Start(0))?;
        let mut from = 0;
        while from < len as u64 {
            let rest = len - from as usize;
            if rustix::fs::sendfile(&self.file, &other.file, Some(&mut from), rest)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(())
    }

    /// Asks the kernel to populate what is going to be written, if it is more than some pages. That
    /// is quicker than faulting page by page.
    pub fn populate(&self, start: usize, len: usize) {
        const MANY: usize = 4 * PAGE;
        let (first, end) = (start & !(PAGE - 1), pages(start + len));
        if len < MANY || end > self.len {
            return;
        }
        let advice = rustix::mm::Advice::LinuxPopulateWrite;
        // SAFETY: the range is within the mapping, and the call does not change its content. A
        // kernel that does not know this advice (before 5.14) does nothing.
        let _ = unsafe { rustix::mm::madvise(self.base().add(first).cast(), end - first, advice) };
    }

    /// Forbids any change of size.
    ///
    /// # Errors
    ///
    /// Those of `fcntl(2)` with `F_ADD_SEALS`: `EPERM` if it has been sealed before.
    pub fn seal_size(&self) -> io::Result<()> {
        Ok(rustix::fs::fcntl_add_seals(
            &self.file,
            SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL,
        )?)
    }

    /// Forbids any change of size, unless that has been done.
    ///
    /// # Errors
    ///
    /// Those of `fcntl(2)` with `F_GET_SEALS`, and those of [`Self::seal_size`].
    pub fn keep_size(&self) -> io::Result<()> {
        let seals = rustix::fs::fcntl_get_seals(&self.file)?;
        if seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
            return Ok(());
        }
        self.seal_size()
    }

    /// Forbids any change of size, and any new writable mapping: from now on only this value
    /// writes.
    ///
    /// # Errors
    ///
    /// As for [`Self::seal_size`].
    pub fn seal_for_others(&self) -> io::Result<()> {
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
        Ok(rustix::fs::fcntl_add_seals(&self.file, seals)?)
    }

    /// Gives the file another length. The mapping here moves with it.
    ///
    /// # Errors
    ///
    /// Those of `ftruncate(2)`, `mmap(2)` and `munmap(2)`.
    pub fn resize(&mut self, len: usize) -> io::Result<()> {
        let len = pages(len.max(1));
        rustix::fs::ftruncate(&self.file, len as u64)?;
        let base = Self::map(self.file.as_fd(), len)?;
        // SAFETY: the old mapping is this value's own, and because of `&mut self` no code holds a
        // reference into it.
        unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len)? };
        (self.base, self.len) = (base, len);
        Ok(())
    }

    /// Returns the file.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Returns where it is mapped here.
    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Returns its length in bytes: whole pages.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns another descriptor of the file.
    ///
    /// # Errors
    ///
    /// Those of `fcntl(2)`, by which the descriptor is duplicated: `EMFILE` if Beeline may have no
    /// more files open.
    pub fn share(&self) -> io::Result<OwnedFd> {
        self.file.try_clone()
    }

    /// Opens the file anew, to be read only. What is mapped through that descriptor can never be
    /// made writable.
    ///
    /// # Errors
    ///
    /// Those of `open(2)`.
    pub fn reopen_to_read(&self) -> io::Result<OwnedFd> {
        Ok(open_again(self.file(), File::options().read(true))?.into())
    }

    /// Opens the file anew, with a position of its own.
    ///
    /// # Errors
    ///
    /// Those of `open(2)`.
    pub fn reopen(&self) -> io::Result<OwnedFd> {
        Ok(open_again(self.file(), File::options().read(true).write(true))?.into())
    }

    fn map(file: BorrowedFd<'_>, len: usize) -> io::Result<NonNull<u8>> {
        // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file,
                0,
            )?
        };
        NonNull::new(base.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own; nothing refers to it after the drop.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Code mapped executable here, for programs that run in Beeline itself.
#[derive(Debug)]
pub struct Executable {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is read-only code.
unsafe impl Send for Executable {}
// SAFETY: the mapping is read-only code.
unsafe impl Sync for Executable {}

impl Executable {
    /// Maps a sealed file read-execute.
    ///
    /// # Errors
    ///
    /// Those of `mmap(2)`.
    pub fn map(file: BorrowedFd<'_>, len: usize) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                pages(len),
                ProtFlags::READ | ProtFlags::EXEC,
                MapFlags::SHARED,
                file,
                0,
            )?
        };
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self {
            base,
            len: pages(len),
        })
    }

    /// Returns the address of the first byte.
    pub fn base(&self) -> *const u8 {
        self.base.as_ptr()
    }
}

impl Drop for Executable {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Puts a file's bytes into a new sealed memory file, and opens it to be read only. Before Linux 6.7
/// no other descriptor of a file that is sealed against writing could be mapped shared.
///
/// # Errors
///
/// Those of `memfd_create(2)`, `fchmod(2)`, `write(2)`, `fcntl(2)` and `open(2)`.
pub fn sealed(name: &str, bytes: &[u8]) -> io::Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = File::from(rustix::fs::memfd_create(format!("beeline-{name}"), flags)?);
    close_to_others(file.as_fd())?;
    io::Write::write_all(&mut &file, bytes)?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals)?;
    open_again(file.as_fd(), File::options().read(true))
}

/// Lets no other user open a memory file. The kernel makes them open to everybody who comes upon
/// them in `/proc`, and whoever might write a file may also have its pages swapped out
/// (`MADV_PAGEOUT`).
fn close_to_others(file: BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::fs::fchmod(file, Mode::RUSR | Mode::WUSR)?)
}

fn open_again(file: BorrowedFd<'_>, how: &OpenOptions) -> io::Result<File> {
    how.open(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

//! A file mapped for reading that cannot be changed or truncated meanwhile.
//!
//! If a file becomes shorter while it is mapped, a reader of the missing part is killed. So the
//! file is leased first (`F_SETLEASE` in fcntl(2)): a process that wants to open it for writing, or
//! to truncate it, waits until the lease is given back, up to `/proc/sys/fs/lease-break-time` (45
//! s), a thousand times what it is held for. A lease is not possible if the file is open for
//! writing, or belongs to another user and Beeline has no CAP_LEASE. It is not attempted on file
//! systems that change by more hands than this kernel's.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

use beeline_uapi::linux::{F_SETSIG, PAGE_SIZE};
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// The mapping, and the lease.
#[derive(Debug)]
pub struct Mapped {
    start: NonNull<u8>,
    len: usize,
    /// Holds the lease.
    file: File,
}

/// Magic numbers of file systems with files that change only by calls on this machine: ext2 to
/// ext4, XFS, Btrfs, F2FS, tmpfs.
const LOCAL: [u32; 5] = [
    libc::EXT4_SUPER_MAGIC as u32,
    libc::XFS_SUPER_MAGIC as u32,
    libc::BTRFS_SUPER_MAGIC as u32,
    libc::F2FS_SUPER_MAGIC as u32,
    libc::TMPFS_MAGIC as u32,
];

impl Mapped {
    /// Maps `len` bytes of a file. `None` if that cannot be done safely.
    pub fn of(file: &File, len: usize) -> Option<Self> {
        let kind = rustix::fs::fstatfs(file).ok()?.f_type;
        if len == 0 || !LOCAL.contains(&(kind as u32)) {
            return None;
        }
        // The file needs a description of its own, because the lease belongs to that.
        let own = format!("/proc/self/fd/{}", file.as_raw_fd());
        let file = File::open(own).ok()?;
        let set = |what, value: libc::c_int| {
            // SAFETY: this `fcntl` takes and returns integers only.
            unsafe { libc::fcntl(file.as_raw_fd(), what, value) == 0 }
        };
        // A signal says that a process waits for the lease; choose one that does nothing.
        if !set(F_SETSIG, libc::SIGURG) || !set(libc::F_SETLEASE, libc::F_RDLCK) {
            return None;
        }
        // It may have become shorter before it was leased.
        if file.metadata().ok()?.len() < len as u64 {
            return None;
        }
        // SAFETY: this maps fresh memory of the kernel's choice.
        let start = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ,
                MapFlags::PRIVATE,
                &file,
                0,
            )
        };
        Some(Self {
            start: NonNull::new(start.ok()?.cast())?,
            len,
            file,
        })
    }

    /// Returns the mapped bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the bytes are mapped readable until `self` is dropped; the lease keeps the file
        // from changing and from becoming shorter.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// Populates a part of it before it is read, which is quicker than one page after the other.
    pub fn prepare(&self, start: usize, end: usize) {
        const PAGE: usize = PAGE_SIZE as usize;
        let first = start / PAGE * PAGE;
        let Some(len) = end.min(self.len).checked_sub(first) else {
            return;
        };
        let place = self.start.as_ptr().wrapping_add(first).cast();
        // SAFETY: these are pages of this value's own mapping, which are only read. If the advice
        // is not taken, nothing changes.
        let _ = unsafe { rustix::mm::madvise(place, len, Advice::LinuxPopulateRead) };
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: this is the value's own mapping, and no reference to it is left.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
        // By itself it would end with the last descriptor, and a child may have got one meanwhile.
        // SAFETY: this `fcntl` takes and returns integers only.
        let _ = unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::OpenOptionsExt;

    #[test]
    fn nobody_writes_to_a_file_that_is_mapped() {
        let path = std::env::temp_dir().join(format!("beeline-mapped-{}", std::process::id()));
        std::fs::write(&path, b"as it is").unwrap();
        let file = File::open(&path).unwrap();
        let write = || {
            let mut options = File::options();
            let options = options.write(true).custom_flags(libc::O_NONBLOCK);
            options.open(&path)
        };
        let Some(mapped) = Mapped::of(&file, 8) else {
            eprintln!("skipped: no leases here");
            return;
        };
        assert_eq!(mapped.bytes(), b"as it is");
        let refused = write().unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::WouldBlock);
        drop(mapped);
        let writer = write().unwrap();
        assert!(Mapped::of(&file, 8).is_none());
        drop(writer);
        assert!(Mapped::of(&file, 9).is_none());
        // A child that another test starts may have the writer's descriptor until it runs its
        // program.
        let begun = std::time::Instant::now();
        let mapped = std::iter::repeat_with(|| Mapped::of(&file, 8)).find(|mapped| {
            std::thread::yield_now();
            mapped.is_some() || begun.elapsed().as_secs() > 20
        });
        assert!(mapped.flatten().is_some());
        std::fs::remove_file(&path).unwrap();
    }
}

//! A file mapped to be read, which nobody can change or cut off as long as it is.
//!
//! A file that becomes shorter while it is mapped ends whoever reads what is gone. So it is leased first (`F_SETLEASE` in
//! fcntl(2)): who wants to open it for writing, or to cut it off, waits until the lease is given back, up to
//! `/proc/sys/fs/lease-break-time` (45 s), a thousand times what it is held for. That cannot be done where somebody has the file
//! open for writing, where it is another user's and we have no CAP_LEASE, and it is not done on file systems that
//! change by more hands than this kernel's.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags};

/// The mapping, and the lease.
#[derive(Debug)]
pub struct Mapped {
    start: NonNull<u8>,
    len: usize,
    /// Holds the lease.
    file: File,
}

/// Magic numbers of file systems (`linux/magic.h`) whose files nobody changes but by calls on this machine: ext2 to
/// ext4, XFS, Btrfs, F2FS, tmpfs.
const LOCAL: [u32; 5] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0x0102_1994];

/// In `asm-generic/fcntl.h`: which signal a file's news is told by.
const F_SETSIG: libc::c_int = 10;

impl Mapped {
    /// Maps `len` bytes of a file. `None` if that cannot be done safely.
    pub fn of(file: &File, len: usize) -> Option<Self> {
        let kind = rustix::fs::fstatfs(file).ok()?.f_type;
        if len == 0 || !LOCAL.contains(&(kind as u32)) {
            return None;
        }
        // A description of its own: the lease belongs to that.
        let own = format!("/proc/self/fd/{}", file.as_raw_fd());
        let file = File::open(own).ok()?;
        let set = |what, value: libc::c_int| {
            // SAFETY: takes and gives numbers only.
            unsafe { libc::fcntl(file.as_raw_fd(), what, value) == 0 }
        };
        // Who waits for us is told of by a signal; one that does nothing.
        if !set(F_SETSIG, libc::SIGURG) || !set(libc::F_SETLEASE, libc::F_RDLCK) {
            return None;
        }
        // It may have become shorter before it was leased.
        if file.metadata().ok()?.len() < len as u64 {
            return None;
        }
        // SAFETY: fresh memory of the kernel's choice.
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

    /// What is mapped.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: mapped readable until `self` is dropped; the lease keeps the file from changing and from becoming shorter.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// Has a part of it at hand before it is read, which is quicker than one page after the other.
    pub fn prepare(&self, start: usize, end: usize) {
        const PAGE: usize = 4096;
        let first = start / PAGE * PAGE;
        let Some(len) = end.min(self.len).checked_sub(first) else {
            return;
        };
        let place = self.start.as_ptr().wrapping_add(first).cast();
        // SAFETY: pages of our own mapping, which are read and nothing else. Where the advice is not taken all is as before.
        let _ = unsafe { rustix::mm::madvise(place, len, Advice::LinuxPopulateRead) };
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: our own mapping, to which no reference is left.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
        // By itself it would end with the last descriptor, and a child may have got one meanwhile.
        // SAFETY: takes and gives numbers only.
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
        // A child that another test begins may have the writer's descriptor until it runs its program.
        let begun = std::time::Instant::now();
        let mapped = std::iter::repeat_with(|| Mapped::of(&file, 8)).find(|mapped| {
            std::thread::yield_now();
            mapped.is_some() || begun.elapsed().as_secs() > 20
        });
        assert!(mapped.flatten().is_some());
        std::fs::remove_file(&path).unwrap();
    }
}

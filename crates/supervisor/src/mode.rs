//! The access that a descriptor gives to a map: `BPF_F_RDONLY` and `BPF_F_WRONLY`.
//!
//! As in the kernel, the mode is that of the open file. Copies of a descriptor share it, and the
//! kernel itself keeps a tool from mapping memory that it may not write.

use std::os::fd::{AsRawFd, OwnedFd};

use beeline_uapi::{Errno, flags};
use rustix::fs::OFlags;

/// The access that system calls have; programs may read and write regardless.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mode {
    /// True if elements may be read.
    pub read: bool,
    /// True if elements may be changed.
    pub write: bool,
}

impl Mode {
    /// The flags of `BPF_MAP_CREATE` that apply to the descriptor that it returns.
    pub const FLAGS: u32 = flags::RDONLY | flags::WRONLY;

    /// Full access.
    pub const BOTH: Mode = Mode {
        read: true,
        write: true,
    };

    /// Parses the flags of commands that return descriptors.
    ///
    /// # Errors
    /// EINVAL for any other flag, and for both together.
    pub fn of_flags(flags: u32) -> Result<Mode, Errno> {
        match flags {
            0 => Ok(Mode::BOTH),
            flags::RDONLY => Ok(Mode {
                write: false,
                ..Mode::BOTH
            }),
            flags::WRONLY => Ok(Mode {
                read: false,
                ..Mode::BOTH
            }),
            _ => Err(Errno(libc::EINVAL)),
        }
    }

    /// Parses the flags of `BPF_MAP_CREATE`, which has others too.
    ///
    /// # Errors
    ///
    /// EINVAL for both of the mode's flags together.
    pub fn of_map_flags(flags: u32) -> Result<Mode, Errno> {
        Mode::of_flags(flags & Mode::FLAGS)
    }

    /// Returns the mode of a descriptor, from the permissions that `lstat` reports for its link in
    /// `/proc/TID/fd`.
    pub fn of_link(permissions: u32) -> Mode {
        Mode {
            read: permissions & libc::S_IRUSR != 0,
            write: permissions & libc::S_IWUSR != 0,
        }
    }

    /// Checks that reading is allowed.
    ///
    /// # Errors
    /// EPERM if it is not.
    pub fn may_read(self) -> Result<(), Errno> {
        self.read.then_some(()).ok_or(Errno(libc::EPERM))
    }

    /// Checks that writing is allowed.
    ///
    /// # Errors
    /// EPERM if it is not.
    pub fn may_write(self) -> Result<(), Errno> {
        self.write.then_some(()).ok_or(Errno(libc::EPERM))
    }

    /// Opens the same memory file in this mode.
    ///
    /// # Errors
    ///
    /// The kernel's of openat(2), such as EMFILE.
    pub fn open(self, file: OwnedFd) -> Result<OwnedFd, Errno> {
        let access = match self {
            Mode::BOTH => return Ok(file),
            Mode { read: true, .. } => OFlags::RDONLY,
            Mode { .. } => OFlags::WRONLY,
        };
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        rustix::fs::open(path, access | OFlags::CLOEXEC, rustix::fs::Mode::empty())
            .map_err(|error| Errno(error.raw_os_error()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_and_links_say_the_mode() {
        for flags in [0, flags::RDONLY, flags::WRONLY] {
            let mode = Mode::of_flags(flags).unwrap();
            let file = rustix::fs::memfd_create("mode", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
            let opened = mode.open(file).unwrap();
            let link = format!("/proc/self/fd/{}", opened.as_raw_fd());
            let seen = rustix::fs::lstat(link).unwrap();
            assert_eq!(Mode::of_link(seen.st_mode), mode);
        }
        let both = flags::RDONLY | flags::WRONLY;
        assert_eq!(Mode::of_flags(both), Err(Errno(libc::EINVAL)));
        assert_eq!(Mode::of_map_flags(both), Err(Errno(libc::EINVAL)));
        assert_eq!(Mode::of_flags(1), Err(Errno(libc::EINVAL)));
        assert_eq!(Mode::of_map_flags(1), Ok(Mode::BOTH));
    }
}

//! Kernel error numbers.

/// A kernel error number, positive (`ENOENT` is 2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

impl Errno {
    /// The largest number that a result or a pointer can hold (`MAX_ERRNO` of
    /// `include/linux/err.h`).
    pub const MAX: i32 = 4095;
}

#[allow(missing_docs)] // The names are the kernel's.
impl Errno {
    pub const EPERM: Self = Self(1);
    pub const ENOENT: Self = Self(2);
    pub const ESRCH: Self = Self(3);
    pub const EINTR: Self = Self(4);
    pub const EIO: Self = Self(5);
    pub const E2BIG: Self = Self(7);
    pub const EBADF: Self = Self(9);
    pub const EAGAIN: Self = Self(11);
    pub const ENOMEM: Self = Self(12);
    pub const EACCES: Self = Self(13);
    pub const EFAULT: Self = Self(14);
    pub const EBUSY: Self = Self(16);
    pub const EEXIST: Self = Self(17);
    pub const ENODEV: Self = Self(19);
    pub const EINVAL: Self = Self(22);
    pub const EMFILE: Self = Self(24);
    pub const ENOSPC: Self = Self(28);
    pub const ERANGE: Self = Self(34);
    pub const ENOSYS: Self = Self(38);
    pub const ENODATA: Self = Self(61);
    pub const EPROTO: Self = Self(71);
    pub const EOPNOTSUPP: Self = Self(95);
    pub const ETIMEDOUT: Self = Self(110);
    pub const EALREADY: Self = Self(114);
    /// The kernel's internal "not supported", which leaks out of bpf(2).
    pub const ENOTSUPP: Self = Self(524);
}

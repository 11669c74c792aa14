//! The system calls of Beeline that are made to fail, with the errors that each may fail with.

use libc::{
    EACCES, EAGAIN, EIO, EMFILE, ENOBUFS, ENOMEM, ENOSPC, EPERM, EPIPE, SYS_accept4, SYS_brk,
    SYS_clone, SYS_clone3, SYS_dup, SYS_epoll_create1, SYS_epoll_ctl, SYS_eventfd2, SYS_fallocate,
    SYS_fcntl, SYS_fork, SYS_ftruncate, SYS_madvise, SYS_memfd_create, SYS_mmap, SYS_mprotect,
    SYS_mremap, SYS_open, SYS_openat, SYS_pidfd_getfd, SYS_pidfd_open, SYS_pipe2, SYS_pread64,
    SYS_process_vm_readv, SYS_process_vm_writev, SYS_pwrite64, SYS_read, SYS_recvmsg, SYS_sendmsg,
    SYS_socket, SYS_socketpair, SYS_vfork, SYS_write, SYS_writev,
};

/// A system call that may fail.
pub struct Call {
    pub number: i64,
    pub name: &'static str,
    /// The errors that it may fail with when nobody has made a mistake.
    pub errors: &'static [i32],
}

macro_rules! calls {
    ($($number:ident $name:literal: $($error:ident)*;)*) => {
        /// All such calls.
        pub const CALLS: &[Call] = &[$(Call { number: $number, name: $name, errors: &[$($error),*] },)*];
    };
}

calls! {
    SYS_mmap "mmap": ENOMEM;
    SYS_mprotect "mprotect": ENOMEM;
    SYS_mremap "mremap": ENOMEM;
    SYS_madvise "madvise": EAGAIN;
    SYS_brk "brk": ENOMEM;
    SYS_memfd_create "memfd_create": EMFILE ENOMEM;
    SYS_ftruncate "ftruncate": ENOSPC EIO;
    SYS_fallocate "fallocate": ENOSPC ENOMEM;
    SYS_open "open": EMFILE EACCES;
    SYS_openat "openat": EMFILE EACCES;
    SYS_socket "socket": EMFILE ENOBUFS;
    SYS_socketpair "socketpair": EMFILE;
    SYS_pipe2 "pipe2": EMFILE;
    SYS_eventfd2 "eventfd2": EMFILE;
    SYS_epoll_create1 "epoll_create1": EMFILE;
    SYS_epoll_ctl "epoll_ctl": ENOMEM ENOSPC;
    SYS_dup "dup": EMFILE;
    SYS_fcntl "fcntl": EMFILE EAGAIN;
    SYS_accept4 "accept4": EMFILE;
    SYS_pidfd_open "pidfd_open": EMFILE ENOMEM;
    SYS_pidfd_getfd "pidfd_getfd": EMFILE EPERM;
    SYS_write "write": ENOSPC EIO EPIPE;
    SYS_writev "writev": ENOSPC EIO EPIPE;
    SYS_pwrite64 "pwrite64": ENOSPC EIO;
    SYS_process_vm_writev "process_vm_writev": EPERM ENOMEM;
    SYS_sendmsg "sendmsg": ENOBUFS ENOMEM;
    SYS_recvmsg "recvmsg": ENOMEM;
    SYS_clone "clone": EAGAIN ENOMEM;
    SYS_clone3 "clone3": EAGAIN ENOMEM;
    SYS_fork "fork": EAGAIN;
    SYS_vfork "vfork": EAGAIN;
    SYS_process_vm_readv "process_vm_readv": EPERM ENOMEM;
    SYS_pread64 "pread64": EIO;
    SYS_read "read": EIO ENOMEM;
}

/// Returns the name of an error among these.
pub fn error_name(error: i32) -> &'static str {
    const NAMES: [(i32, &str); 9] = [
        (EACCES, "EACCES"),
        (EAGAIN, "EAGAIN"),
        (EIO, "EIO"),
        (EMFILE, "EMFILE"),
        (ENOBUFS, "ENOBUFS"),
        (ENOMEM, "ENOMEM"),
        (ENOSPC, "ENOSPC"),
        (EPERM, "EPERM"),
        (EPIPE, "EPIPE"),
    ];
    let found = NAMES.iter().find(|(number, _)| *number == error);
    found.map_or("?", |(_, name)| name)
}

/// A single failing call: the n-th of its kind in a session of Beeline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Case {
    pub number: i64,
    /// Counts from 1.
    pub occurrence: u32,
    pub error: i32,
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let call = CALLS.iter().find(|call| call.number == self.number);
        let name = call.map_or("?", |call| call.name);
        write!(f, "{name} {} {}", self.occurrence, error_name(self.error))
    }
}

impl std::str::FromStr for Case {
    type Err = String;

    /// Parses the displayed form.
    fn from_str(text: &str) -> Result<Self, String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let [name, occurrence, error] = words[..] else {
            return Err(format!("{text:?} is not \"CALL OCCURRENCE ERROR\""));
        };
        let call = CALLS.iter().find(|call| call.name == name);
        let call = call.ok_or_else(|| format!("{name} is none of the calls that fail"))?;
        let known = call
            .errors
            .iter()
            .find(|known| error_name(**known) == error);
        Ok(Case {
            number: call.number,
            occurrence: occurrence
                .parse()
                .map_err(|_| format!("{occurrence} is no number"))?,
            error: *known.ok_or_else(|| format!("{name} does not fail by {error}"))?,
        })
    }
}

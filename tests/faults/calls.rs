//! The system calls that are made to fail, with the errors that each may fail with: Beeline's own,
//! and those that it has a target make.

use libc::{
    EACCES, EAGAIN, EIO, EMFILE, ENOBUFS, ENOMEM, ENOSPC, EPERM, EPIPE, SYS_accept4, SYS_brk,
    SYS_clone, SYS_clone3, SYS_dup, SYS_epoll_create1, SYS_epoll_ctl, SYS_eventfd2, SYS_fallocate,
    SYS_fcntl, SYS_fork, SYS_ftruncate, SYS_madvise, SYS_memfd_create, SYS_mmap, SYS_mprotect,
    SYS_mremap, SYS_munmap, SYS_open, SYS_openat, SYS_pidfd_getfd, SYS_pidfd_open, SYS_pipe2,
    SYS_pread64, SYS_process_vm_readv, SYS_process_vm_writev, SYS_pwrite64, SYS_read, SYS_recvmsg,
    SYS_sendmsg, SYS_socket, SYS_socketpair, SYS_vfork, SYS_write, SYS_writev,
};

/// The process that makes a call.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Caller {
    Beeline,
    /// A target, of which Beeline has borrowed a thread.
    Target,
}

/// A system call that may fail.
#[derive(PartialEq, Eq, Debug)]
pub struct Call {
    pub caller: Caller,
    pub number: i64,
    pub name: &'static str,
    /// The errors that it may fail with when nobody has made a mistake.
    pub errors: &'static [i32],
}

macro_rules! calls {
    ($($caller:ident $number:ident $name:literal: $($error:ident)*;)*) => {
        /// All such calls.
        pub static CALLS: &[Call] = &[$(Call {
            caller: Caller::$caller,
            number: $number,
            name: $name,
            errors: &[$($error),*],
        },)*];
    };
}

calls! {
    Beeline SYS_mmap "mmap": ENOMEM;
    Beeline SYS_mprotect "mprotect": ENOMEM;
    Beeline SYS_mremap "mremap": ENOMEM;
    Beeline SYS_madvise "madvise": EAGAIN;
    Beeline SYS_brk "brk": ENOMEM;
    Beeline SYS_memfd_create "memfd_create": EMFILE ENOMEM;
    Beeline SYS_ftruncate "ftruncate": ENOSPC EIO;
    Beeline SYS_fallocate "fallocate": ENOSPC ENOMEM;
    Beeline SYS_open "open": EMFILE EACCES;
    Beeline SYS_openat "openat": EMFILE EACCES;
    Beeline SYS_socket "socket": EMFILE ENOBUFS;
    Beeline SYS_socketpair "socketpair": EMFILE;
    Beeline SYS_pipe2 "pipe2": EMFILE;
    Beeline SYS_eventfd2 "eventfd2": EMFILE;
    Beeline SYS_epoll_create1 "epoll_create1": EMFILE;
    Beeline SYS_epoll_ctl "epoll_ctl": ENOMEM ENOSPC;
    Beeline SYS_dup "dup": EMFILE;
    Beeline SYS_fcntl "fcntl": EMFILE EAGAIN;
    Beeline SYS_accept4 "accept4": EMFILE;
    Beeline SYS_pidfd_open "pidfd_open": EMFILE ENOMEM;
    Beeline SYS_pidfd_getfd "pidfd_getfd": EMFILE EPERM;
    Beeline SYS_write "write": ENOSPC EIO EPIPE;
    Beeline SYS_writev "writev": ENOSPC EIO EPIPE;
    Beeline SYS_pwrite64 "pwrite64": ENOSPC EIO;
    Beeline SYS_process_vm_writev "process_vm_writev": EPERM ENOMEM;
    Beeline SYS_sendmsg "sendmsg": ENOBUFS ENOMEM;
    Beeline SYS_recvmsg "recvmsg": ENOMEM;
    Beeline SYS_clone "clone": EAGAIN ENOMEM;
    Beeline SYS_clone3 "clone3": EAGAIN ENOMEM;
    Beeline SYS_fork "fork": EAGAIN;
    Beeline SYS_vfork "vfork": EAGAIN;
    Beeline SYS_process_vm_readv "process_vm_readv": EPERM ENOMEM;
    Beeline SYS_pread64 "pread64": EIO;
    Beeline SYS_read "read": EIO ENOMEM;
    Target SYS_mmap "target:mmap": ENOMEM;
    Target SYS_munmap "target:munmap": ENOMEM;
    Target SYS_mprotect "target:mprotect": ENOMEM;
    Target SYS_socketpair "target:socketpair": EMFILE ENOBUFS;
    Target SYS_recvmsg "target:recvmsg": ENOMEM;
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

/// Returns the call of that number, if it is among those that fail.
pub fn find(caller: Caller, number: i64) -> Option<&'static Call> {
    let is_it = |call: &&Call| (call.caller, call.number) == (caller, number);
    CALLS.iter().find(is_it)
}

/// A single failing call: the n-th of its kind in a session of Beeline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Case {
    pub call: &'static Call,
    /// Counts from 1.
    pub occurrence: u32,
    pub error: i32,
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let error = error_name(self.error);
        write!(f, "{} {} {error}", self.call.name, self.occurrence)
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
            call,
            occurrence: occurrence
                .parse()
                .map_err(|_| format!("{occurrence} is no number"))?,
            error: *known.ok_or_else(|| format!("{name} does not fail by {error}"))?,
        })
    }
}

//! Installing a filter in a child, and handing the listener's descriptor to Beeline.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use libc::sock_filter;
use rustix::event::{PollFd, PollFlags, poll};

/// Installs the filter on the calling thread, and returns the listener's descriptor.
pub(crate) fn install(filter: &[sock_filter]) -> io::Result<RawFd> {
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_ptr().cast_mut(),
    };
    match seccomp(&program) {
        // An unprivileged thread must first give up gaining privileges. A privileged one keeps
        // them: the tool may run sudo.
        Err(error) if error.raw_os_error() == Some(libc::EACCES) => {
            // SAFETY: PR_SET_NO_NEW_PRIVS takes its arguments by value.
            if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } < 0 {
                return Err(io::Error::last_os_error());
            }
            seccomp(&program)
        }
        result => result,
    }
}

fn seccomp(program: &libc::sock_fprog) -> io::Result<RawFd> {
    let listen = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
    // Keeps a call that the supervisor has begun to serve from being interrupted and restarted by
    // every signal (Linux 5.19 on).
    let steadily = listen | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
    let mut error = io::Error::from_raw_os_error(libc::EINVAL);
    for flags in [steadily, listen] {
        // SAFETY: `program` points to `len` instructions that live through the call.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_seccomp,
                libc::SECCOMP_SET_MODE_FILTER,
                flags,
                std::ptr::from_ref(program),
            )
        };
        if fd >= 0 {
            return Ok(fd as RawFd);
        }
        error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EINVAL) {
            break;
        }
    }
    Err(error)
}

pub(crate) fn socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [-1; 2];
    // SAFETY: socketpair writes two descriptors to `fds`.
    if unsafe {
        libc::socketpair(
            libc::AF_UNIX,
            libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC,
            0,
            fds.as_mut_ptr(),
        )
    } < 0
    {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `socketpair` has just opened both descriptors, and nothing else owns them.
    Ok(unsafe { (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])) })
}

/// The room and alignment for a control message with one descriptor.
type Control = [u64; 4];

pub(crate) fn send_descriptor(socket: RawFd, fd: RawFd) -> io::Result<()> {
    let mut byte = [0u8; 1];
    let mut part = libc::iovec {
        iov_base: byte.as_mut_ptr().cast(),
        iov_len: 1,
    };
    let mut control: Control = [0; 4];
    let message = message_header(&mut part, &mut control);
    // SAFETY: `control` is zeroed, aligned and long enough for one header and one descriptor, so
    // CMSG_FIRSTHDR points into it.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as usize;
        libc::CMSG_DATA(header).cast::<RawFd>().write_unaligned(fd);
    }
    // SAFETY: the message and all it points to live through the call.
    if unsafe { libc::sendmsg(socket, &raw const message, libc::MSG_NOSIGNAL) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Waits for the descriptor that the child sends before it executes; no longer than until `begun`
/// hangs up.
pub(crate) fn await_descriptor(socket: &OwnedFd, begun: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut ready = [
        PollFd::new(socket, PollFlags::IN),
        PollFd::new(&begun, PollFlags::empty()),
    ];
    while poll(&mut ready, None) == Err(rustix::io::Errno::INTR) {}
    receive_descriptor(socket.as_raw_fd())
}

fn receive_descriptor(socket: RawFd) -> io::Result<OwnedFd> {
    let mut byte = [0u8; 1];
    let mut part = libc::iovec {
        iov_base: byte.as_mut_ptr().cast(),
        iov_len: 1,
    };
    let mut control: Control = [0; 4];
    let mut message = message_header(&mut part, &mut control);
    // The child sent before it executed or failed, so the message is there now or never comes.
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the message and all it points to live through the call and are exclusively borrowed.
    if unsafe { libc::recvmsg(socket, &raw mut message, flags) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel filled `control` and set its length, which CMSG_FIRSTHDR checks.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        if header.is_null() && message.msg_flags & libc::MSG_CTRUNC != 0 {
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        if header.is_null() || (*header).cmsg_type != libc::SCM_RIGHTS {
            return Err(io::Error::other(
                "the tool's process did not send the listener",
            ));
        }
        Ok(OwnedFd::from_raw_fd(
            libc::CMSG_DATA(header).cast::<RawFd>().read_unaligned(),
        ))
    }
}

fn message_header(part: &mut libc::iovec, control: &mut Control) -> libc::msghdr {
    // SAFETY: msghdr is plain data, for which zero is valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    // SAFETY: CMSG_SPACE is arithmetic only; its result, 24, is within `Control`.
    message.msg_controllen = unsafe { libc::CMSG_SPACE(size_of::<RawFd>() as u32) } as usize;
    message
}

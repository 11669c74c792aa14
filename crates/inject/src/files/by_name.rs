//! A socket to a target where no descriptor may be taken out of it: `pidfd_getfd(2)` is forbidden by
//! the usual profiles of containers. The target connects to a name of Beeline's.

use std::io;
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, SocketAddrAny, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind,
    getsockname, listen, socket_with,
};

use crate::procfs;

/// Connections that may wait: others can find the name, too.
const WAITING: i32 = 64;
/// The connections that are looked at before Beeline gives up.
const MOST: usize = 4 * WAITING as usize;
/// The longest wait for the target's connection, which is there when this looks.
const LONGEST: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// A socket with a name that the kernel has chosen, in the network namespace of this process.
#[derive(Debug)]
pub(super) struct Named {
    socket: OwnedFd,
    /// A `struct sockaddr_un` up to the end of the name.
    address: Vec<u8>,
}

impl Named {
    /// Creates one.
    ///
    /// # Errors
    ///
    /// The system's error of socket(2), bind(2) or listen(2).
    pub fn new() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        bind(&socket, &SocketAddrUnix::new_unnamed())?;
        listen(&socket, WAITING)?;
        let address = getsockname(&socket)?;
        let address = address_bytes(&address).ok_or(io::ErrorKind::Unsupported)?;
        Ok(Self { socket, address })
    }

    /// Returns the address to connect to.
    pub fn address(&self) -> &[u8] {
        &self.address
    }

    /// Returns the connection of a process, which has been made. Those of others are closed.
    ///
    /// # Errors
    ///
    /// The system's error of accept(2); [`io::ErrorKind::TimedOut`] if there is no such connection.
    pub fn connection_of(&self, pid: i32) -> io::Result<OwnedFd> {
        for _ in 0..MOST {
            let mut ready = [PollFd::new(&self.socket, PollFlags::IN)];
            match poll(&mut ready, Some(&LONGEST)) {
                Ok(0) => break,
                Err(Errno::INTR) => continue,
                outcome => outcome?,
            };
            let connection = match accept_with(&self.socket, SocketFlags::CLOEXEC) {
                Err(Errno::AGAIN | Errno::CONNABORTED) => continue,
                outcome => outcome?,
            };
            let peer = socket_peercred(&connection)?.pid.as_raw_nonzero().get();
            if peer == pid || procfs::process_of(peer) == Some(pid) {
                return Ok(connection);
            }
        }
        Err(io::ErrorKind::TimedOut.into())
    }
}

fn address_bytes(address: &SocketAddrAny) -> Option<Vec<u8>> {
    let address = SocketAddrUnix::try_from(address.clone()).ok()?;
    let mut bytes = (libc::AF_UNIX as u16).to_ne_bytes().to_vec();
    bytes.push(0);
    bytes.extend(address.abstract_name()?);
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use rustix::net::connect;

    use super::*;

    #[test]
    fn connections_of_others_are_passed_over() {
        let named = Named::new().unwrap();
        let address = SocketAddrUnix::new_abstract_name(&named.address()[3..]).unwrap();
        let connected = || {
            let flags = SocketFlags::CLOEXEC;
            let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
            connect(&socket, &address).map(|()| socket)
        };
        let _ours = connected().unwrap();
        let own = std::process::id() as i32;
        named.connection_of(own).unwrap();
        let _again = connected().unwrap();
        let failed = named.connection_of(own + 1).unwrap_err();
        assert_eq!(failed.kind(), io::ErrorKind::TimedOut);
    }
}

//! Waiting for hosts.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use beeline_uapi::linux::{SO_VM_SOCKETS_BUFFER_MAX_SIZE, SO_VM_SOCKETS_BUFFER_SIZE};
use rustix::net::{SendFlags, send};

use crate::address::{Address, HOST_CID};
use crate::channel::{Channel, Coat, Error, set_vsock, vsock};
use crate::client::FIRST_ID;
use crate::frame;
use crate::messages::guest_message::Body as Said;
use crate::messages::{GuestMessage, Refused};
use crate::serial;
use crate::stream::Stream;
use crate::tls::{Server, Tls};

/// The buffer of a vsock connection in bytes: with the kernel's 256 KiB, many small messages at
/// once reset it on Linux 6.12.
const VSOCK_BUFFER: u64 = 4 << 20;
const BACKLOG: i32 = 16;
const LISTENING: &str = "cannot be listened to";

/// A place where hosts connect.
#[derive(Debug)]
pub struct Listener {
    address: Address,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Vsock(OwnedFd),
    Unix(UnixListener, PathBuf),
    Tcp(TcpListener, Option<Server>),
    Serial(serial::Port),
}

impl Listener {
    /// Listens to an address.
    ///
    /// # Errors
    ///
    /// An [`Error`] with the reason: those of the system's calls, certificates that cannot be used,
    /// or `InvalidInput` if such an address cannot be listened to or TCP has no certificates.
    pub fn new(address: &Address, tls: Option<&Tls>) -> Result<Self, Error> {
        let failed = |error: io::Error| Error::new(address, LISTENING, error);
        let kind = match address {
            Address::Vsock { cid, port } => Kind::Vsock(listen_vsock(*cid, *port).map_err(failed)?),
            Address::Unix { path } => Kind::Unix(listen_unix(path).map_err(failed)?, path.clone()),
            Address::Uds { .. } => {
                let why = "that is how a host reaches a guest's vsock; listen to vsock:any";
                return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, why)));
            }
            Address::Tcp { at, insecure } => {
                let server = match (tls, insecure) {
                    (_, true) => None,
                    (Some(tls), _) => Some(tls.server().map_err(|error| {
                        Error::new(address, "its certificates are of no use", error)
                    })?),
                    (None, _) => {
                        let why = "TCP wants a certificate of both sides: give --tls-cert, --tls-key and --tls-ca, or \
                                   tcp+insecure: where nobody else can reach the port";
                        return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, why)));
                    }
                };
                Kind::Tcp(TcpListener::bind(at).map_err(failed)?, server)
            }
            Address::Serial { path } => Kind::Serial(serial::Port::open(path).map_err(failed)?),
        };
        Ok(Self {
            address: address.clone(),
            kind,
        })
    }

    /// Returns the address, with the port that the kernel chose where it was 0.
    pub fn address(&self) -> Address {
        match (&self.kind, &self.address) {
            (Kind::Tcp(listener, _), Address::Tcp { at, insecure }) => Address::Tcp {
                at: listener.local_addr().unwrap_or(*at),
                insecure: *insecure,
            },
            _ => self.address.clone(),
        }
    }

    /// Waits for the next connection, which is not yet known to be a host's: [`Waiting::accept`]
    /// may take a while.
    ///
    /// # Errors
    ///
    /// An [`Error`] with the system's reason.
    pub fn wait(&self) -> Result<Waiting, Error> {
        let failed = |error: io::Error| Error::new(&self.address, LISTENING, error);
        match &self.kind {
            Kind::Vsock(fd) => accept_vsock(fd),
            Kind::Unix(listener, _) => listener
                .accept()
                .map(|(stream, _)| Waiting::plain(unix_peer(&stream), stream.into())),
            Kind::Tcp(listener, server) => listener.accept().map(|(stream, peer)| {
                // Without this option a connection is slow, but works.
                let _ = stream.set_nodelay(true);
                Waiting {
                    peer: format!("tcp:{peer}"),
                    step: match server {
                        None => Step::Plain(stream.into()),
                        Some(server) => Step::Tls(stream.into(), server.clone()),
                    },
                }
            }),
            Kind::Serial(port) => port.wait().map(|(stream, session)| Waiting {
                peer: self.address.to_string(),
                step: Step::Serial(stream, session),
            }),
        }
        .map_err(failed)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Kind::Unix(_, path) = &self.kind {
            // Another process may have removed it already.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// A connection that has come in.
#[derive(Debug)]
pub struct Waiting {
    peer: String,
    step: Step,
}

#[derive(Debug)]
enum Step {
    Plain(OwnedFd),
    Tls(OwnedFd, Server),
    Serial(Arc<Stream>, serial::Session),
    /// A peer that is not served.
    Stranger(&'static str),
}

impl Waiting {
    fn plain(peer: String, fd: OwnedFd) -> Self {
        Self {
            peer,
            step: Step::Plain(fd),
        }
    }

    /// Returns the name of the peer, for messages and logs.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// Agrees on the channel with it. A peer that does not answer costs 5 s.
    ///
    /// # Errors
    ///
    /// `PermissionDenied` if the peer is not to be served; those of the system's calls, and of the
    /// TLS handshake.
    pub fn accept(self) -> io::Result<Channel> {
        let (stream, coat) = match self.step {
            Step::Plain(fd) => (Arc::new(Stream::new(fd)?), Coat::Plain),
            Step::Tls(fd, server) => {
                let stream = Arc::new(Stream::new(fd)?);
                let session = server.accept(&stream)?;
                (stream, Coat::Tls(session))
            }
            Step::Serial(stream, session) => (stream, Coat::Serial(session)),
            Step::Stranger(why) => {
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
            }
        };
        Ok(Channel::new(stream, coat, self.peer))
    }

    /// Tells the peer why it is not served, and ends the connection, without waiting for anything.
    /// A peer that first has to agree on a channel is told nothing.
    pub fn refuse(self, errno: i32, why: &str) {
        let Step::Plain(fd) = self.step else {
            return;
        };
        let refused = Refused {
            errno: errno.unsigned_abs(),
            why: why.to_owned(),
            ..Refused::default()
        };
        let message = GuestMessage {
            id: FIRST_ID,
            body: Some(Said::Refused(refused)),
        };
        let mut frame = Vec::new();
        // A connection that has just come in has room for it; otherwise it is ended without a word.
        if frame::write(&mut frame, &message).is_ok() {
            let _ = send(&fd, &frame, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        }
    }
}

fn listen_vsock(cid: u32, port: u32) -> io::Result<OwnedFd> {
    let (fd, address) = vsock(cid, port)?;
    set_vsock(&fd, SO_VM_SOCKETS_BUFFER_MAX_SIZE, &VSOCK_BUFFER)?;
    set_vsock(&fd, SO_VM_SOCKETS_BUFFER_SIZE, &VSOCK_BUFFER)?;
    // SAFETY: the address is a live structure of that size.
    let bound = unsafe {
        libc::bind(
            fd.as_raw_fd(),
            (&raw const address).cast(),
            size_of_val(&address) as libc::socklen_t,
        )
    };
    // SAFETY: the call takes only integers.
    if bound < 0 || unsafe { libc::listen(fd.as_raw_fd(), BACKLOG) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(fd)
}

fn accept_vsock(listener: &OwnedFd) -> io::Result<Waiting> {
    // SAFETY: the structure consists of integers, for which zero is valid.
    let mut peer: libc::sockaddr_vm = unsafe { std::mem::zeroed() };
    let mut len = size_of_val(&peer) as libc::socklen_t;
    // SAFETY: both are live and of the given sizes.
    let fd = unsafe {
        libc::accept4(
            listener.as_raw_fd(),
            (&raw mut peer).cast(),
            &raw mut len,
            libc::SOCK_CLOEXEC,
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just made, and no other code owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let name = format!("vsock:{}:{}", peer.svm_cid, peer.svm_port);
    // Processes of the machine itself, which need not be root to connect, and those of other
    // machines must not get what is the host's.
    if peer.svm_cid != HOST_CID {
        return Ok(Waiting {
            peer: name,
            step: Step::Stranger("it is not the host: only that may connect by vsock"),
        });
    }
    Ok(Waiting::plain(name, fd))
}

/// Makes a socket that only its owner can connect to. A socket that an earlier process left behind
/// is replaced.
fn listen_unix(path: &Path) -> io::Result<UnixListener> {
    let stale = std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket())
        && UnixStream::connect(path)
            .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
    if stale {
        std::fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

fn unix_peer(stream: &UnixStream) -> String {
    match rustix::net::sockopt::socket_peercred(stream) {
        Ok(peer) => format!("unix:pid={},uid={}", peer.pid, peer.uid.as_raw()),
        Err(_) => "unix:?".into(),
    }
}

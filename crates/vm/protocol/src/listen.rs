//! Waiting for hosts.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use beeline_uapi::linux::{SO_VM_SOCKETS_BUFFER_MAX_SIZE, SO_VM_SOCKETS_BUFFER_SIZE};
use rustix::net::listen;

use crate::address::{Address, HOST_CID};
use crate::channel::{Channel, Coat, Cutter, Error, set_vsock, vsock};
use crate::peer::Peer;
use crate::serial;
use crate::stream::Stream;
use crate::tls::{Server, Tls};

/// The buffer of a vsock connection in bytes: with the kernel's 256 KiB, many small messages at
/// once reset it on Linux 6.12.
const VSOCK_BUFFER: u64 = 4 << 20;
/// The most connections that wait to be taken. Beyond them a connection by vsock is reset, and one
/// by TCP is tried again after a second, be it a host's or one of many by somebody else.
const BACKLOG: i32 = 1024;
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
                Kind::Tcp(listen_tcp(*at).map_err(failed)?, server)
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
        self.next().map_err(failed)
    }

    fn next(&self) -> io::Result<Waiting> {
        match &self.kind {
            Kind::Vsock(fd) => accept_vsock(fd),
            Kind::Unix(listener, _) => {
                let (stream, _) = listener.accept()?;
                let (name, peer) = unix_peer(&stream);
                Waiting::new(name, peer, stream, Step::Plain)
            }
            Kind::Tcp(listener, server) => {
                let (stream, from) = listener.accept()?;
                // Without this option a connection is slow, but works.
                let _ = stream.set_nodelay(true);
                let step = server.clone().map_or(Step::Plain, Step::Tls);
                Waiting::new(format!("tcp:{from}"), Peer::at(from.ip()), stream, step)
            }
            Kind::Serial(port) => port.wait().map(|(stream, session)| Waiting {
                name: self.address.to_string(),
                peer: Peer::Line(port.path().to_owned()),
                stream,
                step: Step::Serial(session),
            }),
        }
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
    name: String,
    peer: Peer,
    stream: Arc<Stream>,
    step: Step,
}

#[derive(Debug)]
enum Step {
    Plain,
    Tls(Server),
    Serial(serial::Session),
    /// A peer that is not served.
    Stranger(&'static str),
}

impl Waiting {
    fn new(name: String, peer: Peer, fd: impl Into<OwnedFd>, step: Step) -> io::Result<Self> {
        let stream = Arc::new(Stream::new(fd.into())?);
        Ok(Self {
            name,
            peer,
            stream,
            step,
        })
    }

    /// Returns the name of the other end, for messages and logs.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the peer, whose connections have their limits together.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Returns the reason why the peer must not be served, if there is one.
    pub fn stranger(&self) -> Option<&'static str> {
        match self.step {
            Step::Stranger(why) => Some(why),
            _ => None,
        }
    }

    /// Returns a handle that ends the connection, also while [`Self::accept`] waits.
    pub fn cutter(&self) -> Cutter {
        Cutter::new(self.stream.clone())
    }

    /// Agrees on the channel with it. A peer that is silent costs 5 s, and one that is slow as long
    /// as it likes: the caller cuts it off.
    ///
    /// # Errors
    ///
    /// `PermissionDenied` if the peer is not to be served; those of the system's calls, and of the
    /// TLS handshake.
    pub fn accept(self) -> io::Result<Channel> {
        let stream = self.stream;
        let coat = match self.step {
            Step::Plain => Coat::Plain,
            Step::Tls(server) => Coat::Tls(server.accept(&stream)?),
            Step::Serial(session) => Coat::Serial(session),
            Step::Stranger(why) => {
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
            }
        };
        Ok(Channel::new(stream, coat, self.name))
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
    if bound < 0 {
        return Err(io::Error::last_os_error());
    }
    listen(&fd, BACKLOG)?;
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
    let step = match peer.svm_cid {
        HOST_CID => Step::Plain,
        _ => Step::Stranger("it is not the host: only that may connect by vsock"),
    };
    Waiting::new(name, Peer::Machine(peer.svm_cid), fd, step)
}

fn listen_tcp(at: SocketAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(at)?;
    listen(&listener, BACKLOG)?;
    Ok(listener)
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
    listen(&listener, BACKLOG)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

fn unix_peer(stream: &UnixStream) -> (String, Peer) {
    match rustix::net::sockopt::socket_peercred(stream) {
        Ok(peer) => {
            let uid = peer.uid.as_raw();
            let name = format!("unix:pid={},uid={uid}", peer.pid);
            (name, Peer::User(Some(uid)))
        }
        Err(_) => ("unix:?".into(), Peer::User(None)),
    }
}

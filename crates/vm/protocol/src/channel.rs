//! A connection to a guest, or of a host: a stream of bytes in both directions, on any carrier.

use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use beeline_uapi::linux::SO_VM_SOCKETS_CONNECT_TIMEOUT;
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use crate::address::Address;
use crate::held::HeldSocket;
use crate::serial;
use crate::stream::Stream;
use crate::tls::{self, Tls};

/// The reason why there is no connection.
#[derive(Debug, thiserror::Error)]
#[error("{address}: {what}: {cause}{hint}")]
pub struct Error {
    address: String,
    what: &'static str,
    /// Part of the message, and so not repeated as the source.
    cause: io::Error,
    hint: &'static str,
}

impl Error {
    pub(crate) fn new(address: &Address, what: &'static str, cause: impl Into<io::Error>) -> Self {
        let cause = cause.into();
        let hint = hint(address, &cause, what);
        Self {
            address: address.to_string(),
            what,
            cause,
            hint,
        }
    }

    /// Returns the errno or its like behind it.
    pub fn kind(&self) -> io::ErrorKind {
        self.cause.kind()
    }
}

/// The device of the kernel's vsock for virtual machines.
const VHOST_VSOCK: &str = "/dev/vhost-vsock";

/// Returns advice for the user.
fn hint(address: &Address, cause: &io::Error, what: &str) -> &'static str {
    use io::ErrorKind::*;
    const NO_SUCH_MACHINE: [Option<i32>; 4] = [
        Some(libc::ENODEV),
        Some(libc::EAFNOSUPPORT),
        Some(libc::ENETUNREACH),
        Some(libc::EINVAL),
    ];
    match (address, cause.kind()) {
        _ if what != CONNECTING => "",
        (Address::Vsock { .. }, _) if NO_SUCH_MACHINE.contains(&cause.raw_os_error()) => {
            match Path::new(VHOST_VSOCK).exists() {
                true => {
                    "; no virtual machine here has that guest-cid (QEMU: -device vhost-vsock-pci,guest-cid=CID)"
                }
                false => {
                    "; this machine's kernel has no vsock for virtual machines: there is no /dev/vhost-vsock. \
                     Load the module vhost_vsock (modprobe vhost_vsock); or have vhost-device-vsock lead to the \
                     machine, and give its uds:PATH"
                }
            }
        }
        (Address::Vsock { .. }, ConnectionReset | TimedOut) => {
            "; does `beeline guest` run in that machine?"
        }
        (Address::Uds { .. }, UnexpectedEof | ConnectionReset) => {
            "; does `beeline guest` run in the machine, and listen to that port?"
        }
        (Address::Uds { .. } | Address::Unix { .. }, NotFound | ConnectionRefused) => {
            "; is the virtual machine or `beeline guest` running, and is that its socket?"
        }
        (Address::Uds { .. } | Address::Unix { .. }, TimedOut) => {
            "; has whoever listens there been stopped, or does it hang?"
        }
        (Address::Serial { .. }, TimedOut) => {
            "; does `beeline guest` listen to that port, and is nobody else connected to it?"
        }
        (Address::Tcp { .. }, ConnectionRefused) => {
            "; does `beeline guest` listen to that address?"
        }
        _ => "",
    }
}

const CONNECTING: &str = "cannot be connected to";

/// A connection.
#[derive(Debug)]
pub struct Channel {
    stream: Arc<Stream>,
    coat: Coat,
    peer: String,
    again: Option<Address>,
}

/// The wrapping of the bytes.
#[derive(Debug)]
pub(crate) enum Coat {
    Plain,
    Tls(Arc<tls::Session>),
    Serial(serial::Session),
}

impl Channel {
    pub(crate) fn new(stream: Arc<Stream>, coat: Coat, peer: String) -> Self {
        let again = None;
        Self {
            stream,
            coat,
            peer,
            again,
        }
    }

    /// Connects to a guest. TCP needs certificates unless its address says that it shall be
    /// insecure.
    ///
    /// # Errors
    ///
    /// An [`Error`] with the reason: those of the system's calls, certificates that cannot be used,
    /// or `InvalidInput` if TCP has no certificates and its address does not say `insecure`.
    pub fn connect(address: &Address, tls: Option<&Tls>) -> Result<Self, Error> {
        let failed = |error| Error::new(address, CONNECTING, error);
        let peer = address.to_string();
        let plain = |fd| Self::plain(fd, address);
        match address {
            Address::Vsock { cid, port } => connect_vsock(*cid, *port).and_then(plain),
            Address::Unix { path } => connect_unix(path).and_then(plain),
            Address::Uds { path, port } => {
                connect_unix(path).and_then(|fd| Self::to_port(fd, *port, address))
            }
            Address::Tcp { at, insecure } => {
                let tls = match (tls, insecure) {
                    (_, true) => None,
                    (Some(tls), _) => Some(tls.client().map_err(|error| {
                        Error::new(address, "its certificates are of no use", error)
                    })?),
                    (None, _) => {
                        let why = "TCP wants a certificate of both sides: give --tls-cert, --tls-key and --tls-ca, or \
                                   tcp+insecure: where nobody else can reach the port";
                        return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, why)));
                    }
                };
                std::net::TcpStream::connect_timeout(at, crate::stream::PATIENCE).and_then(|tcp| {
                    tcp.set_nodelay(true)?;
                    let stream = Arc::new(Stream::new(tcp.into())?);
                    let coat = match tls {
                        None => Coat::Plain,
                        Some(tls) => Coat::Tls(tls.connect(&stream, at.ip())?),
                    };
                    Ok(Self::new(stream, coat, peer.clone()))
                })
            }
            Address::Serial { path } => {
                serial::open_host(path).and_then(|fd| Self::on_line(fd, address))
            }
        }
        .map(|channel| {
            let again = match address {
                Address::Serial { .. } | Address::Tcp { insecure: false, .. } => None,
                _ => Some(address.clone()),
            };
            Self { again, ..channel }
        })
        .map_err(failed)
    }

    /// Connects to a guest by a socket that has been looked at, if the process that listens does so
    /// for a user that may.
    ///
    /// # Errors
    ///
    /// An [`Error`] with the reason: those of the system's calls, `PermissionDenied` if another user
    /// listens, or `InvalidInput` if the address is not one of a socket in the file system.
    pub fn connect_held(
        address: &Address,
        socket: &HeldSocket,
        may_listen: impl FnOnce(u32) -> bool,
    ) -> Result<Self, Error> {
        let connect = || socket.connect(may_listen);
        match address {
            Address::Unix { .. } => connect().and_then(|fd| Self::plain(fd, address)),
            Address::Uds { port, .. } => connect().and_then(|fd| Self::to_port(fd, *port, address)),
            Address::Serial { .. } => connect().and_then(|fd| Self::on_line(fd, address)),
            Address::Vsock { .. } | Address::Tcp { .. } => {
                let why = "it has no socket in the file system";
                Err(io::Error::new(io::ErrorKind::InvalidInput, why))
            }
        }
        .map_err(|error| Error::new(address, CONNECTING, error))
    }

    fn plain(fd: OwnedFd, address: &Address) -> io::Result<Self> {
        let stream = Arc::new(Stream::new(fd)?);
        Ok(Self::new(stream, Coat::Plain, address.to_string()))
    }

    /// Has a virtual machine monitor lead a connection to a port of its guest.
    fn to_port(fd: OwnedFd, port: u32, address: &Address) -> io::Result<Self> {
        let channel = Self::plain(fd, address)?;
        ask_for_port(&channel.stream, port)?;
        Ok(channel)
    }

    fn on_line(fd: OwnedFd, address: &Address) -> io::Result<Self> {
        let (stream, session) = serial::connect(fd)?;
        Ok(Self::new(
            stream,
            Coat::Serial(session),
            address.to_string(),
        ))
    }

    /// Sets how long the other side may be silent, and take nothing, in place of
    /// [`PATIENCE`](crate::stream::PATIENCE).
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn set_patience(&self, patience: Duration) -> io::Result<()> {
        self.stream.set_patience(patience)
    }

    /// Returns how long the other side may be silent.
    pub fn patience(&self) -> Duration {
        self.stream.patience()
    }

    /// Returns the name of the other end, for messages and logs.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// Returns where another connection to the same guest can be made with only the protocol's
    /// bytes. `None` if there can be only one, as on a serial line, or if the data are encrypted.
    pub fn again(&self) -> Option<&Address> {
        self.again.as_ref()
    }

    /// Splits it into its two directions, for two threads.
    pub fn split(self) -> (Reader, Writer) {
        let (read, write) = match self.coat {
            Coat::Plain => (In::Plain, Out::Plain),
            Coat::Tls(session) => (In::Tls(session.clone()), Out::Tls(session)),
            Coat::Serial(session) => {
                let (read, write) = session.split();
                (In::Serial(read), Out::Serial(write))
            }
        };
        let reader = Reader {
            stream: self.stream.clone(),
            coat: read,
        };
        let writer = Writer {
            stream: self.stream,
            coat: write,
        };
        (reader, writer)
    }
}

/// The incoming direction. A read ends with an error after too long a time without a byte.
#[derive(Debug)]
pub struct Reader {
    stream: Arc<Stream>,
    coat: In,
}

#[derive(Debug)]
enum In {
    Plain,
    Tls(Arc<tls::Session>),
    Serial(serial::Unwrap),
}

impl Reader {
    /// Lets reads wait forever from now on.
    ///
    /// # Errors
    ///
    /// `Unsupported` for a stream that is no socket.
    pub fn bear_silence(&self) -> io::Result<()> {
        self.stream.bear_silence()
    }

    /// As [`Channel::set_patience`], for both directions.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn set_patience(&self, patience: Duration) -> io::Result<()> {
        self.stream.set_patience(patience)
    }

    /// Returns how long its reads wait.
    pub fn patience(&self) -> Duration {
        self.stream.patience()
    }
}

impl Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &mut self.coat {
            In::Plain => self.stream.read(buffer),
            In::Tls(session) => session.read(&self.stream, buffer),
            In::Serial(chunks) => chunks.read(&self.stream, buffer),
        }
    }
}

/// The outgoing direction. A write ends with an error after too long a time in which nothing of it
/// was taken.
#[derive(Debug)]
pub struct Writer {
    stream: Arc<Stream>,
    coat: Out,
}

#[derive(Debug)]
enum Out {
    Plain,
    Tls(Arc<tls::Session>),
    Serial(serial::Wrap),
}

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.coat {
            Out::Plain => self.stream.write(bytes),
            Out::Tls(session) => session.write(&self.stream, bytes),
            Out::Serial(chunks) => chunks.write(&self.stream, bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Writer {
    /// Returns how long its writes wait.
    pub fn patience(&self) -> Duration {
        self.stream.patience()
    }

    /// True if there is room for some bytes.
    pub fn is_ready(&self) -> bool {
        self.stream.is_ready()
    }

    /// Returns a handle that ends the connection, from any thread.
    pub fn cutter(&self) -> Cutter {
        Cutter(self.stream.clone())
    }
}

/// Ends a connection: readers and writers get the end or an error, here and at the other side.
#[derive(Debug, Clone)]
pub struct Cutter(Arc<Stream>);

impl Cutter {
    /// Returns the stream below the wrapping.
    pub(crate) fn stream(&self) -> &Stream {
        &self.0
    }

    /// Creates a handle that ends the connection on a stream.
    pub(crate) fn new(stream: Arc<Stream>) -> Self {
        Self(stream)
    }

    /// True if something has come from the other side that nobody has read yet.
    pub fn has_input(&self) -> bool {
        self.0.has_input()
    }

    /// Ends the outgoing direction, and waits for the other side to end the rest, so that it gets
    /// the last bytes.
    pub fn end_politely(&self) {
        self.0.end_politely();
    }

    /// Ends the connection. A second call does nothing.
    pub fn cut(&self) {
        self.0.end();
    }
}

pub(crate) fn connect_unix(path: &Path) -> io::Result<OwnedFd> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
    let fd = socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    let address = SocketAddrUnix::new(path)?;
    // If the queue is full, it waits to get into it.
    sockopt::set_socket_timeout(&fd, Timeout::Send, Some(crate::stream::PATIENCE))?;
    loop {
        match connect(&fd, &address) {
            Ok(()) => return Ok(fd),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                let why = format!(
                    "its queue is full, and nobody was taken from it for {} s",
                    crate::stream::PATIENCE.as_secs()
                );
                return Err(io::Error::new(io::ErrorKind::TimedOut, why));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Returns a vsock socket, and the address in the kernel's form.
pub(crate) fn vsock(cid: u32, port: u32) -> io::Result<(OwnedFd, libc::sockaddr_vm)> {
    // SAFETY: the call takes integers, and returns a new descriptor or -1.
    let fd = unsafe { libc::socket(libc::AF_VSOCK, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just made, and no other code owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: the structure consists of integers, for which zero is valid.
    let mut address: libc::sockaddr_vm = unsafe { std::mem::zeroed() };
    address.svm_family = libc::AF_VSOCK as libc::sa_family_t;
    address.svm_cid = cid;
    address.svm_port = port;
    Ok((fd, address))
}

fn connect_vsock(cid: u32, port: u32) -> io::Result<OwnedFd> {
    let (fd, address) = vsock(cid, port)?;
    let patience = libc::timeval {
        tv_sec: crate::stream::PATIENCE.as_secs() as libc::time_t,
        tv_usec: 0,
    };
    // A machine that does not answer must not keep the caller waiting. Where the option is missing
    // the kernel's own 2 s hold.
    let _ = set_vsock(&fd, SO_VM_SOCKETS_CONNECT_TIMEOUT, &patience);
    // SAFETY: the address is a live structure of that size.
    let connected = unsafe {
        libc::connect(
            fd.as_raw_fd(),
            (&raw const address).cast(),
            size_of_val(&address) as libc::socklen_t,
        )
    };
    if connected < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(fd)
}

/// Sets an option of `AF_VSOCK`.
pub(crate) fn set_vsock<T: Copy>(fd: &OwnedFd, option: i32, value: &T) -> io::Result<()> {
    // SAFETY: the value is a live structure of that size.
    let set = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::AF_VSOCK,
            option,
            (&raw const *value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if set < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Asks a virtual machine monitor for a port of its guest.
fn ask_for_port(stream: &Stream, port: u32) -> io::Result<()> {
    stream.write_all(format!("CONNECT {port}\n").as_bytes())?;
    let mut answer = Vec::new();
    let mut byte = [0];
    // Byte by byte: the bytes behind the line are the guest's.
    while answer.len() < 64 && stream.read(&mut byte)? == 1 {
        if byte[0] == b'\n' {
            if answer.starts_with(b"OK") {
                return Ok(());
            }
            let why = format!("it said {:?}", String::from_utf8_lossy(&answer));
            return Err(io::Error::new(io::ErrorKind::ConnectionRefused, why));
        }
        answer.push(byte[0]);
    }
    Err(io::Error::new(
        io::ErrorKind::UnexpectedEof,
        "the guest takes no connection at that port",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_vsock_does_not_reach_comes_with_what_to_do() {
        let address = Address::Vsock { cid: 3, port: 8790 };
        let there = Path::new(VHOST_VSOCK).exists();
        for errno in [libc::ENODEV, libc::EAFNOSUPPORT] {
            let cause = io::Error::from_raw_os_error(errno);
            let error = Error::new(&address, CONNECTING, cause).to_string();
            let advice = ["modprobe vhost_vsock", "guest-cid=CID"][usize::from(there)];
            assert!(
                error.contains("vsock:3:8790") && error.contains(advice),
                "{error}"
            );
        }
        let cause = io::Error::from_raw_os_error(libc::ECONNRESET);
        let error = Error::new(&address, CONNECTING, cause).to_string();
        assert!(error.contains("does `beeline guest` run"), "{error}");
    }
}

//! A descriptor as a stream of bytes, with reads and writes that give up after a while and can be
//! ended from another thread.
//!
//! A socket does that by itself: reads and writes are one system call each. Devices have to be
//! polled.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::net::{
    RecvFlags, SendFlags, Shutdown, recv, send, shutdown, sockopt, sockopt::Timeout,
};

/// The longest silence of a peer, and the longest time in which it takes nothing, before it counts
/// as gone.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// The most that a peer may ask for in place of that: a connection that is never given up keeps what
/// it has.
pub const MOST_PATIENCE: Duration = Duration::from_secs(600);
/// The fewest bytes of a message in a second, from its beginning on: a peer that takes or sends less
/// would hold what the message takes for as long as it likes.
pub const SLOWEST: u64 = 64 << 10;
/// The most bytes that are written at once: some virtual machines' vsock devices drop longer
/// writes.
pub const PIECE: usize = 16 << 10;

/// The stream. Any number of threads may read, write and end it.
#[derive(Debug)]
pub struct Stream {
    fd: OwnedFd,
    /// True if its calls wait by themselves, as long as there is patience, or until it is shut down.
    is_socket: bool,
    /// The time that its calls wait, in milliseconds.
    patience: AtomicU64,
    over: AtomicBool,
    /// Readable once the stream is over, for threads that poll. A socket needs none.
    ended: Option<OwnedFd>,
}

impl Stream {
    /// Creates a stream of a connected socket or an open character device.
    ///
    /// # Errors
    ///
    /// The system's, if the descriptor cannot be set up.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        let flags = rustix::fs::fcntl_getfl(&fd)?;
        let is_socket = sockopt::socket_type(&fd).is_ok();
        let mut ended = None;
        if is_socket {
            rustix::fs::fcntl_setfl(&fd, flags.difference(OFlags::NONBLOCK))?;
        } else {
            rustix::fs::fcntl_setfl(&fd, flags | OFlags::NONBLOCK)?;
            ended = Some(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        }
        let stream = Self {
            fd,
            is_socket,
            patience: AtomicU64::new(0),
            over: AtomicBool::new(false),
            ended,
        };
        stream.set_patience(PATIENCE)?;
        Ok(stream)
    }

    /// Sets how long reads and writes wait, from the next one on; [`PATIENCE`] before.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn set_patience(&self, patience: Duration) -> io::Result<()> {
        if self.is_socket {
            for direction in [Timeout::Recv, Timeout::Send] {
                sockopt::set_socket_timeout(&self.fd, direction, Some(patience))?;
            }
        }
        let milliseconds = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX);
        self.patience.store(milliseconds, Ordering::Relaxed);
        Ok(())
    }

    /// Returns how long its calls wait.
    pub fn patience(&self) -> Duration {
        Duration::from_millis(self.patience.load(Ordering::Relaxed))
    }

    /// Reads at most `buffer.len()` bytes, 0 at the end.
    ///
    /// # Errors
    ///
    /// `TimedOut` after its patience without any, `ConnectionAborted` once it has been ended here.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.patiently(PollFlags::IN, "nothing has been heard", |fd| {
            match self.is_socket {
                true => recv(fd, &mut *buffer, RecvFlags::empty()).map(|(count, _)| count),
                false => rustix::io::read(fd, &mut *buffer),
            }
        })
    }

    /// Writes at least one byte of `bytes`, if there is one.
    ///
    /// # Errors
    ///
    /// As for [`Stream::read`].
    pub fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let piece = &bytes[..bytes.len().min(PIECE)];
        self.patiently(PollFlags::OUT, "nothing has been taken", |fd| {
            match self.is_socket {
                // A socket must not raise a signal if its peer has gone.
                true => send(fd, piece, SendFlags::NOSIGNAL),
                false => rustix::io::write(fd, piece),
            }
        })
    }

    /// Lets reads wait forever from now on.
    ///
    /// # Errors
    ///
    /// `Unsupported` for a stream that is no socket.
    pub fn bear_silence(&self) -> io::Result<()> {
        match self.is_socket {
            true => Ok(sockopt::set_socket_timeout(&self.fd, Timeout::Recv, None)?),
            false => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// True if something could be written at once.
    pub fn is_ready(&self) -> bool {
        self.is_now(PollFlags::OUT)
    }

    /// True if something has come that nobody has read yet.
    pub(crate) fn has_input(&self) -> bool {
        self.is_now(PollFlags::IN)
    }

    fn is_now(&self, ready_for: PollFlags) -> bool {
        let mut polled = [PollFd::new(&self.fd, ready_for)];
        let ready = poll(&mut polled, Some(&Timespec::default()));
        ready.is_ok_and(|count| count > 0)
    }

    /// Writes all bytes.
    ///
    /// # Errors
    ///
    /// Those of [`Stream::write`]; `TimedOut` if they are taken more slowly than [`SLOWEST`].
    pub fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        let deadline = Instant::now() + longest(self.patience(), bytes.len());
        while !bytes.is_empty() {
            let written = self.write(bytes)?;
            bytes = &bytes[written..];
            if !bytes.is_empty() && Instant::now() > deadline {
                return Err(too_slow("taken"));
            }
        }
        Ok(())
    }

    /// Ends both sides' reads and writes.
    pub fn end(&self) {
        self.over.store(true, Ordering::Release);
        if let Some(ended) = &self.ended {
            // It can only be full, and then it is readable as well.
            let _ = rustix::io::write(ended, &1_u64.to_ne_bytes());
        }
        // A stream that is no socket has no other side to be told.
        let _ = shutdown(&self.fd, Shutdown::Both);
    }

    /// Ends the outgoing direction, and leaves it to the other side to end the rest, so that it
    /// still gets the last bytes: a socket that is closed before everything has been read is reset.
    /// Incoming bytes are discarded, up to some length.
    pub(crate) fn end_politely(&self) {
        const MOST: usize = 64;
        let _ = shutdown(&self.fd, Shutdown::Write);
        let mut buffer = [0; 4096];
        for _ in 0..MOST {
            if !matches!(self.read(&mut buffer), Ok(1..)) {
                return;
            }
        }
    }

    fn patiently(
        &self,
        until: PollFlags,
        what: &str,
        mut attempt: impl FnMut(BorrowedFd<'_>) -> rustix::io::Result<usize>,
    ) -> io::Result<usize> {
        let mut deadline = None;
        loop {
            if self.over.load(Ordering::Acquire) {
                return Err(ended());
            }
            match attempt(self.fd.as_fd()) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if self.is_socket => return Err(too_long(what, self.patience())),
                Err(Errno::AGAIN) => {
                    let patience = self.patience();
                    let deadline = deadline.get_or_insert_with(|| Instant::now() + patience);
                    if !self.poll(until, *deadline)? {
                        return Err(too_long(what, patience));
                    }
                }
                // It was shut down while it waited.
                Ok(0) | Err(_) if self.over.load(Ordering::Acquire) => return Err(ended()),
                done => return Ok(done?),
            }
        }
    }

    /// Waits until something can be done, or the stream is over. Returns false if neither happened
    /// before the deadline.
    fn poll(&self, until: PollFlags, deadline: Instant) -> io::Result<bool> {
        let ended = self.ended.as_ref().unwrap_or(&self.fd);
        let mut polled = [
            PollFd::new(&self.fd, until),
            PollFd::new(ended, PollFlags::IN),
        ];
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        match poll(&mut polled, Some(&left)) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::INTR) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }
}

/// Returns how long so many bytes may take on their way.
pub(crate) fn longest(patience: Duration, bytes: usize) -> Duration {
    patience + Duration::from_millis(bytes as u64 * 1000 / SLOWEST)
}

/// The error for bytes that were not "sent", or "taken", in time.
pub(crate) fn too_slow(what: &str) -> io::Error {
    let why = format!("a message is {what} too slowly");
    io::Error::new(io::ErrorKind::TimedOut, why)
}

fn ended() -> io::Error {
    io::Error::new(
        io::ErrorKind::ConnectionAborted,
        "the connection has been ended",
    )
}

fn too_long(what: &str, patience: Duration) -> io::Error {
    let why = format!("{what} for {} s", patience.as_secs_f64());
    io::Error::new(io::ErrorKind::TimedOut, why)
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;
    use std::sync::mpsc::channel;
    use std::thread::{JoinHandle, spawn, yield_now};

    /// Returns streams that wait by themselves and one that is polled, each with something that
    /// keeps its other end open.
    fn streams() -> Vec<(Arc<Stream>, OwnedFd)> {
        let (unix, other) = UnixStream::pair().unwrap();
        // The previous owner may not have wanted to wait.
        unix.set_nonblocking(true).unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let tcp = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        let (pipe, end) = rustix::pipe::pipe().unwrap();
        let pairs: [(OwnedFd, OwnedFd); 3] = [
            (unix.into(), other.into()),
            (tcp.into(), far.into()),
            (pipe, end),
        ];
        let stream = |(fd, other)| (Arc::new(Stream::new(fd).unwrap()), other);
        pairs.map(stream).into()
    }

    /// Returns a thread that does something, once it sleeps or has done it.
    fn asleep<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        let (tell, told) = channel();
        let works = spawn(move || {
            tell.send(rustix::thread::gettid()).unwrap();
            work()
        });
        let thread = told.recv().unwrap().as_raw_nonzero();
        let sleeps = || {
            let status = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat"));
            status.is_ok_and(|status| status.contains(") S "))
        };
        while !sleeps() && !works.is_finished() {
            yield_now();
        }
        works
    }

    fn reader(stream: &Arc<Stream>) -> JoinHandle<io::Result<(usize, [u8; 4])>> {
        let stream = Arc::clone(stream);
        asleep(move || {
            let mut bytes = [0; 4];
            stream.read(&mut bytes).map(|count| (count, bytes))
        })
    }

    #[test]
    fn a_read_waits_for_what_comes() {
        for (stream, other) in streams() {
            let reads = reader(&stream);
            rustix::io::write(&other, b"some").unwrap();
            assert_eq!(reads.join().unwrap().unwrap(), (4, *b"some"));
            let reads = reader(&stream);
            drop(other);
            assert_eq!(reads.join().unwrap().unwrap().0, 0);
        }
    }

    #[test]
    fn a_read_that_waits_is_ended_from_another_thread() {
        for (stream, _other) in streams() {
            let reads = reader(&stream);
            stream.end();
            let error = reads.join().unwrap().unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
        }
    }

    #[test]
    fn a_write_that_waits_is_ended_from_another_thread() {
        for (stream, _other) in streams().drain(..2) {
            let writer = Arc::clone(&stream);
            let writes = asleep(move || {
                // Nothing reads, so it has to wait.
                loop {
                    if let Err(error) = writer.write_all(&[0; PIECE]) {
                        return error.kind();
                    }
                }
            });
            stream.end();
            let kind = writes.join().unwrap();
            assert_eq!(kind, io::ErrorKind::ConnectionAborted);
        }
    }

    #[test]
    fn silence_ends_a_read() {
        let all = streams();
        let readers: Vec<_> = all.iter().map(|(stream, _)| reader(stream)).collect();
        for reads in readers {
            let error = reads.join().unwrap().unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        }
    }
}

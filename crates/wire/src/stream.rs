//! A descriptor as a stream of bytes whose reads and writes give up after a while, and can be ended from another thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::OFlags;

/// A peer that is heard nothing of for so long, or takes nothing for so long, is gone.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// At most so many bytes are written at once: some virtual machines' vsock devices drop what is longer.
pub const PIECE: usize = 16 << 10;

/// The stream. Any number of threads may read, write and end it.
#[derive(Debug)]
pub struct Stream {
    fd: OwnedFd,
    over: AtomicBool,
    /// Readable once it is over, for whoever waits.
    ended: OwnedFd,
}

impl Stream {
    /// Of a connected socket or an open character device.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        let flags = rustix::fs::fcntl_getfl(&fd)?;
        rustix::fs::fcntl_setfl(&fd, flags | OFlags::NONBLOCK)?;
        let ended = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self {
            fd,
            over: AtomicBool::new(false),
            ended,
        })
    }

    /// At most `buffer.len()` bytes, 0 at the end. Errors: `TimedOut` after [`PATIENCE`] without any, `ConnectionAborted` once it
    /// has been ended here.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.patiently(PollFlags::IN, "nothing has been heard", |fd| {
            rustix::io::read(fd, &mut *buffer)
        })
    }

    /// At least one byte of `bytes` is written, if there is one. Errors: as for [`Stream::read`].
    pub fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let piece = &bytes[..bytes.len().min(PIECE)];
        self.patiently(PollFlags::OUT, "nothing has been taken", |fd| {
            // A socket whose peer has gone must not raise a signal.
            match rustix::net::send(fd, piece, rustix::net::SendFlags::NOSIGNAL) {
                Err(rustix::io::Errno::NOTSOCK) => rustix::io::write(fd, piece),
                sent => sent,
            }
        })
    }

    /// All bytes are written.
    pub fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let written = self.write(bytes)?;
            bytes = &bytes[written..];
        }
        Ok(())
    }

    /// Both sides' reads and writes end.
    pub fn end(&self) {
        self.over.store(true, Ordering::Release);
        // It can only be full, and then it is readable as well.
        let _ = rustix::io::write(&self.ended, &1_u64.to_ne_bytes());
        // What is no socket has no other side to be told.
        let _ = rustix::net::shutdown(&self.fd, rustix::net::Shutdown::Both);
    }

    /// Ends what is written, and leaves it to the other side to end the rest, so that it still hears what was written last: a socket
    /// that is closed before all has been read is reset. What comes meanwhile is thrown away, up to some length.
    pub(crate) fn end_politely(&self) {
        const MOST: usize = 64;
        let _ = rustix::net::shutdown(&self.fd, rustix::net::Shutdown::Write);
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
        let deadline = Instant::now() + PATIENCE;
        loop {
            if self.over.load(Ordering::Acquire) {
                return Err(io::Error::new(
                    io::ErrorKind::ConnectionAborted,
                    "the connection has been ended",
                ));
            }
            match attempt(self.fd.as_fd()) {
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
                done => return Ok(done?),
            }
            let mut polled = [
                PollFd::new(&self.fd, until),
                PollFd::new(&self.ended, PollFlags::IN),
            ];
            let left = deadline.saturating_duration_since(Instant::now());
            let left = Timespec {
                tv_sec: left.as_secs() as i64,
                tv_nsec: i64::from(left.subsec_nanos()),
            };
            match poll(&mut polled, Some(&left)) {
                Ok(0) => {
                    let why = format!("{what} for {} s", PATIENCE.as_secs());
                    return Err(io::Error::new(io::ErrorKind::TimedOut, why));
                }
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

//! A serial line of a virtual machine: one connection at a time on a stream without beginning or
//! end.
//!
//! The connecting side sends zeros, a sign and a random number until it gets the sign and the
//! number back. From then on bytes travel in chunks, each with the number, so that leftovers of an
//! earlier connection are not taken for part of this one. If a host was killed inside a chunk, the
//! next one's zeros fill that chunk up, and the zeros behind it do not begin a chunk.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::channel::connect_unix;
use crate::stream::{PATIENCE, Stream};

const SIGN: [u8; 8] = *b"BEELINE\x01";
const ANSWER: [u8; 8] = *b"BEELINE\x02";
/// The most bytes of a chunk, without its head.
const CHUNK: usize = 8 << 10;
/// The connection's number and the chunk's length, 4 bytes each.
const HEAD: usize = 8;
/// The most bytes that may be left of an earlier connection's chunk, with its head.
const ZEROS: usize = CHUNK + 2 * HEAD;
/// The interval at which the sign is sent again. It is lost if the guest has not opened the line.
const AGAIN: Duration = Duration::from_millis(500);
/// The interval of looks at a line without a connection: there is no way to wait for one but to
/// look.
const LOOK: Duration = Duration::from_millis(50);

/// One connection on the line.
#[derive(Debug)]
pub(crate) struct Session {
    number: u32,
}

impl Session {
    pub(crate) fn split(self) -> (Unwrap, Wrap) {
        let unwrap = Unwrap {
            number: self.number,
            left: 0,
            fresh: true,
        };
        (unwrap, Wrap(self.number))
    }
}

/// Takes chunks apart.
#[derive(Debug)]
pub(crate) struct Unwrap {
    number: u32,
    /// Bytes left of the current chunk.
    left: usize,
    /// True if no chunk has come yet: the sign may come once more, if it had been sent again before
    /// it was answered.
    fresh: bool,
}

impl Unwrap {
    pub(crate) fn read(&mut self, stream: &Stream, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 {
            let mut head = [0; HEAD];
            if !fill(stream, &mut head)? {
                return Ok(0);
            }
            while self.fresh && head == [0; HEAD] {
                let mut rest = vec![0; ZEROS - HEAD + SIGN.len() + size_of::<u32>()];
                if !fill(stream, &mut rest)? || !rest.ends_with(&self.number.to_ne_bytes()) {
                    return Err(reused());
                }
                if !fill(stream, &mut head)? {
                    return Ok(0);
                }
            }
            self.fresh = false;
            let [number, len] = [0, 4].map(|at| beeline_uapi::fields::u32_at(&head, at));
            let len = len as usize;
            if number != self.number || len == 0 || len > CHUNK {
                return Err(reused());
            }
            self.left = len;
        }
        let most = buffer.len().min(self.left);
        let count = stream.read(&mut buffer[..most])?;
        self.left -= count;
        Ok(count)
    }
}

fn reused() -> io::Error {
    io::Error::new(
        io::ErrorKind::ConnectionReset,
        "somebody else uses the line now",
    )
}

/// Puts bytes into chunks.
#[derive(Debug)]
pub(crate) struct Wrap(u32);

impl Wrap {
    pub(crate) fn write(&self, stream: &Stream, bytes: &[u8]) -> io::Result<usize> {
        let piece = &bytes[..bytes.len().min(CHUNK)];
        let mut chunk = Vec::with_capacity(HEAD + piece.len());
        chunk.extend(self.0.to_ne_bytes());
        chunk.extend((piece.len() as u32).to_ne_bytes());
        chunk.extend(piece);
        stream.write_all(&chunk)?;
        Ok(piece.len())
    }
}

/// Fills the buffer. Returns false if the stream ends before.
fn fill(stream: &Stream, mut buffer: &mut [u8]) -> io::Result<bool> {
    while !buffer.is_empty() {
        match stream.read(buffer)? {
            0 => return Ok(false),
            count => buffer = &mut buffer[count..],
        }
    }
    Ok(true)
}

/// Opens a character device, raw if it is a terminal. Nothing else is opened: the sign would
/// overwrite a file.
fn open(path: &Path) -> io::Result<OwnedFd> {
    use rustix::fs::{FileType, Mode, OFlags, fstat};
    let opened = |flags| {
        let fd = rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty())?;
        match FileType::from_raw_mode(fstat(&fd)?.st_mode) {
            FileType::CharacterDevice => Ok(fd),
            _ => {
                let why = "it is neither a character device nor the socket of a serial port";
                Err(io::Error::new(io::ErrorKind::InvalidInput, why))
            }
        }
    };
    // To open a pipe or a block device can have effects of its own.
    opened(OFlags::PATH)?;
    let fd = opened(OFlags::RDWR | OFlags::NOCTTY)?;
    // SAFETY: the structure consists of integers, for which zero is valid. The call fills it, or
    // fails if this is no terminal.
    unsafe {
        let mut mode: libc::termios = std::mem::zeroed();
        if libc::tcgetattr(fd.as_raw_fd(), &raw mut mode) == 0 {
            libc::cfmakeraw(&raw mut mode);
            libc::tcsetattr(fd.as_raw_fd(), libc::TCSANOW, &raw const mode);
        }
    }
    Ok(fd)
}

/// Opens the host's side of a line: a socket, or a character device.
pub(crate) fn open_host(path: &Path) -> io::Result<OwnedFd> {
    if std::fs::metadata(path)?.file_type().is_socket() {
        return connect_unix(path);
    }
    open(path)
}

/// Connects from the host's side: gives the sign until it is answered.
pub(crate) fn connect(fd: OwnedFd) -> io::Result<(Arc<Stream>, Session)> {
    let stream = Arc::new(Stream::new(fd)?);
    let mut random = [0; 4];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    // 0 would look like the bytes before a sign.
    let number = u32::from_ne_bytes(random) | 1;
    let mut answer = ANSWER.to_vec();
    answer.extend(number.to_ne_bytes());
    let deadline = Instant::now() + PATIENCE;
    let mut tail = Tail::new(answer.len());
    while Instant::now() < deadline {
        let mut sign = vec![0; ZEROS];
        sign.extend(SIGN);
        sign.extend(number.to_ne_bytes());
        stream.write_all(&sign)?;
        let next = Instant::now() + AGAIN;
        while readable_until(&stream, next)? {
            let mut byte = [0];
            if stream.read(&mut byte)? == 0 {
                let why = "the line's other end has been closed";
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, why));
            }
            tail.push(byte[0]);
            if tail.ends_with(&answer) {
                return Ok((stream, Session { number }));
            }
        }
    }
    let why = "no sign of a guest at the line";
    Err(io::Error::new(io::ErrorKind::TimedOut, why))
}

/// The last bytes of a stream.
struct Tail {
    bytes: Vec<u8>,
    most: usize,
}

impl Tail {
    fn new(most: usize) -> Self {
        Self {
            bytes: Vec::with_capacity(most + 1),
            most,
        }
    }

    fn push(&mut self, byte: u8) {
        self.bytes.push(byte);
        if self.bytes.len() > self.most {
            self.bytes.remove(0);
        }
    }

    fn ends_with(&self, bytes: &[u8]) -> bool {
        self.bytes.ends_with(bytes)
    }
}

fn readable_until(stream: &impl AsFd, deadline: Instant) -> io::Result<bool> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let left = deadline.saturating_duration_since(Instant::now());
    let left = Timespec {
        tv_sec: left.as_secs() as i64,
        tv_nsec: i64::from(left.subsec_nanos()),
    };
    let mut polled = [PollFd::new(stream, PollFlags::IN)];
    match poll(&mut polled, Some(&left)) {
        Ok(_) => Ok(polled[0].revents().contains(PollFlags::IN)),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// The guest's side of a line.
#[derive(Debug)]
pub(crate) struct Port {
    path: PathBuf,
    fd: OwnedFd,
    /// The connection that has the line.
    current: Mutex<Weak<Stream>>,
}

impl Port {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self {
            path: path.to_owned(),
            fd: open(path)?,
            current: Mutex::new(Weak::new()),
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Waits until the line is free and a host gives the sign.
    pub(crate) fn wait(&self) -> io::Result<(Arc<Stream>, Session)> {
        let mut current = self.current.lock();
        while current.strong_count() > 0 {
            std::thread::sleep(LOOK);
        }
        let stream = Arc::new(Stream::new(self.fd.try_clone()?)?);
        let number = Self::sign(&stream)?;
        let mut answer = ANSWER.to_vec();
        answer.extend(number.to_ne_bytes());
        stream.write_all(&answer)?;
        *current = Arc::downgrade(&stream);
        Ok((stream, Session { number }))
    }

    fn sign(stream: &Stream) -> io::Result<u32> {
        let len = SIGN.len() + size_of::<u32>();
        let mut tail = Tail::new(len);
        loop {
            if !readable_until(stream, Instant::now() + PATIENCE)? {
                // Where no host is connected the line is always "hung up".
                std::thread::sleep(LOOK);
                continue;
            }
            let mut byte = [0];
            match stream.read(&mut byte) {
                Ok(0) => std::thread::sleep(LOOK),
                Ok(_) => tail.push(byte[0]),
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {}
                Err(error) => return Err(error),
            }
            if tail.bytes.len() == len && tail.bytes.starts_with(&SIGN) {
                return Ok(beeline_uapi::fields::u32_at(&tail.bytes, SIGN.len()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_but_a_character_device_is_opened() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "content").unwrap();
        let refused = open_host(&path).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
        assert!(
            refused.to_string().contains("character device"),
            "{refused}"
        );
        assert_eq!(Port::open(&path).unwrap_err().kind(), refused.kind());
        assert_eq!(std::fs::read(&path).unwrap(), b"content");
        assert!(open(Path::new("/dev/null")).is_ok());
        let missing = open_host(&dir.path().join("missing")).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }
}

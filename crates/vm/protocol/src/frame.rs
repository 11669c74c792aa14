//! Frames. A frame is the length of a message in bytes, the CRC-32 of that length, and the CRC-32
//! of the message, each as 32 bits, little-endian; then the message. A byte that changed on its way
//! ends the connection; a wrong length would otherwise make both sides wait for the rest.

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use prost::Message;
use prost::bytes::Bytes;

use crate::stream::{PATIENCE, longest, too_slow};

/// The longest message.
pub const LONGEST: usize = 32 << 20;
/// Bytes before a message.
pub const HEAD: usize = 12;
/// The most bytes that are written at once: some virtual machines' vsock devices drop longer
/// writes.
const PIECE: usize = 16 << 10;
/// The most memory that is taken ahead for a message that is coming in.
const AHEAD: usize = 1 << 20;

/// The reason why no message came.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The stream failed, or ended inside a message.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The other side does not speak this protocol.
    #[error(
        "a message of {0} bytes was announced, more than the protocol has; is that the right port?"
    )]
    TooLong(usize),
    /// Likewise.
    #[error("what came is no frame of this protocol; is that the right port?")]
    NoFrame,
    /// Something between both sides changed it.
    #[error("a message was changed on its way")]
    Changed,
    /// Likewise.
    #[error("a message cannot be read: {0}")]
    Malformed(#[from] prost::DecodeError),
}

/// Writes a message.
///
/// # Errors
///
/// `InvalidInput` for a message longer than [`LONGEST`], and the stream's.
pub fn write<M: Message>(stream: &mut impl Write, message: &M) -> io::Result<()> {
    write_within(PATIENCE, stream, message)
}

/// As [`write()`], for a stream of that patience.
///
/// # Errors
///
/// Those of [`write()`].
pub fn write_within<M: Message>(
    patience: Duration,
    stream: &mut impl Write,
    message: &M,
) -> io::Result<()> {
    let len = message.encoded_len();
    if len > LONGEST {
        let why = format!("a message of {len} bytes is longer than the protocol has");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    let mut frame = Vec::with_capacity(HEAD + len);
    frame.extend([0; HEAD]);
    message.encode(&mut frame).map_err(io::Error::other)?;
    fill_head(&mut frame);
    write_framed(patience, stream, &frame)
}

/// Writes a message in its frame.
///
/// # Errors
///
/// The stream's; `TimedOut` if the frame is taken more slowly than
/// [`SLOWEST`](crate::stream::SLOWEST).
pub fn write_framed(patience: Duration, stream: &mut impl Write, frame: &[u8]) -> io::Result<()> {
    let deadline = Instant::now() + longest(patience, frame.len());
    for mut piece in frame.chunks(PIECE) {
        while !piece.is_empty() {
            if Instant::now() > deadline {
                return Err(too_slow("taken"));
            }
            match stream.write(piece) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => piece = &piece[written..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
    stream.flush()
}

/// Returns a frame around a message's bytes.
pub fn framed(message: &[u8]) -> Vec<u8> {
    let mut frame = [&[0; HEAD], message].concat();
    fill_head(&mut frame);
    frame
}

/// Writes a frame's head into the room for it.
pub(crate) fn fill_head(frame: &mut [u8]) {
    if let Some((head, message)) = frame.split_first_chunk_mut::<HEAD>() {
        *head = head_of(message.len() as u32, crc32fast::hash(message));
    }
}

/// Returns the numbers before a message.
fn numbers(head: &[u8; HEAD]) -> [u32; 3] {
    let mut numbers = head
        .chunks_exact(4)
        .filter_map(|number| number.first_chunk());
    std::array::from_fn(|_| u32::from_le_bytes(numbers.next().copied().unwrap_or_default()))
}

/// Returns the bytes before a message.
fn head_of(len: u32, sum: u32) -> [u8; HEAD] {
    let len = len.to_le_bytes();
    let [len_sum, sum] = [crc32fast::hash(&len), sum].map(u32::to_le_bytes);
    let mut head = [0; HEAD];
    let (numbers, _) = head.as_chunks_mut();
    numbers.copy_from_slice(&[len, len_sum, sum]);
    head
}

/// Reads a message; `None` if the stream ends before it.
///
/// # Errors
///
/// [`Error::Io`] if the stream fails, or ends inside the message; otherwise the [`Error`] names the
/// defect of the bytes.
pub fn read<M: Message + Default>(stream: &mut impl Read) -> Result<Option<M>, Error> {
    read_up_to(LONGEST, stream)
}

/// As [`read`], for at most this many bytes.
///
/// # Errors
///
/// Those of [`read`]; [`Error::TooLong`] for more bytes.
pub fn read_up_to<M: Message + Default>(
    longest: usize,
    stream: &mut impl Read,
) -> Result<Option<M>, Error> {
    read_metered(PATIENCE, longest, stream, &mut Unlimited)
}

/// Told of the memory that a message takes, before it is taken. An error ends the reading.
pub trait Meter {
    /// There will be so many bytes of the message.
    ///
    /// # Errors
    ///
    /// The reason why they must not be taken.
    fn grows(&mut self, bytes: usize) -> io::Result<()>;

    /// The message is about to be decoded, which takes more memory.
    ///
    /// # Errors
    ///
    /// The reason why it must not be.
    fn has_come(&mut self, message: &[u8]) -> io::Result<()>;
}

/// Takes whatever comes.
pub(crate) struct Unlimited;

impl Meter for Unlimited {
    fn grows(&mut self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn has_come(&mut self, _: &[u8]) -> io::Result<()> {
        Ok(())
    }
}

/// As [`read_up_to`], with a meter, from a stream of that patience.
///
/// # Errors
///
/// Those of [`read_up_to`], and the meter's.
pub fn read_metered<M: Message + Default>(
    patience: Duration,
    most: usize,
    stream: &mut impl Read,
    meter: &mut dyn Meter,
) -> Result<Option<M>, Error> {
    let mut head = [0; HEAD];
    let first = loop {
        match stream.read(&mut head) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => break read?,
        }
    };
    if first == 0 {
        return Ok(None);
    }
    let begun = Instant::now();
    fill(stream, &mut head[first..], begun + longest(patience, HEAD))?;
    let (len, sum) = announced(&head, most)?;
    let deadline = begun + longest(patience, len);
    let mut bytes = Vec::new();
    while bytes.len() < len {
        let start = bytes.len();
        let end = len.min(start + AHEAD);
        meter.grows(end)?;
        bytes.resize(end, 0);
        fill(stream, &mut bytes[start..], deadline)?;
    }
    if crc32fast::hash(&bytes) != sum {
        return Err(Error::Changed);
    }
    meter.has_come(&bytes)?;
    // From a slice, prost would copy each field twice.
    Ok(Some(M::decode(Bytes::from(bytes))?))
}

/// Reads until the buffer is full. A peer that sends a byte now and then is not waited for.
fn fill(stream: &mut impl Read, mut buffer: &mut [u8], deadline: Instant) -> io::Result<()> {
    while !buffer.is_empty() {
        if Instant::now() > deadline {
            return Err(too_slow("sent"));
        }
        match stream.read(buffer) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => buffer = &mut buffer[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Returns the message, of at most `longest` bytes, in the frame that the bytes begin with; `None`
/// if that is not complete.
///
/// # Errors
///
/// [`Error::TooLong`], [`Error::NoFrame`] or [`Error::Changed`].
pub fn first(longest: usize, bytes: &[u8]) -> Result<Option<&[u8]>, Error> {
    let Some((head, rest)) = bytes.split_first_chunk() else {
        return Ok(None);
    };
    let (len, sum) = announced(head, longest)?;
    match rest.get(..len) {
        Some(message) if crc32fast::hash(message) != sum => Err(Error::Changed),
        message => Ok(message),
    }
}

/// Returns the length and the sum of the message behind a head.
fn announced(head: &[u8; HEAD], longest: usize) -> Result<(usize, u32), Error> {
    let [len, _, sum] = numbers(head);
    if *head != head_of(len, sum) {
        return Err(Error::NoFrame);
    }
    let len = len as usize;
    if len > longest {
        return Err(Error::TooLong(len));
    }
    Ok((len, sum))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::{Bpf, HostMessage, host_message::Body};
    use beeline_uapi::Command;

    fn message(bytes: usize) -> HostMessage {
        let bpf = Bpf {
            command: Command::MAP_LOOKUP_ELEM.0,
            attr: vec![7; bytes],
            ..Bpf::default()
        };
        HostMessage {
            id: 3,
            body: Some(Body::Bpf(bpf)),
        }
    }

    #[test]
    fn messages_come_out_as_they_went_in() {
        let mut stream = Vec::new();
        for bytes in [0, 1, PIECE, 3 * AHEAD + 1] {
            write(&mut stream, &message(bytes)).unwrap();
        }
        let mut stream = stream.as_slice();
        for bytes in [0, 1, PIECE, 3 * AHEAD + 1] {
            assert_eq!(read(&mut stream).unwrap(), Some(message(bytes)));
        }
        assert_eq!(read::<HostMessage>(&mut stream).unwrap(), None);
    }

    #[test]
    fn malformed_frames_are_errors() {
        let read = |bytes: &[u8]| read::<HostMessage>(&mut &*bytes);
        assert!(matches!(read(b"GET / HTTP/1.1\r\n"), Err(Error::NoFrame)));
        let bad = [255; 4];
        let framed = framed(&bad);
        assert!(matches!(read(&framed), Err(Error::Malformed(_))));
        assert!(matches!(read(&framed[..3]), Err(Error::Io(_))));
        let long = head_of(LONGEST as u32 + 1, 0);
        assert!(matches!(read(&long), Err(Error::TooLong(_))));
        // Announced, but not there: no memory is taken for it.
        let missing = head_of(LONGEST as u32, 0);
        assert!(matches!(read(&missing), Err(Error::Io(_))));
    }

    #[test]
    fn a_frame_is_found_where_it_came_in() {
        let (one, two) = (framed(b"one"), framed(b"two"));
        let both = [one.clone(), two].concat();
        for len in 0..one.len() {
            assert!(matches!(first(3, &both[..len]), Ok(None)));
        }
        for len in one.len()..=both.len() {
            assert!(matches!(first(3, &both[..len]), Ok(Some(b"one"))));
        }
        assert!(matches!(first(2, &both), Err(Error::TooLong(3))));
    }

    #[test]
    fn no_byte_changes_unseen() {
        let mut stream = Vec::new();
        write(&mut stream, &message(100)).unwrap();
        for at in 0..stream.len() {
            let mut changed = stream.clone();
            changed[at] ^= 0x10;
            let read = read::<HostMessage>(&mut changed.as_slice()).map(drop);
            for read in [read, first(LONGEST, &changed).map(drop)] {
                assert!(
                    matches!(read, Err(Error::NoFrame | Error::Changed)),
                    "byte {at}"
                );
            }
        }
    }
}

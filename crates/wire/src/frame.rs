//! Frames: a message's length in bytes as 32 bits, little-endian, then the message.

use std::io::{self, Read, Write};

use prost::Message;

/// The longest message.
pub const LONGEST: usize = 32 << 20;
/// At most so many bytes are written at once: some virtual machines' vsock devices drop what is longer.
const PIECE: usize = 16 << 10;
/// Memory is taken for a message as it comes in, at most so much ahead.
const AHEAD: usize = 1 << 20;

/// Why no message came.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The stream, also when it ends inside a message.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The other side does not speak this protocol.
    #[error(
        "a message of {0} bytes was announced, more than the protocol has; is that the right port?"
    )]
    TooLong(usize),
    /// Likewise.
    #[error("a message cannot be read: {0}")]
    Malformed(#[from] prost::DecodeError),
}

/// Writes a message.
pub fn write<M: Message>(stream: &mut impl Write, message: &M) -> io::Result<()> {
    let len = message.encoded_len();
    if len > LONGEST {
        let why = format!("a message of {len} bytes is longer than the protocol has");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    let mut bytes = Vec::with_capacity(4 + len);
    bytes.extend((len as u32).to_le_bytes());
    // A vector has room for all.
    let _ = message.encode(&mut bytes);
    for piece in bytes.chunks(PIECE) {
        stream.write_all(piece)?;
    }
    stream.flush()
}

/// Reads a message; `None` if the stream ends before it.
pub fn read<M: Message + Default>(stream: &mut impl Read) -> Result<Option<M>, Error> {
    let mut len = [0; 4];
    let first = loop {
        match stream.read(&mut len) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => break read?,
        }
    };
    if first == 0 {
        return Ok(None);
    }
    stream.read_exact(&mut len[first..])?;
    let len = u32::from_le_bytes(len) as usize;
    if len > LONGEST {
        return Err(Error::TooLong(len));
    }
    let mut bytes = Vec::new();
    while bytes.len() < len {
        let start = bytes.len();
        bytes.resize(len.min(start + AHEAD), 0);
        stream.read_exact(&mut bytes[start..])?;
    }
    Ok(Some(M::decode(bytes.as_slice())?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::{Bpf, HostMessage, host_message::Body};

    fn message(bytes: usize) -> HostMessage {
        let bpf = Bpf {
            command: 1,
            attr: vec![7; bytes],
            parts: Vec::new(),
            signature: Vec::new(),
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
    fn what_is_no_message_is_an_error() {
        assert!(matches!(
            read::<HostMessage>(&mut b"GET / HTTP/1.1\r\n".as_slice()),
            Err(Error::TooLong(_))
        ));
        assert!(matches!(
            read::<HostMessage>(&mut [4, 0, 0, 0, 255, 255, 255, 255].as_slice()),
            Err(Error::Malformed(_))
        ));
        assert!(matches!(
            read::<HostMessage>(&mut [4, 0, 0].as_slice()),
            Err(Error::Io(_))
        ));
        // Announced, but not there: no memory is taken for it.
        assert!(matches!(
            read::<HostMessage>(&mut [0, 0, 0, 1, 8].as_slice()),
            Err(Error::Io(_))
        ));
    }
}

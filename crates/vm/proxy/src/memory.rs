//! The proxy's own memory for what hosts ask and for what they are answered. Requests and answers
//! of usual size are not counted.

use std::io;

use beeline_vm_protocol::frame::Meter;
use beeline_vm_protocol::stream::PATIENCE;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

use crate::limits::Portion;
use crate::refusal::Refusal;

/// Bytes of all peers together.
pub const MOST: u64 = 512 << 20;
/// The bytes of a request and its answer that are not counted.
const USUAL: usize = 64 << 10;
/// The most bytes that a part of a message takes beside its content, while their list grows.
const PART: usize = 96;
/// The number of [`Release`](beeline_vm_protocol::messages::Release) in a host's message, each byte
/// of which can become a handle.
const RELEASE: u32 = 6;

/// Adds so many bytes to a request's, if that is more than usual; waits for others of the same peer
/// to end.
///
/// # Errors
///
/// `ENOMEM` if that takes 5 s.
pub fn add(portion: &mut Portion, bytes: usize) -> Result<(), Refusal> {
    match bytes > USUAL {
        true => grow_to(portion, portion.amount() + bytes as u64),
        false => Ok(()),
    }
}

fn grow_to(portion: &mut Portion, bytes: u64) -> Result<(), Refusal> {
    let grown = portion.grow_to(bytes, PATIENCE);
    grown.map_err(|exhausted| {
        let why = format!(
            "requests and answers of {} take {} bytes in the proxy already, which is the most while others may come; read \
             the answers, or ask for less at once",
            portion.peer(),
            exhausted.0
        );
        Refusal::new(libc::ENOMEM, why)
    })
}

/// Counts a request that is coming in.
#[derive(Debug)]
pub struct Incoming<'a>(pub &'a mut Portion);

impl Incoming<'_> {
    fn to(&mut self, bytes: usize) -> io::Result<()> {
        match bytes > USUAL {
            true => grow_to(self.0, bytes as u64).map_err(|refusal| io::Error::other(refusal.why)),
            false => Ok(()),
        }
    }
}

impl Meter for Incoming<'_> {
    fn grows(&mut self, bytes: usize) -> io::Result<()> {
        self.to(bytes)
    }

    fn has_come(&mut self, message: &[u8]) -> io::Result<()> {
        self.to(message.len() + decoded(message))
    }
}

/// Returns about how many bytes a host's message takes once it is decoded. Empty parts take two
/// bytes in a message.
pub fn decoded(mut message: &[u8]) -> usize {
    let mut bytes: usize = 0;
    while let Ok((number, kind)) = decode_key(&mut message) {
        if kind != WireType::LengthDelimited {
            if skip_field(kind, number, &mut message, DecodeContext::default()).is_err() {
                break;
            }
            continue;
        }
        let Ok(len) = decode_varint(&mut message) else {
            break;
        };
        // Of a field that is cut off the decoder makes as much as there is.
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let (inside, rest) = message.split_at(len.min(message.len()));
        let handles = if number == RELEASE {
            8 * inside.len()
        } else {
            0
        };
        bytes = bytes.saturating_add(inside.len() + handles + PART * fields(inside));
        message = rest;
    }
    bytes
}

fn fields(mut message: &[u8]) -> usize {
    let mut count = 0;
    while let Ok((number, kind)) = decode_key(&mut message) {
        count += 1;
        if skip_field(kind, number, &mut message, DecodeContext::default()).is_err() {
            break;
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Limit;
    use beeline_vm_protocol::messages::host_message::Body;
    use beeline_vm_protocol::messages::{Bpf, HostMessage, Part, Release};
    use beeline_vm_protocol::peer::Peer;
    use prost::Message;

    fn message(body: Body) -> Vec<u8> {
        let body = Some(body);
        HostMessage { id: 1, body }.encode_to_vec()
    }

    #[test]
    fn what_short_texts_become_is_counted() {
        let parts = vec![Part::default(); 1000];
        let bpf = message(Body::Bpf(Bpf {
            parts,
            ..Bpf::default()
        }));
        assert!(bpf.len() < 2100, "{}", bpf.len());
        assert!(decoded(&bpf) > 1000 * size_of::<Part>() * 2);
        // Also if the decoder finds the end missing.
        assert!(decoded(&bpf[..bpf.len() - 2]) > 900 * size_of::<Part>() * 2);
        let handles = vec![1; 1000];
        assert!(decoded(&message(Body::Release(Release { handles }))) > 2 * 4000);
        let attr = vec![0; 1000];
        let plain = decoded(&message(Body::Bpf(Bpf {
            attr,
            ..Bpf::default()
        })));
        assert!(plain < 2000, "{plain}");
    }

    #[test]
    fn usual_requests_are_not_counted() {
        let limit = Limit::new(0);
        let mut portion = limit.nothing(&Peer::User(None));
        assert_eq!(add(&mut portion, USUAL), Ok(()));
        let mut incoming = Incoming(&mut portion);
        assert!(incoming.grows(USUAL).is_ok());
        assert!(incoming.has_come(&[0; 8]).is_ok());
    }
}

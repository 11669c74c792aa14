//! Look-ups and their answers, handled in place: [`LookUp`](crate::messages::LookUp) is read in the
//! received bytes, and [`Content`](crate::messages::Content) is written around the value.
//!
//! A look-up takes little work, so the amount of memory and of code that it touches matters: most
//! of it is cold when the next one comes, above all where the processor is emulated.

use crate::frame;

// The bytes before each field: its number and its kind, as in `proto/guest.proto`.
const ID: &[u8] = &[1 << 3];
const LOOK_UP: &[u8] = &[(22 << 3 | 2) as u8 | 0x80, 1];
const HANDLE: &[u8] = &[1 << 3];
const KEY: &[u8] = &[2 << 3 | 2];
const CONTENT: &[u8] = &[(21 << 3 | 2) as u8 | 0x80, 1];
const DATA: &[u8] = &[1 << 3 | 2];

/// The most bytes that a message has before the value: three keys and numbers. The id has ten
/// bytes, and lengths of a frame five.
const MESSAGE_HEAD: usize = (1 + 10) + (2 + 5) + (1 + 5);
/// The longest value that an answer has room for.
pub const LONGEST_VALUE: usize = frame::LONGEST - MESSAGE_HEAD;
/// The frame's head and the message's.
const BEFORE: usize = frame::HEAD + MESSAGE_HEAD;

/// `HostMessage { id, look_up: LookUp { handle, key } }`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked<'a> {
    /// The id of the request.
    pub id: u64,
    /// The handle of the map.
    pub handle: u32,
    /// The key in it.
    pub key: &'a [u8],
}

impl<'a> Asked<'a> {
    /// Reads a message with all fields there, and in order, as hosts write them. Returns `None` if
    /// it is another one, is written otherwise, or has the id 0.
    pub fn read(mut message: &'a [u8]) -> Option<Self> {
        let id = number(&mut message, ID)?;
        let mut inner = bytes(&mut message, LOOK_UP)?;
        let handle = number(&mut inner, HANDLE)?.try_into().ok()?;
        let key = bytes(&mut inner, KEY)?;
        let is_good = id != 0 && message.is_empty() && inner.is_empty();
        is_good.then_some(Self { id, handle, key })
    }
}

fn number(from: &mut &[u8], field: &[u8]) -> Option<u64> {
    *from = from.strip_prefix(field)?;
    varint(from)
}

fn bytes<'a>(from: &mut &'a [u8], field: &[u8]) -> Option<&'a [u8]> {
    let len = number(from, field)?.try_into().ok()?;
    let (bytes, rest) = from.split_at_checked(len)?;
    *from = rest;
    Some(bytes)
}

fn varint(from: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..u64::BITS).step_by(7) {
        let (byte, rest) = from.split_first()?;
        *from = rest;
        let group = u64::from(byte & 0x7f);
        // The last has room for one bit.
        if group << shift >> shift != group {
            return None;
        }
        number |= group << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

/// Bytes of room that are kept for the next value.
const KEPT: usize = 64 << 10;

/// Room for a value, with space around it for the answer.
#[derive(Debug, Default)]
pub struct Answer {
    bytes: Vec<u8>,
}

impl Answer {
    /// Returns room for a value of this many bytes, at most [`LONGEST_VALUE`], with arbitrary
    /// content.
    pub fn value(&mut self, len: usize) -> &mut [u8] {
        if self.bytes.len() > BEFORE + KEPT {
            self.bytes = Vec::new();
        }
        self.bytes.resize(BEFORE + len, 0);
        self.bytes.get_mut(BEFORE..).unwrap_or_default()
    }

    /// Returns the frame of `GuestMessage { id, content: Content { data, end: false } }` with the
    /// value in the room as the data. `id` is not 0.
    pub fn framed(&mut self, id: u64) -> &[u8] {
        if self.bytes.is_empty() {
            self.value(0);
        }
        let len = self.bytes.len().saturating_sub(BEFORE) as u64;
        // Backwards, as the lengths are known then.
        let mut to = Backwards {
            bytes: &mut self.bytes,
            at: BEFORE,
        };
        // Empty fields are left out, as all writers of such messages do.
        if len > 0 {
            to.field(DATA, len);
        }
        let inner = (BEFORE - to.at) as u64 + len;
        to.field(CONTENT, inner);
        to.field(ID, id);
        let start = to.at - frame::HEAD;
        let frame = &mut self.bytes[start..];
        frame::fill_head(frame);
        frame
    }
}

/// Writes from the end.
struct Backwards<'a> {
    bytes: &'a mut [u8],
    at: usize,
}

impl Backwards<'_> {
    /// Writes a field that is a number, or the head of one of this many bytes.
    fn field(&mut self, field: &[u8], number: u64) {
        let bits = (number | 1).ilog2();
        for group in (0..=bits / 7).rev() {
            let more = if group == bits / 7 { 0 } else { 0x80 };
            self.put(&[(number >> (group * 7)) as u8 & 0x7f | more]);
        }
        self.put(field);
    }

    fn put(&mut self, bytes: &[u8]) {
        self.at -= bytes.len();
        self.bytes[self.at..][..bytes.len()].copy_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::guest_message::Body as Said;
    use crate::messages::host_message::Body as Wanted;
    use crate::messages::{Content, GuestMessage, HostMessage, LookUp, Release};
    use prost::Message;

    fn asked(id: u64, body: Wanted) -> Vec<u8> {
        let body = Some(body);
        HostMessage { id, body }.encode_to_vec()
    }

    #[test]
    fn requests_are_read_as_they_are_written() {
        for (id, handle, key) in [
            (1, 1, vec![]),
            (300, 70_000, vec![7; 8]),
            (u64::MAX, u32::MAX, vec![9; 500]),
        ] {
            let message = asked(
                id,
                Wanted::LookUp(LookUp {
                    handle,
                    key: key.clone(),
                }),
            );
            let read = Asked::read(&message);
            // A writer leaves out an empty key, and there is nothing to look up.
            let wanted = Asked {
                id,
                handle,
                key: &key,
            };
            assert_eq!(read, (!key.is_empty()).then_some(wanted));
        }
    }

    #[test]
    fn nothing_else_is_taken_for_a_request() {
        let key = vec![1; 4];
        let good = asked(5, Wanted::LookUp(LookUp { handle: 3, key }));
        for len in 0..good.len() {
            assert_eq!(Asked::read(&good[..len]), None, "{len}");
        }
        let more = [&good[..], &[0x18, 0]].concat();
        assert_eq!(Asked::read(&more), None);
        let mut nobodys = good.clone();
        nobodys[1] = 0;
        assert_eq!(Asked::read(&nobodys), None);
        // Ten bytes have 70 bits.
        let mut too_long = vec![ID[0]];
        too_long.extend([0xff; 9]);
        let rest = &good[2..];
        for (last, is_good) in [(1, true), (2, false), (0x7f, false)] {
            let message = [&too_long[..], &[last], rest].concat();
            assert_eq!(Asked::read(&message).is_some(), is_good, "{last}");
            assert_eq!(HostMessage::decode(&*message).is_ok(), is_good, "{last}");
        }
        let handles = vec![1];
        let other = asked(5, Wanted::Release(Release { handles }));
        assert_eq!(Asked::read(&other), None);
    }

    #[test]
    fn answers_are_the_message_with_the_value() {
        let mut answer = Answer::default();
        for (id, len) in [
            (1, 0),
            (127, 1),
            (u64::MAX, 127),
            (200, 128),
            (1 << 40, 70_000),
            (3, 8),
        ] {
            answer.value(len).fill(len as u8);
            let data = vec![len as u8; len];
            let body = Some(Said::Content(Content { data, end: false }));
            let mut framed = answer.framed(id);
            let read = frame::read::<GuestMessage>(&mut framed).unwrap();
            assert_eq!(read, Some(GuestMessage { id, body }));
            assert!(framed.is_empty());
        }
    }
}

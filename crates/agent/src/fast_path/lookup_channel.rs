//! Look-ups of elements of a guest's maps through a connection of the tool's own: no other process
//! is woken on the way.
//!
//! The supervisor joins the tool's session by a further connection, puts its socket into the tool
//! at a high number, and says so on the [`Board`](super::prefetch::Board). The kernel is asked each
//! time which file has that number. Requests and answers are the protocol's (`beeline_vm_protocol`:
//! `frame` and `proto/guest.proto`). This module knows one of each. Anything else is left unread,
//! and the channel is never used again.

use core::cell::UnsafeCell;
use core::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
    fence,
};

use beeline_uapi::attr::Element;
use beeline_uapi::linux::MSG_NOSIGNAL;
use beeline_uapi::{Errno, nr};

use super::memory::{ToolMemory, overlap};
use super::prefetch::file_of;
use crate::{arch, sys};

/// The most processes of a tool that have channels; more are left to the supervisor.
pub const CHANNELS: usize = 8;
/// The most maps that are looked up by channels. When there are more, those listed first are
/// forgotten.
pub const LISTED: usize = 64;
/// Bytes of the longest key; longer ones are left to the supervisor.
pub const KEY: usize = 128;
/// Likewise for the value.
pub const VALUE: usize = 1024;

/// A map of the guest, as the supervisor lists it for the tool's processes.
#[repr(C)]
#[derive(Debug)]
pub struct ListedMap {
    /// Odd while the supervisor changes what follows, and different afterwards.
    pub version: AtomicU32,
    /// The guest's handle for it.
    pub handle: AtomicU32,
    /// Bytes of a key.
    pub key_len: AtomicU32,
    /// Bytes of a value, as the tool gets it.
    pub value_len: AtomicU32,
    /// The file that stands for the map, as `fstat` has it.
    pub device: AtomicU64,
    /// Likewise; 0 if this is no map.
    pub inode: AtomicU64,
}

/// The socket of a process, as the supervisor lists it.
#[repr(C)]
#[derive(Debug)]
pub struct Socket {
    /// The descriptor.
    pub fd: AtomicU32,
    /// Its file, as `fstat` has it.
    pub device: AtomicU64,
    /// Likewise; 0 if there is none. Stored last.
    pub inode: AtomicU64,
}

/// The part of a channel that its process writes.
#[repr(C)]
#[derive(Debug)]
pub struct ChannelUse {
    /// 1 while a thread uses it, and forever once something went wrong.
    pub busy: AtomicU32,
    /// The last request's id.
    pub id: AtomicU32,
}

/// Room for a request, and then for its answer. It belongs to the thread that holds the channel.
/// (The stack may be small.)
#[repr(C)]
#[derive(Debug)]
pub struct Room(UnsafeCell<[u8; ROOM]>);

// SAFETY: only the thread that has set `ChannelUse::busy` looks at it.
unsafe impl Sync for Room {}

/// The longest time for an answer, in nanoseconds, in case signals keep the socket's own limit from
/// being reached.
const PATIENCE: u64 = 5_000_000_000;
/// Bytes before a message.
const HEAD: usize = 12;
/// The size of the room: with the fields around a key or a value.
pub const ROOM: usize = HEAD + VALUE + 64;

/// A process's view of its channel.
pub(super) struct LookupChannel<'a, N> {
    /// Nanoseconds of some clock.
    pub(super) now: N,
    /// 0 in a forked child, even if a handler forks while the channel is in use and returns there.
    pub(super) alive: &'a AtomicU32,
    pub(super) memory: &'a ToolMemory,
    pub(super) socket: &'a Socket,
    pub(super) own: &'a ChannelUse,
    pub(super) maps: &'a [ListedMap; LISTED],
    pub(super) room: &'a Room,
}

impl<N: Fn() -> u64> LookupChannel<'_, N> {
    /// Looks up the value of a key in the map that a file stands for. Returns `None` if there is no
    /// fast path for it.
    pub(super) fn look_up(&self, file: (u64, u64), element: &Element) -> Option<Result<(), Errno>> {
        let map = self.maps.iter().find_map(|map| Map::of(map, file))?;
        if overlap(element.key, map.key_len, element.value, map.value_len) {
            return None;
        }
        let key = self.memory.input(element.key, map.key_len)?;
        let value = self.memory.output(element.value, map.value_len)?;
        let busy = &self.own.busy;
        // A thread may have descriptors of its own, or the tool may have closed it.
        if !self.is_there() || busy.compare_exchange(0, 1, Acquire, Relaxed).is_err() {
            return None;
        }
        // SAFETY: the channel is this thread's until it is given back.
        let room = unsafe { &mut *self.room.0.get() };
        let id = self.own.id.load(Relaxed).wrapping_add(1).max(1);
        self.own.id.store(id, Relaxed);
        // Any failure leaves it taken forever: the next message on it would be unknown.
        let done = match self.exchange(room, id, &map, key)? {
            Answer::Value(found) => {
                // SAFETY: the answer has as many bytes as a value.
                unsafe { arch::copy(value.as_mut_ptr(), found.as_ptr(), value.len()) };
                Some(Ok(()))
            }
            Answer::Refused(errno) => Some(Err(Errno(errno))),
            // The supervisor asks again, and tells the user why.
            Answer::Explained => None,
        };
        // In a forked child the channel is the parent's, which still uses it.
        if self.alive.load(Relaxed) != 0 {
            busy.store(0, Release);
        }
        done
    }

    /// True if the number stands for the channel's socket.
    fn is_there(&self) -> bool {
        let inode = self.socket.inode.load(Acquire);
        let file = (self.socket.device.load(Relaxed), inode);
        inode != 0 && file_of(self.socket.fd.load(Relaxed) as i32) == Some(file)
    }

    /// Sends a request, and waits for its answer. Returns `None` if something went wrong and the
    /// channel cannot be used any more.
    fn exchange<'a>(
        &self,
        room: &'a mut [u8; ROOM],
        id: u32,
        map: &Map,
        key: &[u8],
    ) -> Option<Answer<'a>> {
        let len = request(room, id, map.handle, key)?;
        let mut sent = 0;
        while sent < len {
            sent += self.transfer(nr::SENDTO, room.get_mut(sent..len)?, MSG_NOSIGNAL)?;
        }
        let mut end = HEAD;
        let mut got = 0;
        while got < end {
            got += self.transfer(nr::RECVFROM, room.get_mut(got..end)?, 0)?;
            if got == HEAD && end == HEAD {
                end = HEAD.checked_add(length_of(room.first_chunk()?)?)?;
            }
        }
        answer(room.get(..end)?, id, map.value_len)
    }

    /// Sends or receives some bytes, at least one.
    fn transfer(&self, number: u64, bytes: &mut [u8], flags: u64) -> Option<usize> {
        const EINTR: i64 = -(Errno::EINTR.0 as i64);
        let begin = (self.now)();
        loop {
            // Signal handlers may do anything: close it, fork, or come again and again.
            let is_late = (self.now)().saturating_sub(begin) > PATIENCE;
            if !self.is_there() || is_late || self.alive.load(Relaxed) == 0 {
                return None;
            }
            let fd = self.socket.fd.load(Relaxed).into();
            let (at, len) = (bytes.as_mut_ptr().expose_provenance(), bytes.len());
            // SAFETY: the call reads or writes no more than the bytes; there is no address.
            let done = unsafe { sys::syscall6(number, [fd, at as u64, len as u64, flags, 0, 0]) };
            match done {
                _ if self.alive.load(Relaxed) == 0 => return None,
                EINTR => {}
                1.. => return Some(done as usize),
                _ => return None,
            }
        }
    }
}

/// A listed map, as it was at one moment.
struct Map {
    handle: u32,
    key_len: usize,
    value_len: usize,
}

impl Map {
    /// Returns `None` if it is another file's, or is being changed.
    fn of(listed: &ListedMap, file: (u64, u64)) -> Option<Self> {
        // Nearly all are other files', so these are skipped without reading them in order.
        if listed.inode.load(Relaxed) != file.1 {
            return None;
        }
        let version = listed.version.load(Acquire);
        let number = |word: &AtomicU32| word.load(Relaxed) as usize;
        let map = Self {
            handle: listed.handle.load(Relaxed),
            key_len: number(&listed.key_len),
            value_len: number(&listed.value_len),
        };
        let its = (listed.device.load(Relaxed), listed.inode.load(Relaxed));
        fence(Acquire);
        let holds = version.is_multiple_of(2) && listed.version.load(Relaxed) == version;
        let is_short = map.key_len <= KEY && map.value_len <= VALUE;
        (its == file && holds && is_short).then_some(map)
    }
}

/// The guest's answer.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer<'a> {
    /// The value of the key.
    Value(&'a [u8]),
    /// `Refused`, with nothing but an errno.
    Refused(i32),
    /// `Refused`, with a text.
    Explained,
}

/// Writes `HostMessage { id, look_up: LookUp { handle, key } }` in its frame. Returns its length,
/// or `None` if the key is too long.
pub fn request(room: &mut [u8; ROOM], id: u32, handle: u32, key: &[u8]) -> Option<usize> {
    let inner = 1 + varint_len(handle) + 1 + varint_len(key.len() as u32) + key.len();
    let mut to = Writer {
        bytes: room,
        at: HEAD,
    };
    to.varint(tag(1, VARINT))?;
    to.varint(id)?;
    to.varint(tag(22, BYTES))?;
    to.varint(inner as u32)?;
    to.varint(tag(1, VARINT))?;
    to.varint(handle)?;
    to.varint(tag(2, BYTES))?;
    to.varint(key.len() as u32)?;
    for byte in key {
        to.put(*byte)?;
    }
    let end = to.at;
    let len = (end.checked_sub(HEAD)? as u32).to_le_bytes();
    let sums = [crc32(&len), crc32(room.get(HEAD..end)?)].map(u32::to_le_bytes);
    let head = room.first_chunk_mut::<HEAD>()?;
    for (to, from) in head.iter_mut().zip(len.iter().chain(sums.as_flattened())) {
        *to = *from;
    }
    Some(end)
}

/// Returns the bytes of the message behind a head, if it may be an answer.
fn length_of(head: &[u8; HEAD]) -> Option<usize> {
    let len = word_at(head, 0)?;
    let is_sound = word_at(head, 4)? == crc32(&len.to_le_bytes());
    (is_sound && len > 0 && len as usize <= ROOM - HEAD).then_some(len as usize)
}

/// Takes a frame apart that may hold `GuestMessage { id, content: Content { data, end: false } }`
/// with this many bytes, or `{ id, refused: Refused { errno, why, rule } }`. Returns `None` for
/// everything else.
pub fn answer(frame: &[u8], id: u32, value_len: usize) -> Option<Answer<'_>> {
    let (head, message) = frame.split_first_chunk::<HEAD>()?;
    if length_of(head)? != message.len() || word_at(head, 8)? != crc32(message) {
        return None;
    }
    let mut from = Reader(message);
    if from.varint()? != tag(1, VARINT) || from.varint()? != id {
        return None;
    }
    let kind = from.varint()?;
    let len = from.varint()? as usize;
    if len != from.0.len() {
        return None;
    }
    if kind == tag(21, BYTES) {
        let is_data = from.varint()? == tag(1, BYTES) && from.varint()? as usize == value_len;
        return (is_data && from.0.len() == value_len).then_some(Answer::Value(from.0));
    }
    if kind != tag(2, BYTES) || from.varint()? != tag(1, VARINT) {
        return None;
    }
    let errno = from.varint()?;
    match (errno, from.0.len()) {
        (1..4096, 0) => Some(Answer::Refused(errno as i32)),
        _ => Some(Answer::Explained),
    }
}

/// Protocol Buffers' types of fields.
const VARINT: u32 = 0;
const BYTES: u32 = 2;

const fn tag(field: u32, kind: u32) -> u32 {
    field << 3 | kind
}

const fn varint_len(number: u32) -> usize {
    match number.checked_ilog2() {
        Some(bits) => bits as usize / 7 + 1,
        None => 1,
    }
}

struct Writer<'a> {
    bytes: &'a mut [u8],
    at: usize,
}

impl Writer<'_> {
    fn put(&mut self, byte: u8) -> Option<()> {
        *self.bytes.get_mut(self.at)? = byte;
        self.at += 1;
        Some(())
    }

    fn varint(&mut self, mut number: u32) -> Option<()> {
        while number > 0x7f {
            self.put(number as u8 | 0x80)?;
            number >>= 7;
        }
        self.put(number as u8)
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn varint(&mut self) -> Option<u32> {
        let mut number = 0;
        for shift in [0, 7, 14, 21, 28] {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            number |= u32::from(byte & 0x7f).checked_mul(1 << shift)?;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }
}

fn word_at(head: &[u8; HEAD], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*head.get(at..)?.first_chunk()?))
}

/// Computes CRC-32 as in IEEE 802.3, reflected, by half bytes: a larger table would fill more of
/// the cache than it saves.
fn crc32(bytes: &[u8]) -> u32 {
    const POLYNOMIAL: u32 = 0xedb8_8320;
    const TABLE: [u32; 16] = {
        let mut table = [0; 16];
        let mut index = 0;
        while index < 16 {
            let mut sum = index as u32;
            let mut bit = 0;
            while bit < 4 {
                sum = sum >> 1 ^ if sum & 1 == 1 { POLYNOMIAL } else { 0 };
                bit += 1;
            }
            table[index] = sum;
            index += 1;
        }
        table
    };
    // The index is masked, so the entry exists.
    let step = |sum: u32| sum >> 4 ^ TABLE.get(sum as usize & 15).copied().unwrap_or(0);
    !bytes
        .iter()
        .fold(!0, |sum, byte| step(step(sum ^ u32::from(*byte))))
}

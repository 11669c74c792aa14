//! The fields of `union bpf_attr` that are pointers and descriptors, and what they lead to, for
//! every command that is carried out in a guest. It is the one table that both sides use. Offsets
//! and sizes are those of [`beeline_uapi::attr`].
//!
//! The host takes an attribute apart by it, and the guest puts one together. Neither trusts the
//! other: both sides compute a length from the attribute and from the known facts of the map.

mod commands;
mod map_facts;

use beeline_uapi::fields::u32_at;
use beeline_uapi::{Command, attr};

use Len::{Count, Cursor, Items, Key, Keys, Records, Text, Value, Values};

pub use commands::layout;
pub use map_facts::MapFacts;

/// The layout of a command's attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Its name in messages to the user.
    pub name: &'static str,
    /// Known bytes of the attribute; those behind them have to be 0.
    pub size: usize,
    /// The places of descriptors.
    pub objects: &'static [Object],
    /// The places of pointers.
    pub buffers: &'static [Buffer],
    /// Fields that the kernel writes: offset and bytes.
    pub written: &'static [(usize, usize)],
    /// True if it returns a descriptor.
    pub makes: bool,
}

/// A field with a descriptor, of 4 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Object {
    /// Offset in bytes.
    pub at: usize,
    /// The condition under which it is one. Otherwise it is a plain number.
    pub when: When,
}

/// The condition under which a field is a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// Always.
    Always,
    /// If it is not 0, which means none.
    NotZero,
    /// If any of these bits is set in the flags at this offset.
    Flag(usize, u32),
    /// If any of these two numbers is not 0.
    Given(usize, usize),
}

/// A field with a pointer, of 8 bytes. Null stands for no buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffer {
    /// Offset in bytes.
    pub at: usize,
    /// The size of the buffer that it points to.
    pub len: Len,
    /// The writer of the buffer.
    pub flow: Flow,
    /// The content of the buffer.
    pub holds: Holds,
}

/// The size of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Len {
    /// The number at an offset, in bytes.
    Count(usize),
    /// The number at an offset, times this many bytes.
    Items(usize, usize),
    /// The number at one offset, times the number at another.
    Records(usize, usize),
    /// A text that ends with a zero, at most this many bytes including it.
    Text(usize),
    /// A key of the map.
    Key,
    /// A value of the map as system calls see it: per-CPU values for each CPU.
    Value,
    /// As many keys as the number at an offset says.
    Keys(usize),
    /// As many values.
    Values(usize),
    /// The position of an iteration in batches: a key, but at least 4 bytes.
    Cursor,
}

/// The writer of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// The tool; the kernel reads it.
    In,
    /// The kernel.
    Out,
    /// Both.
    InOut,
}

/// The content of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holds {
    /// Bytes that need no change.
    Bytes,
    /// Instructions, which name maps and BTF by descriptors.
    Instructions,
    /// Descriptors, 4 bytes each.
    Objects,
    /// Addresses of texts. Across the wire, the texts themselves are sent, each with a zero at its
    /// end.
    Texts,
    /// A value of a map: a descriptor, if it is a map of objects.
    Element,
}

/// The longest attribute.
pub const ATTR_BYTES: usize = attr::BPF_ATTR_SIZE;
/// In a part's `at`: not in the attribute, but in the first structure that it points to
/// (`BPF_OBJ_GET_INFO_BY_FD`).
pub const INSIDE: u32 = 1 << 16;
/// The most bytes of one buffer: a message has room for them.
pub const BUFFER_BYTES: usize = 24 << 20;

/// True for a command that changes elements of a map.
pub fn changes_elements(command: Command) -> bool {
    command.is_for_elements()
        && !matches!(
            command,
            Command::MAP_LOOKUP_ELEM | Command::MAP_GET_NEXT_KEY | Command::MAP_LOOKUP_BATCH
        )
}

impl Len {
    /// Returns the size of a buffer; `None` if it is no reasonable number, or if there is no map
    /// where one is needed. Texts are as long as they are.
    pub fn bytes(self, attr: &[u8], map: Option<(&MapFacts, u32)>) -> Option<usize> {
        let count = |at| u32_at(attr, at) as usize;
        let key = || map.map(|(map, _)| map.key_size as usize);
        let value = || map.map(|(map, cpus)| map.value_len(cpus));
        let bytes = match self {
            Count(at) => count(at),
            Items(at, size) => count(at).checked_mul(size)?,
            Records(at, size) => count(at).checked_mul(count(size))?,
            Text(limit) => limit,
            Key => key()?,
            Value => value()?,
            Keys(at) => count(at).checked_mul(key()?)?,
            Values(at) => count(at).checked_mul(value()?)?,
            Cursor => key()?.max(4),
        };
        (bytes <= BUFFER_BYTES).then_some(bytes)
    }
}

impl When {
    /// True if the field with this value is a descriptor.
    pub fn holds(self, attr: &[u8], value: u32) -> bool {
        match self {
            When::Always => true,
            When::NotZero => value != 0,
            When::Flag(at, bits) => u32_at(attr, at) & bits != 0,
            When::Given(one, other) => u32_at(attr, one) != 0 || u32_at(attr, other) != 0,
        }
    }
}

//! The fields of `union bpf_attr` that are pointers and descriptors, and what they lead to, for
//! every command that is carried out in a guest. It is the one table that both sides use. Offsets
//! and sizes are those of `linux/bpf.h` (Linux 6.18).
//!
//! The host takes an attribute apart by it, and the guest puts one together. Neither trusts the
//! other: both sides compute a length from the attribute and from the known facts of the map.

mod map_facts;

use beeline_uapi::{AttachType, Command, flags};

use Flow::{In, InOut, Out};
use Holds::{Bytes, Element, Instructions, Objects, Texts};
use Len::{Count, Cursor, Items, Key, Keys, Records, Text, Value, Values};

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
    /// The position of a walk in batches: a key, but at least 4 bytes.
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
pub const ATTR_BYTES: usize = 168;
/// In a part's `at`: not in the attribute, but in the first structure that it points to
/// (`BPF_OBJ_GET_INFO_BY_FD`).
pub const INSIDE: u32 = 1 << 16;
/// The most bytes of one buffer: a message has room for them.
pub const BUFFER_BYTES: usize = 24 << 20;

/// True for a command for single elements of maps, or batches of them. There may be very many of
/// these, and other data of the tool or its programs need not have arrived when they are answered.
pub fn is_for_elements(command: Command) -> bool {
    matches!(
        command,
        Command::MAP_LOOKUP_ELEM
            | Command::MAP_UPDATE_ELEM
            | Command::MAP_DELETE_ELEM
            | Command::MAP_GET_NEXT_KEY
            | Command::MAP_LOOKUP_AND_DELETE_ELEM
    ) || is_batch(command)
}

/// True for a command for many elements of a map.
pub fn is_batch(command: Command) -> bool {
    matches!(
        command,
        Command::MAP_LOOKUP_BATCH
            | Command::MAP_LOOKUP_AND_DELETE_BATCH
            | Command::MAP_UPDATE_BATCH
            | Command::MAP_DELETE_BATCH
    )
}

/// True for a command that changes elements of a map.
pub fn changes_elements(command: Command) -> bool {
    is_for_elements(command)
        && !matches!(
            command,
            Command::MAP_LOOKUP_ELEM | Command::MAP_GET_NEXT_KEY | Command::MAP_LOOKUP_BATCH
        )
}

const fn always(at: usize) -> Object {
    Object {
        at,
        when: When::Always,
    }
}

const fn not_zero(at: usize) -> Object {
    Object {
        at,
        when: When::NotZero,
    }
}

const fn flagged(at: usize, flags: usize, bit: u32) -> Object {
    Object {
        at,
        when: When::Flag(flags, bit),
    }
}

const fn buffer(at: usize, len: Len, flow: Flow) -> Buffer {
    Buffer {
        at,
        len,
        flow,
        holds: Bytes,
    }
}

const fn holding(at: usize, len: Len, holds: Holds) -> Buffer {
    Buffer {
        at,
        len,
        flow: In,
        holds,
    }
}

const PLAIN: Layout = Layout {
    name: "",
    size: 0,
    objects: &[],
    buffers: &[],
    written: &[],
    makes: false,
};

/// The longest text the kernel takes for a name or a path.
const PATH: usize = 4096;
/// The longest name of a tracepoint or of a license.
const NAME: usize = 128;

const MAP_CREATE: Layout = Layout {
    name: "BPF_MAP_CREATE",
    size: 80,
    objects: &[
        not_zero(20),
        Object {
            at: 48,
            when: When::Given(52, 56),
        },
        flagged(72, 16, flags::VTYPE_BTF_OBJ_FD),
        flagged(76, 16, flags::TOKEN_FD),
    ],
    makes: true,
    ..PLAIN
};

const fn element(name: &'static str, value: &'static [Buffer]) -> Layout {
    Layout {
        name,
        size: 32,
        objects: &[FIRST],
        buffers: value,
        ..PLAIN
    }
}

/// The first field of most attributes, and of batches.
const FIRST: Object = always(0);
const SECOND: Object = always(4);
/// With `BPF_F_REPLACE`.
const REPLACED: Object = flagged(12, 8, flags::REPLACE);
const BATCHED: Object = always(36);
const KEY: Buffer = buffer(8, Key, In);
const NEXT_KEY: Buffer = buffer(16, Key, Out);
/// The value that a Bloom filter is asked about.
const VALUE_ASKED: Buffer = buffer(16, Value, InOut);
const VALUE_GIVEN: Buffer = buffer(16, Value, Out);
const VALUE_SET: Buffer = holding(16, Value, Element);
const INFO: Buffer = buffer(8, Count(4), InOut);
const BATCH_KEYS: Buffer = buffer(16, Keys(32), In);
const BATCH_VALUES: Buffer = holding(24, Values(32), Element);
/// `union bpf_iter_link_info`.
const ITER_INFO: Buffer = holding(16, Count(24), Bytes);

const PROG_LOAD: Layout = Layout {
    name: "BPF_PROG_LOAD",
    size: 152,
    objects: &[
        Object {
            at: 72,
            when: When::Given(88, 104),
        },
        not_zero(112),
        flagged(144, 44, flags::TOKEN_FD),
    ],
    buffers: &[
        holding(8, Items(4, 8), Instructions),
        buffer(16, Text(NAME), In),
        buffer(32, Count(28), Out),
        buffer(80, Records(88, 76), In),
        buffer(96, Records(104, 92), In),
        // It may be longer than the instructions need only if a length is given; see `array_len`.
        holding(120, Items(148, 4), Objects),
        buffer(128, Records(116, 136), In),
    ],
    written: &[(140, 4)],
    makes: true,
};

const TEST_RUN: Layout = Layout {
    name: "BPF_PROG_TEST_RUN",
    size: 76,
    objects: &[FIRST],
    buffers: &[
        buffer(16, Count(8), In),
        buffer(24, Count(12), Out),
        buffer(48, Count(40), In),
        buffer(56, Count(44), Out),
    ],
    written: &[(4, 4), (12, 4), (36, 4), (44, 4)],
    makes: false,
};

const fn next_id(name: &'static str) -> Layout {
    Layout {
        name,
        size: 12,
        written: &[(4, 4)],
        ..PLAIN
    }
}

const fn by_id(name: &'static str) -> Layout {
    Layout {
        name,
        size: 12,
        makes: true,
        ..PLAIN
    }
}

const fn batch(name: &'static str, buffers: &'static [Buffer]) -> Layout {
    Layout {
        name,
        size: 56,
        objects: &[BATCHED],
        buffers,
        written: &[(32, 4)],
        makes: false,
    }
}

const READ_BATCH: &[Buffer] = &[
    buffer(0, Cursor, In),
    buffer(8, Cursor, Out),
    buffer(16, Keys(32), Out),
    buffer(24, Values(32), Out),
];

const RAW_TRACEPOINT_OPEN: Layout = Layout {
    name: "BPF_RAW_TRACEPOINT_OPEN",
    size: 24,
    objects: &[always(8)],
    buffers: &[buffer(0, Text(NAME), In)],
    makes: true,
    ..PLAIN
};

/// The process at the beginning is the proxy itself, which has the descriptor.
const TASK_FD_QUERY: Layout = Layout {
    name: "BPF_TASK_FD_QUERY",
    size: 48,
    objects: &[SECOND],
    buffers: &[buffer(16, Count(12), Out)],
    written: &[(12, 4), (24, 4), (28, 4), (32, 8), (40, 8)],
    makes: false,
};

const BTF_LOAD: Layout = Layout {
    name: "BPF_BTF_LOAD",
    size: 40,
    objects: &[flagged(36, 32, flags::TOKEN_FD)],
    buffers: &[buffer(0, Count(16), In), buffer(8, Count(20), Out)],
    written: &[(28, 4)],
    makes: true,
};

const fn link(objects: &'static [Object], buffers: &'static [Buffer]) -> Layout {
    Layout {
        name: "BPF_LINK_CREATE",
        size: 64,
        objects,
        buffers,
        written: &[],
        makes: true,
    }
}

const PROBE_MULTI: Layout = link(
    &[FIRST],
    &[
        holding(24, Items(20, 8), Texts),
        buffer(32, Items(20, 8), In),
        buffer(40, Items(20, 8), In),
    ],
);

const UPROBE_MULTI: Layout = link(
    &[FIRST],
    &[
        buffer(16, Text(PATH), In),
        buffer(24, Items(48, 8), In),
        buffer(32, Items(48, 8), In),
        buffer(40, Items(48, 8), In),
    ],
);

/// A program for another program, for a type of the kernel's, or for a perf event.
const ON_OBJECT: Layout = link(&[always(0), not_zero(4)], &[]);

/// Returns the layout of a command's attribute; that of `BPF_LINK_CREATE` depends on its attach
/// type. `None` for a command that is not carried out in guests.
pub fn layout(command: Command, attr: &[u8]) -> Option<Layout> {
    Some(match command {
        Command::MAP_CREATE => MAP_CREATE,
        Command::MAP_LOOKUP_ELEM => element("BPF_MAP_LOOKUP_ELEM", &[KEY, VALUE_ASKED]),
        Command::MAP_UPDATE_ELEM => element("BPF_MAP_UPDATE_ELEM", &[KEY, VALUE_SET]),
        Command::MAP_DELETE_ELEM => element("BPF_MAP_DELETE_ELEM", &[KEY]),
        Command::MAP_GET_NEXT_KEY => element("BPF_MAP_GET_NEXT_KEY", &[KEY, NEXT_KEY]),
        Command::MAP_LOOKUP_AND_DELETE_ELEM => {
            element("BPF_MAP_LOOKUP_AND_DELETE_ELEM", &[KEY, VALUE_GIVEN])
        }
        Command::PROG_LOAD => PROG_LOAD,
        Command::PROG_TEST_RUN => TEST_RUN,
        Command::PROG_GET_NEXT_ID => next_id("BPF_PROG_GET_NEXT_ID"),
        Command::MAP_GET_NEXT_ID => next_id("BPF_MAP_GET_NEXT_ID"),
        Command::BTF_GET_NEXT_ID => next_id("BPF_BTF_GET_NEXT_ID"),
        Command::LINK_GET_NEXT_ID => next_id("BPF_LINK_GET_NEXT_ID"),
        Command::PROG_GET_FD_BY_ID => by_id("BPF_PROG_GET_FD_BY_ID"),
        Command::MAP_GET_FD_BY_ID => by_id("BPF_MAP_GET_FD_BY_ID"),
        Command::BTF_GET_FD_BY_ID => by_id("BPF_BTF_GET_FD_BY_ID"),
        Command::LINK_GET_FD_BY_ID => by_id("BPF_LINK_GET_FD_BY_ID"),
        Command::OBJ_GET_INFO_BY_FD => Layout {
            name: "BPF_OBJ_GET_INFO_BY_FD",
            size: 16,
            objects: &[FIRST],
            buffers: &[INFO],
            written: &[(4, 4)],
            makes: false,
        },
        Command::RAW_TRACEPOINT_OPEN => RAW_TRACEPOINT_OPEN,
        Command::BTF_LOAD => BTF_LOAD,
        Command::TASK_FD_QUERY => TASK_FD_QUERY,
        Command::MAP_FREEZE => Layout {
            name: "BPF_MAP_FREEZE",
            size: 4,
            objects: &[FIRST],
            ..PLAIN
        },
        Command::MAP_LOOKUP_BATCH => batch("BPF_MAP_LOOKUP_BATCH", READ_BATCH),
        Command::MAP_LOOKUP_AND_DELETE_BATCH => {
            batch("BPF_MAP_LOOKUP_AND_DELETE_BATCH", READ_BATCH)
        }
        Command::MAP_UPDATE_BATCH => batch("BPF_MAP_UPDATE_BATCH", &[BATCH_KEYS, BATCH_VALUES]),
        Command::MAP_DELETE_BATCH => batch("BPF_MAP_DELETE_BATCH", &[BATCH_KEYS]),
        Command::LINK_CREATE => link_layout(AttachType(number_at(attr, 8)))?,
        Command::LINK_UPDATE => Layout {
            name: "BPF_LINK_UPDATE",
            size: 16,
            objects: &[FIRST, SECOND, REPLACED],
            ..PLAIN
        },
        Command::ENABLE_STATS => Layout {
            name: "BPF_ENABLE_STATS",
            size: 4,
            makes: true,
            ..PLAIN
        },
        Command::ITER_CREATE => Layout {
            name: "BPF_ITER_CREATE",
            size: 8,
            objects: &[FIRST],
            makes: true,
            ..PLAIN
        },
        Command::LINK_DETACH => Layout {
            name: "BPF_LINK_DETACH",
            size: 4,
            objects: &[FIRST],
            ..PLAIN
        },
        Command::PROG_BIND_MAP => Layout {
            name: "BPF_PROG_BIND_MAP",
            size: 12,
            objects: &[FIRST, SECOND],
            ..PLAIN
        },
        _ => return None,
    })
}

fn link_layout(attach_type: AttachType) -> Option<Layout> {
    match attach_type {
        AttachType::TRACE_RAW_TP
        | AttachType::TRACE_FENTRY
        | AttachType::TRACE_FEXIT
        | AttachType::MODIFY_RETURN
        | AttachType::LSM_MAC
        | AttachType::PERF_EVENT => Some(ON_OBJECT),
        // `union bpf_iter_link_info` begins with a map's descriptor, or a task's number.
        AttachType::TRACE_ITER => Some(link(&[FIRST], &[ITER_INFO])),
        AttachType::TRACE_KPROBE_MULTI | AttachType::TRACE_KPROBE_SESSION => Some(PROBE_MULTI),
        AttachType::TRACE_UPROBE_MULTI | AttachType::TRACE_UPROBE_SESSION => Some(UPROBE_MULTI),
        _ => None,
    }
}

impl Len {
    /// Returns the size of a buffer; `None` if it is no reasonable number, or if there is no map
    /// where one is needed. Texts are as long as they are.
    pub fn bytes(self, attr: &[u8], map: Option<(&MapFacts, u32)>) -> Option<usize> {
        let count = |at| number_at(attr, at) as usize;
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
            When::Flag(at, bits) => number_at(attr, at) & bits != 0,
            When::Given(one, other) => number_at(attr, one) != 0 || number_at(attr, other) != 0,
        }
    }
}

/// Returns the 32 bits at an offset; 0 behind the end.
pub fn number_at(bytes: &[u8], at: usize) -> u32 {
    let field = bytes.get(at..).and_then(|rest| rest.first_chunk());
    u32::from_ne_bytes(field.copied().unwrap_or_default())
}

/// Returns the 64 bits at an offset; 0 behind the end.
pub fn long_at(bytes: &[u8], at: usize) -> u64 {
    let field = bytes.get(at..).and_then(|rest| rest.first_chunk());
    u64::from_ne_bytes(field.copied().unwrap_or_default())
}

/// Stores 32 bits at an offset, if they are inside.
pub fn put_number(bytes: &mut [u8], at: usize, value: u32) {
    if let Some(field) = bytes.get_mut(at..at + 4) {
        field.copy_from_slice(&value.to_ne_bytes());
    }
}

/// Stores 64 bits at an offset, if they are inside.
pub fn put_long(bytes: &mut [u8], at: usize, value: u64) {
    if let Some(field) = bytes.get_mut(at..at + 8) {
        field.copy_from_slice(&value.to_ne_bytes());
    }
}

//! Pointers in the structures that `BPF_OBJ_GET_INFO_BY_FD` fills (`linux/bpf.h`, Linux 6.18).

use beeline_uapi::{LinkType, PerfEventType};

use crate::layout::{Buffer, Flow, Holds, Len, number_at};

/// The kind of object that a handle stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `struct bpf_map_info`.
    Map,
    /// `struct bpf_prog_info`.
    Program,
    /// `struct bpf_btf_info`.
    Btf,
    /// `struct bpf_link_info`.
    Link,
    /// A perf event, which has no information.
    Event,
    /// An object made by `BPF_ITER_CREATE` and `BPF_ENABLE_STATS`.
    Other,
}

/// The longest of these structures, with room for additions by later kernels.
pub const INFO_BYTES: usize = 512;

const fn out(at: usize, len: Len) -> Buffer {
    Buffer {
        at,
        len,
        flow: Flow::Out,
        holds: Holds::Bytes,
    }
}

const PROGRAM: &[Buffer] = &[
    out(24, Len::Count(16)),
    out(32, Len::Count(20)),
    out(56, Len::Items(52, 4)),
    out(112, Len::Items(104, 8)),
    out(120, Len::Items(108, 4)),
    out(136, Len::Records(144, 132)),
    out(152, Len::Records(148, 172)),
    out(160, Len::Records(168, 176)),
    out(184, Len::Items(180, 8)),
];
const BTF: &[Buffer] = &[out(0, Len::Count(8)), out(16, Len::Count(24))];
/// A raw tracepoint's or an iterator's name.
const NAMED: &[Buffer] = &[out(16, Len::Count(24))];
const KPROBE_MULTI: &[Buffer] = &[out(16, Len::Items(24, 8)), out(40, Len::Items(24, 8))];
const UPROBE_MULTI: &[Buffer] = &[
    out(16, Len::Count(48)),
    out(24, Len::Items(52, 8)),
    out(32, Len::Items(52, 8)),
    out(40, Len::Items(52, 8)),
];
/// The name of a perf event's function, file or tracepoint.
const PERF_EVENT: &[Buffer] = &[out(24, Len::Count(32))];

/// Returns the offsets of the 4-byte numbers that decide which pointers are in a link's structure.
pub fn link_types(info: &[u8]) -> &'static [usize] {
    match LinkType(number_at(info, 0)) {
        // The perf event's type as well; in other links a pointer begins there.
        LinkType::PERF_EVENT => &[0, 16],
        _ => &[0],
    }
}

/// Returns the pointers in the structure of such an object. A link's are known once the structure
/// holds the link's type, as the kernel told it at an earlier call.
pub fn buffers(kind: Kind, info: &[u8]) -> &'static [Buffer] {
    match kind {
        Kind::Map | Kind::Event | Kind::Other => &[],
        Kind::Program => PROGRAM,
        Kind::Btf => BTF,
        Kind::Link => match LinkType(number_at(info, 0)) {
            LinkType::RAW_TRACEPOINT | LinkType::ITER => NAMED,
            LinkType::KPROBE_MULTI => KPROBE_MULTI,
            LinkType::UPROBE_MULTI => UPROBE_MULTI,
            LinkType::PERF_EVENT if has_name(PerfEventType(number_at(info, 16))) => PERF_EVENT,
            _ => &[],
        },
    }
}

/// Returns whether a perf event is of a function, a file or a tracepoint.
fn has_name(kind: PerfEventType) -> bool {
    (PerfEventType::UPROBE..PerfEventType::EVENT).contains(&kind)
}

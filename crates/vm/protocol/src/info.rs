//! Pointers in the structures that `BPF_OBJ_GET_INFO_BY_FD` fills (`linux/bpf.h`, Linux 6.18).

use beeline_uapi::fields::u32_at;
use beeline_uapi::info as uapi;
use beeline_uapi::{LinkType, PerfEventType};

use crate::layout::{Buffer, Flow, Holds, Len};

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

/// The offset of a field of such a structure.
macro_rules! at {
    ($of:ident . $field:ident) => {
        std::mem::offset_of!(uapi::$of, $field)
    };
}

/// The bytes of an id, a length, an address and a tag.
const ID: usize = size_of::<u32>();
const LEN: usize = size_of::<u32>();
const ADDRESS: usize = size_of::<u64>();

const PROGRAM: &[Buffer] = &[
    out(
        at!(ProgInfo.jited_prog_insns),
        Len::Count(at!(ProgInfo.jited_prog_len)),
    ),
    out(
        at!(ProgInfo.xlated_prog_insns),
        Len::Count(at!(ProgInfo.xlated_prog_len)),
    ),
    out(
        at!(ProgInfo.map_ids),
        Len::Items(at!(ProgInfo.nr_map_ids), ID),
    ),
    out(
        at!(ProgInfo.jited_ksyms),
        Len::Items(at!(ProgInfo.nr_jited_ksyms), ADDRESS),
    ),
    out(
        at!(ProgInfo.jited_func_lens),
        Len::Items(at!(ProgInfo.nr_jited_func_lens), LEN),
    ),
    out(
        at!(ProgInfo.func_info),
        Len::Records(at!(ProgInfo.nr_func_info), at!(ProgInfo.func_info_rec_size)),
    ),
    out(
        at!(ProgInfo.line_info),
        Len::Records(at!(ProgInfo.nr_line_info), at!(ProgInfo.line_info_rec_size)),
    ),
    out(
        at!(ProgInfo.jited_line_info),
        Len::Records(
            at!(ProgInfo.nr_jited_line_info),
            at!(ProgInfo.jited_line_info_rec_size),
        ),
    ),
    out(
        at!(ProgInfo.prog_tags),
        Len::Items(at!(ProgInfo.nr_prog_tags), uapi::BPF_TAG_SIZE),
    ),
];
const BTF: &[Buffer] = &[
    out(at!(BtfInfo.btf), Len::Count(at!(BtfInfo.btf_size))),
    out(at!(BtfInfo.name), Len::Count(at!(BtfInfo.name_len))),
];
const RAW_TRACEPOINT: &[Buffer] = &[out(
    at!(LinkInfoRawTracepoint.tp_name),
    Len::Count(at!(LinkInfoRawTracepoint.tp_name_len)),
)];
const ITER: &[Buffer] = &[out(
    at!(LinkInfoIter.target_name),
    Len::Count(at!(LinkInfoIter.target_name_len)),
)];
const KPROBES: Len = Len::Items(at!(LinkInfoKprobeMulti.count), ADDRESS);
const KPROBE_MULTI: &[Buffer] = &[
    out(at!(LinkInfoKprobeMulti.addrs), KPROBES),
    out(at!(LinkInfoKprobeMulti.cookies), KPROBES),
];
const UPROBES: Len = Len::Items(at!(LinkInfoUprobeMulti.count), ADDRESS);
const UPROBE_MULTI: &[Buffer] = &[
    out(
        at!(LinkInfoUprobeMulti.path),
        Len::Count(at!(LinkInfoUprobeMulti.path_size)),
    ),
    out(at!(LinkInfoUprobeMulti.offsets), UPROBES),
    out(at!(LinkInfoUprobeMulti.ref_ctr_offsets), UPROBES),
    out(at!(LinkInfoUprobeMulti.cookies), UPROBES),
];
/// The name of a perf event's function, file or tracepoint.
const PERF_EVENT: &[Buffer] = &[out(
    at!(LinkInfoNamed.name),
    Len::Count(at!(LinkInfoNamed.name_len)),
)];
const LINK_TYPE: usize = at!(LinkInfo.r#type);
const PERF_EVENT_TYPE: usize = at!(LinkInfoPerfEvent.r#type);

/// Returns the offsets of the 4-byte numbers that decide which pointers are in a link's structure.
pub fn link_types(info: &[u8]) -> &'static [usize] {
    match LinkType(u32_at(info, LINK_TYPE)) {
        // The perf event's type as well; in other links a pointer begins there.
        LinkType::PERF_EVENT => &[LINK_TYPE, PERF_EVENT_TYPE],
        _ => &[LINK_TYPE],
    }
}

/// Returns the pointers in the structure of such an object. A link's are known once the structure
/// holds the link's type, as the kernel told it at an earlier call.
pub fn buffers(kind: Kind, info: &[u8]) -> &'static [Buffer] {
    match kind {
        Kind::Map | Kind::Event | Kind::Other => &[],
        Kind::Program => PROGRAM,
        Kind::Btf => BTF,
        Kind::Link => match LinkType(u32_at(info, LINK_TYPE)) {
            LinkType::RAW_TRACEPOINT => RAW_TRACEPOINT,
            LinkType::ITER => ITER,
            LinkType::KPROBE_MULTI => KPROBE_MULTI,
            LinkType::UPROBE_MULTI => UPROBE_MULTI,
            LinkType::PERF_EVENT if has_name(PerfEventType(u32_at(info, PERF_EVENT_TYPE))) => {
                PERF_EVENT
            }
            _ => &[],
        },
    }
}

/// Returns whether a perf event is of a function, a file or a tracepoint.
fn has_name(kind: PerfEventType) -> bool {
    (PerfEventType::UPROBE..PerfEventType::EVENT).contains(&kind)
}

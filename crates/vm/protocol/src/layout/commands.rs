//! The table itself.

use beeline_uapi::fields::u32_at;
use beeline_uapi::limits::{LONGEST_LICENSE, LONGEST_RAW_TRACEPOINT_NAME};
use beeline_uapi::linux::PATH_MAX;
use beeline_uapi::{AttachType, Command, attr, attr_offset as at, flags, offset_behind};

use super::Flow::{self, In, InOut, Out};
use super::Holds::{self, Bytes, Element, Instructions, Objects, Texts};
use super::Len::{self, Count, Cursor, Items, Key, Keys, Records, Text, Value, Values};
use super::{Buffer, Layout, Object, When};

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

const MAP_CREATE: Layout = Layout {
    name: "BPF_MAP_CREATE",
    size: offset_behind!(attr::MapCreate, map_token_fd),
    objects: &[
        not_zero(at!(MapCreate.inner_map_fd)),
        Object {
            at: at!(MapCreate.btf_fd),
            when: When::Given(
                at!(MapCreate.btf_key_type_id),
                at!(MapCreate.btf_value_type_id),
            ),
        },
        flagged(
            at!(MapCreate.value_type_btf_obj_fd),
            at!(MapCreate.map_flags),
            flags::VTYPE_BTF_OBJ_FD,
        ),
        flagged(
            at!(MapCreate.map_token_fd),
            at!(MapCreate.map_flags),
            flags::TOKEN_FD,
        ),
    ],
    makes: true,
    ..PLAIN
};

const fn element(name: &'static str, value: &'static [Buffer]) -> Layout {
    Layout {
        name,
        size: size_of::<attr::Element>(),
        objects: &[FIRST],
        buffers: value,
        ..PLAIN
    }
}

/// The first field of most attributes, and of batches.
const FIRST: Object = always(at!(Element.map_fd));
/// The second field of others.
const SECOND: Object = always(at!(LinkUpdate.new_prog_fd));
/// With `BPF_F_REPLACE`.
const REPLACED: Object = flagged(
    at!(LinkUpdate.old_prog_fd),
    at!(LinkUpdate.flags),
    flags::REPLACE,
);
const BATCHED: Object = always(at!(Batch.map_fd));
const KEY: Buffer = buffer(at!(Element.key), Key, In);
const NEXT_KEY: Buffer = buffer(at!(Element.value), Key, Out);
/// The value that a Bloom filter is asked about.
const VALUE_ASKED: Buffer = buffer(at!(Element.value), Value, InOut);
const VALUE_GIVEN: Buffer = buffer(at!(Element.value), Value, Out);
const VALUE_SET: Buffer = holding(at!(Element.value), Value, Element);
const INFO: Buffer = buffer(at!(Info.info), Count(at!(Info.info_len)), InOut);
const BATCH_KEYS: Buffer = buffer(at!(Batch.keys), Keys(at!(Batch.count)), In);
const BATCH_VALUES: Buffer = holding(at!(Batch.values), Values(at!(Batch.count)), Element);
/// `union bpf_iter_link_info`.
const ITER_INFO: Buffer = holding(
    at!(LinkCreateIter.iter_info),
    Count(at!(LinkCreateIter.iter_info_len)),
    Bytes,
);

const PROG_LOAD: Layout = Layout {
    name: "BPF_PROG_LOAD",
    size: offset_behind!(attr::ProgLoad, fd_array_cnt),
    objects: &[
        Object {
            at: at!(ProgLoad.prog_btf_fd),
            when: When::Given(at!(ProgLoad.func_info_cnt), at!(ProgLoad.line_info_cnt)),
        },
        not_zero(at!(ProgLoad.attach_prog_fd)),
        flagged(
            at!(ProgLoad.prog_token_fd),
            at!(ProgLoad.prog_flags),
            flags::TOKEN_FD,
        ),
    ],
    buffers: &[
        holding(
            at!(ProgLoad.insns),
            Items(at!(ProgLoad.insn_cnt), 8),
            Instructions,
        ),
        buffer(at!(ProgLoad.license), Text(LONGEST_LICENSE + 1), In),
        buffer(at!(ProgLoad.log_buf), Count(at!(ProgLoad.log_size)), Out),
        buffer(
            at!(ProgLoad.func_info),
            Records(
                at!(ProgLoad.func_info_cnt),
                at!(ProgLoad.func_info_rec_size),
            ),
            In,
        ),
        buffer(
            at!(ProgLoad.line_info),
            Records(
                at!(ProgLoad.line_info_cnt),
                at!(ProgLoad.line_info_rec_size),
            ),
            In,
        ),
        // It may be longer than the instructions need only if a length is given; see `array_len`.
        holding(
            at!(ProgLoad.fd_array),
            Items(at!(ProgLoad.fd_array_cnt), 4),
            Objects,
        ),
        buffer(
            at!(ProgLoad.core_relos),
            Records(
                at!(ProgLoad.core_relo_cnt),
                at!(ProgLoad.core_relo_rec_size),
            ),
            In,
        ),
    ],
    written: &[(at!(ProgLoad.log_true_size), 4)],
    makes: true,
};

const TEST_RUN: Layout = Layout {
    name: "BPF_PROG_TEST_RUN",
    size: offset_behind!(attr::TestRun, batch_size),
    objects: &[FIRST],
    buffers: &[
        buffer(at!(TestRun.data_in), Count(at!(TestRun.data_size_in)), In),
        buffer(
            at!(TestRun.data_out),
            Count(at!(TestRun.data_size_out)),
            Out,
        ),
        buffer(at!(TestRun.ctx_in), Count(at!(TestRun.ctx_size_in)), In),
        buffer(at!(TestRun.ctx_out), Count(at!(TestRun.ctx_size_out)), Out),
    ],
    written: &[
        (at!(TestRun.retval), 4),
        (at!(TestRun.data_size_out), 4),
        (at!(TestRun.duration), 4),
        (at!(TestRun.ctx_size_out), 4),
    ],
    makes: false,
};

const fn next_id(name: &'static str) -> Layout {
    Layout {
        name,
        size: offset_behind!(attr::GetId, open_flags),
        written: &[(at!(GetId.next_id), 4)],
        ..PLAIN
    }
}

const fn by_id(name: &'static str) -> Layout {
    Layout {
        name,
        size: offset_behind!(attr::GetId, open_flags),
        makes: true,
        ..PLAIN
    }
}

const fn batch(name: &'static str, buffers: &'static [Buffer]) -> Layout {
    Layout {
        name,
        size: size_of::<attr::Batch>(),
        objects: &[BATCHED],
        buffers,
        written: &[(at!(Batch.count), 4)],
        makes: false,
    }
}

const READ_BATCH: &[Buffer] = &[
    buffer(at!(Batch.in_batch), Cursor, In),
    buffer(at!(Batch.out_batch), Cursor, Out),
    buffer(at!(Batch.keys), Keys(at!(Batch.count)), Out),
    buffer(at!(Batch.values), Values(at!(Batch.count)), Out),
];

const RAW_TRACEPOINT_OPEN: Layout = Layout {
    name: "BPF_RAW_TRACEPOINT_OPEN",
    size: size_of::<attr::RawTracepoint>(),
    objects: &[always(at!(RawTracepoint.prog_fd))],
    buffers: &[buffer(
        at!(RawTracepoint.name),
        Text(LONGEST_RAW_TRACEPOINT_NAME + 1),
        In,
    )],
    makes: true,
    ..PLAIN
};

/// The process at the beginning is the proxy itself, which has the descriptor.
const TASK_FD_QUERY: Layout = Layout {
    name: "BPF_TASK_FD_QUERY",
    size: size_of::<attr::TaskFdQuery>(),
    objects: &[SECOND],
    buffers: &[buffer(
        at!(TaskFdQuery.buf),
        Count(at!(TaskFdQuery.buf_len)),
        Out,
    )],
    written: &[
        (at!(TaskFdQuery.buf_len), 4),
        (at!(TaskFdQuery.prog_id), 4),
        (at!(TaskFdQuery.fd_type), 4),
        (at!(TaskFdQuery.probe_offset), 8),
        (at!(TaskFdQuery.probe_addr), 8),
    ],
    makes: false,
};

const BTF_LOAD: Layout = Layout {
    name: "BPF_BTF_LOAD",
    size: size_of::<attr::BtfLoad>(),
    objects: &[flagged(
        at!(BtfLoad.btf_token_fd),
        at!(BtfLoad.btf_flags),
        flags::TOKEN_FD,
    )],
    buffers: &[
        buffer(at!(BtfLoad.btf), Count(at!(BtfLoad.btf_size)), In),
        buffer(
            at!(BtfLoad.btf_log_buf),
            Count(at!(BtfLoad.btf_log_size)),
            Out,
        ),
    ],
    written: &[(at!(BtfLoad.btf_log_true_size), 4)],
    makes: true,
};

const fn link(objects: &'static [Object], buffers: &'static [Buffer]) -> Layout {
    Layout {
        name: "BPF_LINK_CREATE",
        size: size_of::<attr::LinkCreateUprobeMulti>(),
        objects,
        buffers,
        written: &[],
        makes: true,
    }
}

const PROBE_MULTI: Layout = link(
    &[FIRST],
    &[
        holding(
            at!(LinkCreateKprobeMulti.syms),
            Items(at!(LinkCreateKprobeMulti.cnt), 8),
            Texts,
        ),
        buffer(
            at!(LinkCreateKprobeMulti.addrs),
            Items(at!(LinkCreateKprobeMulti.cnt), 8),
            In,
        ),
        buffer(
            at!(LinkCreateKprobeMulti.cookies),
            Items(at!(LinkCreateKprobeMulti.cnt), 8),
            In,
        ),
    ],
);

const UPROBE_MULTI: Layout = link(
    &[FIRST],
    &[
        buffer(at!(LinkCreateUprobeMulti.path), Text(PATH_MAX), In),
        buffer(
            at!(LinkCreateUprobeMulti.offsets),
            Items(at!(LinkCreateUprobeMulti.cnt), 8),
            In,
        ),
        buffer(
            at!(LinkCreateUprobeMulti.ref_ctr_offsets),
            Items(at!(LinkCreateUprobeMulti.cnt), 8),
            In,
        ),
        buffer(
            at!(LinkCreateUprobeMulti.cookies),
            Items(at!(LinkCreateUprobeMulti.cnt), 8),
            In,
        ),
    ],
);

/// A program for another program, for a type of the kernel's, or for a perf event.
const ON_OBJECT: Layout = link(&[FIRST, not_zero(at!(LinkCreate.target_fd))], &[]);

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
            size: size_of::<attr::Info>(),
            objects: &[FIRST],
            buffers: &[INFO],
            written: &[(at!(Info.info_len), 4)],
            makes: false,
        },
        Command::RAW_TRACEPOINT_OPEN => RAW_TRACEPOINT_OPEN,
        Command::BTF_LOAD => BTF_LOAD,
        Command::TASK_FD_QUERY => TASK_FD_QUERY,
        Command::MAP_FREEZE => Layout {
            name: "BPF_MAP_FREEZE",
            size: offset_behind!(attr::Element, map_fd),
            objects: &[FIRST],
            ..PLAIN
        },
        Command::MAP_LOOKUP_BATCH => batch("BPF_MAP_LOOKUP_BATCH", READ_BATCH),
        Command::MAP_LOOKUP_AND_DELETE_BATCH => {
            batch("BPF_MAP_LOOKUP_AND_DELETE_BATCH", READ_BATCH)
        }
        Command::MAP_UPDATE_BATCH => batch("BPF_MAP_UPDATE_BATCH", &[BATCH_KEYS, BATCH_VALUES]),
        Command::MAP_DELETE_BATCH => batch("BPF_MAP_DELETE_BATCH", &[BATCH_KEYS]),
        Command::LINK_CREATE => link_layout(AttachType(u32_at(attr, at!(LinkCreate.attach_type))))?,
        Command::LINK_UPDATE => Layout {
            name: "BPF_LINK_UPDATE",
            size: size_of::<attr::LinkUpdate>(),
            objects: &[FIRST, SECOND, REPLACED],
            ..PLAIN
        },
        Command::ENABLE_STATS => Layout {
            name: "BPF_ENABLE_STATS",
            size: size_of::<attr::EnableStats>(),
            makes: true,
            ..PLAIN
        },
        Command::ITER_CREATE => Layout {
            name: "BPF_ITER_CREATE",
            size: size_of::<attr::IterCreate>(),
            objects: &[FIRST],
            makes: true,
            ..PLAIN
        },
        Command::LINK_DETACH => Layout {
            name: "BPF_LINK_DETACH",
            size: size_of::<attr::LinkDetach>(),
            objects: &[FIRST],
            ..PLAIN
        },
        Command::PROG_BIND_MAP => Layout {
            name: "BPF_PROG_BIND_MAP",
            size: size_of::<attr::ProgBindMap>(),
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

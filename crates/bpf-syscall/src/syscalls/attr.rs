//! Typed views of `union bpf_attr`, a structure for each command.

use std::mem::offset_of;

use beeline_supervisor::attr::{BpfAttr, object_name};
use beeline_uapi::attr as uapi;
use beeline_uapi::{AttachType, Errno, MapType, ProgramType, offset_behind};

/// `BPF_MAP_CREATE`.
#[derive(Debug)]
pub(crate) struct MapCreate {
    pub(crate) map_type: MapType,
    pub(crate) key_size: u32,
    pub(crate) value_size: u32,
    pub(crate) max_entries: u32,
    pub(crate) flags: u32,
    pub(crate) numa_node: u32,
    /// For a map of maps.
    pub(crate) inner_map_fd: i32,
    /// The name, or the error for a wrong one, which other errors take precedence over.
    pub(crate) name: Result<String, Errno>,
    pub(crate) ifindex: u32,
    pub(crate) btf_fd: i32,
    pub(crate) btf_key_type: u32,
    pub(crate) btf_value_type: u32,
    pub(crate) btf_vmlinux_value_type: u32,
    pub(crate) extra: u64,
    pub(crate) token_fd: i32,
    /// True if there is a digest of the one program that may use the map.
    pub(crate) exclusive: bool,
}

impl MapCreate {
    pub(crate) fn parse(attr: &BpfAttr) -> Result<Self, Errno> {
        attr.ends_at(offset_behind!(uapi::MapCreate, excl_prog_hash_size))?;
        let from: uapi::MapCreate = attr.view();
        Ok(MapCreate {
            map_type: from.map_type,
            key_size: from.key_size,
            value_size: from.value_size,
            max_entries: from.max_entries,
            flags: from.map_flags,
            numa_node: from.numa_node,
            inner_map_fd: from.inner_map_fd,
            name: object_name(&from.map_name),
            ifindex: from.map_ifindex,
            btf_fd: from.btf_fd,
            btf_key_type: from.btf_key_type_id,
            btf_value_type: from.btf_value_type_id,
            btf_vmlinux_value_type: from.btf_vmlinux_value_type_id,
            extra: from.map_extra,
            token_fd: from.map_token_fd,
            exclusive: from.excl_prog_hash != 0 || from.excl_prog_hash_size != 0,
        })
    }
}

/// `BPF_MAP_FREEZE`.
#[derive(Debug)]
pub(crate) struct MapFreeze {
    pub(crate) map_fd: i32,
}

impl MapFreeze {
    pub(crate) fn parse(attr: &BpfAttr) -> Result<Self, Errno> {
        attr.ends_at(offset_behind!(uapi::Element, map_fd))?;
        let from: uapi::Element = attr.view();
        Ok(MapFreeze {
            map_fd: from.map_fd,
        })
    }
}

/// The commands on one element of a map. The ends of their fields differ.
#[derive(Debug)]
pub(crate) struct Element {
    pub(crate) map_fd: i32,
    /// The address of the key.
    pub(crate) key: u64,
    /// The address of the value, or of the next key.
    pub(crate) value: u64,
    pub(crate) flags: u64,
}

impl Element {
    /// The ends of the commands' last fields.
    pub(crate) const KEY_END: usize = offset_behind!(uapi::Element, key);
    pub(crate) const VALUE_END: usize = offset_behind!(uapi::Element, value);
    pub(crate) const FLAGS_END: usize = offset_behind!(uapi::Element, flags);

    /// Parses the attribute; `end` is the end of the command's last field.
    pub(crate) fn parse(attr: &BpfAttr, end: usize) -> Result<Self, Errno> {
        attr.ends_at(end)?;
        let from: uapi::Element = attr.view();
        Ok(Element {
            map_fd: from.map_fd,
            key: from.key,
            value: from.value,
            flags: from.flags,
        })
    }
}

/// The commands on many elements of a map.
#[derive(Debug)]
pub(crate) struct Batch {
    /// The address of the cursor to continue from; 0 to start.
    pub(crate) from: u64,
    /// The address for the cursor to continue from next time.
    pub(crate) to: u64,
    /// The address of the keys.
    pub(crate) keys: u64,
    /// The address of the values.
    pub(crate) values: u64,
    pub(crate) count: u32,
    pub(crate) map_fd: i32,
    pub(crate) element_flags: u64,
    pub(crate) flags: u64,
}

impl Batch {
    /// The offset of [`Self::count`] in the attribute, for writing it back.
    pub(crate) const COUNT: u64 = offset_of!(uapi::Batch, count) as u64;

    pub(crate) fn parse(attr: &BpfAttr) -> Result<Self, Errno> {
        attr.ends_at(offset_behind!(uapi::Batch, flags))?;
        let from: uapi::Batch = attr.view();
        Ok(Batch {
            from: from.in_batch,
            to: from.out_batch,
            keys: from.keys,
            values: from.values,
            count: from.count,
            map_fd: from.map_fd,
            element_flags: from.elem_flags,
            flags: from.flags,
        })
    }
}

/// `BPF_PROG_LOAD`.
#[derive(Debug)]
pub(crate) struct ProgLoad {
    pub(crate) prog_type: ProgramType,
    pub(crate) insn_count: u32,
    /// The address of the instructions.
    pub(crate) insns: u64,
    /// The address of the licence.
    pub(crate) license: u64,
    pub(crate) log: Log,
    pub(crate) name: String,
    pub(crate) flags: u32,
    pub(crate) expected_attach_type: AttachType,
    /// A type in the kernel's BTF, or in that of `attach_fd`.
    pub(crate) attach_btf_id: u32,
    /// A program or BTF descriptor; 0 for none.
    pub(crate) attach_fd: i32,
    /// The number of relocations that are left to the kernel.
    pub(crate) relocations: u32,
    pub(crate) btf_fd: i32,
    /// Records of `struct bpf_func_info`, which need `btf_fd`.
    pub(crate) func_info: Records,
    /// Records of `struct bpf_line_info`, which need `btf_fd`.
    pub(crate) line_info: Records,
    /// The address of descriptors; 0 for none.
    pub(crate) fd_array: u64,
    /// The number of entries of `fd_array` that the program keeps alive, used or not.
    pub(crate) fd_array_count: u32,
}

/// An array in the tool's memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Records {
    /// The bytes of one record.
    pub(crate) size: u32,
    pub(crate) address: u64,
    pub(crate) count: u32,
}

/// The destination of a verifier's log.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Log {
    pub(crate) level: u32,
    pub(crate) size: u32,
    /// The address of the buffer; 0 for none.
    pub(crate) buffer: u64,
}

impl ProgLoad {
    /// The offset at which the length of the whole log is written back.
    pub(crate) const LOG_TRUE_SIZE: usize = offset_of!(uapi::ProgLoad, log_true_size);

    pub(crate) fn parse(attr: &BpfAttr) -> Result<Self, Errno> {
        attr.ends_at(offset_behind!(uapi::ProgLoad, fd_array_cnt))?;
        let from: uapi::ProgLoad = attr.view();
        Ok(ProgLoad {
            prog_type: from.prog_type,
            insn_count: from.insn_cnt,
            insns: from.insns,
            license: from.license,
            log: Log {
                level: from.log_level,
                size: from.log_size,
                buffer: from.log_buf,
            },
            flags: from.prog_flags,
            name: object_name(&from.prog_name)?,
            expected_attach_type: from.expected_attach_type,
            attach_btf_id: from.attach_btf_id,
            attach_fd: from.attach_prog_fd,
            relocations: from.core_relo_cnt,
            btf_fd: from.prog_btf_fd,
            func_info: Records {
                size: from.func_info_rec_size,
                address: from.func_info,
                count: from.func_info_cnt,
            },
            line_info: Records {
                size: from.line_info_rec_size,
                address: from.line_info,
                count: from.line_info_cnt,
            },
            fd_array: from.fd_array,
            fd_array_count: from.fd_array_cnt,
        })
    }
}

/// `BPF_PROG_BIND_MAP`.
#[derive(Debug)]
pub(crate) struct ProgBindMap {
    pub(crate) prog_fd: i32,
    pub(crate) map_fd: i32,
    pub(crate) flags: u32,
}

impl ProgBindMap {
    pub(crate) fn parse(attr: &BpfAttr) -> Result<Self, Errno> {
        attr.ends_at(offset_behind!(uapi::ProgBindMap, flags))?;
        let from: uapi::ProgBindMap = attr.view();
        Ok(ProgBindMap {
            prog_fd: from.prog_fd,
            map_fd: from.map_fd,
            flags: from.flags,
        })
    }
}

/// `BPF_PROG_TEST_RUN`.
#[derive(Debug)]
pub(crate) struct TestRun {
    pub(crate) prog_fd: i32,
    pub(crate) data_in: Buffer,
    pub(crate) data_out: Buffer,
    pub(crate) context_in: Buffer,
    pub(crate) context_out: Buffer,
    pub(crate) repeat: u32,
    pub(crate) duration: u32,
    pub(crate) flags: u32,
    pub(crate) cpu: u32,
    pub(crate) batch_size: u32,
}

/// Memory of the tool.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Buffer {
    pub(crate) address: u64,
    /// In bytes.
    pub(crate) len: u32,
}

impl Buffer {
    /// True if there is an address and a size, or neither.
    fn is_whole(self) -> bool {
        (self.address == 0) == (self.len == 0)
    }

    fn is_given(self) -> bool {
        self.address != 0 || self.len != 0
    }
}

impl TestRun {
    /// The offset at which the program's result is written back.
    pub(crate) const RETVAL: u64 = offset_of!(uapi::TestRun, retval) as u64;
    /// The offset at which the packet's size is written back.
    pub(crate) const DATA_SIZE_OUT: u64 = offset_of!(uapi::TestRun, data_size_out) as u64;
    /// The offset at which the context's size is written back.
    pub(crate) const CONTEXT_SIZE_OUT: u64 = offset_of!(uapi::TestRun, ctx_size_out) as u64;
    /// The offset at which the duration is written back.
    pub(crate) const DURATION: u64 = offset_of!(uapi::TestRun, duration) as u64;

    pub(crate) fn parse(attr: &BpfAttr) -> Result<Self, Errno> {
        attr.ends_at(offset_behind!(uapi::TestRun, batch_size))?;
        let from: uapi::TestRun = attr.view();
        let buffer = |address, len| Buffer { address, len };
        let parsed = TestRun {
            prog_fd: from.prog_fd,
            data_in: buffer(from.data_in, from.data_size_in),
            data_out: buffer(from.data_out, from.data_size_out),
            context_in: buffer(from.ctx_in, from.ctx_size_in),
            context_out: buffer(from.ctx_out, from.ctx_size_out),
            repeat: from.repeat,
            duration: from.duration,
            flags: from.flags,
            cpu: from.cpu,
            batch_size: from.batch_size,
        };
        match parsed.context_in.is_whole() && parsed.context_out.is_whole() {
            true => Ok(parsed),
            false => Err(Errno::EINVAL),
        }
    }

    /// True for packet data, an output context or repetitions, which programs without a packet do
    /// not take.
    pub(crate) fn has_packet(&self) -> bool {
        let buffers = [self.data_in, self.data_out, self.context_out];
        let repeated = self.repeat != 0 || self.duration != 0 || self.batch_size != 0;
        repeated || buffers.into_iter().any(Buffer::is_given)
    }
}

/// `BPF_BTF_LOAD`.
#[derive(Debug)]
pub(crate) struct BtfLoad {
    /// The address of the data.
    pub(crate) data: u64,
    pub(crate) size: u32,
}

impl BtfLoad {
    pub(crate) fn parse(attr: &BpfAttr) -> Result<Self, Errno> {
        attr.ends_at(offset_behind!(uapi::BtfLoad, btf_token_fd))?;
        let from: uapi::BtfLoad = attr.view();
        Ok(BtfLoad {
            data: from.btf,
            size: from.btf_size,
        })
    }
}

/// `BPF_LINK_CREATE`.
#[derive(Debug)]
pub(crate) struct LinkCreate {
    pub(crate) prog_fd: i32,
    pub(crate) target_fd: i32,
    pub(crate) attach_type: AttachType,
    pub(crate) flags: u32,
    /// For a perf event link.
    pub(crate) cookie: u64,
    /// For a tracing program; in the same place as the perf event's cookie.
    pub(crate) target_btf_id: u32,
    /// For a tracing program.
    pub(crate) tracing_cookie: u64,
    /// For a link of many uprobes.
    pub(crate) uprobes: uapi::LinkCreateUprobeMulti,
}

impl LinkCreate {
    pub(crate) fn parse(attr: &BpfAttr) -> Result<Self, Errno> {
        attr.ends_at(offset_behind!(uapi::LinkCreateUprobeMulti, pid))?;
        let from: uapi::LinkCreate = attr.view();
        let of_tracing: uapi::LinkCreateTracing = attr.view();
        Ok(LinkCreate {
            prog_fd: from.prog_fd,
            target_fd: from.target_fd,
            attach_type: from.attach_type,
            flags: from.flags,
            cookie: attr.view::<uapi::LinkCreatePerfEvent>().bpf_cookie,
            target_btf_id: of_tracing.target_btf_id,
            tracing_cookie: of_tracing.cookie,
            uprobes: attr.view(),
        })
    }
}

/// `BPF_RAW_TRACEPOINT_OPEN`.
#[derive(Debug)]
pub(crate) struct RawTracepointOpen {
    /// The address of the name; 0 for programs that were loaded for their place.
    pub(crate) name: u64,
    pub(crate) prog_fd: i32,
    pub(crate) cookie: u64,
}

impl RawTracepointOpen {
    pub(crate) fn parse(attr: &BpfAttr) -> Result<Self, Errno> {
        attr.ends_at(offset_behind!(uapi::RawTracepoint, cookie))?;
        let from: uapi::RawTracepoint = attr.view();
        Ok(RawTracepointOpen {
            name: from.name,
            prog_fd: from.prog_fd,
            cookie: from.cookie,
        })
    }
}

/// `BPF_OBJ_GET_INFO_BY_FD`.
#[derive(Debug)]
pub(crate) struct GetInfo {
    pub(crate) fd: i32,
    /// The bytes at `info`.
    pub(crate) info_len: u32,
    /// The address of what the tool passes, and of the answer.
    pub(crate) info: u64,
}

impl GetInfo {
    /// The offset of [`Self::info_len`], at which the answer's length is written back.
    pub(crate) const INFO_LEN: u64 = offset_of!(uapi::Info, info_len) as u64;

    pub(crate) fn parse(attr: &BpfAttr) -> Result<Self, Errno> {
        attr.ends_at(offset_behind!(uapi::Info, info))?;
        let from: uapi::Info = attr.view();
        Ok(GetInfo {
            fd: from.bpf_fd,
            info_len: from.info_len,
            info: from.info,
        })
    }
}

/// `BPF_MAP_GET_NEXT_ID` and its like for other objects.
#[derive(Debug)]
pub(crate) struct GetNextId {
    pub(crate) start_id: u32,
}

impl GetNextId {
    /// The offset at which the id is written back.
    pub(crate) const NEXT_ID: u64 = offset_of!(uapi::GetId, next_id) as u64;

    pub(crate) fn parse(attr: &BpfAttr) -> Result<Self, Errno> {
        attr.ends_at(offset_behind!(uapi::GetId, next_id))?;
        let from: uapi::GetId = attr.view();
        Ok(GetNextId {
            start_id: from.start_id,
        })
    }
}

/// `BPF_MAP_GET_FD_BY_ID` and its like for other objects. Only maps' descriptors have a mode.
#[derive(Debug)]
pub(crate) struct GetFdById {
    pub(crate) id: u32,
    pub(crate) open_flags: u32,
}

impl GetFdById {
    /// The ends of the commands' last fields.
    pub(crate) const ID_END: usize = offset_behind!(uapi::GetId, start_id);
    pub(crate) const OPEN_FLAGS_END: usize = offset_behind!(uapi::GetId, open_flags);

    /// Parses the attribute; `end` is the end of the command's last field.
    pub(crate) fn parse(attr: &BpfAttr, end: usize) -> Result<Self, Errno> {
        attr.ends_at(end)?;
        let from: uapi::GetId = attr.view();
        Ok(GetFdById {
            id: from.start_id,
            open_flags: from.open_flags,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_bytes_make_a_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..5000)) {
            if let Ok(attr) = BpfAttr::parse(&bytes) {
                let _ = MapCreate::parse(&attr);
                let _ = MapFreeze::parse(&attr);
                let _ = Element::parse(&attr, Element::FLAGS_END);
                let _ = Batch::parse(&attr);
                let _ = ProgLoad::parse(&attr);
                let _ = ProgBindMap::parse(&attr);
                let _ = TestRun::parse(&attr);
                let _ = BtfLoad::parse(&attr);
                let _ = LinkCreate::parse(&attr);
                let _ = RawTracepointOpen::parse(&attr);
                let _ = GetInfo::parse(&attr);
                let _ = GetNextId::parse(&attr);
                let _ = GetFdById::parse(&attr, GetFdById::OPEN_FLAGS_END);
            }
        }
    }

    #[test]
    fn names_are_checked() {
        let with_name = |name: &[u8]| {
            let mut bytes = vec![0; 80];
            bytes[28..28 + name.len()].copy_from_slice(name);
            BpfAttr::parse(&bytes)
                .and_then(|attr| MapCreate::parse(&attr))
                .and_then(|map| map.name)
        };
        assert_eq!(with_name(b"AT_x.rodata").unwrap(), "AT_x.rodata");
        assert_eq!(with_name(b"a b"), Err(Errno::EINVAL));
        assert_eq!(with_name(b"sixteen_bytes_16"), Err(Errno::EINVAL));
    }
}

//! `union bpf_attr`: typed views, a structure for each command, and the way to write results back.

use beeline_supervisor::attr::BpfAttr;
use beeline_supervisor::{Call, Memory};
use beeline_uapi::{AttachType, Errno, MapType, ProgramType};

/// The attribute of a `bpf(2)` call in the tool's memory, for the results that go there.
#[derive(Clone, Copy)]
pub(crate) struct ToolAttr<'a> {
    memory: Memory<'a>,
    address: u64,
}

impl<'a> ToolAttr<'a> {
    pub(crate) fn of(call: &Call<'a>) -> Self {
        let [_, address, ..] = call.args;
        Self {
            memory: call.memory,
            address,
        }
    }

    /// Writes the field at an offset.
    pub(crate) fn put_u32(&self, offset: u64, value: u32) -> Result<(), Errno> {
        let field = self.address.checked_add(offset).ok_or(Errno::EFAULT)?;
        self.memory.write_u32(field, value)
    }
}

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
        attr.ends_at(92)?;
        Ok(MapCreate {
            map_type: MapType(attr.u32(0)),
            key_size: attr.u32(4),
            value_size: attr.u32(8),
            max_entries: attr.u32(12),
            flags: attr.u32(16),
            numa_node: attr.u32(24),
            inner_map_fd: attr.i32(20),
            name: attr.name(28),
            ifindex: attr.u32(44),
            btf_fd: attr.i32(48),
            btf_key_type: attr.u32(52),
            btf_value_type: attr.u32(56),
            btf_vmlinux_value_type: attr.u32(60),
            extra: attr.u64(64),
            token_fd: attr.i32(76),
            exclusive: attr.u64(80) != 0 || attr.u32(88) != 0,
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
        attr.ends_at(4)?;
        Ok(MapFreeze {
            map_fd: attr.i32(0),
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
    pub(crate) const KEY_END: usize = 16;
    pub(crate) const VALUE_END: usize = 24;
    pub(crate) const FLAGS_END: usize = 32;

    /// Parses the attribute; `end` is the end of the command's last field.
    pub(crate) fn parse(attr: &BpfAttr, end: usize) -> Result<Self, Errno> {
        attr.ends_at(end)?;
        Ok(Element {
            map_fd: attr.i32(0),
            key: attr.u64(8),
            value: attr.u64(16),
            flags: attr.u64(24),
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
    pub(crate) const COUNT: u64 = 32;

    pub(crate) fn parse(attr: &BpfAttr) -> Result<Self, Errno> {
        attr.ends_at(56)?;
        Ok(Batch {
            from: attr.u64(0),
            to: attr.u64(8),
            keys: attr.u64(16),
            values: attr.u64(24),
            count: attr.u32(32),
            map_fd: attr.i32(36),
            element_flags: attr.u64(40),
            flags: attr.u64(48),
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
    pub(crate) const LOG_TRUE_SIZE: u64 = 140;

    pub(crate) fn parse(attr: &BpfAttr) -> Result<Self, Errno> {
        attr.ends_at(152)?;
        Ok(ProgLoad {
            prog_type: ProgramType(attr.u32(0)),
            insn_count: attr.u32(4),
            insns: attr.u64(8),
            license: attr.u64(16),
            log: Log {
                level: attr.u32(24),
                size: attr.u32(28),
                buffer: attr.u64(32),
            },
            flags: attr.u32(44),
            name: attr.name(48)?,
            expected_attach_type: AttachType(attr.u32(68)),
            attach_btf_id: attr.u32(108),
            attach_fd: attr.i32(112),
            relocations: attr.u32(116),
            btf_fd: attr.i32(72),
            func_info: Records {
                size: attr.u32(76),
                address: attr.u64(80),
                count: attr.u32(88),
            },
            line_info: Records {
                size: attr.u32(92),
                address: attr.u64(96),
                count: attr.u32(104),
            },
            fd_array: attr.u64(120),
            fd_array_count: attr.u32(148),
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
        attr.ends_at(12)?;
        Ok(ProgBindMap {
            prog_fd: attr.i32(0),
            map_fd: attr.i32(4),
            flags: attr.u32(8),
        })
    }
}

/// `BPF_PROG_TEST_RUN`.
#[derive(Debug)]
pub(crate) struct TestRun {
    pub(crate) prog_fd: i32,
    pub(crate) context_len: u32,
    /// The address of the context.
    pub(crate) context: u64,
    /// True for packet data, an output context or repetitions, which programs without a packet do
    /// not take.
    pub(crate) has_packet: bool,
    pub(crate) flags: u32,
    pub(crate) cpu: u32,
}

impl TestRun {
    /// The offset at which the program's result is written back.
    pub(crate) const RETVAL: u64 = 4;

    pub(crate) fn parse(attr: &BpfAttr) -> Result<Self, Errno> {
        attr.ends_at(76)?;
        let data = attr.u32(8) != 0 || attr.u32(12) != 0 || attr.u64(16) != 0 || attr.u64(24) != 0;
        let repeated = attr.u32(32) != 0 || attr.u32(36) != 0 || attr.u32(72) != 0;
        let context_out = attr.u32(44) != 0 || attr.u64(56) != 0;
        Ok(TestRun {
            prog_fd: attr.i32(0),
            context_len: attr.u32(40),
            context: attr.u64(48),
            has_packet: data || repeated || context_out,
            flags: attr.u32(64),
            cpu: attr.u32(68),
        })
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
        attr.ends_at(40)?;
        Ok(BtfLoad {
            data: attr.u64(0),
            size: attr.u32(16),
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
}

impl LinkCreate {
    pub(crate) fn parse(attr: &BpfAttr) -> Result<Self, Errno> {
        attr.ends_at(64)?;
        Ok(LinkCreate {
            prog_fd: attr.i32(0),
            target_fd: attr.i32(4),
            attach_type: AttachType(attr.u32(8)),
            flags: attr.u32(12),
            cookie: attr.u64(16),
            target_btf_id: attr.u32(16),
            tracing_cookie: attr.u64(24),
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
        attr.ends_at(24)?;
        Ok(RawTracepointOpen {
            name: attr.u64(0),
            prog_fd: attr.i32(8),
            cookie: attr.u64(16),
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
    pub(crate) const INFO_LEN: u64 = 4;

    pub(crate) fn parse(attr: &BpfAttr) -> Result<Self, Errno> {
        attr.ends_at(16)?;
        Ok(GetInfo {
            fd: attr.i32(0),
            info_len: attr.u32(4),
            info: attr.u64(8),
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
    pub(crate) const NEXT_ID: u64 = 4;

    pub(crate) fn parse(attr: &BpfAttr) -> Result<Self, Errno> {
        attr.ends_at(8)?;
        Ok(GetNextId {
            start_id: attr.u32(0),
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
    pub(crate) const ID_END: usize = 4;
    pub(crate) const OPEN_FLAGS_END: usize = 12;

    /// Parses the attribute; `end` is the end of the command's last field.
    pub(crate) fn parse(attr: &BpfAttr, end: usize) -> Result<Self, Errno> {
        attr.ends_at(end)?;
        Ok(GetFdById {
            id: attr.u32(0),
            open_flags: attr.u32(8),
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

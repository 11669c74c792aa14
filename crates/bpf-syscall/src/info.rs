//! `BPF_OBJ_GET_INFO_BY_FD`: describes an object.

use beeline_runtime::backend::{AttachPoint, CallContext, Edge, Info};
use beeline_supervisor::attr::{ATTR_LIMIT, BpfAttr, u32_at, u64_at};
use beeline_supervisor::{Answer, Reply};
use beeline_uapi::{Errno, PerfEventType};

use crate::local::Handler;
use crate::objects::{Btf, Link, LinkTo, Map, Object, Program};
use crate::syscall_table::SystemCall;
use crate::tracepoints::Tracepoint;

const EINVAL: Errno = Errno(libc::EINVAL);

/// The bytes of the kernel's answers (`linux/bpf.h`, Linux 6.18).
const MAP_INFO: usize = 104;
/// The last bytes are no field, and must be zero.
const MAP_INFO_PADDING: usize = 4;
const PROG_INFO: usize = 232;
const BTF_INFO: usize = 32;
const LINK_INFO: usize = 64;

/// An answer. It begins as what the tool passed, since some fields are the addresses of buffers to
/// fill and the room in them.
struct Answered {
    bytes: Vec<u8>,
}

impl Answered {
    fn put(&mut self, offset: usize, field: &[u8]) {
        for (to, from) in self.bytes.iter_mut().skip(offset).zip(field) {
            *to = *from;
        }
    }

    fn put_u32(&mut self, offset: usize, value: u32) {
        self.put(offset, &value.to_ne_bytes());
    }

    fn put_u64(&mut self, offset: usize, value: u64) {
        self.put(offset, &value.to_ne_bytes());
    }

    /// Puts a name of at most 15 bytes into its field of 16.
    fn put_name(&mut self, offset: usize, name: &str) {
        let mut field = [0; 16];
        for (to, from) in field.iter_mut().take(15).zip(name.bytes()) {
            *to = from;
        }
        self.put(offset, &field);
    }

    fn u32(&self, offset: usize) -> u32 {
        u32_at(&self.bytes, offset)
    }

    fn u64(&self, offset: usize) -> u64 {
        u64_at(&self.bytes, offset)
    }
}

impl Handler<'_> {
    pub(crate) fn info_by_fd(&self, attr: &BpfAttr) -> Answer {
        attr.ends_at(16)?;
        let (fd, room, address) = (attr.i32(0), attr.u32(4) as usize, attr.u64(8));
        // Only this command returns EBADFD.
        let found = self.local.fds.find(self.tid, fd);
        let object = found.map_err(|_| Errno(libc::EBADFD))?.ok_or(EINVAL)?;
        let (known, padding) = match &object {
            Object::Map(_) => (MAP_INFO, MAP_INFO_PADDING),
            Object::Program(_) => (PROG_INFO, 0),
            Object::Btf(_) => (BTF_INFO, 0),
            Object::Link(_) => (LINK_INFO, 0),
            Object::Event(_) | Object::Ring(_) => return Err(EINVAL),
        };
        if room > ATTR_LIMIT {
            return Err(Errno(libc::E2BIG));
        }
        let mut passed = self.memory.bytes(address, room)?;
        let fields_end = known - padding;
        if passed.iter().skip(fields_end).any(|&byte| byte != 0) {
            return Err(Errno(libc::E2BIG));
        }
        passed.resize(known, 0);
        let mut info = Answered { bytes: passed };
        match &object {
            Object::Map(map) => map_info(map, &mut info)?,
            Object::Program(program) => self.program_info(program, &mut info)?,
            Object::Btf(btf) => self.btf_info(btf, &mut info)?,
            Object::Link(link) => self.link_info(link, &mut info)?,
            Object::Event(_) | Object::Ring(_) => return Err(EINVAL),
        }
        info.bytes.truncate(room);
        self.memory.write(address, &info.bytes)?;
        self.write_back(4, info.bytes.len() as u32)?;
        Ok(Reply::Value(0))
    }

    /// Fills the buffer that two fields of the answer describe: its room, in items of `item` bytes,
    /// and its address. The first field then receives the number of all items.
    fn fill(
        &self,
        info: &mut Answered,
        (count_at, address_at): (usize, usize),
        item: usize,
        data: &[u8],
    ) -> Result<(), Errno> {
        let room = (info.u32(count_at) as usize).saturating_mul(item);
        info.put_u32(count_at, (data.len() / item) as u32);
        let given = data.get(..room).unwrap_or(data);
        self.memory.write(info.u64(address_at), given)
    }

    /// Fills `struct bpf_prog_info`.
    fn program_info(&self, program: &Program, info: &mut Answered) -> Result<(), Errno> {
        const GPL_COMPATIBLE: u32 = 1;
        let Info::Program {
            name,
            tag,
            jited,
            xlated,
            maps,
            ..
        } = self.local.backend.info(program.held.id)?
        else {
            return Err(EINVAL);
        };
        info.put_u32(0, program.prog_type.0);
        info.put_u32(4, program.held.id.0);
        info.put(8, &tag);
        info.put_u64(40, program.loaded);
        info.put_u32(48, program.uid);
        info.put_name(64, &name);
        info.put_u32(84, if program.gpl { GPL_COMPATIBLE } else { 0 });
        info.put_u32(128, program.btf.as_ref().map_or(0, |btf| btf.id));
        // These are not counted: time, runs, and runs that were skipped.
        info.put(192, &[0; 24]);
        info.put_u32(216, (xlated.len() / 8) as u32);
        info.put_u64(220, 0);

        let ids: Vec<u8> = maps.iter().flat_map(|map| map.0.to_ne_bytes()).collect();
        self.fill(info, (52, 56), 4, &ids)?;
        check_record_sizes(info)?;
        self.fill(info, (20, 32), 1, &xlated)?;
        self.fill(info, (16, 24), 1, &jited)?;
        // There is one function. Its address differs between processes.
        self.fill(info, (104, 112), 8, &[0; 8])?;
        self.fill(info, (108, 120), 4, &(jited.len() as u32).to_ne_bytes())?;
        self.fill(info, (144, 136), FUNC_INFO, &program.func_info)?;
        self.fill(info, (148, 152), LINE_INFO, &program.line_info)?;
        self.fill(info, (168, 160), 8, &[])?;
        self.fill(info, (180, 184), 8, &tag)
    }

    /// Fills `struct bpf_btf_info`.
    fn btf_info(&self, btf: &Btf, info: &mut Answered) -> Result<(), Errno> {
        self.fill(info, (8, 0), 1, btf.data())?;
        info.put_u32(12, btf.id);
        let (name, room) = (info.u64(16), info.u32(24) as usize);
        if (name == 0) != (room == 0) {
            return Err(EINVAL);
        }
        let own = btf.name().as_bytes();
        info.put_u32(24, own.len() as u32);
        info.put_u32(28, u32::from(!own.is_empty()));
        if name != 0 {
            let mut text = own.get(..room - 1).unwrap_or(own).to_vec();
            text.push(0);
            self.memory.write(name, &text)?;
            if own.len() >= room {
                return Err(Errno(libc::ENOSPC));
            }
        }
        Ok(())
    }

    /// Fills `struct bpf_link_info`.
    fn link_info(&self, link: &Link, info: &mut Answered) -> Result<(), Errno> {
        info.put_u32(0, link.link_type());
        info.put_u32(4, link.id);
        info.put_u32(8, link.program.held.id.0);
        match &link.to {
            LinkTo::Event(event) => self.event_link_info(event.point(), link.cookie, info),
            LinkTo::Place { point, .. } => match Tracepoint::of_raw(point) {
                Some(tracepoint) => {
                    info.put_u64(32, link.cookie);
                    self.name_into(info, (16, 24), tracepoint.name().as_bytes())
                }
                None => {
                    info.put_u32(16, link.program.expected_attach_type.0);
                    info.put_u32(20, Btf::KERNELS);
                    info.put_u32(24, link.program.attach_btf_id);
                    info.put_u64(32, link.cookie);
                    Ok(())
                }
            },
        }
    }

    /// Fills the part of `struct bpf_link_info` on a perf event.
    fn event_link_info(
        &self,
        point: &AttachPoint,
        cookie: u64,
        info: &mut Answered,
    ) -> Result<(), Errno> {
        const SOFTWARE_CPU_CLOCK: (u32, u64) = (1, 0);
        match point {
            AttachPoint::Timer { .. } => {
                let (kind, config) = SOFTWARE_CPU_CLOCK;
                info.put_u32(16, PerfEventType::EVENT.0);
                info.put_u64(24, config);
                info.put_u32(32, kind);
                info.put_u64(40, cookie);
                Ok(())
            }
            AttachPoint::Uprobe {
                path,
                offset,
                retprobe,
                ..
            } => {
                info.put_u32(36, *offset as u32);
                info.put_u64(40, cookie);
                info.put_u64(48, 0);
                let kind = if *retprobe {
                    PerfEventType::URETPROBE
                } else {
                    PerfEventType::UPROBE
                };
                info.put_u32(16, kind.0);
                self.name_into(info, (24, 32), path.as_os_str().as_encoded_bytes())
            }
            AttachPoint::SystemCall {
                number,
                edge,
                context,
                ..
            } => {
                if let Some(tracepoint) = Tracepoint::of_point(point) {
                    info.put_u32(16, PerfEventType::TRACEPOINT.0);
                    info.put_u64(40, cookie);
                    return self.name_into(info, (24, 32), tracepoint.name().as_bytes());
                }
                info.put_u32(
                    16,
                    match edge {
                        Edge::Enter => PerfEventType::KPROBE.0,
                        Edge::Exit => PerfEventType::KRETPROBE.0,
                    },
                );
                // The probe is at the function's start, its address is not disclosed, and no run
                // was missed.
                info.put_u32(36, 0);
                info.put(40, &[0; 16]);
                info.put_u64(56, cookie);
                let call = number.and_then(SystemCall::by_number).ok_or(EINVAL)?;
                let function = match context {
                    CallContext::FunctionProbe(function) => function.name.to_owned(),
                    _ => call.function(),
                };
                self.name_into(info, (24, 32), function.as_bytes())
            }
        }
    }

    /// Writes a name into the buffer that two fields of the answer give the address and the room
    /// of. A name that does not fit is cut, with ENOSPC.
    fn name_into(
        &self,
        info: &mut Answered,
        (address_at, room_at): (usize, usize),
        name: &[u8],
    ) -> Result<(), Errno> {
        let (address, room) = (info.u64(address_at), info.u32(room_at) as usize);
        if (address == 0) != (room == 0) {
            return Err(EINVAL);
        }
        info.put_u32(room_at, name.len() as u32 + 1);
        if address == 0 {
            return Ok(());
        }
        let mut text = name.get(..room - 1).unwrap_or(name).to_vec();
        text.push(0);
        self.memory.write(address, &text)?;
        if name.len() < room {
            Ok(())
        } else {
            Err(Errno(libc::ENOSPC))
        }
    }
}

/// The bytes of `struct bpf_func_info` and `struct bpf_line_info`.
pub(crate) const FUNC_INFO: usize = 8;
pub(crate) const LINE_INFO: usize = 16;

/// Checks the record sizes that the tool has room for, which must be the known ones, and writes
/// them back.
fn check_record_sizes(info: &mut Answered) -> Result<(), Errno> {
    const JITED_LINE_INFO: usize = 8;
    for (count_at, size_at, size) in [
        (144, 132, FUNC_INFO),
        (148, 172, LINE_INFO),
        (168, 176, JITED_LINE_INFO),
    ] {
        let (count, given) = (info.u32(count_at), info.u32(size_at));
        if (count != 0 || given != 0) && given != size as u32 {
            return Err(EINVAL);
        }
        info.put_u32(size_at, size as u32);
    }
    Ok(())
}

/// Fills `struct bpf_map_info`. As in the kernel, fields that a map does not have stay as the tool
/// passed them.
fn map_info(map: &Map, info: &mut Answered) -> Result<(), Errno> {
    // A digest of the contents, which only maps of signed programs have.
    if info.u64(88) != 0 || info.u32(96) != 0 {
        return Err(EINVAL);
    }
    let spec = &map.spec;
    let fields = [
        spec.map_type.0,
        map.held.id.0,
        spec.key_size,
        spec.value_size,
        spec.max_entries,
        spec.flags,
    ];
    for (n, field) in fields.into_iter().enumerate() {
        info.put_u32(4 * n, field);
    }
    info.put_name(24, &spec.name);
    info.put_u32(44, 0);
    if let Some((btf, key, value)) = &map.btf {
        info.put_u32(64, btf.id);
        info.put_u32(68, *key);
        info.put_u32(72, *value);
    }
    info.put_u64(80, spec.map_extra);
    Ok(())
}

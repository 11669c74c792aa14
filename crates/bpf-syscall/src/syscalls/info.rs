//! `BPF_OBJ_GET_INFO_BY_FD`, and `/proc/self/fdinfo` (`fdinfo`): describe an object.

mod answer;
mod fdinfo;
mod links;

use beeline_isa::INSN_BYTES;
use beeline_runtime::backend::{Backend, Info};
use beeline_supervisor::attr::{ATTR_LIMIT, BpfAttr};
use beeline_supervisor::{Answer, Call, Reply};
use beeline_uapi::info::{BtfInfo, FuncInfo, LineInfo, LinkInfoAny, MapInfo, ProgInfo};
use beeline_uapi::{Errno, offset_behind};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::attr::GetInfo;
use super::tool_attr::ToolAttr;
use crate::fds::ThreadFds;
use crate::local::Local;
use crate::objects::{Btf, Map, Object, ProgramObject};
use answer::{Buffers, name_field};

pub(super) use fdinfo::FdInfo;

/// Describes objects.
pub(super) struct ObjectInfo<'a> {
    buffers: Buffers<'a>,
    attr: ToolAttr<'a>,
    backend: &'a dyn Backend,
    fds: ThreadFds<'a>,
}

impl<'a> ObjectInfo<'a> {
    pub(super) fn new(local: &'a Local, call: &'a Call<'a>) -> Self {
        Self {
            buffers: Buffers(call.memory),
            attr: ToolAttr::of(call),
            backend: &*local.backend,
            fds: local.fds.of(call.tid),
        }
    }

    /// Carries out `BPF_OBJ_GET_INFO_BY_FD`.
    pub(super) fn by_fd(&self, attr: &BpfAttr) -> Answer {
        let wanted = GetInfo::parse(attr)?;
        // Only this command returns EBADFD.
        let found = self.fds.find(wanted.fd);
        let object = found
            .map_err(|_| Errno(libc::EBADFD))?
            .ok_or(Errno::EINVAL)?;
        match &object {
            Object::Map(map) => {
                let fields_end = offset_behind!(MapInfo, hash_size);
                self.answer(&wanted, fields_end, |info| describe_map(map, info))
            }
            Object::Program(program) => self.answer(&wanted, size_of::<ProgInfo>(), |info| {
                self.describe_program(program, info)
            }),
            Object::Btf(btf) => self.answer(&wanted, size_of::<BtfInfo>(), |info| {
                self.describe_btf(btf, info)
            }),
            Object::Link(link) => self.answer(&wanted, size_of::<LinkInfoAny>(), |info| {
                links::describe(link, self.buffers, info)
            }),
            Object::Event(_) | Object::Ring(_) => Err(Errno::EINVAL),
        }
    }

    /// Lets `describe` fill the structure that the tool passed, of which nothing may be set behind
    /// `fields_end`.
    fn answer<T: FromBytes + IntoBytes + Immutable>(
        &self,
        wanted: &GetInfo,
        fields_end: usize,
        describe: impl FnOnce(&mut T) -> Result<(), Errno>,
    ) -> Answer {
        let place @ (_, room) = (wanted.info, wanted.info_len as usize);
        if room > ATTR_LIMIT {
            return Err(Errno::E2BIG);
        }
        let mut info = self.buffers.read(place, fields_end)?;
        describe(&mut info)?;
        let written = self.buffers.write(&info, place)?;
        self.attr.put_u32(GetInfo::INFO_LEN, written as u32)?;
        Ok(Reply::Value(0))
    }

    /// Fills `struct bpf_prog_info`.
    fn describe_program(&self, program: &ProgramObject, to: &mut ProgInfo) -> Result<(), Errno> {
        let Info::Program {
            name,
            tag,
            jited,
            xlated,
            maps,
            ..
        } = self.backend.info(program.held.id)?
        else {
            return Err(Errno::EINVAL);
        };
        to.r#type = program.prog_type;
        to.id = program.held.id.0;
        to.tag = tag;
        to.load_time = program.loaded;
        to.created_by_uid = program.uid;
        to.name = name_field(&name);
        to.bits = if program.gpl {
            ProgInfo::GPL_COMPATIBLE
        } else {
            0
        };
        to.btf_id = program.btf.as_ref().map_or(0, |btf| btf.id);
        (to.run_cnt, to.run_time_ns) = self.backend.program_runs(program.held.id);
        // Runs that were skipped are not counted.
        to.recursion_misses = 0;
        to.verified_insns = (xlated.len() / INSN_BYTES) as u32;
        (to.attach_btf_obj_id, to.attach_btf_id) = (0, 0);

        let ids: Vec<u8> = maps.iter().flat_map(|map| map.0.to_ne_bytes()).collect();
        let out = self.buffers;
        out.fill((&mut to.nr_map_ids, to.map_ids), size_of::<u32>(), &ids)?;
        check_record_sizes(to)?;
        let insns = (&mut to.xlated_prog_len, to.xlated_prog_insns);
        out.fill(insns, 1, &xlated)?;
        let code = (&mut to.jited_prog_len, to.jited_prog_insns);
        out.fill(code, 1, &jited)?;
        // There is one function. Its address differs between processes.
        out.fill((&mut to.nr_jited_ksyms, to.jited_ksyms), 8, &[0; 8])?;
        let lens = (jited.len() as u32).to_ne_bytes();
        out.fill((&mut to.nr_jited_func_lens, to.jited_func_lens), 4, &lens)?;
        let functions = (&mut to.nr_func_info, to.func_info);
        out.fill(functions, size_of::<FuncInfo>(), &program.func_info)?;
        let lines = (&mut to.nr_line_info, to.line_info);
        out.fill(lines, size_of::<LineInfo>(), &program.line_info)?;
        let jited_lines = (&mut to.nr_jited_line_info, to.jited_line_info);
        out.fill(jited_lines, JITED_LINE_INFO, &[])?;
        out.fill((&mut to.nr_prog_tags, to.prog_tags), tag.len(), &tag)
    }

    /// Fills `struct bpf_btf_info`.
    fn describe_btf(&self, btf: &Btf, info: &mut BtfInfo) -> Result<(), Errno> {
        self.buffers
            .fill((&mut info.btf_size, info.btf), 1, btf.data())?;
        info.id = btf.id;
        let name = btf.name().as_bytes();
        info.kernel_btf = u32::from(!name.is_empty());
        let place = (info.name, &mut info.name_len);
        self.buffers.fill_name(place, name, name.len())
    }
}

/// The bytes of a line's address in the machine code.
const JITED_LINE_INFO: usize = size_of::<u64>();

/// Checks the record sizes that the tool has room for, which must be the known ones, and writes
/// them back.
fn check_record_sizes(info: &mut ProgInfo) -> Result<(), Errno> {
    for (count, given, size) in [
        (
            info.nr_func_info,
            &mut info.func_info_rec_size,
            size_of::<FuncInfo>(),
        ),
        (
            info.nr_line_info,
            &mut info.line_info_rec_size,
            size_of::<LineInfo>(),
        ),
        (
            info.nr_jited_line_info,
            &mut info.jited_line_info_rec_size,
            JITED_LINE_INFO,
        ),
    ] {
        if (count != 0 || *given != 0) && *given != size as u32 {
            return Err(Errno::EINVAL);
        }
        *given = size as u32;
    }
    Ok(())
}

/// Fills `struct bpf_map_info`. As in the kernel, fields that a map does not have stay as the tool
/// passed them.
fn describe_map(map: &Map, info: &mut MapInfo) -> Result<(), Errno> {
    // A digest of the contents, which only maps of signed programs have.
    if info.hash != 0 || info.hash_size != 0 {
        return Err(Errno::EINVAL);
    }
    let spec = &map.spec;
    info.r#type = spec.map_type;
    info.id = map.held.id.0;
    info.key_size = spec.key_size;
    info.value_size = spec.value_size;
    info.max_entries = spec.max_entries;
    info.map_flags = spec.flags;
    info.name = name_field(&spec.name);
    info.btf_vmlinux_value_type_id = 0;
    if let Some((btf, key, value)) = &map.btf {
        info.btf_id = btf.id;
        info.btf_key_type_id = *key;
        info.btf_value_type_id = *value;
    }
    info.map_extra = spec.map_extra;
    Ok(())
}

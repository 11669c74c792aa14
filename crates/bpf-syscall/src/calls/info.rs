//! `BPF_OBJ_GET_INFO_BY_FD`, and `/proc/self/fdinfo` (`fdinfo`): describe an object.

mod answer;
mod fdinfo;
mod layout;
mod links;

use beeline_isa::INSN_BYTES;
use beeline_runtime::backend::{Backend, Info};
use beeline_supervisor::attr::{ATTR_LIMIT, BpfAttr};
use beeline_supervisor::{Answer, Call, Memory, Reply};
use beeline_uapi::Errno;

use super::attr::GetInfo;
use super::tool_attr::ToolAttr;
use crate::fds::ThreadFds;
use crate::local::Local;
use crate::objects::{Btf, Map, Object, ProgramObject};
use answer::Filled;
use layout::{btf, link, map, prog};

pub(super) use fdinfo::FdInfo;

/// The bytes of `struct bpf_func_info` and `struct bpf_line_info`.
pub(super) const FUNC_INFO: usize = 8;
pub(super) const LINE_INFO: usize = 16;

/// Describes objects.
pub(super) struct ObjectInfo<'a> {
    memory: Memory<'a>,
    attr: ToolAttr<'a>,
    backend: &'a dyn Backend,
    fds: ThreadFds<'a>,
}

impl<'a> ObjectInfo<'a> {
    pub(super) fn new(local: &'a Local, call: &'a Call<'a>) -> Self {
        Self {
            memory: call.memory,
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
        let known = match &object {
            Object::Map(_) => (map::SIZE, map::FIELDS_END),
            Object::Program(_) => (prog::SIZE, prog::SIZE),
            Object::Btf(_) => (btf::SIZE, btf::SIZE),
            Object::Link(_) => (link::SIZE, link::SIZE),
            Object::Event(_) | Object::Ring(_) => return Err(Errno::EINVAL),
        };
        let room = wanted.info_len as usize;
        if room > ATTR_LIMIT {
            return Err(Errno::E2BIG);
        }
        let mut info = Filled::read(self.memory, (wanted.info, room), known)?;
        match &object {
            Object::Map(map) => describe_map(map, &mut info)?,
            Object::Program(program) => self.describe_program(program, &mut info)?,
            Object::Btf(btf) => describe_btf(btf, &mut info)?,
            Object::Link(link) => links::describe(link, &mut info)?,
            Object::Event(_) | Object::Ring(_) => return Err(Errno::EINVAL),
        }
        let written = info.write((wanted.info, room))?;
        self.attr.put_u32(GetInfo::INFO_LEN, written as u32)?;
        Ok(Reply::Value(0))
    }

    /// Fills `struct bpf_prog_info`.
    fn describe_program(
        &self,
        program: &ProgramObject,
        info: &mut Filled<'_>,
    ) -> Result<(), Errno> {
        const GPL_COMPATIBLE: u32 = 1;
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
        info.put_u32(prog::TYPE, program.prog_type.0);
        info.put_u32(prog::ID, program.held.id.0);
        info.put(prog::TAG, &tag);
        info.put_u64(prog::LOAD_TIME, program.loaded);
        info.put_u32(prog::CREATED_BY_UID, program.uid);
        info.put_name(prog::NAME, &name);
        let gpl = if program.gpl { GPL_COMPATIBLE } else { 0 };
        info.put_u32(prog::GPL_COMPATIBLE, gpl);
        let btf = program.btf.as_ref().map_or(0, |btf| btf.id);
        info.put_u32(prog::BTF_ID, btf);
        // These are not counted: time, runs, and runs that were skipped.
        for field in [prog::RUN_TIME_NS, prog::RUN_CNT, prog::RECURSION_MISSES] {
            info.put_u64(field, 0);
        }
        let insns = xlated.len() / INSN_BYTES;
        info.put_u32(prog::VERIFIED_INSNS, insns as u32);
        info.put_u32(prog::ATTACH_BTF_OBJ_ID, 0);
        info.put_u32(prog::ATTACH_BTF_ID, 0);

        let ids: Vec<u8> = maps.iter().flat_map(|map| map.0.to_ne_bytes()).collect();
        info.fill((prog::NR_MAP_IDS, prog::MAP_IDS), size_of::<u32>(), &ids)?;
        check_record_sizes(info)?;
        info.fill((prog::XLATED_PROG_LEN, prog::XLATED_PROG_INSNS), 1, &xlated)?;
        info.fill((prog::JITED_PROG_LEN, prog::JITED_PROG_INSNS), 1, &jited)?;
        // There is one function. Its address differs between processes.
        info.fill((prog::NR_JITED_KSYMS, prog::JITED_KSYMS), 8, &[0; 8])?;
        let lens = (jited.len() as u32).to_ne_bytes();
        info.fill((prog::NR_JITED_FUNC_LENS, prog::JITED_FUNC_LENS), 4, &lens)?;
        let functions = (prog::NR_FUNC_INFO, prog::FUNC_INFO);
        info.fill(functions, FUNC_INFO, &program.func_info)?;
        let lines = (prog::NR_LINE_INFO, prog::LINE_INFO);
        info.fill(lines, LINE_INFO, &program.line_info)?;
        let jited_lines = (prog::NR_JITED_LINE_INFO, prog::JITED_LINE_INFO);
        info.fill(jited_lines, JITED_LINE_INFO, &[])?;
        info.fill((prog::NR_PROG_TAGS, prog::PROG_TAGS), tag.len(), &tag)
    }
}

/// The bytes of a line's address in the machine code.
const JITED_LINE_INFO: usize = 8;

/// Checks the record sizes that the tool has room for, which must be the known ones, and writes
/// them back.
fn check_record_sizes(info: &mut Filled<'_>) -> Result<(), Errno> {
    for (count_at, size_at, size) in [
        (prog::NR_FUNC_INFO, prog::FUNC_INFO_REC_SIZE, FUNC_INFO),
        (prog::NR_LINE_INFO, prog::LINE_INFO_REC_SIZE, LINE_INFO),
        (
            prog::NR_JITED_LINE_INFO,
            prog::JITED_LINE_INFO_REC_SIZE,
            JITED_LINE_INFO,
        ),
    ] {
        let (count, given) = (info.u32(count_at), info.u32(size_at));
        if (count != 0 || given != 0) && given != size as u32 {
            return Err(Errno::EINVAL);
        }
        info.put_u32(size_at, size as u32);
    }
    Ok(())
}

/// Fills `struct bpf_map_info`. As in the kernel, fields that a map does not have stay as the tool
/// passed them.
fn describe_map(map: &Map, info: &mut Filled<'_>) -> Result<(), Errno> {
    // A digest of the contents, which only maps of signed programs have.
    if info.u64(map::HASH) != 0 || info.u32(map::HASH_SIZE) != 0 {
        return Err(Errno::EINVAL);
    }
    let spec = &map.spec;
    info.put_u32(map::TYPE, spec.map_type.0);
    info.put_u32(map::ID, map.held.id.0);
    info.put_u32(map::KEY_SIZE, spec.key_size);
    info.put_u32(map::VALUE_SIZE, spec.value_size);
    info.put_u32(map::MAX_ENTRIES, spec.max_entries);
    info.put_u32(map::MAP_FLAGS, spec.flags);
    info.put_name(map::NAME, &spec.name);
    info.put_u32(map::BTF_VMLINUX_VALUE_TYPE_ID, 0);
    if let Some((btf, key, value)) = &map.btf {
        info.put_u32(map::BTF_ID, btf.id);
        info.put_u32(map::BTF_KEY_TYPE_ID, *key);
        info.put_u32(map::BTF_VALUE_TYPE_ID, *value);
    }
    info.put_u64(map::MAP_EXTRA, spec.map_extra);
    Ok(())
}

/// Fills `struct bpf_btf_info`.
fn describe_btf(btf: &Btf, info: &mut Filled<'_>) -> Result<(), Errno> {
    info.fill((btf::BTF_SIZE, btf::BTF), 1, btf.data())?;
    info.put_u32(btf::ID, btf.id);
    let name = btf.name().as_bytes();
    info.put_u32(btf::KERNEL_BTF, u32::from(!name.is_empty()));
    info.fill_name((btf::NAME, btf::NAME_LEN), name, name.len())
}

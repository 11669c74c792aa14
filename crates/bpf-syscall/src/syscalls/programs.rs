//! `BPF_PROG_LOAD` and `BPF_PROG_BIND_MAP`.

mod log;

use std::sync::Arc;

use beeline_isa::{INSN_BYTES, opcode};
use beeline_runtime::backend::{
    Backend, LoadError, Loaded, ProgramSpec, ProgramTypes, VerifierLog, is_gpl_compatible,
};
use beeline_supervisor::attr::BpfAttr;
use beeline_supervisor::{Answer, Call, Memory, Reply};
use beeline_uapi::fields::u32_at;
use beeline_uapi::info::{FuncInfo, LineInfo};
use beeline_uapi::limits::{
    BPF_COMPLEXITY_LIMIT_INSNS, LONGEST_LICENSE, MAX_FUNCINFO_REC_SIZE, MAX_USED_MAPS,
};
use beeline_uapi::{AttachType, Errno, ProgramType, flags};
use parking_lot::Mutex;

use super::attr::{Log, ProgBindMap, ProgLoad, Records};
use super::descriptors::NewDescriptors;
use super::tool_attr::ToolAttr;
use crate::fds::ThreadFds;
use crate::host_kernel;
use crate::local::Local;
use crate::objects::{Btf, Held, Map, Object, ProgramObject};
use crate::refused::by_kernel_only;

/// The `prog_flags` that are served: all of Linux 6.18's but tokens and those for network devices.
const FLAGS: u32 = flags::STRICT_ALIGNMENT
    | flags::ANY_ALIGNMENT
    | flags::TEST_RND_HI32
    | flags::TEST_STATE_FREQ
    | flags::SLEEPABLE
    | flags::XDP_HAS_FRAGS
    | flags::TEST_REG_INVARIANTS;

/// Loads programs, and gives them maps.
pub(super) struct Programs<'a> {
    memory: Memory<'a>,
    attr: ToolAttr<'a>,
    backend: &'a Arc<dyn Backend>,
    fds: ThreadFds<'a>,
    descriptors: NewDescriptors<'a>,
}

impl<'a> Programs<'a> {
    pub(super) fn new(local: &'a Local, call: &'a Call<'a>) -> Self {
        Self {
            memory: call.memory,
            attr: ToolAttr::of(call),
            backend: &local.backend,
            fds: local.fds.of(call.tid),
            descriptors: NewDescriptors::new(local, call),
        }
    }

    /// Carries out `BPF_PROG_LOAD`.
    pub(super) fn load(&self, attr: &BpfAttr) -> Answer {
        let wanted = ProgLoad::parse(attr)?;
        if wanted.insn_count == 0 || wanted.insn_count > BPF_COMPLEXITY_LIMIT_INSNS {
            return Err(Errno::E2BIG);
        }
        wanted.log.check()?;
        self.check_target(&wanted)?;
        let mut charge = self.backend.charge(wanted.bytes())?;
        let license = self.memory.string(wanted.license, LONGEST_LICENSE)?;
        let btf = self.program_btf(&wanted)?;
        let func_info = self.records(&wanted.func_info, size_of::<FuncInfo>())?;
        let line_info = self.records(&wanted.line_info, size_of::<LineInfo>())?;
        let mut insns = self
            .memory
            .bytes(wanted.insns, wanted.insn_count as usize * INSN_BYTES)?;
        let fds = self.map_descriptors(&mut insns, wanted.fd_array)?;
        let kept = self.kept_maps(&wanted)?;
        let used = self.known_maps(&fds);
        let types = btf.as_ref().map(|btf| ProgramTypes {
            btf: btf.data().clone(),
            functions: numbers(&func_info),
            lines: numbers(&line_info),
        });

        let may_use_kernel = host_kernel::refusal(&**self.backend, self.fds.tid).is_none();
        let spec = ProgramSpec {
            prog_type: wanted.prog_type,
            expected_attach_type: wanted.expected_attach_type,
            flags: wanted.flags,
            attach_btf_id: wanted.attach_btf_id,
            in_kernel: may_use_kernel
                && (is_only_kernels(&wanted) || used.iter().any(|(_, map)| map.is_kernels)),
            may_use_kernel,
            insns,
            maps: used.iter().map(|(fd, map)| (*fd, map.held.id)).collect(),
            name: wanted.name,
            license: String::from_utf8_lossy(&license).into_owned(),
            types,
            log_level: wanted.log.level,
            // Includes the NUL at its end.
            log_room: Some((wanted.log.size as usize).saturating_sub(1)),
        };
        // From here on the program is the tool's: it is released again if anything below fails.
        let held = self.load_in_backend(attr, &wanted.log, &spec)?;
        for map in &kept {
            self.backend.program_bind_map(held.id, map.held.id)?;
        }
        let maps = kept.into_iter().chain(used.into_iter().map(|(_, map)| map));
        let gpl = is_gpl_compatible(&spec.license);
        charge.resize((func_info.len() + line_info.len()) as u64)?;
        self.descriptors
            .first(Object::Program(Arc::new(ProgramObject {
                held,
                name: spec.name,
                prog_type: spec.prog_type,
                expected_attach_type: spec.expected_attach_type,
                attach_btf_id: spec.attach_btf_id,
                sleepable: spec.flags & flags::SLEEPABLE != 0,
                gpl,
                btf,
                maps: Mutex::new(maps.collect()),
                func_info,
                line_info,
                _charge: charge,
                loaded: nanoseconds_since_start(),
                uid: rustix::process::getuid().as_raw(),
            })))
    }

    /// Loads a program in the backend and writes the log, whether or not the program is accepted.
    fn load_in_backend(
        &self,
        attr: &BpfAttr,
        log: &Log,
        spec: &ProgramSpec,
    ) -> Result<Held, Errno> {
        let (loaded, said) = match self.backend.program_load(spec) {
            Ok(Loaded { id, log }) => (Ok(Held::new(self.backend, id)), log),
            Err(LoadError { errno, log, .. }) => (Err(errno), log),
        };
        self.write_log(attr, log, &said)?;
        loaded
    }

    /// Reads an array of records of which `known` bytes are known here; the bytes that a newer tool
    /// appends to each are dropped.
    fn records(&self, records: &Records, known: usize) -> Result<Vec<u8>, Errno> {
        let size = records.size as usize;
        if records.count == 0 {
            return Ok(Vec::new());
        }
        if size < known
            || size > MAX_FUNCINFO_REC_SIZE
            || !size.is_multiple_of(4)
            || records.count > BPF_COMPLEXITY_LIMIT_INSNS
        {
            return Err(Errno::EINVAL);
        }
        let bytes = self
            .memory
            .bytes(records.address, size * records.count as usize)?;
        let mut kept = Vec::with_capacity(known * records.count as usize);
        for record in bytes.chunks_exact(size) {
            let (record, appended) = record.split_at(known);
            if appended.iter().any(|&byte| byte != 0) {
                return Err(Errno::E2BIG);
            }
            kept.extend_from_slice(record);
        }
        Ok(kept)
    }

    /// Returns the BTF that a program with type information names.
    fn program_btf(&self, wanted: &ProgLoad) -> Result<Option<Arc<Btf>>, Errno> {
        if wanted.func_info.count == 0 && wanted.line_info.count == 0 {
            return Ok(None);
        }
        let btf = self.fds.btf(wanted.btf_fd)?;
        if btf.is_kernels() {
            return Err(Errno::EACCES);
        }
        Ok(Some(btf))
    }

    /// Refuses programs for other programs, iterators, and programs that the kernel is to relocate:
    /// none is served, and tools look at whether they are loaded.
    fn check_target(&self, wanted: &ProgLoad) -> Result<(), Errno> {
        if wanted.flags & !FLAGS != 0 {
            return Err(Errno::EINVAL);
        }
        let refuse = |what: &str| {
            self.backend.unsupported(what);
            Err(Errno::EINVAL)
        };
        if wanted.expected_attach_type == AttachType::TRACE_ITER
            && let Some(why) = host_kernel::refusal(&**self.backend, self.fds.tid)
        {
            return refuse(&by_kernel_only("iterators", &why));
        }
        if wanted.relocations != 0 {
            return refuse("programs that the kernel is to relocate (light skeletons)");
        }
        match wanted.attach_fd {
            0 => Ok(()),
            fd => match self.fds.find(fd)? {
                Some(Object::Program(_)) => refuse("programs that attach to other programs"),
                Some(Object::Btf(btf)) if btf.is_kernels() => Ok(()),
                Some(Object::Btf(_)) => Err(Errno::EOPNOTSUPP),
                _ => Err(Errno::EINVAL),
            },
        }
    }

    /// Returns the descriptors of maps in the instructions, each once. An index into the tool's
    /// array of descriptors is replaced by the descriptor, so the backend sees one form only.
    fn map_descriptors(&self, insns: &mut [u8], fd_array: u64) -> Result<Vec<i32>, Errno> {
        let mut found = Vec::new();
        let mut second_half = false;
        for insn in insns.chunks_exact_mut(INSN_BYTES) {
            let [code, registers, _, _, imm @ ..] = insn else {
                continue;
            };
            if std::mem::take(&mut second_half) || *code != opcode::LD_IMM64 {
                continue;
            }
            second_half = true;
            let source = *registers >> 4;
            let direct = match source {
                opcode::PSEUDO_MAP_FD | opcode::PSEUDO_MAP_VALUE => source,
                opcode::PSEUDO_MAP_IDX | opcode::PSEUDO_MAP_IDX_VALUE => {
                    let fd = self
                        .memory
                        .read_u32(index_address(fd_array, u32_at(imm, 0))?)?;
                    imm.copy_from_slice(&fd.to_ne_bytes());
                    source - opcode::PSEUDO_MAP_IDX + opcode::PSEUDO_MAP_FD
                }
                _ => continue,
            };
            *registers = *registers & 0xf | direct << 4;
            let fd = u32_at(imm, 0) as i32;
            if !found.contains(&fd) {
                found.push(fd);
            }
            if found.len() > MAX_USED_MAPS as usize {
                return Err(Errno::E2BIG);
            }
        }
        Ok(found)
    }

    /// Returns those of the descriptors that are maps. The verifier reports the others in its log.
    fn known_maps(&self, fds: &[i32]) -> Vec<(i32, Arc<Map>)> {
        let known = |&fd: &i32| Some((fd, self.fds.map(fd).ok()?));
        fds.iter().filter_map(known).collect()
    }

    /// Returns the maps in the array of descriptors, if the tool gives its length: the program
    /// keeps them all.
    fn kept_maps(&self, wanted: &ProgLoad) -> Result<Vec<Arc<Map>>, Errno> {
        if wanted.fd_array_count > MAX_USED_MAPS {
            return Err(Errno::E2BIG);
        }
        let mut kept = Vec::new();
        for n in 0..wanted.fd_array_count {
            let fd = self.memory.read_u32(index_address(wanted.fd_array, n)?)? as i32;
            match self.fds.find(fd)? {
                Some(Object::Map(map)) => kept.push(map),
                Some(Object::Btf(_)) => {}
                _ => return Err(Errno::EINVAL),
            }
        }
        Ok(kept)
    }

    /// Writes the log, and the length that it would have in a buffer with room for all of it.
    fn write_log(&self, attr: &BpfAttr, log: &Log, said: &VerifierLog) -> Result<(), Errno> {
        let whole = log.write(&self.memory, said);
        if attr.size >= ProgLoad::LOG_TRUE_SIZE + 4 && log.level != 0 {
            let len = match said.longest {
                0 => 0,
                longest => longest + 1,
            };
            self.attr
                .put_u32(ProgLoad::LOG_TRUE_SIZE as u64, len as u32)?;
        }
        whole
    }

    /// Carries out `BPF_PROG_BIND_MAP`.
    pub(super) fn bind_map(&self, attr: &BpfAttr) -> Answer {
        let wanted = ProgBindMap::parse(attr)?;
        if wanted.flags != 0 {
            return Err(Errno::EINVAL);
        }
        let program = self.fds.program(wanted.prog_fd)?;
        let map = self.fds.map(wanted.map_fd)?;
        self.backend
            .program_bind_map(program.held.id, map.held.id)?;
        program.maps.lock().push(map);
        Ok(Reply::Value(0))
    }
}

/// Returns whether only the kernel runs such programs, and Beeline makes no test runs of them.
fn is_only_kernels(wanted: &ProgLoad) -> bool {
    match wanted.prog_type {
        ProgramType::CGROUP_SOCK
        | ProgramType::CGROUP_SOCK_ADDR
        | ProgramType::CGROUP_DEVICE
        | ProgramType::CGROUP_SYSCTL
        | ProgramType::CGROUP_SOCKOPT
        | ProgramType::SOCK_OPS
        | ProgramType::SK_LOOKUP
        | ProgramType::SK_REUSEPORT
        | ProgramType::SK_SKB
        | ProgramType::SK_MSG
        | ProgramType::NETFILTER
        | ProgramType::LSM => true,
        ProgramType::TRACING => wanted.expected_attach_type == AttachType::TRACE_ITER,
        _ => false,
    }
}

impl ProgLoad {
    /// Returns the bytes that are read from the tool for it. Records count twice, as they are also
    /// kept as numbers.
    fn bytes(&self) -> u64 {
        let of = |records: &Records| {
            let is_read = records.size as usize <= MAX_FUNCINFO_REC_SIZE
                && records.count <= BPF_COMPLEXITY_LIMIT_INSNS;
            u64::from(is_read) * u64::from(records.count) * u64::from(records.size)
        };
        INSN_BYTES as u64 * u64::from(self.insn_count)
            + 2 * (of(&self.func_info) + of(&self.line_info))
    }
}

fn nanoseconds_since_start() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn index_address(fd_array: u64, index: u32) -> Result<u64, Errno> {
    if fd_array == 0 {
        return Err(Errno::EINVAL);
    }
    fd_array
        .checked_add(u64::from(index) * 4)
        .ok_or(Errno::EFAULT)
}

/// Parses records of 32-bit numbers.
fn numbers<const N: usize>(records: &[u8]) -> Vec<[u32; N]> {
    let record = |bytes: &[u8]| std::array::from_fn(|number| u32_at(bytes, number * 4));
    records.chunks_exact(N * 4).map(record).collect()
}

//! Loads programs, finds their maps, and runs them once.

use std::sync::Arc;

use beeline_runtime::backend::{
    Id, LoadError, Loaded, ProgramSpec, ProgramTypes, VerifierLog, is_gpl_compatible,
};
use beeline_supervisor::attr::{BpfAttr, u32_at};
use beeline_supervisor::{Answer, Memory, Reply};
use beeline_uapi::{Errno, ProgramType};

use crate::attr::{Log, ProgLoad, Records, TestRun};
use crate::info::{FUNC_INFO, LINE_INFO};
use crate::local::Handler;
use crate::objects::{Btf, Held, Object, Program};

const ENOTSUPP: Errno = Errno::ENOTSUPP;
const EINVAL: Errno = Errno(libc::EINVAL);
const E2BIG: Errno = Errno(libc::E2BIG);

/// The most instructions in one program, for a privileged user.
const INSN_LIMIT: u32 = 1_000_000;
const INSN: usize = 8;
/// The `prog_flags` that are served: all of Linux 6.18's but tokens and those for network devices.
const FLAGS: u32 = 0xbf;
/// `BPF_F_SLEEPABLE`.
const SLEEPABLE: u32 = 0x10;
/// The most bytes of a record of type information that a newer tool may have.
const LARGEST: usize = 252;
/// The most maps that one program may name.
const MAP_LIMIT: u32 = 64;
/// The bytes of context of a raw tracepoint: 12 arguments.
const CONTEXT_LIMIT: u32 = 12 * 8;

// `BPF_LD | BPF_IMM | BPF_DW`, and the meanings that its source register gives to its constant
// (`BPF_PSEUDO_*`).
const LD_IMM64: u8 = 0x18;
const MAP_FD: u8 = 1;
const MAP_VALUE: u8 = 2;
const MAP_INDEX: u8 = 5;
const MAP_INDEX_VALUE: u8 = 6;

impl Handler<'_> {
    pub(crate) fn prog_load(&self, attr: &BpfAttr) -> Answer {
        let wanted = ProgLoad::parse(attr)?;
        if wanted.insn_count == 0 || wanted.insn_count > INSN_LIMIT {
            return Err(E2BIG);
        }
        check_log(&wanted.log)?;
        self.check_target(&wanted)?;
        let mut charge = self.local.backend.charge(wanted.bytes())?;
        let license = self.memory.string(wanted.license, 127)?;
        let btf = self.program_btf(&wanted)?;
        let func_info = self.records(&wanted.func_info, FUNC_INFO)?;
        let line_info = self.records(&wanted.line_info, LINE_INFO)?;
        let mut insns = self
            .memory
            .bytes(wanted.insns, wanted.insn_count as usize * INSN)?;
        let fds = self.map_descriptors(&mut insns, wanted.fd_array)?;
        let kept = self.kept_maps(&wanted)?;
        let types = btf.as_ref().map(|btf| ProgramTypes {
            btf: btf.data().clone(),
            functions: numbers(&func_info),
            lines: numbers(&line_info),
        });

        let spec = ProgramSpec {
            prog_type: wanted.prog_type,
            expected_attach_type: wanted.expected_attach_type,
            flags: wanted.flags,
            attach_btf_id: wanted.attach_btf_id,
            insns,
            maps: self.known_maps(&fds),
            name: wanted.name,
            license: String::from_utf8_lossy(&license).into_owned(),
            types,
            log_level: wanted.log.level,
            // Includes the NUL at its end.
            log_room: Some((wanted.log.size as usize).saturating_sub(1)),
        };
        let loaded = self.local.backend.program_load(&spec);
        // From here on the program is the tool's: it is released again if anything below fails.
        let (loaded, log) = match loaded {
            Ok(Loaded { id, log }) => (Ok(Held::new(&self.local.backend, id)), log),
            Err(LoadError { errno, log, .. }) => (Err(errno), log),
        };
        self.write_log(attr, &wanted.log, &log)?;
        let held = loaded?;
        for map in kept {
            self.local.backend.program_bind_map(held.id, map)?;
        }
        let gpl = is_gpl_compatible(&spec.license);
        charge.resize((func_info.len() + line_info.len()) as u64)?;
        self.descriptor(Object::Program(Arc::new(Program {
            held,
            prog_type: spec.prog_type,
            expected_attach_type: spec.expected_attach_type,
            attach_btf_id: spec.attach_btf_id,
            sleepable: spec.flags & SLEEPABLE != 0,
            gpl,
            btf,
            func_info,
            line_info,
            _charge: charge,
            loaded: nanoseconds_since_start(),
            uid: rustix::process::getuid().as_raw(),
        })))
    }

    /// Reads an array of records of which `known` bytes are known here; the bytes that a newer tool
    /// appends to each are dropped.
    fn records(&self, records: &Records, known: usize) -> Result<Vec<u8>, Errno> {
        let size = records.size as usize;
        if records.count == 0 {
            return Ok(Vec::new());
        }
        if size < known || size > LARGEST || !size.is_multiple_of(4) || records.count > INSN_LIMIT {
            return Err(EINVAL);
        }
        let bytes = self
            .memory
            .bytes(records.address, size * records.count as usize)?;
        let mut kept = Vec::with_capacity(known * records.count as usize);
        for record in bytes.chunks_exact(size) {
            let (record, appended) = record.split_at(known);
            if appended.iter().any(|&byte| byte != 0) {
                return Err(E2BIG);
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
        let btf = self.local.fds.btf(self.tid, wanted.btf_fd)?;
        if btf.is_kernels() {
            return Err(Errno(libc::EACCES));
        }
        Ok(Some(btf))
    }

    /// Refuses programs for other programs, and programs that the kernel is to relocate: neither is
    /// served.
    fn check_target(&self, wanted: &ProgLoad) -> Result<(), Errno> {
        if wanted.flags & !FLAGS != 0 {
            return Err(EINVAL);
        }
        let refuse = |what| {
            self.local.backend.unsupported(what);
            Err(EINVAL)
        };
        if wanted.relocations != 0 {
            return refuse("programs that the kernel is to relocate (light skeletons)");
        }
        match wanted.attach_fd {
            0 => Ok(()),
            fd => match self.local.fds.find(self.tid, fd)? {
                Some(Object::Program(_)) => refuse("programs that attach to other programs"),
                Some(Object::Btf(btf)) if btf.is_kernels() => Ok(()),
                Some(Object::Btf(_)) => Err(Errno(libc::EOPNOTSUPP)),
                _ => Err(EINVAL),
            },
        }
    }

    /// Returns the descriptors of maps in the instructions, each once. An index into the tool's
    /// array of descriptors is replaced by the descriptor, so the backend sees one form only.
    fn map_descriptors(&self, insns: &mut [u8], fd_array: u64) -> Result<Vec<i32>, Errno> {
        let mut found = Vec::new();
        let mut second_half = false;
        for insn in insns.chunks_exact_mut(INSN) {
            let [code, registers, _, _, imm @ ..] = insn else {
                continue;
            };
            if std::mem::take(&mut second_half) || *code != LD_IMM64 {
                continue;
            }
            second_half = true;
            let source = *registers >> 4;
            let direct = match source {
                MAP_FD | MAP_VALUE => source,
                MAP_INDEX | MAP_INDEX_VALUE => {
                    let fd = self
                        .memory
                        .read_u32(index_address(fd_array, u32_at(imm, 0))?)?;
                    imm.copy_from_slice(&fd.to_ne_bytes());
                    source - MAP_INDEX + MAP_FD
                }
                _ => continue,
            };
            *registers = *registers & 0xf | direct << 4;
            let fd = u32_at(imm, 0) as i32;
            if !found.contains(&fd) {
                found.push(fd);
            }
            if found.len() > MAP_LIMIT as usize {
                return Err(E2BIG);
            }
        }
        Ok(found)
    }

    /// Returns those of the descriptors that are maps. The verifier reports the others in its log.
    fn known_maps(&self, fds: &[i32]) -> Vec<(i32, Id)> {
        let known = |&fd: &i32| Some((fd, self.local.fds.map(self.tid, fd).ok()?.held.id));
        fds.iter().filter_map(known).collect()
    }

    /// Returns the maps in the array of descriptors, if the tool gives its length: the program
    /// keeps them all.
    fn kept_maps(&self, wanted: &ProgLoad) -> Result<Vec<Id>, Errno> {
        if wanted.fd_array_count > MAP_LIMIT {
            return Err(E2BIG);
        }
        let mut kept = Vec::new();
        for n in 0..wanted.fd_array_count {
            let fd = self.memory.read_u32(index_address(wanted.fd_array, n)?)? as i32;
            match self.local.fds.find(self.tid, fd)? {
                Some(Object::Map(map)) => kept.push(map.held.id),
                Some(Object::Btf(_)) => {}
                _ => return Err(EINVAL),
            }
        }
        Ok(kept)
    }

    fn write_log(&self, attr: &BpfAttr, log: &Log, said: &VerifierLog) -> Result<(), Errno> {
        let whole = write_log(&self.memory, log, said);
        if attr.size >= ProgLoad::LOG_TRUE_SIZE + 4 && log.level != 0 {
            let len = match said.longest {
                0 => 0,
                longest => longest + 1,
            };
            let field = self.args[1]
                .checked_add(ProgLoad::LOG_TRUE_SIZE as u64)
                .ok_or(Errno(libc::EFAULT))?;
            self.memory.write_u32(field, len as u32)?;
        }
        whole
    }

    pub(crate) fn prog_bind_map(&self, attr: &BpfAttr) -> Answer {
        attr.ends_at(12)?;
        if attr.u32(8) != 0 {
            return Err(EINVAL);
        }
        let program = self.local.fds.program(self.tid, attr.i32(0))?;
        let map = self.local.fds.map(self.tid, attr.i32(4))?;
        self.local
            .backend
            .program_bind_map(program.held.id, map.held.id)?;
        Ok(Reply::Value(0))
    }

    /// Runs a program once. Programs for packets are not run here.
    pub(crate) fn prog_test_run(&self, attr: &BpfAttr) -> Answer {
        const RUN_ON_CPU: u32 = 1;
        let wanted = TestRun::parse(attr)?;
        let program = self.local.fds.program(self.tid, wanted.prog_fd)?;
        if !matches!(
            program.prog_type,
            ProgramType::RAW_TRACEPOINT | ProgramType::SYSCALL
        ) {
            return Err(ENOTSUPP);
        }
        let on_cpu = wanted.flags & RUN_ON_CPU != 0;
        let limit = if program.prog_type == ProgramType::SYSCALL {
            u32::from(u16::MAX)
        } else {
            CONTEXT_LIMIT
        };
        if wanted.has_packet || wanted.context_len > limit || (!on_cpu && wanted.cpu != 0) {
            return Err(EINVAL);
        }
        let context = self
            .memory
            .bytes(wanted.context, wanted.context_len as usize)?;
        let result = self
            .local
            .backend
            .program_test_run(program.held.id, &context)?;
        let retval = self.args[1]
            .checked_add(TestRun::RETVAL)
            .ok_or(Errno(libc::EFAULT))?;
        self.memory.write_u32(retval, result as u32)?;
        Ok(Reply::Value(0))
    }
}

impl ProgLoad {
    /// Returns the bytes that are read from the tool for it. Records count twice, as they are also
    /// kept as numbers.
    fn bytes(&self) -> u64 {
        let of = |records: &Records| {
            let is_read = records.size as usize <= LARGEST && records.count <= INSN_LIMIT;
            u64::from(is_read) * u64::from(records.count) * u64::from(records.size)
        };
        INSN as u64 * u64::from(self.insn_count) + 2 * (of(&self.func_info) + of(&self.line_info))
    }
}

fn nanoseconds_since_start() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn index_address(fd_array: u64, index: u32) -> Result<u64, Errno> {
    if fd_array == 0 {
        return Err(EINVAL);
    }
    fd_array
        .checked_add(u64::from(index) * 4)
        .ok_or(Errno(libc::EFAULT))
}

/// Checks the log's fields. A buffer needs a size and a level, and the other way round; a level
/// alone asks only for the log's length.
fn check_log(log: &Log) -> Result<(), Errno> {
    const LEVELS: u32 = 0xf;
    let has_buffer = log.buffer != 0;
    if has_buffer != (log.size != 0) || (has_buffer && log.level == 0) {
        return Err(EINVAL);
    }
    if log.level & !LEVELS != 0 || log.size > u32::MAX >> 2 {
        return Err(EINVAL);
    }
    Ok(())
}

/// Writes the log. Returns ENOSPC if the text and its NUL did not fit at some time. If they still
/// do not, the buffer receives the text's end, or, if the tool asked for that (`BPF_LOG_FIXED`),
/// its beginning.
fn write_log(memory: &Memory<'_>, log: &Log, said: &VerifierLog) -> Result<(), Errno> {
    if log.buffer == 0 {
        return Ok(());
    }
    let room = log.size as usize - 1;
    let mut bytes = fitting(said.text.as_bytes(), room, log.level).to_vec();
    bytes.push(0);
    memory.write(log.buffer, &bytes)?;
    if said.longest <= room {
        Ok(())
    } else {
        Err(Errno(libc::ENOSPC))
    }
}

/// Returns the part of a log that fits into `room` bytes.
fn fitting(text: &[u8], room: usize, level: u32) -> &[u8] {
    const FIXED: u32 = 8;
    let cut = text.len().saturating_sub(room);
    let part = if level & FIXED != 0 {
        text.get(..text.len() - cut)
    } else {
        text.get(cut..)
    };
    part.unwrap_or_default()
}

/// Parses records of 32-bit numbers.
fn numbers<const N: usize>(records: &[u8]) -> Vec<[u32; N]> {
    let record = |bytes: &[u8]| std::array::from_fn(|number| u32_at(bytes, number * 4));
    records.chunks_exact(N * 4).map(record).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_that_does_not_fit_keeps_its_end() {
        assert_eq!(fitting(b"0: exit\n", 8, 1), b"0: exit\n");
        assert_eq!(fitting(b"0: exit\n", 5, 1), b"exit\n");
        assert_eq!(fitting(b"0: exit\n", 2, 9), b"0:");
        assert_eq!(fitting(b"", 0, 1), b"");
    }

    #[test]
    fn log_parameters_must_agree() {
        let log = |level, size, buffer| {
            check_log(&Log {
                level,
                size,
                buffer,
            })
        };
        assert_eq!(log(0, 0, 0), Ok(()));
        assert_eq!(log(1, 0, 0), Ok(()));
        assert_eq!(log(1, 10, 4096), Ok(()));
        assert_eq!(log(0, 10, 4096), Err(EINVAL));
        assert_eq!(log(1, 10, 0), Err(EINVAL));
        assert_eq!(log(1, 0, 4096), Err(EINVAL));
        assert_eq!(log(16, 10, 4096), Err(EINVAL));
        assert_eq!(log(1, u32::MAX, 4096), Err(EINVAL));
    }
}

//! `/proc/self/fdinfo/N` for an object's descriptor. Tools read from it what older kernels had no
//! command for.

use std::fmt::Write;

use beeline_isa::INSN_BYTES;
use beeline_runtime::backend::{Backend, Info};
use beeline_supervisor::Call;
use beeline_uapi::linux::PAGE_SIZE;
use beeline_uapi::{Errno, LinkType};

use crate::fds::ThreadFds;
use crate::local::Local;
use crate::objects::{Link, LinkTo, Map, Object, ProgramObject};
use crate::tracepoints::Tracepoint;

/// Writes the text of such files.
pub(in crate::syscalls) struct FdInfo<'a> {
    call: &'a Call<'a>,
    backend: &'a dyn Backend,
    fds: ThreadFds<'a>,
}

impl<'a> FdInfo<'a> {
    pub(in crate::syscalls) fn new(local: &'a Local, call: &'a Call<'a>) -> Self {
        Self {
            call,
            backend: &*local.backend,
            fds: local.fds.of(call.tid),
        }
    }

    /// Returns the text, if the path is that of an object of the tool's: the kernel's lines on the
    /// file, followed by the lines on the object.
    pub(in crate::syscalls) fn text(&self, path: &[u8]) -> Option<String> {
        let fd = self.call.own_descriptor(path, "fdinfo")?;
        let object = self.fds.find(fd).ok()??;
        let of_file =
            std::fs::read_to_string(format!("/proc/{}/fdinfo/{fd}", self.fds.tid)).ok()?;
        // A socket, as which the tool holds most objects, has a line more than other files.
        let is_of_all = |line: &&str| !line.starts_with("scm_fds:");
        let mut text: String = of_file.split_inclusive('\n').filter(is_of_all).collect();
        match object {
            Object::Map(map) => self.map_lines(&map, &mut text).ok()?,
            Object::Program(program) => self.program_lines(&program, &mut text).ok()?,
            Object::Link(link) => self.link_lines(&link, &mut text).ok()?,
            Object::Btf(btf) => lines(&mut text, &[("btf_id", btf.id.to_string())]),
            Object::Event(_) | Object::Ring(_) => {}
        }
        Some(text)
    }

    fn map_lines(&self, map: &Map, text: &mut String) -> Result<(), Errno> {
        let spec = &map.spec;
        let memory = self.backend.memory(map.held.id)?;
        let bytes = rustix::fs::fstat(memory).map_or(0, |stat| stat.st_size as u64);
        lines(
            text,
            &[
                ("map_type", spec.map_type.0.to_string()),
                ("key_size", spec.key_size.to_string()),
                ("value_size", spec.value_size.to_string()),
                ("max_entries", spec.max_entries.to_string()),
                ("map_flags", format!("{:#x}", spec.flags)),
                ("map_extra", format!("{:#x}", spec.map_extra)),
                ("memlock", bytes.to_string()),
                ("map_id", map.held.id.0.to_string()),
                ("frozen", u32::from(map.is_frozen()).to_string()),
            ],
        );
        Ok(())
    }

    fn program_lines(&self, program: &ProgramObject, text: &mut String) -> Result<(), Errno> {
        let Info::Program { xlated, .. } = self.backend.info(program.held.id)? else {
            return Err(Errno::EINVAL);
        };
        let insns = xlated.len() as u64;
        lines(
            text,
            &[
                ("prog_type", program.prog_type.0.to_string()),
                ("prog_jited", "1".into()),
                ("prog_tag", self.tag(program)?),
                ("memlock", insns.next_multiple_of(PAGE_SIZE).to_string()),
                ("prog_id", program.held.id.0.to_string()),
                ("run_time_ns", "0".into()),
                ("run_cnt", "0".into()),
                ("recursion_misses", "0".into()),
                ("verified_insns", (insns / INSN_BYTES as u64).to_string()),
            ],
        );
        Ok(())
    }

    fn link_lines(&self, link: &Link, text: &mut String) -> Result<(), Errno> {
        lines(
            text,
            &[
                ("link_type", link_type_name(link.link_type()).into()),
                ("link_id", link.id.to_string()),
                ("prog_tag", self.tag(&link.program)?),
                ("prog_id", link.program.held.id.0.to_string()),
            ],
        );
        let (point, is_event) = match &link.to {
            LinkTo::Event(event) => (event.point(), true),
            LinkTo::Place { point, .. } => (point, false),
            LinkTo::Kernel(_) => return Ok(()),
        };
        let tracepoint = Tracepoint::of_point(point).or_else(|| Tracepoint::of_raw(point));
        if let Some(tracepoint) = tracepoint {
            lines(text, &[("tp_name", tracepoint.name())]);
            if is_event {
                lines(text, &[("event_type", "tracepoint".into())]);
            }
            lines(text, &[("cookie", link.cookie.to_string())]);
        }
        Ok(())
    }

    fn tag(&self, program: &ProgramObject) -> Result<String, Errno> {
        match self.backend.info(program.held.id)? {
            Info::Program { tag, .. } => Ok(tag.iter().map(|byte| format!("{byte:02x}")).collect()),
            _ => Err(Errno::EINVAL),
        }
    }
}

fn link_type_name(link_type: LinkType) -> &'static str {
    match link_type {
        LinkType::RAW_TRACEPOINT => "raw_tracepoint",
        LinkType::TRACING => "tracing",
        LinkType::PERF_EVENT => "perf",
        _ => "unknown",
    }
}

fn lines(text: &mut String, lines: &[(&str, String)]) {
    for (name, value) in lines {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{name}:\t{value}");
    }
}

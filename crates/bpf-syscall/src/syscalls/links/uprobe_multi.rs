//! `BPF_LINK_CREATE` for a program on many places of a file (`bpf_uprobe_multi_link_attach` of
//! `kernel/trace/bpf_trace.c`).

use std::path::PathBuf;
use std::sync::Arc;

use beeline_inject::procfs::process_of;
use beeline_runtime::backend::{AttachPoint, ProbeSpec};
use beeline_supervisor::{Answer, Call, Memory};
use beeline_uapi::attr::LinkCreateUprobeMulti;
use beeline_uapi::limits::MAX_UPROBE_MULTI_CNT;
use beeline_uapi::{AttachType, Errno, flags};

use super::Links;
use crate::objects::ProgramObject;

/// The arrays of the attribute are read in pieces of this many numbers.
const PIECE: usize = 512;

impl Links<'_> {
    /// Checks the attribute in the kernel's order, and attaches the program to all places or none.
    pub(super) fn link_uprobes(
        &self,
        call: &Call<'_>,
        program: Arc<ProgramObject>,
        wanted: &LinkCreateUprobeMulti,
    ) -> Answer {
        if wanted.link.flags != 0 || program.expected_attach_type != AttachType::TRACE_UPROBE_MULTI
        {
            return Err(Errno::EINVAL);
        }
        let pid = wanted.pid as i32;
        let is_whole = wanted.path != 0 && wanted.offsets != 0 && wanted.cnt != 0 && pid >= 0;
        if wanted.flags & !flags::UPROBE_MULTI_RETURN != 0 || !is_whole {
            return Err(Errno::EINVAL);
        }
        if wanted.cnt > MAX_UPROBE_MULTI_CNT {
            return Err(Errno::E2BIG);
        }
        let path = file_of(call, wanted.path)?;
        // A thread that does not lead its process is none.
        if pid != 0 && process_of(pid) != Some(pid) {
            return Err(Errno::ESRCH);
        }
        // More than what is charged for the link is taken only while this call is served.
        let point = AttachPoint::UprobeMulti {
            path,
            retprobe: wanted.flags & flags::UPROBE_MULTI_RETURN != 0,
            pid: (pid != 0).then_some(pid),
            probes: probes(call.memory, wanted)?.into(),
        };
        self.link_places(program, vec![point], 0)
    }
}

/// Returns the file that a tool names, which must be a regular one.
fn file_of(call: &Call<'_>, address: u64) -> Result<PathBuf, Errno> {
    let longest = libc::PATH_MAX as usize;
    let path = call.memory.string(address, longest)?;
    // `strndup_user` has another error than `getname` for a path that is too long.
    if path.len() >= longest {
        return Err(Errno::EINVAL);
    }
    // `kern_path` takes it for the working directory.
    if path.is_empty() {
        return Err(Errno::EBADF);
    }
    let path = call.path_as_seen_here(path)?;
    let facts = std::fs::metadata(&path);
    let facts = facts.map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::ENOENT)))?;
    match facts.is_file() {
        true => Ok(path),
        false => Err(Errno::EBADF),
    }
}

/// Reads the places. The kernel reads each place's offset, cookie and semaphore in turn, which
/// matters only for which of two errors is returned.
fn probes(memory: Memory<'_>, wanted: &LinkCreateUprobeMulti) -> Result<Vec<ProbeSpec>, Errno> {
    let count = wanted.cnt as usize;
    let mut probes = Vec::new();
    while probes.len() < count {
        let from = probes.len();
        let len = PIECE.min(count - from);
        let numbers = |array: u64| match array {
            0 => Ok(vec![0; len]),
            array => numbers(memory, array, from, len),
        };
        let offsets = numbers(wanted.offsets)?;
        if offsets.iter().any(|offset| (*offset as i64) < 0) {
            return Err(Errno::EINVAL);
        }
        let (cookies, semaphores) = (numbers(wanted.cookies)?, numbers(wanted.ref_ctr_offsets)?);
        let with = offsets.into_iter().zip(cookies).zip(semaphores);
        probes.extend(with.map(|((offset, cookie), semaphore)| ProbeSpec {
            offset,
            cookie,
            semaphore,
        }));
    }
    Ok(probes)
}

/// Reads `len` numbers of an array, from the one with index `from` on.
fn numbers(memory: Memory<'_>, array: u64, from: usize, len: usize) -> Result<Vec<u64>, Errno> {
    const SIZE: usize = size_of::<u64>();
    let at = array.checked_add((from * SIZE) as u64);
    let bytes = memory.bytes(at.ok_or(Errno::EFAULT)?, len * SIZE)?;
    let (numbers, _) = bytes.as_chunks::<SIZE>();
    Ok(numbers
        .iter()
        .map(|bytes| u64::from_ne_bytes(*bytes))
        .collect())
}

//! System calls that name a file: `open` (in a module of its own), `stat` and their like.
//!
//! Calls under `/sys/fs/bpf` are answered from the session's own BPF file system
//! ([`beeline_supervisor::bpffs`]). Calls to tracepoints on system calls are answered from the
//! session's own tracefs where the kernel's cannot be read ([`crate::tracefs`]). The links in
//! `/proc/PID/fd` show the tool its descriptors as it expects them. The kernel makes all other
//! calls.

mod kallsyms;
mod open;

use std::sync::atomic::AtomicBool;

use beeline_runtime::backend::Backend;
use beeline_supervisor::bpffs::{BpfFs, BpfFsCall, Place};
use beeline_supervisor::{Answer, Call, FileOperation, HERE, PathCall, Reply};
use beeline_uapi::Errno;

use super::info::FdInfo;
use crate::event_types::EventTypes;
use crate::fds::ThreadFds;
use crate::local::Local;
use crate::objects::Object;
use crate::pinned::Pinned;
use crate::tracefs::TraceFs;

/// Opens and inspects files by their paths.
pub(super) struct Files<'a> {
    call: &'a Call<'a>,
    backend: &'a dyn Backend,
    fds: ThreadFds<'a>,
    /// The call as one that may name a path in the BPF file system.
    bpffs: BpfFsCall<'a, Local>,
    /// That file system.
    own_bpffs: &'a BpfFs<Pinned>,
    tracefs: &'a TraceFs,
    event_types: &'a EventTypes,
    kprobe_refused: &'a AtomicBool,
    fdinfo: FdInfo<'a>,
}

impl<'a> Files<'a> {
    pub(super) fn new(local: &'a Local, call: &'a Call<'a>) -> Self {
        Self {
            call,
            backend: &*local.backend,
            fds: local.fds.of(call.tid),
            bpffs: BpfFsCall::new(local, call),
            own_bpffs: &local.bpffs,
            tracefs: &local.tracefs,
            event_types: &local.event_types,
            kprobe_refused: &local.kprobe_refused,
            fdinfo: FdInfo::new(local, call),
        }
    }

    /// Answers a call that opens or inspects a file by its path.
    pub(super) fn answer(&self, asked: PathCall) -> Answer {
        let (call, path) = (self.call, asked.path);
        match asked.operation {
            FileOperation::Open { flags } => self.open(asked.directory, path, flags),
            FileOperation::ReadLink { buffer, size } => self.readlink(path, buffer, size),
            FileOperation::Access { mode } => {
                self.inspect(asked, |place| call.access_place(place, mode))
            }
            FileOperation::Stat { buffer } => {
                self.inspect(asked, |place| call.stat_place(place, buffer))
            }
            FileOperation::Statx { mask, buffer } => {
                self.inspect(asked, |place| call.statx_place(place, mask, buffer))
            }
        }
    }

    /// Calls `inspect` with the destination of a path that is answered here.
    fn inspect(&self, asked: PathCall, inspect: impl FnOnce(&Place) -> Answer) -> Answer {
        match self.served(asked.directory, asked.path) {
            Some(place) => inspect(&place?),
            None => Ok(Reply::Continue),
        }
    }

    /// Returns whether a path leads to nothing that any handler looks at. A path that cannot be
    /// read leads nowhere.
    pub(super) fn is_elsewhere(&self, asked: PathCall) -> bool {
        const ANSWERED: [&[u8]; 2] = [b"/sys/", b"/proc/"];
        let Ok(path) = self.call.memory.string(asked.path, libc::PATH_MAX as usize) else {
            return true;
        };
        !ANSWERED.iter().any(|start| path.starts_with(start))
            && self.bpffs.inside_of(asked.directory, &path).is_none()
    }

    /// Returns the destination of a path that is answered here, in the BPF file system or in
    /// tracefs; `None` for all others.
    fn served(&self, directory: u64, path: u64) -> Option<Result<Place, Errno>> {
        let path = self
            .call
            .memory
            .string(path, libc::PATH_MAX as usize)
            .ok()?;
        match self.bpffs.inside_of(directory, &path) {
            Some(inside) => Some(self.own_bpffs.place(&inside)),
            None => self.tracefs.place(&path).map(Ok),
        }
    }

    /// Answers `statfs(path, buffer)`, by which tools recognise a BPF file system and tracefs.
    pub(super) fn statfs(&self, path: u64, buffer: u64) -> Answer {
        if let Some(inside) = self.bpffs.inside(HERE, path) {
            return self.bpffs.statfs_inside(&inside, buffer);
        }
        let path = self.call.memory.string(path, libc::PATH_MAX as usize);
        let place = path.ok().and_then(|path| self.tracefs.place(&path));
        match place {
            Some(_) => self.call.write_statfs(buffer, libc::TRACEFS_MAGIC as u64),
            None => Ok(Reply::Continue),
        }
    }

    /// Answers `readlink(path, buffer, size)` on the tool's own descriptors, by which tools
    /// recognise an object's kind.
    fn readlink(&self, path: u64, buffer: u64, size: u64) -> Answer {
        const LONGEST: usize = 64;
        let path = self.call.memory.string(path, LONGEST).unwrap_or_default();
        let fd = self.call.own_descriptor(&path, "fd");
        let object = fd.and_then(|fd| Some((fd, self.fds.find(fd).ok()??)));
        let Some((fd, object)) = object else {
            return Ok(Reply::Continue);
        };
        let kind = match object {
            Object::Map(_) => "anon_inode:bpf-map",
            Object::Program(_) => "anon_inode:bpf-prog",
            Object::Link(_) if self.fds.is_first(fd) => "anon_inode:bpf_link",
            Object::Link(_) => "anon_inode:bpf-link",
            Object::Btf(_) => "anon_inode:btf",
            Object::Event(_) | Object::Ring(_) => "anon_inode:[perf_event]",
        };
        self.call.write_link(kind, buffer, size)
    }
}

//! System calls that name a file.
//!
//! Calls under `/sys/fs/bpf` are answered from the session's own BPF file system
//! ([`beeline_supervisor::bpffs`]). Calls to tracepoints on system calls are answered from the
//! session's own tracefs where the kernel's cannot be read ([`crate::tracefs`]). The links in
//! `/proc/PID/fd` show the tool its descriptors as it expects them. The kernel makes all other
//! calls.

use beeline_supervisor::bpffs::Place;
use beeline_supervisor::{Answer, HERE, Reply};
use beeline_uapi::Errno;

use crate::local::Handler;
use crate::objects::Object;

impl Handler<'_> {
    /// Answers a call that opens or inspects a file by its path; for its arguments see
    /// [`Call::at_arguments`](beeline_supervisor::Call::at_arguments).
    pub(crate) fn file(&self, nr: i64, [at, path, c, d, e]: [u64; 5]) -> Answer {
        match nr {
            libc::SYS_open | libc::SYS_openat => self.open(at, path, c),
            libc::SYS_access | libc::SYS_faccessat | libc::SYS_faccessat2 => {
                self.access(at, path, c)
            }
            libc::SYS_statx => self.statx(at, path, d, e),
            libc::SYS_readlink | libc::SYS_readlinkat => self.readlink(path, c, d),
            _ => self.stat(at, path, c),
        }
    }

    /// Returns whether a path leads to nothing that any handler looks at. A path that cannot be
    /// read leads nowhere.
    pub(crate) fn is_elsewhere(&self, directory: u64, path: u64) -> bool {
        const ANSWERED: [&[u8]; 2] = [b"/sys/", b"/proc/"];
        let Ok(path) = self.memory.string(path, libc::PATH_MAX as usize) else {
            return true;
        };
        !ANSWERED.iter().any(|start| path.starts_with(start))
            && self.bpffs().inside_of(directory, &path).is_none()
    }

    /// Returns the destination of a path that is answered here, in the BPF file system or in
    /// tracefs; `None` for all others.
    fn served(&self, directory: u64, path: u64) -> Option<Result<Place, Errno>> {
        let path = self.memory.string(path, libc::PATH_MAX as usize).ok()?;
        match self.bpffs().inside_of(directory, &path) {
            Some(inside) => Some(self.local.bpffs.place(&inside)),
            None => self.local.tracefs.place(&path).map(Ok),
        }
    }

    /// Answers `access(path, mode)`.
    pub(crate) fn access(&self, at: u64, path: u64, mode: u64) -> Answer {
        let Some(place) = self.served(at, path) else {
            return Ok(Reply::Continue);
        };
        self.access_place(&place?, mode)
    }

    /// Answers `stat(path, buffer)`. There are no symbolic links to follow.
    pub(crate) fn stat(&self, at: u64, path: u64, buffer: u64) -> Answer {
        let Some(place) = self.served(at, path) else {
            return Ok(Reply::Continue);
        };
        self.stat_place(&place?, buffer)
    }

    /// Answers `statx(.., path, flags, mask, buffer)`.
    pub(crate) fn statx(&self, at: u64, path: u64, mask: u64, buffer: u64) -> Answer {
        let Some(place) = self.served(at, path) else {
            return Ok(Reply::Continue);
        };
        self.statx_place(&place?, mask, buffer)
    }

    /// Answers `statfs(path, buffer)`, by which tools recognise a BPF file system and tracefs.
    pub(crate) fn statfs(&self, path: u64, buffer: u64) -> Answer {
        if let Some(inside) = self.bpffs().inside(HERE, path) {
            return self.bpffs().statfs_inside(&inside, buffer);
        }
        let path = self.memory.string(path, libc::PATH_MAX as usize);
        let place = path.ok().and_then(|path| self.local.tracefs.place(&path));
        match place {
            Some(_) => self.write_statfs(buffer, libc::TRACEFS_MAGIC as u64),
            None => Ok(Reply::Continue),
        }
    }

    /// Answers `readlink(path, buffer, size)` on the tool's own descriptors, by which tools
    /// recognise an object's kind.
    pub(crate) fn readlink(&self, path: u64, buffer: u64, size: u64) -> Answer {
        const LONGEST: usize = 64;
        let path = self.memory.string(path, LONGEST).unwrap_or_default();
        let fd = self.own_descriptor(&path, "fd");
        let object = fd.and_then(|fd| Some((fd, self.local.fds.find(self.tid, fd).ok()??)));
        let Some((fd, object)) = object else {
            return Ok(Reply::Continue);
        };
        let kind = match object {
            Object::Map(_) => "anon_inode:bpf-map",
            Object::Program(_) => "anon_inode:bpf-prog",
            Object::Link(_) if self.local.fds.is_first(self.tid, fd) => "anon_inode:bpf_link",
            Object::Link(_) => "anon_inode:bpf-link",
            Object::Btf(_) => "anon_inode:btf",
            Object::Event(_) | Object::Ring(_) => "anon_inode:[perf_event]",
        };
        self.write_link(kind, buffer, size)
    }
}

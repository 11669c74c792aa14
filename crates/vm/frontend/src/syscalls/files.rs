//! The guest's files that describe its kernel, for which tools load programs.
//!
//! A file is fetched when the tool opens it (`fetch`). A directory becomes one of the host's with
//! the same names, so that the tool can list it. A path relative to such a directory is resolved by
//! the directory's path.

mod executed;
mod fetch;
mod processes;

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use beeline_supervisor::bpffs::{BpfFs, BpfFsCall};
use beeline_supervisor::keys::memory_file;
use beeline_supervisor::{Answer, Call, FileOperation, HERE, PathCall, Reply};
use beeline_uapi::Errno;
use beeline_uapi::linux::__NEW_UTS_LEN;
use beeline_vm_protocol::info::Kind;
use beeline_vm_protocol::messages::guest_message::Body as Said;
use beeline_vm_protocol::messages::host_message::Body as Asked;
use beeline_vm_protocol::messages::{Describe, File};

pub(crate) use fetch::Fetched;
use processes::Leads;

use super::descriptors::Descriptors;
use super::iterators::Iterators;
use super::trace::TracePipe;
use crate::Guest;
use crate::connection::Connection;
use crate::objects::Object;
use fetch::Fetch;

/// The files that describe the tool's kernel: these, and everything below those that end in `/`,
/// are the guest's. All others are the host's. The guest's proxy has a list of its own of the files
/// that it shows.
const GUESTS: [&str; 21] = [
    "/sys/kernel/tracing/",
    "/sys/kernel/debug/tracing/",
    "/sys/kernel/debug/kprobes/",
    "/sys/kernel/btf/",
    "/sys/kernel/kheaders.tar.xz",
    "/sys/kernel/security/lockdown",
    "/sys/kernel/notes",
    "/sys/bus/event_source/devices/",
    "/sys/devices/system/cpu/",
    "/proc/kallsyms",
    "/proc/modules",
    "/proc/version",
    "/proc/version_signature",
    "/proc/config.gz",
    "/proc/filesystems",
    "/proc/cpuinfo",
    "/proc/stat",
    "/proc/uptime",
    "/proc/sys/kernel/",
    "/proc/sys/net/core/bpf_jit_enable",
    "/proc/sys/net/core/bpf_jit_harden",
];
/// The prefixes of all of them, for a quick look.
const BEGINNINGS: [&[u8]; 2] = [b"/sys/", b"/proc/"];

/// The files with the output of programs.
const TRACE_PIPES: [&str; 2] = [
    "/sys/kernel/tracing/trace_pipe",
    "/sys/kernel/debug/tracing/trace_pipe",
];

/// Returns whether it is a file of the guest's.
fn is_guests(path: &Path) -> bool {
    let Some(path) = path.to_str() else {
        return false;
    };
    GUESTS.iter().any(|known| match known.strip_suffix('/') {
        Some(directory) => path == directory || path.starts_with(known),
        None => path == *known,
    })
}

/// Describes a file that is made here instead of being requested from the guest.
fn made_here(path: &Path) -> Option<File> {
    let is_pipe = TRACE_PIPES.iter().any(|pipe| path == Path::new(pipe));
    is_pipe.then(|| File {
        mode: libc::S_IFREG | 0o444,
        ..File::default()
    })
}

/// Returns a path without `.`, `..` and double slashes, as far as that is possible without
/// following links.
fn plain(path: &Path) -> PathBuf {
    use std::path::Component;
    let mut plain = PathBuf::from("/");
    for part in path.components() {
        match part {
            Component::Normal(name) => plain.push(name),
            Component::ParentDir => {
                plain.pop();
            }
            _ => {}
        }
    }
    plain
}

/// Answers calls on files by their paths, and `uname(2)`.
pub(super) struct Files<'a> {
    call: &'a Call<'a>,
    descriptors: Descriptors<'a>,
    connection: &'a Connection,
    bpffs: BpfFsCall<'a, Guest>,
    /// The names of pinned objects.
    names: &'a BpfFs<Arc<Object>>,
    fetched: &'a Fetched,
    fetch: Fetch<'a>,
    iterators: Iterators<'a>,
    trace_pipe: TracePipe<'a>,
}

impl<'a> Files<'a> {
    pub(super) fn new(guest: &'a Guest, call: &'a Call<'a>) -> Self {
        Self {
            call,
            descriptors: Descriptors::new(guest, call),
            connection: &guest.connection,
            bpffs: BpfFsCall::new(guest, call),
            names: &guest.bpffs,
            fetched: &guest.files,
            fetch: Fetch::new(guest),
            iterators: Iterators::new(guest, call),
            trace_pipe: TracePipe::new(guest, call),
        }
    }

    /// Answers a call that opens or inspects a file by its path.
    pub(super) fn file(&self, asked: PathCall) -> Answer {
        let (at, path) = (asked.directory, asked.path);
        match asked.operation {
            FileOperation::Open { flags } => self.open(at, path, flags),
            FileOperation::Access { mode } => self.access(at, path, mode),
            FileOperation::Stat { buffer } => self.stat(at, path, buffer),
            FileOperation::Statx { mask, buffer } => self.statx(at, path, mask, buffer),
            FileOperation::ReadLink { buffer, size } => self.readlink(at, path, buffer, size),
        }
    }

    /// Returns whether a path leads to nothing that is looked at here. A path that cannot be read
    /// leads nowhere.
    pub(super) fn is_elsewhere(&self, directory: u64, path: u64) -> bool {
        let Ok(path) = self.call.memory.string(path, libc::PATH_MAX as usize) else {
            return true;
        };
        let here = path.starts_with(b"/") || directory as i32 == libc::AT_FDCWD;
        here && !BEGINNINGS.iter().any(|start| path.starts_with(start))
            && self.bpffs.inside_of(directory, &path).is_none()
    }

    /// Returns the guest's file that a path leads to; `None` for the host's. ENOENT for one that is
    /// neither's: of a process.
    fn guests_path(&self, directory: u64, path: u64) -> Result<Option<PathBuf>, Errno> {
        let path = self.whose(directory, path)?;
        Ok(path.map(|(path, _)| path))
    }

    /// Does the same, and returns whether it is what a process of the guest's runs.
    fn whose(&self, directory: u64, path: u64) -> Result<Option<(PathBuf, bool)>, Errno> {
        let given = self.call.memory.string(path, libc::PATH_MAX as usize);
        let given = given.ok().filter(|path| !path.is_empty());
        let path = given.and_then(|path| self.call.absolute(directory as i32, &path).ok());
        let Some(path) = path else {
            return Ok(None);
        };
        let path = plain(&path);
        let path = self.fetched.shown(&path).unwrap_or(path);
        let leads = match self.connection.is_this_machine() {
            true => None,
            false => processes::leads(&path, self.call.tid),
        };
        match leads {
            Some(Leads::ToGuest) => Ok(Some((path, false))),
            Some(Leads::ToExecuted) => Ok(Some((processes::as_guests(path), true))),
            Some(Leads::Nowhere) => Err(Errno(libc::ENOENT)),
            None => Ok(is_guests(&path).then_some((path, false))),
        }
    }

    /// Returns everything about a file but its content.
    fn about(&self, path: &Path) -> Result<File, Errno> {
        match made_here(path) {
            Some(file) => Ok(file),
            None => self.fetch.about(path),
        }
    }

    /// Answers `open` and `openat`.
    fn open(&self, at: u64, path: u64, flags: u64) -> Answer {
        let cloexec = flags & libc::O_CLOEXEC as u64 != 0;
        let text = self.call.memory.string(path, libc::PATH_MAX as usize).ok();
        if let Some(text) = text.and_then(|path| self.fdinfo(&path)) {
            let file = memory_file("beeline-fdinfo", text.as_bytes())?;
            return Ok(Reply::Descriptor { file, cloexec });
        }
        if let Some(inside) = self.bpffs.inside(at, path) {
            return Ok(Reply::Descriptor {
                file: self.iterators.open_pinned(&inside, flags)?,
                cloexec,
            });
        }
        let Some((path, is_executed)) = self.whose(at, path)? else {
            return Ok(Reply::Continue);
        };
        if flags & libc::O_ACCMODE as u64 != libc::O_RDONLY as u64 {
            return Err(Errno(libc::EACCES));
        }
        if made_here(&path).is_some() {
            return self.trace_pipe.open(flags);
        }
        let file = match is_executed {
            true => self.fetch.open_executed(&path)?,
            false => self.fetch.open(&path)?,
        };
        Ok(Reply::Descriptor { file, cloexec })
    }

    /// Returns the text of `/proc/self/fdinfo/N`, if N is an object of the guest's.
    fn fdinfo(&self, path: &[u8]) -> Option<String> {
        let fd = self.call.own_descriptor(path, "fdinfo")?;
        let object = self.descriptors.find(fd)?;
        let path = format!("/proc/{}/fdinfo/{fd}", self.call.tid);
        let of_file = std::fs::read_to_string(path).ok()?;
        let request = Asked::Describe(Describe {
            handle: object.handle,
        });
        match self.connection.ask(request).ok()? {
            Said::Described(of_object) => Some(of_file + &of_object.text),
            _ => None,
        }
    }

    /// Answers `access(path, mode)`.
    fn access(&self, at: u64, path: u64, mode: u64) -> Answer {
        if let Some(inside) = self.bpffs.inside(at, path) {
            return self.call.access_place(&self.names.place(&inside)?, mode);
        }
        let Some(path) = self.guests_path(at, path)? else {
            return Ok(Reply::Continue);
        };
        self.about(&path)?;
        match mode & libc::W_OK as u64 {
            0 => Ok(Reply::Value(0)),
            _ => Err(Errno(libc::EACCES)),
        }
    }

    /// Answers `stat(path, buffer)`.
    fn stat(&self, at: u64, path: u64, buffer: u64) -> Answer {
        if let Some(inside) = self.bpffs.inside(at, path) {
            return self.call.stat_place(&self.names.place(&inside)?, buffer);
        }
        let Some(path) = self.guests_path(at, path)? else {
            return Ok(Reply::Continue);
        };
        let file = self.about(&path)?;
        // SAFETY: this is a structure of numbers, for which zero is valid.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        stat.st_mode = file.mode;
        stat.st_size = file.size as i64;
        stat.st_nlink = 1;
        stat.st_ino = number_of(&path, &file);
        stat.st_blksize = BLOCK;
        self.call.write_struct(buffer, &stat)
    }

    /// Answers `statx(.., path, flags, mask, buffer)`: all known fields are returned, regardless of
    /// the mask.
    fn statx(&self, at: u64, path: u64, mask: u64, buffer: u64) -> Answer {
        if let Some(inside) = self.bpffs.inside(at, path) {
            return self
                .call
                .statx_place(&self.names.place(&inside)?, mask, buffer);
        }
        let Some(path) = self.guests_path(at, path)? else {
            return Ok(Reply::Continue);
        };
        let file = self.about(&path)?;
        // SAFETY: this is a structure of numbers, for which zero is valid.
        let mut statx: libc::statx = unsafe { std::mem::zeroed() };
        statx.stx_mask = libc::STATX_TYPE
            | libc::STATX_MODE
            | libc::STATX_NLINK
            | libc::STATX_INO
            | libc::STATX_SIZE;
        statx.stx_mode = file.mode as u16;
        statx.stx_size = file.size;
        statx.stx_nlink = 1;
        statx.stx_ino = number_of(&path, &file);
        statx.stx_blksize = BLOCK as u32;
        self.call.write_struct(buffer, &statx)
    }

    /// Answers `statfs(path, buffer)`, by which tools recognise tracefs and BPF file systems.
    pub(super) fn statfs(&self, path: u64, buffer: u64) -> Answer {
        if let Some(inside) = self.bpffs.inside(HERE, path) {
            return self.bpffs.statfs_inside(&inside, buffer);
        }
        let Some(path) = self.guests_path(libc::AT_FDCWD as u64, path)? else {
            return Ok(Reply::Continue);
        };
        let is_tracefs = path.starts_with("/sys/kernel/tracing")
            || path.starts_with("/sys/kernel/debug/tracing");
        if !is_tracefs {
            return Ok(Reply::Continue);
        }
        self.about(&path)?;
        self.call.write_statfs(buffer, libc::TRACEFS_MAGIC as u64)
    }

    /// Answers `readlink(path, buffer, size)` on the tool's own descriptors, by which tools
    /// recognise an object's kind, and on the links of the guest's processes.
    fn readlink(&self, at: u64, path: u64, buffer: u64, size: u64) -> Answer {
        const LONGEST: usize = 64;
        let given = path;
        let path = self.call.memory.string(path, LONGEST).unwrap_or_default();
        let fd = self.call.own_descriptor(&path, "fd");
        let Some(object) = fd.and_then(|fd| self.descriptors.find(fd)) else {
            let Some((path, true)) = self.whose(at, given)? else {
                return Ok(Reply::Continue);
            };
            let target = match self.about(&path)?.target.as_str() {
                "" => return Err(Errno(libc::EINVAL)),
                target => processes::target_as_shown(&path, target),
            };
            return self.call.write_link(&target, buffer, size);
        };
        let kind = match object.kind {
            Kind::Map => "anon_inode:bpf-map",
            Kind::Program => "anon_inode:bpf-prog",
            Kind::Link if object.is_first => "anon_inode:bpf_link",
            Kind::Link => "anon_inode:bpf-link",
            Kind::Btf => "anon_inode:btf",
            Kind::Event => "anon_inode:[perf_event]",
            Kind::Other => "anon_inode:bpf_iter",
        };
        self.call.write_link(kind, buffer, size)
    }

    /// Answers `uname(buffer)`: tools choose headers and ways to attach by their kernel's version.
    pub(super) fn uname(&self, buffer: u64) -> Answer {
        const FIELD: usize = __NEW_UTS_LEN + 1;
        let welcome = self.connection.welcome();
        let fields = [
            &welcome.sysname,
            &welcome.nodename,
            &welcome.release,
            &welcome.kernel_version,
            &welcome.machine,
            "(none)",
        ];
        let mut name = vec![0; fields.len() * FIELD];
        for (room, field) in name.chunks_exact_mut(FIELD).zip(fields) {
            for (to, from) in room.iter_mut().take(FIELD - 1).zip(field.bytes()) {
                *to = from;
            }
        }
        self.call.memory.write(buffer, &name)?;
        Ok(Reply::Value(0))
    }
}

/// The block size of files with content that is made on reading.
const BLOCK: i64 = 4096;

/// Returns an inode number: always the same for one path, or for one file of those that have an
/// identity, and almost certainly different for another.
fn number_of(path: &Path, file: &File) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    match file.identity.as_slice() {
        [] => path.as_os_str().as_bytes().hash(&mut hasher),
        identity => identity.hash(&mut hasher),
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use beeline_supervisor::{Options, Tool};
    use beeline_vm_protocol::messages::Refused;
    use parking_lot::Mutex;

    use super::*;
    use crate::fake;

    #[test]
    fn paths_are_sorted_by_the_table() {
        for path in [
            "/sys/kernel/tracing",
            "/sys/kernel/tracing/events/sched/sched_switch/id",
            "/sys/kernel/btf/vmlinux",
            "/proc/kallsyms",
            "/proc/sys/kernel/osrelease",
            "/sys/devices/system/cpu/possible",
        ] {
            assert!(is_guests(Path::new(path)), "{path}");
        }
        for path in [
            "/proc/self/maps",
            "/proc/1/status",
            "/sys/kernel/tracing2",
            "/sys/fs/bpf",
            "/etc/passwd",
            "/",
        ] {
            assert!(!is_guests(Path::new(path)), "{path}");
        }
    }

    #[test]
    fn the_trace_pipe_is_there_without_the_guest() {
        const SCRIPT: &str =
            "for pipe in /sys/kernel/tracing/trace_pipe /sys/kernel/debug/tracing/trace_pipe; do
            test -f $pipe && test -r $pipe && ! test -w $pipe && ! test -s $pipe || exit 1
            test $(stat -c %f $pipe) = 8124 && test $(stat -f -c %t $pipe) = 74726163 || exit 2
        done
        ! test -e /sys/kernel/tracing/trace || exit 3";
        let asked = Arc::<Mutex<Vec<String>>>::default();
        let paths = Arc::clone(&asked);
        let guest = fake::guest(move |asked| {
            let Asked::Look(look) = asked else {
                return None;
            };
            paths.lock().push(look.path);
            Some(Said::Refused(Refused {
                errno: libc::EOPNOTSUPP as u32,
                ..Refused::default()
            }))
        });
        let options = Options {
            is_for_guest: true,
            ..Options::default()
        };
        let command = ["sh", "-c", SCRIPT].map(OsString::from);
        let tool = Tool::spawn(&command, &options).unwrap();
        let status = tool
            .serve(Guest::new(Arc::clone(&guest.connection), None).unwrap())
            .unwrap();
        assert_eq!(status.code(), Some(0));
        let asked = asked.lock();
        assert!(asked.iter().all(|path| !path.ends_with("trace_pipe")));
        assert!(asked.iter().any(|path| path == "/sys/kernel/tracing/trace"));
    }

    #[test]
    fn paths_are_made_plain() {
        assert_eq!(
            plain(Path::new("/sys//kernel/./x/../btf/")),
            Path::new("/sys/kernel/btf")
        );
        assert_eq!(plain(Path::new("/../..")), Path::new("/"));
    }
}

//! The guest's files that describe its kernel, for which tools load programs.
//!
//! A file is fetched when the tool opens it. A directory becomes one of the host's with the same
//! names, so that the tool can list it. A path relative to such a directory is resolved by the
//! directory's path.

use std::collections::HashMap;
use std::fs::File as HostFile;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use beeline_supervisor::bpffs::HasBpfFs;
use beeline_supervisor::keys::{errno, memory_file};
use beeline_supervisor::{Answer, FileOperation, HERE, PathCall, Reply, Scratch};
use beeline_uapi::Errno;
use beeline_vm_protocol::content;
use beeline_vm_protocol::messages::guest_message::Body as Said;
use beeline_vm_protocol::messages::host_message::Body as Asked;
use beeline_vm_protocol::messages::{File, Look};
use parking_lot::Mutex;
use rustix::fs::{FileType, Mode, OFlags, RawMode};

use crate::Handler;
use crate::commands::EPROTO;

/// The most bytes of a file. No kernel has a larger one, and a guest must not fill our memory.
const LARGEST: usize = 64 << 20;
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
/// Large files that do not change while a kernel runs.
const LASTING: [&str; 1] = ["/sys/kernel/btf/vmlinux"];

/// The files with the output of programs.
const TRACE_PIPES: [&str; 2] = [
    "/sys/kernel/tracing/trace_pipe",
    "/sys/kernel/debug/tracing/trace_pipe",
];

// Of `linux/magic.h`.

/// The files that have been fetched.
#[derive(Default)]
pub(crate) struct Files {
    /// The place where directories are shown.
    scratch: OnceLock<Option<Scratch>>,
    lasting: Mutex<HashMap<PathBuf, OwnedFd>>,
}

impl Files {
    fn scratch(&self) -> Option<&Scratch> {
        let make = || Scratch::new("beeline-guest-");
        self.scratch.get_or_init(make).as_ref()
    }

    /// Returns the guest's path for a path of the host's, if it is one of the directories shown.
    fn shown(&self, path: &Path) -> Option<PathBuf> {
        let inside = path
            .strip_prefix(&self.scratch.get()?.as_ref()?.path)
            .ok()?;
        Some(Path::new("/").join(inside))
    }
}

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

impl Handler<'_> {
    /// Answers a call that opens or inspects a file by its path.
    pub(super) fn file(&self, asked: PathCall) -> Answer {
        let (at, path) = (asked.directory, asked.path);
        match asked.operation {
            FileOperation::Open { flags } => self.open(at, path, flags),
            FileOperation::Access { mode } => self.access(at, path, mode),
            FileOperation::Stat { buffer } => self.stat(at, path, buffer),
            FileOperation::Statx { mask, buffer } => self.statx(at, path, mask, buffer),
            FileOperation::ReadLink { buffer, size } => self.readlink(path, buffer, size),
        }
    }

    /// Returns whether a path leads to nothing that is looked at here. A path that cannot be read
    /// leads nowhere.
    pub(super) fn is_elsewhere(&self, directory: u64, path: u64) -> bool {
        let Ok(path) = self.memory.string(path, libc::PATH_MAX as usize) else {
            return true;
        };
        let here = path.starts_with(b"/") || directory as i32 == libc::AT_FDCWD;
        here && !BEGINNINGS.iter().any(|start| path.starts_with(start))
            && self.bpffs().inside_of(directory, &path).is_none()
    }

    /// Returns the guest's file that a path leads to; `None` for the host's.
    fn guests_path(&self, directory: u64, path: u64) -> Option<PathBuf> {
        let path = self.memory.string(path, libc::PATH_MAX as usize).ok()?;
        if path.is_empty() {
            return None;
        }
        let path = plain(&self.absolute(directory as i32, &path).ok()?);
        let path = self.guest.files.shown(&path).unwrap_or(path);
        is_guests(&path).then_some(path)
    }

    /// Returns everything about a file but its content.
    fn about(&self, path: &Path) -> Result<File, Errno> {
        match made_here(path) {
            Some(file) => Ok(file),
            None => self.look(path, false, 0),
        }
    }

    fn look(&self, path: &Path, content: bool, from: u64) -> Result<File, Errno> {
        self.look_for_other(path, content, from, &[])
    }

    /// Fetches a file. The content is left out if its sum is `held`.
    fn look_for_other(
        &self,
        path: &Path,
        content: bool,
        from: u64,
        held: &[u8],
    ) -> Result<File, Errno> {
        let request = Look {
            path: path.to_str().ok_or(Errno(libc::ENOENT))?.into(),
            content,
            from,
            held: held.into(),
        };
        match self.guest.connection.ask(Asked::Look(request))? {
            Said::File(file) => Ok(file),
            _ => Err(EPROTO),
        }
    }

    /// Answers `open` and `openat`.
    pub(super) fn open(&self, at: u64, path: u64, flags: u64) -> Answer {
        let cloexec = flags & libc::O_CLOEXEC as u64 != 0;
        let text = self.memory.string(path, libc::PATH_MAX as usize).ok();
        if let Some(text) = text.and_then(|path| self.fdinfo(&path)) {
            let file = memory_file("beeline-fdinfo", text.as_bytes())?;
            return Ok(Reply::Descriptor { file, cloexec });
        }
        if let Some(inside) = self.bpffs().inside(at, path) {
            return Ok(Reply::Descriptor {
                file: self.open_pinned(&inside, flags)?,
                cloexec,
            });
        }
        let Some(path) = self.guests_path(at, path) else {
            return Ok(Reply::Continue);
        };
        if flags & libc::O_ACCMODE as u64 != libc::O_RDONLY as u64 {
            return Err(Errno(libc::EACCES));
        }
        if made_here(&path).is_some() {
            return self.open_trace_pipe(flags);
        }
        Ok(Reply::Descriptor {
            file: self.fetch(&path)?,
            cloexec,
        })
    }

    fn fetch(&self, path: &Path) -> Result<OwnedFd, Errno> {
        let lasts = LASTING.iter().any(|lasting| path == Path::new(lasting));
        if lasts && let Some(file) = self.known(path) {
            return Ok(file);
        }
        let name = path.to_str().filter(|path| content::is_lasting(path));
        let guess = name.and_then(|name| self.guest.kept.guess(name));
        let sum = guess.as_ref().map_or(&[][..], |guess| &guess.sum);
        let first = self.look_for_other(path, true, 0, sum)?;
        if FileType::from_raw_mode(first.mode as RawMode) == FileType::Directory {
            return self.show(path, &first);
        }
        let mut content = first.content;
        let mut more = first.more;
        while more {
            let next = self.look(path, true, content.len() as u64)?;
            // A file that does not continue has ended.
            more = next.more && !next.content.is_empty();
            content.extend(next.content);
            if content.len() > LARGEST {
                return Err(Errno(libc::EFBIG));
            }
        }
        match (first.same, guess, name) {
            (true, Some(guess), _) => content = guess.content,
            (true, None, _) => return Err(EPROTO),
            (false, _, Some(name)) => self.guest.kept.keep(name, &content),
            (false, ..) => {}
        }
        let file = memory_file("beeline-guest", &content)?;
        if lasts {
            let kept = file.try_clone().map_err(errno)?;
            let mut lasting = self.guest.files.lasting.lock();
            lasting.insert(path.to_owned(), kept);
        }
        Ok(file)
    }

    /// Opens a file that was fetched before anew.
    fn known(&self, path: &Path) -> Option<OwnedFd> {
        let lasting = &self.guest.files.lasting;
        let lasting = lasting.lock();
        let file = lasting.get(path)?;
        let file = HostFile::open(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
        Some(file.into())
    }

    /// Makes a directory with the names of the guest's.
    fn show(&self, path: &Path, directory: &File) -> Result<OwnedFd, Errno> {
        let scratch = self.guest.files.scratch().ok_or(Errno(libc::ENOSPC))?;
        let inside = path.strip_prefix("/").map_err(|_| EPROTO)?;
        let shown = scratch.path.join(inside);
        std::fs::create_dir_all(&shown).map_err(errno)?;
        for entry in &directory.entries {
            let name = Path::new(&entry.name);
            // Whatever the guest says, the name stays inside.
            if name.file_name() != Some(name.as_os_str()) {
                continue;
            }
            let made = match entry.is_directory {
                true => std::fs::create_dir(shown.join(name)),
                false => HostFile::create_new(shown.join(name)).map(drop),
            };
            match made {
                Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                    return Err(errno(error));
                }
                _ => {}
            }
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open(&shown, flags, Mode::empty()).map_err(|error| Errno(error.raw_os_error()))
    }

    /// Answers `access(path, mode)`.
    pub(super) fn access(&self, at: u64, path: u64, mode: u64) -> Answer {
        if let Some(inside) = self.bpffs().inside(at, path) {
            return self.access_place(&self.guest.bpffs().place(&inside)?, mode);
        }
        let Some(path) = self.guests_path(at, path) else {
            return Ok(Reply::Continue);
        };
        self.about(&path)?;
        match mode & libc::W_OK as u64 {
            0 => Ok(Reply::Value(0)),
            _ => Err(Errno(libc::EACCES)),
        }
    }

    /// Answers `stat(path, buffer)`.
    pub(super) fn stat(&self, at: u64, path: u64, buffer: u64) -> Answer {
        if let Some(inside) = self.bpffs().inside(at, path) {
            return self.stat_place(&self.guest.bpffs().place(&inside)?, buffer);
        }
        let Some(path) = self.guests_path(at, path) else {
            return Ok(Reply::Continue);
        };
        let file = self.about(&path)?;
        // SAFETY: this is a structure of numbers, for which zero is valid.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        stat.st_mode = file.mode;
        stat.st_size = file.size as i64;
        stat.st_nlink = 1;
        stat.st_ino = number_of(&path);
        stat.st_blksize = BLOCK;
        self.write_struct(buffer, &stat)
    }

    /// Answers `statx(.., path, flags, mask, buffer)`: all known fields are returned, regardless of
    /// the mask.
    pub(super) fn statx(&self, at: u64, path: u64, mask: u64, buffer: u64) -> Answer {
        if let Some(inside) = self.bpffs().inside(at, path) {
            return self.statx_place(&self.guest.bpffs().place(&inside)?, mask, buffer);
        }
        let Some(path) = self.guests_path(at, path) else {
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
        statx.stx_ino = number_of(&path);
        statx.stx_blksize = BLOCK as u32;
        self.write_struct(buffer, &statx)
    }

    /// Answers `statfs(path, buffer)`, by which tools recognise tracefs and BPF file systems.
    pub(super) fn statfs(&self, path: u64, buffer: u64) -> Answer {
        if let Some(inside) = self.bpffs().inside(HERE, path) {
            return self.bpffs().statfs_inside(&inside, buffer);
        }
        let Some(path) = self.guests_path(libc::AT_FDCWD as u64, path) else {
            return Ok(Reply::Continue);
        };
        let is_tracefs = path.starts_with("/sys/kernel/tracing")
            || path.starts_with("/sys/kernel/debug/tracing");
        if !is_tracefs {
            return Ok(Reply::Continue);
        }
        self.about(&path)?;
        self.write_statfs(buffer, libc::TRACEFS_MAGIC as u64)
    }

    /// Answers `readlink(path, buffer, size)` on the tool's own descriptors, by which tools
    /// recognise an object's kind.
    pub(super) fn readlink(&self, path: u64, buffer: u64, size: u64) -> Answer {
        use beeline_vm_protocol::info::Kind;
        const LONGEST: usize = 64;
        let path = self.memory.string(path, LONGEST).unwrap_or_default();
        let fd = self.own_descriptor(&path, "fd");
        let object = fd.and_then(|fd| self.guest.objects.find(self.tid, fd).ok()?);
        let Some(object) = object else {
            return Ok(Reply::Continue);
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
        self.write_link(kind, buffer, size)
    }

    /// Answers `uname(buffer)`: tools choose headers and ways to attach by their kernel's version.
    pub(super) fn uname(&self, buffer: u64) -> Answer {
        const FIELD: usize = 65;
        let welcome = self.guest.welcome();
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
        self.memory.write(buffer, &name)?;
        Ok(Reply::Value(0))
    }
}

/// The block size of files with content that is made on reading.
const BLOCK: i64 = 4096;

/// Returns an inode number: always the same for one path, and almost certainly different for
/// another.
fn number_of(path: &Path) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    path.as_os_str().as_bytes().hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::sync::Arc;

    use beeline_vm_protocol::messages::Refused;

    use super::*;
    use crate::{Guest, fake};
    use beeline_supervisor::{Options, Tool};

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

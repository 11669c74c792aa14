//! The session's tracefs, for tools that cannot read the kernel's: without root, or where it is not
//! mounted.
//!
//! If the kernel's is mounted in another of its usual places, that one is used. Otherwise it is a
//! directory of the session's own that holds the tracepoints and functions which are served, with
//! numbers of our own, and nothing else. Each event is written on first use.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use beeline_supervisor::Scratch;
use beeline_supervisor::bpffs::{Place, lexically_normal};
use parking_lot::Mutex;
use rustix::fs::{Access, AtFlags, Mode, OFlags};

use crate::functions;
use crate::syscall_table::SystemCall;
use crate::tracepoints::{GROUPS, Tracepoint};

/// The paths at which tools look for it.
pub(crate) const MOUNTS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
/// The prefix of the directories' names.
const NAME: &str = "beeline-tracefs-";
/// The file that shows whether the kernel's tracefs can be read.
const WITNESS: &str = "events/raw_syscalls/sys_enter/id";

/// The session's tracefs. It is created on first use.
#[derive(Default)]
pub(crate) struct TraceFs {
    tree: OnceLock<Option<Scratch>>,
    /// Held while something is written there.
    writing: Mutex<()>,
}

/// The directory of the events.
const EVENTS: &str = "events";
/// The file that lists functions which can be probed.
const FUNCTIONS: &str = "available_filter_functions";

/// Returns whether the kernel's tracefs can be read at this place.
pub(crate) fn is_readable(mount: &str) -> bool {
    rustix::fs::access(Path::new(mount).join(WITNESS), Access::READ_OK).is_ok()
}

impl TraceFs {
    /// Returns the destination of an absolute path of the tool's; `None` for paths that the kernel
    /// has an answer to, and for those that are not served.
    pub(crate) fn place(&self, path: &[u8]) -> Option<Place> {
        let path = lexically_normal(Path::new(OsStr::from_bytes(path)));
        let (mount, inside) = MOUNTS
            .into_iter()
            .find_map(|mount| Some((mount, path.strip_prefix(mount).ok()?)))?;
        // A kernel that cannot trace functions may refuse to list them.
        let is_there = |mount: &&str| match inside == Path::new(FUNCTIONS) {
            true => File::open(Path::new(mount).join(FUNCTIONS)).is_ok(),
            false => is_readable(mount),
        };
        if is_there(&mount) {
            return None;
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = match MOUNTS.into_iter().find(is_there) {
            Some(kernels) => rustix::fs::open(kernels, flags, Mode::empty()).ok()?,
            None => {
                let tree = self.tree.get_or_init(|| Scratch::new(NAME)).as_ref()?;
                self.write(&tree.root, inside).ok()?;
                rustix::fs::openat(&tree.root, ".", flags, Mode::empty()).ok()?
            }
        };
        let name = match inside.as_os_str().is_empty() {
            true => Path::new("."),
            false => inside,
        };
        rustix::fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        Some(Place {
            directory,
            name: name.into(),
        })
    }

    /// Opens a file or directory for reading.
    pub(crate) fn open(&self, path: &[u8], flags: u64) -> Option<rustix::io::Result<OwnedFd>> {
        if flags & libc::O_ACCMODE as u64 != libc::O_RDONLY as u64 {
            return None;
        }
        let place = self.place(path)?;
        let kept = libc::O_DIRECTORY | libc::O_PATH | libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let flags = OFlags::from_bits_retain(flags as u32 & kept as u32) | OFlags::CLOEXEC;
        Some(rustix::fs::openat(
            &place.directory,
            &place.name,
            flags,
            Mode::empty(),
        ))
    }

    /// Writes the file or directory that a path below the root leads to, and the directories above
    /// it.
    fn write(&self, root: &OwnedFd, inside: &Path) -> io::Result<()> {
        let _lock = self.writing.lock();
        if !is_in(root, Path::new(EVENTS)) {
            write_root(root)?;
        }
        let Ok(below) = inside.strip_prefix(EVENTS) else {
            return Ok(());
        };
        let mut names = below.iter().filter_map(OsStr::to_str);
        match (names.next(), names.next()) {
            (Some(group), Some(name)) => Tracepoint::named(group, name)
                .map_or(Ok(()), |tracepoint| write_event(root, tracepoint)),
            (Some(group), None) => Tracepoint::of_group(group)
                .into_iter()
                .try_for_each(|tracepoint| write_event(root, tracepoint)),
            (None, _) => Ok(()),
        }
    }
}

/// Writes the lists of events and of functions that can be probed, and a directory for each group.
fn write_root(root: &OwnedFd) -> io::Result<()> {
    let all = GROUPS.into_iter().flat_map(Tracepoint::of_group);
    let lines = all.map(|tracepoint| format!("{}:{}\n", tracepoint.group(), tracepoint.name()));
    write_file(
        root,
        Path::new("available_events"),
        &lines.collect::<String>(),
    )?;
    let entries = SystemCall::all().iter().map(|call| call.function() + "\n");
    let others = functions::names().map(|name| format!("{name}\n"));
    write_file(
        root,
        Path::new(FUNCTIONS),
        &entries.chain(others).collect::<String>(),
    )?;
    GROUPS
        .into_iter()
        .try_for_each(|group| make_directory(root, &Path::new(EVENTS).join(group)))
}

fn write_event(root: &OwnedFd, tracepoint: Tracepoint) -> io::Result<()> {
    let group = Path::new(EVENTS).join(tracepoint.group());
    let directory = group.join(tracepoint.name());
    // This file is written last.
    let format = directory.join("format");
    if is_in(root, &format) {
        return Ok(());
    }
    make_directory(root, &directory)?;
    let number = tracepoint.own_id();
    write_file(root, &directory.join("id"), &format!("{number}\n"))?;
    write_file(root, &format, &tracepoint.format(number))
}

fn is_in(root: &OwnedFd, path: &Path) -> bool {
    rustix::fs::statat(root, path, AtFlags::SYMLINK_NOFOLLOW).is_ok()
}

/// Makes a directory, and those above it.
fn make_directory(root: &OwnedFd, path: &Path) -> io::Result<()> {
    let mut made = PathBuf::new();
    for name in path {
        made.push(name);
        match rustix::fs::mkdirat(root, &made, Mode::RWXU) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn write_file(root: &OwnedFd, path: &Path, text: &str) -> io::Result<()> {
    // It is there if it could not be written whole before.
    let _ = rustix::fs::unlinkat(root, path, AtFlags::empty());
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::openat(root, path, flags, Mode::WUSR)?);
    file.write_all(text.as_bytes())?;
    let everybody = Mode::RUSR | Mode::RGRP | Mode::ROTH;
    Ok(rustix::fs::fchmod(&file, everybody)?)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn only_files_that_are_read_are_written() {
        let (fs, tree) = (TraceFs::default(), Scratch::new(NAME).unwrap());
        let write = |inside: &str| fs.write(&tree.root, Path::new(inside)).unwrap();
        let entries = |inside: &str| fs::read_dir(tree.path.join(inside)).unwrap().count();
        write("");
        assert_eq!(entries("events/syscalls"), 0);
        let listed = fs::read_to_string(tree.path.join("available_events")).unwrap();
        write("events/syscalls/sys_enter_read/format");
        write("events/syscalls/none/format");
        write("events/none");
        assert_eq!(entries("events/syscalls"), 1);
        write("events/syscalls");
        write("events/raw_syscalls");
        let written = entries("events/syscalls") + entries("events/raw_syscalls");
        assert_eq!(written, listed.lines().count());
        let read = Tracepoint::named("syscalls", "sys_enter_read").unwrap();
        let of_event = |file| tree.path.join("events/syscalls/sys_enter_read").join(file);
        let text = |file| fs::read_to_string(of_event(file)).unwrap();
        assert_eq!(text("id"), format!("{}\n", read.own_id()));
        assert_eq!(text("format"), read.format(read.own_id()));
    }

    #[test]
    fn paths_outside_are_the_kernels() {
        let fs = TraceFs::default();
        for path in [
            "/sys/kernel",
            "/sys/kernel/tracingx/events",
            "/etc/passwd",
            "events",
        ] {
            assert!(fs.place(path.as_bytes()).is_none(), "{path}");
        }
        assert!(fs.tree.get().is_none());
    }
}

//! Predicts, by the kernel's rules for `execve`, whether a program gains rights (set-uid, set-gid,
//! file capabilities). The file may change before it runs.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::mem::offset_of;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use beeline_inject::Process;
use beeline_uapi::linux::{
    CAP_SYS_PTRACE, MAX_INTERPRETERS, PAGE_SIZE, PATH_MAX, VFS_CAP_REVISION_1,
    VFS_CAP_REVISION_MASK, VfsCapData, VfsCaps,
};
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat, StatVfsMountFlags, fstat, fstatvfs, open,
    openat2, statat,
};

use crate::proc;

/// The arguments of `execve` or `execveat`.
#[derive(Debug)]
pub struct Called {
    /// A descriptor, or `AT_FDCWD`.
    pub directory: i32,
    /// The path's address in the process.
    pub path: u64,
    /// `AT_EMPTY_PATH` and its kin.
    pub flags: u32,
}

/// True if the kernel gives a program that Beeline traces all rights that it has.
pub fn traces_with_rights() -> bool {
    static TRACES: LazyLock<bool> = LazyLock::new(|| {
        let own = proc::text("/proc/self/status").unwrap_or_default();
        let effective = number(&own, "CapEff:", 16).unwrap_or_default();
        effective >> CAP_SYS_PTRACE & 1 == 1
    });
    *TRACES
}

/// Returns the program, or its interpreter, that gains rights when a thread makes this call. `None`
/// if none does, or if that cannot be found out.
pub fn gained(process: &Process, tid: i32, called: &Called) -> Option<PathBuf> {
    let task = format!("/proc/{}/task/{tid}", process.pid());
    let credentials = Credentials::of(&proc::text(format!("{task}/status")).ok()?)?;
    if credentials.gains_nothing {
        return None;
    }
    let path = read_path(process, called.path)?;
    let mut file = match path.as_os_str().is_empty() {
        true if called.flags & AtFlags::EMPTY_PATH.bits() == 0 => return None,
        true => opened(&PathBuf::from(format!("{task}/fd/{}", called.directory)))?,
        false => open_as(&task, called.directory, &path)?,
    };
    let mut name = path;
    for _ in 0..=MAX_INTERPRETERS {
        match interpreter(&file) {
            // For a script only the interpreter's rights count.
            Some(interpreter) => {
                file = open_as(&task, libc::AT_FDCWD, &interpreter)?;
                name = interpreter;
            }
            None => return credentials.gains(&file).then(|| full_name(&file, name)),
        }
    }
    None
}

/// The identity of a thread, in Beeline's own user namespace.
#[derive(Debug)]
struct Credentials {
    user: u32,
    group: u32,
    permitted: u64,
    gains_nothing: bool,
}

impl Credentials {
    /// Reads it from a thread's `status`.
    fn of(status: &str) -> Option<Self> {
        // Real, effective, saved, of the file system.
        let effective = |name: &str| line(status, name)?.split_whitespace().nth(1)?.parse().ok();
        Some(Self {
            user: effective("Uid:")?,
            group: effective("Gid:")?,
            permitted: number(status, "CapPrm:", 16)?,
            gains_nothing: number(status, "NoNewPrivs:", 10) == Some(1),
        })
    }

    fn gains(&self, file: &OwnedFd) -> bool {
        let Ok(stat) = fstat(file) else {
            return false;
        };
        let is_nosuid =
            fstatvfs(file).is_ok_and(|on| on.f_flag.contains(StatVfsMountFlags::NOSUID));
        !is_nosuid && (self.becomes_another(&stat) || self.lacks(file))
    }

    fn becomes_another(&self, stat: &Stat) -> bool {
        let mode = Mode::from_raw_mode(stat.st_mode);
        // Without the right to be executed by the group, the bit once meant another thing.
        mode.contains(Mode::SUID) && stat.st_uid != self.user
            || mode.contains(Mode::SGID | Mode::XGRP) && stat.st_gid != self.group
    }

    /// True if the file has capabilities that the thread lacks.
    fn lacks(&self, file: &OwnedFd) -> bool {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let mut bytes = [0; 24];
        let len = rustix::fs::getxattr(path, "security.capability", &mut bytes[..]);
        len.is_ok_and(|len| permitted_by(&bytes[..len]) & !self.permitted != 0)
    }
}

/// Returns what a `struct vfs_cap_data` permits.
fn permitted_by(data: &[u8]) -> u64 {
    let word = |at: usize| {
        let bytes = data.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        u64::from(u32::from_le_bytes(bytes.unwrap_or_default()))
    };
    const DATA: usize = offset_of!(VfsCapData, data);
    const PERMITTED: usize = DATA + offset_of!(VfsCaps, permitted);
    match word(offset_of!(VfsCapData, magic_etc)) & VFS_CAP_REVISION_MASK {
        VFS_CAP_REVISION_1 => word(PERMITTED),
        _ => word(PERMITTED) | word(PERMITTED + size_of::<VfsCaps>()) << 32,
    }
}

/// Reads the path at an address of a process.
fn read_path(process: &Process, address: u64) -> Option<PathBuf> {
    let (mut path, mut at) = (Vec::new(), address);
    while path.len() < PATH_MAX {
        // The page behind it need not be mapped.
        let mut bytes = vec![0; (PAGE_SIZE - at % PAGE_SIZE) as usize];
        process.read_memory(at, &mut bytes).ok()?;
        if let Some(end) = bytes.iter().position(|byte| *byte == 0) {
            path.extend_from_slice(&bytes[..end]);
            return Some(PathBuf::from(OsStr::from_bytes(&path)));
        }
        at = at.checked_add(bytes.len() as u64)?;
        path.append(&mut bytes);
    }
    None
}

/// Opens a file by its path as a thread sees it.
fn open_as(task: &str, directory: i32, path: &Path) -> Option<OwnedFd> {
    // To Beeline this is another process.
    if let Ok(own) = path.strip_prefix("/proc/self") {
        let process = task.split("/task/").next()?;
        return opened(&Path::new(process).join(own));
    }
    let base = match directory {
        _ if path.is_absolute() => format!("{task}/root"),
        libc::AT_FDCWD => format!("{task}/cwd"),
        fd => format!("{task}/fd/{fd}"),
    };
    let (base, root) = (PathBuf::from(base), format!("{task}/root"));
    if is_same(Path::new(&root), Path::new("/")) {
        return opened(&base.join(path.strip_prefix("/").unwrap_or(path)));
    }
    // Links and steps upwards end at its own root.
    let whole = match path.is_absolute() {
        true => path.to_owned(),
        false => std::fs::read_link(base).ok()?.join(path),
    };
    let root = opened(Path::new(&root))?;
    openat2(root, whole, AS_A_NAME, Mode::empty(), ResolveFlags::IN_ROOT).ok()
}

const AS_A_NAME: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

fn opened(path: &Path) -> Option<OwnedFd> {
    open(path, AS_A_NAME, Mode::empty()).ok()
}

fn is_same(one: &Path, other: &Path) -> bool {
    let look = |path: &Path| {
        let stat = statat(rustix::fs::CWD, path, AtFlags::empty()).ok()?;
        Some((stat.st_dev, stat.st_ino))
    };
    look(one).is_some_and(|one| look(other) == Some(one))
}

/// Returns the interpreter that a script names in its first line. A file that may not be read
/// counts as having none.
fn interpreter(file: &OwnedFd) -> Option<PathBuf> {
    /// The number of bytes of a file that the kernel looks at.
    const HEAD: u64 = 256;
    let stat = fstat(file).ok()?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return None;
    }
    let mut head = Vec::new();
    let content = File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
    content.take(HEAD).read_to_end(&mut head).ok()?;
    named_by(&head)
}

fn named_by(head: &[u8]) -> Option<PathBuf> {
    let line = head
        .strip_prefix(b"#!")?
        .split(|byte| *byte == b'\n')
        .next()?;
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let line = line
        .iter()
        .position(|byte| !is_blank(byte))
        .and_then(|start| line.get(start..))?;
    let name = line.split(|byte| is_blank(byte) || *byte == 0).next()?;
    (!name.is_empty()).then(|| PathBuf::from(OsStr::from_bytes(name)))
}

/// Returns the file's name from the root on, where the kernel tells.
fn full_name(file: &OwnedFd, name: PathBuf) -> PathBuf {
    std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap_or(name)
}

/// Returns the rest of the line of a `status` that begins with `name`.
pub fn line<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name))
}

/// Returns the number to this base that is the rest of such a line.
pub fn number(status: &str, name: &str, base: u32) -> Option<u64> {
    u64::from_str_radix(line(status, name)?.trim(), base).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interpreters_are_named_as_the_kernel_reads_them() {
        for (head, name) in [
            (&b"#!/bin/sh\necho"[..], Some("/bin/sh")),
            (b"#! \t/bin/sh -e\n", Some("/bin/sh")),
            (b"#!bin/sh", Some("bin/sh")),
            (b"#!\n/bin/sh", None),
            (b"#!", None),
            (b"\x7fELF", None),
        ] {
            assert_eq!(named_by(head), name.map(PathBuf::from));
        }
    }

    #[test]
    fn file_capabilities_are_two_words() {
        let data = |words: &[u32]| {
            let bytes = words.iter().flat_map(|word| word.to_le_bytes());
            permitted_by(&bytes.collect::<Vec<_>>())
        };
        assert_eq!(data(&[0x0200_0001, 0x400, 0, 0x2, 0]), 0x2_0000_0400);
        assert_eq!(data(&[0x0100_0001, 0x400, 7]), 0x400);
        assert_eq!(permitted_by(&[]), 0);
    }

    #[test]
    fn credentials_are_the_effective_ones() {
        let status = "Name:\tx\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nCapPrm:\t000000000000001f\nNoNewPrivs:\t1\n";
        let found = Credentials::of(status).unwrap();
        assert_eq!((found.user, found.group, found.permitted), (2, 6, 0x1f));
        assert!(found.gains_nothing);
    }
}

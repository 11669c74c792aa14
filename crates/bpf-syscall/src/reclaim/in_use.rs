//! Searches /proc for the processes that have a memory file open or mapped.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use beeline_runtime::proc;
use beeline_supervisor::keys::{Anonymous, Key, anonymous};

/// The names of files that stand for others, as links in `/proc` have them.
const EVENTFD: &[u8] = b"anon_inode:[eventfd]";
const KERNEL_MAP: &[u8] = b"anon_inode:bpf-map";
const KERNEL_PROGRAM: &[u8] = b"anon_inode:bpf-prog";

/// Returns those of `files` that no process but this has open or mapped. Processes that may not be
/// inspected are not the tool's: the supervisor could not read their memory either.
pub(super) fn not_in_use(
    mut files: HashSet<Key>,
    stand_ins: &HashMap<Anonymous, Key>,
) -> HashSet<Key> {
    for process in others() {
        remove_open(&process, &mut files, stand_ins);
        remove_mapped(&process, &mut files);
        if files.is_empty() {
            break;
        }
    }
    files
}

/// Returns whether a process other than this has any of `files` open.
pub(super) fn is_any_open(
    files: &HashSet<Key>,
    stand_ins: impl Fn() -> HashMap<Anonymous, Key>,
) -> bool {
    let mut left = files.clone();
    for process in others() {
        remove_open(&process, &mut left, &stand_ins());
    }
    left.len() < files.len()
}

/// Returns the directories of all processes but this one.
fn others() -> impl Iterator<Item = PathBuf> {
    let own = std::process::id().to_string();
    let is_other = move |process: &fs::DirEntry| {
        let name = process.file_name();
        name.as_encoded_bytes().iter().all(u8::is_ascii_digit) && name != *own
    };
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes.filter(is_other).map(|process| process.path())
}

fn remove_open(process: &Path, files: &mut HashSet<Key>, stand_ins: &HashMap<Anonymous, Key>) {
    let Ok(descriptors) = fs::read_dir(process.join("fd")) else {
        return;
    };
    for descriptor in descriptors.flatten() {
        let path = descriptor.path();
        // Looks at the name first: asking for the inode of a file on a dead network file system
        // would wait for it.
        let Ok(link) = fs::read_link(&path) else {
            continue;
        };
        let link = link.as_os_str().as_encoded_bytes();
        if link.starts_with(b"/memfd:") || link.starts_with(b"socket:") {
            if let Ok(file) = fs::metadata(&path) {
                files.remove(&Key {
                    device: file.dev(),
                    inode: file.ino(),
                });
            }
        } else if !stand_ins.is_empty() && [EVENTFD, KERNEL_MAP, KERNEL_PROGRAM].contains(&link) {
            let key = stands_for(process, &descriptor.file_name(), stand_ins);
            key.map(|key| files.remove(&key));
        }
    }
}

/// Returns the memory file that another file stands for.
fn stands_for(process: &Path, fd: &OsStr, stand_ins: &HashMap<Anonymous, Key>) -> Option<Key> {
    let number = anonymous(process.file_name()?.to_str()?, fd.to_str()?.parse().ok()?)?;
    stand_ins.get(&number).copied()
}

fn remove_mapped(process: &Path, files: &mut HashSet<Key>) {
    let Ok(maps) = proc::text(process.join("maps")) else {
        return;
    };
    for key in maps.lines().filter_map(mapped_file) {
        files.remove(&key);
    }
}

/// Returns whether the process of a thread has a memory file open.
pub(crate) fn is_open_in(tid: i32, file: Key, stand_ins: &HashMap<Anonymous, Key>) -> bool {
    let mut left = HashSet::from([file]);
    let process = PathBuf::from(format!("/proc/{tid}"));
    remove_open(&process, &mut left, stand_ins);
    left.is_empty()
}

/// Returns whether the process of a thread has a writable mapping of a file.
pub(crate) fn is_mapped_writable(tid: i32, file: Key) -> bool {
    let maps = proc::text(format!("/proc/{tid}/maps")).unwrap_or_default();
    maps.lines().any(|line| {
        let permissions = line.split_ascii_whitespace().nth(1).unwrap_or_default();
        permissions.contains('w') && mapped_file(line) == Some(file)
    })
}

/// Returns whether the process of a thread has a writable mapping of any map of the kernel's: they
/// cannot be told apart.
pub(crate) fn maps_kernels_writable(tid: i32) -> bool {
    let maps = proc::text(format!("/proc/{tid}/maps")).unwrap_or_default();
    let name = String::from_utf8_lossy(KERNEL_MAP);
    maps.lines().any(|line| {
        let permissions = line.split_ascii_whitespace().nth(1).unwrap_or_default();
        permissions.contains('w') && line.ends_with(&*name)
    })
}

/// Returns the file in a line of `/proc/PID/maps`: `start-end perms offset major:minor inode path`.
/// Mappings for a fast path are not the tool's.
fn mapped_file(line: &str) -> Option<Key> {
    let start = u64::from_str_radix(line.split_once('-')?.0, 16).ok()?;
    if beeline_runtime::fast_path::WINDOW.contains(&start) {
        return None;
    }
    let mut fields = line.split_ascii_whitespace().skip(3);
    let (major, minor) = fields.next()?.split_once(':')?;
    let inode = fields.next()?.parse().ok()?;
    let (major, minor) = (
        u32::from_str_radix(major, 16).ok()?,
        u32::from_str_radix(minor, 16).ok()?,
    );
    Some(Key {
        device: libc::makedev(major, minor),
        inode,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_maps_names_its_file() {
        let line = "7f2c6a000000-7f2c6a001000 rw-s 00001000 00:01 1027 /memfd:map (deleted)";
        assert_eq!(
            mapped_file(line),
            Some(Key {
                device: libc::makedev(0, 1),
                inode: 1027
            })
        );
        let for_a_fast_path = line.replace("7f2c6a", "2bee00");
        assert_eq!(mapped_file(&for_a_fast_path), None);
        assert_eq!(mapped_file("7f2c6a000000-7f2c6a001000 rw-p"), None);
        assert_eq!(mapped_file(""), None);
    }
}

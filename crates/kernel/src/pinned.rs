//! Maps of the kernel's that others have made, by their names in its BPF file system.

use std::ffi::{CString, OsStr};
use std::io;
use std::mem::offset_of;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use beeline_uapi::fields::{u32_at, u64_at};
use beeline_uapi::info::MapInfo;
use beeline_uapi::{Command, MapType, offset_behind};

use crate::attr::{Attr, word};
use crate::{MapSpec, text};

/// The link in `/proc/self/fd` of each descriptor of a map.
const MAP_LINK: &str = "anon_inode:bpf-map";

/// Opens an object that is pinned (`BPF_OBJ_GET`). `flags` are none, `BPF_F_RDONLY` or
/// `BPF_F_WRONLY`; the file's permissions must allow as much.
///
/// # Errors
/// The errno of bpf(2): those of the path, `EACCES` for a file that is not an object, `EPERM` where
/// bpf(2) is not permitted. `EINVAL` for a path with a null byte.
pub fn open(path: &Path, flags: u32) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut attr = Attr::default();
    // SAFETY: the text ends with a null byte, by which the kernel finds its size.
    unsafe { attr.point(word!(ObjPin.pathname), path.as_bytes_with_nul()) };
    attr.put(word!(ObjPin.file_flags), flags);
    attr.make(Command::OBJ_GET)
}

/// Returns whether a descriptor is one of a map.
pub fn is_map(object: BorrowedFd<'_>) -> bool {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", object.as_raw_fd()));
    link.is_ok_and(|link| link.as_os_str() == OsStr::new(MAP_LINK))
}

/// Returns what a map was made as, without its types, and its name (`BPF_OBJ_GET_INFO_BY_FD`).
///
/// # Errors
/// The errno of bpf(2).
pub fn map_spec(map: BorrowedFd<'_>) -> io::Result<(MapSpec<'static>, String)> {
    let mut about = [0; offset_behind!(MapInfo, map_extra)];
    let mut attr = Attr::default();
    attr.put_fd(word!(Info.bpf_fd), Some(map));
    attr.lend_mut(word!(Info.info), word!(Info.info_len), &mut about);
    attr.call(Command::OBJ_GET_INFO_BY_FD)?;
    let word = |at| u32_at(&about, at);
    let spec = MapSpec {
        map_type: MapType(word(offset_of!(MapInfo, r#type))),
        key_size: word(offset_of!(MapInfo, key_size)),
        value_size: word(offset_of!(MapInfo, value_size)),
        max_entries: word(offset_of!(MapInfo, max_entries)),
        flags: word(offset_of!(MapInfo, map_flags)),
        map_extra: u64_at(&about, offset_of!(MapInfo, map_extra)),
        ..MapSpec::default()
    };
    Ok((spec, text(&about[offset_of!(MapInfo, name)..])))
}

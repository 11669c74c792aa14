//! Removes a directory with its contents, by descriptor: no symbolic link is followed, and nothing
//! that was put in a directory's place is touched.

use std::ffi::CStr;
use std::os::fd::AsFd;

use rustix::fs::{AtFlags, Dir, Mode, OFlags};
use rustix::io::{Errno, Result};
use rustix::path::Arg;

/// The greatest depth of directories. The tool can make them as deep as it likes.
const DEEPEST: usize = 128;

/// Removes an open directory that is in another one under this name.
pub(super) fn remove(place: impl AsFd, name: impl Arg + Copy, open: impl AsFd) -> Result<()> {
    empty(open, DEEPEST)?;
    // It does nothing to a directory with contents, such as another one of the name.
    rustix::fs::unlinkat(place, name, AtFlags::REMOVEDIR)
}

fn empty(directory: impl AsFd, deepest: usize) -> Result<()> {
    let directory = directory.as_fd();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        match rustix::fs::unlinkat(directory, name, AtFlags::empty()) {
            Err(Errno::ISDIR) => remove_below(directory, name, deepest)?,
            other => other?,
        }
    }
    Ok(())
}

fn remove_below(directory: impl AsFd, name: &CStr, deepest: usize) -> Result<()> {
    let deepest = deepest.checked_sub(1).ok_or(Errno::LOOP)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let below = rustix::fs::openat(&directory, name, flags, Mode::empty())?;
    empty(&below, deepest)?;
    rustix::fs::unlinkat(directory, name, AtFlags::REMOVEDIR)
}

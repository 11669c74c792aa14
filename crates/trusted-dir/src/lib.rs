//! Directories and files that no other user can change or swap.
//!
//! Beeline runs with more rights than those who name its directories may have: under `sudo -E`,
//! `XDG_RUNTIME_DIR` is the invoking user's. So a directory counts only if it, each directory that
//! leads to it and each symbolic link on the way belong to this user or to root, and if nobody else
//! may write them; a sticky directory such as `/tmp` may lead on, because there nobody else can
//! rename what is ours. Everything is opened first and looked at then, so that a path which changes
//! meanwhile has no effect, and what is in a directory is opened relative to its descriptor.
//!
//! Access control lists need no look of their own: the group's bits of a file that has one are the
//! most that the list gives to anyone.

mod distrust;
mod report;
mod users;
mod walk;

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

pub use distrust::Distrust;
pub use report::{report_once, report_to};

use distrust::{Writable, check};
use walk::{Missing, Walk};

/// An open directory that no other user can change or swap.
#[derive(Debug)]
pub struct TrustedDir {
    fd: OwnedFd,
    path: PathBuf,
}

impl TrustedDir {
    /// Opens a directory in which only this user and root can do anything. What is missing of the
    /// path is made, for this user alone.
    ///
    /// # Errors
    ///
    /// [`Distrust`], inside an error of kind `PermissionDenied`; else the system's own.
    pub fn create(path: &Path) -> io::Result<Self> {
        let directory = Walk::begin(path)?.directory(Missing::IsMade)?;
        directory.check_own()?;
        Ok(directory)
    }

    /// Opens a directory in which others may have files too, if it is sticky: nobody else can
    /// rename or remove what this user makes there.
    ///
    /// # Errors
    ///
    /// Those of [`Self::create`], and `NotFound`.
    pub fn open_shared(path: &Path) -> io::Result<Self> {
        Walk::begin(path)?.directory(Missing::IsAnError)
    }

    /// Checks again that only this user and root can write it.
    ///
    /// # Errors
    ///
    /// As [`Self::create`].
    pub fn check_own(&self) -> io::Result<()> {
        check(
            &rustix::fs::fstat(&self.fd)?,
            &self.path,
            Writable::ByNobody,
        )
    }

    /// Returns another descriptor of it.
    ///
    /// # Errors
    ///
    /// The kernel's of fcntl(2).
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self {
            fd: self.fd.try_clone()?,
            path: self.path.clone(),
        })
    }

    /// Returns its absolute path, which has no symbolic links.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl AsFd for TrustedDir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Checks that an open file is a regular one of this user's or root's, that nobody else may write
/// it, and that it has one name.
///
/// # Errors
///
/// As [`TrustedDir::create`].
pub fn check_file(file: &File, path: &Path) -> io::Result<()> {
    let stat = rustix::fs::fstat(file)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(Distrust::Kind(path.to_owned()).into());
    }
    check(&stat, path, Writable::ByNobody)?;
    check_name(file, path)
}

/// Checks that an open file has one name. Whoever may not write a file can sometimes still link it
/// to another place.
///
/// # Errors
///
/// As [`TrustedDir::create`].
pub fn check_name(file: &File, path: &Path) -> io::Result<()> {
    match rustix::fs::fstat(file)?.st_nlink > 1 {
        true => Err(Distrust::Names(path.to_owned()).into()),
        false => Ok(()),
    }
}

/// Reads a file that no other user can change or swap.
///
/// # Errors
///
/// Those of [`check_file`] and of [`TrustedDir::open_shared`] for its directory, and of reading. A
/// second name matters only where others may make one: in a sticky directory.
pub fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let named = Walk::begin(path)?.file()?;
    let mut file = named.open(OFlags::RDONLY | OFlags::NONBLOCK)?;
    match check_file(&file, &named.path()) {
        Err(error) if matches!(Distrust::of(&error), Some(Distrust::Names(_))) => {
            named.directory().check_own().map_err(|_| error)?;
        }
        other => other?,
    }
    read_to_most(&mut file, MOST)
}

/// The most bytes of a file that are read, unless the caller has a lower limit.
pub const MOST: u64 = 64 << 20;

/// Reads a file that another may have chosen, or its name. It may be a device or a pipe that never
/// ends: no more than `most` bytes of it are read.
///
/// # Errors
///
/// `FileTooLarge` for a longer file, and those of opening and reading.
pub fn read_bounded(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    read_to_most(&mut File::open(path)?, most)
}

fn read_to_most(file: &mut File, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        let most = match most >> 20 {
            0 => format!("{most} bytes"),
            mebibytes => format!("{mebibytes} MiB"),
        };
        let why = format!("it is longer than {most}, the most that is read; is it the right file?");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
    }
    Ok(bytes)
}

/// Opens a file to write it anew. Nobody else can write a file that is made by this. Another user's
/// symbolic link is not followed; the directory may be anyone's. A regular file that is there
/// already is checked before it is changed: by [`check_name`], or by [`check_file`] if nobody else
/// may have it open for writing.
///
/// # Errors
///
/// Those of the check; [`Distrust`] for a symbolic link that another user could lead elsewhere; the
/// system's own.
pub fn write_anew(path: &Path, check: fn(&File, &Path) -> io::Result<()>) -> io::Result<File> {
    let access = OFlags::WRONLY | OFlags::NOCTTY | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::ROTH;
    let create = access | OFlags::CREATE | OFlags::EXCL;
    match rustix::fs::open(path, create, mode) {
        Err(Errno::EXIST) => {}
        other => return Ok(other?.into()),
    }
    let (file, path) = match rustix::fs::open(path, access | OFlags::NOFOLLOW, Mode::empty()) {
        Err(Errno::LOOP) => {
            let named = Walk::begin(path)?.file()?;
            (named.open(OFlags::WRONLY)?, named.path())
        }
        other => (other?.into(), path.to_owned()),
    };
    // A device or a pipe keeps nothing that could be lost.
    if file.metadata()?.is_file() {
        check(&file, &path)?;
        file.set_len(0)?;
    }
    Ok(file)
}

#[cfg(test)]
mod tests;

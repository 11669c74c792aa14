//! The reasons why a directory or a file is not used.

use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, Stat};

use crate::users::{is_trusted, unknown_user};

/// Why a directory or a file is not used. Each text names it, and says why and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Distrust {
    /// It belongs to another user.
    #[error(
        "{0} belongs to user {1}, who could change what is there; use a place of your own or root's"
    )]
    Owner(PathBuf, u32),
    /// It belongs to a user who has no id in this user namespace.
    #[error(
        "{0} belongs to a user whom this user namespace does not know, so it could be anybody's; use a place of your own"
    )]
    Unknown(PathBuf),
    /// Other users may write it.
    #[error(
        "other users may write {0} (mode {1:o}) and could have put anything there; use a place that only you or root may write"
    )]
    Writable(PathBuf, u32),
    /// It is a symbolic link of another user's.
    #[error(
        "{0} is a symbolic link of user {1}'s, who could lead it elsewhere; name the place that it leads to"
    )]
    Link(PathBuf, u32),
    /// It is no regular file.
    #[error("{0} is no regular file; name one")]
    Kind(PathBuf),
    /// It has several names.
    #[error(
        "{0} has another name elsewhere (a hard link), by which somebody else may have put it there; copy it to a new file"
    )]
    Names(PathBuf),
}

impl Distrust {
    fn owner(path: PathBuf, user: u32) -> Self {
        match unknown_user() == Some(user) {
            true => Self::Unknown(path),
            false => Self::Owner(path, user),
        }
    }

    /// Finds the reason in an error of this crate's.
    pub fn of(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }
}

impl From<Distrust> for io::Error {
    fn from(distrust: Distrust) -> Self {
        Self::new(io::ErrorKind::PermissionDenied, distrust)
    }
}

/// The others who may write something that is trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Writable {
    ByNobody,
    /// Anyone, if it is a sticky directory.
    IfSticky,
}

/// Checks the owner and the mode of what is open.
pub(crate) fn check(stat: &Stat, path: &Path, writable: Writable) -> io::Result<()> {
    if !is_trusted(stat.st_uid, path) {
        return Err(Distrust::owner(path.to_owned(), stat.st_uid).into());
    }
    let mode = Mode::from_raw_mode(stat.st_mode);
    let is_writable = mode.intersects(Mode::WGRP | Mode::WOTH);
    let is_guarded = writable == Writable::IfSticky && mode.contains(Mode::SVTX);
    match is_writable && !is_guarded {
        true => Err(Distrust::Writable(path.to_owned(), mode.as_raw_mode()).into()),
        false => Ok(()),
    }
}

//! Follows a path step by step, each of which is looked at after it is opened.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, PROC_SUPER_MAGIC, ResolveFlags};
use rustix::io::Errno;

use crate::TrustedDir;
use crate::distrust::{Distrust, Writable, check};
use crate::users::is_trusted;

/// The most symbolic links of one path, as in the kernel.
const MOST_LINKS: u32 = 40;
/// A step is opened without any effect on it.
const STEP: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The treatment of a directory that is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missing {
    IsMade,
    IsAnError,
}

/// A path that is followed.
pub(crate) struct Walk {
    here: TrustedDir,
    /// The names that are left, the next one last.
    ahead: Vec<OsString>,
    links: u32,
}

/// The end of one step.
enum Step {
    Directory,
    Link,
    /// Nothing is there.
    Nothing(OsString),
    Other(OsString),
    /// A link of procfs to what a descriptor is of. Its text is no path, and nobody can lead it
    /// elsewhere.
    Descriptor(OsString),
}

/// A file by its directory and its name there.
pub(crate) struct Named {
    directory: TrustedDir,
    name: OsString,
    /// `NOFOLLOW`, except for a descriptor's link.
    links: OFlags,
}

impl Named {
    /// Opens it.
    pub(crate) fn open(&self, access: OFlags) -> io::Result<File> {
        let flags = access | self.links | OFlags::CLOEXEC | OFlags::NOCTTY;
        let file = rustix::fs::openat(&self.directory, &self.name, flags, Mode::empty())?;
        Ok(file.into())
    }

    /// Returns its directory.
    pub(crate) fn directory(&self) -> &TrustedDir {
        &self.directory
    }

    /// Returns its path.
    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join(&self.name)
    }
}

impl Walk {
    /// Starts at the root.
    pub(crate) fn begin(path: &Path) -> io::Result<Self> {
        let mut walk = Self {
            here: root()?,
            ahead: Vec::new(),
            links: 0,
        };
        walk.put_ahead(&std::path::absolute(path)?);
        Ok(walk)
    }

    /// Goes on to the directory at the end, which is then open for reading.
    pub(crate) fn directory(mut self, missing: Missing) -> io::Result<TrustedDir> {
        while let Some(name) = self.ahead.pop() {
            let mut step = self.step(name)?;
            if let (Step::Nothing(name), Missing::IsMade) = (&step, missing) {
                match rustix::fs::mkdirat(&self.here, name, Mode::RWXU) {
                    // If somebody was quicker, what is there now is looked at.
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(error) => return Err(error.into()),
                }
                let name = name.clone();
                step = self.step(name)?;
            }
            match step {
                Step::Directory | Step::Link => {}
                Step::Nothing(_) => return Err(Errno::NOENT.into()),
                Step::Other(_) => return Err(Errno::NOTDIR.into()),
                Step::Descriptor(_) => return Err(Errno::LOOP.into()),
            }
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.here, ".", flags, Mode::empty())?;
        Ok(TrustedDir { fd, ..self.here })
    }

    /// Goes on to the directory of a file, which is there.
    pub(crate) fn file(mut self) -> io::Result<Named> {
        while let Some(name) = self.ahead.pop() {
            match self.step(name)? {
                Step::Directory | Step::Link => {}
                Step::Nothing(_) => return Err(Errno::NOENT.into()),
                Step::Other(_) if !self.ahead.is_empty() => return Err(Errno::NOTDIR.into()),
                Step::Other(name) => {
                    return Ok(Named {
                        directory: self.here,
                        name,
                        links: OFlags::NOFOLLOW,
                    });
                }
                Step::Descriptor(_) if !self.ahead.is_empty() => return Err(Errno::LOOP.into()),
                Step::Descriptor(name) => {
                    return Ok(Named {
                        directory: self.here,
                        name,
                        links: OFlags::empty(),
                    });
                }
            }
        }
        Err(Errno::ISDIR.into())
    }

    /// Enters a directory, or puts the path of a symbolic link ahead.
    fn step(&mut self, name: OsString) -> io::Result<Step> {
        let here = &self.here.path;
        let path = match name == ".." {
            true => here.parent().unwrap_or(here).to_owned(),
            false => here.join(&name),
        };
        let next = match rustix::fs::openat(&self.here, &name, STEP, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(Step::Nothing(name)),
            other => other?,
        };
        let stat = rustix::fs::fstat(&next)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                check(&stat, &path, Writable::IfSticky)?;
                self.here = TrustedDir { fd: next, path };
                Ok(Step::Directory)
            }
            FileType::Symlink if !is_trusted(stat.st_uid, &path) => {
                Err(Distrust::Link(path, stat.st_uid).into())
            }
            FileType::Symlink if is_descriptor(&self.here, &name)? => Ok(Step::Descriptor(name)),
            FileType::Symlink => {
                self.follow(&next)?;
                Ok(Step::Link)
            }
            _ => Ok(Step::Other(name)),
        }
    }

    fn follow(&mut self, link: &OwnedFd) -> io::Result<()> {
        self.links += 1;
        if self.links > MOST_LINKS {
            return Err(Errno::LOOP.into());
        }
        let target = rustix::fs::readlinkat(link, "", Vec::new())?;
        let target = PathBuf::from(OsStr::from_bytes(target.as_bytes()));
        if target.is_absolute() {
            self.here = root()?;
        }
        self.put_ahead(&target);
        Ok(())
    }

    fn put_ahead(&mut self, path: &Path) {
        let names = path
            .components()
            .rev()
            .filter_map(|component| match component {
                Component::Normal(name) => Some(name.to_owned()),
                Component::ParentDir => Some("..".into()),
                _ => None,
            });
        self.ahead.extend(names);
    }
}

/// Returns whether a symbolic link is one of procfs that leads past its text.
fn is_descriptor(directory: &TrustedDir, name: &OsStr) -> io::Result<bool> {
    if rustix::fs::fstatfs(directory)?.f_type != PROC_SUPER_MAGIC {
        return Ok(false);
    }
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let no_magic = ResolveFlags::NO_MAGICLINKS;
    let opened = rustix::fs::openat2(directory, name, flags, Mode::empty(), no_magic);
    Ok(matches!(opened, Err(Errno::LOOP)))
}

fn root() -> io::Result<TrustedDir> {
    let path = PathBuf::from("/");
    let fd = rustix::fs::open(&path, STEP | OFlags::DIRECTORY, Mode::empty())?;
    check(&rustix::fs::fstat(&fd)?, &path, Writable::IfSticky)?;
    Ok(TrustedDir { fd, path })
}

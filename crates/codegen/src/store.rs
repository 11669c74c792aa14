//! Code kept on disk, so that a program is compiled once and not at each start.
//!
//! The store is a directory of files, one for each [`Digest`]. Code read from there runs in other
//! processes, so only files count that belong to this user or to root, in such a directory, and
//! that nobody else may write. A damaged file counts as missing, and is written anew.

use std::ffi::OsStr;
use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::{AtFlags, Mode, OFlags};
use serde::{Deserialize, Serialize};

use crate::code::Code;
use crate::container::{self, Kind};
use crate::digest::Digest;

/// The most bytes of all files of a store together.
const LIMIT: u64 = 64 << 20;
/// The bytes that are left when old files are removed.
const AFTERWARDS: u64 = LIMIT / 2;
/// The most bytes of a file: more than any program gives.
const MAX_FILE: u64 = 16 << 20;
/// The seconds after which a file with a dead writer is no longer in the way.
const ABANDONED: u64 = 60;
const KIND: Kind = *b"bee code";
const SUFFIX: &str = ".code";
const COMING: &str = ".coming";

/// A directory of compiled code.
#[derive(Debug)]
pub struct CodeStore {
    directory: OwnedFd,
    limit: u64,
}

/// The content of a file.
#[derive(Serialize, Deserialize)]
struct Entry {
    /// Its name, so that a renamed file counts as missing.
    name: Digest,
    code: Code,
}

impl CodeStore {
    /// Returns the directory for this user.
    ///
    /// It is `$BEELINE_CACHE`; else for root `/var/cache/beeline`, for others
    /// `$XDG_CACHE_HOME/beeline` or `~/.cache/beeline`. `None` if that is empty or there is no
    /// home.
    pub fn standard_directory() -> Option<PathBuf> {
        let absolute = |name: &str| {
            let value = PathBuf::from(std::env::var_os(name)?);
            value.is_absolute().then_some(value)
        };
        if let Some(chosen) = std::env::var_os("BEELINE_CACHE") {
            return (!chosen.is_empty()).then(|| chosen.into());
        }
        if rustix::process::geteuid().is_root() {
            return Some("/var/cache/beeline".into());
        }
        let caches = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")));
        Some(caches?.join("beeline"))
    }

    /// Opens a directory, which is made if it is not there.
    ///
    /// # Errors
    /// The system's own; `PermissionDenied` for a directory that belongs to another user, or that
    /// others may write.
    pub fn open(directory: &Path) -> io::Result<Self> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::open(directory, flags, Mode::empty())?);
        check_ours(&file)?;
        Ok(Self {
            directory: file.into(),
            limit: LIMIT,
        })
    }

    /// Sets another limit for the bytes of all files together.
    pub fn limited_to(self, limit: u64) -> Self {
        Self { limit, ..self }
    }

    /// Returns the code of that name, if it is here whole.
    pub fn get(&self, name: &Digest) -> Option<Code> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.directory, file_name(name), flags, Mode::empty());
        let file = File::from(file.ok()?);
        check_ours(&file).ok()?;
        if !file.metadata().ok()?.is_file() {
            return None;
        }
        let mut bytes = Vec::new();
        file.take(MAX_FILE).read_to_end(&mut bytes).ok()?;
        let entry: Entry = container::unseal(KIND, &bytes).ok()?;
        (entry.name == *name).then_some(entry.code)
    }

    /// Keeps code under a name.
    ///
    /// It is stored whole or not at all, even if this process is killed.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::FileTooLarge`] for more than may be kept, and the system's own.
    pub fn put(&self, name: &Digest, code: &Code) -> io::Result<()> {
        let entry = Entry {
            name: *name,
            code: code.clone(),
        };
        let bytes = container::seal(KIND, &entry);
        if bytes.len() as u64 > MAX_FILE.min(self.limit) {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.make_room(bytes.len() as u64)?;
        let coming = format!("{}-{}{COMING}", std::process::id(), unique());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = rustix::fs::openat(&self.directory, &coming, flags, mode)?;
        let written = File::from(file).write_all(&bytes).and_then(|()| {
            let here = self.directory.as_fd();
            Ok(rustix::fs::renameat(here, &coming, here, file_name(name))?)
        });
        written.inspect_err(|_| self.remove(OsStr::new(&coming)))
    }

    /// Removes the oldest files if there would be too much.
    fn make_room(&self, bytes: u64) -> io::Result<()> {
        let mut files = self.files()?;
        let mut total: u64 = bytes + files.iter().map(|file| file.bytes).sum::<u64>();
        if total <= self.limit {
            return Ok(());
        }
        files.sort_unstable_by_key(|file| file.changed);
        for file in files {
            if total <= AFTERWARDS.min(self.limit / 2).max(bytes) {
                break;
            }
            self.remove(&file.name);
            total = total.saturating_sub(file.bytes);
        }
        Ok(())
    }

    /// Returns the files of the store, except for those that are being written.
    fn files(&self) -> io::Result<Vec<Listed>> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now = now.map_or(0, |now| now.as_secs());
        let mut found = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.directory)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            let is_kept = name.as_bytes().ends_with(SUFFIX.as_bytes());
            let is_coming = name.as_bytes().ends_with(COMING.as_bytes());
            let facts = rustix::fs::statat(&self.directory, name, AtFlags::SYMLINK_NOFOLLOW);
            let Ok(facts) = facts else { continue };
            if !is_kept && !is_coming {
                continue;
            }
            let seconds = facts.st_mtime as u64;
            if is_coming && seconds + ABANDONED < now {
                self.remove(name);
            } else if is_kept {
                found.push(Listed {
                    name: name.to_owned(),
                    bytes: facts.st_size as u64,
                    changed: (seconds, facts.st_mtime_nsec),
                });
            }
        }
        Ok(found)
    }

    /// Removes a file. Another process may have been quicker.
    fn remove(&self, name: &OsStr) {
        let _ = rustix::fs::unlinkat(&self.directory, name, AtFlags::empty());
    }
}

struct Listed {
    name: std::ffi::OsString,
    bytes: u64,
    /// The time of the change in seconds and nanoseconds.
    changed: (u64, u64),
}

fn file_name(name: &Digest) -> String {
    format!("{name}{SUFFIX}")
}

/// Checks that a file belongs to us or to root, and that nobody else may write it.
fn check_ours(file: &File) -> io::Result<()> {
    let facts = file.metadata()?;
    let is_trusted = facts.uid() == 0 || facts.uid() == rustix::process::geteuid().as_raw();
    if is_trusted && facts.mode() & 0o022 == 0 {
        Ok(())
    } else {
        Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "somebody else can write it",
        ))
    }
}

/// Returns a number that differs for each call in this process.
fn unique() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Relaxed)
}

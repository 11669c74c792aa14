//! Code kept on disk, so that a program is compiled once and not at each start.
//!
//! The store is a directory of files, one for each [`Digest`]. Code read from there runs in other
//! processes, so it is as dangerous as a program. Only files count that belong to this user or to
//! root, in such a directory, and that nobody else may write; both are looked at when they are open.
//! A damaged file counts as missing, and is written anew.
//!
//! The files are not signed. A key would have to be kept from whoever can write files as this user,
//! and those can run programs as this user anyway.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use beeline_trusted_dir::{Distrust, TrustedDir, check_file, report_once};
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
    directory: TrustedDir,
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
    /// Returns the directory for this user, with no symbolic links in its path; it is made if it is
    /// not there.
    ///
    /// It is `$BEELINE_CACHE`; else for root `/var/cache/beeline`, for others
    /// `$XDG_CACHE_HOME/beeline` or `~/.cache/beeline`. `None` if that is empty or there is no
    /// home, and if the directory cannot be used. If another user could change what is there, the
    /// user is told.
    pub fn standard_directory() -> Option<PathBuf> {
        let store = Self::standard()?.ok()?;
        Some(store.directory.path().to_owned())
    }

    /// Opens the directory for this user, as [`Self::standard_directory`] finds it.
    ///
    /// The error is that of [`Self::open`].
    pub fn standard() -> Option<io::Result<Self>> {
        let store = Self::open(&named_directory()?);
        if let Err(error) = &store
            && let Some(distrust) = Distrust::of(error)
        {
            report_once(&format!(
                "compiled code is not kept: {distrust} (by BEELINE_CACHE)"
            ));
        }
        Some(store)
    }

    /// Opens a directory, which is made if it is not there.
    ///
    /// # Errors
    /// The system's own, with the path; [`Distrust`] for a directory that another user could change
    /// or swap.
    pub fn open(directory: &Path) -> io::Result<Self> {
        let named = |error: io::Error| match Distrust::of(&error) {
            Some(_) => error,
            None => io::Error::new(error.kind(), format!("{}: {error}", directory.display())),
        };
        Ok(Self {
            directory: TrustedDir::create(directory).map_err(named)?,
            limit: LIMIT,
        })
    }

    /// Sets another limit for the bytes of all files together.
    pub fn limited_to(self, limit: u64) -> Self {
        Self { limit, ..self }
    }

    /// Returns the code of that name, if it is here whole.
    pub fn get(&self, name: &Digest) -> Option<Code> {
        self.directory.check_own().ok()?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let name_here = file_name(name);
        let file = rustix::fs::openat(&self.directory, &name_here, flags, Mode::empty());
        let file = File::from(file.ok()?);
        check_file(&file, Path::new(&name_here)).ok()?;
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
    /// [`io::ErrorKind::FileTooLarge`] for more than may be kept, [`Distrust`] if others may write
    /// the directory by now, and the system's own.
    pub fn put(&self, name: &Digest, code: &Code) -> io::Result<()> {
        self.directory.check_own()?;
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
            let here = &self.directory;
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

/// Returns the directory that this user's code is to be kept in, wherever its path leads. `None` if
/// there is none, or none is wanted.
pub fn named_directory() -> Option<PathBuf> {
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

/// Returns a number that differs for each call in this process.
fn unique() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Relaxed)
}

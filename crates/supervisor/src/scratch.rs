//! Directories of a session's own, which hold the files that the tool sees in place of the
//! machine's file systems.
//!
//! A directory is made where no other user can swap it, and everything is done relative to its
//! descriptor. It is locked while its session lives. A later session recognises the directory of a
//! killed one by the missing lock, and removes it.

mod removal;

use std::fmt::Write;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use beeline_trusted_dir::{Distrust, TrustedDir, report_once};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::rand::GetRandomFlags;

const NO_PLACE: &str = "there is no writable directory for scratch files: the tool finds no files in \
    /sys/fs/bpf, and no tracepoints where tracefs cannot be read; make /dev/shm or /tmp writable, or name a \
    directory in TMPDIR";

/// A directory. Dropping it removes it with all its contents.
pub struct Scratch {
    /// The directory, open.
    pub root: OwnedFd,
    /// Its path, which has no symbolic links.
    pub path: PathBuf,
    place: TrustedDir,
    name: String,
}

impl Scratch {
    /// Creates a directory with this name prefix, in memory where possible.
    ///
    /// Returns `None` if there is no place where this user may write and no other user can swap
    /// what is there. The user is told, also of a place that is refused for that.
    pub fn new(prefix: &str) -> Option<Self> {
        let made = places().find_map(|(place, variable)| {
            let place = match open_place(&place, variable) {
                Ok(place) => place,
                Err(Unusable::Distrusted(line)) => {
                    report_once(&line);
                    return None;
                }
                Err(Unusable::Absent(_)) => return None,
            };
            remove_abandoned(&place, prefix);
            // Until the directory is locked, another session that is just looking may take it for
            // abandoned.
            const TRIES: usize = 8;
            (0..TRIES).find_map(|_| Self::make(&place, prefix))
        });
        if made.is_none() {
            report_once(NO_PLACE);
        }
        made
    }

    /// Makes a directory in each place where [`Self::new`] looks, and removes it again. Returns the
    /// places, the best ones first, each with the reason if it cannot be used.
    pub fn survey(prefix: &str) -> Vec<(PathBuf, Result<(), String>)> {
        let attempt = |(path, variable): (PathBuf, Option<&'static str>)| {
            let usable = match open_place(&path, variable) {
                Ok(place) => Self::make(&place, prefix)
                    .map(drop)
                    .ok_or_else(|| format!("no directory can be made in {}", path.display())),
                Err(Unusable::Distrusted(line)) => Err(line),
                Err(Unusable::Absent(error)) => Err(format!("{}: {error}", path.display())),
            };
            (path, usable)
        };
        places().map(attempt).collect()
    }

    fn make(place: &TrustedDir, prefix: &str) -> Option<Self> {
        let name = fresh_name(prefix)?;
        rustix::fs::mkdirat(place, &name, Mode::RWXU).ok()?;
        let root = lock_directory(place, &name)?;
        Some(Self {
            root,
            path: place.path().join(&name),
            place: place.try_clone().ok()?,
            name,
        })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // On failure, only empty files stay, in a directory of the user's own.
        let _ = removal::remove(&self.place, &self.name, &self.root);
    }
}

/// Returns the places where a directory may be made, the best ones first, with the variables that
/// name them.
fn places() -> impl Iterator<Item = (PathBuf, Option<&'static str>)> {
    let named = |variable: &'static str| {
        let path = PathBuf::from(std::env::var_os(variable)?);
        path.is_absolute().then_some((path, Some(variable)))
    };
    let is_root = rustix::process::geteuid().is_root();
    let usual = |path: &str| Some((PathBuf::from(path), None));
    let places = [
        named("XDG_RUNTIME_DIR"),
        usual("/dev/shm"),
        named("TMPDIR"),
        usual("/tmp"),
        is_root.then(|| usual("/run")).flatten(),
    ];
    places.into_iter().flatten()
}

/// The reason why a place is not used.
enum Unusable {
    /// Another user can change what is there: a line for the user.
    Distrusted(String),
    /// It cannot be opened.
    Absent(io::Error),
}

/// Opens a place, unless another user can change what is there.
fn open_place(path: &Path, variable: Option<&str>) -> Result<TrustedDir, Unusable> {
    TrustedDir::open_shared(path).map_err(|error| {
        let Some(distrust) = Distrust::of(&error) else {
            return Unusable::Absent(error);
        };
        let mut line = format!(
            "scratch files are not put into {}: {distrust}",
            path.display()
        );
        if let Some(variable) = variable {
            // Writing to a string cannot fail.
            let _ = write!(line, " (by {variable}, or unset it)");
        }
        Unusable::Distrusted(line)
    })
}

/// Returns a name that nobody can foresee.
fn fresh_name(prefix: &str) -> Option<String> {
    let mut random = [0; 8];
    rustix::rand::getrandom(&mut random[..], GetRandomFlags::empty()).ok()?;
    Some(format!("{prefix}{:016x}", u64::from_ne_bytes(random)))
}

/// Opens a directory and locks it for the session; `None` if another session has it, or if it is
/// not a directory of this user's.
fn lock_directory(place: &TrustedDir, name: &str) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = rustix::fs::openat(place, name, flags, Mode::empty()).ok()?;
    let owner = rustix::fs::fstat(&directory).ok()?.st_uid;
    if owner != rustix::process::geteuid().as_raw() {
        return None;
    }
    rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive).ok()?;
    let there = rustix::fs::fstat(&directory).is_ok_and(|stat| stat.st_nlink > 0);
    there.then_some(directory)
}

/// Removes directories that killed sessions have left.
fn remove_abandoned(place: &TrustedDir, prefix: &str) {
    let Ok(entries) = rustix::fs::Dir::read_from(place) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Ok(name) = name.to_str() else { continue };
        if name.starts_with(prefix)
            && let Some(lock) = lock_directory(place, name)
        {
            // Nothing uses it; if it stays, a later session tries again.
            let _ = removal::remove(place, name, &lock);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const NAME: &str = "beeline-test-scratch-";

    #[test]
    fn a_killed_sessions_scratch_files_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let open = |name: &str| {
            let path = folder.path().join(name);
            std::fs::create_dir(&path).unwrap();
            TrustedDir::open_shared(&path).unwrap()
        };
        let (place, other) = (open("place"), open("other"));
        let living = Scratch::make(&place, NAME).unwrap();
        let leave = |place: &TrustedDir| {
            let path = place.path().join(fresh_name(NAME).unwrap());
            std::fs::create_dir_all(path.join("deep/er")).unwrap();
            std::fs::write(path.join("deep/pin"), "").unwrap();
            path
        };
        let (abandoned, elsewhere) = (leave(&place), leave(&other));
        symlink(&elsewhere, abandoned.join("deep/link")).unwrap();
        symlink(&elsewhere, place.path().join(format!("{NAME}link"))).unwrap();
        remove_abandoned(&place, NAME);
        assert!(living.path.exists() && elsewhere.join("deep/pin").exists());
        assert!(!abandoned.exists());
        let path = living.path.clone();
        std::fs::create_dir(path.join("d")).unwrap();
        drop(living);
        assert!(!path.exists());
    }

    #[test]
    fn a_directory_that_was_put_in_its_place_stays() {
        let folder = tempfile::tempdir().unwrap();
        let place = TrustedDir::open_shared(folder.path()).unwrap();
        let scratch = Scratch::make(&place, NAME).unwrap();
        let path = scratch.path.clone();
        std::fs::rename(&path, folder.path().join("away")).unwrap();
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join("file"), "").unwrap();
        drop(scratch);
        assert!(path.join("file").exists());
    }
}

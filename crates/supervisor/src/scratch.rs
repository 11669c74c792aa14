//! Directories of a session's own, which hold the files that the tool sees in place of the
//! machine's file systems.
//!
//! A directory is locked while its session lives. A later session recognises the directory of a
//! killed one by the missing lock, and removes it.

use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags};

/// A directory. Dropping it removes it with all its contents.
pub struct Scratch {
    /// The directory, open.
    pub root: OwnedFd,
    /// Its path.
    pub path: PathBuf,
}

impl Scratch {
    /// Creates a directory with this name prefix, in memory where possible.
    ///
    /// Returns `None` if there is no place where the user may write.
    pub fn new(name: &str) -> Option<Self> {
        let runtime_directory = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let places = [
            runtime_directory.filter(|path| path.is_absolute()),
            Some("/dev/shm".into()),
            Some(std::env::temp_dir()),
        ];
        places.into_iter().flatten().find_map(|place| {
            remove_abandoned(&place, name);
            // Until the directory is locked, another session that is just looking may take it for
            // abandoned.
            const TRIES: usize = 8;
            (0..TRIES).find_map(|_| {
                let path = fresh_directory(&place, name)?;
                let root = lock_directory(&path)?;
                Some(Self { root, path })
            })
        })
    }
}

/// Opens the directory and locks it for the session; `None` if another session has it, or if it is
/// not a directory of this user's.
fn lock_directory(path: &Path) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = rustix::fs::open(path, flags, Mode::empty()).ok()?;
    let is_own = |directory| {
        let stat = rustix::fs::fstat(directory);
        stat.is_ok_and(|stat| stat.st_uid == rustix::process::geteuid().as_raw())
    };
    if !is_own(&directory) {
        return None;
    }
    rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive).ok()?;
    let there = rustix::fs::fstat(&directory).is_ok_and(|stat| stat.st_nlink > 0);
    there.then_some(directory)
}

/// Removes directories that killed sessions have left.
fn remove_abandoned(place: &Path, name: &str) {
    let Ok(entries) = std::fs::read_dir(place) else {
        return;
    };
    for entry in entries.flatten() {
        if entry.file_name().as_bytes().starts_with(name.as_bytes()) {
            let path = entry.path();
            if let Some(_lock) = lock_directory(&path) {
                // Nothing uses it; if it stays, a later session tries again.
                let _ = std::fs::remove_dir_all(&path);
            }
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // On failure, only empty files stay, in a directory of the user's own.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// Creates a directory with a name that did not exist, for this user only.
fn fresh_directory(place: &Path, name: &str) -> Option<PathBuf> {
    let mut template = place
        .join(format!("{name}XXXXXX"))
        .into_os_string()
        .into_vec();
    template.push(0);
    // SAFETY: `template` is a path that ends in a NUL, which the call changes in place.
    if unsafe { libc::mkdtemp(template.as_mut_ptr().cast()) }.is_null() {
        return None;
    }
    template.pop();
    Some(PathBuf::from(std::ffi::OsString::from_vec(template)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "beeline-test-scratch-";

    #[test]
    fn a_killed_sessions_scratch_files_are_removed() {
        let scratch = std::env::temp_dir().join(format!("beeline-test-{}", std::process::id()));
        let place = scratch.join("place");
        std::fs::create_dir_all(&place).unwrap();
        let living = fresh_directory(&place, NAME).unwrap();
        let _lock = lock_directory(&living).unwrap();
        let abandoned = fresh_directory(&place, NAME).unwrap();
        std::fs::write(abandoned.join("pin"), "").unwrap();
        let elsewhere = fresh_directory(&scratch, NAME).unwrap();
        std::os::unix::fs::symlink(&elsewhere, place.join(format!("{NAME}link"))).unwrap();
        remove_abandoned(&place, NAME);
        assert!(living.exists() && elsewhere.exists());
        assert!(!abandoned.exists());
        std::fs::remove_dir_all(&scratch).unwrap();
    }
}

//! The session's own BPF file system, which the tool finds at `/sys/fs/bpf`.
//!
//! The tool finds it whether or not the machine has a BPF file system there, and whatever is in
//! that one. It starts empty and ends with the session; objects pinned in it end with it.
//!
//! It is a directory of the user's, private to the session, in which a pinned object is an empty
//! file. When a system call names a path under `/sys/fs/bpf`, the supervisor makes the same call on
//! that directory (`calls`). This includes paths relative to a directory there that the tool has
//! opened, because that descriptor is of the real directory.

mod calls;
mod pin;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};

use parking_lot::{Mutex, MutexGuard};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags, ResolveFlags};

use beeline_uapi::Errno;

use crate::call::Call;
use crate::scratch::Scratch;

/// The path at which the tool sees it.
const MOUNT: &str = "/sys/fs/bpf";
/// The prefix of the directories' names.
const NAME: &str = "beeline-bpffs-";

const EPERM: Errno = Errno(libc::EPERM);
const EEXIST: Errno = Errno(libc::EEXIST);
const EACCES: Errno = Errno(libc::EACCES);

/// The owner of a session's BPF file system.
pub trait HasBpfFs {
    /// A pinned object, with all that keeps it alive.
    type Pinned: Clone;

    /// Returns its file system.
    fn bpffs(&self) -> &BpfFs<Self::Pinned>;

    /// Returns the object behind a thread's descriptor, if its kind can be pinned.
    fn to_be_pinned(&self, tid: i32, fd: i32) -> Option<Self::Pinned>;
}

/// A system call that may name something in the file system.
pub struct BpfFsCall<'a, D> {
    owner: &'a D,
    call: &'a Call<'a>,
}

impl<'a, D: HasBpfFs> BpfFsCall<'a, D> {
    /// Pairs a call with the owner of such a file system.
    pub fn new(owner: &'a D, call: &'a Call<'a>) -> Self {
        Self { owner, call }
    }
}

impl<'a, D> std::ops::Deref for BpfFsCall<'a, D> {
    type Target = Call<'a>;

    fn deref(&self) -> &Call<'a> {
        self.call
    }
}

/// The file system, for objects of type `P`. It is created on first use.
pub struct BpfFs<P> {
    tree: OnceLock<Option<Scratch>>,
    /// The pinned objects by inode.
    pins: Mutex<HashMap<u64, Pin<P>>>,
    /// See [`BpfFs::is_used`].
    is_used: AtomicBool,
}

/// An object and its file. The file shows whether the object still has a name.
struct Pin<P> {
    object: P,
    file: OwnedFd,
}

impl<P> Default for BpfFs<P> {
    fn default() -> Self {
        Self {
            tree: OnceLock::new(),
            pins: Mutex::default(),
            is_used: AtomicBool::new(false),
        }
    }
}

/// A path in the file system: its directory and its last name. The root's own name is `.`.
pub struct Place {
    /// The directory.
    pub directory: OwnedFd,
    /// The last name.
    pub name: PathBuf,
}

impl<P: Clone> BpfFs<P> {
    /// True once a path may lead into it that does not show that: something has a name in it, or a
    /// process is in one of its directories or has opened one.
    pub fn is_used(&self) -> bool {
        self.is_used.load(Acquire)
    }

    fn note_use(&self) {
        self.is_used.store(true, Release);
    }

    /// Notes that a process begins in this directory.
    pub fn enter(&self, directory: &Path) {
        if self.inside(directory.as_os_str().as_bytes()).is_some() {
            self.note_use();
        }
    }

    /// Returns the path below the root, if an absolute path of the tool's leads into this file
    /// system.
    pub fn inside(&self, path: &[u8]) -> Option<PathBuf> {
        let path = lexically_normal(Path::new(OsStr::from_bytes(path)));
        let own = self.tree.get().and_then(Option::as_ref);
        path.strip_prefix(MOUNT)
            .or_else(|error| own.map_or(Err(error), |tree| path.strip_prefix(&tree.path)))
            .ok()
            .map(Path::to_owned)
    }

    /// Finds the directory of a path below the root.
    ///
    /// # Errors
    /// EPERM for names with a dot: like the kernel, it keeps those for itself.
    pub fn place(&self, inside: &Path) -> Result<Place, Errno> {
        let tree = self
            .tree
            .get_or_init(|| Scratch::new(NAME))
            .as_ref()
            .ok_or(EACCES)?;
        if inside.as_os_str().as_bytes().contains(&b'.') {
            return Err(EPERM);
        }
        let open = |path: &Path| {
            let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            rustix::fs::openat2(&tree.root, path, flags, Mode::empty(), resolve).map_err(errno)
        };
        let here = Path::new(".");
        match (inside.parent(), inside.file_name()) {
            (Some(parent), Some(name)) => Ok(Place {
                directory: open(if parent.as_os_str().is_empty() {
                    here
                } else {
                    parent
                })?,
                name: name.into(),
            }),
            _ => Ok(Place {
                directory: open(here)?,
                name: here.into(),
            }),
        }
    }

    /// Gives an object a name.
    ///
    /// # Errors
    /// EEXIST if the name is taken.
    pub fn pin(&self, inside: &Path, object: P) -> Result<(), Errno> {
        let place = self.place(inside)?;
        if place.name == Path::new(".") {
            return Err(EEXIST);
        }
        let mut pins = self.pins();
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDONLY | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = rustix::fs::openat(&place.directory, &place.name, flags, mode).map_err(errno)?;
        let inode = rustix::fs::fstat(&file).map_err(errno)?.st_ino;
        pins.insert(inode, Pin { object, file });
        self.note_use();
        Ok(())
    }

    /// Returns the object with a name.
    ///
    /// # Errors
    /// EACCES if the name is a directory's.
    pub fn get(&self, inside: &Path) -> Result<P, Errno> {
        let place = self.place(inside)?;
        let stat = rustix::fs::statat(&place.directory, &place.name, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(errno)?;
        let pins = self.pins();
        let pin = pins.get(&stat.st_ino).ok_or(EACCES)?;
        Ok(pin.object.clone())
    }

    /// Removes a name and drops the object.
    ///
    /// # Errors
    ///
    /// Those of [`Self::place`], and the kernel's of unlinkat(2).
    pub fn unlink(&self, inside: &Path, flags: AtFlags) -> Result<(), Errno> {
        let place = self.place(inside)?;
        rustix::fs::unlinkat(&place.directory, &place.name, flags).map_err(errno)?;
        self.forget_unnamed();
        Ok(())
    }

    /// Carries out `renameat2` within the file system.
    ///
    /// # Errors
    ///
    /// Those of [`Self::place`], and the kernel's of renameat2(2).
    pub fn rename(&self, from: &Path, to: &Path, flags: RenameFlags) -> Result<(), Errno> {
        let (from, to) = (self.place(from)?, self.place(to)?);
        rustix::fs::renameat_with(&from.directory, &from.name, &to.directory, &to.name, flags)
            .map_err(errno)?;
        self.forget_unnamed();
        Ok(())
    }

    /// Opens a directory.
    ///
    /// # Errors
    /// EIO for pinned objects, which cannot be read, as in the kernel.
    pub fn open(&self, inside: &Path, flags: u64) -> Result<OwnedFd, Errno> {
        let place = self.place(inside)?;
        let kept = libc::O_DIRECTORY | libc::O_PATH | libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let found = rustix::fs::statat(&place.directory, &place.name, AtFlags::SYMLINK_NOFOLLOW);
        let writes = flags & libc::O_ACCMODE as u64 != libc::O_RDONLY as u64;
        match found.map(|stat| FileType::from_raw_mode(stat.st_mode)) {
            Err(rustix::io::Errno::NOENT) if flags & libc::O_CREAT as u64 != 0 => Err(EACCES),
            Err(error) => Err(errno(error)),
            Ok(FileType::Directory) if writes => Err(Errno(libc::EISDIR)),
            Ok(kind) if kind != FileType::Directory && flags & libc::O_PATH as u64 == 0 => {
                Err(Errno(libc::EIO))
            }
            Ok(_) => {
                self.note_use();
                let flags = OFlags::from_bits_retain(flags as u32 & kept as u32) | OFlags::CLOEXEC;
                rustix::fs::openat(&place.directory, &place.name, flags, Mode::empty())
                    .map_err(errno)
            }
        }
    }

    /// Returns the objects that have a name.
    pub fn pinned(&self) -> Vec<P> {
        self.forget_unnamed();
        self.pins().values().map(|pin| pin.object.clone()).collect()
    }

    /// Drops all pins and returns the objects.
    pub fn clear(&self) -> Vec<P> {
        let pins = std::mem::take(&mut *self.pins());
        pins.into_values().map(|pin| pin.object).collect()
    }

    /// Drops objects that no longer have a name: the last one was removed by `unlink` here, or
    /// relative to a directory that the tool has opened.
    fn forget_unnamed(&self) {
        let mut gone = Vec::new();
        self.pins().retain(|_, pin| {
            let named = rustix::fs::fstat(&pin.file).is_ok_and(|stat| stat.st_nlink > 0);
            if !named {
                gone.push(pin.object.clone());
            }
            named
        });
        // Dropped outside the lock, because detaching takes time.
        drop(gone);
    }

    /// Locks the pins. Each change is a single step, so the map is consistent whenever the lock is
    /// free.
    fn pins(&self) -> MutexGuard<'_, HashMap<u64, Pin<P>>> {
        self.pins.lock()
    }
}

/// Returns the path without `.`, `..` and doubled slashes.
pub fn lexically_normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                normal.pop();
            }
            other => normal.push(other),
        }
    }
    normal
}

pub(crate) fn errno(error: rustix::io::Errno) -> Errno {
    Errno(error.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lead_inside_or_not() {
        let fs = BpfFs::<()>::default();
        let inside = |path: &str| fs.inside(path.as_bytes());
        assert_eq!(inside("/sys/fs/bpf"), Some(PathBuf::new()));
        assert_eq!(inside("/sys/fs//bpf/./a/b/"), Some("a/b".into()));
        assert_eq!(inside("/sys/fs/cgroup/../bpf/a"), Some("a".into()));
        assert_eq!(inside("/sys/fs/bpf/../x"), None);
        assert_eq!(inside("/sys/fs/bpfx"), None);
        assert_eq!(inside("sys/fs/bpf"), None);
    }

    #[test]
    fn the_tree_goes_with_the_session() {
        let fs = BpfFs::<()>::default();
        assert!(fs.get(Path::new("none")).is_err());
        let path = fs.tree.get().unwrap().as_ref().unwrap().path.clone();
        assert!(path.is_dir());
        drop(fs);
        assert!(!path.exists());
    }

    #[test]
    fn directories_are_made_listed_and_removed() {
        let fs = BpfFs::<()>::default();
        let place = fs.place(Path::new("d")).unwrap();
        rustix::fs::mkdirat(&place.directory, &place.name, Mode::RWXU).unwrap();
        assert!(fs.open(Path::new("d"), libc::O_DIRECTORY as u64).is_ok());
        assert_eq!(fs.open(Path::new("e"), 0).err(), Some(Errno(libc::ENOENT)));
        let create = libc::O_CREAT as u64;
        assert_eq!(fs.open(Path::new("e"), create).err(), Some(EACCES));
        assert_eq!(fs.place(Path::new("a.b")).err(), Some(EPERM));
        assert_eq!(fs.get(Path::new("d")).err(), Some(EACCES));
        assert_eq!(fs.unlink(Path::new("d"), AtFlags::REMOVEDIR), Ok(()));
        assert_eq!(fs.get(Path::new("d")).err(), Some(Errno(libc::ENOENT)));
    }
}

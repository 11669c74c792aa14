//! A Unix socket that is looked at before anybody connects to it.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, Stat, fstat, open};
use rustix::net::sockopt::socket_peercred;

use crate::channel::connect_unix;

/// A Unix socket of the file system. It is neither opened nor connected to, and stays the same one
/// whatever takes its place: so its owner can be checked first.
#[derive(Debug)]
pub struct HeldSocket {
    place: OwnedFd,
    stat: Stat,
}

impl HeldSocket {
    /// Holds the socket at a path. Symbolic links are followed.
    ///
    /// # Errors
    ///
    /// The system's, such as `NotFound`; `InvalidInput` if that is no socket, which is left alone.
    pub fn at(path: &Path) -> io::Result<Self> {
        let place = open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        let stat = fstat(&place)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
            let why = "it is no socket";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        Ok(Self { place, stat })
    }

    /// Returns the user that the socket belongs to.
    pub fn owner(&self) -> u32 {
        self.stat.st_uid
    }

    /// Returns the numbers of its device and inode.
    pub fn node(&self) -> (u64, u64) {
        (self.stat.st_dev, self.stat.st_ino)
    }

    /// Connects to it, if the process that listens does so for a user that may. Nothing is sent.
    pub(crate) fn connect(&self, may_listen: impl FnOnce(u32) -> bool) -> io::Result<OwnedFd> {
        let path = format!("/proc/self/fd/{}", self.place.as_raw_fd());
        let fd = connect_unix(Path::new(&path))?;
        let user = socket_peercred(&fd)?.uid.as_raw();
        if !may_listen(user) {
            let why = format!(
                "user {user} listens there, and the socket is user {}'s",
                self.owner()
            );
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        Ok(fd)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::fs::{MetadataExt, symlink};
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_socket_is_the_one_that_was_looked_at() {
        let dir = tempfile::tempdir().unwrap();
        let (path, link) = (dir.path().join("socket"), dir.path().join("link"));
        let listener = UnixListener::bind(&path).unwrap();
        symlink(&path, &link).unwrap();
        let held = HeldSocket::at(&link).unwrap();
        let facts = std::fs::metadata(&path).unwrap();
        assert_eq!(held.owner(), facts.uid());
        assert_eq!(held.node(), (facts.dev(), facts.ino()));
        // Another one in its place is not connected to.
        std::fs::rename(&path, dir.path().join("moved")).unwrap();
        let other = UnixListener::bind(&path).unwrap();
        other.set_nonblocking(true).unwrap();
        let connected = held.connect(|user| user == facts.uid()).unwrap();
        let (mut served, _) = listener.accept().unwrap();
        drop(connected);
        assert_eq!(served.read(&mut [0]).unwrap(), 0);
        assert!(other.accept().is_err());
        let refused = held.connect(|_| false).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn nothing_but_a_socket_is_held() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let missing = HeldSocket::at(&path).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        std::fs::write(&path, "content").unwrap();
        for path in [path.as_path(), dir.path(), Path::new("/dev/null")] {
            let refused = HeldSocket::at(path).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput, "{path:?}");
        }
    }
}

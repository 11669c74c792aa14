//! The session that something belongs to, and whether that session's Beeline still runs.
//!
//! The process's number tells neither: it is reused, and names another process in another pid
//! namespace. So the name of whatever a session maps also contains the time of the session's start,
//! and while the session runs it holds a lock on the file of its session page. The kernel removes
//! the lock when the process dies, however it dies (a zombie holds none), and lists it for all
//! processes.

use std::fmt::{Display, Formatter};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::OnceLock;

use beeline_inject::Region;
use rustix::fs::makedev;

use crate::memory::Memory;
use crate::proc::{self, Stat, start_time};

/// The prefix of memory file names in `/proc/PID/maps`.
pub const PREFIX: &str = "/memfd:beeline-";

/// The identity of a session, unique to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SessionId {
    /// Its process, by the number that the process sees itself.
    pub pid: i32,
    /// Start time of the process in clock ticks since boot.
    pub start: u64,
}

impl SessionId {
    /// Returns this process's.
    pub fn own() -> Self {
        static OWN: OnceLock<SessionId> = OnceLock::new();
        *OWN.get_or_init(|| {
            let pid = std::process::id() as i32;
            let start = start_time(pid).unwrap_or(0);
            Self { pid, start }
        })
    }

    /// Returns the name of a memory file of this session.
    pub fn name(self, kind: &str) -> String {
        format!("{}-{}-{kind}", self.pid, self.start)
    }

    /// Returns the session that a mapping belongs to.
    pub fn of(region: &Region) -> Option<Self> {
        let name = region.path.to_str()?.strip_prefix(PREFIX)?;
        let mut parts = name.splitn(3, '-');
        let (pid, start) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        parts.next().map(|_| Self { pid, start })
    }

    /// True if its Beeline is still running. `page` is where its session page is mapped.
    ///
    /// Something of a session without a page is only seen if Beeline was killed, or holds the
    /// process at the moment: it maps the page together with the first pool, and unmaps it last of
    /// all but that pool.
    pub fn is_alive(self, page: Option<&Region>) -> bool {
        // Where locks cannot be looked at, no session counts as dead.
        let is_locked = |page: &Region| is_locked(page).unwrap_or(true);
        self.is_running() || page.is_some_and(is_locked)
    }

    /// True if it is a process of Beeline's own pid namespace that has not ended.
    fn is_running(self) -> bool {
        let stat = Stat::of(self.pid).filter(|stat| !stat.has_ended());
        stat.is_some_and(|stat| stat.start_time() == Some(self.start))
    }
}

impl Display for SessionId {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> std::fmt::Result {
        self.pid.fmt(formatter)
    }
}

/// A session's sign of life, for as long as its process runs.
#[derive(Debug)]
pub struct Liveness {
    /// Nothing else has it, nor does any mapping: the lock ends with the last of those.
    _lock: OwnedFd,
}

impl Liveness {
    /// Locks the session page's file.
    ///
    /// It locks the open file, not the process as `flock` would: only a lock of the open file is
    /// listed in every pid namespace.
    ///
    /// # Errors
    ///
    /// Those of [`Memory::reopen`], and of `fcntl(2)` with `F_OFD_SETLK`.
    pub fn begin(session: &Memory) -> io::Result<Self> {
        let file = session.reopen()?;
        let whole = libc::flock {
            l_type: libc::F_WRLCK as i16,
            l_whence: libc::SEEK_SET as i16,
            l_start: 0,
            l_len: 0,
            l_pid: 0,
        };
        // SAFETY: the descriptor is open, and the kernel only reads the structure.
        let outcome = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const whole) };
        match outcome {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(Self { _lock: file }),
        }
    }
}

/// The number of times that the list of locks is read. It is read in pieces, and when a lock goes
/// meanwhile, those behind it move forward, so that one may be missed.
const LOOKS: usize = 3;

/// Returns whether a process holds such a lock on the file that is mapped there. `None` if the
/// kernel does not show its locks.
fn is_locked(mapped: &Region) -> Option<bool> {
    for _ in 0..LOOKS {
        let locks = proc::text("/proc/locks").ok()?;
        if locks
            .lines()
            .filter_map(locked_file)
            .any(|(device, inode)| device == mapped.device && inode == mapped.inode)
        {
            return Some(true);
        }
    }
    Some(false)
}

/// Returns the device and inode of the file that a line of `/proc/locks` is of, if the lock is an
/// open file's: `1: OFDLCK ADVISORY WRITE -1 00:01:2055 0 EOF`.
fn locked_file(line: &str) -> Option<(u64, u64)> {
    let mut fields = line.split_whitespace().skip(1);
    fields.next().filter(|kind| *kind == "OFDLCK")?;
    let mut file = fields.nth(3)?.split(':');
    let mut hex = || u32::from_str_radix(file.next()?, 16).ok();
    let device = makedev(hex()?, hex()?);
    Some((device, file.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn region(path: &str) -> Region {
        Region {
            start: 0,
            end: 4096,
            permissions: Default::default(),
            offset: 0,
            device: 0,
            inode: 0,
            path: PathBuf::from(path),
        }
    }

    #[test]
    fn a_mapping_names_its_session() {
        let session = SessionId { pid: 12, start: 34 };
        let path = format!("/memfd:beeline-{} (deleted)", session.name("map-a-b"));
        assert_eq!(SessionId::of(&region(&path)), Some(session));
        for other in [
            "12-trampolines",
            "-12-34-trampolines",
            "12-34",
            "12-x-trampolines",
            "guest",
        ] {
            let path = format!("/memfd:beeline-{other}");
            assert_eq!(SessionId::of(&region(&path)), None, "{other}");
        }
    }

    #[test]
    fn a_process_of_the_same_number_is_not_the_session() {
        let own = SessionId::own();
        assert!(own.is_alive(None));
        let start = own.start - 1;
        assert!(!SessionId { start, ..own }.is_alive(None));
    }

    /// Acts as in another pid namespace, where process ids mean nothing.
    #[test]
    fn a_session_lives_as_long_as_its_page_is_locked() {
        let stranger = SessionId { pid: 1, start: 0 };
        let page = Memory::new("test-session", 1).unwrap();
        let stat = rustix::fs::fstat(page.file()).unwrap();
        let mapped = Region {
            device: stat.st_dev,
            inode: stat.st_ino,
            ..region("")
        };
        assert!(!stranger.is_alive(Some(&mapped)));
        let life = Liveness::begin(&page).unwrap();
        assert!(stranger.is_alive(Some(&mapped)));
        drop(life);
        assert!(!stranger.is_alive(Some(&mapped)));
    }
}

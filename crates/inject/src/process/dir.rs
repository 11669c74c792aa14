//! The directory of a process in `/proc`.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::OnceLock;

use rustix::fs::{AtFlags, Dir, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::Rlimit;

use crate::proc::{self, Asleep, Status, is_dead, state_and_flags};

/// The open directory `/proc/PID` of one process.
///
/// It goes stale with the process, so what is read through it is never another's.
#[derive(Debug)]
pub(crate) struct ProcDir {
    pid: i32,
    dir: OwnedFd,
    /// The first thread's `stat`, once it has been asked for its state. That is asked before all
    /// else, and opening the file costs more than reading it.
    stat: OnceLock<File>,
}

impl ProcDir {
    pub(super) fn open(pid: i32) -> Result<Self, Errno> {
        let dir = rustix::fs::open(format!("/proc/{pid}"), DIRECTORY, Mode::empty())?;
        Ok(Self {
            pid,
            dir,
            stat: OnceLock::new(),
        })
    }

    /// Returns the first of the process's threads that has not ended.
    pub(super) fn living_thread(&self) -> Option<i32> {
        let lives = |&tid: &i32| !is_dead(self.thread_state(tid));
        match is_dead(self.first_state()) {
            false => Some(self.pid),
            true => self.thread_ids().ok()?.into_iter().find(lives),
        }
    }

    pub(super) fn has_living_thread(&self) -> bool {
        // One look can miss a thread in `execve`, which ends the others and changes its number.
        const LOOKS: u32 = 4;
        (0..LOOKS).any(|_| self.living_thread().is_some())
    }

    /// Returns the state letter of the first thread, `X` if it is gone.
    fn first_state(&self) -> char {
        let state = self.first_stat(state_and_flags).flatten();
        state.map_or('X', |(state, _)| state)
    }

    /// Returns the number of threads, including those that have ended and are not cleared away;
    /// `None` if the process has ended.
    pub fn thread_count(&self) -> Option<usize> {
        self.first_stat(proc::thread_count).flatten()
    }

    /// Returns where the heap begins, as far as the first thread tells.
    pub(super) fn heap_start(&self) -> Option<u64> {
        self.first_stat(proc::heap_start).flatten()
    }

    /// Parses the first thread's `stat`.
    fn first_stat<R>(&self, parse: impl FnOnce(&[u8]) -> R) -> Option<R> {
        const LONGEST: usize = 1024;
        let mut start = [0; LONGEST];
        let len = self.stat().ok()?.read_at(&mut start, 0).ok()?;
        start.get(..len).map(parse)
    }

    pub(super) fn stat(&self) -> Result<&File, Errno> {
        if let Some(stat) = self.stat.get() {
            return Ok(stat);
        }
        let name = format!("task/{}/stat", self.pid);
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let stat = rustix::fs::openat(&self.dir, name, flags, Mode::empty())?;
        Ok(self.stat.get_or_init(|| stat.into()))
    }

    /// Returns the numbers of the threads, zombies included.
    pub(super) fn thread_ids(&self) -> Result<Vec<i32>, Errno> {
        let mut ids = Vec::new();
        for entry in Dir::new(rustix::fs::openat(
            &self.dir,
            "task",
            DIRECTORY,
            Mode::empty(),
        )?)? {
            ids.extend(
                entry?
                    .file_name()
                    .to_str()
                    .ok()
                    .and_then(|name| name.parse::<i32>().ok()),
            );
        }
        Ok(ids)
    }

    /// Returns the state letter of a thread, `X` if it is gone.
    pub fn thread_state(&self, tid: i32) -> char {
        let stat = self.read_of_first(&format!("task/{tid}/stat"));
        stat.ok()
            .and_then(|stat| state_and_flags(&stat))
            .map_or('X', |(state, _)| state)
    }

    /// Reads a thread's `status`.
    pub(super) fn thread_status(&self, tid: i32) -> io::Result<Status> {
        let text = self.read_of_first(&format!("task/{tid}/status"))?;
        Ok(Status::parse(&text))
    }

    /// Returns the system call that a thread sleeps in; `None` if it does not, or that cannot be
    /// read.
    pub(super) fn asleep(&self, tid: i32) -> Option<Asleep> {
        Asleep::parse(&self.read_of_first(&format!("task/{tid}/syscall")).ok()?)
    }

    /// Returns the owner of the files here.
    pub(super) fn owner(&self) -> Option<u32> {
        let stat = rustix::fs::statat(&self.dir, "stat", AtFlags::empty());
        stat.ok().map(|stat| stat.st_uid)
    }

    /// Returns the highest number of the process's open descriptors.
    pub fn highest_descriptor(&self) -> Option<u64> {
        let entries = std::fs::read_dir(format!("/proc/{}/fd", self.pid)).ok()?;
        let number = |entry: std::fs::DirEntry| entry.file_name().to_str()?.parse().ok();
        Some(entries.flatten().filter_map(number).max().unwrap_or(0))
    }

    /// Returns the limit of open files.
    pub fn descriptor_limit(&self) -> Option<Rlimit> {
        let limits = String::from_utf8(self.read("limits").ok()?).ok()?;
        let line = limits
            .lines()
            .find_map(|line| line.strip_prefix("Max open files"))?;
        let mut numbers = line.split_whitespace().map(|number| number.parse().ok());
        Some(Rlimit {
            current: numbers.next()?,
            maximum: numbers.next()?,
        })
    }

    /// Opens a file for reading by its absolute path as the process sees it.
    pub(super) fn open_in_root(&self, path: &Path) -> Result<File, Errno> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let root = rustix::fs::openat(&self.dir, "root", flags, Mode::empty())?;
        let inside = path.strip_prefix("/").unwrap_or(path);
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file = rustix::fs::openat(root, inside, flags, Mode::empty())?;
        Ok(file.into())
    }

    /// Reads a whole file of the directory.
    pub(super) fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        read_all(self.open_file(name, OFlags::RDONLY)?)
    }

    /// Opens a file of the directory. If the first thread has ended before the others, the file of
    /// a remaining thread is opened, which still has what the process had.
    pub(super) fn open_file(&self, name: &str, flags: OFlags) -> io::Result<File> {
        match self.living_thread() {
            Some(tid) if tid != self.pid => {
                self.open_of_first(&format!("task/{tid}/{name}"), flags)
            }
            _ => self.open_of_first(name, flags),
        }
    }

    fn read_of_first(&self, name: &str) -> io::Result<Vec<u8>> {
        read_all(self.open_of_first(name, OFlags::RDONLY)?)
    }

    fn open_of_first(&self, name: &str, flags: OFlags) -> io::Result<File> {
        Ok(rustix::fs::openat(&self.dir, name, flags | OFlags::CLOEXEC, Mode::empty())?.into())
    }
}

const DIRECTORY: OFlags = OFlags::DIRECTORY
    .union(OFlags::RDONLY)
    .union(OFlags::CLOEXEC);

/// Reads all of a file of `/proc`, which reports a length of 0.
pub(crate) fn read_all(file: File) -> io::Result<Vec<u8>> {
    const USUAL: usize = 16 << 10;
    let mut bytes = Vec::with_capacity(USUAL);
    // A `Take` reads without asking for the length, and, with room from the start, without probing
    // for more.
    file.take(u64::MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

//! A process that may be worked on, and its memory as seen from outside.

mod check;
mod dir;
mod memory;

use std::fs::File;
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use crate::filters::Judged;
use crate::proc::{self, Asleep, Status};
use crate::ptrace;
use crate::regions::{self, Region};
use crate::{Error, Judge, Stopped};
pub(crate) use dir::{ProcDir, read_all};
pub(crate) use memory::Memory;

/// A process that Beeline may trace.
///
/// It is cheap to clone. It holds descriptors that name this process and no later one of the same
/// number.
#[derive(Debug, Clone)]
pub struct Process(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    pid: i32,
    pidfd: OwnedFd,
    dir: ProcDir,
    /// Its number in its own pid namespace, which is the same all its life.
    own: OnceLock<i32>,
    options: Options,
    /// True if it was under seccomp when it was opened.
    was_confined: OnceLock<bool>,
    judged: Judged,
    /// The cell in which threads of it have made calls for Beeline; 0 for none.
    cell: AtomicU64,
    /// Facts that its first stop need not find out.
    known: Mutex<Known>,
}

/// Facts about a copy that `fork` made, which stay as they are while it waits for Beeline.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Known {
    /// The cell in which its parent's threads have made calls for Beeline.
    pub cell: Option<u64>,
}

/// Options for the treatment of a process.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// The treatment of a target under seccomp.
    pub seccomp: Seccomp,
}

/// The treatment of a target under seccomp, which might be killed for a system call that Beeline
/// runs in it.
#[derive(Debug, Clone, Copy, Default)]
pub enum Seccomp {
    /// Leave it alone: [`Error::Seccomp`].
    #[default]
    Refuse,
    /// Have the filters of each of its threads judged when it is stopped, and suspend them for the
    /// calls that a thread makes for Beeline. For a process under filters this takes CAP_SYS_ADMIN:
    /// see [`why_filters_are_hidden`](crate::why_filters_are_hidden).
    Suspend(Judge),
    /// Leave its filters at work: they are known to let pass what Beeline does.
    Trust,
}

impl Process {
    /// Opens a process with the default [`Options`]. It is not stopped and notices nothing.
    ///
    /// # Errors
    ///
    /// The variants of [`Error`] that name a process that cannot be traced.
    pub fn open(pid: i32) -> Result<Self, Error> {
        Self::open_with(pid, Options::default())
    }

    /// Opens a process.
    ///
    /// # Errors
    ///
    /// Those of [`Self::open`]. [`Error::Seccomp`] only with [`Seccomp::Refuse`], and for a process
    /// in strict mode.
    pub fn open_with(pid: i32, options: Options) -> Result<Self, Error> {
        let process = Self::find(pid, options)?;
        process.check()?;
        Ok(process)
    }

    /// Opens a copy that `fork` has made of a process. The copy waits for Beeline in its first
    /// system call, so it has that process's program, memory and handlers of signals.
    ///
    /// # Errors
    ///
    /// Those of [`Self::open_with`]. If it may not be traced, its first stop tells.
    pub fn open_copy(pid: i32, options: Options, of: &Self) -> Result<Self, Error> {
        let copy = Self::find(pid, options)?;
        let status = copy.check_status()?;
        copy.check_seccomp(&status)?;
        let cell = of.0.cell.load(SeqCst);
        *copy.known() = Known {
            cell: (cell != 0).then_some(cell),
        };
        Ok(copy)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what the first stop of a copy need not find out; nothing for a later one.
    pub(crate) fn take_known(&self) -> Known {
        std::mem::take(&mut *self.known())
    }

    /// Notes the cell in which its threads make calls.
    pub(crate) fn note_cell(&self, cell: u64) {
        self.0.cell.store(cell, SeqCst);
    }

    /// Returns its number.
    pub fn pid(&self) -> i32 {
        self.0.pid
    }

    /// Returns its number in its own, innermost pid namespace.
    pub fn own_pid(&self) -> i32 {
        let read = || self.thread_status(self.pid()).ok()?.own;
        match self.0.own.get() {
            Some(own) => *own,
            None => read().map_or(self.pid(), |own| *self.0.own.get_or_init(|| own)),
        }
    }

    /// Returns whether its first thread is under seccomp. It may have come under it since it was
    /// opened.
    ///
    /// # Errors
    ///
    /// [`Error::Exited`] if it has ended, [`Error::Inspect`] if its status cannot be read.
    pub fn is_confined(&self) -> Result<bool, Error> {
        Ok(self.thread_status(self.pid())?.seccomp != 0)
    }

    /// Returns its pidfd, which is readable (POLLIN) once the process has ended.
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.0.pidfd.as_fd()
    }

    /// True if it has not ended yet. A zombie has.
    pub fn is_alive(&self) -> bool {
        let mut fds = [PollFd::new(&self.0.pidfd, PollFlags::IN)];
        // While Beeline holds its threads they do not quite go away, and the pidfd waits for that;
        // their state tells.
        poll(&mut fds, Some(&Timespec::default())) == Ok(0) && self.0.dir.has_living_thread()
    }

    /// Takes a descriptor of the target.
    pub(crate) fn take_descriptor(&self, fd: i32) -> io::Result<OwnedFd> {
        let flags = PidfdGetfdFlags::empty();
        match self.0.dir.living_thread() {
            Some(tid) if tid != self.pid() => {
                // The first thread, which the pidfd stands for, has no descriptors any more once it
                // has ended.
                let thread = Pid::from_raw(tid).ok_or(io::ErrorKind::NotFound)?;
                Ok(pidfd_getfd(pidfd_open(thread, PIDFD_THREAD)?, fd, flags)?)
            }
            _ => Ok(pidfd_getfd(&self.0.pidfd, fd, flags)?),
        }
    }

    /// True if it has only one thread.
    pub fn is_single(&self) -> bool {
        self.0.dir.thread_count() == Some(1)
    }

    /// Returns what is mapped into it, in ascending order. Unless it is stopped this may change at
    /// any moment.
    ///
    /// # Errors
    ///
    /// [`Error::Exited`] if it has ended, [`Error::Inspect`] if `maps` cannot be read.
    pub fn regions(&self) -> Result<Vec<Region>, Error> {
        Ok(regions::parse(&self.read_file("maps")?))
    }

    /// Finds room for `len` bytes (rounded up to pages) that lies entirely within `near`, as close
    /// to the middle of `near` as possible.
    ///
    /// The room keeps a page off every mapping, is clear of where the stack and the heap will grow,
    /// and lies above `vm.mmap_min_addr`. Returns `None` if there is no such room. Nothing is
    /// reserved: map it with [`MapFlags::FIXED_NOREPLACE`] while the target is stopped.
    ///
    /// [`MapFlags::FIXED_NOREPLACE`]: crate::MapFlags::FIXED_NOREPLACE
    ///
    /// # Errors
    ///
    /// Those of [`Self::regions`] and [`Self::find_gap_among`].
    pub fn find_gap(&self, near: RangeInclusive<u64>, len: u64) -> Result<Option<u64>, Error> {
        self.find_gap_among(&self.regions()?, near, len)
    }

    /// As [`Self::find_gap`], given what is mapped.
    ///
    /// # Errors
    ///
    /// [`Error::Exited`] if it has ended, [`Error::Inspect`] if `stat` cannot be read.
    pub fn find_gap_among(
        &self,
        regions: &[Region],
        near: RangeInclusive<u64>,
        len: u64,
    ) -> Result<Option<u64>, Error> {
        let heap = match self.0.dir.heap_start() {
            // The first thread may have ended before the others.
            None => proc::heap_start(&self.read_file("stat")?),
            heap => heap,
        };
        Ok(regions::find_gap(regions, heap.unwrap_or(0), near, len))
    }

    /// Reads the target's memory.
    ///
    /// # Errors
    ///
    /// [`Error::Memory`] if not all of it is mapped.
    pub fn read_memory(&self, address: u64, into: &mut [u8]) -> Result<(), Error> {
        match self.read_at_once(&mut [(address, &mut *into)]) {
            1 => Ok(()),
            // Memory that may be executed but not read, for example, is read by other means, which
            // also tell why a read fails.
            _ => Memory::open(self)?.read(address, into),
        }
    }

    /// Reads pieces of the target's memory, each of the given length from the given address on: in
    /// one system call if all can be read. Those that cannot are left empty.
    pub fn read_pieces(&self, pieces: &mut [(u64, Vec<u8>)]) {
        let mut done = 0;
        while done < pieces.len() {
            done += self.read_at_once(&mut pieces[done..]);
            if let Some((address, into)) = pieces.get_mut(done) {
                if self.read_memory(*address, into).is_err() {
                    into.clear();
                }
                done += 1;
            }
        }
    }

    /// Reads as many of the pieces as go in one system call, and returns their number. Nothing is
    /// opened for that.
    fn read_at_once<B: AsMut<[u8]>>(&self, pieces: &mut [(u64, B)]) -> usize {
        let done = ptrace::read_pieces(self.pid(), pieces);
        // As long as it has not ended, the number is its own.
        let mut fds = [PollFd::new(&self.0.pidfd, PollFlags::IN)];
        match done > 0 && poll(&mut fds, Some(&Timespec::default())) == Ok(0) {
            true => done,
            false => 0,
        }
    }

    /// Writes the target's memory, read-only and executable pages included.
    ///
    /// In a private mapping the target gets its own copy of the page. While the target runs it may
    /// see the bytes change one by one: to patch code use [`Stopped::write`].
    ///
    /// # Errors
    ///
    /// [`Error::Memory`] if not all of it is mapped, or it is mapped shared and read-only.
    pub fn write_memory(&self, address: u64, bytes: &[u8]) -> Result<(), Error> {
        Memory::open(self)?.write(address, bytes)
    }

    /// Stops all threads of the process. They go on when the [`Stopped`] is dropped.
    ///
    /// # Errors
    ///
    /// [`Error::Stuck`] if a thread cannot be stopped within two seconds, [`Error::Exited`], and
    /// those of [`Process::open`], as their reasons may have come up since.
    pub fn stop(&self) -> Result<Stopped, Error> {
        Stopped::new(self)
    }

    /// Stops all threads of the process for as long as `work` takes. It is quicker than
    /// [`Self::stop`], because the thread that holds them also does the work.
    ///
    /// # Errors
    ///
    /// Those of [`Self::stop`].
    pub fn stopped<R: Send>(
        &self,
        work: impl FnOnce(&mut Stopped) -> R + Send,
    ) -> Result<R, Error> {
        Stopped::within(self, work)
    }

    /// Stops one thread behind the system call in which it waits for `release`. A call that is
    /// reported to a seccomp listener is an example.
    ///
    /// `release` is called, in a thread of Beeline's, when the thread has been asked to stop, so it
    /// gets nowhere else; the result of its call is in its registers. All other threads run on, so
    /// nothing may be done that they must not see half done.
    ///
    /// # Errors
    ///
    /// As for [`Self::stop`]. Errors before `release` is called leave the thread where it is.
    pub fn stop_behind_call(
        &self,
        tid: i32,
        release: impl FnOnce() + Send + 'static,
    ) -> Result<Stopped, Error> {
        Stopped::releasing(self, tid, release)
    }

    /// Stops all threads while one of them waits in a system call for `release`. An open that is
    /// held by a fanotify group is an example.
    ///
    /// `release` is called, in a thread of Beeline's, when all have been asked to stop, so none
    /// gets farther than to the end of its call.
    ///
    /// # Errors
    ///
    /// As for [`Self::stop`]. If an error comes before `release` would be called, it is dropped.
    pub fn stop_releasing(
        &self,
        release: impl FnOnce() + Send + 'static,
    ) -> Result<Stopped, Error> {
        Stopped::releasing_all(self, release)
    }

    /// Opens its memory as it is now, to be read at many places. After an `execve` the file is of
    /// no more use.
    ///
    /// # Errors
    ///
    /// [`Error::Exited`], and those of [`Process::open`], as their reasons may have come up since.
    pub fn memory(&self) -> Result<File, Error> {
        let opened = self.0.dir.open_file("mem", OFlags::RDWR);
        opened.map_err(|source| self.inspect_error("open the memory", source))
    }

    /// Opens the file that holds the target's program for reading.
    pub(crate) fn program(&self) -> Result<File, Error> {
        let opened = self.0.dir.open_file("exe", OFlags::RDONLY);
        opened.map_err(|source| self.inspect_error("open the program", source))
    }

    /// Opens a file for reading by its absolute path as the target sees it.
    pub(crate) fn open_in_root(&self, path: &Path) -> Result<File, Error> {
        self.0
            .dir
            .open_in_root(path)
            .map_err(|errno| self.inspect_error(&format!("open {}", path.display()), errno.into()))
    }

    /// Returns the numbers of its threads, zombies included.
    ///
    /// # Errors
    ///
    /// [`Error::Exited`] if it has ended, [`Error::Inspect`] if its threads cannot be listed.
    pub fn thread_ids(&self) -> Result<Vec<i32>, Error> {
        // Not through `inspect_error`, which asks for the threads itself.
        self.0.dir.thread_ids().map_err(|errno| match errno {
            Errno::NOENT | Errno::SRCH => Error::Exited { pid: self.pid() },
            errno => Error::Inspect {
                pid: self.pid(),
                what: "list the threads".to_owned(),
                source: errno.into(),
            },
        })
    }

    /// Returns the system call that one of its threads sleeps in; `None` if it does not, or that
    /// cannot be read.
    pub fn asleep(&self, tid: i32) -> Option<Asleep> {
        self.0.dir.asleep(tid)
    }

    /// Returns the `status` of one of its threads.
    pub(crate) fn thread_status(&self, tid: i32) -> Result<Status, Error> {
        let status = self.0.dir.thread_status(tid);
        status.map_err(|source| self.inspect_error(&format!("read task/{tid}/status"), source))
    }

    /// Returns how it is treated if it is under seccomp.
    pub(crate) fn seccomp(&self) -> Seccomp {
        self.0.options.seccomp
    }

    /// True if filters that it may have come under are judged whenever it is stopped.
    pub fn judges_filters(&self) -> bool {
        matches!(self.seccomp(), Seccomp::Suspend(_))
    }

    /// True if it was under seccomp when it was opened.
    pub fn was_confined(&self) -> bool {
        self.0.was_confined.get().is_some_and(|was| *was)
    }

    /// Returns the threads whose filters have been judged.
    pub(crate) fn judged(&self) -> &Judged {
        &self.0.judged
    }

    /// Returns its directory in `/proc`.
    pub(crate) fn dir(&self) -> &ProcDir {
        &self.0.dir
    }

    /// Reads a whole file of `/proc/PID`.
    pub(crate) fn read_file(&self, name: &str) -> Result<Vec<u8>, Error> {
        let read = self.0.dir.read(name);
        read.map_err(|source| self.inspect_error(&format!("read {name}"), source))
    }

    pub(crate) fn inspect_error(&self, what: &str, source: io::Error) -> Error {
        if !self.is_alive() {
            return Error::Exited { pid: self.pid() };
        }
        Error::Inspect {
            pid: self.pid(),
            what: what.to_owned(),
            source,
        }
    }
}

/// A pidfd for a thread rather than its process; Linux 6.9 and later. The same bit as `O_EXCL`.
const PIDFD_THREAD: PidfdFlags = PidfdFlags::from_bits_retain(libc::O_EXCL as u32);

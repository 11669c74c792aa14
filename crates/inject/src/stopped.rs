//! A target with all of its threads held.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::mm::{MapFlags, ProtFlags};

use crate::address_space::AddressSpace;
use crate::alarm::PATIENCE;
use crate::arch::Registers;
use crate::files::{self, Batches};
use crate::held_threads::Tracee;
use crate::ptrace;
use crate::regions::PAGE;
use crate::remote::{Call, Remote};
use crate::restart::Restart;
use crate::worker::{self, Worker};
use crate::{Error, Mapping, Process, Region};

/// A process with all threads held, or one held by [`Process::stop_behind_call`]. Dropping it lets
/// them go on, each where and as it was.
///
/// A thread of Beeline's does the tracing and lives as long as this value, so a `Stopped` may move
/// between threads. If Beeline dies the kernel lets the target go, and each thread goes on where
/// and as it was, or as a method here that has returned has set it.
///
/// **Waits that start anew.** A thread held in `epoll_wait`, `semtimedop`, `sigtimedwait`,
/// `io_getevents`, `io_uring_enter`, or in a socket call with a timeout would see EINTR, as after
/// any stop by job control. It is made to repeat the call instead, so a timeout given to it counts
/// from the end of the stop. All other calls the kernel continues by itself: `nanosleep`, `poll`
/// and `futex` with their old deadline, `select` and `ppoll` with the time that was left. If
/// Beeline is killed between asking a thread in such a wait to stop and seeing that it has, which
/// takes some microseconds, the wait says EINTR as it does after SIGSTOP and SIGCONT.
#[derive(Debug)]
pub struct Stopped {
    process: Process,
    threads: Vec<Thread>,
    space: Arc<AddressSpace>,
    worker: Worker<Remote>,
}

/// The pause between two tries to stop a target.
const AGAIN: Duration = Duration::from_millis(20);

/// A held thread.
#[derive(Debug, Clone)]
pub struct Thread {
    tid: i32,
    registers: Registers,
}

impl Thread {
    /// Returns its number, as in `gettid`.
    pub fn tid(&self) -> i32 {
        self.tid
    }

    /// Returns the registers that it goes on with.
    pub fn registers(&self) -> &Registers {
        &self.registers
    }

    /// Returns the address of the instruction that it goes on with; but see [`Thread::restarts`].
    pub fn ip(&self) -> u64 {
        self.registers.ip()
    }

    /// Returns its stack pointer.
    pub fn sp(&self) -> u64 {
        self.registers.sp()
    }

    /// Returns its thread pointer.
    pub fn thread_pointer(&self) -> u64 {
        self.registers.thread_pointer()
    }

    /// True if it was held within a system call that is going to be made once more.
    ///
    /// If so, [`Thread::ip`] is behind the `syscall` instruction, and the thread goes on at that
    /// instruction. The same is true of an address set with [`Stopped::set_ip`].
    pub fn restarts(&self) -> bool {
        Restart::of(&self.registers).is_some()
    }
}

impl Stopped {
    pub(crate) fn new(process: &Process) -> Result<Self, Error> {
        let attempt = || {
            let of = process.clone();
            Self::around(process, move || Remote::stop(&of, || {}))
        };
        let mut stopped = until_not_stuck(attempt)?;
        stopped.refresh();
        Ok(stopped)
    }

    /// Stops a process for `work`, all of which is done by the thread that traces.
    pub(crate) fn within<R: Send>(
        process: &Process,
        work: impl FnOnce(&mut Self) -> R + Send,
    ) -> Result<R, Error> {
        let mut work = Some(work);
        until_not_stuck(|| {
            let make = || Remote::stop(process, || {});
            let work = &mut work;
            let on_it = move |remote| {
                let mut stopped = Self::here(process, remote);
                stopped.refresh();
                let result = work.take().map(|work| work(&mut stopped));
                // If it was killed meanwhile, the next operation says so.
                let _ = stopped.resume();
                result.ok_or(Error::Exited { pid: process.pid() })
            };
            // Another thread of it could be in `execve`, and wait to be cleared the way for.
            if worker::traces_here() && process.is_single() {
                return make().and_then(on_it);
            }
            worker::within(make, clearing(process), on_it)
                .map_err(no_thread)?
                .flatten()
        })
    }

    /// Wraps threads that the calling thread holds, which has to do all work on them. None outlives
    /// its work.
    pub(crate) fn here(process: &Process, remote: Remote) -> Self {
        Self {
            process: process.clone(),
            threads: Vec::new(),
            space: remote.space.clone(),
            worker: Worker::Here(remote),
        }
    }

    /// Stops one thread only, which sleeps in the kernel until `release` is called, in a thread of
    /// Beeline's.
    pub(crate) fn releasing(
        process: &Process,
        tid: i32,
        release: impl FnOnce() + Send + 'static,
    ) -> Result<Self, Error> {
        let of = process.clone();
        let stop = move || Remote::stop_one(&of, tid, release);
        let mut stopped = Self::around(process, stop)?;
        stopped.refresh();
        Ok(stopped)
    }

    /// Stops all threads, one of which sleeps in the kernel until `release` is called, in a thread
    /// of Beeline's.
    pub(crate) fn releasing_all(
        process: &Process,
        release: impl FnOnce() + Send + 'static,
    ) -> Result<Self, Error> {
        let of = process.clone();
        let mut stopped = Self::around(process, move || Remote::stop(&of, release))?;
        stopped.refresh();
        Ok(stopped)
    }

    pub(crate) fn around(
        process: &Process,
        make: impl FnOnce() -> Result<Remote, Error> + Send + 'static,
    ) -> Result<Self, Error> {
        let worker = Worker::start(make, clearing(process)).map_err(no_thread)??;
        Ok(Self {
            process: process.clone(),
            threads: Vec::new(),
            space: AddressSpace::of(process),
            worker,
        })
    }

    /// Notes the threads that are held now.
    pub(crate) fn refresh(&mut self) {
        (self.space, self.threads) = self.run(|remote| {
            let tracees = remote.threads.tracees.iter();
            let held = tracees.filter(|tracee| tracee.is_held());
            let threads = held.map(|tracee| Thread {
                tid: tracee.tid,
                registers: tracee.regs,
            });
            (remote.space.clone(), threads.collect())
        });
    }

    /// Runs `work` on the thread that traces.
    pub(crate) fn run<R: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut Remote) -> R + Send + 'static,
    ) -> R {
        self.worker.run(work)
    }

    /// Returns the process.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Returns its threads, all of them except those that have ended.
    pub fn threads(&self) -> &[Thread] {
        &self.threads
    }

    /// Returns what is mapped into it, which only the methods here can change.
    ///
    /// # Errors
    ///
    /// Those of [`Process::regions`].
    pub fn regions(&self) -> Result<Arc<[Region]>, Error> {
        self.space.regions()
    }

    /// Returns how long the target has been held.
    pub fn held_for(&mut self) -> Duration {
        self.run(|remote| remote.threads.since.elapsed())
    }

    /// Lets the target go, and returns how long it was held. Dropping does the same without a
    /// result.
    ///
    /// # Errors
    ///
    /// [`Error::Exited`] if it has been killed in the meantime.
    pub fn resume(mut self) -> Result<Duration, Error> {
        self.run(Remote::let_go)
    }

    /// Makes a thread go on at `ip`. If the thread [restarts](Thread::restarts) a call, `ip` is the
    /// address behind a `syscall` instruction.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchThread`] if the thread is not held. [`Error::Ptrace`], [`Error::Memory`] or
    /// [`Error::Exited`] if it has been killed.
    pub fn set_ip(&mut self, tid: i32, ip: u64) -> Result<(), Error> {
        let sp = self.thread(tid)?.sp();
        self.send(tid, ip, sp)
    }

    /// As [`Self::set_ip`], with another stack pointer.
    ///
    /// # Errors
    ///
    /// Those of [`Self::set_ip`].
    pub fn send(&mut self, tid: i32, ip: u64, sp: u64) -> Result<(), Error> {
        self.change(tid, move |registers| {
            registers.set_ip(ip);
            registers.set_sp(sp);
        })
    }

    /// Makes a thread go on with these registers. If they are of no system call, it goes on exactly
    /// at their address.
    ///
    /// # Errors
    ///
    /// Those of [`Self::set_ip`].
    pub fn set_registers(&mut self, tid: i32, to: Registers) -> Result<(), Error> {
        self.change(tid, move |registers| *registers = to)
    }

    /// Sets the result of the system call that a thread was held behind.
    ///
    /// # Errors
    ///
    /// Those of [`Self::set_ip`].
    pub fn set_result(&mut self, tid: i32, value: u64) -> Result<(), Error> {
        self.change(tid, move |registers| registers.set_result(value))
    }

    /// Returns whether a thread has come to a breakpoint and has not been told yet. It will be,
    /// with SIGTRAP, when it goes on.
    ///
    /// # Errors
    ///
    /// [`Error::Ptrace`].
    pub fn awaits_trap(&mut self, tid: i32) -> Result<bool, Error> {
        self.run(move |_| ptrace::awaits_fault(tid, libc::SIGTRAP))
    }

    /// Changes what a thread goes on with, here and in the kernel.
    fn change(
        &mut self,
        tid: i32,
        change: impl Fn(&mut Registers) + Copy + Send + 'static,
    ) -> Result<(), Error> {
        let absent = self.absent(tid);
        change(&mut self.thread(tid)?.registers);
        self.run(move |remote| {
            let held = |tracee: &Tracee| tracee.tid == tid && tracee.is_held();
            let at = remote.threads.tracees.iter().position(held);
            let at = at.ok_or(absent)?;
            remote.change(at, change)
        })
    }

    fn thread(&mut self, tid: i32) -> Result<&mut Thread, Error> {
        let absent = self.absent(tid);
        let mut threads = self.threads.iter_mut();
        threads.find(|thread| thread.tid == tid).ok_or(absent)
    }

    fn absent(&self, tid: i32) -> Error {
        Error::NoSuchThread {
            pid: self.process.pid(),
            tid,
        }
    }

    /// Makes sure that the target's memory can be read where there is some.
    ///
    /// # Errors
    ///
    /// The memory cannot be opened.
    pub fn check_readable(&self) -> Result<(), Error> {
        self.space.memory().map(drop)
    }

    /// Reads the target's memory.
    ///
    /// # Errors
    ///
    /// [`Error::Memory`].
    pub fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Error> {
        self.space.read(address, into)
    }

    /// Reads pieces of the target's memory, each of the given length from the given address on. It
    /// is quicker than reading them one by one.
    ///
    /// # Errors
    ///
    /// [`Error::Memory`].
    pub fn read_all(&self, pieces: &mut [(u64, Vec<u8>)]) -> Result<(), Error> {
        let held = self.threads.first().map(Thread::tid);
        let done = held.map_or(0, |tid| ptrace::read_pieces(tid, pieces));
        // Memory that may be executed but not read, for example, is read by other means.
        pieces[done..]
            .iter_mut()
            .try_for_each(|(address, into)| self.read(*address, into))
    }

    /// Writes the target's memory, code included. A page of a private mapping becomes the target's
    /// own.
    ///
    /// # Errors
    ///
    /// [`Error::Memory`].
    pub fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), Error> {
        let bytes = bytes.to_vec();
        self.run(move |remote| remote.space.write(address, &bytes))
    }

    /// As [`Self::write`], for many places at once, which is much quicker. Pieces before one that
    /// fails are written.
    ///
    /// # Errors
    ///
    /// Those of [`Self::write`].
    pub fn write_all(&mut self, pieces: Vec<(u64, Vec<u8>)>) -> Result<(), Error> {
        self.run(move |remote| {
            let mut pieces = pieces.iter();
            pieces.try_for_each(|(address, bytes)| remote.space.write(*address, bytes))
        })
    }

    /// As [`Self::write_all`], for code, which only Beeline writes while the target is held. Places
    /// of one page are written together, with the bytes between them as they are.
    ///
    /// # Errors
    ///
    /// Those of [`Self::write`].
    pub fn write_code(&mut self, mut pieces: Vec<(u64, Vec<u8>)>) -> Result<(), Error> {
        pieces.sort_by_key(|(address, _)| *address);
        self.run(move |remote| {
            let page = |(address, bytes): &(u64, Vec<u8>)| {
                let end = address.saturating_add(bytes.len() as u64);
                (address / PAGE, end.saturating_sub(1) / PAGE)
            };
            let is_together = |one: &(u64, Vec<u8>), next: &(u64, Vec<u8>)| {
                let (first, last) = page(one);
                first == last && page(next) == (first, last)
            };
            pieces
                .chunk_by(is_together)
                .try_for_each(|pieces| remote.space.write_together(pieces))
        })
    }

    /// Runs a system call in one of the target's threads and returns its result.
    ///
    /// The call must return soon, as the target is held for so long. It must not be one that the
    /// kernel continues with `restart_syscall`, as `nanosleep`: it would replace the one that the
    /// thread was held in.
    ///
    /// # Errors
    ///
    /// [`Error::Syscall`] with the error number that it returned; [`Error::Seccomp`] or
    /// [`Error::NoAgent`] if no thread can make one.
    pub fn syscall(&mut self, number: i64, arguments: [u64; 6]) -> Result<u64, Error> {
        self.run(move |remote| remote.call(number, arguments))
    }

    /// As [`Self::syscall`], for several calls without results, up to the first that fails or
    /// further: they may all have been made. It is quicker than one by one, and takes
    /// [`Self::SCRATCH`] bytes of the target's memory that it can write and no code uses. Their
    /// content is lost.
    ///
    /// # Errors
    ///
    /// Those of [`Self::syscall`].
    pub fn syscalls(&mut self, scratch: u64, calls: &[(i64, [u64; 6])]) -> Result<(), Error> {
        let calls = calls.iter().copied();
        let calls: Vec<_> = calls
            .map(|(number, arguments)| Call::new(number, arguments))
            .collect();
        let results = self.run(move |remote| remote.calls(scratch, &calls))?;
        results.into_iter().try_for_each(|result| result.map(drop))
    }

    /// Maps a file that is open here into the target. See [`Stopped::map_files`].
    ///
    /// # Errors
    ///
    /// Those of [`Self::map_files`].
    pub fn map_file(&mut self, mapping: &Mapping<'_>) -> Result<u64, Error> {
        let placed = self.map_files(std::slice::from_ref(mapping))?;
        placed.first().copied().ok_or(Error::NoAgent {
            pid: self.process.pid(),
            why: "nothing was mapped",
        })
    }

    /// Maps files that are open here into the target, and returns their addresses. All of them are
    /// mapped, or none if there is an error. No descriptor is left in the target.
    ///
    /// # Errors
    ///
    /// [`Error::DescriptorLimit`], [`Error::Misplaced`], and [`Error::Syscall`] from `socketpair`,
    /// `recvmsg` or `mmap`.
    pub fn map_files(&mut self, mappings: &[Mapping<'_>]) -> Result<Vec<u64>, Error> {
        let batches = Batches::of(mappings)?;
        self.run(move |remote| batches.map_into(remote, None))
    }

    /// Bytes that [`Self::map_files_through`] needs.
    pub const SCRATCH: usize = files::SCRATCH;

    /// As [`Self::map_files`], and quicker, through [`Self::SCRATCH`] bytes of the target's memory
    /// that it can write and no code uses. Their content is lost.
    ///
    /// # Errors
    ///
    /// Those of [`Self::map_files`].
    pub fn map_files_through(
        &mut self,
        scratch: u64,
        mappings: &[Mapping<'_>],
    ) -> Result<Vec<u64>, Error> {
        let batches = Batches::of(mappings)?;
        self.run(move |remote| batches.map_into(remote, Some(scratch)))
    }

    /// Maps `len` bytes of fresh private memory. `flags` says how `address` is treated; 0 is
    /// anywhere.
    ///
    /// # Errors
    ///
    /// Those of [`Self::syscall`]; [`Error::Misplaced`] if a kernel without `MAP_FIXED_NOREPLACE`
    /// maps it elsewhere.
    pub fn mmap_anonymous(
        &mut self,
        len: u64,
        protection: ProtFlags,
        flags: MapFlags,
        address: u64,
    ) -> Result<u64, Error> {
        self.run(move |remote| {
            remote.map_anonymous(len, protection, flags | MapFlags::PRIVATE, address)
        })
    }

    /// Unmaps `len` bytes.
    ///
    /// # Errors
    ///
    /// Those of [`Self::syscall`].
    pub fn munmap(&mut self, address: u64, len: u64) -> Result<(), Error> {
        self.run(move |remote| remote.unmap(address, len))
    }

    /// Advises the kernel on `len` bytes (`libc::MADV_*`).
    ///
    /// # Errors
    ///
    /// Those of [`Self::syscall`].
    pub fn madvise(&mut self, address: u64, len: u64, advice: i32) -> Result<(), Error> {
        let arguments = [address, len, advice as u64, 0, 0, 0];
        self.syscall(libc::SYS_madvise, arguments).map(drop)
    }
}

/// Stops a process, and retries if a thread sleeps in the kernel and wakes up soon (mostly it is a
/// vfork): another try finds it awake. All threads have been let go in between.
fn until_not_stuck<R>(mut attempt: impl FnMut() -> Result<R, Error>) -> Result<R, Error> {
    let begun = Instant::now();
    loop {
        match attempt() {
            // This thread would wait for itself.
            Err(error) if worker::must_end() => return Err(error),
            Err(Error::Stuck { .. }) if begun.elapsed() < PATIENCE => std::thread::sleep(AGAIN),
            outcome => return outcome,
        }
    }
}

/// Returns a function that clears away what has ended while the process is being stopped.
///
/// A thread in `execve` waits until the others have ended and been cleared away, and the kernel
/// lets Beeline seize no thread meanwhile. So while the tracing thread waits there, another must
/// clear away what it has seized.
fn clearing(process: &Process) -> impl FnMut() {
    || {
        let threads = process.thread_ids().unwrap_or_default();
        threads
            .into_iter()
            .filter(|&tid| tid != process.pid())
            .for_each(ptrace::reap);
    }
}

fn no_thread(source: std::io::Error) -> Error {
    Error::Local {
        what: "start a thread",
        source,
    }
}

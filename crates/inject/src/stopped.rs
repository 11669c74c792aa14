//! A target whose threads are all held.

use std::sync::Arc;
use std::time::{Duration, Instant};

use libc::user_regs_struct;
use rustix::mm::{MapFlags, ProtFlags};

use crate::alarm::PATIENCE;
use crate::files::{self, parcels_of};
use crate::held::Held;
use crate::ptrace;
use crate::session::{Session, State, Tracee};
use crate::worker::{self, Worker};
use crate::{Error, Mapping, Process, Region};

/// A process all of whose threads are held, or one by [`Process::stop_behind_call`]. Dropping it lets them go on, each where and as it was.
///
/// A thread of ours does the tracing and lives as long as this, so a `Stopped` may move between
/// threads. If Beeline dies the kernel lets the target go, and each thread goes on where and as it was, or as one of the methods here that
/// has returned has set it.
///
/// **Waits that start anew.** A thread held in `epoll_wait`, `semtimedop`, `sigtimedwait`, `io_getevents`,
/// `io_uring_enter`, or in a socket call with a timeout would see EINTR, as after any stop by job control. It is made to
/// repeat the call instead, so a timeout given to it counts from the end of the stop. All other calls the
/// kernel continues by itself: `nanosleep`, `poll` and `futex` with their old deadline, `select` and `ppoll` with the time
/// that was left. Should Beeline be killed after it has asked a thread in such a wait to stop and before it has seen
/// that it has, some microseconds, the wait says EINTR as it does after SIGSTOP and SIGCONT.
#[derive(Debug)]
pub struct Stopped {
    process: Process,
    threads: Vec<Thread>,
    held: Arc<Held>,
    worker: Worker<Session>,
}

const PAGE: u64 = 4096;

/// Between two tries to stop a target.
const AGAIN: Duration = Duration::from_millis(20);

/// A held thread.
#[derive(Debug, Clone)]
pub struct Thread {
    tid: i32,
    registers: user_regs_struct,
}

impl Thread {
    /// Its number, as in `gettid`.
    pub fn tid(&self) -> i32 {
        self.tid
    }

    /// The registers that it goes on with.
    pub fn registers(&self) -> &user_regs_struct {
        &self.registers
    }

    /// Address of the instruction that it goes on with; but see [`Thread::restarts`].
    pub fn ip(&self) -> u64 {
        self.registers.rip
    }

    /// Its thread pointer.
    pub fn fs_base(&self) -> u64 {
        self.registers.fs_base
    }

    /// Whether it was held within a system call that is going to be made once more. If so [`Thread::ip`] is behind the
    /// `syscall` instruction, and the thread goes on two bytes earlier, on that instruction; the same is true
    /// of an address set with [`Stopped::set_ip`].
    pub fn restarts(&self) -> bool {
        crate::restore_stub::restarts(&self.registers)
    }
}

impl Stopped {
    pub(crate) fn new(process: &Process) -> Result<Self, Error> {
        let attempt = || {
            let of = process.clone();
            Self::around(process, move || Session::stop(&of))
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
            let make = || Session::stop(process);
            let work = &mut work;
            let on_it = move |session| {
                let mut stopped = Self::here(process, session);
                stopped.refresh();
                let result = work.take().map(|work| work(&mut stopped));
                // If it was killed meanwhile, the next who asks is told.
                let _ = stopped.resume();
                result.ok_or(Error::Exited { pid: process.pid() })
            };
            // Another thread of it could be in `execve`, and have to be cleared the way for.
            if worker::traces_here() && process.is_single() {
                return make().and_then(on_it);
            }
            worker::within(make, clearing(process), on_it)
                .map_err(no_thread)?
                .flatten()
        })
    }

    /// Threads that the calling thread holds, which has to do all that is done with them: none that outlives its work.
    pub(crate) fn here(process: &Process, session: Session) -> Self {
        Self {
            process: process.clone(),
            threads: Vec::new(),
            held: session.held.clone(),
            worker: Worker::Here(session),
        }
    }

    /// One thread only, that sleeps in the kernel until `release` is called, in a thread of ours.
    pub(crate) fn releasing(
        process: &Process,
        tid: i32,
        release: impl FnOnce() + Send + 'static,
    ) -> Result<Self, Error> {
        let of = process.clone();
        let stop = move || Session::stop_one(&of, tid, release);
        let mut stopped = Self::around(process, stop)?;
        stopped.refresh();
        Ok(stopped)
    }

    /// All threads, of which one sleeps in the kernel until `release` is called, in a thread of ours.
    pub(crate) fn releasing_all(
        process: &Process,
        release: impl FnOnce() + Send + 'static,
    ) -> Result<Self, Error> {
        let of = process.clone();
        let mut stopped = Self::around(process, move || Session::stop_all(&of, release))?;
        stopped.refresh();
        Ok(stopped)
    }

    pub(crate) fn around(
        process: &Process,
        make: impl FnOnce() -> Result<Session, Error> + Send + 'static,
    ) -> Result<Self, Error> {
        let worker = Worker::start(make, clearing(process)).map_err(no_thread)??;
        Ok(Self {
            process: process.clone(),
            threads: Vec::new(),
            held: Arc::default(),
            worker,
        })
    }

    /// Takes note of the threads that are held now.
    pub(crate) fn refresh(&mut self) {
        (self.held, self.threads) = self.run(|session| {
            let held = session
                .tracees
                .iter()
                .filter(|tracee| tracee.state == State::Held);
            let threads = held.map(|tracee| Thread {
                tid: tracee.tid,
                registers: tracee.regs,
            });
            (session.held.clone(), threads.collect())
        });
    }

    /// Runs `work` on the thread that traces.
    pub(crate) fn run<R: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut Session) -> R + Send + 'static,
    ) -> R {
        self.worker.run(work)
    }

    /// The process.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Its threads, all of them but those that have ended.
    pub fn threads(&self) -> &[Thread] {
        &self.threads
    }

    /// What is mapped into it. It cannot change but by the methods here.
    pub fn regions(&self) -> Result<Arc<[Region]>, Error> {
        self.held.regions(&self.process)
    }

    /// How long the target has been held.
    pub fn held_for(&mut self) -> Duration {
        self.run(|session| session.since.elapsed())
    }

    /// Lets the target go, and says how long it was held. Dropping does the same and says nothing.
    ///
    /// Errors: [`Error::Exited`] if it has been killed in the meantime.
    pub fn resume(mut self) -> Result<Duration, Error> {
        self.run(Session::let_go)
    }

    /// Makes a thread go on at `ip`. If the thread [restarts](Thread::restarts) a call, `ip` is the address behind
    /// a `syscall` instruction.
    pub fn set_ip(&mut self, tid: i32, ip: u64) -> Result<(), Error> {
        let sp = self.thread(tid)?.registers.rsp;
        self.send(tid, ip, sp)
    }

    /// As [`Self::set_ip`], with another stack pointer.
    pub fn send(&mut self, tid: i32, ip: u64, sp: u64) -> Result<(), Error> {
        self.change(tid, move |registers| {
            (registers.rip, registers.rsp) = (ip, sp);
        })
    }

    /// Has a thread go on with these registers. Those with an `orig_rax` that is no system call's have it go on exactly at their `rip`.
    pub fn set_registers(&mut self, tid: i32, to: user_regs_struct) -> Result<(), Error> {
        self.change(tid, move |registers| *registers = to)
    }

    /// Sets what the system call returns that a thread was held behind.
    pub fn set_result(&mut self, tid: i32, value: u64) -> Result<(), Error> {
        self.change(tid, move |registers| registers.rax = value)
    }

    /// Has a thread come to a breakpoint of which it has not been told yet? It will be, with SIGTRAP, when it goes on.
    pub fn awaits_trap(&mut self, tid: i32) -> Result<bool, Error> {
        self.run(move |_| ptrace::awaits_fault(tid, libc::SIGTRAP))
    }

    /// Changes what a thread goes on with, here and in the kernel.
    fn change(
        &mut self,
        tid: i32,
        change: impl Fn(&mut user_regs_struct) + Copy + Send + 'static,
    ) -> Result<(), Error> {
        let absent = self.absent(tid);
        change(&mut self.thread(tid)?.registers);
        self.run(move |session| {
            let held = |tracee: &Tracee| tracee.tid == tid && tracee.state == State::Held;
            let at = session.tracees.iter().position(held).ok_or(absent)?;
            session.change(at, change)
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

    /// Makes sure that the target's memory can be read where there is some. Errors: it cannot be opened.
    pub fn check_readable(&self) -> Result<(), Error> {
        self.held.memory(&self.process).map(drop)
    }

    /// Reads the target's memory. Errors: [`Error::Memory`].
    pub fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Error> {
        let memory = self.held.memory(&self.process)?;
        self.process.read_from(memory, address, into)
    }

    /// Reads what these pieces are long, of the target's memory from where each is on; quicker than one by one.
    /// Errors: [`Error::Memory`].
    pub fn read_all(&self, pieces: &mut [(u64, Vec<u8>)]) -> Result<(), Error> {
        let held = self.threads.first().map(Thread::tid);
        let done = held.map_or(0, |tid| ptrace::read_pieces(tid, pieces));
        // What may be executed but not read, say, is read by other means.
        pieces[done..]
            .iter_mut()
            .try_for_each(|(address, into)| self.read(*address, into))
    }

    /// Writes the target's memory, code included. A page of a private mapping becomes the target's own.
    /// Errors: [`Error::Memory`].
    pub fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), Error> {
        let bytes = bytes.to_vec();
        self.run(move |session| session.write(address, &bytes))
    }

    /// As [`Self::write`], for many places at once, which is much quicker. What stands before one that fails is written.
    pub fn write_all(&mut self, pieces: Vec<(u64, Vec<u8>)>) -> Result<(), Error> {
        self.run(move |session| {
            let mut pieces = pieces.iter();
            pieces.try_for_each(|(address, bytes)| session.write(*address, bytes))
        })
    }

    /// As [`Self::write_all`], for code, which nobody writes but us while the target is held: places of one page are written
    /// together, with what is between them as it is.
    pub fn write_code(&mut self, mut pieces: Vec<(u64, Vec<u8>)>) -> Result<(), Error> {
        pieces.sort_by_key(|(address, _)| *address);
        self.run(move |session| {
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
                .try_for_each(|pieces| session.write_together(pieces))
        })
    }

    /// Runs a system call in one of the target's threads and gives its result. It must be one that returns, and soon:
    /// the target is held as long. Not one that the kernel continues with `restart_syscall`, as `nanosleep`: it would take the place of
    /// one that the thread was held in.
    ///
    /// Errors: [`Error::Syscall`] with the error number that it returned; [`Error::Seccomp`], [`Error::NoAgent`]
    /// if no thread can make one.
    pub fn syscall(&mut self, number: i64, arguments: [u64; 6]) -> Result<u64, Error> {
        self.run(move |session| session.call(number, arguments))
    }

    /// Has threads that made calls here as they were before: they block all signals meanwhile.
    pub fn restore_threads(&mut self) -> Result<(), Error> {
        self.run(|session| (0..session.tracees.len()).try_for_each(|at| session.restore(at)))
    }

    /// Maps a file that is open here into the target. See [`Stopped::map_files`].
    pub fn map_file(&mut self, mapping: &Mapping<'_>) -> Result<u64, Error> {
        let placed = self.map_files(std::slice::from_ref(mapping))?;
        placed.first().copied().ok_or(Error::NoAgent {
            pid: self.process.pid(),
            why: "nothing was mapped",
        })
    }

    /// Maps files that are open here into the target: all of them, or if there is an error none. Gives their
    /// addresses. The target is left with no descriptor.
    ///
    /// Errors: [`Error::DescriptorLimit`], [`Error::Misplaced`], and [`Error::Syscall`] from `socketpair`,
    /// `recvmsg` or `mmap`.
    pub fn map_files(&mut self, mappings: &[Mapping<'_>]) -> Result<Vec<u64>, Error> {
        let batches = parcels_of(mappings)?;
        self.run(move |session| session.map_files(&batches, None))
    }

    /// Bytes that [`Self::map_files_through`] needs.
    pub const SCRATCH: usize = files::SCRATCH;

    /// As [`Self::map_files`], and quicker, through [`Self::SCRATCH`] bytes of the target's memory that it can write and nobody
    /// uses. What is in them is lost.
    pub fn map_files_through(
        &mut self,
        scratch: u64,
        mappings: &[Mapping<'_>],
    ) -> Result<Vec<u64>, Error> {
        let batches = parcels_of(mappings)?;
        self.run(move |session| session.map_files(&batches, Some(scratch)))
    }

    /// Maps `len` bytes of fresh private memory. `flags` says what to make of `address`; 0 is anywhere.
    pub fn mmap_anonymous(
        &mut self,
        len: u64,
        protection: ProtFlags,
        flags: MapFlags,
        address: u64,
    ) -> Result<u64, Error> {
        self.run(move |session| {
            session.map_anonymous(len, protection, flags | MapFlags::PRIVATE, address)
        })
    }

    /// Unmaps `len` bytes.
    pub fn munmap(&mut self, address: u64, len: u64) -> Result<(), Error> {
        self.run(move |session| session.unmap(address, len))
    }

    /// Advises the kernel on `len` bytes (`libc::MADV_*`).
    pub fn madvise(&mut self, address: u64, len: u64, advice: i32) -> Result<(), Error> {
        let arguments = [address, len, advice as u64, 0, 0, 0];
        self.syscall(libc::SYS_madvise, arguments).map(drop)
    }
}

/// Stops a process, once more where a thread that sleeps in the kernel wakes up soon (mostly it is a vfork): another try
/// finds it awake. All have been let go in between.
fn until_not_stuck<R>(mut attempt: impl FnMut() -> Result<R, Error>) -> Result<R, Error> {
    let begun = Instant::now();
    loop {
        match attempt() {
            // We would wait for ourselves.
            Err(error) if worker::must_end() => return Err(error),
            Err(Error::Stuck { .. }) if begun.elapsed() < PATIENCE => std::thread::sleep(AGAIN),
            outcome => return outcome,
        }
    }
}

/// A thread in `execve` waits until the others have ended and been cleared away, and the kernel lets us seize no
/// thread meanwhile. So while the tracing thread waits there, another must clear away what it has seized.
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

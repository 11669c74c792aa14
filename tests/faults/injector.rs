//! Runs a command and makes one of its system calls fail, by tracing its threads with ptrace.
//! Children that it forks are not traced.
//!
//! The command's own requests of ptrace show the calls that it has a target make: it gives a thread
//! registers that place it at a `syscall` instruction, and later takes the result from them.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::mem::offset_of;
use std::os::unix::fs::FileExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{ChildStdin, Command, ExitStatus, Stdio};
use std::ptr::{from_mut, null_mut};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use beeline_e2e::Lines;
use libc::{c_int, c_uint, c_void, pid_t, user_regs_struct};

use crate::calls::{self, Call, Caller, Case};

/// The bytes of the failing thread's stack to search for callers.
const STACK: usize = 32 << 10;

/// A record of the command's calls.
#[derive(Default, Debug)]
pub struct Seen {
    /// The number of times each of [`calls::CALLS`] was made, by its name; complete if none was to
    /// fail.
    pub counts: BTreeMap<&'static str, u32>,
    /// The call that was made to fail.
    pub failed: Option<Failed>,
}

/// A call that was made to fail.
#[derive(Debug)]
pub struct Failed {
    /// The thread's name.
    pub thread: String,
    /// The object of its first argument: a descriptor's file, or a path.
    pub subject: String,
    /// Addresses in the program's file that lie on its stack: callers, and some former ones.
    callers: Vec<u64>,
}

impl Failed {
    /// Returns the functions of Beeline whose names and lines a stack has, innermost first.
    pub fn places(&self, program: &Path) -> Vec<String> {
        let mut command = Command::new("addr2line");
        command.args(["-Cfipe"]).arg(program);
        // An address on the stack is behind the call.
        command.args(self.callers.iter().map(|at| format!("{:#x}", at - 1)));
        let output = command.output().map(|output| output.stdout);
        let text = String::from_utf8_lossy(&output.unwrap_or_default()).into_owned();
        let own = text.lines().filter(|line| line.contains("crates/"));
        own.map(str::to_owned).collect()
    }
}

/// A running command.
pub struct Traced {
    pub stdin: Option<ChildStdin>,
    pub stdout: Lines,
    pub stderr: Lines,
    pub pid: pid_t,
    ended: Receiver<(ExitStatus, Seen)>,
}

impl Traced {
    /// Starts the command in a process group of its own. Given a case, makes that call of it fail.
    pub fn start(mut command: Command, case: Option<Case>) -> Traced {
        let (starts, started) = channel();
        let (ends, ended) = channel();
        // A tracee belongs to one thread.
        std::thread::spawn(move || {
            command
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
            command.process_group(0);
            // SAFETY: a system call without memory.
            unsafe { command.pre_exec(|| trace(libc::PTRACE_TRACEME, 0, 0, null_mut())) };
            #[allow(clippy::zombie_processes, reason = "the tracer takes its end")]
            let mut child = command.spawn().expect("the command can be run");
            let pid = child.id() as pid_t;
            let out = Lines::collect(child.stdout.take().expect("piped"));
            let err = Lines::collect(child.stderr.take().expect("piped"));
            let _ = starts.send((child.stdin.take(), out, err, pid));
            let mut tracer = Tracer::new(pid, case);
            let status = tracer.run();
            let _ = ends.send((status, tracer.seen));
        });
        let (stdin, stdout, stderr, pid) = started.recv().expect("it has been started");
        Traced {
            stdin,
            stdout,
            stderr,
            pid,
            ended,
        }
    }

    /// Waits for its end; `None` if that does not come in time.
    pub fn wait(&mut self, patience: Duration) -> Option<(ExitStatus, Seen)> {
        self.ended.recv_timeout(patience).ok()
    }

    /// Ends it at once.
    pub fn kill(&self) {
        // SAFETY: plain numbers. Its number is not given to another as long as the channel is
        // empty.
        unsafe { libc::kill(self.pid, libc::SIGKILL) };
    }
}

/// A thread's state.
#[derive(Clone, Copy, PartialEq)]
enum State {
    /// In nothing that matters.
    Running,
    /// In a call that is to fail by the case's error.
    Failing,
    /// In a `brk` with another argument than this, the thread's own.
    Asking(u64),
    /// Has this thread of a target make a call, whose result is to be the case's error.
    Borrowing(pid_t),
    /// In a request for the registers that have the result of such a call, to be written here.
    Taking(u64),
}

struct Tracer {
    pid: pid_t,
    case: Option<Case>,
    threads: HashMap<pid_t, State>,
    /// The request to resume a thread: with a stop at each of its calls, or without.
    go_on: c_uint,
    /// Calls of the loader, before the program itself asks for its standard files, do not count.
    has_begun: bool,
    seen: Seen,
}

impl Tracer {
    fn new(pid: pid_t, case: Option<Case>) -> Self {
        Tracer {
            pid,
            case,
            threads: HashMap::new(),
            go_on: libc::PTRACE_SYSCALL,
            has_begun: false,
            seen: Seen::default(),
        }
    }

    /// Follows all threads to their end. Returns the process's status.
    fn run(&mut self) -> ExitStatus {
        let (first, _) = wait_for(self.pid).expect("it stops when it has begun");
        let options =
            libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_EXITKILL;
        trace(
            libc::PTRACE_SETOPTIONS,
            first,
            0,
            options as usize as *mut c_void,
        )
        .expect("it has stopped");
        self.threads.insert(first, State::Running);
        let _ = trace(self.go_on, first, 0, null_mut());
        let mut ended = None;
        while let Some((tid, status)) = wait_for(-1) {
            if !libc::WIFSTOPPED(status) {
                self.threads.remove(&tid);
                if tid == self.pid {
                    ended = Some(ExitStatus::from_raw(status));
                }
                continue;
            }
            let signal = self.stopped(tid, status);
            // It may have been killed.
            let go_on = match self.threads[&tid] {
                State::Running => self.go_on,
                _ => libc::PTRACE_SYSCALL,
            };
            let _ = trace(go_on, tid, 0, signal as usize as *mut c_void);
        }
        ended.expect("the first thread ends last")
    }

    /// Handles a thread's stop; returns the signal to deliver to it.
    fn stopped(&mut self, tid: pid_t, status: c_int) -> c_int {
        const CALL: c_int = libc::SIGTRAP | 0x80;
        let is_new = !self.threads.contains_key(&tid);
        self.threads.entry(tid).or_insert(State::Running);
        match libc::WSTOPSIG(status) {
            CALL => {
                let _ = self.call(tid);
                0
            }
            _ if status >> 16 != 0 => 0,
            libc::SIGSTOP if is_new => 0,
            signal => signal,
        }
    }

    /// Handles the beginning or end of a thread's call.
    fn call(&mut self, tid: pid_t) -> io::Result<()> {
        if self.go_on == libc::PTRACE_CONT && self.threads[&tid] == State::Running {
            return Ok(());
        }
        let mut regs = registers(tid)?;
        let error = self.case.map_or(0, |case| case.error);
        let result = (-i64::from(error)).cast_unsigned();
        match self.threads.insert(tid, State::Running) {
            Some(State::Failing) => {
                regs.rax = result;
                return set_registers(tid, &mut regs);
            }
            Some(State::Asking(own)) => {
                regs.rdi = own;
                return set_registers(tid, &mut regs);
            }
            Some(State::Borrowing(target)) => {
                let takes = begins(tid) && ptrace_request(&regs) == (libc::PTRACE_GETREGS, target);
                let state = match takes {
                    true => State::Taking(regs.r10),
                    false => State::Borrowing(target),
                };
                self.threads.insert(tid, state);
                return Ok(());
            }
            Some(State::Taking(at)) => return write_rax(self.pid, at, result),
            _ => {}
        }
        if !begins(tid) {
            return Ok(());
        }
        let number = regs.orig_rax.cast_signed();
        self.has_begun |= number == libc::SYS_poll;
        if !self.has_begun {
            return Ok(());
        }
        if let Some(call) = calls::find(Caller::Beeline, number) {
            return self.own_call(tid, call, regs);
        }
        match ptrace_request(&regs) {
            (libc::PTRACE_SETREGS, target) => self.lent_call(tid, target, &regs),
            _ => Ok(()),
        }
    }

    /// Counts a call; true if it is the one to fail.
    fn is_it(&mut self, call: &'static Call) -> bool {
        let count = self.seen.counts.entry(call.name).or_default();
        *count += 1;
        self.case
            .is_some_and(|case| case.call == call && case.occurrence == *count)
    }

    /// Handles the beginning of a call of the command's own.
    fn own_call(
        &mut self,
        tid: pid_t,
        call: &'static Call,
        mut regs: user_regs_struct,
    ) -> io::Result<()> {
        if !self.is_it(call) {
            return Ok(());
        }
        let subject = subject(self.pid, &regs);
        // These fail only because a counter is full.
        if subject == "anon_inode:[eventfd]" && matches!(call.name, "read" | "write") {
            return Ok(());
        }
        self.note_failure(tid, subject, regs.rsp);
        if call.name == "brk" {
            // It returns the current end when it fails, which is what a request for the end 0
            // amounts to.
            self.threads.insert(tid, State::Asking(regs.rdi));
            regs.rdi = 0;
        } else {
            self.threads.insert(tid, State::Failing);
            regs.orig_rax = u64::MAX;
        }
        set_registers(tid, &mut regs)
    }

    /// Handles the beginning of a request that gives a target's thread registers: those of a call,
    /// perhaps.
    fn lent_call(&mut self, tid: pid_t, target: pid_t, regs: &user_regs_struct) -> io::Result<()> {
        const SYSCALL: [u8; 2] = [0x0f, 0x05];
        let word = |at: usize| {
            let bytes = memory(self.pid, regs.r10 + at as u64, 8);
            Some(u64::from_ne_bytes(bytes.try_into().ok()?))
        };
        let (Some(ip), Some(number), Some(restarted)) = (
            word(offset_of!(user_regs_struct, rip)),
            word(offset_of!(user_regs_struct, rax)),
            word(offset_of!(user_regs_struct, orig_rax)),
        ) else {
            return Ok(());
        };
        let is_call = restarted == u64::MAX && memory(target, ip, 2) == SYSCALL;
        let call = calls::find(Caller::Target, number.cast_signed()).filter(|_| is_call);
        if !call.is_some_and(|call| self.is_it(call)) {
            return Ok(());
        }
        self.note_failure(tid, format!("thread {target}"), regs.rsp);
        self.threads.insert(tid, State::Borrowing(target));
        // No call has this number.
        write_rax(self.pid, regs.r10, u64::MAX)
    }

    /// Notes who made the failing call; no other one matters from now on.
    fn note_failure(&mut self, tid: pid_t, subject: String, stack: u64) {
        let thread = fs::read_to_string(format!("/proc/{tid}/comm")).unwrap_or_default();
        self.seen.failed = Some(Failed {
            thread: thread.trim().to_owned(),
            subject,
            callers: callers(self.pid, stack),
        });
        self.go_on = libc::PTRACE_CONT;
    }
}

/// Returns whether the thread has stopped at a call's beginning.
fn begins(tid: pid_t) -> bool {
    const ENTRY: u8 = 1;
    let mut info = [0u8; 128];
    let length = info.len() as i64;
    let asked = trace(
        libc::PTRACE_GET_SYSCALL_INFO,
        tid,
        length,
        info.as_mut_ptr().cast(),
    );
    asked.is_ok() && info[0] == ENTRY
}

/// Returns the request of ptrace's that a thread makes with these registers, and the thread that it
/// is for; zeroes if it makes another call.
fn ptrace_request(regs: &user_regs_struct) -> (c_uint, pid_t) {
    match regs.orig_rax.cast_signed() {
        libc::SYS_ptrace => (regs.rdi as c_uint, regs.rsi as pid_t),
        _ => (0, 0),
    }
}

/// Writes `rax` of a `struct user_regs_struct` in a process's memory.
fn write_rax(pid: pid_t, at: u64, rax: u64) -> io::Result<()> {
    let file = fs::OpenOptions::new()
        .write(true)
        .open(format!("/proc/{pid}/mem"))?;
    let place = at + offset_of!(user_regs_struct, rax) as u64;
    file.write_all_at(&rax.to_ne_bytes(), place)
}

fn registers(tid: pid_t) -> io::Result<user_regs_struct> {
    // SAFETY: plain integers, for which zero is good.
    let mut regs: user_regs_struct = unsafe { std::mem::zeroed() };
    trace(libc::PTRACE_GETREGS, tid, 0, from_mut(&mut regs).cast())?;
    Ok(regs)
}

fn set_registers(tid: pid_t, regs: &mut user_regs_struct) -> io::Result<()> {
    trace(libc::PTRACE_SETREGS, tid, 0, from_mut(regs).cast())
}

/// A request whose only result is success. `data` points to memory of the size that the request
/// demands.
fn trace(request: c_uint, tid: pid_t, address: i64, data: *mut c_void) -> io::Result<()> {
    // SAFETY: callers give each request what it demands: memory of its size, or a number.
    let result = unsafe { libc::ptrace(request, tid, address, data) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Returns the next of this thread's tracees that stops or ends, and its status; `None` when there
/// are none.
fn wait_for(pid: pid_t) -> Option<(pid_t, c_int)> {
    let mut status = 0;
    loop {
        // SAFETY: writes one integer.
        let tid = unsafe { libc::waitpid(pid, &raw mut status, libc::__WALL | libc::__WNOTHREAD) };
        if tid > 0 {
            return Some((tid, status));
        }
        if io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
            return None;
        }
    }
}

/// Describes the object of a call, by its first two arguments.
fn subject(pid: pid_t, regs: &user_regs_struct) -> String {
    let file = |fd: u64| {
        let link = fs::read_link(format!("/proc/{pid}/fd/{}", fd as i32));
        link.map(|link| link.display().to_string())
            .unwrap_or_default()
    };
    match regs.orig_rax.cast_signed() {
        libc::SYS_openat => text(pid, regs.rsi),
        libc::SYS_open | libc::SYS_memfd_create => text(pid, regs.rdi),
        libc::SYS_mmap | libc::SYS_mprotect | libc::SYS_mremap | libc::SYS_madvise => {
            format!("{:#x} bytes", regs.rsi)
        }
        libc::SYS_process_vm_readv | libc::SYS_process_vm_writev | libc::SYS_pidfd_open => {
            format!("process {}", regs.rdi as i32)
        }
        libc::SYS_fcntl => format!("{} {}", file(regs.rdi), regs.rsi),
        libc::SYS_clone | libc::SYS_clone3 | libc::SYS_fork | libc::SYS_vfork => String::new(),
        _ => file(regs.rdi),
    }
}

/// Reads memory of a process from an address on, as far as possible.
fn memory(pid: pid_t, address: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    let local = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: length,
    };
    let remote = libc::iovec {
        iov_base: address as *mut c_void,
        iov_len: length,
    };
    // SAFETY: writes at most `length` bytes to `bytes`.
    let read = unsafe { libc::process_vm_readv(pid, &local, 1, &remote, 1, 0) };
    bytes.truncate(usize::try_from(read).unwrap_or(0));
    bytes
}

fn text(pid: pid_t, address: u64) -> String {
    let to_the_page = 4096 - (address % 4096) as usize;
    let bytes = memory(pid, address, to_the_page);
    let end = bytes
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

fn callers(pid: pid_t, stack: u64) -> Vec<u64> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    let ranges: Vec<(u64, u64, bool)> = maps
        .lines()
        .filter(|line| line.ends_with(&*program.to_string_lossy()))
        .filter_map(|line| {
            let (range, rest) = line.split_once(' ')?;
            let (start, end) = range.split_once('-')?;
            let number = |text| u64::from_str_radix(text, 16).ok();
            Some((number(start)?, number(end)?, rest.starts_with("r-x")))
        })
        .collect();
    let base = ranges.first().map_or(0, |(start, ..)| *start);
    let is_code = |word: &u64| {
        ranges
            .iter()
            .any(|(start, end, runs)| *runs && (*start..*end).contains(word))
    };
    let bytes = memory(pid, stack, STACK);
    let words = bytes
        .chunks_exact(8)
        .map(|word| u64::from_ne_bytes(word.try_into().expect("eight")));
    words
        .filter(is_code)
        .map(|word| word - base)
        .take(60)
        .collect()
}

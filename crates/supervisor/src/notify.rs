//! The kernel's side of the conversation: a seccomp listener, the calls that it delivers, and their
//! answers.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use beeline_agent::trapped;
use beeline_inject::procfs;
use beeline_uapi::linux::SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP;
use beeline_uapi::{Command, Errno};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::interception::Interception;
use crate::tool_call::ToolCall;

/// A system call of the tool that waits for its answer.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    /// The kernel's cookie for this call.
    pub id: u64,
    /// The calling thread.
    pub tid: i32,
    /// The system call number, the machine's.
    pub nr: i64,
    /// The instruction after the one that made the call.
    pub ip: u64,
    /// The arguments, which are not to be trusted.
    pub args: [u64; 6],
    /// True if the handler of SIGSYS in the tool has forwarded the call; see
    /// [`Interception::Signals`](crate::Interception::Signals).
    pub is_forwarded: bool,
}

impl Request {
    /// Returns the kind of the call.
    pub fn asked(&self) -> ToolCall {
        ToolCall::of(self.nr, self.args)
    }

    /// Returns the command of `bpf(2)`, if that is the call.
    pub fn bpf_command(&self) -> Option<Command> {
        match self.asked() {
            ToolCall::Bpf { command, .. } => Some(command),
            _ => None,
        }
    }

    /// Returns the process that the thread belongs to; the thread's own number if it is gone.
    pub fn process(&self) -> i32 {
        procfs::process_of(self.tid).unwrap_or(self.tid)
    }

    /// Returns whether the thread is about to run another program.
    fn runs_program(&self) -> bool {
        self.asked() == ToolCall::RunProgram
    }

    /// Returns the reply to a call that the kernel makes as if there were no supervisor.
    pub fn pass(&self) -> Reply {
        match self.is_forwarded {
            true => Reply::Value(trapped::PASS),
            false => Reply::Continue,
        }
    }

    /// Takes a call that was forwarded for what it was.
    fn unwrapped(self) -> Self {
        let [option, arguments @ ..] = self.args;
        if self.nr != libc::SYS_prctl || option & !trapped::NUMBER_MASK != trapped::FORWARDED {
            return self;
        }
        let nr = (option & trapped::NUMBER_MASK) as i64;
        let mut args = [0; 6];
        args[..trapped::ARGUMENTS].copy_from_slice(&arguments);
        let ip = match nr {
            libc::SYS_bpf => std::mem::take(&mut args[trapped::ARGUMENTS - 1]),
            _ => self.ip,
        };
        let is_forwarded = true;
        Self {
            nr,
            ip,
            args,
            is_forwarded,
            ..self
        }
    }

    /// Writes its cookie to a file.
    fn write_to(&self, file: &File) {
        // A memory file always takes 8 bytes.
        let _ = file.write_all_at(&self.id.to_ne_bytes(), 0);
    }
}

/// The answer to a call.
#[derive(Debug)]
pub enum Reply {
    /// The call returns this value.
    Value(i64),
    /// The call returns a new descriptor of this file.
    Descriptor {
        /// The file.
        file: OwnedFd,
        /// True if the descriptor is closed on `execve`.
        cloexec: bool,
    },
    /// The kernel makes the call as if there were no supervisor.
    Continue,
    /// The tool makes its `epoll_ctl(2)`, which was forwarded, for a new descriptor of this file,
    /// edge-triggered. The descriptor stays open in the tool until it runs another program.
    Watch(OwnedFd),
    /// The call has been answered already.
    Answered,
}

/// The descriptor that seccomp returned for the filter, and its copies.
#[derive(Debug, Clone)]
pub struct Listener {
    fd: Arc<OwnedFd>,
    /// The file that receives the last call's cookie, for the process that takes over should this
    /// one be killed.
    last: Option<Arc<File>>,
    /// A call that was taken already and comes next.
    first: Arc<Mutex<Option<Request>>>,
    /// An eventfd that is readable when no more calls are to be taken.
    stop: Arc<OwnedFd>,
    /// The bytes that this kernel writes for a request, which may be more than this program knows.
    request_len: usize,
}

impl Listener {
    /// Listens on a descriptor that seccomp(2) returned.
    ///
    /// # Errors
    /// This process has no descriptors left.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        let mut sizes = libc::seccomp_notif_sizes {
            seccomp_notif: 0,
            seccomp_notif_resp: 0,
            seccomp_data: 0,
        };
        // SAFETY: GET_NOTIF_SIZES writes one seccomp_notif_sizes to its third argument, which
        // points to one.
        let result = unsafe {
            libc::syscall(
                libc::SYS_seccomp,
                libc::SECCOMP_GET_NOTIF_SIZES,
                0,
                &raw mut sizes,
            )
        };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        let request_len = usize::from(sizes.seccomp_notif).max(size_of::<libc::seccomp_notif>());
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let listener = Listener {
            fd: Arc::new(fd),
            last: None,
            first: Arc::default(),
            stop: Arc::new(eventfd(0, flags)?),
            request_len,
        };
        listener.wake_on_the_same_cpu();
        Ok(listener)
    }

    /// Asks the kernel to wake the supervisor on the tool's CPU (Linux 6.6 on; nothing changes on
    /// others). The tool sleeps until it is answered, so the supervisor may take its CPU at once.
    fn wake_on_the_same_cpu(&self) {
        // SAFETY: SET_FLAGS takes its argument by value.
        unsafe {
            libc::ioctl(
                self.fd.as_raw_fd(),
                libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS,
                SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP,
            )
        };
    }

    /// Writes the cookie of each call that is taken to a file.
    ///
    /// It writes the 8 bytes before it looks at the call.
    pub fn write_last_to(&mut self, file: File) {
        let file = self.last.insert(Arc::new(file));
        if let Some(first) = &*self.first.lock() {
            first.write_to(file);
        }
    }

    /// Lets the kernel run the first program under the filter, until `begun` hangs up.
    ///
    /// The hang-up says that the program has started, or cannot. A call that the program itself
    /// makes meanwhile waits for [`Self::receive`]. The program is prepared
    /// for `interception`.
    pub fn let_begin(&self, begun: BorrowedFd<'_>, interception: &Interception) {
        loop {
            let mut ready = [
                PollFd::new(&*self.fd, PollFlags::IN),
                PollFd::new(&begun, PollFlags::empty()),
            ];
            match poll(&mut ready, None) {
                Err(rustix::io::Errno::INTR) => continue,
                Err(_) => return,
                Ok(_) => {}
            }
            let [call, begun] = ready.map(|ready| ready.revents());
            if !begun.is_empty() || !call.contains(PollFlags::IN) {
                return;
            }
            match self.take() {
                Some(request) if request.runs_program() => {
                    self.answer(request.id, interception.pass(&request));
                }
                Some(request) => {
                    *self.first.lock() = Some(request);
                    return;
                }
                None => {}
            }
        }
    }

    /// Lets the kernel make the calls up to this cookie that another process took and did not
    /// answer.
    ///
    /// Cookies rise by one.
    pub fn let_pass_until(&self, last: u64) {
        const TAKEN_AT_ONCE: u64 = 1 << 20;
        // The process may have been killed before it could write.
        let last = last.wrapping_add(1);
        for back in (0..TAKEN_AT_ONCE).rev() {
            self.answer(last.wrapping_sub(back), Ok(Reply::Continue));
        }
    }

    /// Returns an eventfd that ends [`Self::receive`] when 8 bytes are written to it.
    ///
    /// A signal handler may do that.
    ///
    /// # Errors
    ///
    /// The system's error if the descriptor cannot be duplicated.
    pub fn stopper(&self) -> io::Result<OwnedFd> {
        self.stop.try_clone()
    }

    /// Ends [`Self::receive`].
    pub fn stop(&self) {
        // Fails only when the eventfd is readable already.
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
    }

    /// Waits for [`Self::stop`]; returns false if the time passes first.
    pub fn is_stopped_within(&self, time: Duration) -> bool {
        let time = Timespec::try_from(time).ok();
        let mut stop = [PollFd::new(&*self.stop, PollFlags::IN)];
        poll(&mut stop, time.as_ref()).is_ok_and(|ready| ready > 0)
    }

    /// Returns whether there is still a process under the filter.
    pub fn has_callers(&self) -> bool {
        let mut fd = [PollFd::new(&*self.fd, PollFlags::empty())];
        let now = Timespec::default();
        poll(&mut fd, Some(&now)).is_ok() && !fd[0].revents().contains(PollFlags::HUP)
    }

    /// Waits for the hang-up of `lifeline`; returns false if no process is left under the filter
    /// before.
    ///
    /// # Errors
    ///
    /// The system's error of poll(2).
    pub fn waits_for_hang_up(&self, lifeline: &OwnedFd) -> io::Result<bool> {
        loop {
            let mut ready = [
                PollFd::new(&*self.fd, PollFlags::empty()),
                PollFd::new(lifeline, PollFlags::empty()),
            ];
            match poll(&mut ready, None) {
                Err(rustix::io::Errno::INTR) => continue,
                outcome => outcome?,
            };
            if ready[0].revents().contains(PollFlags::HUP) {
                return Ok(false);
            }
            if !ready[1].revents().is_empty() {
                return Ok(true);
            }
        }
    }

    /// Returns a copy of the kernel's descriptor, for another process.
    ///
    /// # Errors
    ///
    /// The system's error if the descriptor cannot be duplicated.
    pub fn share(&self) -> io::Result<OwnedFd> {
        self.fd.try_clone()
    }

    /// Waits for the next call; returns `None` when no process is left under the filter, or after
    /// [`Self::stop`].
    pub fn receive(&self) -> Option<Request> {
        if let Some(first) = self.first.lock().take() {
            return Some(first);
        }
        loop {
            let mut ready = [
                PollFd::new(&*self.fd, PollFlags::IN),
                PollFd::new(&*self.stop, PollFlags::IN),
            ];
            match poll(&mut ready, None) {
                Err(rustix::io::Errno::INTR) => continue,
                Err(_) => return None,
                Ok(_) => {}
            }
            let [call, stop] = ready.map(|ready| ready.revents());
            if !call.contains(PollFlags::IN) || !stop.is_empty() {
                return None;
            }
            if let Some(request) = self.take() {
                if let Some(last) = &self.last {
                    request.write_to(last);
                }
                return Some(request);
            }
        }
    }

    /// Takes one request; returns `None` if its thread was killed or interrupted meanwhile.
    fn take(&self) -> Option<Request> {
        let mut buffer = vec![0u64; self.request_len.div_ceil(8)];
        // SAFETY: the buffer is zeroed, as the kernel demands, and has as many bytes as the kernel
        // said it writes.
        let result = unsafe {
            libc::ioctl(
                self.fd.as_raw_fd(),
                libc::SECCOMP_IOCTL_NOTIF_RECV,
                buffer.as_mut_ptr(),
            )
        };
        if result < 0 {
            return None;
        }
        // SAFETY: the buffer is aligned to 8 and holds at least a seccomp_notif, for which any
        // bytes are valid.
        let notif = unsafe { buffer.as_ptr().cast::<libc::seccomp_notif>().read() };
        let request = Request {
            id: notif.id,
            tid: notif.pid as i32,
            nr: i64::from(notif.data.nr),
            ip: notif.data.instruction_pointer,
            args: notif.data.args,
            is_forwarded: false,
        };
        Some(request.unwrapped())
    }

    /// Returns whether the call still waits.
    ///
    /// Data read from the thread's memory may be another's until this has returned true after the
    /// read.
    pub fn waits(&self, id: u64) -> bool {
        // SAFETY: ID_VALID reads one u64.
        unsafe {
            libc::ioctl(
                self.fd.as_raw_fd(),
                libc::SECCOMP_IOCTL_NOTIF_ID_VALID,
                &raw const id,
            ) == 0
        }
    }

    /// Answers a call; returns `false` if the caller is no longer there to take the answer.
    pub fn answer(&self, id: u64, reply: Result<Reply, Errno>) -> bool {
        match reply {
            Ok(Reply::Answered) => true,
            Ok(Reply::Value(value)) => self.send(id, value, 0, 0),
            Ok(Reply::Continue) => {
                self.send(id, 0, 0, libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32)
            }
            Ok(Reply::Descriptor { file, cloexec }) => {
                self.is_sent(id, self.install(id, file.as_fd(), cloexec))
            }
            Ok(Reply::Watch(file)) => match self.give(id, file.as_fd()) {
                Ok(fd) => self.send(id, trapped::WATCH + i64::from(fd), 0, 0),
                failed => self.is_sent(id, failed.map(drop)),
            },
            Err(Errno(errno)) => self.send(id, 0, -errno, 0),
        }
    }

    /// Tells the tool of a descriptor that it did not get: it has too many files open, unless it is
    /// gone.
    fn is_sent(&self, id: u64, outcome: Result<(), Errno>) -> bool {
        let Err(Errno(errno)) = outcome else {
            return true;
        };
        self.send(id, 0, -errno, 0);
        false
    }

    fn send(&self, id: u64, val: i64, error: i32, flags: u32) -> bool {
        let response = libc::seccomp_notif_resp {
            id,
            val,
            error,
            flags,
        };
        // SAFETY: SEND reads one seccomp_notif_resp.
        unsafe {
            libc::ioctl(
                self.fd.as_raw_fd(),
                libc::SECCOMP_IOCTL_NOTIF_SEND,
                &raw const response,
            ) == 0
        }
    }

    /// Replaces a descriptor of the tool with a file. The tool's call keeps waiting.
    ///
    /// # Errors
    ///
    /// The kernel's of `SECCOMP_IOCTL_NOTIF_ADDFD`: ENOENT if the call no longer waits, for
    /// example.
    pub fn replace(
        &self,
        id: u64,
        fd: i32,
        file: BorrowedFd<'_>,
        cloexec: bool,
    ) -> Result<(), Errno> {
        self.add(libc::seccomp_notif_addfd {
            id,
            flags: libc::SECCOMP_ADDFD_FLAG_SETFD as u32,
            srcfd: file.as_raw_fd() as u32,
            newfd: fd as u32,
            newfd_flags: if cloexec { libc::O_CLOEXEC as u32 } else { 0 },
        })
        .map(drop)
    }

    /// Puts a file into the tool, whose call keeps waiting, and returns its number there.
    fn give(&self, id: u64, file: BorrowedFd<'_>) -> Result<i32, Errno> {
        self.add(libc::seccomp_notif_addfd {
            id,
            flags: 0,
            srcfd: file.as_raw_fd() as u32,
            newfd: 0,
            newfd_flags: libc::O_CLOEXEC as u32,
        })
    }

    /// Puts a file into the tool and answers with its number, in one atomic step.
    fn install(&self, id: u64, file: BorrowedFd<'_>, cloexec: bool) -> Result<(), Errno> {
        self.add(libc::seccomp_notif_addfd {
            id,
            flags: libc::SECCOMP_ADDFD_FLAG_SEND as u32,
            srcfd: file.as_raw_fd() as u32,
            newfd: 0,
            newfd_flags: if cloexec { libc::O_CLOEXEC as u32 } else { 0 },
        })
        .map(drop)
    }

    /// Returns the number of the new descriptor in the tool.
    fn add(&self, request: libc::seccomp_notif_addfd) -> Result<i32, Errno> {
        // SAFETY: ADDFD reads one seccomp_notif_addfd.
        let result = unsafe {
            libc::ioctl(
                self.fd.as_raw_fd(),
                libc::SECCOMP_IOCTL_NOTIF_ADDFD,
                &raw const request,
            )
        };
        if result < 0 {
            return Err(Errno(
                io::Error::last_os_error()
                    .raw_os_error()
                    .unwrap_or(libc::EIO),
            ));
        }
        Ok(result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forwarded_call_is_taken_for_what_it_was() {
        let forwarded = |nr: i64, args: [u64; 5]| {
            let [a, b, c, d, e] = args;
            let request = Request {
                id: 1,
                tid: 2,
                nr: libc::SYS_prctl,
                ip: 0x1000,
                args: [trapped::FORWARDED | nr as u64, a, b, c, d, e],
                is_forwarded: false,
            };
            request.unwrapped()
        };
        let bpf = forwarded(libc::SYS_bpf, [1, 0x2000, 120, 0, 0x4000]);
        assert_eq!((bpf.nr, bpf.ip), (libc::SYS_bpf, 0x4000));
        assert_eq!(bpf.args, [1, 0x2000, 120, 0, 0, 0]);
        let open = forwarded(libc::SYS_perf_event_open, [1, 2, 3, 4, 5]);
        assert_eq!((open.nr, open.ip), (libc::SYS_perf_event_open, 0x1000));
        assert_eq!(open.args, [1, 2, 3, 4, 5, 0]);
        assert!(matches!(open.pass(), Reply::Value(trapped::PASS)));
        let own = Request {
            args: [libc::PR_SET_NAME as u64, 0, 0, 0, 0, 0],
            is_forwarded: false,
            nr: libc::SYS_prctl,
            ..open
        };
        assert_eq!(own.unwrapped().nr, libc::SYS_prctl);
        assert!(matches!(own.unwrapped().pass(), Reply::Continue));
    }
}

//! One system call of the tool, with its process, descriptors and paths.

use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use beeline_inject::procfs;
use beeline_uapi::Errno;
use beeline_uapi::linux::{NAME_MAX, PAGE_SIZE, Statfs};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use zerocopy::IntoBytes;

use crate::memory::Memory;
use crate::notify::{Listener, Reply, Request};

const ENOENT: Errno = Errno(libc::ENOENT);

/// The directory argument for calls that have none: the tool's own directory.
pub const HERE: u64 = libc::AT_FDCWD as u64;

/// The reply to a call, or the errno with which it fails.
pub type Answer = Result<Reply, Errno>;

/// One system call of the tool.
#[derive(Clone, Copy)]
pub struct Call<'a> {
    /// The memory of the calling thread.
    pub memory: Memory<'a>,
    /// The listener that the call came from.
    pub listener: &'a Listener,
    /// The kernel's cookie for the call.
    pub id: u64,
    /// The calling thread.
    pub tid: i32,
    /// The arguments, which are not to be trusted.
    pub args: [u64; 6],
    /// As [`Request::is_forwarded`](crate::Request::is_forwarded).
    pub is_forwarded: bool,
    /// See [`Self::let_others_lead`].
    pub let_lead: &'a dyn Fn(),
}

impl<'a> Call<'a> {
    /// Refers to a call that waits for its answer.
    pub fn new(listener: &'a Listener, request: &'a Request, let_lead: &'a dyn Fn()) -> Self {
        Call {
            memory: Memory::new(listener, request),
            listener,
            id: request.id,
            tid: request.tid,
            args: request.args,
            is_forwarded: request.is_forwarded,
            let_lead,
        }
    }
}

impl Call<'_> {
    /// Lets another thread take the tool's next call, if none is waiting for it yet.
    ///
    /// Must be called before this call waits for anything.
    pub fn let_others_lead(&self) {
        (self.let_lead)();
    }

    /// Returns whether a descriptor of the tool's is closed on `execve`.
    pub fn closes_on_exec(&self, fd: i32) -> bool {
        let text = std::fs::read_to_string(format!("/proc/{}/fdinfo/{fd}", self.tid));
        let text = text.unwrap_or_default();
        let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
        let flags = flags.and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok());
        flags.is_none_or(|flags| flags & libc::O_CLOEXEC != 0)
    }

    /// Opens one of the tool's open files here.
    ///
    /// # Errors
    ///
    /// ESRCH if the process has ended, EBADF if it has no such descriptor, and others of
    /// pidfd_open(2) and pidfd_getfd(2).
    pub fn tool_file(&self, fd: i32) -> Result<OwnedFd, Errno> {
        let process = Pid::from_raw(self.process()?).ok_or(Errno(libc::ESRCH))?;
        let pidfd = pidfd_open(process, PidfdFlags::empty())
            .map_err(|error| Errno(error.raw_os_error()))?;
        pidfd_getfd(pidfd, fd, PidfdGetfdFlags::empty())
            .map_err(|error| Errno(error.raw_os_error()))
    }

    /// Returns the process of the calling thread.
    ///
    /// # Errors
    ///
    /// ESRCH if the thread has ended.
    pub fn process(&self) -> Result<i32, Errno> {
        procfs::process_of(self.tid).ok_or(Errno(libc::ESRCH))
    }

    /// Returns the number in a path `/proc/self/DIRECTORY/NUMBER`, in any of the forms by which the
    /// tool can name itself.
    pub fn own_descriptor(&self, path: &[u8], directory: &str) -> Option<i32> {
        let path = std::str::from_utf8(path).ok()?;
        let (process, rest) = path.strip_prefix("/proc/")?.split_once('/')?;
        let number = rest.strip_prefix(directory)?.strip_prefix('/')?;
        let own = match process {
            "self" | "thread-self" => true,
            pid => Some(pid.parse::<i32>().ok()?) == self.process().ok(),
        };
        own.then(|| number.parse().ok()).flatten()
    }

    /// Writes a structure in the kernel's layout.
    ///
    /// # Errors
    ///
    /// Those of [`Memory::write`].
    pub fn write_struct<T>(&self, buffer: u64, value: &T) -> Answer {
        // SAFETY: the kernel filled the structure, padding included, so all of its bytes are
        // initialized and can be read as plain bytes.
        let bytes = unsafe {
            std::slice::from_raw_parts(std::ptr::from_ref(value).cast::<u8>(), size_of::<T>())
        };
        self.memory.write(buffer, bytes)?;
        Ok(Reply::Value(0))
    }

    /// Returns the absolute path for a path of the tool's, given the directory that it is relative
    /// to.
    ///
    /// # Errors
    ///
    /// EBADF if the directory cannot be resolved.
    pub fn absolute(&self, directory: i32, path: &[u8]) -> Result<PathBuf, Errno> {
        let path = Path::new(std::ffi::OsStr::from_bytes(path));
        if path.is_absolute() {
            return Ok(path.to_owned());
        }
        let base = match directory {
            libc::AT_FDCWD => format!("/proc/{}/cwd", self.tid),
            fd => format!("/proc/{}/fd/{fd}", self.tid),
        };
        let base = std::fs::read_link(base).map_err(|_| Errno(libc::EBADF))?;
        Ok(base.join(path))
    }

    /// Translates a path of the tool's, which may be relative to its directory or name the tool
    /// itself.
    ///
    /// # Errors
    ///
    /// ENOENT for an empty path, or if the working directory cannot be resolved; ESRCH if the
    /// thread has ended.
    pub fn path_as_seen_here(&self, path: Vec<u8>) -> Result<PathBuf, Errno> {
        let path = PathBuf::from(std::ffi::OsString::from_vec(path));
        if path.as_os_str().is_empty() {
            return Err(ENOENT);
        }
        for (own, tool) in [
            ("/proc/self", self.process()?),
            ("/proc/thread-self", self.tid),
        ] {
            if let Ok(rest) = path.strip_prefix(own) {
                return Ok(Path::new("/proc").join(tool.to_string()).join(rest));
            }
        }
        if path.as_os_str().as_bytes().starts_with(b"/") {
            return Ok(path);
        }
        let directory =
            std::fs::read_link(format!("/proc/{}/cwd", self.tid)).map_err(|_| ENOENT)?;
        Ok(directory.join(path))
    }

    /// Writes a `struct statfs` as the kernel's in-memory file systems fill it.
    ///
    /// # Errors
    ///
    /// Those of [`Memory::write`].
    pub fn write_statfs(&self, buffer: u64, magic: u64) -> Answer {
        let answer = Statfs {
            f_type: magic,
            f_bsize: PAGE_SIZE,
            f_namelen: NAME_MAX as u64,
            f_frsize: PAGE_SIZE,
            ..Statfs::default()
        };
        self.memory.write(buffer, answer.as_bytes())?;
        Ok(Reply::Value(0))
    }

    /// Writes the answer of `readlink`: as much of the text as there is room for.
    ///
    /// # Errors
    ///
    /// EINVAL if there is no room, and those of [`Memory::write`].
    pub fn write_link(&self, text: &str, buffer: u64, size: u64) -> Answer {
        if (size as i32) <= 0 {
            return Err(Errno(libc::EINVAL));
        }
        let text = text.as_bytes();
        let text = text.get(..size as usize).unwrap_or(text);
        self.memory.write(buffer, text)?;
        Ok(Reply::Value(text.len() as i64))
    }
}

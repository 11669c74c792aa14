//! Clocks of the tool's own: a time namespace (time_namespaces(7)), which the tool's process enters
//! before it runs the tool.
//!
//! A tool compares the times that its programs have read with its own clock, most often by the vDSO,
//! where nothing can be intercepted. In the namespace the kernel itself sets the tool's clocks: by
//! the vDSO and by system calls, for timers and for times to wait until, in all programs that the
//! tool starts.
//!
//! That takes CAP_SYS_ADMIN and CAP_SYS_TIME. An ordinary user has them in a user namespace of his
//! own, where the tool keeps its user and group, and all other ids show as the overflow id.

use std::ffi::CStr;
use std::io::{self, PipeReader, PipeWriter, Read};
use std::os::fd::AsRawFd;

/// Nanoseconds in a second.
const SECOND: i64 = 1_000_000_000;

/// Nanoseconds by which the tool's clocks are ahead of the machine's (of its first time namespace).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Clocks {
    /// `CLOCK_MONOTONIC`, `CLOCK_MONOTONIC_RAW` and `CLOCK_MONOTONIC_COARSE`.
    pub monotonic: i64,
    /// `CLOCK_BOOTTIME`.
    pub boottime: i64,
}

impl Clocks {
    /// Fails if a process of this one's cannot have such clocks.
    ///
    /// It tries in a child, as there is no way back: a process may be able to make a user namespace,
    /// but not to be anybody in it.
    ///
    /// # Errors
    ///
    /// The step that fails, with the kernel's error.
    pub fn try_out(self) -> Result<(), ClockError> {
        let failed = |source| ClockError {
            step: Step::Make,
            source,
        };
        let (entry, report) = Entry::new(self).map_err(failed)?;
        // SAFETY: the child makes system calls only, and runs nothing else of this process.
        match unsafe { libc::fork() } {
            -1 => Err(failed(io::Error::last_os_error())),
            0 => {
                entry.enter();
                // SAFETY: ends the child, without this process's handlers.
                unsafe { libc::_exit(0) }
            }
            child => {
                drop(entry);
                let entered = entered(report);
                // SAFETY: waits for the child that was made here, and wants no status.
                unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
                entered
            }
        }
    }
}

/// The reason why the tool has the machine's clocks.
#[derive(Debug, thiserror::Error)]
#[error("{step}: {source}")]
pub struct ClockError {
    step: Step,
    source: io::Error,
}

/// A step into the namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Step {
    Make = 1,
    Map,
    Set,
    Enter,
}

impl std::fmt::Display for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Step::Make => "no time namespace can be made",
            Step::Map => "no user namespace can be set up",
            Step::Set => "the clocks of a time namespace cannot be set",
            Step::Enter => "a time namespace cannot be entered",
        })
    }
}

/// All that a child needs to enter its namespace: it may not allocate between fork and exec.
pub(crate) struct Entry {
    offsets: String,
    /// The maps of users and of groups for a user namespace; none for root, who would lose the
    /// rights over all other users' files in it.
    ids: Option<[String; 2]>,
    report: PipeWriter,
}

impl Entry {
    /// Prepares an entry. The reader gets the child's report.
    pub(crate) fn new(clocks: Clocks) -> io::Result<(Self, PipeReader)> {
        let (reader, report) = io::pipe()?;
        let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
        let only = |id: u32| format!("{id} {id} 1\n");
        let ids = (!user.is_root()).then(|| [only(user.as_raw()), only(group.as_raw())]);
        let entry = Self {
            offsets: offsets(clocks),
            ids,
            report,
        };
        Ok((entry, reader))
    }

    /// Enters the namespace, and reports a failure. For a child that has one thread; makes system
    /// calls only.
    pub(crate) fn enter(&self) {
        let Err((step, error)) = self.try_to_enter() else {
            return;
        };
        let errno = error.raw_os_error().unwrap_or(0).to_ne_bytes();
        let mut report = [step as u8, 0, 0, 0, 0];
        report[1..].copy_from_slice(&errno);
        // SAFETY: the bytes are readable. They fit into the pipe, so the call does not wait.
        unsafe {
            libc::write(
                self.report.as_raw_fd(),
                report.as_ptr().cast(),
                report.len(),
            )
        };
    }

    fn try_to_enter(&self) -> Result<(), (Step, io::Error)> {
        match (unshare(libc::CLONE_NEWTIME), &self.ids) {
            (Err(error), Some([users, groups])) if error.raw_os_error() == Some(libc::EPERM) => {
                unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWTIME)
                    .map_err(|error| (Step::Make, error))?;
                // The kernel asks for the first from those who have no rights over groups.
                write(c"/proc/self/setgroups", b"deny")
                    .and_then(|()| write(c"/proc/self/gid_map", groups.as_bytes()))
                    .and_then(|()| write(c"/proc/self/uid_map", users.as_bytes()))
                    .map_err(|error| (Step::Map, error))?;
            }
            (made, _) => made.map_err(|error| (Step::Make, error))?,
        }
        write(c"/proc/self/timens_offsets", self.offsets.as_bytes())
            .map_err(|error| (Step::Set, error))?;
        join(c"/proc/self/ns/time_for_children").map_err(|error| (Step::Enter, error))
    }
}

/// Returns the child's report. Waits until it has run another program, or ended.
pub(crate) fn entered(mut report: PipeReader) -> Result<(), ClockError> {
    let mut bytes = Vec::new();
    let read = report.read_to_end(&mut bytes);
    let steps = [Step::Make, Step::Map, Step::Set, Step::Enter];
    let said = bytes.split_first_chunk::<1>().and_then(|([step], errno)| {
        let step = steps.into_iter().find(|known| *known as u8 == *step)?;
        let errno = i32::from_ne_bytes(errno.try_into().ok()?);
        let source = io::Error::from_raw_os_error(errno);
        Some(ClockError { step, source })
    });
    match (said, read) {
        (Some(error), _) => Err(error),
        (None, Ok(_)) => Ok(()),
        (None, Err(source)) => Err(ClockError {
            step: Step::Enter,
            source,
        }),
    }
}

/// Returns the lines for `/proc/PID/timens_offsets`.
fn offsets(clocks: Clocks) -> String {
    let line = |clock: &str, offset: i64| {
        let (seconds, rest) = (offset.div_euclid(SECOND), offset.rem_euclid(SECOND));
        format!("{clock} {seconds} {rest}\n")
    };
    line("monotonic", clocks.monotonic) + &line("boottime", clocks.boottime)
}

fn unshare(what: libc::c_int) -> io::Result<()> {
    // SAFETY: takes its argument by value; the caller wants new namespaces.
    done(unsafe { libc::unshare(what) }.into())
}

fn write(path: &CStr, content: &[u8]) -> io::Result<()> {
    let file = open(path, libc::O_WRONLY)?;
    // SAFETY: the content is readable.
    let written = done(unsafe { libc::write(file, content.as_ptr().cast(), content.len()) } as i64);
    // SAFETY: it was opened here.
    unsafe { libc::close(file) };
    written
}

fn join(path: &CStr) -> io::Result<()> {
    let file = open(path, libc::O_RDONLY)?;
    // SAFETY: takes its arguments by value.
    let joined = done(unsafe { libc::setns(file, libc::CLONE_NEWTIME) }.into());
    // SAFETY: it was opened here.
    unsafe { libc::close(file) };
    joined
}

fn open(path: &CStr, flags: libc::c_int) -> io::Result<libc::c_int> {
    // SAFETY: the path ends with a zero.
    let file = unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC) };
    done(file.into()).map(|()| file)
}

fn done(result: i64) -> io::Result<()> {
    match result {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_have_positive_nanoseconds() {
        let clocks = Clocks {
            monotonic: -1,
            boottime: 3 * SECOND + 4,
        };
        assert_eq!(offsets(clocks), "monotonic -1 999999999\nboottime 3 4\n");
    }

    #[test]
    fn a_childs_report_names_the_step_and_the_reason() {
        let (entry, report) = Entry::new(Clocks::default()).unwrap();
        let mut bytes = vec![Step::Set as u8];
        bytes.extend(libc::EPERM.to_ne_bytes());
        io::Write::write_all(&mut &entry.report, &bytes).unwrap();
        drop(entry);
        let error = entered(report).unwrap_err().to_string();
        assert!(error.contains("cannot be set"), "{error}");
        assert!(error.contains("not permitted"), "{error}");
        let (entry, report) = Entry::new(Clocks::default()).unwrap();
        drop(entry);
        assert!(entered(report).is_ok());
    }
}

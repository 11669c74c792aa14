//! Starts a tool under the filter, and reports how it ends.
//!
//! A thread of its own, the *keeper*, starts the tool and then waits for it. The tool asks the
//! kernel for SIGTERM at the death of its parent, which to the kernel is the thread that forked it.
//! With the keeper as parent, the tool is told when Beeline dies, however it dies, and not when
//! some thread of the caller ends.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use beeline_inject::is_of_too_many_files;
use libc::sock_filter;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::call::Call;
use crate::clocks::{self, ClockError, Entry};
use crate::installation::{await_descriptor, install, send_descriptor, socket_pair};
use crate::notify::Listener;
use crate::own_action;
use crate::server::{Answers, Fallback, Server};
use crate::{Error, Interception, Options, seccomp_filter};

/// A tool that runs under the supervisor.
///
/// It has been started when [`Tool::spawn`] returns, and waits at its first system call until
/// [`Tool::serve`]; if it is dropped before that, it is killed. It shares Beeline's standard files,
/// process group and terminal. Ctrl-C reaches it directly, so the caller only has to outlive it
/// (ignore SIGINT), and to pass on other signals to [`Tool::pid`].
///
/// If Beeline dies, the tool gets SIGTERM. Unless another process then [lets the calls
/// pass](let_pass) that would come to the supervisor, they fail with ENOSYS.
pub struct Tool {
    /// Comes first, because it must end before the listener is closed.
    unserved: Unserved,
    pid: i32,
    listener: Listener,
    interception: Interception,
    keeper: JoinHandle<io::Result<ExitStatus>>,
    fallback: Option<Box<Fallback>>,
    clocks: Result<(), ClockError>,
}

/// A tool that waits at its first call. Dropping this kills it: without a supervisor its calls
/// would fail, and it would report that.
struct Unserved(i32);

impl Drop for Unserved {
    fn drop(&mut self) {
        // SAFETY: `kill` accesses no memory. The tool waits, so it has not ended and has not been
        // reaped.
        unsafe { libc::kill(self.0, libc::SIGKILL) };
    }
}

impl std::fmt::Debug for Tool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tool")
            .field("pid", &self.pid)
            .finish_non_exhaustive()
    }
}

impl Tool {
    /// Starts `command`, a program (looked for in PATH) and its arguments, with Beeline's
    /// environment.
    ///
    /// # Errors
    ///
    /// [`Error::NoCommand`], [`Error::NotFound`], [`Error::NotExecutable`], [`Error::Filter`], or
    /// [`Error::System`] if this process is short of something.
    pub fn spawn(command: &[OsString], options: &Options) -> Result<Tool, Error> {
        let (program, arguments) = command.split_first().ok_or(Error::NoCommand)?;
        let mut command = Command::new(program);
        command.args(arguments);
        let name = program.to_string_lossy().into_owned();
        let filter = seccomp_filter::program(options);
        let interception = options.interception.clone();
        let options = options.clone();

        let (started, start) = mpsc::sync_channel(1);
        let keeper = std::thread::Builder::new()
            .name("beeline-keeper".into())
            .spawn(move || {
                let child = match start_under_filter(command, &name, filter, &options) {
                    Ok(Started(child, listener, clocks)) => {
                        // The receiver waits below, and waits until it has this.
                        let _ = started.send(Ok((child.id(), listener, clocks)));
                        child
                    }
                    Err(error) => {
                        let _ = started.send(Err(error));
                        return Err(io::ErrorKind::NotFound.into());
                    }
                };
                wait(&child)
            })
            .map_err(Error::system("starting a thread"))?;

        let (pid, listener, clocks) = start.recv().map_err(|_| Error::System {
            what: "starting the tool",
            source: io::Error::other("its thread ended early"),
        })??;
        Ok(Tool {
            unserved: Unserved(pid as i32),
            pid: pid as i32,
            listener,
            interception,
            keeper,
            fallback: None,
            clocks,
        })
    }

    /// Returns the tool's process id.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Returns whether the tool has the clocks of [`Options::clocks`].
    ///
    /// # Errors
    ///
    /// The reason why it has this machine's.
    pub fn clocks(&self) -> Result<(), &ClockError> {
        self.clocks.as_ref().copied()
    }

    /// Leaves children that outlive the tool to another process, which [lets their calls
    /// pass](let_pass).
    ///
    /// This applies if the tool has made eBPF calls itself and its children use nothing of the
    /// session; without the supervisor their calls would fail. `fallback` is called when no more
    /// calls are taken here. Without a fallback the children are served on, as are those of a
    /// script that has only started processes which make such calls.
    ///
    /// `last` receives the cookie of each call that is taken here, so that no caller waits forever
    /// if this process is killed.
    pub fn leave_to(mut self, last: File, fallback: impl Fn() + Send + Sync + 'static) -> Self {
        self.listener.write_last_to(last);
        self.fallback = Some(Box::new(fallback));
        self
    }

    /// Returns the listener that calls come from, for [`let_pass`].
    ///
    /// # Errors
    ///
    /// The system's error if the descriptor cannot be duplicated.
    pub fn listener(&self) -> io::Result<OwnedFd> {
        self.listener.share()
    }

    /// Returns an eventfd that forces the hand-over: once 8 bytes are written to it, the children
    /// are left to their fallback even if they use the session.
    ///
    /// # Errors
    ///
    /// The system's error if the descriptor cannot be duplicated.
    pub fn stopper(&self) -> io::Result<OwnedFd> {
        self.listener.stopper()
    }

    /// Answers the eBPF calls of the tool and its children by `answers`, and returns how the tool
    /// ended.
    ///
    /// It serves until the last of them has ended or been [left to another
    /// process](Self::leave_to), then releases everything that they still had.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if a thread cannot be started, or the wait for the tool fails.
    pub fn serve(self, answers: impl Answers) -> Result<ExitStatus, Error> {
        let server = Server::new(self.listener, self.interception, answers, self.pid);
        let (keeper, fallback, unserved) = (self.keeper, self.fallback.as_deref(), self.unserved);
        let wait = || {
            let ended = keeper.join();
            if fallback.is_some() {
                server.end_with_its_use();
            }
            ended
        };
        let ended = std::thread::scope(|scope| {
            let waiter = std::thread::Builder::new().name("beeline-waiter".into());
            let waiter = match waiter.spawn_scoped(scope, wait) {
                Ok(waiter) => waiter,
                Err(error) => {
                    drop(unserved);
                    return Err(Error::system("starting a thread")(error));
                }
            };
            std::mem::forget(unserved);
            server.run(fallback);
            Ok(waiter.join().and_then(|ended| ended))
        })?;
        match ended {
            Ok(status) => status.map_err(Error::system("waiting for the tool")),
            Err(_) => Err(Error::System {
                what: "waiting for the tool",
                source: io::Error::other("the waiting thread panicked"),
            }),
        }
    }
}

/// Waits until `lifeline`, a pipe's end, hangs up, and then lets the kernel make the calls of all
/// processes that are left under a filter.
///
/// The calls run as if there were no filter. Returns when the last of the processes has ended.
/// `listener` is the tool's, whose calls came by `interception`, and `last` is the file that it was [left](Tool::leave_to) with.
///
/// # Errors
///
/// The system's error if this process has no descriptors left, or the wait for `lifeline` fails.
pub fn let_pass(
    listener: OwnedFd,
    lifeline: &OwnedFd,
    last: &File,
    interception: &Interception,
) -> io::Result<()> {
    let listener = Listener::new(listener)?;
    if !listener.waits_for_hang_up(lifeline)? {
        return Ok(());
    }
    let mut cookie = [0; 8];
    if last.read_exact_at(&mut cookie, 0).is_ok() {
        listener.let_pass_until(u64::from_ne_bytes(cookie));
    }
    while let Some(request) = listener.receive() {
        let answer = match request.nr {
            libc::SYS_rt_sigaction => own_action::exchange(&Call::new(&listener, &request, &|| ())),
            _ => interception.pass(&request),
        };
        listener.answer(request.id, answer);
    }
    Ok(())
}

/// Waits for the end of a child that the calling thread started.
///
/// Other threads of Beeline may trace the tool for a moment. A plain `wait` would receive the stops
/// that are meant for them, and take the first for the end; `__WNOTHREAD` restricts it to this
/// thread's children. A blocking wait would also sleep on if the tool ends while it is traced: the
/// kernel wakes no waiter when a tracer in the parent's own process lets go.
fn wait(child: &Child) -> io::Result<ExitStatus> {
    /// The time for the tracer to let go of a tool that has ended.
    const MOMENT: Duration = Duration::from_millis(1);
    let pid = Pid::from_child(child);
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    let mut ended = [PollFd::new(&process, PollFlags::IN)];
    while poll(&mut ended, None) == Err(rustix::io::Errno::INTR) {}
    let mut status = 0;
    loop {
        let flags = libc::__WNOTHREAD | libc::WNOHANG;
        // SAFETY: writes one integer.
        match unsafe { libc::waitpid(child.id() as i32, &raw mut status, flags) } {
            0 => std::thread::sleep(MOMENT),
            ended if ended > 0 => return Ok(ExitStatus::from_raw(status)),
            _ => return Err(io::Error::last_os_error()),
        }
    }
}

/// A tool's process, the listener for its calls, and whether it has the clocks that it should have.
struct Started(Child, Listener, Result<(), ClockError>);

/// Forks, installs the filter, and executes; the child sends the listener's descriptor before it
/// executes.
fn start_under_filter(
    mut command: Command,
    name: &str,
    filter: Vec<sock_filter>,
    options: &Options,
) -> Result<Started, Error> {
    let (entry, report) = match options.clocks.map(Entry::new).transpose() {
        Ok(entry) => entry.unzip(),
        Err(error) => return Err(Error::system("creating a pipe")(error)),
    };
    let (ours, theirs) = socket_pair().map_err(Error::system("creating a socket pair"))?;
    let parent = std::process::id();
    let inherited_actions = options.inherited_actions.clone();
    let not_ours = ours.as_raw_fd();
    let interception = &options.interception;
    // SAFETY: between fork and exec the closure only makes async-signal-safe system calls on memory
    // prepared here: nothing allocates or locks.
    unsafe {
        command.pre_exec(move || {
            if let Some(entry) = &entry {
                entry.enter();
            }
            die_with_parent(parent)?;
            for &(signal, action) in &inherited_actions {
                libc::signal(signal, action);
            }
            // If the listener were still open here or in transit, and not received there, the
            // execution would wait for an answer forever.
            libc::close(not_ours);
            let listener = install(&filter)?;
            let sent = send_descriptor(theirs.as_raw_fd(), listener);
            libc::close(listener);
            sent
        });
    }
    // The start itself is a call under the filter, which this thread waits for.
    let (begun, begins) = io::pipe().map_err(Error::system("creating a pipe"))?;
    let (spawned, listener) = std::thread::scope(|scope| {
        let hangs_up = begun.as_fd();
        let let_begin = move || {
            // Also closed if nothing could be received, with a listener that is still in transit.
            let ours = ours;
            let listener = Listener::new(await_descriptor(&ours, hangs_up)?)?;
            listener.let_begin(hangs_up, interception);
            Ok(listener)
        };
        let thread = std::thread::Builder::new().name("beeline-begin".into());
        let thread = thread.spawn_scoped(scope, let_begin)?;
        let spawned = command.spawn();
        // The closure keeps the child's end open here.
        drop((command, begins));
        let panicked = |_| Err(io::Error::other("the thread that lets it begin panicked"));
        Ok((spawned, thread.join().unwrap_or_else(panicked)))
    })
    .map_err(Error::system("starting a thread"))?;
    match (spawned, listener) {
        (Ok(child), Ok(listener)) => {
            let clocks = report.map_or(Ok(()), clocks::entered);
            Ok(Started(child, listener, clocks))
        }
        (Ok(mut child), Err(error)) => {
            let _ = child.kill();
            let _ = child.wait();
            Err(not_installed(error))
        }
        // The listener arrived, so it was the execution that failed.
        (Err(_), Ok(_)) if !exists(name) => Err(Error::NotFound(name.to_owned())),
        (Err(source), Ok(_)) => Err(Error::NotExecutable {
            name: name.to_owned(),
            source,
        }),
        // Nothing was sent: the child reports why, or why there is no child.
        (Err(failed), Err(error))
            if error.kind() == io::ErrorKind::WouldBlock || error.raw_os_error().is_none() =>
        {
            Err(not_installed(failed))
        }
        // The child came that far, but to no avail.
        (Err(_), Err(error)) => Err(Error::system("preparing to serve the tool")(error)),
    }
}

/// Chooses the error: if there are no descriptors left, the filter is not to blame.
fn not_installed(error: io::Error) -> Error {
    if is_of_too_many_files(&error) {
        return Error::system("preparing to serve the tool")(error);
    }
    Error::Filter(error)
}

/// Returns whether a file of that name exists where it was looked for. `execvp` returns EACCES even
/// when it found none, if PATH has a directory that may not be searched.
fn exists(name: &str) -> bool {
    if name.contains('/') {
        return Path::new(name).exists();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(name).exists())
}

fn die_with_parent(parent: u32) -> io::Result<()> {
    // SAFETY: PR_SET_PDEATHSIG takes its argument by value; getppid has none.
    let orphaned = unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
        libc::getppid() as u32 != parent
    };
    // The parent may have died before the child asked to be told.
    if orphaned {
        Err(io::Error::from_raw_os_error(libc::ECHILD))
    } else {
        Ok(())
    }
}

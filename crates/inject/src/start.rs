//! Starting a program that does not begin yet.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::{io, thread};

use rustix::process::{PTracer, Pid, Signal, kill_process, set_ptracer};

use crate::{Error, Loaded, Options, Process, Seccomp, Watched, loader};

/// The name of the thread that traces a program which is being started by [`start_stopped`] or
/// [`run_to_libraries`]. It lets the program go by itself, whatever a session does, so no caller
/// needs to wait for that.
pub const STARTER: &str = "beeline-starter";

/// Starts a program and leaves it stopped, as by SIGSTOP, before its first instruction; SIGCONT
/// lets it begin.
///
/// The program has asked to be traced by any process of its user, where Yama lets only ancestors
/// trace (`PR_SET_PTRACER` lasts through `execve`; a forked child has not asked).
///
/// No thread traces it then. The second result says why the program could not be held; then it runs
/// already. As it was traced while it was started, a set-uid program gets no more rights than the
/// caller has.
///
/// # Errors
///
/// The system's error if the program cannot be started. The second result has the variants of
/// [`Error`] that [`Process::open`] and [`Watched::run_until_exec`] return, and [`Error::Local`].
pub fn start_stopped(mut command: Command) -> io::Result<(Child, Result<(), Error>)> {
    let (mut here, there) = UnixStream::pair()?;
    // SAFETY: the closure makes only system calls that a child may make between `fork` and `exec`.
    unsafe {
        command.pre_exec(move || {
            let mut child = &there;
            // Without Yama the kernel does not know the request, and nothing has to be asked for.
            let _ = set_ptracer(PTracer::Any);
            child.write_all(&std::process::id().to_ne_bytes())?;
            // The end of the line lets it go on as well.
            child.read(&mut [0]).map(drop)
        });
    }
    // Another thread than the one that starts it must trace it: that one waits for the `execve`,
    // and a signal stops a traced process before that.
    let tracer = thread::Builder::new().name(STARTER.into());
    let tracer = tracer.spawn(move || {
        let mut pid = [0; 4];
        match here.read_exact(&mut pid) {
            Ok(()) => {
                let held = hold_until_exec(i32::from_ne_bytes(pid), &here);
                // If it could not be held, it still waits. It has a copy of this end, so the line
                // does not end by itself.
                let _ = here.shutdown(Shutdown::Both);
                held
            }
            // There is no child; the caller is told why.
            Err(_) => Ok(()),
        }
    })?;
    let child = command.spawn();
    // With it goes the child's end of the line.
    drop(command);
    let held = tracer.join().unwrap_or_else(|_| Err(no_tracer()));
    Ok((child?, held))
}

/// Traces a process that waits for a word on the line, and stops it when it has run its `execve`.
fn hold_until_exec(pid: i32, mut line: &UnixStream) -> Result<(), Error> {
    let process = open(pid)?;
    let watched = Watched::seize_from_here(&process, pid)?;
    line.write_all(&[0]).map_err(|source| Error::Local {
        what: "let a command start",
        source,
    })?;
    let never = Arc::new(AtomicBool::new(false));
    match watched.run_until_exec(&never, |_| signal(pid, Signal::STOP))? {
        Loaded::Ready(Err(error)) => Err(process.inspect_error("stop the program", error.into())),
        Loaded::Ready(Ok(())) | Loaded::Ended => Ok(()),
    }
}

/// Makes a program that [`start_stopped`] has stopped run its loader, and stops it again when its
/// libraries are mapped and no other code of its has run.
///
/// # Errors
///
/// [`Error::Local`] if the tracing thread cannot be started, and those of [`Process::open`] and
/// [`Watched::run_until_loaded`].
pub fn run_to_libraries(pid: i32) -> Result<(), Error> {
    let tracer = thread::Builder::new().name(STARTER.into());
    let tracer = tracer.spawn(move || {
        let process = open(pid)?;
        let watched = Watched::seize_from_here(&process, pid)?;
        // A process that job control has stopped gets to no other place. It may have ended.
        let go_on = move || {
            let _ = signal(pid, Signal::CONT);
        };
        watched
            .run_on_until_loaded(go_on, |_| signal(pid, Signal::STOP))
            .map(drop)
    });
    let tracer = tracer.map_err(|source| Error::Local {
        what: "start a thread",
        source,
    })?;
    tracer.join().unwrap_or_else(|_| Err(no_tracer()))
}

/// Returns whether a process that has just run `execve` has a dynamic loader; a static program does
/// not.
///
/// # Errors
///
/// Those of [`Process::open`], and [`Error::Inspect`] if `auxv` cannot be read.
pub fn has_loader(pid: i32) -> Result<bool, Error> {
    loader::is_there(&open(pid)?)
}

fn signal(pid: i32, signal: Signal) -> rustix::io::Result<()> {
    Pid::from_raw(pid).map_or(Ok(()), |pid| kill_process(pid, signal))
}

/// It is a child of this process, and makes no call but its own.
fn open(pid: i32) -> Result<Process, Error> {
    let seccomp = Seccomp::Trust;
    Process::open_with(pid, Options { seccomp })
}

fn no_tracer() -> Error {
    Error::Local {
        what: "trace the command",
        source: io::Error::other("its tracer has panicked"),
    }
}

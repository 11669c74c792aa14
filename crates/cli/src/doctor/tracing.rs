//! Tracing, tried on processes that are made for it.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use beeline_inject::{
    Confinement, Error, MapFlags, Mapping, Options, Process, ProtFlags, Refusal, Seccomp,
    with_remedy, yama_scope,
};
use beeline_runtime::patiently;
use beeline_uapi::linux::{PAGE_SIZE, YAMA_SCOPE_CAPABILITY, YAMA_SCOPE_RELATIONAL};
use libc::c_long;

use super::calls::{Answer, PTRACE, errno_name};
use super::files::memory_file;
use super::filters::{WITHOUT_FILTER, allow};
use super::finding::Finding;
use super::rights::has_capability;
use super::subject::{FIRST, Subject};
use crate::preload;

/// The word that is written into a subject.
const SECOND: u64 = !FIRST;

/// Checks that a child of this process can be stopped, and made to run a system call.
pub fn own_child() -> Finding {
    let works = "a child of this process was stopped, made system calls and was let go";
    tried_by_ptrace(Subject::child, |pid| held(works, || stop_and_call(pid)))
}

/// Checks the same with a process that does not descend from this one.
pub fn other_process() -> Finding {
    let scope = yama_scope();
    let about = match scope {
        None => "the kernel has no Yama".to_owned(),
        Some(scope) if scope > 0 && has_capability("CAP_SYS_PTRACE") => {
            format!("kernel.yama.ptrace_scope is {scope}, and CAP_SYS_PTRACE overrides it")
        }
        Some(scope) => format!("kernel.yama.ptrace_scope is {scope}"),
    };
    let works = format!("processes that this one has not started, too; {about}");
    tried_by_ptrace(Subject::stranger, |pid| held(&works, || stop_and_call(pid)))
}

/// Checks that memory can be read and written by process_vm_readv(2) and process_vm_writev(2).
pub fn process_vm() -> Finding {
    tried(Subject::child(), |pid| {
        let mut word = 0;
        let copied = copy(libc::SYS_process_vm_readv, pid, &mut word).and_then(|()| {
            check_word(word, FIRST)?;
            copy(libc::SYS_process_vm_writev, pid, &mut SECOND.clone())?;
            copy(libc::SYS_process_vm_readv, pid, &mut word)?;
            check_word(word, SECOND)
        });
        match copied {
            Ok(()) => Finding::ok("another process's memory was read and written"),
            Err(error) => Finding::warn(format!("{error}; Beeline uses /proc/PID/mem instead")),
        }
    })
}

/// Copies a subject's word, by one of the two calls.
fn copy(call: c_long, pid: i32, word: &mut u64) -> io::Result<()> {
    let here = libc::iovec {
        iov_base: std::ptr::from_mut(word).cast(),
        iov_len: size_of::<u64>(),
    };
    let there = libc::iovec {
        iov_base: std::ptr::with_exposed_provenance_mut(Subject::word() as usize),
        iov_len: size_of::<u64>(),
    };
    // SAFETY: `here` is the whole of a word that is exclusively borrowed, and `there` an address of
    // the other process, which the kernel checks. Both live through the call.
    let done = unsafe {
        libc::syscall(
            call,
            pid,
            &raw const here,
            1_usize,
            &raw const there,
            1_usize,
            0_usize,
        )
    };
    match usize::try_from(done) {
        Ok(len) if len == size_of::<u64>() => Ok(()),
        Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// Checks that memory can be read and written by `/proc/PID/mem`.
pub fn process_mem() -> Finding {
    tried(Subject::child(), |pid| {
        let copied = || {
            let memory = File::options()
                .read(true)
                .write(true)
                .open(format!("/proc/{pid}/mem"))?;
            let mut word = [0; size_of::<u64>()];
            memory.read_exact_at(&mut word, Subject::word())?;
            check_word(u64::from_ne_bytes(word), FIRST)?;
            memory.write_all_at(&SECOND.to_ne_bytes(), Subject::word())?;
            memory.read_exact_at(&mut word, Subject::word())?;
            check_word(u64::from_ne_bytes(word), SECOND)
        };
        match copied() {
            Ok(()) => Finding::ok("another process's memory was read and written"),
            Err(error) => no_tracing(&Error::Inspect {
                pid,
                what: "read and write the memory".to_owned(),
                source: error,
            }),
        }
    })
}

fn check_word(word: u64, expected: u64) -> io::Result<()> {
    match word == expected {
        true => Ok(()),
        false => Err(io::Error::other(
            "the memory has not the value that was put there",
        )),
    }
}

/// Checks that code can be mapped into another process, and its own be patched.
pub fn injection() -> Finding {
    let file = match memory_file() {
        Ok(file) => file,
        Err(none) => return none,
    };
    let works =
        "a memory file was mapped executable into another process, and its code was written";
    tried_by_ptrace(Subject::child, |pid| {
        held(works, || map_and_patch(pid, &file))
    })
}

fn map_and_patch(pid: i32, file: &File) -> Result<(), Error> {
    let mut stopped = open(pid)?.stop()?;
    let address = stopped.map_file(&Mapping {
        file: file.as_fd(),
        offset: 0,
        len: PAGE_SIZE,
        protection: ProtFlags::READ | ProtFlags::EXEC,
        // As a session maps its code.
        flags: MapFlags::SHARED | MapFlags::NORESERVE,
        address: 0,
    })?;
    stopped.munmap(address, PAGE_SIZE)?;
    let mut code = vec![0; size_of::<u64>()];
    stopped.read(Subject::code(), &mut code)?;
    stopped.write(Subject::code(), &code)?;
    stopped.resume().map(drop)
}

/// Stops a subject, has it make system calls whose effect is undone, and lets it go.
fn stop_and_call(pid: i32) -> Result<(), Error> {
    let mut stopped = open(pid)?.stop()?;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let page = stopped.mmap_anonymous(PAGE_SIZE, access, MapFlags::empty(), 0)?;
    stopped.munmap(page, PAGE_SIZE)?;
    stopped.resume().map(drop)
}

/// Stops a process and lets it go. It makes no system call, which a filter of its own might kill it
/// for.
pub fn stop_and_go(pid: i32) -> Finding {
    held("it was stopped and let go", || {
        open(pid)?.stop()?.resume().map(drop)
    })
}

/// Makes an attempt on a process, and again if a session of Beeline's holds it at that moment.
fn held(works: &str, mut attempt: impl FnMut() -> Result<(), Error>) -> Finding {
    match patiently(|| Ok(attempt()?)) {
        Ok(()) => Finding::ok(works),
        Err(beeline_runtime::Error::Inject(error)) => no_tracing(&error),
        Err(error) => Finding::no(error.to_string()),
    }
}

/// Opens a process that may be under the filters of this one.
fn open(pid: i32) -> Result<Process, Error> {
    let seccomp = Seccomp::Trust;
    Process::open_with(pid, Options { seccomp })
}

fn tried(subject: io::Result<Subject>, trial: impl FnOnce(i32) -> Finding) -> Finding {
    match subject {
        Ok(subject) => trial(subject.pid()),
        Err(error) => no_subject(&error),
    }
}

/// Makes a trial that uses ptrace(2), unless something else than the kernel answers that.
fn tried_by_ptrace(
    subject: fn() -> io::Result<Subject>,
    trial: impl FnOnce(i32) -> Finding,
) -> Finding {
    match PTRACE.answer() {
        Answer::Kernel | Answer::Unknown => tried(subject(), trial),
        answer => Finding::no(format!("ptrace(2) is answered with {}", answer.in_words()))
            .fix(WITHOUT_FILTER),
    }
}

/// Describes why there is no process to try things on.
pub fn no_subject(error: &io::Error) -> Finding {
    Finding::no(format!(
        "there is no process to try it on: {}",
        with_remedy(error)
    ))
}

/// Describes why a process cannot be traced, and what to change.
pub fn no_tracing(error: &Error) -> Finding {
    match error {
        Error::NotPermitted { why, .. } => not_permitted(why),
        Error::Seccomp { why, .. } => confined(why),
        Error::Traced { tracer, comm, .. } => Finding::no(format!(
            "{comm} (process {tracer}) traces it, and a process has one tracer"
        ))
        .fix(format!("end {comm}, or have it detach")),
        Error::Frozen { group, .. } => Finding::no(error.to_string())
            .fix(format!("thaw the control group {}", group.display())),
        Error::ThirtyTwoBit { .. } => {
            Finding::no(error.to_string()).fix("run a 64-bit build of the program")
        }
        // The message says what to do, if anything.
        _ => Finding::no(error.to_string()),
    }
}

/// Describes why a process under seccomp is left alone.
pub fn confined(why: &Confinement) -> Finding {
    match why {
        Confinement::Forbids {
            call,
            purpose,
            verdict,
            ..
        } => Finding::no(format!(
            "a seccomp filter {verdict} {call}, which Beeline needs for {purpose}"
        ))
        .fix(allow(&[call])),
        Confinement::Strict => Finding::no(
            "strict seccomp mode, which kills for every system call but read, write, exit and sigreturn",
        )
        .fix("trace another process, or have it confine itself by a filter"),
        Confinement::Unknown { why } => Finding::no(format!(
            "what its seccomp filters allow is not known: {why}"
        ))
        .fix("run Beeline as root outside of the container (with CAP_SYS_ADMIN, under no filter), or inside as one of its processes"),
    }
}

fn not_permitted(why: &Refusal) -> Finding {
    match why {
        Refusal::Yama { scope } => Finding::no(format!(
            "Yama forbids it: kernel.yama.ptrace_scope is {scope}"
        ))
        .fix(past_yama(*scope)),
        Refusal::OtherUser { owner, us } => others_process(*owner, *us),
        Refusal::Filter { errno } => {
            Finding::no(format!("ptrace(2) is answered with {}", errno_name(errno.raw_os_error())))
                .fix(WITHOUT_FILTER)
        }
        Refusal::NotDumpable => Finding::no(
            "it is not dumpable (prctl PR_SET_DUMPABLE, a set-uid program, or one that its user may not read)",
        )
        .fix(format!("run Beeline with CAP_SYS_PTRACE ({ADD_PTRACE})")),
        _ => Finding::no(
            "the kernel says EPERM: another user namespace, more capabilities than Beeline's, or a security module",
        )
        .fix(format!(
            "run Beeline in the process's own user namespace, or with CAP_SYS_PTRACE there ({ADD_PTRACE})"
        )),
    }
}

/// Describes a process that belongs to another user, without the right to trace it.
pub fn others_process(owner: u32, us: u32) -> Finding {
    Finding::no(format!(
        "it belongs to user {owner}, and Beeline runs as user {us} without CAP_SYS_PTRACE"
    ))
    .fix(format!(
        "run Beeline as user {owner} (setpriv --reuid {owner}), or with CAP_SYS_PTRACE ({ADD_PTRACE})"
    ))
}

/// The way to get CAP_SYS_PTRACE.
const ADD_PTRACE: &str = "sudo, `docker run --cap-add SYS_PTRACE`, Kubernetes `capabilities: {add: [SYS_PTRACE]}`, \
     ECS `linuxParameters.capabilities.add`";

/// Returns the library that has a program ask to be traced: where it is, or else its name.
fn library_to_preload() -> String {
    let found = preload::library().map(|path| path.display().to_string());
    found.unwrap_or_else(|| preload::LIBRARY.to_owned())
}

/// Returns what to change where Yama forbids tracing.
fn past_yama(scope: u32) -> String {
    match scope {
        YAMA_SCOPE_RELATIONAL => format!(
            "start the process by `beeline start`, or with LD_PRELOAD={}, or have it call prctl(PR_SET_PTRACER, \
             PR_SET_PTRACER_ANY, 0, 0, 0); or `sysctl kernel.yama.ptrace_scope=0` on the host; or CAP_SYS_PTRACE ({ADD_PTRACE})",
            library_to_preload()
        ),
        YAMA_SCOPE_CAPABILITY => format!(
            "`sysctl kernel.yama.ptrace_scope=0` on the host (1 is enough for what the tool starts); or CAP_SYS_PTRACE ({ADD_PTRACE})"
        ),
        _ => "boot the host with another kernel.yama.ptrace_scope: from 3 it cannot be changed"
            .to_owned(),
    }
}

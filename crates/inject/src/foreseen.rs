//! The system calls that threads of targets make for Beeline.
//!
//! A thread under a seccomp filter makes no others: [`Remote::call`] refuses them. So who has asked
//! the filter about these knows that it lets Beeline's work pass.
//!
//! [`Remote::call`]: crate::remote::Remote::call

use beeline_uapi::foreseen::ForeseenCall;
use beeline_uapi::linux::{CAP_SYS_ADMIN, USER_NS_INIT_INO};
use beeline_uapi::nr;
use beeline_uapi::signal::SIGSET_BYTES;
use libc::{
    AF_UNIX, MADV_WIPEONFORK, MAP_ANONYMOUS, MAP_FIXED, MAP_FIXED_NOREPLACE, MAP_NORESERVE,
    MAP_PRIVATE, MAP_SHARED, MSG_CMSG_CLOEXEC, MSG_DONTWAIT, PROT_EXEC, PROT_NONE, PROT_READ,
    PROT_WRITE, SIG_SETMASK, SOCK_CLOEXEC, SOCK_DGRAM, SOCK_NONBLOCK, SOCK_SEQPACKET, c_int,
    c_long,
};

const OURS: c_int = MAP_SHARED | MAP_NORESERVE;

/// A file that a kernel has with CONFIG_CHECKPOINT_RESTORE only, as the requests to read and suspend
/// filters.
const OF_CHECKPOINTS: &str = "/proc/sys/kernel/ns_last_pid";

const ENTER: &str = "mapping the code of probes";
const LOOK: &str = "looking at the code and leaving it as it was";
const TAKE: &str = "taking memory back from the tool";
const RETURN: &str = "giving a thread back what it was doing";

/// The calls without which a process cannot be left, even if Beeline is killed: filters must let
/// them pass. The first one comes with the stop alone, if a thread waits for a time.
pub const LEAVING: &[ForeseenCall] = &[
    call("restart_syscall", libc::SYS_restart_syscall, RETURN),
    // The way home's.
    ForeseenCall::new("rt_sigprocmask", nr::RT_SIGPROCMASK, RETURN)
        .with(0, known(SIG_SETMASK))
        .with(2, 0)
        .with(3, SIGSET_BYTES as u64),
    ForeseenCall::new("rt_sigaction", nr::RT_SIGACTION, RETURN).with(3, SIGSET_BYTES as u64),
    ForeseenCall::new("munmap", nr::MUNMAP, RETURN),
    mmap("mmap", PROT_READ, MAP_PRIVATE, LOOK),
    mmap(
        "mmap",
        PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS,
        LOOK,
    ),
    call("socketpair", libc::SYS_socketpair, LOOK)
        .with(0, known(AF_UNIX))
        .with(1, known(SOCK_DGRAM | SOCK_CLOEXEC))
        .with(2, 0),
    call("recvmsg", libc::SYS_recvmsg, LOOK).with(2, known(MSG_CMSG_CLOEXEC | MSG_DONTWAIT)),
    call("close", libc::SYS_close, LOOK),
];

/// The calls that enter a process, besides those. Where filters are suspended meanwhile, they need
/// not let them pass.
pub const ENTERING: &[ForeseenCall] = &[
    mmap("mmap with PROT_EXEC", PROT_READ | PROT_EXEC, OURS, ENTER),
    mmap(
        "mmap with PROT_EXEC",
        PROT_READ | PROT_EXEC,
        OURS | MAP_FIXED,
        ENTER,
    ),
    mmap(
        "mmap with PROT_EXEC",
        PROT_READ | PROT_EXEC,
        OURS | MAP_FIXED_NOREPLACE,
        ENTER,
    ),
    mmap("mmap with MAP_SHARED", PROT_READ, OURS, ENTER),
    mmap("mmap with MAP_SHARED", PROT_READ, OURS | MAP_FIXED, ENTER),
    mmap(
        "mmap with MAP_SHARED",
        PROT_READ,
        OURS | MAP_FIXED_NOREPLACE,
        ENTER,
    ),
    mmap("mmap with MAP_SHARED", PROT_READ | PROT_WRITE, OURS, ENTER),
    mmap(
        "mmap with MAP_SHARED",
        PROT_READ | PROT_WRITE,
        OURS | MAP_FIXED,
        ENTER,
    ),
    mmap(
        "mmap with MAP_SHARED",
        PROT_READ | PROT_WRITE,
        OURS | MAP_FIXED_NOREPLACE,
        ENTER,
    ),
    ForeseenCall::new("mprotect", nr::MPROTECT, ENTER).with(2, known(PROT_NONE)),
    call("madvise", libc::SYS_madvise, ENTER).with(2, known(MADV_WIPEONFORK)),
];

/// The calls by which a process connects to Beeline, where a filter around Beeline forbids to take
/// descriptors out of it (pidfd_getfd(2)).
pub const CONNECTING: &[ForeseenCall] = &[
    call("socket", libc::SYS_socket, ENTER)
        .with(0, known(AF_UNIX))
        .with(1, known(SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK))
        .with(2, 0),
    call("connect", libc::SYS_connect, ENTER),
];

/// The calls that put fresh memory in the place of other memory in the tool's own processes. The
/// supervisor's filter lets them pass.
const REPLACING: &[ForeseenCall] = &[
    mmap(
        "mmap",
        PROT_READ,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
        TAKE,
    ),
    mmap(
        "mmap",
        PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
        TAKE,
    ),
];

/// True if a thread under a filter may be made to make this call.
pub(crate) fn is_foreseen(number: c_long, arguments: &[u64; 6]) -> bool {
    let entering = LEAVING.iter().chain(ENTERING).chain(CONNECTING);
    let mut all = entering.chain(REPLACING);
    all.any(|call| call.is(number.cast_unsigned(), arguments))
}

/// Returns why this process may not read and suspend other processes' seccomp filters; `None` if it
/// may. See `PTRACE_SECCOMP_GET_FILTER` and `PTRACE_O_SUSPEND_SECCOMP` of ptrace(2).
///
/// # Errors
///
/// The system's error if `/proc/self` cannot be read.
pub fn why_filters_are_hidden() -> std::io::Result<Option<&'static str>> {
    use std::os::unix::fs::MetadataExt;
    let status = std::fs::read_to_string("/proc/self/status")?;
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    let capabilities = field("CapEff:").and_then(|all| u64::from_str_radix(all.trim(), 16).ok());
    if capabilities.unwrap_or_default() >> CAP_SYS_ADMIN & 1 == 0 {
        return Ok(Some("Beeline lacks CAP_SYS_ADMIN"));
    }
    if std::fs::metadata("/proc/self/ns/user")?.ino() != USER_NS_INIT_INO {
        return Ok(Some("Beeline has CAP_SYS_ADMIN in a user namespace only"));
    }
    if field("Seccomp:").is_none_or(|mode| mode.trim() != "0") {
        return Ok(Some("Beeline is under a seccomp filter itself"));
    }
    let can_show = std::fs::exists(OF_CHECKPOINTS)?;
    Ok((!can_show).then_some("this kernel cannot show filters (CONFIG_CHECKPOINT_RESTORE)"))
}

const fn call(name: &'static str, number: c_long, purpose: &'static str) -> ForeseenCall {
    ForeseenCall::new(name, number.cast_unsigned(), purpose)
}

const fn mmap(
    name: &'static str,
    protection: c_int,
    flags: c_int,
    purpose: &'static str,
) -> ForeseenCall {
    let call = ForeseenCall::new(name, nr::MMAP, purpose);
    call.with(2, known(protection)).with(3, known(flags))
}

const fn known(value: c_int) -> u64 {
    value as u64
}

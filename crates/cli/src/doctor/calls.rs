//! Tells by harmless arguments, which the kernel refuses before it does anything, if a system call
//! reaches the kernel.

use std::io;

use libc::c_long;

use super::child::{Failure, in_child};

/// A system call that the kernel itself answers with a known error number.
#[derive(Debug, Clone, Copy)]
pub struct Harmless {
    pub name: &'static str,
    number: c_long,
    arguments: [c_long; 6],
    /// The kernel's answer.
    refusal: i32,
}

/// The author of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The kernel, as it answers such arguments.
    Kernel,
    /// Something that gives another error number, or 0 for success.
    Errno(i32),
    /// Something that kills the process by this signal.
    Killed(i32),
    /// That could not be tried.
    Unknown,
}

/// Not a number of anything, and more flags than there are.
const NONE: c_long = -1;

/// bpf(2) with a command that there is not.
pub const BPF: Harmless = Harmless {
    name: "bpf",
    number: libc::SYS_bpf,
    arguments: [NONE, 0, 0, 0, 0, 0],
    refusal: libc::EINVAL,
};

/// perf_event_open(2) with flags that there are not.
pub const PERF_EVENT_OPEN: Harmless = Harmless {
    name: "perf_event_open",
    number: libc::SYS_perf_event_open,
    arguments: [0, 0, NONE, NONE, NONE, 0],
    refusal: libc::EINVAL,
};

/// ptrace(2) of a process with the number 0.
pub const PTRACE: Harmless = Harmless {
    name: "ptrace",
    number: libc::SYS_ptrace,
    arguments: [libc::PTRACE_CONT as c_long, 0, 0, 0, 0, 0],
    refusal: libc::ESRCH,
};

/// The calls by which Beeline works on other processes, and without which it does not work.
pub const NEEDED: [Harmless; 4] = [
    PTRACE,
    Harmless {
        name: "pidfd_open",
        number: libc::SYS_pidfd_open,
        arguments: [NONE, NONE, 0, 0, 0, 0],
        refusal: libc::EINVAL,
    },
    Harmless {
        name: "memfd_create",
        number: libc::SYS_memfd_create,
        arguments: [0, NONE, 0, 0, 0, 0],
        refusal: libc::EINVAL,
    },
    Harmless {
        name: "seccomp",
        number: libc::SYS_seccomp,
        arguments: [NONE, 0, 0, 0, 0, 0],
        refusal: libc::EINVAL,
    },
];

/// The calls that Beeline does without.
pub const USEFUL: [Harmless; 4] = [
    Harmless {
        name: "pidfd_getfd",
        number: libc::SYS_pidfd_getfd,
        arguments: [NONE, NONE, 0, 0, 0, 0],
        refusal: libc::EBADF,
    },
    Harmless {
        name: "process_vm_readv",
        number: libc::SYS_process_vm_readv,
        arguments: [0, 0, 0, 0, 0, NONE],
        refusal: libc::EINVAL,
    },
    Harmless {
        name: "process_vm_writev",
        number: libc::SYS_process_vm_writev,
        arguments: [0, 0, 0, 0, 0, NONE],
        refusal: libc::EINVAL,
    },
    Harmless {
        name: "kcmp",
        number: libc::SYS_kcmp,
        arguments: [0, 0, NONE, 0, 0, 0],
        refusal: libc::ESRCH,
    },
];

impl Harmless {
    /// Makes the call in a child, and returns what answers it.
    pub fn answer(&self) -> Answer {
        match in_child(|| self.errno().to_string()) {
            Ok(text) => text.parse().map_or(Answer::Unknown, |errno| match errno {
                _ if errno == self.refusal => Answer::Kernel,
                errno => Answer::Errno(errno),
            }),
            Err(Failure::Killed(signal)) => Answer::Killed(signal),
            Err(_) => Answer::Unknown,
        }
    }

    fn errno(&self) -> i32 {
        let [a, b, c, d, e, f] = self.arguments;
        // SAFETY: the kernel refuses the number, the flags or the command among these arguments
        // before it looks at memory; nothing else that may answer the call accesses memory of ours.
        let result = unsafe { libc::syscall(self.number, a, b, c, d, e, f) };
        match result {
            0.. => 0,
            _ => io::Error::last_os_error()
                .raw_os_error()
                .unwrap_or_default(),
        }
    }
}

impl Answer {
    /// Describes an answer that is not the kernel's usual one, such as `EPERM`.
    pub fn in_words(self) -> String {
        match self {
            Self::Kernel => "the kernel's answer".to_owned(),
            Self::Errno(0) => "success".to_owned(),
            Self::Errno(errno) => errno_name(errno),
            Self::Killed(libc::SIGSYS) => "SIGSYS".to_owned(),
            Self::Killed(signal) => format!("signal {signal}"),
            Self::Unknown => "no answer".to_owned(),
        }
    }
}

/// Returns the name of an error number that filters and kernels refuse calls with; else the number.
pub fn errno_name(errno: i32) -> String {
    let name = match errno {
        libc::EPERM => "EPERM",
        libc::ENOSYS => "ENOSYS",
        libc::EACCES => "EACCES",
        libc::EINVAL => "EINVAL",
        libc::ESRCH => "ESRCH",
        libc::EBUSY => "EBUSY",
        libc::ENOENT => "ENOENT",
        errno => return format!("error {errno}"),
    };
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_kernel_answers_as_expected() {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        if !status.lines().any(|line| line == "Seccomp:\t0") {
            return println!("skipped: a seccomp filter may answer here");
        }
        for call in NEEDED.iter().chain(&USEFUL).chain([&BPF, &PERF_EVENT_OPEN]) {
            assert_eq!(call.errno(), call.refusal, "{}", call.name);
        }
    }
}

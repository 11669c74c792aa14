//! Kernel functions that stand for system calls.
//!
//! Only these calls lead to them, and their arguments follow from the call's. A program on one of
//! them is attached to its calls, and sees the function's arguments.
//!
//! They are those of Linux 6.18; a test compares the number of arguments with the running kernel's
//! types.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use beeline_runtime::backend::Argument::{
    self, CurrentDirectory, Of, OpenFlags, OpenHow, OpenMode, Zero,
};
use beeline_runtime::backend::Function;

use crate::syscall_table::SystemCall;

/// A call that leads to a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Leading {
    pub(crate) number: u32,
    pub(crate) function: Function,
}

/// The numbers of the calls that lead to a function, each with the function's arguments.
type Calls = Vec<(u32, &'static [Argument])>;

/// The calls that lead to each function, by its name.
static ALL: LazyLock<BTreeMap<String, Calls>> = LazyLock::new(|| {
    let mut all: BTreeMap<String, Calls> = BTreeMap::new();
    for (function, call, arguments) in FUNCTIONS {
        if let Some(call) = SystemCall::by_name(call) {
            let calls = all.entry((*function).to_owned()).or_default();
            calls.push((call.number, *arguments));
        }
    }
    // The functions of which a call's entry is made: where compilers do not merge them into one,
    // these are functions of their own.
    for call in SystemCall::all()
        .iter()
        .filter(|call| !call.arguments.is_empty())
    {
        for prefix in ["__se_sys_", "__do_sys_"] {
            let arguments = first(call.arguments.len());
            all.insert(
                format!("{prefix}{}", call.name),
                vec![(call.number, arguments)],
            );
        }
    }
    all
});

/// Returns a call's first arguments, unchanged.
const fn first(count: usize) -> &'static [Argument] {
    const ALL: &[Argument] = &[Of(0), Of(1), Of(2), Of(3), Of(4), Of(5)];
    ALL.split_at(count).0
}

/// A function, the kernel's name of a call that leads to it, and the function's arguments.
const FUNCTIONS: &[(&str, &str, &[Argument])] = &[
    ("__sys_accept4", "accept", &[Of(0), Of(1), Of(2), Zero]),
    ("__sys_accept4", "accept4", first(4)),
    ("__sys_bind", "bind", first(3)),
    ("__sys_connect", "connect", first(3)),
    ("__sys_getsockopt", "getsockopt", first(5)),
    ("__sys_listen", "listen", first(2)),
    ("__sys_recvfrom", "recvfrom", first(6)),
    ("__sys_sendto", "sendto", first(6)),
    ("__sys_setfsgid", "setfsgid", first(1)),
    ("__sys_setfsuid", "setfsuid", first(1)),
    ("__sys_setgid", "setgid", first(1)),
    ("__sys_setregid", "setregid", first(2)),
    ("__sys_setresgid", "setresgid", first(3)),
    ("__sys_setresuid", "setresuid", first(3)),
    ("__sys_setreuid", "setreuid", first(2)),
    ("__sys_setsockopt", "setsockopt", first(5)),
    ("__sys_setuid", "setuid", first(1)),
    ("__sys_shutdown", "shutdown", first(2)),
    ("__sys_socket", "socket", first(3)),
    ("__sys_socketpair", "socketpair", first(4)),
    (
        "do_sys_open",
        "creat",
        &[CurrentDirectory, Of(0), OpenFlags, OpenMode],
    ),
    (
        "do_sys_open",
        "open",
        &[CurrentDirectory, Of(0), OpenFlags, OpenMode],
    ),
    (
        "do_sys_open",
        "openat",
        &[Of(0), Of(1), OpenFlags, OpenMode],
    ),
    (
        "do_sys_openat2",
        "creat",
        &[CurrentDirectory, Of(0), OpenHow],
    ),
    (
        "do_sys_openat2",
        "open",
        &[CurrentDirectory, Of(0), OpenHow],
    ),
    ("do_sys_openat2", "openat", &[Of(0), Of(1), OpenHow]),
    ("do_sys_openat2", "openat2", &[Of(0), Of(1), OpenHow]),
    ("do_sys_truncate", "truncate", first(2)),
    ("ksys_fadvise64_64", "fadvise64", first(4)),
    ("ksys_fallocate", "fallocate", first(4)),
    ("ksys_fchown", "fchown", first(3)),
    ("ksys_ioperm", "ioperm", first(3)),
    ("ksys_lseek", "lseek", first(3)),
    ("ksys_msgget", "msgget", first(2)),
    ("ksys_msgrcv", "msgrcv", first(5)),
    ("ksys_msgsnd", "msgsnd", first(4)),
    ("ksys_pread64", "pread64", first(4)),
    ("ksys_pwrite64", "pwrite64", first(4)),
    ("ksys_read", "read", first(3)),
    ("ksys_readahead", "readahead", first(3)),
    ("ksys_semget", "semget", first(3)),
    ("ksys_semtimedop", "semtimedop", first(4)),
    ("ksys_setsid", "setsid", first(0)),
    ("ksys_shmdt", "shmdt", first(1)),
    ("ksys_shmget", "shmget", first(3)),
    ("ksys_sync", "sync", first(0)),
    ("ksys_sync_file_range", "sync_file_range", first(4)),
    ("ksys_unshare", "unshare", first(1)),
    ("ksys_write", "write", first(3)),
];

/// Returns the calls that lead to a function; none if it does not stand for calls.
pub(crate) fn leading_to(name: &str) -> Vec<Leading> {
    let known = ALL.get_key_value(name).into_iter();
    let calls = known.flat_map(|(name, calls)| calls.iter().map(move |call| (name, call)));
    let leading = calls.map(|(name, (number, arguments))| Leading {
        number: *number,
        function: Function { name, arguments },
    });
    leading.collect()
}

/// Returns whether a function stands for calls.
pub(crate) fn is_served(name: &str) -> bool {
    ALL.contains_key(name)
}

/// Returns the names of the functions that stand for calls.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    ALL.keys().map(String::as_str)
}

/// Returns a name of the tool's as the user may see it: without control characters.
pub(crate) fn printable(name: &[u8]) -> String {
    String::from_utf8_lossy(name)
        .chars()
        .filter(|letter| !letter.is_control())
        .collect()
}

/// Returns a hint for the user: the probes that can replace one on a function that is not served.
pub(crate) fn advice(function: &str) -> String {
    const PREFIXES: [&str; 6] = ["ksys_", "vfs_", "do_sys_", "__sys_", "sys_", "do_"];
    let mut names = PREFIXES
        .into_iter()
        .filter_map(|prefix| function.strip_prefix(prefix));
    names
        .find_map(SystemCall::by_name)
        .map_or_else(String::new, |call| {
            format!(
                " (served are kprobe:{} and the tracepoints of that call)",
                call.function()
            )
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use beeline_btf::{Btf, kind};

    #[test]
    fn calls_are_found_by_the_names_of_their_functions() {
        let names = |function: &str| -> Vec<_> {
            let leading = leading_to(function).into_iter();
            let calls = leading.filter_map(|one| SystemCall::by_number(one.number));
            calls.map(|call| call.name).collect()
        };
        assert_eq!(names("ksys_read"), ["read"]);
        assert_eq!(names("__se_sys_openat"), ["openat"]);
        assert_eq!(
            names("do_sys_openat2"),
            ["creat", "open", "openat", "openat2"]
        );
        assert_eq!(names("vfs_read"), [""; 0]);
        assert_eq!(names("__do_sys_getpid"), [""; 0]);
    }

    #[test]
    fn every_call_of_the_table_is_known() {
        for (function, call, _) in FUNCTIONS {
            assert!(SystemCall::by_name(call).is_some(), "{function}: {call}");
        }
    }

    #[test]
    fn functions_have_as_many_arguments_as_in_the_kernel() {
        let Ok(bytes) = std::fs::read("/sys/kernel/btf/vmlinux") else {
            return eprintln!("skipped: the kernel has no types");
        };
        let types = Btf::parse(&bytes).expect("the kernel's types");
        let mut compared = 0;
        for (name, _, arguments) in FUNCTIONS {
            let Some(count) = parameters(&types, name) else {
                continue;
            };
            assert_eq!(count, arguments.len(), "{name}");
            compared += 1;
        }
        assert!(compared > 0, "none of them is in the kernel");
    }

    /// Returns the number of parameters of the kernel's function with that name.
    fn parameters(types: &Btf, name: &str) -> Option<usize> {
        let [function] = types.find([(kind::FUNC, name)]);
        let prototype = types.get(types.get(function)?.refers_to())?;
        Some(types.params(prototype).count())
    }
}

//! The table of system calls as the kernel's tracing knows them.

use std::sync::LazyLock;

use crate::arch::{FUNCTION, NEVER_CALLED, PLAIN_FUNCTION, SYSTEM_CALLS};

/// A system call with tracepoints of its own.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SystemCall {
    pub(crate) number: u32,
    /// The kernel's name, which is not always the C library's: `newstat` is `stat`.
    pub(crate) name: &'static str,
    pub(crate) arguments: Vec<Argument>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Argument {
    /// The type as the kernel's tracing writes it.
    pub(crate) type_name: &'static str,
    pub(crate) name: &'static str,
}

static ALL: LazyLock<Vec<SystemCall>> = LazyLock::new(|| {
    let lines = SYSTEM_CALLS.lines();
    lines.filter_map(SystemCall::parse).collect()
});

impl SystemCall {
    /// Returns all calls in the order of their numbers.
    pub(crate) fn all() -> &'static [SystemCall] {
        &ALL
    }

    pub(crate) fn by_name(name: &str) -> Option<&'static SystemCall> {
        ALL.iter().find(|call| call.name == name)
    }

    pub(crate) fn by_number(number: u32) -> Option<&'static SystemCall> {
        let place = ALL.binary_search_by_key(&number, |call| call.number);
        ALL.get(place.ok()?)
    }

    /// Returns the call that a function of the kernel's is the entry of.
    pub(crate) fn of_function(function: &str) -> Option<&'static SystemCall> {
        if let Some(name) = function.strip_prefix(FUNCTION) {
            return Self::by_name(name);
        }
        let call = Self::by_name(function.strip_prefix(PLAIN_FUNCTION)?)?;
        call.arguments.is_empty().then_some(call)
    }

    /// Returns the function of the kernel's that is its entry.
    pub(crate) fn function(&self) -> String {
        format!("{FUNCTION}{}", self.name)
    }

    /// Returns whether a function of the kernel's looks like the entry of a call, but no call leads
    /// to it.
    pub(crate) fn is_never_called(function: &str) -> bool {
        let name = function.strip_prefix(FUNCTION);
        name.is_some_and(|name| NEVER_CALLED.contains(&name))
    }

    /// Parses `NUMBER NAME TYPE ARGUMENT, TYPE ARGUMENT`; returns `None` for a comment.
    fn parse(line: &'static str) -> Option<Self> {
        let (number, rest) = line.split_once(' ')?;
        let (name, arguments) = rest.split_once(' ').unwrap_or((rest, ""));
        Some(Self {
            number: number.parse().ok()?,
            name,
            arguments: arguments
                .split(", ")
                .filter_map(|argument| argument.rsplit_once(' '))
                .map(|(type_name, name)| Argument { type_name, name })
                .collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_table_is_a_call() {
        let lines = SYSTEM_CALLS.lines();
        let calls = lines.filter(|line| !line.starts_with('#')).count();
        assert_eq!(SystemCall::all().len(), calls);
        let numbers = SystemCall::all().iter().map(|call| call.number);
        assert!(numbers.is_sorted_by(|one, next| one < next));
    }

    #[test]
    fn numbers_are_those_of_the_abi() {
        for (name, number) in [
            ("read", libc::SYS_read),
            ("newstat", libc::SYS_stat),
            ("newfstat", libc::SYS_fstat),
            ("newlstat", libc::SYS_lstat),
            ("sendfile64", libc::SYS_sendfile),
            ("newuname", libc::SYS_uname),
            ("umount", libc::SYS_umount2),
            ("newfstatat", libc::SYS_newfstatat),
            ("execve", libc::SYS_execve),
            ("openat", libc::SYS_openat),
            ("bpf", libc::SYS_bpf),
            ("clone3", libc::SYS_clone3),
            ("openat2", libc::SYS_openat2),
            ("mseal", libc::SYS_mseal),
        ] {
            let call = SystemCall::by_name(name).expect(name);
            assert_eq!(i64::from(call.number), number, "{name}");
            assert_eq!(SystemCall::by_number(call.number), Some(call));
        }
    }

    #[test]
    fn functions_have_the_prefix_of_the_native_entries() {
        let openat = SystemCall::by_name("openat");
        assert_eq!(SystemCall::of_function("__x64_sys_openat"), openat);
        let getpid = SystemCall::by_name("getpid");
        for function in ["__x64_sys_getpid", "__do_sys_getpid"] {
            assert_eq!(SystemCall::of_function(function), getpid);
        }
        for other in [
            "openat",
            "__ia32_sys_openat",
            "do_sys_openat2",
            "__x64_sys_none",
            "__do_sys_openat",
        ] {
            assert_eq!(SystemCall::of_function(other), None, "{other}");
        }
        let arguments = openat.map(|call| call.arguments.len());
        assert_eq!(arguments, Some(4));
        assert_eq!(
            SystemCall::by_name("getpid").map(|call| call.arguments.len()),
            Some(0)
        );
    }
}

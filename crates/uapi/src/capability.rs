//! Names of capabilities: `linux/capability.h`.

use crate::linux::CAP_LAST_CAP;

/// The names, by number.
pub const NAMES: [&str; CAP_LAST_CAP as usize + 1] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_DAC_READ_SEARCH",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETPCAP",
    "CAP_LINUX_IMMUTABLE",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_BROADCAST",
    "CAP_NET_ADMIN",
    "CAP_NET_RAW",
    "CAP_IPC_LOCK",
    "CAP_IPC_OWNER",
    "CAP_SYS_MODULE",
    "CAP_SYS_RAWIO",
    "CAP_SYS_CHROOT",
    "CAP_SYS_PTRACE",
    "CAP_SYS_PACCT",
    "CAP_SYS_ADMIN",
    "CAP_SYS_BOOT",
    "CAP_SYS_NICE",
    "CAP_SYS_RESOURCE",
    "CAP_SYS_TIME",
    "CAP_SYS_TTY_CONFIG",
    "CAP_MKNOD",
    "CAP_LEASE",
    "CAP_AUDIT_WRITE",
    "CAP_AUDIT_CONTROL",
    "CAP_SETFCAP",
    "CAP_MAC_OVERRIDE",
    "CAP_MAC_ADMIN",
    "CAP_SYSLOG",
    "CAP_WAKE_ALARM",
    "CAP_BLOCK_SUSPEND",
    "CAP_AUDIT_READ",
    "CAP_PERFMON",
    "CAP_BPF",
    "CAP_CHECKPOINT_RESTORE",
];

/// Returns the names of the capabilities in a set, in the order of their numbers.
pub fn names(set: u64) -> impl Iterator<Item = &'static str> {
    let is_in = move |(number, _): &(usize, &str)| set >> number & 1 == 1;
    NAMES
        .into_iter()
        .enumerate()
        .filter(is_in)
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linux::{CAP_BPF, CAP_PERFMON, CAP_SYS_ADMIN, CAP_SYS_PTRACE};

    #[test]
    fn a_set_is_named_by_its_numbers() {
        let few = 1 << CAP_SYS_PTRACE | 1 << CAP_SYS_ADMIN | 1 << CAP_PERFMON | 1 << CAP_BPF;
        let expected = ["CAP_SYS_PTRACE", "CAP_SYS_ADMIN", "CAP_PERFMON", "CAP_BPF"];
        assert!(names(few).eq(expected));
        assert_eq!(names(u64::MAX).count(), NAMES.len());
        assert_eq!(names(0).count(), 0);
    }
}

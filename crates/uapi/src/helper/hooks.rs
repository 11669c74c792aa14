//! The rights at hooks of security modules: sleeping, and options of sockets.

/// Returns whether a program at this hook (`bpf_lsm_NAME`) may sleep (`bpf_lsm_is_sleepable_hook`).
pub fn is_sleepable_hook(function: &str) -> bool {
    hook(function).is_some_and(|name| SLEEPABLE.binary_search(&name).is_ok())
}

/// Returns whether the socket of this hook is locked, or not yet in use, so that its options may be
/// read and set.
pub(super) fn are_options_safe(function: &str) -> bool {
    const HOOKS: [&str; 6] = [
        "inet_conn_established",
        "inet_csk_clone",
        "sock_graft",
        "socket_post_create",
        "socket_sock_rcv_skb",
        "socket_socketpair",
    ];
    hook(function).is_some_and(|name| HOOKS.contains(&name))
}

fn hook(function: &str) -> Option<&str> {
    function.strip_prefix("bpf_lsm_")
}

/// The hooks that are called where sleeping is allowed, in alphabetical order: `sleepable_lsm_hooks`
/// of `kernel/bpf/bpf_lsm.c`, with those that depend on the kernel's configuration. The kernel asks
/// this one set whether a program may sleep, and whether it may call helpers that need that.
const SLEEPABLE: &[&str] = &[
    "bdev_alloc_security",
    "bdev_setintegrity",
    "bpf",
    "bpf_map",
    "bpf_map_create",
    "bpf_map_free",
    "bpf_prog",
    "bpf_prog_free",
    "bpf_prog_load",
    "bpf_token_capable",
    "bpf_token_cmd",
    "bpf_token_create",
    "bpf_token_free",
    "bprm_check_security",
    "bprm_committed_creds",
    "bprm_committing_creds",
    "bprm_creds_for_exec",
    "bprm_creds_from_file",
    "capget",
    "capset",
    "cred_prepare",
    "file_ioctl",
    "file_lock",
    "file_open",
    "file_post_open",
    "file_receive",
    "inet_conn_established",
    "inode_create",
    "inode_free_security",
    "inode_getattr",
    "inode_getxattr",
    "inode_mknod",
    "inode_need_killpriv",
    "inode_post_removexattr",
    "inode_post_setxattr",
    "inode_readlink",
    "inode_removexattr",
    "inode_rename",
    "inode_rmdir",
    "inode_setattr",
    "inode_setxattr",
    "inode_symlink",
    "inode_unlink",
    "kernel_module_request",
    "kernel_read_file",
    "kernfs_init_security",
    "mmap_file",
    "netlink_send",
    "path_chmod",
    "path_chown",
    "path_link",
    "path_mkdir",
    "path_notify",
    "path_rename",
    "path_rmdir",
    "path_symlink",
    "path_truncate",
    "path_unlink",
    "release_secctx",
    "sb_alloc_security",
    "sb_eat_lsm_opts",
    "sb_kern_mount",
    "sb_mount",
    "sb_remount",
    "sb_set_mnt_opts",
    "sb_show_options",
    "sb_statfs",
    "sb_umount",
    "settime",
    "socket_accept",
    "socket_bind",
    "socket_connect",
    "socket_create",
    "socket_getpeername",
    "socket_getpeersec_dgram",
    "socket_getsockname",
    "socket_getsockopt",
    "socket_listen",
    "socket_post_create",
    "socket_recvmsg",
    "socket_sendmsg",
    "socket_shutdown",
    "socket_socketpair",
    "syslog",
    "task_alloc",
    "task_prctl",
    "task_setscheduler",
    "task_to_inode",
    "userns_create",
];

#[cfg(test)]
mod tests {
    #[test]
    fn hooks_are_sorted() {
        assert!(super::SLEEPABLE.is_sorted());
        assert!(super::is_sleepable_hook("bpf_lsm_file_open"));
        assert!(!super::is_sleepable_hook("bpf_lsm_inode_permission"));
        assert!(!super::is_sleepable_hook("bpf_lsm_inode_setintegrity"));
        assert!(!super::is_sleepable_hook("file_open"));
    }
}

//! Special properties of some LSM hooks (`kernel/bpf/bpf_lsm.c`). Those that may sleep are in
//! [`beeline_uapi::helper::hooks`].

/// Hooks to which programs cannot attach: a program could not return what the hook returns.
pub(super) const DISABLED: [&str; 12] = [
    "bpf_lsm_vm_enough_memory",
    "bpf_lsm_inode_need_killpriv",
    "bpf_lsm_inode_getsecurity",
    "bpf_lsm_inode_listsecurity",
    "bpf_lsm_inode_copy_up_xattr",
    "bpf_lsm_getselfattr",
    "bpf_lsm_getprocattr",
    "bpf_lsm_setprocattr",
    "bpf_lsm_key_getsecurity",
    "bpf_lsm_audit_rule_match",
    "bpf_lsm_xfrm_decode_session",
    "bpf_lsm_ismaclabel",
];

/// Hooks that are called while their objects are made or unmade: pointers to these are not trusted.
pub(super) const UNTRUSTED: [&str; 9] = [
    "bpf_lsm_bpf_map_free",
    "bpf_lsm_bpf_prog_free",
    "bpf_lsm_file_alloc_security",
    "bpf_lsm_file_free_security",
    "bpf_lsm_sk_alloc_security",
    "bpf_lsm_sk_free_security",
    "bpf_lsm_task_free",
    "bpf_lsm_bdev_alloc_security",
    "bpf_lsm_bdev_free_security",
];

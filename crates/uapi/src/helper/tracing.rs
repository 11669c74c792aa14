//! Helpers for programs that trace, iterate over kernel objects, or act as a security module.

use super::table::*;
use super::{Arg::*, Helper, HelperId};

const SEQ_FILE: super::Arg = btf("seq_file");

helpers! {
    // The event.
    GET_STACKID(Context, Map, Any), gpl => EVENTS;
    GET_STACKID_PERF_EVENT as GET_STACKID(Context, Map, Any) => PERF_EVENT;
    GET_STACK(Context, FILL, SizeOrZero, Any), gpl => EVENTS;
    PERF_PROG_READ_VALUE(Context, FILL, Size), gpl => PERF_EVENT;
    READ_BRANCH_RECORDS(Context, WRITE_OR_NULL, SizeOrZero, Any), gpl => PERF_EVENT;
    GET_FUNC_IP(Context), gpl => TRACING;
    GET_FUNC_IP_MULTI as GET_FUNC_IP(Context) => MULTI;
    GET_ATTACH_COOKIE(Context) => COOKIE;
    GET_FUNC_ARG(Context, Any, fill_exactly(8)) => TRAMPOLINE;
    GET_FUNC_RET(Context, fill_exactly(8)) => TRAMPOLINE;
    GET_FUNC_ARG_CNT(Context) => TRAMPOLINE;

    // Memory of either space.
    PROBE_READ(FILL, SizeOrZero, Any), gpl => TRACING;
    PROBE_READ_STR(FILL, SizeOrZero, Any), gpl => TRACING;

    // Acting on the traced process.
    PROBE_WRITE_USER(Any, READ, Size), gpl => WRITES;
    OVERRIDE_RETURN(Context, Any), gpl => OVERRIDES;

    // Kernel objects.
    SKB_OUTPUT(btf("sk_buff"), Map, Any, READ, SizeOrZero), gpl => KERNEL_OBJECTS;
    XDP_OUTPUT(btf("xdp_buff"), Map, Any, READ, SizeOrZero), gpl => KERNEL_OBJECTS;
    XDP_GET_BUFF_LEN_TRACING as XDP_GET_BUFF_LEN(btf("xdp_buff")) => KERNEL_OBJECTS;
    GET_SOCKET_COOKIE_SOCK as GET_SOCKET_COOKIE(SOCK_OR_NULL) => SK_REUSEPORT KERNEL_OBJECTS;
    SK_STORAGE_GET_TRACING as SK_STORAGE_GET(Map, btf_or_null("sock_common"), ValueOrNull, Any)
        -> VALUE_OR_NULL => KERNEL_OBJECTS;
    SK_STORAGE_DELETE_TRACING as SK_STORAGE_DELETE(Map, btf_or_null("sock_common"))
        => KERNEL_OBJECTS;
    INODE_STORAGE_GET(Map, btf_or_null("inode"), ValueOrNull, Any) -> VALUE_OR_NULL => LSM;
    INODE_STORAGE_DELETE(Map, btf_or_null("inode")) => LSM;
    D_PATH(btf("path"), WRITE, SizeOrZero) => KERNEL_OBJECTS;
    SOCK_FROM_FILE(btf("file")) -> found("socket") => KERNEL_OBJECTS;

    // Iterators.
    SEQ_PRINTF(SEQ_FILE, READ, Size, READ_OR_NULL, SizeOrZero), gpl => ITER;
    SEQ_WRITE(SEQ_FILE, READ, SizeOrZero), gpl => ITER;
    SEQ_PRINTF_BTF(SEQ_FILE, READ, SizeOrZero, Any), gpl => ITER;

    // Security modules.
    BPRM_OPTS_SET(btf("linux_binprm"), Any) => LSM;
    IMA_INODE_HASH(btf("inode"), FILL, Size), might_sleep => LSM;
    IMA_FILE_HASH(btf("file"), FILL, Size), might_sleep => LSM;
}

//! Helpers for programs that trace, iterate over kernel objects, or act as a security module.

use super::table::*;
use super::{Arg::*, Helper, HelperId};

const SEQ_FILE: super::Arg = btf("seq_file");

helpers! {
    // The event.
    GET_STACKID(Context, Map, Any), gpl;
    GET_STACKID_PERF_EVENT as GET_STACKID(Context, Map, Any);
    GET_STACK(Context, FILL, SizeOrZero, Any), gpl;
    PERF_PROG_READ_VALUE(Context, FILL, Size), gpl;
    READ_BRANCH_RECORDS(Context, WRITE_OR_NULL, SizeOrZero, Any), gpl;
    GET_FUNC_IP(Context), gpl;
    GET_FUNC_IP_MULTI as GET_FUNC_IP(Context);
    GET_ATTACH_COOKIE(Context);
    GET_FUNC_ARG(Context, Any, fill_exactly(8));
    GET_FUNC_RET(Context, fill_exactly(8));
    GET_FUNC_ARG_CNT(Context);

    // Memory of either space.
    PROBE_READ(FILL, SizeOrZero, Any), gpl;
    PROBE_READ_STR(FILL, SizeOrZero, Any), gpl;

    // Acting on the traced process.
    PROBE_WRITE_USER(Any, READ, Size), gpl;
    OVERRIDE_RETURN(Context, Any), gpl;

    // Kernel objects.
    SKB_OUTPUT(btf("sk_buff"), Map, Any, READ, SizeOrZero), gpl;
    XDP_OUTPUT(btf("xdp_buff"), Map, Any, READ, SizeOrZero), gpl;
    XDP_GET_BUFF_LEN_TRACING as XDP_GET_BUFF_LEN(btf("xdp_buff"));
    GET_SOCKET_COOKIE_SOCK as GET_SOCKET_COOKIE(SOCK_OR_NULL);
    SK_STORAGE_GET_TRACING as SK_STORAGE_GET(Map, btf_or_null("sock_common"), ValueOrNull, Any) -> VALUE_OR_NULL;
    SK_STORAGE_DELETE_TRACING as SK_STORAGE_DELETE(Map, btf_or_null("sock_common"));
    INODE_STORAGE_GET(Map, btf_or_null("inode"), ValueOrNull, Any) -> VALUE_OR_NULL;
    INODE_STORAGE_DELETE(Map, btf_or_null("inode"));
    D_PATH(btf("path"), WRITE, SizeOrZero);
    SOCK_FROM_FILE(btf("file")) -> found("socket");

    // Iterators.
    SEQ_PRINTF(SEQ_FILE, READ, Size, READ_OR_NULL, SizeOrZero), gpl;
    SEQ_WRITE(SEQ_FILE, READ, SizeOrZero), gpl;
    SEQ_PRINTF_BTF(SEQ_FILE, READ, SizeOrZero, Any), gpl;

    // Security modules.
    BPRM_OPTS_SET(btf("linux_binprm"), Any);
    IMA_INODE_HASH(btf("inode"), FILL, Size), might_sleep;
    IMA_FILE_HASH(btf("file"), FILL, Size), might_sleep;
}

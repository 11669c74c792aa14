//! Helpers of programs that trace, iterate over objects of the kernel, or judge as a security module does.

use super::table::*;
use super::{Arg::*, Helper};

const SEQ_FILE: super::Arg = btf("seq_file");

helpers! {
    // The event.
     27 GET_STACKID(Context, Map, Any), gpl;
     27 GET_STACKID_PERF_EVENT(Context, Map, Any);
     67 GET_STACK(Context, FILL, SizeOrZero, Any), gpl;
     56 PERF_PROG_READ_VALUE(Context, FILL, Size), gpl;
    119 READ_BRANCH_RECORDS(Context, WRITE_OR_NULL, SizeOrZero, Any), gpl;
    173 GET_FUNC_IP(Context), gpl;
    173 GET_FUNC_IP_MULTI(Context);
    174 GET_ATTACH_COOKIE(Context);
    183 GET_FUNC_ARG(Context, Any, fill_exactly(8));
    184 GET_FUNC_RET(Context, fill_exactly(8));
    185 GET_FUNC_ARG_CNT(Context);

    // Memory of either space.
      4 PROBE_READ(FILL, SizeOrZero, Any), gpl;
     45 PROBE_READ_STR(FILL, SizeOrZero, Any), gpl;

    // What changes who is traced.
     36 PROBE_WRITE_USER(Any, READ, Size), gpl;
     58 OVERRIDE_RETURN(Context, Any), gpl;

    // Objects of the kernel.
    111 SKB_OUTPUT(btf("sk_buff"), Map, Any, READ, SizeOrZero), gpl;
    121 XDP_OUTPUT(btf("xdp_buff"), Map, Any, READ, SizeOrZero), gpl;
    188 XDP_GET_BUFF_LEN_TRACING(btf("xdp_buff"));
     46 GET_SOCKET_COOKIE_SOCK(SOCK_OR_NULL);
    107 SK_STORAGE_GET_TRACING(Map, btf_or_null("sock_common"), ValueOrNull, Any) -> VALUE_OR_NULL;
    108 SK_STORAGE_DELETE_TRACING(Map, btf_or_null("sock_common"));
    145 INODE_STORAGE_GET(Map, btf_or_null("inode"), ValueOrNull, Any) -> VALUE_OR_NULL;
    146 INODE_STORAGE_DELETE(Map, btf_or_null("inode"));
    147 D_PATH(btf("path"), WRITE, SizeOrZero);
    162 SOCK_FROM_FILE(btf("file")) -> found("socket");

    // Iterators.
    126 SEQ_PRINTF(SEQ_FILE, READ, Size, READ_OR_NULL, SizeOrZero), gpl;
    127 SEQ_WRITE(SEQ_FILE, READ, SizeOrZero), gpl;
    150 SEQ_PRINTF_BTF(SEQ_FILE, READ, SizeOrZero, Any), gpl;

    // Security modules.
    159 BPRM_OPTS_SET(btf("linux_binprm"), Any);
    161 IMA_INODE_HASH(btf("inode"), FILL, Size), might_sleep;
    193 IMA_FILE_HASH(btf("file"), FILL, Size), might_sleep;
}

//! Functions of kernel modules that programs may call and that are never part of the kernel itself
//! (Linux 6.18), ascending by name: of `nf_flow_table`, and of `bpf_testmod`, which the kernel's
//! own tests use.

use super::kernel_functions::{KernelFunction, callers::*, flags::*};

/// Programs that call most of `bpf_testmod`'s functions.
const TEST: u32 = TC | TRACING | SYSCALL | STRUCT_OPS;

const fn it(name: &'static str, flags: u32, callers: u32) -> KernelFunction {
    KernelFunction {
        name,
        flags,
        callers,
    }
}

pub(super) const ALL: [KernelFunction; 62] = [
    it("bpf_iter_testmod_seq_destroy", ITER_DESTROY, COMMON),
    it("bpf_iter_testmod_seq_new", ITER_NEW, COMMON),
    it("bpf_iter_testmod_seq_next", ITER_NEXT | RET_NULL, COMMON),
    it("bpf_iter_testmod_seq_value", 0, COMMON),
    it("bpf_kfunc_call_int_mem_release", RELEASE, TEST),
    it("bpf_kfunc_call_kernel_bind", SLEEPABLE, TEST),
    it("bpf_kfunc_call_kernel_connect", SLEEPABLE, TEST),
    it("bpf_kfunc_call_kernel_getpeername", SLEEPABLE, TEST),
    it("bpf_kfunc_call_kernel_getsockname", SLEEPABLE, TEST),
    it("bpf_kfunc_call_kernel_listen", SLEEPABLE, TEST),
    it("bpf_kfunc_call_kernel_sendmsg", SLEEPABLE, TEST),
    it("bpf_kfunc_call_memb1_release", RELEASE, TEST),
    it("bpf_kfunc_call_memb_acquire", ACQUIRE | RET_NULL, TEST),
    it("bpf_kfunc_call_sock_sendmsg", SLEEPABLE, TEST),
    it("bpf_kfunc_call_test1", 0, TEST),
    it("bpf_kfunc_call_test2", 0, TEST),
    it("bpf_kfunc_call_test3", 0, TEST),
    it("bpf_kfunc_call_test4", 0, TEST),
    it(
        "bpf_kfunc_call_test_acq_rdonly_mem",
        ACQUIRE | RET_NULL,
        TEST,
    ),
    it("bpf_kfunc_call_test_acquire", ACQUIRE | RET_NULL, TEST),
    it("bpf_kfunc_call_test_destructive", DESTRUCTIVE, TEST),
    it("bpf_kfunc_call_test_fail1", 0, TEST),
    it("bpf_kfunc_call_test_fail2", 0, TEST),
    it("bpf_kfunc_call_test_fail3", 0, TEST),
    it("bpf_kfunc_call_test_get_rdonly_mem", RET_NULL, TEST),
    it("bpf_kfunc_call_test_get_rdwr_mem", RET_NULL, TEST),
    it("bpf_kfunc_call_test_mem_len_fail1", 0, TEST),
    it("bpf_kfunc_call_test_mem_len_fail2", 0, TEST),
    it("bpf_kfunc_call_test_mem_len_pass1", 0, TEST),
    it("bpf_kfunc_call_test_offset", 0, TEST),
    it("bpf_kfunc_call_test_pass1", 0, TEST),
    it("bpf_kfunc_call_test_pass2", 0, TEST),
    it("bpf_kfunc_call_test_pass_ctx", 0, TEST),
    it("bpf_kfunc_call_test_ref", TRUSTED_ARGS | RCU, TEST),
    it("bpf_kfunc_call_test_sleepable", SLEEPABLE, TEST),
    it("bpf_kfunc_call_test_static_unused_arg", 0, TEST),
    it("bpf_kfunc_close_sock", SLEEPABLE, TEST),
    it("bpf_kfunc_common_test", 0, COMMON),
    it("bpf_kfunc_dynptr_test", 0, COMMON),
    it("bpf_kfunc_get_default_trusted_ptr_test", 0, COMMON),
    it("bpf_kfunc_init_sock", SLEEPABLE, TEST),
    it("bpf_kfunc_multi_st_ops_test_1", TRUSTED_ARGS, TEST),
    it(
        "bpf_kfunc_nested_acquire_nonzero_offset_test",
        ACQUIRE,
        COMMON,
    ),
    it("bpf_kfunc_nested_acquire_zero_offset_test", ACQUIRE, COMMON),
    it("bpf_kfunc_nested_release_test", RELEASE, COMMON),
    it("bpf_kfunc_put_default_trusted_ptr_test", 0, COMMON),
    it("bpf_kfunc_rcu_task_test", RCU, COMMON),
    it("bpf_kfunc_ret_rcu_test", RET_NULL | RCU_PROTECTED, COMMON),
    it(
        "bpf_kfunc_ret_rcu_test_nostruct",
        RET_NULL | RCU_PROTECTED,
        COMMON,
    ),
    it("bpf_kfunc_st_ops_inc10", TRUSTED_ARGS, TEST),
    it(
        "bpf_kfunc_st_ops_test_epilogue",
        TRUSTED_ARGS | SLEEPABLE,
        TEST,
    ),
    it(
        "bpf_kfunc_st_ops_test_pro_epilogue",
        TRUSTED_ARGS | SLEEPABLE,
        TEST,
    ),
    it(
        "bpf_kfunc_st_ops_test_prologue",
        TRUSTED_ARGS | SLEEPABLE,
        TEST,
    ),
    it("bpf_kfunc_trusted_num_test", TRUSTED_ARGS, COMMON),
    it("bpf_kfunc_trusted_task_test", TRUSTED_ARGS, COMMON),
    it("bpf_kfunc_trusted_vma_test", TRUSTED_ARGS, COMMON),
    it("bpf_testmod_ctx_create", ACQUIRE | RET_NULL, COMMON),
    it("bpf_testmod_ctx_release", RELEASE, COMMON),
    it("bpf_testmod_ops3_call_test_1", 0, COMMON),
    it("bpf_testmod_ops3_call_test_2", 0, COMMON),
    it("bpf_testmod_test_mod_kfunc", 0, TEST),
    it("bpf_xdp_flow_lookup", TRUSTED_ARGS | RET_NULL, XDP),
];

//! Helpers for all programs: maps, clocks, strings, tasks, ring buffers, timers, loops.

use super::table::*;
use super::{Arg::*, Dynptr, Helper, HelperId, Ret};

const TASK: super::Arg = btf("task_struct");
const NEW_LOCAL: super::Arg = Dynptr(Dynptr::NewLocal);
const NEW_RINGBUF: super::Arg = Dynptr(Dynptr::NewRingbuf);
const RELEASE_RINGBUF: super::Arg = Dynptr(Dynptr::ReleaseRingbuf);
const ANY_DYNPTR: super::Arg = Dynptr(Dynptr::Any);
const STACK_OR_NULL: super::Arg = Stack { or_null: true };
const PER_CPU: Ret = Ret::MemOrBtf { or_null: false };
const PER_CPU_OR_NULL: Ret = Ret::MemOrBtf { or_null: true };
const CURRENT_TASK: Ret = Ret::Btf {
    name: "task_struct",
    or_null: false,
    trusted: true,
};
const TASK_REGISTERS: Ret = Ret::Btf {
    name: "pt_regs",
    or_null: false,
    trusted: false,
};

helpers! {
    // Maps.
    MAP_LOOKUP_ELEM(Map, Key) -> VALUE_OR_NULL, packet_access => BASE LIRC_MODE2;
    MAP_UPDATE_ELEM(Map, Key, Value, Any), packet_access => BASE LIRC_MODE2;
    MAP_DELETE_ELEM(Map, Key), packet_access => BASE LIRC_MODE2;
    MAP_PUSH_ELEM(Map, Value, Any), packet_access => BASE LIRC_MODE2;
    MAP_POP_ELEM(Map, UninitValue) => BASE LIRC_MODE2;
    MAP_PEEK_ELEM(Map, UninitValue) => BASE LIRC_MODE2;
    FOR_EACH_MAP_ELEM(Map, Func, STACK_OR_NULL, Any) => BASE;
    MAP_LOOKUP_PERCPU_ELEM(Map, Key, Any) -> VALUE_OR_NULL, packet_access => BASE;
    SPIN_LOCK(SpinLock) -> Ret::Void => BASE;
    SPIN_UNLOCK(SpinLock) -> Ret::Void => BASE;
    KPTR_XCHG(KptrXchgDest, KptrXchgSource) -> Ret::KptrOrNull => BASE;
    TASK_STORAGE_GET(Map, btf_or_null("task_struct"), ValueOrNull, Any) -> VALUE_OR_NULL => BASE;
    TASK_STORAGE_DELETE(Map, btf_or_null("task_struct")) => BASE;
    CGRP_STORAGE_GET(Map, btf_or_null("cgroup"), ValueOrNull, Any) -> VALUE_OR_NULL => BASE;
    CGRP_STORAGE_DELETE(Map, btf_or_null("cgroup")) => BASE;
    PERF_EVENT_READ(Map, Any), gpl => BASE;
    PERF_EVENT_READ_VALUE(Map, Any, FILL, Size), gpl => BASE;

    // Clocks, processors, randomness.
    KTIME_GET_NS() => BASE LIRC_MODE2;
    KTIME_GET_BOOT_NS() => BASE LIRC_MODE2;
    KTIME_GET_COARSE_NS() => SOCKETS SK_REUSEPORT CGROUP_SOCK CGROUP_SYSCTL TCP_CONGESTION;
    KTIME_GET_TAI_NS() => BASE;
    JIFFIES64() => BASE;
    GET_PRANDOM_U32() => BASE LIRC_MODE2;
    GET_SMP_PROCESSOR_ID(), fastcall => BASE;
    GET_NUMA_NODE_ID() => BASE;
    PER_CPU_PTR(PerCpuBtf, Any) -> PER_CPU_OR_NULL => BASE;
    THIS_CPU_PTR(PerCpuBtf) -> PER_CPU => BASE;
    GET_BRANCH_SNAPSHOT(FILL, SizeOrZero), gpl => BASE;

    // Tasks.
    GET_CURRENT_PID_TGID() => BASE;
    GET_CURRENT_UID_GID() => BASE;
    GET_CURRENT_COMM(FILL, Size) => BASE;
    GET_CGROUP_CLASSID_CURRENT as GET_CGROUP_CLASSID() => BASE;
    GET_CURRENT_TASK(), gpl => BASE;
    GET_CURRENT_TASK_BTF() -> CURRENT_TASK, gpl => BASE;
    TASK_PT_REGS(TASK) -> TASK_REGISTERS, gpl => BASE;
    GET_TASK_STACK(TASK, FILL, SizeOrZero, Any) => BASE;
    FIND_VMA(TASK, Any, Func, STACK_OR_NULL, Any) => BASE;
    CURRENT_TASK_UNDER_CGROUP(Map, Any) => BASE;
    GET_CURRENT_CGROUP_ID() => BASE;
    GET_CURRENT_ANCESTOR_CGROUP_ID(Any) => BASE;
    GET_NS_CURRENT_PID_TGID(Any, Any, FILL, Size) => BASE;
    SEND_SIGNAL(Any) => BASE;
    SEND_SIGNAL_THREAD(Any) => BASE;

    // Memory that may be unmapped.
    PROBE_READ_USER(FILL, SizeOrZero, Any), gpl => BASE;
    PROBE_READ_KERNEL(FILL, SizeOrZero, Any), gpl => BASE;
    PROBE_READ_USER_STR(FILL, SizeOrZero, Any), gpl => BASE;
    PROBE_READ_KERNEL_STR(FILL, SizeOrZero, Any), gpl => BASE;
    COPY_FROM_USER(FILL, SizeOrZero, Any), might_sleep => BASE;
    COPY_FROM_USER_TASK(FILL, SizeOrZero, Any, TASK, Any), gpl, might_sleep => BASE;

    // Strings.
    TRACE_PRINTK(READ, Size), gpl => BASE LIRC_MODE2;
    TRACE_VPRINTK(READ, Size, READ_OR_NULL, SizeOrZero), gpl => BASE;
    SNPRINTF_BTF(WRITE, Size, READ, Size, Any) => BASE;
    SNPRINTF(WRITE_OR_NULL, SizeOrZero, ConstStr, READ_OR_NULL, SizeOrZero), gpl => BASE;
    STRTOL(READ, Size, Any, fill_exactly(8)) => BASE;
    STRTOUL(READ, Size, Any, fill_exactly(8)) => BASE;
    STRNCMP(READ, Size, ConstStr) => BASE;

    // Ring buffers.
    PERF_EVENT_OUTPUT(Context, Map, Any, READ, SizeOrZero), gpl
        => SOCKET_FILTER SCHED XDP LWT SK_SKB SK_MSG SK_LOOKUP SOCK_OPS CGROUP CGROUP_SOCK
           CGROUP_SOCK_ADDR CGROUP_SOCKOPT EVENTS;
    RINGBUF_OUTPUT(Map, READ, SizeOrZero, Any) => BASE;
    RINGBUF_RESERVE(Map, AllocSizeOrZero, Any) -> Ret::RingbufMemOrNull => BASE;
    RINGBUF_SUBMIT(RingbufMem, Any) -> Ret::Void => BASE;
    RINGBUF_DISCARD(RingbufMem, Any) -> Ret::Void => BASE;
    RINGBUF_QUERY(Map, Any) => BASE;
    RINGBUF_RESERVE_DYNPTR(Map, Any, Any, NEW_RINGBUF) => BASE;
    RINGBUF_SUBMIT_DYNPTR(RELEASE_RINGBUF, Any) -> Ret::Void => BASE;
    RINGBUF_DISCARD_DYNPTR(RELEASE_RINGBUF, Any) -> Ret::Void => BASE;
    USER_RINGBUF_DRAIN(Map, Func, STACK_OR_NULL, Any) => BASE;

    // Dynptrs.
    DYNPTR_FROM_MEM(FILL, SizeOrZero, Any, NEW_LOCAL) => BASE;
    DYNPTR_READ(FILL, SizeOrZero, ANY_DYNPTR, Any, Any) => BASE;
    DYNPTR_WRITE(ANY_DYNPTR, Any, READ, SizeOrZero, Any) => BASE;
    DYNPTR_DATA(ANY_DYNPTR, Any, AllocSizeOrZero) -> Ret::DynptrMemOrNull => BASE;

    // Timers, loops, tail calls.
    TIMER_INIT(Timer, Map, Any), gpl => BASE;
    TIMER_SET_CALLBACK(Timer, Func), gpl => BASE;
    TIMER_START(Timer, Any, Any), gpl => BASE;
    TIMER_CANCEL(Timer), gpl => BASE;
    LOOP(Any, Func, STACK_OR_NULL, Any) => BASE;
    TAIL_CALL(Context, Map, Any) -> Ret::Void, changes_packet => BASE LIRC_MODE2;

    // Loading programs.
    SYS_BPF(Any, READ, Size) => SYSCALL;
    BTF_FIND_BY_NAME_KIND(READ, Size, Any, Any) => SYSCALL;
    SYS_CLOSE(Any) => SYSCALL;
    KALLSYMS_LOOKUP_NAME(READ, SizeOrZero, Any, fill_exactly(8)) => SYSCALL;

    // Infrared receivers.
    RC_REPEAT(Context), gpl => LIRC_MODE2;
    RC_KEYDOWN(Context, Any, Any, Any), gpl => LIRC_MODE2;
    RC_POINTER_REL(Context, Any, Any), gpl => LIRC_MODE2;
}

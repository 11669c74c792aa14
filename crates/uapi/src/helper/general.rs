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
    MAP_LOOKUP_ELEM(Map, Key) -> VALUE_OR_NULL, packet_access;
    MAP_UPDATE_ELEM(Map, Key, Value, Any), packet_access;
    MAP_DELETE_ELEM(Map, Key), packet_access;
    MAP_PUSH_ELEM(Map, Value, Any), packet_access;
    MAP_POP_ELEM(Map, UninitValue);
    MAP_PEEK_ELEM(Map, UninitValue);
    FOR_EACH_MAP_ELEM(Map, Func, STACK_OR_NULL, Any);
    MAP_LOOKUP_PERCPU_ELEM(Map, Key, Any) -> VALUE_OR_NULL, packet_access;
    SPIN_LOCK(SpinLock) -> Ret::Void;
    SPIN_UNLOCK(SpinLock) -> Ret::Void;
    KPTR_XCHG(KptrXchgDest, KptrXchgSource) -> Ret::KptrOrNull;
    TASK_STORAGE_GET(Map, btf_or_null("task_struct"), ValueOrNull, Any) -> VALUE_OR_NULL;
    TASK_STORAGE_DELETE(Map, btf_or_null("task_struct"));
    CGRP_STORAGE_GET(Map, btf_or_null("cgroup"), ValueOrNull, Any) -> VALUE_OR_NULL;
    CGRP_STORAGE_DELETE(Map, btf_or_null("cgroup"));
    PERF_EVENT_READ(Map, Any), gpl;
    PERF_EVENT_READ_VALUE(Map, Any, FILL, Size), gpl;

    // Clocks, processors, randomness.
    KTIME_GET_NS();
    KTIME_GET_BOOT_NS();
    KTIME_GET_COARSE_NS();
    KTIME_GET_TAI_NS();
    JIFFIES64();
    GET_PRANDOM_U32();
    GET_SMP_PROCESSOR_ID(), fastcall;
    GET_NUMA_NODE_ID();
    PER_CPU_PTR(PerCpuBtf, Any) -> PER_CPU_OR_NULL;
    THIS_CPU_PTR(PerCpuBtf) -> PER_CPU;
    GET_BRANCH_SNAPSHOT(FILL, SizeOrZero), gpl;

    // Tasks.
    GET_CURRENT_PID_TGID();
    GET_CURRENT_UID_GID();
    GET_CURRENT_COMM(FILL, Size);
    GET_CGROUP_CLASSID_CURRENT as GET_CGROUP_CLASSID();
    GET_CURRENT_TASK(), gpl;
    GET_CURRENT_TASK_BTF() -> CURRENT_TASK, gpl;
    TASK_PT_REGS(TASK) -> TASK_REGISTERS, gpl;
    GET_TASK_STACK(TASK, FILL, SizeOrZero, Any);
    FIND_VMA(TASK, Any, Func, STACK_OR_NULL, Any);
    CURRENT_TASK_UNDER_CGROUP(Map, Any);
    GET_CURRENT_CGROUP_ID();
    GET_CURRENT_ANCESTOR_CGROUP_ID(Any);
    GET_NS_CURRENT_PID_TGID(Any, Any, FILL, Size);
    SEND_SIGNAL(Any);
    SEND_SIGNAL_THREAD(Any);

    // Memory that may be unmapped.
    PROBE_READ_USER(FILL, SizeOrZero, Any), gpl;
    PROBE_READ_KERNEL(FILL, SizeOrZero, Any), gpl;
    PROBE_READ_USER_STR(FILL, SizeOrZero, Any), gpl;
    PROBE_READ_KERNEL_STR(FILL, SizeOrZero, Any), gpl;
    COPY_FROM_USER(FILL, SizeOrZero, Any), might_sleep;
    COPY_FROM_USER_TASK(FILL, SizeOrZero, Any, TASK, Any), gpl, might_sleep;

    // Strings.
    TRACE_PRINTK(READ, Size), gpl;
    TRACE_VPRINTK(READ, Size, READ_OR_NULL, SizeOrZero), gpl;
    SNPRINTF_BTF(WRITE, Size, READ, Size, Any);
    SNPRINTF(WRITE_OR_NULL, SizeOrZero, ConstStr, READ_OR_NULL, SizeOrZero), gpl;
    STRTOL(READ, Size, Any, fill_exactly(8));
    STRTOUL(READ, Size, Any, fill_exactly(8));
    STRNCMP(READ, Size, ConstStr);

    // Ring buffers.
    PERF_EVENT_OUTPUT(Context, Map, Any, READ, SizeOrZero), gpl;
    RINGBUF_OUTPUT(Map, READ, SizeOrZero, Any);
    RINGBUF_RESERVE(Map, AllocSizeOrZero, Any) -> Ret::RingbufMemOrNull;
    RINGBUF_SUBMIT(RingbufMem, Any) -> Ret::Void;
    RINGBUF_DISCARD(RingbufMem, Any) -> Ret::Void;
    RINGBUF_QUERY(Map, Any);
    RINGBUF_RESERVE_DYNPTR(Map, Any, Any, NEW_RINGBUF);
    RINGBUF_SUBMIT_DYNPTR(RELEASE_RINGBUF, Any) -> Ret::Void;
    RINGBUF_DISCARD_DYNPTR(RELEASE_RINGBUF, Any) -> Ret::Void;
    USER_RINGBUF_DRAIN(Map, Func, STACK_OR_NULL, Any);

    // Dynptrs.
    DYNPTR_FROM_MEM(FILL, SizeOrZero, Any, NEW_LOCAL);
    DYNPTR_READ(FILL, SizeOrZero, ANY_DYNPTR, Any, Any);
    DYNPTR_WRITE(ANY_DYNPTR, Any, READ, SizeOrZero, Any);
    DYNPTR_DATA(ANY_DYNPTR, Any, AllocSizeOrZero) -> Ret::DynptrMemOrNull;

    // Timers, loops, tail calls.
    TIMER_INIT(Timer, Map, Any), gpl;
    TIMER_SET_CALLBACK(Timer, Func), gpl;
    TIMER_START(Timer, Any, Any), gpl;
    TIMER_CANCEL(Timer), gpl;
    LOOP(Any, Func, STACK_OR_NULL, Any);
    TAIL_CALL(Context, Map, Any) -> Ret::Void, changes_packet;

    // Loading programs.
    SYS_BPF(Any, READ, Size);
    BTF_FIND_BY_NAME_KIND(READ, Size, Any, Any);
    SYS_CLOSE(Any);
    KALLSYMS_LOOKUP_NAME(READ, SizeOrZero, Any, fill_exactly(8));

    // Infrared receivers.
    RC_REPEAT(Context), gpl;
    RC_KEYDOWN(Context, Any, Any, Any), gpl;
    RC_POINTER_REL(Context, Any, Any), gpl;
}

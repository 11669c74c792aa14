//! Helpers of all programs: maps, clocks, strings, tasks, ring buffers, timers, loops.

use super::table::*;
use super::{Arg::*, Dynptr, Helper, Ret};

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
      1 MAP_LOOKUP_ELEM(Map, Key) -> VALUE_OR_NULL, packet_access;
      2 MAP_UPDATE_ELEM(Map, Key, Value, Any), packet_access;
      3 MAP_DELETE_ELEM(Map, Key), packet_access;
     87 MAP_PUSH_ELEM(Map, Value, Any), packet_access;
     88 MAP_POP_ELEM(Map, UninitValue);
     89 MAP_PEEK_ELEM(Map, UninitValue);
    164 FOR_EACH_MAP_ELEM(Map, Func, STACK_OR_NULL, Any);
    195 MAP_LOOKUP_PERCPU_ELEM(Map, Key, Any) -> VALUE_OR_NULL, packet_access;
     93 SPIN_LOCK(SpinLock) -> Ret::Void;
     94 SPIN_UNLOCK(SpinLock) -> Ret::Void;
    194 KPTR_XCHG(KptrXchgDest, KptrXchgSource) -> Ret::KptrOrNull;
    156 TASK_STORAGE_GET(Map, btf_or_null("task_struct"), ValueOrNull, Any) -> VALUE_OR_NULL;
    157 TASK_STORAGE_DELETE(Map, btf_or_null("task_struct"));
    210 CGRP_STORAGE_GET(Map, btf_or_null("cgroup"), ValueOrNull, Any) -> VALUE_OR_NULL;
    211 CGRP_STORAGE_DELETE(Map, btf_or_null("cgroup"));
     22 PERF_EVENT_READ(Map, Any), gpl;
     55 PERF_EVENT_READ_VALUE(Map, Any, FILL, Size), gpl;

    // Clocks, processors, chance.
      5 KTIME_GET_NS();
    125 KTIME_GET_BOOT_NS();
    160 KTIME_GET_COARSE_NS();
    208 KTIME_GET_TAI_NS();
    118 JIFFIES64();
      7 GET_PRANDOM_U32();
      8 GET_SMP_PROCESSOR_ID(), fastcall;
     42 GET_NUMA_NODE_ID();
    153 PER_CPU_PTR(PerCpuBtf, Any) -> PER_CPU_OR_NULL;
    154 THIS_CPU_PTR(PerCpuBtf) -> PER_CPU;
    176 GET_BRANCH_SNAPSHOT(FILL, SizeOrZero), gpl;

    // Tasks.
     14 GET_CURRENT_PID_TGID();
     15 GET_CURRENT_UID_GID();
     16 GET_CURRENT_COMM(FILL, Size);
     17 GET_CGROUP_CLASSID_CURRENT();
     35 GET_CURRENT_TASK(), gpl;
    158 GET_CURRENT_TASK_BTF() -> CURRENT_TASK, gpl;
    175 TASK_PT_REGS(TASK) -> TASK_REGISTERS, gpl;
    141 GET_TASK_STACK(TASK, FILL, SizeOrZero, Any);
    180 FIND_VMA(TASK, Any, Func, STACK_OR_NULL, Any);
     37 CURRENT_TASK_UNDER_CGROUP(Map, Any);
     80 GET_CURRENT_CGROUP_ID();
    123 GET_CURRENT_ANCESTOR_CGROUP_ID(Any);
    120 GET_NS_CURRENT_PID_TGID(Any, Any, FILL, Size);
    109 SEND_SIGNAL(Any);
    117 SEND_SIGNAL_THREAD(Any);

    // Memory that may not be there.
    112 PROBE_READ_USER(FILL, SizeOrZero, Any), gpl;
    113 PROBE_READ_KERNEL(FILL, SizeOrZero, Any), gpl;
    114 PROBE_READ_USER_STR(FILL, SizeOrZero, Any), gpl;
    115 PROBE_READ_KERNEL_STR(FILL, SizeOrZero, Any), gpl;
    148 COPY_FROM_USER(FILL, SizeOrZero, Any), might_sleep;
    191 COPY_FROM_USER_TASK(FILL, SizeOrZero, Any, TASK, Any), gpl, might_sleep;

    // Strings.
      6 TRACE_PRINTK(READ, Size), gpl;
    177 TRACE_VPRINTK(READ, Size, READ_OR_NULL, SizeOrZero), gpl;
    149 SNPRINTF_BTF(WRITE, Size, READ, Size, Any);
    165 SNPRINTF(WRITE_OR_NULL, SizeOrZero, ConstStr, READ_OR_NULL, SizeOrZero), gpl;
    105 STRTOL(READ, Size, Any, fill_exactly(8));
    106 STRTOUL(READ, Size, Any, fill_exactly(8));
    182 STRNCMP(READ, Size, ConstStr);

    // Ring buffers.
     25 PERF_EVENT_OUTPUT(Context, Map, Any, READ, SizeOrZero), gpl;
    130 RINGBUF_OUTPUT(Map, READ, SizeOrZero, Any);
    131 RINGBUF_RESERVE(Map, AllocSizeOrZero, Any) -> Ret::RingbufMemOrNull;
    132 RINGBUF_SUBMIT(RingbufMem, Any) -> Ret::Void;
    133 RINGBUF_DISCARD(RingbufMem, Any) -> Ret::Void;
    134 RINGBUF_QUERY(Map, Any);
    198 RINGBUF_RESERVE_DYNPTR(Map, Any, Any, NEW_RINGBUF);
    199 RINGBUF_SUBMIT_DYNPTR(RELEASE_RINGBUF, Any) -> Ret::Void;
    200 RINGBUF_DISCARD_DYNPTR(RELEASE_RINGBUF, Any) -> Ret::Void;
    209 USER_RINGBUF_DRAIN(Map, Func, STACK_OR_NULL, Any);

    // Dynptrs.
    197 DYNPTR_FROM_MEM(FILL, SizeOrZero, Any, NEW_LOCAL);
    201 DYNPTR_READ(FILL, SizeOrZero, ANY_DYNPTR, Any, Any);
    202 DYNPTR_WRITE(ANY_DYNPTR, Any, READ, SizeOrZero, Any);
    203 DYNPTR_DATA(ANY_DYNPTR, Any, AllocSizeOrZero) -> Ret::DynptrMemOrNull;

    // Timers, loops, tail calls.
    169 TIMER_INIT(Timer, Map, Any), gpl;
    170 TIMER_SET_CALLBACK(Timer, Func), gpl;
    171 TIMER_START(Timer, Any, Any), gpl;
    172 TIMER_CANCEL(Timer), gpl;
    181 LOOP(Any, Func, STACK_OR_NULL, Any);
     12 TAIL_CALL(Context, Map, Any) -> Ret::Void, changes_packet;

    // What loads programs.
    166 SYS_BPF(Any, READ, Size);
    167 BTF_FIND_BY_NAME_KIND(READ, Size, Any, Any);
    168 SYS_CLOSE(Any);
    179 KALLSYMS_LOOKUP_NAME(READ, SizeOrZero, Any, fill_exactly(8));

    // Infrared receivers.
     77 RC_REPEAT(Context), gpl;
     78 RC_KEYDOWN(Context, Any, Any, Any), gpl;
     92 RC_POINTER_REL(Context, Any, Any), gpl;
}

//! The end of a program: return values and exceptions.

use beeline_isa::{
    imm64,
    opcode::{JEQ, W},
};
use beeline_uapi::{AttachType, HelperId, ProgramType};
use beeline_verifier::program::Kind;

use crate::asm::{END, R0_IS_0, copy, helper, load, set, skip_if};
use crate::oracle::{Oracle, plain};

/// The return value of a program that implements an operation, which decides about its type.
#[test]
fn return_values_of_operations_get_the_kernels_verdicts() {
    let Some(mut oracle) = Oracle::new() else {
        return;
    };
    let Some(tcp) = oracle.types.structure("tcp_congestion_ops") else {
        return;
    };
    for member in 0..24 {
        let kind = Kind {
            prog_type: ProgramType::STRUCT_OPS,
            attach_type: AttachType(member),
            attach_btf_id: tcp,
            ..Kind::default()
        };
        if !oracle.takes(kind) {
            continue;
        }
        oracle.try_whole("nothing", kind, &[END]);
        oracle.try_whole("a number", kind, &[set(0, 7), END]);
        oracle.try_whole("no address", kind, &[R0_IS_0, END]);
        oracle.try_whole("the context", kind, &[copy(0, 1), END]);
    }
    let task = oracle.iterator("task", 0);
    let [low, high] = imm64(0, 0, 1 << 32);
    oracle.try_whole("a wide number", task, &[low, high, END]);
    oracle.check();
}

#[test]
fn exceptions_get_the_kernels_verdicts() {
    let Some(mut oracle) = Oracle::new() else {
        return;
    };
    let throw = oracle.call("bpf_throw");
    let [lock, _] = ["bpf_rcu_read_lock", "bpf_rcu_read_unlock"].map(|it| oracle.call(it));
    let [disable, _] = ["bpf_preempt_disable", "bpf_preempt_enable"].map(|it| oracle.call(it));
    let found = [set(1, 1), oracle.call("bpf_task_from_pid")];
    for kind in [
        plain(ProgramType::SCHED_CLS),
        plain(ProgramType::SYSCALL),
        oracle.tracepoint("sched_switch"),
        oracle.iterator("task", 0),
        plain(ProgramType::SOCKET_FILTER),
    ] {
        oracle.try_one("thrown", kind, &[&[set(1, 0), throw]]);
        oracle.try_one("thrown 7", kind, &[&[set(1, 7), throw]]);
        oracle.try_one(
            "thrown sometimes",
            kind,
            &[&[load(W, 2, 1, 0), skip_if(JEQ, 2, 0, 2), set(1, 0), throw]],
        );
        oracle.try_one("thrown an address", kind, &[&[copy(1, 10), throw]]);
        oracle.try_one(
            "thrown nothing",
            kind,
            &[&[copy(6, 1), helper(HelperId::GET_PRANDOM_U32), throw]],
        );
        oracle.try_one("thrown in rcu", kind, &[&[lock, set(1, 0), throw]]);
        oracle.try_one(
            "thrown without preemption",
            kind,
            &[&[disable, set(1, 0), throw]],
        );
        oracle.try_one("thrown with a task", kind, &[&found, &[set(1, 0), throw]]);
    }
    oracle.check();
}

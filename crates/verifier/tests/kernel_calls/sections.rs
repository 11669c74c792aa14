//! Sections in which a program may not sleep, be preempted or interrupted.

use beeline_isa::{
    Insn,
    opcode::{DW, JEQ},
};
use beeline_uapi::ProgramType;
use beeline_uapi::flags::SLEEPABLE;

use crate::asm::{add, copy, load, set, skip_if, stack, store};
use crate::oracle::{Oracle, plain};

#[test]
fn critical_sections_get_the_kernels_verdicts() {
    let Some(mut oracle) = Oracle::new() else {
        return;
    };
    let [lock, unlock] = ["bpf_rcu_read_lock", "bpf_rcu_read_unlock"].map(|it| oracle.call(it));
    let [disable, enable] = ["bpf_preempt_disable", "bpf_preempt_enable"].map(|it| oracle.call(it));
    let [save, restore] = ["bpf_local_irq_save", "bpf_local_irq_restore"].map(|it| oracle.call(it));
    let flag = stack(1, 8);
    let other = stack(1, 16);
    let [flag_a, flag_b] = flag;
    let [other_a, other_b] = other;
    let sequences: &[(&str, &[Insn])] = &[
        ("rcu", &[lock, unlock]),
        ("rcu twice", &[lock, unlock, lock, unlock]),
        ("nested rcu", &[lock, lock, unlock, unlock]),
        ("rcu left open", &[lock]),
        ("rcu unlock alone", &[unlock]),
        ("rcu on one path", &[skip_if(JEQ, 1, 0, 1), lock, unlock]),
        ("preempt", &[disable, enable]),
        ("preempt nested", &[disable, disable, enable, enable]),
        ("preempt left open", &[disable, disable, enable]),
        ("preempt enable alone", &[enable]),
        ("irq", &[flag_a, flag_b, save, flag_a, flag_b, restore]),
        ("irq left open", &[flag_a, flag_b, save]),
        (
            "irq restored twice",
            &[
                flag_a, flag_b, save, flag_a, flag_b, restore, flag_a, flag_b, restore,
            ],
        ),
        (
            "irq saved twice",
            &[flag_a, flag_b, save, flag_a, flag_b, save],
        ),
        (
            "irq not saved",
            &[store(DW, 10, -8, 0), flag_a, flag_b, restore],
        ),
        ("irq beyond", &[flag_a, flag_b, restore]),
        ("irq unaligned", &[flag_a, add(1, -4), save]),
        ("irq above", &[copy(1, 10), save]),
        ("irq not on the stack", &[set(1, 5), save]),
        (
            "irq nested",
            &[
                flag_a, flag_b, save, other_a, other_b, save, other_a, other_b, restore, flag_a,
                flag_b, restore,
            ],
        ),
        (
            "irq out of order",
            &[
                flag_a, flag_b, save, other_a, other_b, save, flag_a, flag_b, restore, other_a,
                other_b, restore,
            ],
        ),
        (
            "irq flag overwritten",
            &[
                flag_a,
                flag_b,
                save,
                store(DW, 10, -8, 0),
                flag_a,
                flag_b,
                restore,
            ],
        ),
        (
            "irq flag read",
            &[
                flag_a,
                flag_b,
                save,
                load(DW, 1, 10, -8),
                flag_a,
                flag_b,
                restore,
            ],
        ),
        (
            "irq with rcu",
            &[flag_a, flag_b, save, lock, flag_a, flag_b, restore, unlock],
        ),
    ];
    for kind in [
        plain(ProgramType::SYSCALL),
        plain(ProgramType::SCHED_CLS),
        oracle.tracepoint("sched_switch"),
    ] {
        for (what, insns) in sequences {
            oracle.try_one(what, kind, &[insns]);
        }
    }
    oracle.check();
}

/// The check of permitted callers gives the same answer as for functions without arguments.
#[test]
fn sleepable_functions_in_sections_get_the_kernels_verdicts() {
    let Some(mut oracle) = Oracle::new() else {
        return;
    };
    let copy_str = oracle.call("bpf_copy_from_user_str");
    let [lock, unlock] = ["bpf_rcu_read_lock", "bpf_rcu_read_unlock"].map(|it| oracle.call(it));
    let [disable, enable] = ["bpf_preempt_disable", "bpf_preempt_enable"].map(|it| oracle.call(it));
    let [save, restore] = ["bpf_local_irq_save", "bpf_local_irq_restore"].map(|it| oracle.call(it));
    let [a, b] = stack(1, 16);
    let [f, g] = stack(1, 32);
    let read = [a, b, set(2, 8), set(3, 0), set(4, 0), copy_str];
    for kind in [
        plain(ProgramType::SYSCALL),
        oracle.iterator("task", SLEEPABLE),
        oracle.iterator("task", 0),
        plain(ProgramType::SCHED_CLS),
    ] {
        oracle.try_one("reading", kind, &[&read]);
        oracle.try_one(
            "reading too much",
            kind,
            &[&[a, b, set(2, 17), set(3, 0), set(4, 0), copy_str]],
        );
        oracle.try_one(
            "reading nothing",
            kind,
            &[&[a, b, set(2, 0), set(3, 0), set(4, 0), copy_str]],
        );
        oracle.try_one(
            "reading backwards",
            kind,
            &[&[a, b, set(2, -1), set(3, 0), set(4, 0), copy_str]],
        );
        oracle.try_one(
            "to nowhere",
            kind,
            &[&[set(1, 0), set(2, 8), set(3, 0), set(4, 0), copy_str]],
        );
        oracle.try_one("in rcu", kind, &[&[lock], &read, &[unlock]]);
        oracle.try_one("in preempt", kind, &[&[disable], &read, &[enable]]);
        oracle.try_one("in irq", kind, &[&[f, g, save], &read, &[f, g, restore]]);
    }
    oracle.check();
}

//! Iterators: over numbers, and over structures of the kernel's.

use beeline_isa::opcode::{ADD, ALU64, B, DW, JEQ, JGT, W, X};
use beeline_uapi::flags::SLEEPABLE;
use beeline_uapi::{HelperId, ProgramType};

use crate::asm::{add, copy, helper, insn, jump, load, set, skip_if, stack, store};
use crate::oracle::{Oracle, plain};

/// An iterator over numbers: made at r10 - 8, used, ended.
#[test]
fn iterators_over_numbers_get_the_kernels_verdicts() {
    let Some(mut oracle) = Oracle::new() else {
        return;
    };
    let [new, next, destroy] =
        ["new", "next", "destroy"].map(|it| oracle.call(&format!("bpf_iter_num_{it}")));
    let [a, b] = stack(1, 8);
    let make = [a, b, set(2, 0), set(3, 10), new];
    let end = [a, b, destroy];
    let step = [a, b, next];
    let kinds = [
        plain(ProgramType::SOCKET_FILTER),
        plain(ProgramType::XDP),
        oracle.tracepoint("sched_switch"),
    ];
    for kind in kinds {
        oracle.try_one("made and ended", kind, &[&make, &end]);
        oracle.try_one("left", kind, &[&make]);
        oracle.try_one("ended twice", kind, &[&make, &end, &end]);
        oracle.try_one("made twice", kind, &[&make, &make, &end]);
        oracle.try_one("made again", kind, &[&make, &end, &make, &end]);
        oracle.try_one("never made", kind, &[&end]);
        oracle.try_one("next of none", kind, &[&[store(DW, 10, -8, 1)], &step]);
        oracle.try_one("one element", kind, &[&make, &step, &end]);
        oracle.try_one(
            "an element unchecked",
            kind,
            &[&make, &step, &[load(W, 1, 0, 0)], &end],
        );
        oracle.try_one(
            "an element read",
            kind,
            &[
                &make,
                &step,
                &[skip_if(JEQ, 0, 0, 1), load(W, 1, 0, 0)],
                &end,
            ],
        );
        oracle.try_one(
            "an element written",
            kind,
            &[
                &make,
                &step,
                &[skip_if(JEQ, 0, 0, 1), store(W, 0, 0, 0)],
                &end,
            ],
        );
        oracle.try_one(
            "an element too wide",
            kind,
            &[
                &make,
                &step,
                &[skip_if(JEQ, 0, 0, 1), load(DW, 1, 0, 0)],
                &end,
            ],
        );
        oracle.try_one(
            "an element after the end",
            kind,
            &[
                &make,
                &step,
                &[copy(6, 0)],
                &end,
                &[skip_if(JEQ, 6, 0, 1), load(W, 1, 6, 0)],
            ],
        );
        let turn = [
            a,
            b,
            next,
            skip_if(JEQ, 0, 0, 3),
            load(W, 1, 0, 0),
            insn(ALU64 | X | ADD, 6, 1, 0, 0),
            jump(-7),
        ];
        oracle.try_one("a loop", kind, &[&[set(6, 0)], &make, &turn, &end]);
        let wild = [a, b, next, skip_if(JEQ, 0, 0, 2), add(6, 1), jump(-6)];
        oracle.try_one(
            "a loop that counts",
            kind,
            &[&[set(6, 0)], &make, &wild, &end],
        );
        let used = [
            copy(1, 10),
            insn(ALU64 | X | ADD, 1, 6, 0, 0),
            store(B, 1, -64, 0),
        ];
        oracle.try_one(
            "a count that is used",
            kind,
            &[&[set(6, 0)], &make, &wild, &end, &used],
        );
        let bounded = [
            a,
            b,
            next,
            skip_if(JEQ, 0, 0, 3),
            skip_if(JGT, 6, 30, 2),
            add(6, 1),
            jump(-7),
        ];
        oracle.try_one(
            "a bounded count that is used",
            kind,
            &[&[set(6, 0)], &make, &bounded, &end, &used],
        );
        oracle.try_one(
            "read as bytes",
            kind,
            &[&make, &[load(DW, 6, 10, -8)], &end],
        );
        oracle.try_one("overwritten", kind, &[&make, &[store(B, 10, -8, 1)], &end]);
        oracle.try_one(
            "unaligned",
            kind,
            &[&[a, b, add(1, -4), set(2, 0), set(3, 1), new]],
        );
        oracle.try_one(
            "at the frame's end",
            kind,
            &[&[copy(1, 10), set(2, 0), set(3, 1), new]],
        );
        oracle.try_one(
            "not on the stack",
            kind,
            &[&[set(1, 0), set(2, 0), set(3, 1), new]],
        );
        oracle.try_one(
            "without a number",
            kind,
            &[&[a, b, set(2, 0), copy(3, 10), new]],
        );
        oracle.try_one("without any", kind, &[&[a, b, new]]);
    }
    oracle.check();
}

/// Iterators whose elements are structures.
#[test]
fn iterators_over_structures_get_the_kernels_verdicts() {
    let Some(mut oracle) = Oracle::new() else {
        return;
    };
    let [lock, unlock] = ["bpf_rcu_read_lock", "bpf_rcu_read_unlock"].map(|it| oracle.call(it));
    let acquire = oracle.call("bpf_task_acquire");
    let release = oracle.call("bpf_task_release");
    for (name, bytes, args) in [
        ("task", 24, vec![set(2, 0), set(3, 0)]),
        (
            "task_vma",
            8,
            vec![
                helper(HelperId::GET_CURRENT_TASK_BTF),
                copy(2, 0),
                set(3, 0),
            ],
        ),
        ("task_vma", 8, vec![set(2, 0), set(3, 0)]),
        ("css", 24, vec![set(2, 0), set(3, 0)]),
        ("css_task", 8, vec![set(2, 0), set(3, 0)]),
        ("bits", 16, vec![set(2, 0), set(3, 1)]),
        (
            "bits",
            16,
            vec![store(DW, 10, -64, 5), copy(2, 10), add(2, -64), set(3, 1)],
        ),
        ("kmem_cache", 8, vec![]),
        ("dmabuf", 8, vec![]),
    ] {
        let Some(_) = oracle.types.function(&format!("bpf_iter_{name}_new")) else {
            continue;
        };
        let [new, next, destroy] =
            ["new", "next", "destroy"].map(|it| oracle.call(&format!("bpf_iter_{name}_{it}")));
        let [a, b] = stack(1, bytes);
        let make = [&args[..], &[a, b, new]].concat();
        let end = [a, b, destroy];
        for kind in [
            plain(ProgramType::SYSCALL),
            oracle.tracepoint("sched_switch"),
            oracle.iterator("task", SLEEPABLE),
            oracle.iterator("task", 0),
            plain(ProgramType::XDP),
        ] {
            oracle.try_one(&format!("{name}: made"), kind, &[&make, &end]);
            let turn = [
                a,
                b,
                next,
                skip_if(JEQ, 0, 0, 2),
                load(DW, 7, 0, 0),
                jump(-6),
            ];
            oracle.try_one(&format!("{name}: walked"), kind, &[&make, &turn, &end]);
            oracle.try_one(
                &format!("{name}: walked in rcu"),
                kind,
                &[&[lock], &make, &turn, &end, &[unlock]],
            );
            oracle.try_one(
                &format!("{name}: rcu ends within"),
                kind,
                &[&[lock], &make, &[a, b, next, unlock], &end],
            );
            oracle.try_one(
                &format!("{name}: rcu ended before"),
                kind,
                &[&[lock], &make, &[unlock], &turn, &end],
            );
            let take = [
                a,
                b,
                next,
                skip_if(JEQ, 0, 0, 5),
                copy(1, 0),
                acquire,
                skip_if(JEQ, 0, 0, 2),
                copy(1, 0),
                release,
            ];
            oracle.try_one(&format!("{name}: taken"), kind, &[&make, &take, &end]);
            oracle.try_one(
                &format!("{name}: taken in rcu"),
                kind,
                &[&[lock], &make, &take, &end, &[unlock]],
            );
            oracle.try_one(
                &format!("{name}: part of it is gone"),
                kind,
                &[&make, &[store(DW, 10, -8, 0)], &end],
            );
        }
    }
    oracle.check();
}

//! Kernel objects: tasks, CPU masks, and their casts.

use beeline_isa::{
    Insn,
    opcode::{ADD, ALU64, B, DW, JEQ, JNE, W, X},
};
use beeline_uapi::flags::SLEEPABLE;
use beeline_uapi::{HelperId, ProgramType};

use crate::asm::{
    END, R0_IS_0, add, copy, helper, insn, load, set, skip_if, stack, store, store_reg,
};
use crate::oracle::{Oracle, plain};

#[test]
fn references_to_tasks_get_the_kernels_verdicts() {
    let Some(mut oracle) = Oracle::new() else {
        return;
    };
    let [acquire, release, from_pid, cgroup_of, cgroup_release] = [
        "bpf_task_acquire",
        "bpf_task_release",
        "bpf_task_from_pid",
        "bpf_task_get_cgroup1",
        "bpf_cgroup_release",
    ]
    .map(|it| oracle.call(it));
    let [lock, unlock] = ["bpf_rcu_read_lock", "bpf_rcu_read_unlock"].map(|it| oracle.call(it));
    // On sched_switch r1 leads to: preempt, previous task, next task.
    let task = [load(DW, 1, 1, 8)];
    let parent = oracle
        .types
        .offset_of("task_struct", "real_parent")
        .expect("a member") as i16;
    let group = oracle
        .types
        .offset_of("task_struct", "group_leader")
        .expect("a member") as i16;
    let pid = oracle
        .types
        .offset_of("task_struct", "pid")
        .expect("a member") as i16;
    let checked = [skip_if(JEQ, 0, 0, 2), copy(1, 0), release];
    let current = [helper(HelperId::GET_CURRENT_TASK_BTF), copy(1, 0)];
    let kind = oracle.tracepoint("sched_switch");
    for (what, get) in [
        ("an argument", &task[..]),
        ("the current task", &current),
        ("its parent", &[task[0], load(DW, 1, 1, parent)]),
        ("its leader", &[task[0], load(DW, 1, 1, group)]),
        (
            "its leader, checked",
            &[
                task[0],
                load(DW, 1, 1, group),
                skip_if(JNE, 1, 0, 2),
                R0_IS_0,
                END,
            ],
        ),
        ("moved", &[task[0], add(1, 8)]),
        (
            "moved unknown",
            &[
                load(DW, 2, 1, 0),
                task[0],
                insn(ALU64 | X | ADD, 1, 2, 0, 0),
            ],
        ),
        ("a number", &[set(1, 7)]),
        ("nothing", &[set(1, 0)]),
        ("the context", &[]),
        ("the stack", &stack(1, 8)),
    ] {
        oracle.try_one(
            &format!("{what}: acquired and released"),
            kind,
            &[get, &[acquire], &checked],
        );
        oracle.try_one(&format!("{what}: acquired"), kind, &[get, &[acquire]]);
        oracle.try_one(&format!("{what}: released"), kind, &[get, &[release]]);
        oracle.try_one(
            &format!("{what}: released unchecked"),
            kind,
            &[get, &[acquire, copy(1, 0), release]],
        );
        oracle.try_one(
            &format!("{what}: cgroup"),
            kind,
            &[
                get,
                &[
                    set(2, 1),
                    cgroup_of,
                    skip_if(JEQ, 0, 0, 2),
                    copy(1, 0),
                    cgroup_release,
                ],
            ],
        );
        oracle.try_one(
            &format!("{what}: cgroup as a task"),
            kind,
            &[
                get,
                &[
                    set(2, 1),
                    cgroup_of,
                    skip_if(JEQ, 0, 0, 2),
                    copy(1, 0),
                    release,
                ],
            ],
        );
    }
    let found = [set(1, 1), from_pid];
    for kind in [
        kind,
        plain(ProgramType::SYSCALL),
        oracle.iterator("task", SLEEPABLE),
    ] {
        oracle.try_one("found", kind, &[&found, &checked]);
        oracle.try_one("found and left", kind, &[&found]);
        oracle.try_one(
            "found and left if there",
            kind,
            &[&found, &[skip_if(JEQ, 0, 0, 0)]],
        );
        let read = [
            skip_if(JEQ, 0, 0, 3),
            load(W, 2, 0, pid),
            copy(1, 0),
            release,
        ];
        oracle.try_one("found and read", kind, &[&found, &read]);
        let late = [
            skip_if(JEQ, 0, 0, 4),
            copy(6, 0),
            copy(1, 0),
            release,
            load(W, 2, 6, pid),
        ];
        oracle.try_one("found and read late", kind, &[&found, &late]);
        let twice = [
            skip_if(JEQ, 0, 0, 5),
            copy(6, 0),
            copy(1, 0),
            release,
            copy(1, 6),
            release,
        ];
        oracle.try_one("released twice", kind, &[&found, &twice]);
        let moved = [skip_if(JEQ, 0, 0, 3), copy(1, 0), add(1, 8), release];
        oracle.try_one("released elsewhere", kind, &[&found, &moved]);
        let spilled = [
            store_reg(DW, 10, 0, -8),
            skip_if(JEQ, 0, 0, 2),
            load(DW, 1, 10, -8),
            release,
        ];
        oracle.try_one("released from the stack", kind, &[&found, &spilled]);
        // A pointer in it is safe in an RCU section only.
        let inside = |rest: &[Insn]| {
            let mut insns = vec![skip_if(JNE, 0, 0, 2), R0_IS_0, END, copy(6, 0), lock];
            insns.push(load(DW, 7, 6, parent));
            insns.extend(rest);
            insns.extend([unlock, copy(1, 6), release]);
            insns
        };
        let take = [
            copy(1, 7),
            acquire,
            skip_if(JEQ, 0, 0, 2),
            copy(1, 0),
            release,
        ];
        oracle.try_one("a parent", kind, &[&found, &inside(&take)]);
        let checked = [&[skip_if(JEQ, 7, 0, 5)], &take[..]].concat();
        oracle.try_one("a checked parent", kind, &[&found, &inside(&checked)]);
        let outside = [copy(1, 7), release];
        oracle.try_one("a parent not taken", kind, &[&found, &inside(&outside)]);
        let late = [
            skip_if(JNE, 0, 0, 2),
            R0_IS_0,
            END,
            copy(6, 0),
            lock,
            load(DW, 7, 6, parent),
            unlock,
        ];
        let end = [
            load(W, 2, 7, pid),
            copy(1, 7),
            acquire,
            skip_if(JEQ, 0, 0, 2),
            copy(1, 0),
            release,
            copy(1, 6),
            release,
        ];
        oracle.try_one("a parent after the section", kind, &[&found, &late, &end]);
    }
    oracle.check();
}

/// One line of C of each kind that tools have: masks of CPUs, cgroups, casts.
#[test]
fn masks_and_casts() {
    let Some(mut oracle) = Oracle::new() else {
        return;
    };
    let [create, drop, test, set_cpu, and] = ["create", "release", "test_cpu", "set_cpu", "and"]
        .map(|it| oracle.call(&format!("bpf_cpumask_{it}")));
    let [cast, context] = ["bpf_rdonly_cast", "bpf_cast_to_kern_ctx"].map(|it| oracle.call(it));
    let mask = [create, skip_if(JNE, 0, 0, 2), R0_IS_0, END, copy(6, 0)];
    let end = [copy(1, 6), drop];
    let cpus = oracle
        .types
        .offset_of("task_struct", "cpus_ptr")
        .expect("a member") as i16;
    let kind = oracle.tracepoint("sched_switch");
    for kind in [kind, plain(ProgramType::SYSCALL)] {
        oracle.try_one(
            "a mask",
            kind,
            &[
                &mask,
                &[set(1, 0), copy(2, 6), set_cpu, set(1, 0), copy(2, 6), test],
                &end,
            ],
        );
        oracle.try_one("a mask left", kind, &[&mask]);
        oracle.try_one(
            "a mask for none",
            kind,
            &[&mask, &[set(1, 0), set(2, 0), test], &end],
        );
        oracle.try_one(
            "a mask for a number",
            kind,
            &[&mask, &[set(1, 0), set(2, 3), test], &end],
        );
        oracle.try_one(
            "no number",
            kind,
            &[&mask, &[copy(1, 6), copy(2, 6), test], &end],
        );
        oracle.try_one(
            "and",
            kind,
            &[&mask, &[copy(1, 6), copy(2, 6), copy(3, 6), and], &end],
        );
        oracle.try_one("unchecked", kind, &[&[create, copy(1, 0), drop]]);
    }
    oracle.try_one(
        "a task's",
        kind,
        &[&[load(DW, 1, 1, 8), load(DW, 2, 1, cpus), set(1, 1), test]],
    );
    oracle.try_one(
        "written to a task's",
        kind,
        &[&[load(DW, 1, 1, 8), load(DW, 2, 1, cpus), set(1, 1), set_cpu]],
    );
    let task = oracle.types.structure("task_struct").expect("a structure") as i32;
    let int = oracle.types.typedef("pid_t").expect("a type") as i32;
    let pid = oracle
        .types
        .offset_of("task_struct", "pid")
        .expect("a member") as i16;
    for (what, id) in [
        ("a task", task),
        ("void", 0),
        ("a number", int),
        ("nothing", i32::MAX),
    ] {
        let view = [set(1, 77), set(2, id), cast, load(W, 1, 0, pid)];
        oracle.try_one(&format!("cast to {what}"), kind, &[&view]);
        oracle.try_one(
            &format!("cast to {what}, written"),
            kind,
            &[&view, &[store(W, 0, 0, 0)]],
        );
        let release = oracle.call("bpf_task_release");
        oracle.try_one(
            &format!("cast to {what}, released"),
            kind,
            &[&view, &[copy(1, 0), release]],
        );
        let acquire = oracle.call("bpf_task_acquire");
        oracle.try_one(
            &format!("cast to {what}, acquired"),
            kind,
            &[&view, &[copy(1, 0), acquire]],
        );
    }
    oracle.try_one(
        "cast to something",
        kind,
        &[&[load(W, 2, 1, 0), set(1, 77), cast]],
    );
    let by_btf = [
        ProgramType::TRACING,
        ProgramType::STRUCT_OPS,
        ProgramType::EXT,
        ProgramType::LSM,
    ];
    for &prog_type in ProgramType::ALL[1..]
        .iter()
        .filter(|it| !by_btf.contains(it))
    {
        let kind = plain(prog_type);
        if !oracle.takes(kind) {
            continue;
        }
        oracle.try_one("the context", kind, &[&[context, load(B, 1, 0, 0)]]);
        oracle.try_one("no context", kind, &[&[set(1, 0), context]]);
    }
    oracle.try_one("the context", kind, &[&[context]]);
    oracle.check();
}

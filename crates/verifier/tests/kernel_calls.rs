//! Calls of kernel functions: the same verdict, error number and last words from the kernel and from here.

use std::fmt::Write as _;

use beeline_fuzz::kernel::{self, Trial};
use beeline_isa::{Insn, imm64, opcode::*};
use beeline_verifier::context::kinds::{at, prog};
use beeline_verifier::program::{Kind, Program, SLEEPABLE};
use beeline_verifier::types::KernelTypes;
use beeline_verifier::verdict::LogLevel;
use beeline_verifier::verify;

const R0_IS_0: Insn = set(0, 0);
const END: Insn = insn(JMP | EXIT, 0, 0, 0, 0);

const fn insn(code: u8, dst: u8, src: u8, off: i16, imm: i32) -> Insn {
    Insn {
        code,
        dst,
        src,
        off,
        imm,
    }
}

const fn set(register: u8, value: i32) -> Insn {
    insn(ALU64 | K | MOV, register, 0, 0, value)
}

const fn copy(dst: u8, src: u8) -> Insn {
    insn(ALU64 | X | MOV, dst, src, 0, 0)
}

const fn add(register: u8, value: i32) -> Insn {
    insn(ALU64 | K | ADD, register, 0, 0, value)
}

const fn load(size: u8, dst: u8, src: u8, off: i16) -> Insn {
    insn(LDX | MEM | size, dst, src, off, 0)
}

const fn store(size: u8, dst: u8, off: i16, value: i32) -> Insn {
    insn(ST | MEM | size, dst, 0, off, value)
}

const fn store_reg(size: u8, dst: u8, src: u8, off: i16) -> Insn {
    insn(STX | MEM | size, dst, src, off, 0)
}

const fn skip_if(cond: u8, register: u8, value: i32, off: i16) -> Insn {
    insn(JMP | K | cond, register, 0, off, value)
}

const fn jump(off: i16) -> Insn {
    insn(JMP | JA, 0, 0, off, 0)
}

const fn helper(id: i32) -> Insn {
    insn(JMP | CALL, 0, HELPER_CALL, 0, id)
}

/// The address of so many bytes below the frame's end.
fn stack(register: u8, below: i32) -> [Insn; 2] {
    [copy(register, 10), add(register, -below)]
}

/// The kernel that is asked, with its types.
struct Oracle {
    types: KernelTypes,
    compared: usize,
    accepted: usize,
    differences: String,
}

impl Oracle {
    /// `None` where the kernel loads nothing for us.
    fn new() -> Option<Self> {
        let btf = std::fs::read("/sys/kernel/btf/vmlinux").ok()?;
        kernel::is_usable().then(|| Self {
            types: KernelTypes::new(btf).expect("good BTF"),
            compared: 0,
            accepted: 0,
            differences: String::new(),
        })
    }

    fn call(&self, name: &str) -> Insn {
        let id = self.types.function(name).expect(name);
        insn(JMP | CALL, 0, PSEUDO_KFUNC_CALL, 0, id as i32)
    }

    /// A program on a tracepoint.
    fn tracepoint(&self, name: &str) -> Kind {
        let name = format!("btf_trace_{name}");
        Kind {
            prog_type: prog::TRACING,
            attach_type: at::TRACE_RAW_TP,
            flags: 0,
            attach_btf_id: self.types.typedef(&name).expect("a tracepoint"),
            intrudes: false,
        }
    }

    fn iterator(&self, name: &str, flags: u32) -> Kind {
        let name = format!("bpf_iter_{name}");
        Kind {
            prog_type: prog::TRACING,
            attach_type: at::TRACE_ITER,
            flags,
            attach_btf_id: self.types.function(&name).expect("an iterator"),
            intrudes: false,
        }
    }

    /// Does the kernel load programs of this kind for us?
    fn takes(&self, kind: Kind) -> bool {
        let insns = [R0_IS_0, END];
        let trial = Trial {
            prog_type: kind.prog_type,
            attach_type: kind.attach_type,
            flags: kind.flags,
            attach_btf_id: kind.attach_btf_id,
            insns: &insns,
            ..Trial::default()
        };
        kernel::verdict(&trial, 0).0 == 0
    }

    /// Compares the verdicts on a program that ends with `r0 = 0`.
    fn try_one(&mut self, what: &str, kind: Kind, parts: &[&[Insn]]) {
        let insns = [&parts.concat()[..], &[R0_IS_0, END]].concat();
        self.try_whole(what, kind, &insns);
    }

    fn try_whole(&mut self, what: &str, kind: Kind, insns: &[Insn]) {
        let trial = Trial {
            prog_type: kind.prog_type,
            attach_type: kind.attach_type,
            flags: kind.flags,
            attach_btf_id: kind.attach_btf_id,
            insns,
            ..Trial::default()
        };
        let (errno, log) = kernel::verdict(&trial, 1);
        let program = Program {
            kind,
            gpl: true,
            insns,
            maps: &[],
            types: None,
            kernel: Some(&self.types),
            ..Default::default()
        };
        let ours = verify(&program, LogLevel(LogLevel::PATH));
        self.compared += 1;
        self.accepted += usize::from(errno == 0);
        let same = match &ours.result {
            Ok(_) => errno == 0,
            Err(refusal) => {
                refusal.errno == errno && last_line(&refusal.reason) == last_words(&log)
            }
        };
        if same {
            return;
        }
        let ours = match &ours.result {
            Ok(_) => "accepted".to_owned(),
            Err(refusal) => format!("errno {}: {}", refusal.errno, refusal.reason),
        };
        let _ = writeln!(
            self.differences,
            "{what}: the kernel errno {errno}: {}; here {ours}\n{}",
            last_words(&log),
            beeline_isa::Listing(insns),
        );
    }

    fn check(&self) {
        println!("{} compared, {} accepted", self.compared, self.accepted);
        assert!(self.differences.is_empty(), "{}", self.differences);
    }
}

fn last_line(text: &str) -> &str {
    text.lines().next_back().unwrap_or_default()
}

/// The last line of a log that is neither statistics nor states.
fn last_words(log: &str) -> &str {
    const OTHER: [&str; 4] = [
        "processed ",
        "verification time",
        "cur state: ",
        "old state: ",
    ];
    let is_other = |line: &&str| OTHER.iter().any(|start| line.starts_with(start));
    log.lines()
        .rfind(|line| !is_other(line))
        .unwrap_or_default()
}

fn plain(prog_type: u32) -> Kind {
    Kind {
        prog_type,
        flags: if prog_type == prog::SYSCALL {
            SLEEPABLE
        } else {
            0
        },
        ..Kind::default()
    }
}

#[test]
fn sections() {
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
        plain(prog::SYSCALL),
        plain(prog::SCHED_CLS),
        oracle.tracepoint("sched_switch"),
    ] {
        for (what, insns) in sequences {
            oracle.try_one(what, kind, &[insns]);
        }
    }
    oracle.check();
}

/// An iterator over numbers: made at r10 - 8, used, ended.
#[test]
fn number_iterators() {
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
        plain(prog::SOCKET_FILTER),
        plain(prog::XDP),
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

#[test]
fn tasks() {
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
    let current = [helper(158), copy(1, 0)];
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
        plain(prog::SYSCALL),
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
    for kind in [kind, plain(prog::SYSCALL)] {
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
    let by_btf = [prog::TRACING, prog::STRUCT_OPS, prog::EXT, prog::LSM];
    for prog_type in (1..33).filter(|it| !by_btf.contains(it)) {
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

#[test]
fn dynptrs() {
    let Some(mut oracle) = Oracle::new() else {
        return;
    };
    let [
        from_skb,
        from_xdp,
        slice,
        slice_rw,
        adjust,
        clone,
        size,
        is_null,
    ] = [
        "bpf_dynptr_from_skb",
        "bpf_dynptr_from_xdp",
        "bpf_dynptr_slice",
        "bpf_dynptr_slice_rdwr",
        "bpf_dynptr_adjust",
        "bpf_dynptr_clone",
        "bpf_dynptr_size",
        "bpf_dynptr_is_null",
    ]
    .map(|it| oracle.call(it));
    let pull = oracle.call("bpf_xdp_pull_data");
    let [a, b] = stack(3, 16);
    let [c, d] = stack(1, 16);
    let [e, f] = stack(3, 64);
    for (kind, make) in [
        (plain(prog::SCHED_CLS), from_skb),
        (plain(prog::SOCKET_FILTER), from_skb),
        (plain(prog::CGROUP_SKB), from_skb),
        (plain(prog::XDP), from_xdp),
        (plain(prog::XDP), from_skb),
        (oracle.tracepoint("kfree_skb"), from_skb),
    ] {
        let tracing = kind.prog_type == prog::TRACING;
        let first = if tracing {
            load(DW, 1, 1, 0)
        } else {
            copy(6, 1)
        };
        let new = [copy(6, 1), first, set(2, 0), a, b, make];
        let view = |it| [c, d, set(2, 0), e, f, set(4, 20), it];
        let buffer = [
            store(DW, 10, -64, 0),
            store(DW, 10, -56, 0),
            store(DW, 10, -48, 0),
        ];
        let checked = [skip_if(JEQ, 0, 0, 1), load(B, 1, 0, 19)];
        oracle.try_one("made", kind, &[&new]);
        oracle.try_one("made twice", kind, &[&new, &[copy(1, 6)], &new[1..]]);
        oracle.try_one("asked", kind, &[&new, &[c, d, size, c, d, is_null]]);
        oracle.try_one("never made", kind, &[&[c, d, size]]);
        oracle.try_one(
            "adjusted",
            kind,
            &[&new, &[c, d, set(2, 4), set(3, 40), adjust]],
        );
        for (name, it) in [("slice", slice), ("writable slice", slice_rw)] {
            let view = view(it);
            oracle.try_one(name, kind, &[&new, &buffer, &view, &checked]);
            oracle.try_one(
                &format!("{name}, buffer not written"),
                kind,
                &[&new, &view, &checked],
            );
            oracle.try_one(
                &format!("{name}, unchecked"),
                kind,
                &[&new, &buffer, &view, &checked[1..]],
            );
            oracle.try_one(
                &format!("{name}, beyond"),
                kind,
                &[&new, &buffer, &view, &[checked[0], load(B, 1, 0, 20)]],
            );
            oracle.try_one(
                &format!("{name}, written"),
                kind,
                &[&new, &buffer, &view, &[checked[0], store(B, 0, 0, 1)]],
            );
            oracle.try_one(
                &format!("{name}, without a buffer"),
                kind,
                &[
                    &new,
                    &[c, d, set(2, 0), set(3, 0), set(4, 20), it],
                    &checked,
                ],
            );
            oracle.try_one(
                &format!("{name}, with a number"),
                kind,
                &[
                    &new,
                    &[c, d, set(2, 0), set(3, 9), set(4, 20), it],
                    &checked,
                ],
            );
            oracle.try_one(
                &format!("{name}, a buffer too small"),
                kind,
                &[
                    &new,
                    &[c, d, set(2, 0), a, b, add(3, 12), set(4, 20), it],
                    &checked,
                ],
            );
            oracle.try_one(
                &format!("{name} of unknown size"),
                kind,
                &[
                    &new,
                    &buffer,
                    &[
                        helper(7),
                        copy(4, 0),
                        insn(ALU64 | K | AND, 4, 0, 0, 15),
                        c,
                        d,
                        set(2, 0),
                        e,
                        f,
                        it,
                    ],
                ],
            );
            oracle.try_one(
                &format!("{name} of one that is no more"),
                kind,
                &[
                    &new,
                    &buffer,
                    &view,
                    &[
                        copy(7, 0),
                        store(DW, 10, -16, 0),
                        skip_if(JEQ, 7, 0, 1),
                        load(B, 1, 7, 0),
                    ],
                ],
            );
            oracle.try_one(
                &format!("{name}, then the packet moves"),
                kind,
                &[
                    &new,
                    &buffer,
                    &view,
                    &[
                        copy(7, 0),
                        copy(1, 6),
                        set(2, 20),
                        if kind.prog_type == prog::XDP {
                            pull
                        } else {
                            helper(39)
                        },
                        skip_if(JEQ, 7, 0, 1),
                        load(B, 1, 7, 0),
                    ],
                ],
            );
        }
        let [g, h] = stack(2, 32);
        oracle.try_one(
            "copied",
            kind,
            &[&new, &[c, d, g, h, clone, c, add(1, -32), size]],
        );
        oracle.try_one(
            "copied onto itself",
            kind,
            &[&new, &[c, d, copy(2, 1), clone]],
        );
        oracle.try_one(
            "part of it copied onto",
            kind,
            &[&new, &[c, d, g, h, add(2, 8), clone, c, d, size]],
        );
    }
    // A record of a ring buffer cannot be had without a map; a dynptr on memory neither.
    oracle.check();
}

/// What tells who may call: the same as when nothing is passed.
#[test]
fn sleepable_functions() {
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
        plain(prog::SYSCALL),
        oracle.iterator("task", SLEEPABLE),
        oracle.iterator("task", 0),
        plain(prog::SCHED_CLS),
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

/// Iterators whose elements are structures.
#[test]
fn structure_iterators() {
    let Some(mut oracle) = Oracle::new() else {
        return;
    };
    let [lock, unlock] = ["bpf_rcu_read_lock", "bpf_rcu_read_unlock"].map(|it| oracle.call(it));
    let acquire = oracle.call("bpf_task_acquire");
    let release = oracle.call("bpf_task_release");
    for (name, bytes, args) in [
        ("task", 24, vec![set(2, 0), set(3, 0)]),
        ("task_vma", 8, vec![helper(158), copy(2, 0), set(3, 0)]),
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
            plain(prog::SYSCALL),
            oracle.tracepoint("sched_switch"),
            oracle.iterator("task", SLEEPABLE),
            oracle.iterator("task", 0),
            plain(prog::XDP),
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

/// What a program returns, whose type is known by the operation that it stands for.
#[test]
fn operations() {
    let Some(mut oracle) = Oracle::new() else {
        return;
    };
    let Some(tcp) = oracle.types.structure("tcp_congestion_ops") else {
        return;
    };
    for member in 0..24 {
        let kind = Kind {
            prog_type: prog::STRUCT_OPS,
            attach_type: member,
            flags: 0,
            attach_btf_id: tcp,
            intrudes: false,
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
fn exceptions() {
    let Some(mut oracle) = Oracle::new() else {
        return;
    };
    let throw = oracle.call("bpf_throw");
    let [lock, _] = ["bpf_rcu_read_lock", "bpf_rcu_read_unlock"].map(|it| oracle.call(it));
    let [disable, _] = ["bpf_preempt_disable", "bpf_preempt_enable"].map(|it| oracle.call(it));
    let found = [set(1, 1), oracle.call("bpf_task_from_pid")];
    for kind in [
        plain(prog::SCHED_CLS),
        plain(prog::SYSCALL),
        oracle.tracepoint("sched_switch"),
        oracle.iterator("task", 0),
        plain(prog::SOCKET_FILTER),
    ] {
        oracle.try_one("thrown", kind, &[&[set(1, 0), throw]]);
        oracle.try_one("thrown 7", kind, &[&[set(1, 7), throw]]);
        oracle.try_one(
            "thrown sometimes",
            kind,
            &[&[load(W, 2, 1, 0), skip_if(JEQ, 2, 0, 2), set(1, 0), throw]],
        );
        oracle.try_one("thrown an address", kind, &[&[copy(1, 10), throw]]);
        oracle.try_one("thrown nothing", kind, &[&[copy(6, 1), helper(7), throw]]);
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

//! Operations of structures whose arguments are handed over (`__ref`) or may be null
//! (`__nullable`). The structure belongs to a module that this kernel lacks (`bpf_testmod`), so the
//! expected words are those of the kernel's own tests.

mod btf;

use beeline_fuzz::asm::{EXIT, call, insn, mov, mov_reg};
use beeline_isa::{Insn, opcode::*};
use beeline_uapi::{AttachType, HelperId, ProgramType};
use beeline_verifier::program::{Kind, Program};
use beeline_verifier::types::KernelTypes;
use beeline_verifier::verdict::LogLevel;
use beeline_verifier::verify;
use btf::{Builder, FUNC, FUNC_PROTO, PTR};

const R0_IS_0: Insn = mov(0, 0);
const TAIL_CALL: Insn = call(HelperId::TAIL_CALL.0 as i32);

const fn load(size: u8, dst: u8, src: u8, off: i16) -> Insn {
    insn(LDX | MEM | size, dst, src, off, 0)
}

const fn unless(register: u8, value: i32, off: i16) -> Insn {
    insn(JMP | K | JNE, register, 0, off, value)
}

/// Members of `struct bpf_testmod_ops`.
#[derive(Debug, Clone, Copy)]
enum Member {
    /// `int (*)(int dummy, struct task_struct *task__ref)`.
    Owned,
    /// `int (*)(int dummy, struct task_struct *task__nullable)`.
    Nullable,
    /// `int (*)(int dummy, struct task_struct *task__nullable, struct task_struct *other__ref)`.
    Both,
    /// `struct task_struct *(*)(int dummy, struct task_struct *task__ref, struct cgroup *cgroup)`.
    Returned,
}

/// Names and types.
type Params<'a> = &'a [(&'a str, u32)];

struct Operations {
    kernel: KernelTypes,
    structure: u32,
}

impl Operations {
    fn new() -> Option<Self> {
        let vmlinux = std::fs::read("/sys/kernel/btf/vmlinux").ok()?;
        let base = KernelTypes::new(vmlinux.clone()).expect("good BTF");
        let mut module = Builder::after(&vmlinux);
        let int = module.int("int", 4);
        let task = module.refer(PTR, base.structure("task_struct")?);
        let cgroup = module.refer(PTR, base.structure("cgroup")?);
        let shapes: [(&str, u32, Params<'_>); 4] = [
            ("owned", int, &[("task__ref", task)]),
            ("nullable", int, &[("task__nullable", task)]),
            (
                "both",
                int,
                &[("task__nullable", task), ("other__ref", task)],
            ),
            ("returned", task, &[("task__ref", task), ("cgroup", cgroup)]),
        ];
        let mut members = Vec::new();
        for (place, (name, result, params)) in shapes.into_iter().enumerate() {
            let params = [&[("dummy", int)], params].concat();
            let mut prototype = |named: bool| {
                let mut rest = Vec::new();
                for (name, id) in &params {
                    rest.extend([module.string(if named { name } else { "" }), *id]);
                }
                module.add("", FUNC_PROTO, params.len() as u32, result, &rest)
            };
            let (plain, stub) = (prototype(false), prototype(true));
            module.add(&format!("bpf_testmod_ops__{name}"), FUNC, 0, stub, &[]);
            members.push((name, module.refer(PTR, plain), 8 * place as u32));
        }
        let structure = module.structure("bpf_testmod_ops", 32, &members);
        module.structure(
            "bpf_struct_ops_bpf_testmod_ops",
            32,
            &[("data", structure, 0)],
        );
        let kernel = KernelTypes::with_modules(&vmlinux, &[&module.bytes()]);
        let kernel = kernel.expect("it goes with the kernel");
        Some(Self {
            structure: kernel.structure("bpf_testmod_ops").expect("it is there"),
            kernel,
        })
    }

    fn call(&self, name: &str) -> Insn {
        let id = self.kernel.function(name).expect("a kernel function");
        insn(JMP | CALL, 0, PSEUDO_KFUNC_CALL, 0, id as i32)
    }

    /// Returns the reason for a refusal; empty if it is accepted.
    fn refusal(&self, member: Member, insns: &[Insn]) -> String {
        let program = Program {
            kind: Kind {
                prog_type: ProgramType::STRUCT_OPS,
                attach_type: AttachType(member as u32),
                attach_btf_id: self.structure,
                ..Kind::default()
            },
            gpl: true,
            insns,
            kernel: Some(&self.kernel),
            ..Program::default()
        };
        let verdict = verify(&program, LogLevel(LogLevel::PATH));
        verdict
            .result
            .err()
            .map_or_else(String::new, |it| it.reason)
    }
}

#[test]
fn acquired_references_are_released_once_on_every_path() {
    let Some(operations) = Operations::new() else {
        return;
    };
    let release = operations.call("bpf_task_release");
    let acquire = operations.call("bpf_task_acquire");
    let task = load(DW, 1, 1, 8);
    let other = load(DW, 1, 1, 16);
    let end = [R0_IS_0, EXIT];
    let leak = "BPF_EXIT instruction in main prog would lead to reference leak";
    let twice = "invalid bpf_context access off=8. Reference may already be released";
    let cases: [(&str, Member, &str, Vec<Insn>); 13] = [
        (
            "released",
            Member::Owned,
            "",
            [&[task, release][..], &end].concat(),
        ),
        ("never looked at", Member::Owned, leak, end.to_vec()),
        (
            "looked at",
            Member::Owned,
            leak,
            [&[task][..], &end].concat(),
        ),
        (
            "released on one path",
            Member::Owned,
            leak,
            [
                &[load(W, 2, 1, 0), unless(2, 1, 2), task, release][..],
                &end,
            ]
            .concat(),
        ),
        (
            "released on both paths",
            Member::Owned,
            "",
            [
                &[load(W, 2, 1, 0), unless(2, 1, 4), task, release][..],
                &end,
                &[task, release],
                &end,
            ]
            .concat(),
        ),
        (
            "loaded after it was released",
            Member::Owned,
            twice,
            [&[mov_reg(6, 1), task, release, load(DW, 1, 6, 8)][..], &end].concat(),
        ),
        (
            "released twice",
            Member::Owned,
            "arg#0 pointer type STRUCT task_struct must point to scalar, or struct with scalar",
            [
                &[task, mov_reg(6, 1), release, mov_reg(1, 6), release][..],
                &end,
            ]
            .concat(),
        ),
        (
            "another reference is another",
            Member::Owned,
            leak,
            [
                &[
                    task,
                    acquire,
                    insn(JMP | K | JEQ, 0, 0, 2, 0),
                    mov_reg(1, 0),
                    release,
                ][..],
                &end,
            ]
            .concat(),
        ),
        (
            "may be null",
            Member::Nullable,
            "R1 invalid mem access 'trusted_ptr_or_null_'",
            [&[task, load(W, 2, 1, 0)][..], &end].concat(),
        ),
        (
            "is not null",
            Member::Nullable,
            "",
            [
                &[task, insn(JMP | K | JEQ, 1, 0, 1, 0), load(W, 2, 1, 0)][..],
                &end,
            ]
            .concat(),
        ),
        (
            "only one of two is handed over",
            Member::Both,
            "",
            [&[other, release][..], &end].concat(),
        ),
        (
            "what is not handed over is not given back",
            Member::Both,
            "release kernel function bpf_task_release expects refcounted PTR_TO_BTF_ID",
            [&[task, insn(JMP | K | JEQ, 1, 0, 1, 0), release][..], &end].concat(),
        ),
        (
            "a program that goes to another",
            Member::Owned,
            "program with __ref argument cannot tail call",
            [&[task, release, TAIL_CALL][..], &end].concat(),
        ),
    ];
    check(&operations, &cases);
}

#[test]
fn acquired_references_may_be_handed_back() {
    let Some(operations) = Operations::new() else {
        return;
    };
    let release = operations.call("bpf_task_release");
    let result = load(DW, 0, 1, 8);
    let cases: [(&str, Member, &str, Vec<Insn>); 4] = [
        ("returned", Member::Returned, "", vec![result, EXIT]),
        (
            "null is returned",
            Member::Returned,
            "",
            vec![load(DW, 1, 1, 8), release, R0_IS_0, EXIT],
        ),
        (
            "null is returned, and the object lost",
            Member::Returned,
            "BPF_EXIT instruction in main prog would lead to reference leak",
            vec![R0_IS_0, EXIT],
        ),
        (
            "a part of it is returned",
            Member::Returned,
            "dereference of modified trusted_ptr_ ptr R0 off=8 disallowed",
            vec![result, insn(ALU64 | K | ADD, 0, 0, 0, 8), EXIT],
        ),
    ];
    check(&operations, &cases);
}

fn check(operations: &Operations, cases: &[(&str, Member, &str, Vec<Insn>)]) {
    let mut differences = String::new();
    for (what, member, expected, insns) in cases {
        let refusal = operations.refusal(*member, insns);
        if refusal != *expected {
            differences += &format!("{what}: {refusal:?}, not {expected:?}\n");
        }
    }
    assert!(differences.is_empty(), "{differences}");
}

//! Functions and variables of kernel modules. The kernel here has no modules, so its answers are
//! known only for wrong descriptors; other uses of a module are tested with types made for it.

mod btf;

use std::os::fd::AsRawFd;

use beeline_fuzz::asm::insn;
use beeline_fuzz::kernel::{self, Trial};
use beeline_isa::{Insn, opcode::*};
use beeline_uapi::{AttachType, ProgramType};
use beeline_verifier::program::{Kind, Modules, Policy, Program};
use beeline_verifier::types::KernelTypes;
use beeline_verifier::verdict::{LogLevel, Verdict};
use beeline_verifier::verify;
use btf::{Builder, PTR};

const R0_IS_0: Insn = insn(ALU64 | K | MOV, 0, 0, 0, 0);
const END: Insn = insn(JMP | EXIT, 0, 0, 0, 0);
const TC: Kind = Kind {
    prog_type: ProgramType::SCHED_CLS,
    attach_type: AttachType::UNSPECIFIED,
    flags: 0,
    attach_btf_id: 0,
    policy: Policy::ObserveOnly,
};

fn call(place: i16, id: u32) -> Insn {
    insn(JMP | CALL, 0, PSEUDO_KFUNC_CALL, place, id as i32)
}

fn address(dst: u8, fd: i32, id: u32) -> [Insn; 2] {
    [
        insn(LD_IMM64, dst, PSEUDO_BTF_ID, 0, id as i32),
        insn(0, 0, 0, 0, fd),
    ]
}

fn vmlinux() -> Option<Vec<u8>> {
    std::fs::read("/sys/kernel/btf/vmlinux").ok()
}

/// A module of this kernel: its types, and the numbers that it calls them by.
struct Module {
    types: Vec<u8>,
    add: u32,
    acquire: u32,
    release: u32,
    private: u32,
    variable: u32,
}

/// Functions with names of `bpf_testmod`'s, so that their requirements are known.
fn module(kernel: &[u8], padding: u32) -> Module {
    let mut types = Builder::after(kernel);
    for _ in 0..padding {
        types.refer(PTR, 0);
    }
    let int = types.int("int", 4);
    let object = types.structure("prog_test_ref_kfunc", 16, &[("a", int, 0), ("b", int, 4)]);
    let pointer = types.refer(PTR, object);
    let add = types.function("bpf_kfunc_call_test2", 1, int, &[int, int]);
    let number = types.refer(PTR, int);
    let acquire = types.function("bpf_kfunc_call_test_acquire", 1, pointer, &[number]);
    let release = types.function("bpf_kfunc_call_memb1_release", 1, 0, &[pointer]);
    let private = types.function("nobodys_business", 1, int, &[]);
    let variable = types.add("a_variable", 14, 0, object, &[1]);
    Module {
        types: types.bytes(),
        add,
        acquire,
        release,
        private,
        variable,
    }
}

fn judged(kernel: &KernelTypes, kind: Kind, insns: &[Insn], modules: Modules<'_>) -> Verdict {
    let program = Program {
        kind,
        gpl: true,
        insns,
        kernel: Some(kernel),
        modules,
        ..Program::default()
    };
    verify(&program, LogLevel(LogLevel::PATH))
}

fn reason(verdict: &Verdict) -> &str {
    let refusal = verdict.result.as_ref().expect_err("it is wrong");
    refusal.reason.lines().next_back().unwrap_or_default()
}

#[test]
fn functions_and_variables_of_several_modules() {
    let Some(vmlinux) = vmlinux() else { return };
    let (one, other) = (module(&vmlinux, 0), module(&vmlinux, 3));
    let kernel = KernelTypes::with_modules(&vmlinux, &[&one.types, &other.types]);
    let kernel = kernel.expect("they go together");
    let btf = [(7, Some(0)), (9, Some(1)), (11, None)];
    let modules = Modules {
        fd_array: Some(&[0, 9, 7, 11]),
        btf: &btf,
    };
    let judged = |insns: &[Insn]| judged(&kernel, TC, insns, modules);
    let numbers = [
        insn(ALU64 | K | MOV, 1, 0, 0, 1),
        insn(ALU64 | K | MOV, 2, 0, 0, 2),
    ];
    for (place, module) in [(2, &one), (1, &other)] {
        let good = [numbers[0], numbers[1], call(place, module.add), END];
        judged(&good).result.expect("numbers are added");
        let bad = [
            insn(ALU64 | X | MOV, 2, 10, 0, 0),
            call(place, module.add),
            R0_IS_0,
            END,
        ];
        assert_eq!(reason(&judged(&bad)), "R1 is not a scalar");
        let private = [call(place, module.private), END];
        assert_eq!(
            reason(&judged(&private)),
            "calling kernel function nobodys_business is not allowed"
        );
        let object = [
            insn(ST | MEM | DW, 10, 0, -8, 0),
            insn(ALU64 | X | MOV, 1, 10, 0, 0),
            insn(ALU64 | K | ADD, 1, 0, 0, -8),
            call(place, module.acquire),
            insn(JMP | K | JEQ, 0, 0, 2, 0),
            insn(ALU64 | X | MOV, 1, 0, 0, 0),
            call(place, module.release),
            R0_IS_0,
            END,
        ];
        judged(&object).result.expect("it is given back");
        let kept = [&object[..4], &[R0_IS_0, END]].concat();
        let leak = "BPF_EXIT instruction in main prog would lead to reference leak";
        assert_eq!(reason(&judged(&kept)), leak);
        let fd = if place == 2 { 7 } else { 9 };
        let [low, high] = address(1, fd, module.variable);
        let variable = [low, high, insn(LDX | MEM | W, 0, 1, 4, 0), END];
        judged(&variable).result.expect("its second member");
        let beyond = [low, high, insn(LDX | MEM | W, 0, 1, 16, 0), END];
        let beyond = judged(&beyond);
        let why = reason(&beyond);
        assert!(
            why.starts_with("access beyond struct prog_test_ref_kfunc"),
            "{why}"
        );
    }
    // The other module has fewer types.
    assert_eq!(
        reason(&judged(&[call(2, other.variable), END])),
        format!("kernel btf_id {} is not a function", other.variable)
    );
}

#[test]
fn tracing_programs_attach_to_functions_of_modules() {
    let Some(vmlinux) = vmlinux() else { return };
    let module = module(&vmlinux, 1);
    let kernel = KernelTypes::with_modules(&vmlinux, &[&module.types]).expect("it goes with it");
    let kind = Kind {
        prog_type: ProgramType::TRACING,
        attach_type: AttachType::TRACE_FENTRY,
        attach_btf_id: kernel.in_module(0, module.release).expect("a function"),
        ..Kind::default()
    };
    let object = insn(LDX | MEM | DW, 1, 1, 0, 0);
    let reads = |off| [object, insn(LDX | MEM | W, 0, 1, off, 0), R0_IS_0, END];
    let judged = |insns: &[Insn]| judged(&kernel, kind, insns, Modules::default());
    judged(&reads(4)).result.expect("its second member");
    assert!(reason(&judged(&reads(16))).starts_with("access beyond struct"));
}

#[test]
fn wrong_descriptors_are_refused_as_by_the_kernel() {
    let Some(vmlinux) = vmlinux().filter(|_| kernel::is_usable()) else {
        return;
    };
    let types = KernelTypes::new(vmlinux).expect("good BTF");
    let function = types
        .function("bpf_rcu_read_lock")
        .expect("a kernel function");
    let mut own = Builder::new();
    own.int("int", 4);
    let own = kernel::load_btf(&own.bytes()).expect("good BTF");
    let fd = own.as_raw_fd();
    let array = [0, fd, 999_999];
    let without: &[i32] = &[];
    let [low, high] = address(1, fd, 1);
    let [low_closed, high_closed] = address(1, 999_999, 1);
    let cases: [(&str, &[i32], Vec<Insn>); 7] = [
        (
            "without an array",
            without,
            vec![call(1, function), R0_IS_0, END],
        ),
        (
            "a program's types",
            &array,
            vec![call(1, function), R0_IS_0, END],
        ),
        (
            "no descriptor",
            &array,
            vec![call(2, function), R0_IS_0, END],
        ),
        (
            "a negative place",
            &array,
            vec![call(-1, function), R0_IS_0, END],
        ),
        (
            "dead code",
            &array,
            vec![R0_IS_0, END, call(1, function), END],
        ),
        (
            "an address in a program's types",
            without,
            vec![low, high, R0_IS_0, END],
        ),
        (
            "an address without descriptor",
            without,
            vec![low_closed, high_closed, R0_IS_0, END],
        ),
    ];
    for (what, fd_array, insns) in cases {
        let trial = Trial {
            prog_type: TC.prog_type,
            fd_array,
            insns: &insns,
            ..Trial::default()
        };
        let (errno, log) = kernel::verdict(&trial, 1);
        let modules = Modules {
            fd_array: (!fd_array.is_empty()).then_some(fd_array),
            btf: &[(fd, None)],
        };
        let ours = judged(&types, TC, &insns, modules);
        let refusal = ours.result.as_ref().expect_err(what);
        let last = log.lines().rfind(|line| !line.starts_with("processed "));
        assert_eq!(
            (refusal.errno.0, Some(reason(&ours))),
            (errno, last),
            "{what}:\n{log}"
        );
    }
}

#[test]
fn types_of_another_kernel_are_not_taken() {
    let Some(vmlinux) = vmlinux() else { return };
    let module = module(&vmlinux, 0);
    let mut small = Builder::new();
    small.int("int", 4);
    assert!(KernelTypes::with_modules(&small.bytes(), &[&module.types]).is_none());
}

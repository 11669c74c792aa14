//! Programs that replace a function of another program: verdicts and words of the kernel's source
//! (`bpf_check_attach_target`, `btf_check_func_type_match`); and, if the kernel accepts such
//! programs at all, the kernel's own.

mod btf;

use std::fs::File;

use beeline_fuzz::asm::{EXIT, call, call_local, insn, mov, mov_reg};
use beeline_fuzz::kernel::{self, Trial};
use beeline_isa::{Insn, opcode::*};
use beeline_uapi::{Errno, HelperId, ProgramType};
use beeline_verifier::program::{Kind, Program};
use beeline_verifier::types::{KernelTypes, ProgramTypes};
use beeline_verifier::verdict::LogLevel;
use beeline_verifier::{function_starts, verify};
use btf::{Builder, PTR};

const R0_IS_0: Insn = mov(0, 0);
const GLOBAL: u32 = 1;
const STATIC: u32 = 0;
const SKB_PULL_DATA: i32 = HelperId::SKB_PULL_DATA.0 as i32;
const GET_PRANDOM: i32 = HelperId::GET_PRANDOM_U32.0 as i32;
/// The answers of kernels that are built or locked down against such programs.
const EPERM: i32 = Errno::EPERM.0;

const fn load(size: u8, dst: u8, src: u8, off: i16) -> Insn {
    insn(LDX | MEM | size, dst, src, off, 0)
}

/// A program with types, here and in the kernel.
struct Made {
    kind: Kind,
    insns: Vec<Insn>,
    bytes: Vec<u8>,
    functions: Vec<[u32; 2]>,
    btf: File,
}

impl Made {
    fn new(kind: Kind, insns: Vec<Insn>, types: &Builder, functions: &[[u32; 2]]) -> Self {
        let bytes = types.bytes();
        Self {
            kind,
            insns,
            btf: kernel::load_btf(&bytes).expect("good BTF"),
            bytes,
            functions: functions.to_vec(),
        }
    }

    fn trial(&self) -> Trial<'_> {
        Trial {
            prog_type: self.kind.prog_type,
            attach_btf_id: self.kind.attach_btf_id,
            insns: &self.insns,
            btf: Some(&self.btf),
            func_info: &self.functions,
            ..Trial::default()
        }
    }

    fn types(&self, kind: Kind, kernel: &KernelTypes) -> ProgramTypes {
        let starts = function_starts(&self.insns).expect("functions");
        let (functions, insns) = (&self.functions, &self.insns);
        ProgramTypes::new(
            &self.bytes,
            functions,
            &[],
            &kind,
            insns,
            &starts,
            Some(kernel),
        )
        .expect("good types")
    }

    fn program<'a>(&'a self, types: &'a ProgramTypes, kernel: &'a KernelTypes) -> Program<'a> {
        Program {
            kind: self.kind,
            gpl: true,
            insns: &self.insns,
            types: Some(types),
            kernel: Some(kernel),
            ..Program::default()
        }
    }
}

/// The numbers of the types in a test.
struct Types {
    all: Builder,
    int: u32,
    long: u32,
    skb: u32,
    xdp: u32,
    numbers: u32,
}

fn types() -> Types {
    let mut all = Builder::new();
    let int = all.int("int", 4);
    let long = all.int("long", 8);
    let skb = all.structure("__sk_buff", 4, &[("len", int, 0)]);
    let skb = all.refer(PTR, skb);
    let xdp = all.structure("xdp_md", 4, &[("data", int, 0)]);
    let xdp = all.refer(PTR, xdp);
    let numbers = all.refer(PTR, long);
    Types {
        all,
        int,
        long,
        skb,
        xdp,
        numbers,
    }
}

/// A packet program: `main(skb)` calls `plain(int)`, `pulls(skb)`, `looks(skb)` and `quiet(int)`,
/// which is static. Returns the program and the functions' numbers.
fn target() -> (Made, [u32; 5]) {
    let Types {
        mut all, int, skb, ..
    } = types();
    let ids = [
        all.function("main", GLOBAL, int, &[skb]),
        all.function("plain", GLOBAL, int, &[int]),
        all.function("pulls", GLOBAL, int, &[skb]),
        all.function("looks", GLOBAL, int, &[skb]),
        all.function("quiet", STATIC, int, &[int]),
    ];
    let insns = vec![
        mov_reg(6, 1),
        mov(1, 1),
        call_local(9),
        mov_reg(1, 6),
        call_local(9),
        mov_reg(1, 6),
        call_local(11),
        mov(1, 1),
        call_local(11),
        R0_IS_0,
        EXIT,
        // 11: plain
        R0_IS_0,
        EXIT, // 12
        // 13: pulls
        mov(2, 0),
        call(SKB_PULL_DATA),
        R0_IS_0,
        EXIT,
        // 17: looks
        load(W, 0, 1, 0),
        EXIT,
        // 19: quiet
        R0_IS_0,
        EXIT,
    ];
    let mut insns = insns;
    for (at, to) in [(2, 11), (4, 13), (6, 17), (8, 19)] {
        insns[at] = call_local(to - at as i32 - 1);
    }
    let functions = [0, 11, 13, 17, 19];
    let functions: Vec<[u32; 2]> = functions
        .into_iter()
        .zip(ids)
        .map(|(at, id)| [at, id])
        .collect();
    let kind = Kind {
        prog_type: ProgramType::SCHED_CLS,
        ..Kind::default()
    };
    (Made::new(kind, insns, &all, &functions), ids)
}

/// A program that replaces the function of this number.
fn replacement(
    of: u32,
    linkage: u32,
    result: impl Fn(&Types) -> u32,
    params: impl Fn(&Types) -> Vec<u32>,
    insns: &[Insn],
) -> Made {
    let mut types = types();
    let (result, params) = (result(&types), params(&types));
    let id = types.all.function("own", linkage, result, &params);
    let kind = Kind {
        prog_type: ProgramType::EXT,
        attach_btf_id: of,
        ..Kind::default()
    };
    Made::new(kind, insns.to_vec(), &types.all, &[[0, id]])
}

#[test]
fn functions_of_a_program_of_packets() {
    let Ok(vmlinux) = std::fs::read("/sys/kernel/btf/vmlinux") else {
        return;
    };
    if !kernel::is_usable() {
        return;
    }
    let kernel_types = KernelTypes::new(vmlinux).expect("good BTF");
    let (target, [main, plain, pulls, looks, quiet]) = target();
    let (loaded, log) = kernel::load_trial(&target.trial(), 1);
    let loaded = loaded.unwrap_or_else(|errno| panic!("errno {errno}: {log}"));
    let read_number = |_: &Types| Vec::new();
    let (int, long) = (|it: &Types| it.int, |it: &Types| it.long);
    let number = |it: &Types| vec![it.int];
    let wide = |it: &Types| vec![it.long];
    let (skb, xdp) = (|it: &Types| vec![it.skb], |it: &Types| vec![it.xdp]);
    let numbers = |it: &Types| vec![it.numbers];
    let pull = [mov(2, 0), call(SKB_PULL_DATA), R0_IS_0, EXIT];
    let cases = [
        (
            "a number",
            "",
            replacement(plain, GLOBAL, int, number, &[mov_reg(0, 1), EXIT]),
        ),
        (
            "a number is no context",
            "R1 invalid mem access 'scalar'",
            replacement(plain, GLOBAL, int, number, &[load(W, 0, 1, 0), EXIT]),
        ),
        (
            "anything is returned",
            "",
            replacement(plain, GLOBAL, int, number, &[call(GET_PRANDOM), EXIT]),
        ),
        (
            "nothing is returned",
            "R0 !read_ok",
            replacement(plain, GLOBAL, int, number, &[EXIT]),
        ),
        (
            "a wider argument",
            "arg0 in own() has size 8 while plain() has 4",
            replacement(plain, GLOBAL, int, wide, &[R0_IS_0, EXIT]),
        ),
        (
            "a wider result",
            "",
            replacement(plain, GLOBAL, long, number, &[R0_IS_0, EXIT]),
        ),
        (
            "no argument",
            "own() has 0 args while plain() has 1 args",
            replacement(plain, GLOBAL, int, read_number, &[R0_IS_0, EXIT]),
        ),
        (
            "a context for a number",
            "arg0 in own() is PTR while plain() has INT",
            replacement(plain, GLOBAL, int, skb, &[R0_IS_0, EXIT]),
        ),
        (
            "a static one",
            "own() is not a global function",
            replacement(plain, STATIC, int, number, &[R0_IS_0, EXIT]),
        ),
        (
            "of a static one",
            "quiet() is not a global function",
            replacement(quiet, GLOBAL, int, number, &[R0_IS_0, EXIT]),
        ),
        (
            "a context",
            "",
            replacement(looks, GLOBAL, int, skb, &[load(W, 0, 1, 0), EXIT]),
        ),
        (
            "past the context",
            "invalid bpf_context access off=400 size=4",
            replacement(looks, GLOBAL, int, skb, &[load(W, 0, 1, 400), EXIT]),
        ),
        (
            "another context",
            "arg0 own(struct xdp_md *) doesn't match looks(struct __sk_buff *)",
            replacement(looks, GLOBAL, int, xdp, &[R0_IS_0, EXIT]),
        ),
        (
            "a pointer to numbers",
            "arg0 in own() is not a pointer to context",
            replacement(looks, GLOBAL, int, numbers, &[R0_IS_0, EXIT]),
        ),
        (
            "a packet that stays",
            "Extension program changes packet data, while original does not",
            replacement(looks, GLOBAL, int, skb, &pull),
        ),
        (
            "a packet that moves",
            "",
            replacement(pulls, GLOBAL, int, skb, &pull),
        ),
        (
            "the program itself",
            "",
            replacement(main, GLOBAL, int, skb, &[load(W, 0, 1, 0), EXIT]),
        ),
        (
            "the program returns a pointer",
            "",
            replacement(main, GLOBAL, int, skb, &[mov_reg(0, 1), EXIT]),
        ),
        (
            "nothing",
            "Tracing programs must provide btf_id",
            replacement(0, GLOBAL, int, number, &[R0_IS_0, EXIT]),
        ),
        (
            "no function",
            "Subprog int doesn't exist",
            replacement(1, GLOBAL, int, number, &[R0_IS_0, EXIT]),
        ),
        (
            "no type",
            "attach_btf_id 999 is invalid",
            replacement(999, GLOBAL, int, number, &[R0_IS_0, EXIT]),
        ),
    ];
    let target_types = target.types(target.kind, &kernel_types);
    let target_program = target.program(&target_types, &kernel_types);
    let mut differences = String::new();
    for (what, expected, own) in &cases {
        let types = own.types(own.kind.replacing(&target.kind), &kernel_types);
        let program = Program {
            target: Some(&target_program),
            ..own.program(&types, &kernel_types)
        };
        let ours = verify(&program, LogLevel(LogLevel::PATH));
        let ours = ours.result.err().map_or_else(String::new, |it| it.reason);
        let trial = Trial {
            attach_to: Some(&loaded),
            ..own.trial()
        };
        let (errno, log) = kernel::verdict(&trial, 1);
        let mut theirs = log.lines().filter(|line| !line.starts_with("processed "));
        let theirs = match errno {
            0 => "",
            EPERM => *expected,
            _ => theirs.next_back().unwrap_or_default(),
        };
        if ours != *expected || theirs != *expected {
            differences += &format!("{what}: the kernel {theirs:?}, here {ours:?}\n");
        }
    }
    assert!(differences.is_empty(), "{differences}");
}

//! Programs with their own exception callback: the same verdict, error number and last words from
//! the kernel and from here.

mod btf;

use beeline_fuzz::asm::{EXIT, call, call_local, insn, mov, mov_reg};
use beeline_fuzz::kernel::{self, Trial};
use beeline_isa::{Insn, opcode::*};
use beeline_uapi::{AttachType, Errno, HelperId, ProgramType};
use beeline_verifier::program::{Kind, Program};
use beeline_verifier::types::{KernelTypes, ProgramTypes};
use beeline_verifier::verdict::LogLevel;
use beeline_verifier::{function_starts, verify};
use btf::{Builder, PTR};

const R0_IS_0: Insn = mov(0, 0);
const GLOBAL: u32 = 1;

/// A program with a first function that throws 7 or runs `main`, and the callback for that.
struct Case {
    what: &'static str,
    kind: Kind,
    main: Vec<Insn>,
    callback: Vec<Insn>,
    /// The callback's argument.
    params: Vec<Param>,
}

#[derive(Clone, Copy)]
enum Param {
    Number,
    Pointer,
}

fn judged(case: &Case, kernel: &KernelTypes) -> Result<(), String> {
    let mut types = Builder::new();
    let int = types.int("int", 4);
    let pointer = types.refer(PTR, int);
    let params: Vec<u32> = case
        .params
        .iter()
        .map(|it| match it {
            Param::Number => int,
            Param::Pointer => pointer,
        })
        .collect();
    let main = types.function("main", GLOBAL, int, &[int]);
    let callback = types.function("caught", GLOBAL, int, &params);
    types.tag("exception_callback:caught", main, -1);
    let bytes = types.bytes();
    let insns = [&case.main[..], &case.callback].concat();
    let functions = [[0, main], [case.main.len() as u32, callback]];

    let btf = kernel::load_btf(&bytes).map_err(|error| error.to_string())?;
    let trial = Trial {
        prog_type: case.kind.prog_type,
        attach_type: case.kind.attach_type,
        insns: &insns,
        btf: Some(&btf),
        func_info: &functions,
        ..Trial::default()
    };
    let (errno, log) = kernel::verdict(&trial, 1);
    // The kernel forgets the end of some lines.
    let said = log.split("processed ").next().unwrap_or_default();
    let mut theirs = said.lines();
    let theirs = match errno {
        0 => (Errno(0), String::new()),
        _ => (
            Errno(errno),
            theirs.next_back().unwrap_or_default().to_owned(),
        ),
    };

    let starts = function_starts(&insns).map_err(|reject| reject.to_string())?;
    let made = ProgramTypes::new(
        &bytes,
        &functions,
        &[],
        &case.kind,
        &insns,
        &starts,
        Some(kernel),
    );
    let ours = made.and_then(|types| {
        let program = Program {
            kind: case.kind,
            gpl: true,
            insns: &insns,
            types: Some(&types),
            kernel: Some(kernel),
            ..Program::default()
        };
        let verdict = verify(&program, LogLevel(LogLevel::PATH));
        verdict.result.map_err(|it| (it.errno, it.reason))
    });
    let ours = ours.err().unwrap_or((Errno(0), String::new()));
    if ours == theirs {
        return Ok(());
    }
    Err(format!(
        "{}: the kernel {theirs:?}, here {ours:?}",
        case.what
    ))
}

#[test]
fn exceptions_go_to_the_programs_own_callback() {
    let Ok(vmlinux) = std::fs::read("/sys/kernel/btf/vmlinux") else {
        return;
    };
    if !kernel::is_usable() {
        return;
    }
    let kernel = KernelTypes::new(vmlinux).expect("good BTF");
    let id = kernel.function("bpf_throw").expect("a kernel function");
    let throw = insn(JMP | CALL, 0, PSEUDO_KFUNC_CALL, 0, id as i32);
    let kind = |prog_type, attach_type| Kind {
        prog_type,
        attach_type,
        ..Kind::default()
    };
    let tc = kind(ProgramType::SCHED_CLS, AttachType::UNSPECIFIED);
    let egress = kind(ProgramType::CGROUP_SKB, AttachType::CGROUP_INET_EGRESS);
    let main: &[Insn] = &[mov(1, 7), throw, R0_IS_0, EXIT];
    let number: &[Param] = &[Param::Number];
    let hand_on: &[Insn] = &[mov_reg(0, 1), EXIT];
    let case = |what, kind, main: &[Insn], callback: &[Insn], params: &[Param]| Case {
        what,
        kind,
        main: main.to_vec(),
        callback: callback.to_vec(),
        params: params.to_vec(),
    };
    let direct: &[Insn] = &[mov(1, 1), call_local(1), EXIT];
    let tail: &[Insn] = &[
        mov(2, 0),
        mov(3, 0),
        call(HelperId::TAIL_CALL.0 as i32),
        R0_IS_0,
        EXIT,
    ];
    let cases = [
        case("handed on", tc, main, hand_on, number),
        case("never thrown", tc, &[R0_IS_0, EXIT], hand_on, number),
        case("another number", tc, main, &[mov(0, 3), EXIT], number),
        case("no number", tc, main, &[mov_reg(0, 10), EXIT], number),
        case("nothing", tc, main, &[EXIT], number),
        case(
            "a range that it keeps to",
            egress,
            main,
            &[mov(0, 3), EXIT],
            number,
        ),
        case("a range that it breaks", egress, main, hand_on, number),
        case(
            "a range that it does not keep to",
            egress,
            main,
            &[mov(0, 4), EXIT],
            number,
        ),
        case(
            "two arguments",
            tc,
            main,
            &[R0_IS_0, EXIT],
            &[Param::Number, Param::Number],
        ),
        case("no argument", tc, main, &[R0_IS_0, EXIT], &[]),
        case("a pointer", tc, main, &[R0_IS_0, EXIT], &[Param::Pointer]),
        case("called", tc, direct, hand_on, number),
        case("a tail call", tc, main, tail, number),
        case("thrown again", tc, main, &[throw, R0_IS_0, EXIT], number),
        case(
            "with an argument that is no number",
            tc,
            &[mov_reg(1, 10), throw, R0_IS_0, EXIT],
            hand_on,
            number,
        ),
        case(
            "the context is not there",
            tc,
            main,
            &[insn(LDX | MEM | W, 0, 1, 0, 0), EXIT],
            number,
        ),
        case(
            "unreachable code",
            tc,
            main,
            &[R0_IS_0, EXIT, R0_IS_0, EXIT],
            number,
        ),
    ];
    let differences: Vec<String> = cases
        .iter()
        .filter_map(|case| judged(case, &kernel).err())
        .collect();
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

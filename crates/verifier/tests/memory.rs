//! A program that takes very much memory to verify is refused where there is not enough, and
//! otherwise accepted.

mod oracle;

use std::cell::Cell;

use beeline_isa::{Insn, opcode::*};
use beeline_uapi::{AttachType, Errno, ProgramType};
use beeline_verifier::program::Program;
use beeline_verifier::verdict::{LogLevel, Verdict};
use beeline_verifier::verify;
use oracle::{END_PROGRAM, R0_IS_1, kind};

const LENGTH: usize = 10_000;
const CALLS: usize = 1000;

/// A long function that is called at many places: the state of its stack is kept for each of them.
fn called_often() -> Vec<Insn> {
    let insn = |code, dst, src, off, imm| Insn {
        code,
        dst,
        src,
        off,
        imm,
    };
    let set = |dst, imm| insn(ALU64 | K | MOV, dst, 0, 0, imm);
    let start = 2 * CALLS + 2;
    let mut insns = Vec::new();
    for at in 0..CALLS {
        let distance = start - insns.len() - 2;
        insns.push(set(1, i32::from(at == 0)));
        insns.push(insn(JMP | CALL, 0, PSEUDO_CALL, 0, distance as i32));
    }
    insns.extend([R0_IS_1, END_PROGRAM]);
    assert_eq!(insns.len(), start);
    insns.extend([set(0, 0), insn(JMP | K | JNE, 1, 0, 1, 0)]);
    insns.push(END_PROGRAM);
    insns.extend((0..LENGTH).map(|_| set(0, 1)));
    insns.push(END_PROGRAM);
    insns
}

fn verdict(insns: &[Insn], memory: Option<&dyn Fn(usize) -> bool>) -> Verdict {
    let program = Program {
        kind: kind(ProgramType::KPROBE, AttachType::UNSPECIFIED),
        gpl: true,
        insns,
        memory,
        ..Program::default()
    };
    verify(&program, LogLevel::default())
}

#[test]
fn a_walk_stays_within_the_memory_it_asks_for() {
    let insns = called_often();
    assert!(verdict(&insns, None).result.is_ok());
    let asked = Cell::new(0);
    let grants_all = |bytes| {
        assert!(bytes > asked.get(), "more, whenever it asks");
        asked.set(bytes);
        true
    };
    assert!(verdict(&insns, Some(&grants_all)).result.is_ok());
    // A byte for each instruction of each of the function's instances.
    assert!(asked.get() > LENGTH * CALLS, "{}", asked.get());
    let half = asked.get() / 2;
    let refused = verdict(&insns, Some(&|bytes| bytes <= half)).result;
    let refusal = refused.expect_err("it needs more");
    assert_eq!(refusal.errno, Errno::ENOMEM);
    assert!(refusal.reason.contains("memory"), "{}", refusal.reason);
}

#[test]
fn a_small_program_asks_once() {
    let times = Cell::new(0);
    let counts = |_| {
        times.set(times.get() + 1);
        true
    };
    assert!(
        verdict(&[R0_IS_1, END_PROGRAM], Some(&counts))
            .result
            .is_ok()
    );
    assert_eq!(times.get(), 1);
}

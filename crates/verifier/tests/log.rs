//! The log of all paths is the kernel's, line by line: functions, registers that are read later,
//! states, and each way back to a number's origin.

mod oracle;

use beeline_isa::{Insn, imm64, opcode::*};
use beeline_uapi::{AttachType, HelperId, ProgramType};
use beeline_verifier::program::Program;
use beeline_verifier::verdict::LogLevel;
use beeline_verifier::verify;
use oracle::{END_PROGRAM, kind};

const fn insn(code: u8, dst: u8, src: u8, off: i16, imm: i32) -> Insn {
    Insn {
        code,
        dst,
        src,
        off,
        imm,
    }
}

const fn set(dst: u8, imm: i32) -> Insn {
    insn(ALU64 | K | MOV, dst, 0, 0, imm)
}

const fn copy(dst: u8, src: u8) -> Insn {
    insn(ALU64 | X | MOV, dst, src, 0, 0)
}

const fn store(off: i16, src: u8) -> Insn {
    insn(STX | MEM | DW, 10, src, off, 0)
}

const fn load(dst: u8, off: i16) -> Insn {
    insn(LDX | MEM | DW, dst, 10, off, 0)
}

const RANDOM: Insn = oracle::call(HelperId::GET_PRANDOM_U32);

fn call(distance: i32) -> Insn {
    insn(JMP | CALL, 0, PSEUDO_CALL, 0, distance)
}

/// `*(u8 *)(r10 + register)`, by way of r2; r10 - 64 to r10 have been written.
fn byte_at(register: u8) -> [Insn; 3] {
    [
        copy(2, 10),
        insn(ALU64 | X | ADD, 2, register, 0, 0),
        insn(LDX | MEM | B, 0, 2, -64, 0),
    ]
}

fn zeroed() -> impl Iterator<Item = Insn> {
    (1..=8).map(|slot| insn(ST | MEM | DW, 10, 0, -8 * slot, 0))
}

#[test]
fn a_number_is_followed_back_over_branches_and_its_copies() {
    let mut insns: Vec<Insn> = zeroed().collect();
    insns.extend([
        RANDOM,
        copy(6, 0),
        insn(JMP | K | JGT, 6, 0, 5, 31),
        insn(JMP | K | JGT, 0, 0, 1, 7),
        insn(ALU64 | K | ADD, 6, 0, 0, 2),
    ]);
    insns.extend(byte_at(6));
    insns.extend([set(0, 0), END_PROGRAM]);
    compare(&insns);
}

#[test]
fn a_number_is_followed_into_functions_and_through_the_stack() {
    let mut insns: Vec<Insn> = zeroed().collect();
    insns.extend([RANDOM, copy(1, 0), call(8), store(-8, 0), load(6, -8)]);
    insns.extend([insn(JMP | K | JGT, 6, 0, 3, 20)]);
    insns.extend(byte_at(6));
    insns.extend([set(0, 0), END_PROGRAM]);
    // The function: the lowest bits, or some other number.
    insns.extend([
        copy(0, 1),
        insn(JMP | K | JGT, 0, 0, 1, 15),
        END_PROGRAM,
        insn(ALU64 | K | AND, 0, 0, 0, 15),
        END_PROGRAM,
    ]);
    compare(&insns);
}

#[test]
fn a_loop_and_a_large_number() {
    let [low, high] = imm64(7, 0, 0x1234_5678_9abc_def0);
    let insns = [
        low,
        high,
        set(6, 0),
        RANDOM,
        insn(ALU64 | K | ADD, 6, 0, 0, 1),
        insn(JMP | K | JEQ, 0, 0, 1, 7),
        insn(JMP | K | JLT, 6, 0, -4, 5),
        copy(0, 7),
        END_PROGRAM,
    ];
    compare(&insns);
}

fn compare(insns: &[Insn]) {
    if !oracle::is_usable() {
        return;
    }
    let kind = kind(ProgramType::SOCKET_FILTER, AttachType::UNSPECIFIED);
    let theirs = oracle::load(&kind, insns).expect("the kernel takes it");
    let program = Program {
        kind,
        gpl: true,
        insns,
        maps: &[],
        types: None,
        kernel: None,
        ..Default::default()
    };
    let ours = verify(&program, LogLevel(LogLevel::ALL));
    assert!(ours.result.is_ok(), "{}", ours.log);
    let (ours, theirs) = (lines(&ours.log), lines(&theirs));
    for (number, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
        assert_eq!(ours, theirs, "line {number}");
    }
    assert_eq!(ours.len(), theirs.len());
}

/// Removes the last line's figures, and the kernel's remarks on stack slots that are read later.
fn lines(log: &str) -> Vec<&str> {
    // The function in question stands before them in brackets.
    let is_of_slots = |line: &str| line.starts_with('(') && line.contains(") ");
    let is_other = |line: &&str| !is_of_slots(line) && !line.starts_with("processed ");
    log.lines().filter(is_other).collect()
}

//! Loops that copy elements leave the same as turn by turn, whatever the baseline compiler makes of
//! them.

mod common;

use beeline_codegen::{Baseline, Bytecode, Context, Engine, Interpreter};
use beeline_isa::{Insn, abi::Run, opcode::*};

use common::{EXIT, Environment, alu, alu_imm, branch, compile, load_sized, mov, mov_reg};
use common::{store, store_sized};

const MEMORY: usize = 256;
/// The offset in memory where loops begin to load.
const START: i32 = 64;

/// The end of a loop.
#[derive(Debug, Clone, Copy)]
struct End {
    /// The condition for the next turn, of r6 and the bound.
    condition: u8,
    step: i32,
    /// The bound is in a register.
    register: bool,
    /// The loop ends by a branch out, over a jump back.
    out: bool,
}

const ENDS: [End; 12] = {
    const fn end(condition: u8, step: i32, register: bool, out: bool) -> End {
        End {
            condition,
            step,
            register,
            out,
        }
    }
    [
        end(JNE, 1, false, false),
        end(JNE, -1, true, false),
        end(JLT, 1, true, false),
        end(JSLT, 1, false, false),
        end(JGT, -1, false, false),
        end(JSGT, -1, true, false),
        end(JEQ, 1, true, true),
        end(JGE, 1, false, true),
        end(JSGE, 1, true, true),
        end(JLE, -1, true, true),
        end(JSLE, -1, false, true),
        // By two, which the compiler does not optimize.
        end(JLT, 2, false, false),
    ]
};

/// A way to address elements.
#[derive(Debug, Clone, Copy)]
enum Address {
    /// One register and one distance, with the index added in each turn.
    Index,
    /// Two registers and one index.
    TwoIndexed,
    /// Two registers that move.
    Pointers,
}

/// A loop of so many turns that copies elements `distance` bytes on: r1 is the memory, r2 the
/// index, r3 and r5 the places, r4 the element, r6 the counter, r7 its bound.
fn copying(size: u8, address: Address, end: End, turns: i32, distance: i32) -> Vec<Insn> {
    let bytes = match size {
        B => 1,
        H => 2,
        W => 4,
        _ => 8,
    };
    let mut insns = vec![mov(2, START), mov_reg(3, 1), alu_imm(ADD, 3, START)];
    insns.extend([mov_reg(5, 3), alu_imm(ADD, 5, distance), mov(4, 0)]);
    insns.extend([mov_reg(8, 1), alu_imm(ADD, 8, distance), mov(9, 9)]);
    let bound = if end.step > 0 { turns * end.step } else { 0 };
    let first = bound - turns * end.step;
    insns.extend([mov(6, first), mov(7, bound)]);
    let mut turn = Vec::new();
    match address {
        Address::Index => turn.extend([
            mov_reg(3, 1),
            alu(ADD, 3, 2),
            load_sized(MEM | size, 4, 3, 0),
            alu_imm(ADD, 3, distance),
            store_sized(size, 3, 0, 4),
            alu_imm(ADD, 2, bytes),
        ]),
        Address::TwoIndexed => turn.extend([
            mov_reg(3, 1),
            alu(ADD, 3, 2),
            load_sized(MEM | size, 4, 3, 0),
            mov_reg(5, 8),
            alu(ADD, 5, 2),
            store_sized(size, 5, 0, 4),
            alu_imm(SUB, 2, -bytes),
        ]),
        Address::Pointers => turn.extend([
            load_sized(MEM | size, 4, 3, 0),
            store_sized(size, 5, 0, 4),
            alu_imm(ADD, 5, bytes),
            alu_imm(ADD, 3, bytes),
        ]),
    }
    turn.push(alu_imm(ADD, 6, end.step));
    let back = -(turn.len() as i16) - 1;
    let source = if end.register { X } else { K };
    let branch = |off| Insn {
        code: JMP | source | end.condition,
        dst: 6,
        src: if end.register { 7 } else { 0 },
        imm: if end.register { 0 } else { bound },
        off,
    };
    if end.out {
        turn.extend([branch(1), jump(back - 1)]);
    } else {
        turn.push(branch(back));
    }
    insns.extend(turn);
    insns.push(mov(0, 0));
    for register in 2..10 {
        insns.extend([alu_imm(MUL, 0, 31), alu(XOR, 0, register)]);
    }
    insns.push(EXIT);
    insns
}

fn jump(off: i16) -> Insn {
    Insn {
        code: JMP | JA,
        off,
        ..Insn::default()
    }
}

/// Returns the result of a program, and the memory that it leaves.
fn outcome(engine: &dyn Engine, insns: &[Insn], memory: &mut [u8; MEMORY]) -> (u64, [u8; MEMORY]) {
    for (at, byte) in memory.iter_mut().enumerate() {
        *byte = (at * 29 + 3) as u8;
    }
    let environment = Environment::new(&[], &[], &[]);
    let run: Run = environment.run();
    let context = Context {
        start: memory.as_mut_ptr(),
        bytes: MEMORY,
    };
    let program = engine.load(&Bytecode::new(insns)).expect("a good program");
    // SAFETY: the loops stay within the memory, and there are neither helpers nor maps.
    let result = unsafe { program.run(context, &run) };
    (result.expect("a good run"), *memory)
}

#[test]
fn loops_that_copy_leave_the_same_as_turn_by_turn() {
    let mut memory = [0; MEMORY];
    for size in [B, H, W, DW] {
        for address in [Address::Index, Address::TwoIndexed, Address::Pointers] {
            for end in ENDS {
                for turns in [1, 2, 3, 7, 8, 9, 10, 15, 16, 17] {
                    for distance in [-64, -9, -8, -7, -3, -1, 0, 1, 2, 4, 7, 8, 9, 40] {
                        let insns = copying(size, address, end, turns, distance);
                        let [baseline, expected]: [_; 2] =
                            [&Baseline as &dyn Engine, &Interpreter::default()]
                                .map(|engine| outcome(engine, &insns, &mut memory));
                        assert_eq!(
                            baseline, expected,
                            "{size:#x} {address:?} {end:?} {turns} {distance}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn a_number_past_its_bound_ends_a_loop_after_its_first_turn() {
    let mut memory = [0; MEMORY];
    // Nothing is below 0 where numbers have no sign.
    let can_be_past = |end: &End| end.step > 0 || matches!(end.condition, JSGT | JSLE);
    let ends = ENDS.into_iter().filter(can_be_past);
    for end in ends.filter(|end| !matches!(end.condition, JNE | JEQ)) {
        let mut insns = copying(B, Address::Pointers, end, 9, 40);
        // r6 begins further than r7.
        insns[9].imm += 20 * end.step;
        let [baseline, expected]: [_; 2] = [&Baseline as &dyn Engine, &Interpreter::default()]
            .map(|engine| outcome(engine, &insns, &mut memory));
        assert_eq!(baseline, expected, "{end:?}");
    }
}

/// Returns whether compiled code loads a word that the program does not.
fn copies_words(insns: &[Insn]) -> bool {
    let code = compile(insns).expect("a good program").bytes;
    let decoder = iced_x86::Decoder::new(64, &code, iced_x86::DecoderOptions::NONE);
    decoder.into_iter().any(|insn| {
        insn.code() == iced_x86::Code::Mov_r64_rm64 && insn.op1_kind() == iced_x86::OpKind::Memory
    })
}

#[test]
fn only_loops_that_do_nothing_else_copy_words() {
    let plain = |distance| copying(B, Address::Index, ENDS[0], 20, distance);
    assert!(copies_words(&plain(40)));
    assert!(copies_words(&plain(-1)));
    assert!(!copies_words(&plain(3)));
    assert!(!copies_words(&copying(B, Address::Index, ENDS[11], 20, 40)));
    let with = |insn: Insn| {
        let mut insns = plain(40);
        // The first of the turn's, with the way back made longer.
        insns.insert(11, insn);
        let way_back = insns.iter_mut().rfind(|insn| insn.off < 0);
        way_back.expect("a branch back").off -= 1;
        insns
    };
    assert!(copies_words(&with(mov(9, 7))));
    assert!(copies_words(&with(alu_imm(ADD, 9, 7))));
    // The effect of the turns on r9 is unknown.
    assert!(!copies_words(&with(alu_imm(MUL, 9, 7))));
    assert!(!copies_words(&with(alu(ADD, 9, 4))));
    assert!(!copies_words(&with(mov_reg(9, 3))));
    assert!(!copies_words(&with(alu(ADD, 9, 2))));
    assert!(!copies_words(&with(store(10, -8, 4))));
    assert!(!copies_words(&with(branch(JEQ, 9, 3, 0))));
}

//! Short loops lie in one line of 64 bytes of the baseline compiler's code, and run as often as
//! before.
#![cfg(target_arch = "x86_64")]

mod common;

use beeline_isa::{Insn, opcode::*};
use iced_x86::{Decoder, DecoderOptions};

use common::{EXIT, alu, alu_imm, branch, compile, mov, result};

/// Sums up numbers in two nested loops, behind so many instructions.
fn program(before: i32) -> Vec<Insn> {
    let mut insns = vec![mov(0, 0), mov(1, 3)];
    insns.extend((0..before).map(|number| alu_imm(XOR, 0, number)));
    insns.extend([mov(2, 5), alu(ADD, 0, 1)]);
    // The inner loop; the outer one is longer than a line.
    insns.extend([
        alu(ADD, 0, 2),
        alu_imm(MUL, 0, 3),
        alu_imm(SUB, 2, 1),
        branch(JNE, 2, 0, -4),
    ]);
    let filler = 16;
    insns.extend([alu_imm(ADD, 0, 0x1234_5678); 16]);
    insns.extend([alu_imm(SUB, 1, 1), branch(JNE, 1, 0, -8 - filler), EXIT]);
    insns
}

fn expected(before: i32) -> u64 {
    let mut sum = (0..before).fold(0, |all, number| all ^ number as u64);
    for outer in [3, 2, 1] {
        sum += outer;
        for inner in [5, 4, 3, 2, 1] {
            sum = (sum + inner) * 3;
        }
        sum += 16 * 0x1234_5678;
    }
    sum
}

#[test]
fn a_short_loop_is_in_one_line_wherever_it_begins() {
    for before in 0..70 {
        let insns = program(before);
        assert_eq!(result(&insns), expected(before));
        let code = compile(&insns).expect("a good program");
        let loops: Vec<(u64, u64)> = Decoder::new(64, &code.bytes, DecoderOptions::NONE)
            .into_iter()
            .filter(|insn| insn.is_jcc_short_or_near())
            .map(|insn| (insn.near_branch_target(), insn.next_ip()))
            .collect();
        assert_eq!(loops.len(), 2);
        let (start, end) = loops[0];
        assert_eq!(
            start / 64,
            (end - 1) / 64,
            "{before}: {start:#x} to {end:#x}"
        );
        assert!(loops[1].1 - loops[1].0 > 64);
        // The code of an instruction is at its reported place.
        let inner = 2 + before as u32 + 2;
        let place = code.insns.iter().find(|place| place.insn == inner);
        assert_eq!(place.map(|place| u64::from(place.at)), Some(start));
    }
}

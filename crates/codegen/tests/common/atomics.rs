//! Atomic operations, by the instruction set's definition. `run` returns the result of a program
//! that accesses its stack only.

use beeline_isa::{Insn, imm64, opcode::*};

use super::{EXIT as END, atomic, load, mov, mov_reg, store};

/// Each atomic with every pair of registers that the compiler treats specially: r0 is where the
/// machine compares.
pub fn atomics_on_all_registers(mut run: impl FnMut(&[Insn]) -> u64) {
    let operations = [ADD, OR, AND, XOR].map(i32::from);
    let operations = operations
        .into_iter()
        .flat_map(|op| [op, op | FETCH])
        .chain([XCHG, CMPXCHG]);
    for op in operations {
        for (base, source) in [(0, 1), (1, 0), (4, 9), (10, 0), (10, 6), (2, 2)] {
            for size in [DW, W] {
                check_atomic(&mut run, op, size, base, source);
            }
        }
    }
}

fn check_atomic(run: &mut impl FnMut(&[Insn]) -> u64, op: i32, size: u8, base: u8, source: u8) {
    if base == source && op != XCHG {
        return; // The operand would be an address, of which only an exchange is predictable.
    }
    const OLD: u64 = 0xf0f0_1234_5678_9abc;
    const OPERAND: u64 = 0x0ff0_8765_4321_ffff;
    let mut insns = [imm64(9, 0, OLD), imm64(8, 0, OPERAND)].concat();
    insns.extend([store(10, -8, 9), mov_reg(7, 10)]);
    if base != 10 {
        insns.push(mov_reg(base, 10));
    }
    if base != source {
        insns.push(mov_reg(source, 8));
    }
    insns.push(atomic(size, base, -8, source, op));
    // The results in memory, the source and r0, one at a time.
    let mut observe = |last: &[Insn]| run(&[&insns[..], last, &[END]].concat());
    let memory = observe(&[load(0, 7, -8)]);
    let fetched = observe(&[mov_reg(0, source)]);
    let expected = expected_atomic(
        op,
        size == DW,
        OLD,
        OPERAND,
        if source == 0 { Some(OPERAND) } else { None },
    );
    let name = format!("op {op:#x} size {size:#x} base r{base} source r{source}");
    if let Some(expected) = expected.memory.filter(|_| base != source) {
        assert_eq!(memory, expected, "{name}");
    }
    if let Some(expected) = expected.source {
        assert_eq!(fetched, expected, "{name}");
    }
}

struct Outcome {
    memory: Option<u64>,
    source: Option<u64>,
}

/// Applies the instruction set's definition. A compare and exchange is predictable if r0 is known.
fn expected_atomic(op: i32, wide: bool, old: u64, operand: u64, r0: Option<u64>) -> Outcome {
    let mask = if wide { u64::MAX } else { u64::from(u32::MAX) };
    let [add, or, and, xor] = [ADD, OR, AND, XOR].map(i32::from);
    let new = match op & !FETCH {
        op if op == add => old.wrapping_add(operand),
        op if op == or => old | operand,
        op if op == and => old & operand,
        op if op == xor => old ^ operand,
        _ => operand,
    };
    let merged = old & !mask | new & mask;
    match op {
        // r0 is the operand, which differs from the old value: nothing is written, r0 gets the old
        // value.
        CMPXCHG => match r0 {
            Some(_) => Outcome {
                memory: Some(old),
                source: Some(old & mask),
            },
            None => Outcome {
                memory: None,
                source: Some(operand),
            },
        },
        _ if op & FETCH != 0 => Outcome {
            memory: Some(merged),
            source: Some(old & mask),
        },
        _ => Outcome {
            memory: Some(merged),
            source: Some(operand),
        },
    }
}

pub fn compare_and_exchange_in_both_outcomes(mut run: impl FnMut(&[Insn]) -> u64) {
    for (size, mask) in [(DW, u64::MAX), (W, u64::from(u32::MAX))] {
        for (compared, written) in [(5, true), (6, false)] {
            let old = imm64(1, 0, 5 | 1 << 40);
            // The high half of r0 is the same as in memory, so that both widths compare alike.
            let r0 = imm64(0, 0, compared | 1 << 40);
            let insns = [
                &old[..],
                &[store(10, -8, 1)],
                &r0,
                &[mov(2, 77), atomic(size, 10, -8, 2, CMPXCHG)],
            ]
            .concat();
            let found = run(&[&insns[..], &[END]].concat());
            assert_eq!(found, (5 | 1 << 40) & mask);
            let memory = run(&[&insns[..], &[load(0, 10, -8), END]].concat());
            let expected = if written {
                (5 | 1 << 40) & !mask | 77
            } else {
                5 | 1 << 40
            };
            assert_eq!(memory, expected);
        }
    }
}

//! Searches among constants that the baseline compiler turns into a table.

mod common;

use beeline_isa::{Insn, opcode::*};

use common::{EXIT, alu, alu_imm, branch, compile, executable, load, load_sized, mov, mov_reg};

/// The constant for a value, and for all values without one.
const CONSTANTS: [i32; 12] = [7, -1, 300, 0, i32::MIN, i32::MAX, 5, 6, -300, 9, 10, 11];
const OTHERWISE: i32 = -77;

/// `r0 = constant` for the value that r1 points to, from `first` on; as clang does it, with classes
/// for branches and moves.
fn search(first: i32, branches: u8, moves: u8) -> Vec<Insn> {
    let put = |imm| Insn {
        code: moves | K | MOV,
        ..mov(0, imm)
    };
    let mut insns = vec![load(2, 1, 0), mov(0, 1)];
    for (value, constant) in (first..).zip(CONSTANTS) {
        let next = Insn {
            code: branches | K | JNE,
            ..branch(JNE, 2, value, 2)
        };
        insns.extend([next, put(constant)]);
        insns.push(Insn {
            code: JMP | JA,
            ..Insn::default()
        });
    }
    insns.push(put(OTHERWISE));
    let end = insns.len();
    for (slot, insn) in insns.iter_mut().enumerate() {
        if insn.code == JMP | JA {
            insn.off = (end - slot - 1) as i16;
        }
    }
    insns.push(EXIT);
    insns
}

#[test]
fn each_value_finds_its_constant_and_others_none() {
    for first in [0, 1, 1000, -5] {
        for (branches, moves) in [(JMP, ALU64), (JMP, ALU), (JMP32, ALU64), (JMP32, ALU)] {
            let program = executable(&search(first, branches, moves));
            for value in i64::from(first) - 3..i64::from(first) + 15 {
                for high in [0, 1 << 32, 1 << 63] {
                    let value = value.cast_unsigned() ^ high;
                    let index = match branches {
                        JMP => value.wrapping_sub(i64::from(first).cast_unsigned()),
                        _ => u64::from((value as u32).wrapping_sub(first.cast_unsigned())),
                    };
                    let constant = CONSTANTS.get(index as usize).copied();
                    let constant = constant.unwrap_or(OTHERWISE);
                    let expected = match moves {
                        ALU64 => i64::from(constant).cast_unsigned(),
                        _ => constant.cast_unsigned().into(),
                    };
                    let memory = [value];
                    // SAFETY: the program reads this memory and no other.
                    let found = unsafe { program.call(memory.as_ptr().cast(), std::ptr::null()) };
                    assert_eq!(found, expected, "{value:#x}, from {first} on");
                }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn the_constants_stand_in_a_table() {
    let table: Vec<u8> = CONSTANTS.into_iter().flat_map(i32::to_le_bytes).collect();
    let code = compile(&search(1000, JMP32, ALU)).expect("a whole program");
    assert!(code.bytes.ends_with(&table));
}

#[test]
fn few_values_are_compared() {
    let mut insns = search(0, JMP, ALU64);
    // The first seven, then `otherwise`.
    insns.drain(2 + 7 * 3..2 + CONSTANTS.len() * 3);
    for insn in insns.iter_mut().filter(|insn| insn.code == JMP | JA) {
        insn.off -= 5 * 3;
    }
    let program = executable(&insns);
    for (value, constant) in (0..).zip(&CONSTANTS[..7]).chain([(7_u64, &OTHERWISE)]) {
        let memory = [value];
        // SAFETY: the program reads this memory and no other.
        let found = unsafe { program.call(memory.as_ptr().cast(), std::ptr::null()) };
        assert_eq!(found, i64::from(*constant).cast_unsigned());
    }
}

/// The use of each constant found.
#[derive(Clone, Copy, PartialEq)]
enum Sum {
    /// Added to the sum, in a register of its own.
    Apart,
    /// Put in place of the sum, of which there is a copy, and combined with that by this operation.
    OfCopy(u8),
}

/// A loop with a search in each turn, by words after their number. The sum combines the results.
fn sum_of_searches(first: i32, sum: Sum) -> Vec<Insn> {
    let mut insns = vec![load(3, 1, 0), mov(5, 0), mov(4, 0), mov(0, 0)];
    let again = insns.len();
    let mut body = search(first, JMP32, ALU);
    body.pop();
    body[0] = load_sized(MEM | W, 2, 1, 8);
    body[1] = match sum {
        Sum::Apart => mov(0, 1),
        Sum::OfCopy(_) => mov_reg(5, 0),
    };
    insns.extend(body);
    match sum {
        Sum::Apart => insns.push(alu(ADD, 5, 0)),
        Sum::OfCopy(op) => insns.push(Insn {
            code: ALU | X | op,
            ..alu(op, 0, 5)
        }),
    }
    insns.extend([
        alu_imm(ADD, 1, 4),
        alu_imm(ADD, 4, 1),
        Insn {
            code: JMP | X | JLT,
            dst: 4,
            src: 3,
            ..Insn::default()
        },
    ]);
    let branch = insns.len() - 1;
    insns[branch].off = again as i16 - branch as i16 - 1;
    if sum == Sum::Apart {
        insns.push(mov_reg(0, 5));
    }
    insns.push(EXIT);
    insns
}

#[test]
fn a_loop_around_a_search_goes_on_behind_the_table() {
    let indexes: [u32; 6] = [3, 0, 11, 99, 5, u32::MAX];
    let sums = [ADD, OR, AND, XOR, SUB].map(Sum::OfCopy);
    for (first, sum) in [0_u32, 5]
        .into_iter()
        .flat_map(|first| sums.map(|sum| (first, sum)))
        .chain([(0, Sum::Apart), (5, Sum::Apart)])
    {
        let program = executable(&sum_of_searches(first.cast_signed(), sum));
        for count in 1..=indexes.len() {
            let words = indexes.map(|index| index.wrapping_add(first));
            let pairs = words.chunks(2);
            let pairs = pairs.map(|pair| u64::from(pair[1]) << 32 | u64::from(pair[0]));
            let memory: Vec<u64> = [count as u64].into_iter().chain(pairs).collect();
            let constants = indexes[..count].iter().map(|&index| {
                let found = CONSTANTS.get(index as usize).copied();
                found.unwrap_or(OTHERWISE).cast_unsigned()
            });
            let expected = constants.fold(0_u64, |all, constant| match sum {
                Sum::Apart => all + u64::from(constant),
                Sum::OfCopy(ADD) => constant.wrapping_add(all as u32).into(),
                Sum::OfCopy(OR) => (constant | all as u32).into(),
                Sum::OfCopy(AND) => (constant & all as u32).into(),
                Sum::OfCopy(SUB) => constant.wrapping_sub(all as u32).into(),
                Sum::OfCopy(_) => (constant ^ all as u32).into(),
            });
            // SAFETY: the program reads this memory and no other.
            let found = unsafe { program.call(memory.as_ptr().cast(), std::ptr::null()) };
            assert_eq!(found, expected, "{count} from {first} on");
        }
    }
}

//! Random arithmetic and comparisons: after each instruction the facts about the numbers are those
//! of the kernel's log.

use std::collections::HashMap;

use beeline_fuzz::{Random, asm, kernel};
use beeline_isa::{Alu, Insn, Op, Operand, opcode::*};
use beeline_uapi::{HelperId, ProgramType};
use beeline_verifier::scalar::{Comparison, Scalar, Signed};

const SOURCES: [u8; 4] = [6, 7, 8, 9];
const PRANDOM: i32 = HelperId::GET_PRANDOM_U32.0 as i32;

#[test]
fn the_kernel_knows_the_same() {
    if !kernel::is_usable() {
        return;
    }
    let count = std::env::var("BEELINE_SCALAR_PROGRAMS")
        .ok()
        .and_then(|count| count.parse().ok())
        .unwrap_or(400);
    let mut compared = 0;
    for seed in 0..count {
        compared += compare(&program(seed), seed);
    }
    assert!(compared > 10 * count as usize, "{compared} registers");
}

#[test]
fn pointers_move_as_the_kernel_says() {
    if !kernel::is_usable() {
        return;
    }
    let mut compared = 0;
    for seed in 0..400 {
        compared += compare_pointers(seed);
    }
    assert!(compared > 400, "{compared}");
}

/// Moves a pointer to the stack by two numbers; returns how many of its positions were compared.
fn compare_pointers(seed: u64) -> usize {
    const POINTER: u8 = 9;
    let random = &mut Random::new(seed);
    let mut insns = Vec::new();
    for register in [6, 7] {
        insns.extend([asm::call(PRANDOM), asm::mov_reg(register, 0)]);
        insns.push(asm::alu_imm(AND, register, 1 + random.below(0xffff) as i32));
        for _ in 0..random.below(3) {
            let op = random.pick(&[SUB, OR, XOR, MUL]);
            insns.push(asm::alu_imm(op, register, random.below(300) as i32));
        }
    }
    let numbers = follow(&[&insns[..], &[asm::EXIT]].concat())[&(insns.len() - 1)][0];
    insns.push(asm::mov_reg(POINTER, 10));
    insns.extend([6, 7].map(|register| asm::alu(ADD, POINTER, register)));
    insns.extend([asm::mov(0, 0), asm::EXIT]);
    let (verdict, log) = kernel::follow(ProgramType::SOCKET_FILTER, &insns);
    let any_constant = numbers[..2]
        .iter()
        .any(|number| number.constant().is_some());
    // Moves too far are refused; a constant is kept apart.
    if verdict.is_err() || any_constant {
        return 0;
    }
    let once = Scalar::known(0).moved(numbers[0], false);
    let twice = once.moved(numbers[1], false);
    let ours = [once, twice].map(|place| words("fp", &place));
    let theirs: Vec<String> = log
        .lines()
        .filter(|line| !line.contains("parent state"))
        .flat_map(registers)
        .filter(|(register, place)| *register == POINTER && place.starts_with("fp("))
        .map(|(_, place)| place)
        .collect();
    assert_eq!(theirs, ours, "seed {seed}:\n{log}");
    ours.len()
}

/// Initially unknown numbers in r6 to r9; each branch leads to its own end.
fn program(seed: u64) -> Vec<Insn> {
    let random = &mut Random::new(seed);
    let mut insns = Vec::new();
    for register in SOURCES {
        insns.extend([asm::call(PRANDOM), asm::mov_reg(register, 0)]);
    }
    insns.push(asm::mov(0, 0));
    for register in SOURCES {
        // Operations on few numbers overflow less, so that more is known of their results.
        if random.once_in(2) {
            let mask = random.bits() as i32 & i32::MAX >> random.below(31);
            insns.push(asm::alu_imm(AND, register, mask));
            insns.push(asm::alu_imm(SUB, register, random.below(300) as i32));
        }
    }
    for _ in 0..16 {
        insns.extend(step(random));
    }
    insns.push(asm::EXIT);
    for index in 0..insns.len() {
        if matches!(insns[index].op(), Ok(Op::Branch { .. })) {
            insns[index].off = (insns.len() - index - 1) as i16;
            insns.extend([asm::mov(0, 1), asm::EXIT]);
        }
    }
    insns
}

fn step(random: &mut Random) -> Vec<Insn> {
    let dst = random.pick(&SOURCES);
    let class = random.pick(&[ALU, ALU64]);
    let insn = |code, src, off, imm| Insn {
        code,
        dst,
        src,
        off,
        imm,
    };
    match random.below(16) {
        0 => {
            let value = random.number();
            let high = Insn {
                code: 0,
                dst: 0,
                src: 0,
                off: 0,
                imm: (value >> 32) as i32,
            };
            vec![insn(LD_IMM64, 0, 0, value as i32), high]
        }
        1 => vec![insn(class | NEG, 0, 0, 0)],
        2 => {
            let bits: &[i16] = if class == ALU {
                &[0, 8, 16]
            } else {
                &[8, 16, 32]
            };
            vec![insn(class | X | MOV, dst, random.pick(bits), 0)]
        }
        3 if random.once_in(4) => {
            let width = random.pick(&[16, 32, 64]);
            let source = random.pick(&[K, X]);
            vec![insn(ALU | END | source, 0, 0, width)]
        }
        3..=7 => vec![branch(random, dst)],
        8 => vec![insn(class | K | AND, 0, 0, random.number() as i32)],
        _ => {
            const OPS: [u8; 13] = [
                ADD, SUB, MUL, OR, AND, XOR, LSH, RSH, ARSH, ADD, SUB, DIV, MOD,
            ];
            let op = random.pick(&OPS);
            let signed = matches!(op, DIV | MOD) && random.once_in(2);
            let width = if class == ALU { 32 } else { 64 };
            let imm = match op {
                LSH | RSH | ARSH if random.once_in(3) => width / 2,
                LSH | RSH | ARSH => random.below(width as u64) as i32,
                DIV | MOD => (random.number() as i32).max(1),
                _ => random.number() as i32,
            };
            if random.once_in(2) {
                vec![insn(
                    class | X | op,
                    random.pick(&SOURCES),
                    signed.into(),
                    0,
                )]
            } else {
                vec![insn(class | K | op, 0, signed.into(), imm)]
            }
        }
    }
}

fn branch(random: &mut Random, dst: u8) -> Insn {
    const CONDS: [u8; 11] = [JEQ, JGT, JGE, JSET, JNE, JSGT, JSGE, JLT, JLE, JSLT, JSLE];
    let code = random.pick(&[JMP, JMP32]) | random.pick(&CONDS);
    let src = random.pick(&SOURCES);
    if random.once_in(2) {
        Insn {
            code: code | X,
            dst,
            src,
            off: 0,
            imm: 0,
        }
    } else {
        Insn {
            code: code | K,
            dst,
            src: 0,
            off: 0,
            imm: random.number() as i32,
        }
    }
}

/// Returns the number of compared registers.
fn compare(insns: &[Insn], seed: u64) -> usize {
    let expected = follow(insns);
    let (verdict, log) = kernel::follow(ProgramType::SOCKET_FILTER, insns);
    assert!(verdict.is_ok(), "seed {seed}:\n{log}");
    let mut compared = 0;
    for line in log.lines() {
        let Some((index, says)) = line_of(line) else {
            continue;
        };
        for (register, theirs) in registers(says) {
            let states = expected.get(&index).map_or(&[][..], |states| states);
            let ours: Vec<String> = states
                .iter()
                .map(|state| words("scalar", &state[at(register)]))
                .collect();
            assert!(
                ours.contains(&theirs),
                "seed {seed}, r{register}: {line}\nnot one of {ours:#?}\n{log}"
            );
            compared += 1;
        }
    }
    compared
}

/// The instruction after which (or at the end of a branch: before which) the registers are as the
/// line says.
fn line_of(line: &str) -> Option<(usize, &str)> {
    if let Some(branch) = line.strip_prefix("from ") {
        let (_, to) = branch.split_once(" to ")?;
        let (index, says) = to.split_once(':')?;
        return Some((index.parse().ok()?, says));
    }
    let (index, rest) = line.split_once(": (")?;
    let (_, says) = rest.split_once("; ")?;
    Some((index.parse().ok()?, says))
}

/// Returns r6 to r9, as far as the line has them.
fn registers(says: &str) -> Vec<(u8, String)> {
    let mut depth = 0_i32;
    let parts = says.split(|character| {
        depth += i32::from(character == '(') - i32::from(character == ')');
        character == ' ' && depth == 0
    });
    let mut registers = Vec::new();
    for part in parts {
        let Some((name, value)) = part.split_once('=') else {
            continue;
        };
        if let Some(register) = name.strip_prefix('R').and_then(|name| name.parse().ok())
            && SOURCES.contains(&register)
        {
            registers.push((register, without_marks(value)));
        }
    }
    registers
}

/// Removes `P` for precise numbers and the number that names equal registers.
fn without_marks(value: &str) -> String {
    let value = value.strip_prefix('P').unwrap_or(value);
    match value.strip_prefix("scalar(id=") {
        Some(rest) => match rest.split_once(',') {
            Some((_, rest)) => format!("scalar({rest}"),
            None => "scalar()".into(),
        },
        None => value.into(),
    }
}

fn words(name: &str, number: &Scalar) -> String {
    if let Some(value) = number.constant() {
        return Signed(value as i64).to_string();
    }
    let mut words = format!("{name}(");
    number.describe(&mut words);
    words + ")"
}

type Numbers = [Scalar; 4];

fn at(register: u8) -> usize {
    usize::from(register) - 6
}

fn value(numbers: &Numbers, src: Operand) -> Scalar {
    match src {
        Operand::Reg(register) => numbers[at(register)],
        Operand::Imm(imm) => Scalar::known(i64::from(imm) as u64),
    }
}

/// Returns the facts after each instruction, and before the ends of branches: on one path or more.
fn follow(insns: &[Insn]) -> HashMap<usize, Vec<Numbers>> {
    let mut states: HashMap<usize, Vec<Numbers>> = HashMap::new();
    let mut paths = vec![(0, [Scalar::UNKNOWN; 4])];
    while let Some((index, mut numbers)) = paths.pop() {
        let mut next = Some(index + 1);
        match insns[index].op().expect("a good instruction") {
            Op::Alu { op, wide, dst, src } => {
                let right = value(&numbers, src);
                if matches!(op, Alu::And | Alu::Or)
                    && right.constant().is_some()
                    && let Some([clear, set]) = numbers[at(dst)].split()
                {
                    let mut other = numbers;
                    other[at(dst)] = clear;
                    // The log describes it before the instruction.
                    states.entry(index).or_default().push(other);
                    paths.push((index, other));
                    numbers[at(dst)] = set;
                }
                numbers[at(dst)] = numbers[at(dst)].alu(op, wide, right);
            }
            Op::Imm64 { dst, low, .. } => {
                let high = insns[index + 1].imm;
                numbers[at(dst)] = Scalar::known((high as u64) << 32 | u64::from(low as u32));
                next = Some(index + 2);
            }
            branch @ Op::Branch { off, .. } => {
                let end = index + 1 + off as usize;
                let (taken, not_taken) = both(branch, &numbers);
                if let Some(mut taken) = taken {
                    settle(&mut taken);
                    states.entry(end).or_default().push(taken);
                }
                match not_taken {
                    Some(not_taken) => numbers = not_taken,
                    None => continue,
                }
            }
            Op::Exit => continue,
            op => straight(op, &mut numbers),
        }
        settle(&mut numbers);
        states.entry(index).or_default().push(numbers);
        paths.extend(next.map(|next| (next, numbers)));
    }
    states
}

fn straight(op: Op, numbers: &mut Numbers) {
    match op {
        Op::Neg { wide, dst } => numbers[at(dst)] = numbers[at(dst)].neg(wide),
        Op::Swap { swap, dst, size } => numbers[at(dst)] = numbers[at(dst)].swap(swap, size),
        Op::Move {
            wide: false, dst, ..
        } => numbers[at(dst)] = numbers[at(dst)].zero_extended(),
        Op::MoveSigned {
            wide, dst, from, ..
        } => numbers[at(dst)] = numbers[at(dst)].sign_extended(from, wide),
        // Before the arithmetic begins.
        Op::Move { .. } | Op::CallHelper { .. } => {}
        other => panic!("{other:?}"),
    }
}

/// Returns the facts where the branch is taken, and where it is not; `None` if that is impossible.
fn both(branch: Op, numbers: &Numbers) -> (Option<Numbers>, Option<Numbers>) {
    let Op::Branch {
        cond,
        wide,
        dst,
        src,
        ..
    } = branch
    else {
        panic!("{branch:?}");
    };
    let comparison = Comparison { cond, wide };
    let right = value(numbers, src);
    let after = |holds| {
        let mut after = *numbers;
        if src == Operand::Reg(dst) {
            comparison.refine_same(holds, &mut after[at(dst)]);
            return Some(after);
        }
        let (mut left, mut right) = (numbers[at(dst)], right);
        comparison.refine(holds, &mut left, &mut right);
        after[at(dst)] = left;
        if let Operand::Reg(register) = src {
            after[at(register)] = right;
        }
        Some(after)
    };
    match comparison.decide(&numbers[at(dst)], &right) {
        Some(true) => (Some(*numbers), None),
        Some(false) => (None, Some(*numbers)),
        None => (after(true), after(false)),
    }
}

/// The kernel reports bounds that contradict each other, and forgets them.
fn settle(numbers: &mut Numbers) {
    for number in numbers {
        if number.contradiction().is_some() {
            number.forget_bounds();
        }
    }
}

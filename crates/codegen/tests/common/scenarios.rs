//! Programs that call functions, get called back, and tail call, each with its result on every
//! machine.
//!
//! Helpers: [`ONCE`] and [`TWICE`] call back, [`DIGITS`] shows its arguments. Each program has one
//! map of one value of 8 bytes: 100 for the first, 200 for the second. A tail call of index 1 leads
//! to the second program, any other to none. The context is the 8 bytes of the number 5.

use beeline_isa::{Insn, MAY_GOTO_LIMIT, imm64, opcode::*};
use beeline_uapi::HelperId;

use super::{EXIT, alu, alu_imm, branch, call, call_local, load, mov, mov_reg, store};

/// `r0 = callback(1, 2, 3, 4, 5)`
pub const ONCE: i32 = 200;
/// `r0 = callback(r1) * 1000 + callback(r1 + 1)`
pub const TWICE: i32 = 201;
/// `r0` = the digits r1 to r5; a million more if it is called with a misaligned stack or without a
/// run.
pub const DIGITS: i32 = 255;

const TAIL: i32 = HelperId::TAIL_CALL.0 as i32;

/// The programs to run, and their result.
pub struct Scenario {
    pub name: &'static str,
    pub programs: Vec<Vec<Insn>>,
    pub expected: u64,
}

/// Returns all scenarios.
pub fn scenarios() -> Vec<Scenario> {
    let mut all = vec![
        one(
            "a helper gets five arguments and the run",
            helper(),
            12_345 + 9,
        ),
        one("a callback gets five arguments", arguments(), 12_345),
        // f(0) = 5006 + 7, f(1) = 0 + 8
        one(
            "a callback has its own registers and stack and calls helpers",
            nested(),
            5013 * 1000 + 8 + 60,
        ),
        one("poison in a callback stops the helper", stopped(), 1 + 5),
        one("poison in main ends the program", poisoned(0), 0),
        one("poison ends the program from any depth", deep(1), 0),
        one("a function returns", deep(0), 1 + 70 + 60),
        one(
            "may_goto ends a loop",
            endless(),
            u64::from(MAY_GOTO_LIMIT) + 1,
        ),
        two(
            "a tail call takes the program's place",
            tail(1),
            second(),
            200 + 5 + 1000,
        ),
        two("a tail call to nowhere goes on", tail(2), second(), 6),
        two(
            "a callback may make a tail call",
            tail_in_callback(),
            second(),
            1205 + 100,
        ),
    ];
    for poison in [false, true] {
        let with = |index| tail_in_function(index, poison);
        // Machine flags left behind by the next program do not end this one.
        let carry = vec![mov(0, -1), mov(2, 1), alu_imm(ADD, 0, 1), EXIT];
        all.extend([
            two(
                "a tail call in a function returns",
                with(1),
                second(),
                1205 + 7 + 3000 + 100,
            ),
            two(
                "to nowhere in a function",
                with(2),
                second(),
                9 + 7 + 3000 + 100,
            ),
            two("flags behind a tail call", with(1), carry, 7 + 3000 + 100),
            two(
                "poison behind a tail call",
                with(1),
                poisoned(5),
                7 + 3000 + 100,
            ),
        ]);
    }
    all
}

fn one(name: &'static str, program: Vec<Insn>, expected: u64) -> Scenario {
    two(name, program.clone(), program, expected)
}

fn two(name: &'static str, first: Vec<Insn>, second: Vec<Insn>, expected: u64) -> Scenario {
    let programs = vec![first, second];
    Scenario {
        name,
        programs,
        expected,
    }
}

/// `r0 = helper(r1, f)`, `f` being the function at slot `at`; these take the slots from `here` on.
pub fn call_with_function(here: i32, at: i32, helper: i32) -> Vec<Insn> {
    let [low, high] = imm64(2, PSEUDO_FUNC, (at - here - 1) as u32 as u64);
    vec![low, high, call(helper)]
}

fn helper() -> Vec<Insn> {
    let mut insns = vec![mov(6, 9)];
    insns.extend((1..=5).map(|register| mov(register, register.into())));
    insns.extend([call(DIGITS), alu(ADD, 0, 6), EXIT]);
    insns
}

fn arguments() -> Vec<Insn> {
    let mut insns = call_with_function(0, 4, ONCE);
    insns.push(EXIT);
    // r0 = the digits r1 to r5
    insns.push(mov_reg(0, 1));
    for register in 2..=5 {
        insns.extend([alu_imm(MUL, 0, 10), alu(ADD, 0, register)]);
    }
    insns.push(EXIT);
    insns
}

fn nested() -> Vec<Insn> {
    let mut insns = vec![mov(6, 60), mov(1, 0), store(10, -8, 6)];
    insns.extend(call_with_function(3, 9, TWICE));
    insns.extend([load(1, 10, -8), alu(ADD, 0, 1), EXIT]);
    // f(r1): r6 = 7 + r1, in a slot of its own, and r0 = twice(5, g) if r1 is 0; r0 + r6
    insns.extend([
        mov_reg(6, 1),
        alu_imm(ADD, 6, 7),
        store(10, -8, 6),
        mov(0, 0),
    ]);
    insns.extend([branch(JNE, 1, 0, 4), mov(1, 5)]);
    insns.extend(call_with_function(15, 21, TWICE));
    insns.extend([load(1, 10, -8), alu(ADD, 0, 1), EXIT]);
    // g(r1) = r1
    insns.extend([mov_reg(0, 1), EXIT]);
    insns
}

fn stopped() -> Vec<Insn> {
    let mut insns = vec![mov(1, 3)];
    insns.extend(call_with_function(1, 6, TWICE));
    insns.extend([alu_imm(ADD, 0, 5), EXIT]);
    insns.extend([mov(0, 0), branch(JNE, 1, 4, 1), call(POISON_CORE), EXIT]);
    insns
}

fn poisoned(before: i32) -> Vec<Insn> {
    vec![mov(0, before), call(POISON_CORE), mov(0, 6), EXIT]
}

/// main calls f, f calls g, and g ends all of it if r1 is 1.
fn deep(r1: i32) -> Vec<Insn> {
    let main = [mov(6, 60), mov(1, r1), call_local(2), alu(ADD, 0, 6), EXIT];
    let f = [mov(7, 70), call_local(2), alu(ADD, 0, 7), EXIT];
    let g = [mov(0, 1), branch(JNE, 1, 1, 1), call(POISON_CORE), EXIT];
    [&main[..], &f, &g].concat()
}

/// Counts in r0, and on the stack, until `may_goto` ends the loop.
fn endless() -> Vec<Insn> {
    let jump = |code, off| branch(code, 0, 0, off);
    let mut insns = vec![mov(0, 0), store(10, -8, 0)];
    insns.extend([load(0, 10, -8), alu_imm(ADD, 0, 1), store(10, -8, 0)]);
    insns.extend([jump(JCOND, 1), jump(JA, -5), EXIT]);
    insns
}

/// `dst` = the number in the program's map
fn number(dst: u8) -> [Insn; 3] {
    let [low, high] = imm64(dst, PSEUDO_MAP_VALUE, 0);
    [low, high, load(dst, dst, 0)]
}

/// `r0 = number + *r1 + 1000`
fn second() -> Vec<Insn> {
    let mut insns = number(0).to_vec();
    insns.extend([load(2, 1, 0), alu(ADD, 0, 2), alu_imm(ADD, 0, 1000), EXIT]);
    insns
}

fn tail(index: i32) -> Vec<Insn> {
    let mut insns = vec![mov(6, 6), store(10, -16, 6), mov(1, 0), mov(3, index)];
    insns.extend([call(TAIL), mov_reg(0, 6), EXIT]);
    insns
}

/// Main: `r6 = 7; r0 = f(); r0 += r6 + *(r10 - 8) + number`; f makes the tail call.
fn tail_in_function(index: i32, poison: bool) -> Vec<Insn> {
    let mut insns = vec![mov(6, 7), mov(1, 3000), store(10, -8, 1), call_local(8)];
    insns.extend([alu(ADD, 0, 6), load(1, 10, -8), alu(ADD, 0, 1)]);
    insns.extend(number(1));
    insns.extend([alu(ADD, 0, 1), EXIT]);
    // f has registers and a stack of its own, which are poisoned to be safe.
    insns.extend([mov(6, 1), mov(8, 2), store(10, -8, 6), mov(3, index)]);
    insns.extend([call(TAIL), mov(0, 9)]);
    if poison {
        insns.extend([branch(JEQ, 6, 1, 1), call(POISON_CORE)]);
    }
    insns.push(EXIT);
    insns
}

fn tail_in_callback() -> Vec<Insn> {
    let mut insns = call_with_function(0, 8, ONCE);
    insns.extend(number(1));
    insns.extend([alu(ADD, 0, 1), EXIT]);
    insns.extend([mov(3, 1), call(TAIL), mov(0, 9), EXIT]);
    insns
}

//! Random programs that the kernel's verifier accepts and that always end.
//!
//! A function is a row of *units*. Before and after each of them every register but r10 holds a
//! number. So branches can lead from any unit to any later one, and a unit's use of pointers in
//! between affects no other unit.

use beeline_isa::opcode::*;
use beeline_isa::{Insn, imm64};
use beeline_uapi::HelperId;

use crate::asm::{
    EXIT, NOTHING, alu, alu_imm, branch, call, call_local, load, load_sized, may_goto, mov,
    mov_reg, store,
};
use crate::random::Random;
use crate::units::{self, COUNTER, GIVEN, SLOTS};
use crate::world;

/// `BPF_FUNC_loop`.
const LOOP: i32 = HelperId::LOOP.0.cast_signed();
/// `BPF_FUNC_for_each_map_elem`.
const FOR_EACH_MAP_ELEM: i32 = HelperId::FOR_EACH_MAP_ELEM.0.cast_signed();
/// `BPF_FUNC_tail_call`.
const TAIL_CALL: i32 = HelperId::TAIL_CALL.0.cast_signed();

/// The features of a program besides arithmetic and calls of its functions.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Style {
    Plain,
    /// Functions may be callbacks of `bpf_loop`.
    Loops,
    /// Every function may tail call one of so many programs in the program array with this
    /// descriptor.
    TailCalls {
        programs: u64,
        array: i32,
    },
    /// Everything in [`world`], and loops, also with `may_goto`.
    World {
        may_goto: bool,
    },
}

impl Style {
    /// Returns whether every function gets the context.
    fn hands_on(self) -> bool {
        matches!(self, Self::TailCalls { .. } | Self::World { .. })
    }

    fn is_world(self) -> bool {
        matches!(self, Self::World { .. })
    }

    fn random_role(self, random: &mut Random) -> Role {
        match self {
            Self::Loops if !random.once_in(3) => Role::Callback,
            Self::World { .. } => random.pick(&[Role::Called, Role::Callback, Role::EachElement]),
            _ => Role::Called,
        }
    }
}

/// The way a function is called.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Program,
    Called,
    /// By `bpf_loop`: its second argument leads to 8 bytes that it changes.
    Callback,
    /// By `bpf_for_each_map_elem`: its fourth argument leads to 8 bytes that it changes.
    EachElement,
}

impl Role {
    fn is_callback(self) -> bool {
        matches!(self, Self::Callback | Self::EachElement)
    }
}

/// Returns a program of about `length` random operations, seeded; its r0 depends on all its
/// registers and stack slots.
pub fn program(seed: u64, length: usize) -> Vec<Insn> {
    generate(seed, length, Style::Plain)
}

/// Does the same as [`program`], with callbacks.
pub fn looping(seed: u64, length: usize) -> Vec<Insn> {
    generate(seed, length, Style::Loops)
}

/// Does the same as [`program`], with tail calls of one of so many programs (and some more that do
/// not exist).
pub fn tail_calling(seed: u64, length: usize, programs: u64, array: i32) -> Vec<Insn> {
    generate(seed, length, Style::TailCalls { programs, array })
}

/// Returns a program that uses everything in the [`world`], with r1 leading to its context.
pub fn worldly(seed: u64, length: usize) -> Vec<Insn> {
    generate(seed, length, Style::World { may_goto: false })
}

/// Does the same as [`worldly`], with `may_goto`, and not for the kernel: there Linux 6.18's
/// verifier may follow a bad pointer (`__mark_chain_precision`), and brings the machine down.
pub fn worldly_with_may_goto(seed: u64, length: usize) -> Vec<Insn> {
    generate(seed, length, Style::World { may_goto: true })
}

fn generate(seed: u64, length: usize, style: Style) -> Vec<Insn> {
    let mut random = Random::new(seed);
    let mut roles = vec![Role::Program];
    let most = if style.is_world() { 4 } else { 3 };
    for _ in 0..random.below(most) {
        roles.push(style.random_role(&mut random));
    }
    let functions = (0..roles.len())
        .map(|number| function(&mut random, style, &roles, number, length))
        .collect();
    link(functions)
}

/// Joins functions; until then the immediate of a call or a function's address is the callee's
/// number.
fn link(functions: Vec<Vec<Insn>>) -> Vec<Insn> {
    let mut starts = vec![0];
    for function in &functions {
        starts.push(starts[starts.len() - 1] + function.len());
    }
    let mut insns = functions.concat();
    for (index, insn) in insns.iter_mut().enumerate() {
        let names_function = match insn.code {
            LD_IMM64 => insn.src == PSEUDO_FUNC,
            code => code == JMP | CALL && insn.src == PSEUDO_CALL,
        };
        if names_function {
            insn.imm = starts[insn.imm as usize] as i32 - index as i32 - 1;
        }
    }
    insns
}

fn function(
    random: &mut Random,
    style: Style,
    roles: &[Role],
    number: usize,
    length: usize,
) -> Vec<Insn> {
    let role = roles[number];
    // A callback gets something else, and has nothing else to hand on.
    let has_context = !roles[..=number].iter().any(|role| role.is_callback());
    let mut units = first_values(random, role, style.hands_on());
    let start = units.len();
    // Every later function is called from the one before it, so that all are reachable.
    let mut next = roles.get(number + 1).copied();
    for _ in 0..length {
        units.push(match next {
            Some(role) if random.once_in(4) => {
                next = None;
                call_next(random, role, number + 1, style.hands_on())
            }
            _ if style.is_world() && random.once_in(12) => repeated(random, style, has_context),
            _ => operation(random, style, has_context),
        });
    }
    if let Some(role) = next {
        units.push(call_next(random, role, number + 1, style.hands_on()));
    }
    if let Style::TailCalls { programs, array } = style
        && !random.once_in(3)
    {
        let place = start + random.below((units.len() - start + 1) as u64) as usize;
        units.insert(place, call_tail(random, programs, array));
    }
    add_branches(random, &mut units, start);
    units.push(if role.is_callback() { report() } else { fold() });
    units.concat()
}

/// Begins a function: puts a number into every register that has none yet, and into every slot of
/// the stack.
fn first_values(random: &mut Random, role: Role, hands_on: bool) -> Vec<Vec<Insn>> {
    let mut units: Vec<Vec<Insn>> = Vec::new();
    match role {
        Role::Callback => units.push(vec![store(10, GIVEN, 2), load(5, 2, 0)]),
        Role::EachElement => units.push(vec![
            store(10, GIVEN, 4),
            load_sized(MEM | W, 1, 2, 0),
            load(5, 3, 0),
            alu(ADD, 1, 5),
            store(3, 0, 1),
        ]),
        _ if hands_on => units.push(vec![store(10, GIVEN, 1)]),
        _ => {}
    }
    let has_arguments = |register| match role {
        Role::Program => false,
        Role::Called => matches!(register, 1..=5) && !(register == 1 && hands_on),
        Role::Callback | Role::EachElement => matches!(register, 1 | 5),
    };
    for register in (0..10).filter(|register| !has_arguments(*register)) {
        units.push(imm64(register, 0, random.number()).to_vec());
    }
    for slot in 1..=SLOTS {
        units.push(vec![store(10, -8 * slot as i16, random.below(10) as u8)]);
    }
    units
}

fn operation(random: &mut Random, style: Style, has_context: bool) -> Vec<Insn> {
    if !style.is_world() || !random.once_in(3) {
        return units::scalar(random);
    }
    // In a callback the kernel's verifier would go through all turns in each of the callback's.
    let may_copy = has_context || style == (Style::World { may_goto: true });
    if may_copy && random.once_in(12) {
        return units::copied(random);
    }
    if has_context && random.once_in(6) {
        return units::context(random);
    }
    units::worldly(random)
}

/// Repeats a few operations up to five times, counted on the stack; some loops could end before,
/// but do not.
fn repeated(random: &mut Random, style: Style, has_context: bool) -> Vec<Insn> {
    let mut body: Vec<Vec<Insn>> = (0..1 + random.below(4))
        .map(|_| operation(random, style, has_context))
        .collect();
    add_branches(random, &mut body, 0);
    let body = body.concat();
    let counter = random.below(10) as u8;
    let mut unit = vec![
        mov(counter, 1 + random.below(5) as i32),
        store(10, COUNTER, counter),
    ];
    let first = unit.len();
    if style == (Style::World { may_goto: true }) && !random.once_in(3) {
        unit.push(may_goto(body.len() as i16 + 4));
    }
    unit.extend(&body);
    unit.extend([
        load(counter, 10, COUNTER),
        alu_imm(SUB, counter, 1),
        store(10, COUNTER, counter),
    ]);
    unit.push(branch(
        JNE,
        counter,
        0,
        (first as i16) - unit.len() as i16 - 1,
    ));
    unit
}

/// Calls a function, directly or as a callback.
fn call_next(random: &mut Random, role: Role, function: usize, hands_on: bool) -> Vec<Insn> {
    let mut unit = Vec::new();
    let slot = -8 * (1 + random.below(SLOTS) as i32);
    match role {
        Role::Program | Role::Called => {
            if hands_on {
                unit.push(load(1, 10, GIVEN));
            }
            unit.push(call_local(function as i32));
        }
        Role::Callback => {
            // At least once: Linux 6.18 fails on a callback that it knows to be never called.
            unit.push(mov(1, 1 + random.below(5) as i32));
            unit.extend(imm64(2, PSEUDO_FUNC, function as u64));
            unit.extend([mov_reg(3, 10), alu_imm(ADD, 3, slot), mov(4, 0), call(LOOP)]);
        }
        Role::EachElement => {
            let map = random.pick(&[world::ARRAY, world::WORDS, world::PERCPU_ARRAY]);
            unit.extend(imm64(1, PSEUDO_MAP_FD, map as u64));
            unit.extend(imm64(2, PSEUDO_FUNC, function as u64));
            unit.extend([mov_reg(3, 10), alu_imm(ADD, 3, slot), mov(4, 0)]);
            unit.push(call(FOR_EACH_MAP_ELEM));
        }
    }
    give_values(random, &mut unit, 1);
    unit
}

fn call_tail(random: &mut Random, programs: u64, array: i32) -> Vec<Insn> {
    let mut unit = vec![load(1, 10, GIVEN)];
    unit.extend(imm64(2, PSEUDO_MAP_FD, array as u64));
    unit.extend([mov(3, random.below(programs + 1) as i32), call(TAIL_CALL)]);
    give_values(random, &mut unit, 0);
    unit
}

/// Gives new values to the registers that a call destroys, from the given first one on.
fn give_values(random: &mut Random, unit: &mut Vec<Insn>, first: u8) {
    for register in first..=5 {
        unit.extend(imm64(register, 0, random.number()));
    }
}

/// Puts forward branches before some units, over up to four units each, with some in the long form.
fn add_branches(random: &mut Random, units: &mut [Vec<Insn>], start: usize) {
    // From the end, so that the code to jump over already has its own branches.
    for index in (start..units.len()).rev() {
        if !random.once_in(4) {
            continue;
        }
        let over = random.below(4) as usize;
        let skipped: usize = units.iter().skip(index).take(over + 1).map(Vec::len).sum();
        if random.once_in(8) {
            let long = Insn {
                code: JMP32 | JA,
                imm: skipped as i32,
                ..NOTHING
            };
            let unit = [condition(random, 1), long];
            units[index].splice(0..0, unit);
        } else {
            let branch = condition(random, skipped as i16);
            units[index].insert(0, branch);
        }
    }
}

/// Returns a branch on any condition.
fn condition(random: &mut Random, off: i16) -> Insn {
    let cond = random.pick(&[JEQ, JNE, JGT, JGE, JLT, JLE, JSGT, JSGE, JSLT, JSLE, JSET]);
    let (class, dst) = (random.pick(&[JMP, JMP32]), random.below(10) as u8);
    let (source, src, imm) = if random.once_in(2) {
        (X, random.below(10) as u8, 0)
    } else {
        (K, 0, random.number() as i32)
    };
    Insn {
        code: class | source | cond,
        dst,
        src,
        off,
        imm,
    }
}

/// Ends with `r0 = fold of all`, to 32 bits, which the kernel's test run returns; and exit.
fn fold() -> Vec<Insn> {
    let mut insns = Vec::new();
    let mix = |insns: &mut Vec<Insn>, register| {
        insns.extend([alu_imm(MUL, 0, 31), alu(XOR, 0, register)])
    };
    for register in 1..10 {
        mix(&mut insns, register);
    }
    for slot in 1..=SLOTS {
        insns.push(load(1, 10, -8 * slot as i16));
        mix(&mut insns, 1);
    }
    insns.extend([mov_reg(1, 0), alu_imm(RSH, 1, 32), alu(XOR, 0, 1), EXIT]);
    insns
}

/// Ends a callback: mixes the result of [`fold`] into its 8 bytes, and stops the loop in some
/// turns.
fn report() -> Vec<Insn> {
    let mut insns = fold();
    insns.pop();
    insns.extend([
        load(2, 10, GIVEN),
        load(1, 2, 0),
        alu_imm(MUL, 1, 31),
        alu(XOR, 1, 0),
        store(2, 0, 1),
        alu_imm(AND, 0, 7),
        branch(JEQ, 0, 0, 2),
        mov(0, 0),
        EXIT,
        mov(0, 1),
        EXIT,
    ]);
    insns
}

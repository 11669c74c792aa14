//! Generated programs: partly known numbers, pointers moved by them, and accesses through these.
//! About a third of the programs break a rule.

#[path = "invent/memory.rs"]
mod memory;

use beeline_fuzz::Random;
use beeline_fuzz::asm::{
    self, EXIT, alu_imm, atomic, branch, call_local, load_sized, mov, mov_reg, store, store_imm,
    store_sized,
};
use beeline_fuzz::world::GLOBALS;
use beeline_isa::opcode::*;
use beeline_isa::{Insn, imm64};
use beeline_uapi::flags::{SLEEPABLE, STRICT_ALIGNMENT, TEST_STATE_FREQ};
use beeline_uapi::{HelperId, ProgramType};
use beeline_verifier::program::Kind;

use crate::case::Case;
use crate::worldly::world;

/// The stack slot that keeps the context.
const CONTEXT: u8 = 9;
/// A pointer to an existing map value, or something else in a program that took another path.
const VALUE: u8 = 8;
/// Registers for numbers.
const NUMBERS: [u8; 4] = [0, 5, 6, 7];
/// Slots of the stack, of 8 bytes, that are used.
const SLOTS: u64 = 5;

/// A program type, the bytes of its context, and the offsets of the packet's begin and end in it.
pub type ContextOf = (ProgramType, u64, Option<(i16, i16)>);

/// The types to generate.
pub const KINDS: [ContextOf; 8] = [
    (ProgramType::SOCKET_FILTER, 192, None),
    (ProgramType::XDP, 24, Some((0, 4))),
    (ProgramType::SCHED_CLS, 192, Some((76, 80))),
    (ProgramType::SYSCALL, 64, None),
    (ProgramType::TRACEPOINT, 64, None),
    (ProgramType::KPROBE, 168, None),
    (ProgramType::LWT_XMIT, 192, Some((76, 80))),
    (ProgramType::SK_MSG, 80, None),
];

/// Makes a unit of a kind that is not made here.
pub type Extra = fn(&mut Random) -> Vec<Insn>;

/// Returns a program.
pub fn invent(random: &mut Random) -> Case {
    invent_with(random, None)
}

/// Returns a program with other units as well: they leave numbers in r0 and r5 to r7, and use r1 to
/// r4 and the stack beyond the slots.
pub fn invent_with(random: &mut Random, extra: Option<Extra>) -> Case {
    let (prog_type, context_bytes, packet) = random.pick(&KINDS);
    let care = match extra {
        None => random.pick(&[3, 20, 60, 200]),
        Some(_) => random.pick(&[20, 60, 200, 1000]),
    };
    let mut inventor = Inventor {
        random,
        care,
        context_bytes,
        packet,
        sleepable: prog_type == ProgramType::SYSCALL,
        extra,
    };
    let mut insns = inventor.function(true, 0);
    // Functions that nothing calls are refused; so is a call to no function.
    let calls: Vec<usize> = (0..insns.len())
        .filter(|&at| insns[at].code == JMP | CALL && insns[at].src == PSEUDO_CALL)
        .collect();
    if !calls.is_empty() {
        let start = insns.len();
        for at in calls {
            insns[at].imm = (start - at - 1) as i32;
        }
        insns.extend(inventor.function(false, 1));
    }
    let mut flags = if inventor.sleepable { SLEEPABLE } else { 0 };
    for flag in [STRICT_ALIGNMENT, TEST_STATE_FREQ] {
        if inventor.random.once_in(20) {
            flags |= flag;
        }
    }
    Case {
        kind: Kind {
            prog_type,
            flags,
            ..Kind::default()
        },
        insns,
        maps: world(),
    }
}

struct Inventor<'a> {
    random: &'a mut Random,
    /// A rule is broken once in so many times.
    care: u64,
    context_bytes: u64,
    packet: Option<(i16, i16)>,
    sleepable: bool,
    extra: Option<Extra>,
}

impl Inventor<'_> {
    fn function(&mut self, main: bool, depth: u32) -> Vec<Insn> {
        let mut units = vec![self.beginning(main)];
        let count = 2 + self.random.below(10);
        let mut loops = 1;
        for _ in 0..count {
            if let Some(extra) = self.extra
                && self.random.once_in(2)
            {
                units.push(extra(self.random));
                continue;
            }
            let unit = match self.random.below(24) {
                0..=5 => vec![self.arithmetic()],
                6..=7 => vec![self.stack_slot()],
                8 => vec![self.odd_slot()],
                9..=11 => self.value_access(),
                12 => self.stack_access(),
                13..=14 => self.packet_access(),
                15 => self.look_up(),
                16 => self.helper(),
                17 => self.narrowed(),
                18 => self.linked(),
                19 => vec![self.context_access()],
                20 if depth == 0 => self.local_call(),
                21 if loops > 0 => {
                    loops -= 1;
                    self.counted()
                }
                22 => self.spilled_pointer(),
                23 => self.record(),
                _ => self.number(),
            };
            units.push(unit);
        }
        let mut end = Vec::new();
        if !self.random.once_in(4) {
            end.push(mov(0, self.random.below(3) as i32));
        }
        end.push(EXIT);
        units.push(end);
        self.branches(&mut units);
        units.concat()
    }

    /// Gives values to everything that all units use.
    fn beginning(&mut self, main: bool) -> Vec<Insn> {
        let mut unit = vec![mov_reg(CONTEXT, 1)];
        if main || self.random.once_in(2) {
            unit.extend(self.map_value(VALUE, GLOBALS, 0));
        } else {
            unit.push(mov_reg(VALUE, 2));
        }
        for register in [6, 7, 5, 0] {
            unit.push(self.unknown(register));
        }
        for slot in 1..=SLOTS {
            let register = self.random.pick(&NUMBERS);
            if !self.breaks() {
                unit.push(store(10, -8 * slot as i16, register));
            }
        }
        unit
    }

    fn breaks(&mut self) -> bool {
        self.random.once_in(self.care)
    }

    fn register(&mut self) -> u8 {
        self.random.pick(&NUMBERS)
    }

    fn size(&mut self) -> (u8, u64) {
        self.random.pick(&[(B, 1), (H, 2), (W, 4), (DW, 8)])
    }

    /// Loads an unknown number of some size.
    fn unknown(&mut self, register: u8) -> Insn {
        let (size, width) = self.size();
        let off = self.random.below(8) * width;
        let mode = if size != DW && self.random.once_in(3) {
            MEMSX
        } else {
            MEM
        };
        match self.random.below(4) {
            0 => mov(register, self.random.number() as i32),
            _ => load_sized(mode | size, register, VALUE, off as i16),
        }
    }

    fn number(&mut self) -> Vec<Insn> {
        let register = self.register();
        match self.random.below(4) {
            0 => imm64(register, 0, self.random.number()).to_vec(),
            _ => vec![self.unknown(register)],
        }
    }

    fn small(&mut self) -> i32 {
        match self.random.below(6) {
            0 => self.random.number() as i32,
            1 => -(self.random.below(70) as i32),
            2 => 1 << self.random.below(31),
            3 => (1_u64 << self.random.below(32)).wrapping_sub(1) as i32,
            _ => self.random.below(70) as i32,
        }
    }

    fn arithmetic(&mut self) -> Insn {
        const OPS: [u8; 10] = [ADD, SUB, MUL, OR, AND, XOR, LSH, RSH, ARSH, MOV];
        let class = self.random.pick(&[ALU, ALU64]);
        let (dst, src) = (self.register(), self.register());
        let bits = if class == ALU64 { 64 } else { 32 };
        let op = self.random.pick(&OPS);
        let plain = |code, src, off, imm| Insn {
            code: class | code,
            dst,
            src,
            off,
            imm,
        };
        match self.random.below(8) {
            0..=2 => plain(X | op, src, 0, 0),
            3..=5 if matches!(op, LSH | RSH | ARSH) => {
                plain(K | op, 0, 0, self.random.below(bits) as i32)
            }
            3..=5 => plain(K | op, 0, 0, self.small()),
            6 => match self.random.below(4) {
                0 => plain(NEG, 0, 0, 0),
                1 => plain(X | MOV, src, self.random.pick(&[8, 16]), 0),
                2 if class == ALU64 => plain(X | MOV, src, 32, 0),
                _ => plain(END, 0, 0, self.random.pick(&[16, 32, 64])),
            },
            _ => {
                let (op, off) = (self.random.pick(&[DIV, MOD]), self.random.pick(&[0, 1]));
                if self.random.once_in(2) {
                    plain(X | op, src, off, 0)
                } else {
                    plain(K | op, 0, off, self.small() | 1)
                }
            }
        }
    }

    /// Spills a register or fills it again, whole or in part.
    fn stack_slot(&mut self) -> Insn {
        let (size, width) = if self.random.once_in(2) {
            (DW, 8)
        } else {
            self.size()
        };
        let off = -8 * (1 + self.random.below(SLOTS) as i16)
            + (self.random.below(8 / width) * width) as i16 * i16::from(self.random.once_in(3));
        let register = self.register();
        match self.random.below(6) {
            0 => store_imm(size, 10, off, self.small()),
            1 | 2 => store_sized(size, 10, off, register),
            3 if size != DW => load_sized(MEMSX | size, register, 10, off),
            _ => load_sized(MEM | size, register, 10, off),
        }
    }

    /// Makes atomic and unaligned accesses.
    fn odd_slot(&mut self) -> Insn {
        let off = -(self.random.below(8 * SLOTS + 9) as i16);
        let (size, _) = self.size();
        let register = self.register();
        let base = if self.breaks() { 10 } else { VALUE };
        let off = if base == 10 { off } else { -off };
        let plain: i32 = self.random.pick(&[ADD, OR, AND, XOR]).into();
        let op = self.random.pick(&[plain, plain | FETCH, XCHG, CMPXCHG]);
        match self.random.below(6) {
            0 => load_sized(MEM | size, register, base, off),
            1 => store_sized(size, base, off, register),
            2 => atomic(size, register, off & !7, base, LOAD_ACQ),
            3 => atomic(size, base, off & !7, register, STORE_REL),
            _ => atomic(self.random.pick(&[W, DW]), base, off & !7, register, op),
        }
    }

    /// Bounds a number, mostly.
    fn bounded(&mut self, register: u8, most: i32) -> Vec<Insn> {
        let over = if self.breaks() {
            self.random.pick(&[1, 2, 8])
        } else {
            0
        };
        let most = most + over;
        let way = if self.breaks() {
            5
        } else {
            self.random.pick(&[0, 1, 2, 3, 4, 6])
        };
        match way {
            0 => vec![alu_imm(AND, register, most)],
            1 => vec![branch(JLT, register, most + 1, 1), mov(register, most)],
            2 => vec![
                branch(JSGT, register, most, 1),
                branch(JSGE, register, 0, 1),
                mov(register, most),
            ],
            3 => vec![alu_imm(MOD, register, most + 1)],
            4 => {
                let mut compare = branch(JLE, register, most, 1);
                compare.code = compare.code & !CLASS_MASK | JMP32;
                let low = Insn {
                    code: ALU | X | MOV,
                    ..mov_reg(register, register)
                };
                vec![compare, mov(register, 0), low]
            }
            5 => vec![],
            _ => vec![branch(JLE, register, most, 1), EXIT],
        }
    }

    /// Compares two numbers, or one with a constant, and continues on one path only.
    fn narrowed(&mut self) -> Vec<Insn> {
        let condition = self.condition(1);
        vec![condition, EXIT]
    }

    fn condition(&mut self, off: i16) -> Insn {
        const CONDITIONS: [u8; 11] = [JEQ, JNE, JGT, JGE, JLT, JLE, JSGT, JSGE, JSLT, JSLE, JSET];
        let class = self.random.pick(&[JMP, JMP32]);
        let condition = self.random.pick(&CONDITIONS);
        let by_register = self.random.once_in(3);
        Insn {
            code: class | condition | if by_register { X } else { K },
            dst: self.register(),
            src: if by_register { self.register() } else { 0 },
            off,
            imm: if by_register { 0 } else { self.small() },
        }
    }

    /// Facts about a number also apply to its copies.
    fn linked(&mut self) -> Vec<Insn> {
        let (from, to) = (self.random.pick(&[6, 7]), self.random.pick(&[5, 0]));
        let mut unit = vec![mov_reg(to, from)];
        match self.random.below(4) {
            0 => unit.push(alu_imm(ADD, to, self.random.below(16) as i32 - 8)),
            1 => unit.push(store(10, -8, to)),
            2 => unit[0].code = ALU | X | MOV,
            _ => {}
        }
        let known = self.random.pick(&[from, to]);
        unit.extend(self.bounded(known, 15));
        unit.push(mov_reg(1, VALUE));
        let index = self.random.pick(&[from, to]);
        unit.extend(self.moved(1, index));
        unit
    }

    fn local_call(&mut self) -> Vec<Insn> {
        let second = self.random.pick(&[VALUE, 10, 6]);
        let mut unit = vec![mov_reg(1, CONTEXT), mov_reg(2, second)];
        if second == 10 {
            unit.push(alu_imm(ADD, 2, -8 * (1 + self.random.below(SLOTS) as i32)));
        }
        for register in 3..=5 {
            unit.push(mov_reg(register, 6));
        }
        unit.push(call_local(0));
        unit.push(mov(5, 1));
        unit
    }

    /// Repeats a few operations.
    fn counted(&mut self) -> Vec<Insn> {
        let counter = 4;
        let mut body = Vec::new();
        for _ in 0..1 + self.random.below(3) {
            match self.random.below(4) {
                0 => body.push(self.stack_slot()),
                1 => body.extend(self.value_access()),
                2 => body.push(self.condition(1)),
                _ => body.push(self.arithmetic()),
            }
        }
        if matches!(body.last(), Some(last) if last.code & CLASS_MASK == JMP) {
            body.push(mov(0, 1));
        }
        let back = -(body.len() as i16) - 2;
        let mut unit = vec![mov(counter, 0)];
        match self.random.below(40) {
            // `may_goto` out of it.
            0..10 => {
                unit.push(Insn {
                    code: JMP | JCOND,
                    dst: 0,
                    src: 0,
                    off: body.len() as i16 + 1,
                    imm: 0,
                });
                unit.extend(body);
                unit.push(Insn {
                    code: JMP | JA,
                    dst: 0,
                    src: 0,
                    off: back,
                    imm: 0,
                });
            }
            // That may well have no end, which takes long to find.
            10 => {
                unit.extend(body);
                unit.push(alu_imm(ADD, counter, 1));
                unit.push(self.condition(back));
            }
            _ => {
                unit.extend(body);
                unit.push(alu_imm(ADD, counter, 1));
                let op = self.random.pick(&[JLT, JSLT, JNE, JLE]);
                unit.push(branch(op, counter, 1 + self.random.below(8) as i32, back));
            }
        }
        unit
    }

    /// Puts branches before some units, over some of the next.
    fn branches(&mut self, units: &mut [Vec<Insn>]) {
        for index in (1..units.len()).rev() {
            if !self.random.once_in(4) {
                continue;
            }
            let over = self.random.below(4) as usize;
            let skipped: usize = units.iter().skip(index).take(over + 1).map(Vec::len).sum();
            let last = index + over + 1 >= units.len();
            let off = if last { skipped - 1 } else { skipped };
            let branch = self.condition(off as i16);
            units[index].insert(0, branch);
        }
    }
}

/// Calls a helper.
pub fn helper(id: HelperId) -> Insn {
    asm::call(id.0 as i32)
}

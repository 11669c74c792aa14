//! Memory through pointers: map values, the context, ring-buffer records, the stack at variable
//! offsets.

use beeline_isa::opcode::*;
use beeline_isa::{Insn, imm64};
use beeline_uapi::HelperId;

use super::scalar::atomic_op;
use super::{KEY, SLOTS, VALUE, renew, renew_from};
use crate::asm::{
    alu, alu_imm, atomic, branch, call, load, load_sized, mov, mov_reg, store, store_imm,
    store_sized,
};
use crate::random::Random;
use crate::units::GIVEN;
use crate::world::{
    ARRAY, CONSTANTS, CONTEXT_BYTES, GLOBALS, HASH, MAPS, PERCPU_ARRAY, PERCPU_HASH, RING, WORDS,
};

const MAP_LOOKUP_ELEM: i32 = HelperId::MAP_LOOKUP_ELEM.0.cast_signed();
const MAP_LOOKUP_PERCPU_ELEM: i32 = HelperId::MAP_LOOKUP_PERCPU_ELEM.0.cast_signed();
const RINGBUF_RESERVE: i32 = HelperId::RINGBUF_RESERVE.0.cast_signed();
const RINGBUF_SUBMIT: i32 = HelperId::RINGBUF_SUBMIT.0.cast_signed();
const RINGBUF_DISCARD: i32 = HelperId::RINGBUF_DISCARD.0.cast_signed();

/// The maps with keys whose elements can be used.
pub const KEYED: [usize; 5] = [ARRAY, WORDS, PERCPU_ARRAY, HASH, PERCPU_HASH];

/// The permitted accesses to memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum May {
    /// Reads.
    Read,
    /// Reads, and writes at constant, aligned offsets only: a context.
    WriteInPlace,
    /// Reads and writes anywhere, also atomically.
    Share,
}

/// Looks an element up and uses its value, if it is there.
pub fn look_up(random: &mut Random) -> Vec<Insn> {
    let map = random.pick(&KEYED);
    let mut unit = key(random, map);
    unit.extend(imm64(1, PSEUDO_MAP_FD, map as u64));
    unit.extend(stack_address(2, KEY));
    if matches!(map, PERCPU_ARRAY | PERCPU_HASH) && random.once_in(3) {
        // The last of them is no CPU's.
        unit.push(mov(3, random.pick(&[0, 0, 1, i32::MAX])));
        unit.push(call(MAP_LOOKUP_PERCPU_ELEM));
    } else {
        unit.push(call(MAP_LOOKUP_ELEM));
    }
    let mut body = vec![mov_reg(1, 0)];
    renew(random, &mut body, 0);
    accesses(random, &mut body, MAPS[map].value as u64, May::Share);
    unless_null(random, &mut unit, body);
    unit
}

/// Uses the memory of an array by its address.
pub fn global(random: &mut Random) -> Vec<Insn> {
    let bytes = u64::from(MAPS[GLOBALS].value);
    let offset = random.below(bytes - 8) & !7;
    let mut unit = value_address(1, GLOBALS, offset);
    accesses(random, &mut unit, bytes - offset, May::Share);
    renew(random, &mut unit, 1);
    renew(random, &mut unit, 2);
    unit
}

/// Copies a part of an array's memory over another, element by element.
pub fn copied(random: &mut Random) -> Vec<Insn> {
    let (size, bytes) = random.pick(&[(B, 1), (B, 1), (H, 2), (W, 4)]);
    let all = u64::from(MAPS[GLOBALS].value);
    let turns = 1 + random.below(all / bytes / 2);
    let mut place = || random.below(all - turns * bytes + 1);
    let (from, to) = (place(), place());
    let mut unit = value_address(1, GLOBALS, from);
    unit.extend(value_address(2, GLOBALS, to));
    unit.extend([mov(3, 0), mov(5, turns as i32)]);
    let turn = [
        load_sized(MEM | size, 4, 1, 0),
        store_sized(size, 2, 0, 4),
        alu_imm(ADD, 1, bytes as i32),
        alu_imm(ADD, 2, bytes as i32),
        alu_imm(ADD, 3, 1),
    ];
    unit.extend(turn);
    let back = -(turn.len() as i16) - 1;
    unit.push(match random.below(3) {
        0 => branch(JNE, 3, turns as i32, back),
        1 => branch(JSLT, 3, turns as i32, back),
        _ => Insn {
            code: JMP | X | JLT,
            src: 5,
            ..branch(JLT, 3, 0, back)
        },
    });
    // The places themselves do not matter, and the kernel's verifier has to follow each way
    // through.
    renew(random, &mut unit, 1);
    renew(random, &mut unit, 2);
    unit
}

/// Reads memory that cannot be written.
pub fn constant(random: &mut Random) -> Vec<Insn> {
    let bytes = u64::from(MAPS[CONSTANTS].value);
    let offset = random.below(bytes - 8);
    let mut unit = value_address(1, CONSTANTS, offset);
    accesses(random, &mut unit, bytes - offset, May::Read);
    renew(random, &mut unit, 1);
    renew(random, &mut unit, 2);
    unit
}

/// Reads and writes the context.
pub fn context(random: &mut Random) -> Vec<Insn> {
    let mut unit = vec![load(1, 10, GIVEN)];
    accesses(random, &mut unit, CONTEXT_BYTES as u64, May::WriteInPlace);
    renew(random, &mut unit, 1);
    renew(random, &mut unit, 2);
    unit
}

/// Keeps a pointer on the stack, and uses it from there.
pub fn spilled(random: &mut Random) -> Vec<Insn> {
    let mut unit = value_address(2, GLOBALS, 0);
    unit.extend([store(10, VALUE, 2), load(1, 10, VALUE)]);
    accesses(random, &mut unit, MAPS[GLOBALS].value.into(), May::Share);
    renew(random, &mut unit, 1);
    renew(random, &mut unit, 2);
    unit.push(store(10, VALUE, 2));
    unit
}

/// Reads and writes a byte of the stack at a variable offset.
pub fn stack(random: &mut Random) -> Vec<Insn> {
    let (index, value) = (random.pick(&[6, 7, 8, 9]), random.pick(&[0, 6, 7, 8, 9]));
    let first = -8 * SLOTS as i32;
    let mut unit = vec![
        mov_reg(2, index),
        alu_imm(AND, 2, random.pick(&[7, 15, 31])),
        mov_reg(1, 10),
        alu(ADD, 1, 2),
        alu_imm(ADD, 1, first),
    ];
    unit.push(if random.once_in(2) {
        store_sized(B, 1, 0, value)
    } else {
        load_sized(MEM | B, value, 1, 0)
    });
    renew(random, &mut unit, 1);
    renew(random, &mut unit, 2);
    unit
}

/// Reserves a record in a ring buffer, fills it and releases it.
pub fn record(random: &mut Random) -> Vec<Insn> {
    let bytes = 8 * (1 + random.below(5));
    let mut unit = imm64(1, PSEUDO_MAP_FD, RING as u64).to_vec();
    unit.extend([mov(2, bytes as i32), mov(3, 0), call(RINGBUF_RESERVE)]);
    let mut body = vec![mov_reg(1, 0)];
    renew(random, &mut body, 0);
    for at in (0..bytes).step_by(8) {
        body.push(store(1, at as i16, random.pick(&[0, 6, 7, 8, 9])));
    }
    accesses(random, &mut body, bytes, May::Share);
    body.extend([
        mov(2, 0),
        call(random.pick(&[RINGBUF_SUBMIT, RINGBUF_DISCARD])),
    ]);
    unless_null(random, &mut unit, body);
    unit
}

/// Writes to [`KEY`] a key that a map may have.
pub fn key(random: &mut Random, map: usize) -> Vec<Insn> {
    let shape = MAPS[map];
    let size = if shape.key == 8 { DW } else { W };
    if random.once_in(2) {
        let key = random.below(u64::from(shape.entries) + 2) as i32;
        return vec![store_imm(size, 10, KEY, key)];
    }
    vec![
        mov_reg(1, random.pick(&[6, 7, 8, 9])),
        alu_imm(AND, 1, 7),
        store_sized(size, 10, KEY, 1),
    ]
}

/// `dst = r10 + off`
pub fn stack_address(dst: u8, off: i16) -> [Insn; 2] {
    [mov_reg(dst, 10), alu_imm(ADD, dst, off.into())]
}

/// `dst = &map[0] + offset`
pub fn value_address(dst: u8, map: usize, offset: u64) -> Vec<Insn> {
    imm64(dst, PSEUDO_MAP_VALUE, map as u64 | offset << 32).to_vec()
}

/// Does `body` unless r0 is null, and then gives new numbers to r0 to r5.
pub fn unless_null(random: &mut Random, unit: &mut Vec<Insn>, body: Vec<Insn>) {
    unit.push(branch(JEQ, 0, 0, body.len() as i16));
    unit.extend(body);
    renew_from(random, unit, 0);
}

/// Makes a few accesses to memory at r1. Uses r2 for addresses, and the numbers in r0 and r6 to r9.
pub fn some_accesses(random: &mut Random, unit: &mut Vec<Insn>, bytes: u64) {
    accesses(random, unit, bytes, May::Share);
}

fn accesses(random: &mut Random, unit: &mut Vec<Insn>, bytes: u64, may: May) {
    for _ in 0..1 + random.below(4) {
        if bytes >= 16 && may != May::WriteInPlace && random.once_in(4) {
            indexed(random, unit, bytes, may);
        } else {
            let number = random.pick(&[0, 6, 7, 8, 9]);
            unit.push(access(random, 1, number, bytes, may));
        }
    }
}

/// Makes an access at a variable offset.
fn indexed(random: &mut Random, unit: &mut Vec<Insn>, bytes: u64, may: May) {
    let (index, number) = (random.pick(&[0, 6, 7, 8, 9]), random.pick(&[0, 6, 7, 8, 9]));
    let mask = if bytes >= 24 { 15 } else { 7 };
    unit.extend([mov_reg(2, index), alu_imm(AND, 2, mask), alu(ADD, 2, 1)]);
    unit.push(plain_access(random, 2, number, bytes - mask as u64, may));
}

/// Makes one access to any of the `bytes` at `base`, atomic or plain.
fn access(random: &mut Random, base: u8, number: u8, bytes: u64, may: May) -> Insn {
    if may != May::Share || !random.once_in(3) {
        return plain_access(random, base, number, bytes, may);
    }
    let (size, width) = size_within(random, bytes);
    let off = (random.below(bytes - width + 1) & !(width - 1)) as i16;
    match random.below(4) {
        0 => atomic(size, base, off, number, STORE_REL),
        1 => atomic(size, number, off, base, LOAD_ACQ),
        _ if width >= 4 => atomic(size, base, off, number, atomic_op(random)),
        _ => store_sized(size, base, off, number),
    }
}

fn plain_access(random: &mut Random, base: u8, number: u8, bytes: u64, may: May) -> Insn {
    let (size, width) = size_within(random, bytes);
    let off = random.below(bytes - width + 1);
    let is_aligned = may == May::WriteInPlace || random.once_in(2);
    let off = if is_aligned { off & !(width - 1) } else { off } as i16;
    match random.below(if may == May::Read { 2 } else { 4 }) {
        1 if size != DW => load_sized(MEMSX | size, number, base, off),
        0 | 1 => load_sized(MEM | size, number, base, off),
        2 => store_imm(size, base, off, random.number() as i32),
        _ => store_sized(size, base, off, number),
    }
}

/// Returns a size of an access, and its bytes.
fn size_within(random: &mut Random, bytes: u64) -> (u8, u64) {
    let (size, width) = random.pick(&[(B, 1), (H, 2), (W, 4), (DW, 8)]);
    if width > bytes { (B, 1) } else { (size, width) }
}

//! Calls of helpers whose results are the same each time.

use beeline_isa::opcode::*;
use beeline_isa::{Insn, imm64};
use beeline_uapi::HelperId;

use super::memory::{KEYED, key, some_accesses, stack_address, unless_null, value_address};
use super::{KEY, SLOTS, VALUE, VALUE_BYTES, renew, renew_from};
use crate::asm::{call, load, mov, mov_reg, store, store_imm};
use crate::random::Random;
use crate::world::{CONSTANTS, GLOBALS, MAPS, QUEUE, RING, TEXTS, text_offset};

const MAP_UPDATE_ELEM: i32 = HelperId::MAP_UPDATE_ELEM.0.cast_signed();
const MAP_DELETE_ELEM: i32 = HelperId::MAP_DELETE_ELEM.0.cast_signed();
const MAP_PUSH_ELEM: i32 = HelperId::MAP_PUSH_ELEM.0.cast_signed();
const MAP_POP_ELEM: i32 = HelperId::MAP_POP_ELEM.0.cast_signed();
const MAP_PEEK_ELEM: i32 = HelperId::MAP_PEEK_ELEM.0.cast_signed();
const STRTOL: i32 = HelperId::STRTOL.0.cast_signed();
const STRTOUL: i32 = HelperId::STRTOUL.0.cast_signed();
const RINGBUF_OUTPUT: i32 = HelperId::RINGBUF_OUTPUT.0.cast_signed();
const SNPRINTF: i32 = HelperId::SNPRINTF.0.cast_signed();
const STRNCMP: i32 = HelperId::STRNCMP.0.cast_signed();
const DYNPTR_FROM_MEM: i32 = HelperId::DYNPTR_FROM_MEM.0.cast_signed();
const RINGBUF_RESERVE_DYNPTR: i32 = HelperId::RINGBUF_RESERVE_DYNPTR.0.cast_signed();
const RINGBUF_SUBMIT_DYNPTR: i32 = HelperId::RINGBUF_SUBMIT_DYNPTR.0.cast_signed();
const RINGBUF_DISCARD_DYNPTR: i32 = HelperId::RINGBUF_DISCARD_DYNPTR.0.cast_signed();
const DYNPTR_READ: i32 = HelperId::DYNPTR_READ.0.cast_signed();
const DYNPTR_WRITE: i32 = HelperId::DYNPTR_WRITE.0.cast_signed();
const DYNPTR_DATA: i32 = HelperId::DYNPTR_DATA.0.cast_signed();

/// The offset of the slots on the stack, and their bytes.
const SLOTS_START: i16 = -8 * SLOTS as i16;
const SLOTS_BYTES: u64 = 8 * SLOTS;

/// Updates or deletes an element.
pub fn change(random: &mut Random) -> Vec<Insn> {
    let map = random.pick(&KEYED);
    let mut unit = key(random, map);
    if random.once_in(3) {
        unit.extend(imm64(1, PSEUDO_MAP_FD, map as u64));
        unit.extend(stack_address(2, KEY));
        unit.push(call(MAP_DELETE_ELEM));
    } else {
        unit.extend(value(random));
        // `BPF_ANY`, `BPF_NOEXIST`, `BPF_EXIST`, and nonexistent flags.
        unit.push(mov(4, random.pick(&[0, 0, 0, 1, 2, 3, 8])));
        unit.extend(imm64(1, PSEUDO_MAP_FD, map as u64));
        unit.extend(stack_address(2, KEY));
        unit.extend(stack_address(3, VALUE));
        unit.push(call(MAP_UPDATE_ELEM));
    }
    renew_from(random, &mut unit, 1);
    unit
}

/// Pushes to a queue, or pops or peeks at the next element.
pub fn queue(random: &mut Random) -> Vec<Insn> {
    let mut unit = value(random);
    unit.extend(imm64(1, PSEUDO_MAP_FD, QUEUE as u64));
    unit.extend(stack_address(2, VALUE));
    match random.below(4) {
        // `BPF_EXIST`: the oldest makes room.
        0 | 1 => unit.extend([mov(3, random.pick(&[0, 2])), call(MAP_PUSH_ELEM)]),
        2 => unit.push(call(MAP_POP_ELEM)),
        _ => unit.push(call(MAP_PEEK_ELEM)),
    }
    unit.push(load(6, 10, VALUE));
    renew_from(random, &mut unit, 1);
    unit
}

/// Parses numbers from text, and compares text.
pub fn parse(random: &mut Random) -> Vec<Insn> {
    let text: [u8; 8] = std::array::from_fn(|at| {
        random.pick(if at < 2 {
            b" -+0127x%b"
        } else {
            b"0123789aFx %\0"
        })
    });
    let mut unit = imm64(1, 0, u64::from_ne_bytes(text)).to_vec();
    unit.push(store(10, KEY, 1));
    unit.extend(stack_address(1, KEY));
    unit.push(mov(2, 1 + random.below(8) as i32));
    if random.once_in(3) {
        let text = random.below(TEXTS.len() as u64) as usize;
        unit.extend(value_address(3, CONSTANTS, text_offset(text) as u64));
        unit.push(call(STRNCMP));
    } else {
        unit.push(mov(3, random.pick(&[0, 8, 10, 16, 7])));
        unit.extend(stack_address(4, VALUE));
        unit.push(call(random.pick(&[STRTOL, STRTOUL])));
        unit.push(load(6, 10, VALUE));
    }
    renew_from(random, &mut unit, 1);
    unit
}

/// Reads text from the slots of the stack.
pub fn print(random: &mut Random) -> Vec<Insn> {
    let text = random.below(TEXTS.len() as u64) as usize;
    let mut unit: Vec<Insn> = words(|at| store_imm(DW, 10, at, 0)).collect();
    unit.extend(stack_address(1, VALUE));
    unit.push(mov(2, 1 + random.below(VALUE_BYTES) as i32));
    unit.extend(value_address(3, CONSTANTS, text_offset(text) as u64));
    if TEXTS[text].1 == 0 {
        unit.push(mov(4, 0));
    } else {
        unit.extend(stack_address(4, SLOTS_START));
    }
    unit.extend([mov(5, 8 * TEXTS[text].1), call(SNPRINTF)]);
    unit.extend([load(6, 10, VALUE), load(7, 10, VALUE + 8)]);
    renew_from(random, &mut unit, 1);
    unit
}

/// Outputs a record of stack contents.
pub fn output(random: &mut Random) -> Vec<Insn> {
    let mut unit = imm64(1, PSEUDO_MAP_FD, RING as u64).to_vec();
    unit.extend(stack_address(2, SLOTS_START));
    let bytes = 1 + random.below(SLOTS_BYTES) as i32;
    unit.extend([mov(3, bytes), mov(4, random.pick(&[0, 1, 2, 4]))]);
    unit.push(call(RINGBUF_OUTPUT));
    renew_from(random, &mut unit, 1);
    unit
}

/// Accesses memory through a dynptr: of a ring buffer, or of a map's value.
pub fn dynptr(random: &mut Random) -> Vec<Insn> {
    let of_ring = random.once_in(2);
    let bytes = 8 * (1 + random.below(SLOTS));
    let mut unit = if of_ring {
        imm64(1, PSEUDO_MAP_FD, RING as u64).to_vec()
    } else {
        value_address(1, GLOBALS, u64::from(MAPS[GLOBALS].value) - bytes)
    };
    unit.extend([mov(2, bytes as i32), mov(3, 0)]);
    unit.extend(stack_address(4, VALUE));
    unit.push(call(if of_ring {
        RINGBUF_RESERVE_DYNPTR
    } else {
        DYNPTR_FROM_MEM
    }));
    // All of it, so that no byte of a record is random.
    write(&mut unit, 0, bytes);
    for _ in 0..random.below(3) {
        let offset = random.below(bytes + 2);
        let len = 1 + random.below(bytes);
        match random.below(3) {
            0 => write(&mut unit, offset, len),
            1 => read(&mut unit, offset, len),
            // Aligned, as atomic accesses have to be; the kernel's verifier does not check it here.
            _ => data(random, &mut unit, offset & !7, len),
        }
        unit.push(mov_reg(8, 0));
    }
    if of_ring {
        unit.extend(stack_address(1, VALUE));
        unit.push(mov(2, 0));
        unit.push(call(
            random.pick(&[RINGBUF_SUBMIT_DYNPTR, RINGBUF_DISCARD_DYNPTR]),
        ));
    }
    renew_from(random, &mut unit, 0);
    // No longer a dynptr: helpers do not overwrite one.
    unit.extend([store(10, VALUE, 0), store(10, VALUE + 8, 0)]);
    unit
}

fn write(unit: &mut Vec<Insn>, offset: u64, len: u64) {
    unit.extend(stack_address(1, VALUE));
    unit.push(mov(2, offset as i32));
    unit.extend(stack_address(3, SLOTS_START));
    unit.extend([mov(4, len as i32), mov(5, 0), call(DYNPTR_WRITE)]);
}

fn read(unit: &mut Vec<Insn>, offset: u64, len: u64) {
    unit.extend(stack_address(1, SLOTS_START));
    unit.push(mov(2, len as i32));
    unit.extend(stack_address(3, VALUE));
    unit.extend([mov(4, offset as i32), mov(5, 0), call(DYNPTR_READ)]);
}

fn data(random: &mut Random, unit: &mut Vec<Insn>, offset: u64, len: u64) {
    unit.extend(stack_address(1, VALUE));
    unit.extend([mov(2, offset as i32), mov(3, len as i32), call(DYNPTR_DATA)]);
    let mut body = vec![mov_reg(1, 0)];
    renew(random, &mut body, 0);
    some_accesses(random, &mut body, len);
    unless_null(random, unit, body);
}

/// Fills [`VALUE`] from registers.
fn value(random: &mut Random) -> Vec<Insn> {
    words(|at| store(10, at, random.pick(&[6, 7, 8, 9]))).collect()
}

/// One instruction for each word of [`VALUE`].
fn words(each: impl FnMut(i16) -> Insn) -> impl Iterator<Item = Insn> {
    (0..VALUE_BYTES as i16 / 8)
        .map(|word| VALUE + 8 * word)
        .map(each)
}

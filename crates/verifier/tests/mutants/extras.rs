//! Units for [`invent`](crate::invent), for the other features of the world's programs: callbacks,
//! locks, tail calls, maps of maps, dynptrs, numbers on their way through the stack, and arithmetic
//! before a number moves a pointer.
//!
//! A unit finds numbers in r0 and r5 to r7, a map's value at r8 and the context at r9, and leaves
//! them so; r1 to r4 are its own, and the stack below the slots that [`invent`](crate::invent)
//! uses.

use beeline_fuzz::Random;
use beeline_fuzz::asm::{
    EXIT, alu, alu_imm, atomic, branch, load, load_sized, mov, mov_reg, store, store_imm,
    store_sized,
};
use beeline_fuzz::world::{ARRAY, GLOBALS, HASH, MAPS, PERCPU_ARRAY, RING};
use beeline_isa::opcode::*;
use beeline_isa::{Insn, imm64};
use beeline_uapi::{HelperId, MapType, ProgramType};
use beeline_verifier::program::{FieldKind, Map, MapField};

use crate::invent::helper;
use crate::worldly::FIRST_FD;

/// Bytes of the value at r8.
const VALUE_BYTES: i32 = 64;
/// The stack of units, from here down, with a dynptr or a key at its top.
const OWN: i16 = -64;
/// The size of values of [`LOCKED`].
const LOCKED_BYTES: i32 = 32;

// Maps outside the world that programs share with the kernel.

/// An array whose values begin with a lock.
const LOCKED: i32 = FIRST_FD + MAPS.len() as i32;
/// A program array.
const PROGRAMS: i32 = LOCKED + 1;
/// An array of arrays.
const OUTER: i32 = LOCKED + 2;

/// Those maps.
pub fn maps() -> Vec<(i32, Map)> {
    let map = |fd: i32, map_type, value_size| Map {
        id: (fd - FIRST_FD) as u32 + 1,
        map_type,
        key_size: 4,
        value_size,
        max_entries: 4,
        ..Map::default()
    };
    let locked = Map {
        fields: vec![MapField {
            offset: 0,
            size: 4,
            kind: FieldKind::SpinLock,
        }],
        ..map(LOCKED, MapType::ARRAY, LOCKED_BYTES as u32)
    };
    let outer = Map {
        inner: Some(Box::new(map(OUTER + 1, MapType::ARRAY, 16))),
        ..map(OUTER, MapType::ARRAY_OF_MAPS, 4)
    };
    vec![
        (LOCKED, locked),
        (PROGRAMS, map(PROGRAMS, MapType::PROG_ARRAY, 4)),
        (OUTER, outer),
    ]
}

/// Returns whether a program of this type may take locks (`check_map_prog_compatibility`).
pub fn may_lock(prog_type: ProgramType) -> bool {
    !matches!(
        prog_type,
        ProgramType::SOCKET_FILTER
            | ProgramType::KPROBE
            | ProgramType::TRACEPOINT
            | ProgramType::PERF_EVENT
            | ProgramType::RAW_TRACEPOINT
    )
}

/// Returns whether a program names the array with locks.
pub fn locks(insns: &[Insn]) -> bool {
    insns
        .iter()
        .any(|insn| insn.is_imm64() && insn.src == PSEUDO_MAP_FD && insn.imm == LOCKED)
}

/// The function that an address in a unit stands for, until [`link`] knows its position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Callback {
    OfLoop,
    OfEachElement,
}

/// A unit.
pub fn unit(random: &mut Random) -> Vec<Insn> {
    let mut unit = match random.below(16) {
        0 | 1 => looped(random),
        2 => each_element(random),
        3 => locked(random),
        4 => tail_call(random),
        5 => inner_map(random),
        6 | 7 => dynptr(random),
        8..=11 => through_stack(random),
        12 => between_pointers(random),
        13 => fetched(random),
        _ => computed(random),
    };
    unit.extend([mov(0, random.number() as i32), load_sized(MEM | W, 5, 8, 8)]);
    unit
}

fn map(dst: u8, fd: i32) -> [Insn; 2] {
    imm64(dst, PSEUDO_MAP_FD, fd as u64)
}

fn shared(map: usize) -> i32 {
    FIRST_FD + map as i32
}

fn size(random: &mut Random) -> (u8, i32) {
    random.pick(&[(B, 1), (H, 2), (W, 4), (DW, 8)])
}

/// Reads or writes a few bytes at a register, `room` of which may be used.
fn access(random: &mut Random, unit: &mut Vec<Insn>, pointer: u8, room: i32) {
    let (size, width) = size(random);
    let off = random.below((room - width).max(0) as u64 + 1) as i16;
    let off = off / width as i16 * width as i16;
    unit.push(match random.below(4) {
        0 => store_imm(size, pointer, off, random.number() as i32),
        1 => store_sized(size, pointer, off, random.pick(&[6, 7])),
        _ => load_sized(MEM | size, 5, pointer, off),
    });
}

fn callback(dst: u8, which: Callback) -> [Insn; 2] {
    imm64(dst, PSEUDO_FUNC, which as u64)
}

/// The argument of a callback: the stack's slots.
fn handed(dst: u8) -> [Insn; 2] {
    [mov_reg(dst, 10), alu_imm(ADD, dst, -40)]
}

fn looped(random: &mut Random) -> Vec<Insn> {
    let mut unit = match random.below(3) {
        0 => vec![mov_reg(1, 6), alu_imm(AND, 1, random.pick(&[3, 7, 15]))],
        _ => vec![mov(1, random.below(6) as i32)],
    };
    unit.extend(callback(2, Callback::OfLoop));
    unit.extend(handed(3));
    unit.extend([mov(4, 0), helper(HelperId::LOOP)]);
    if random.once_in(2) {
        unit.push(mov_reg(random.pick(&[6, 7]), 0));
    }
    unit
}

fn each_element(random: &mut Random) -> Vec<Insn> {
    let mut unit = map(1, shared(random.pick(&[ARRAY, HASH, PERCPU_ARRAY]))).to_vec();
    unit.extend(callback(2, Callback::OfEachElement));
    unit.extend(handed(3));
    unit.extend([mov(4, 0), helper(HelperId::FOR_EACH_MAP_ELEM)]);
    unit
}

/// Counts under a lock.
fn locked(random: &mut Random) -> Vec<Insn> {
    let mut unit = key(random);
    unit.extend(map(1, LOCKED));
    unit.extend([
        mov_reg(2, 10),
        alu_imm(ADD, 2, OWN.into()),
        helper(HelperId::MAP_LOOKUP_ELEM),
    ]);
    let mut body = vec![mov_reg(7, 0), mov_reg(1, 7), helper(HelperId::SPIN_LOCK)];
    for _ in 0..1 + random.below(3) {
        let (size, width) = size(random);
        let off = random.below((LOCKED_BYTES - width + 1) as u64) as i16;
        let off = if random.once_in(20) { off } else { off.max(4) };
        body.push(match random.below(3) {
            0 => store_sized(size, 7, off, 6),
            1 => store_imm(size, 7, off, 7),
            _ => load_sized(MEM | size, 3, 7, off),
        });
    }
    if random.once_in(4) {
        body.push(branch(JGT, 6, 5, 1));
        body.push(alu_imm(ADD, 6, 1));
    }
    if !random.once_in(30) {
        body.extend([mov_reg(1, 7), helper(HelperId::SPIN_UNLOCK)]);
    }
    unit.push(branch(JEQ, 0, 0, body.len() as i16));
    unit.extend(body);
    unit.push(load_sized(MEM | H, 7, 8, 4));
    unit
}

/// Returns a key, mostly an existing one.
fn key(random: &mut Random) -> Vec<Insn> {
    if random.once_in(2) {
        return vec![store_imm(DW, 10, OWN, random.below(5) as i32)];
    }
    vec![mov_reg(1, 6), alu_imm(AND, 1, 3), store(10, OWN, 1)]
}

fn tail_call(random: &mut Random) -> Vec<Insn> {
    let mut unit = vec![mov_reg(1, 9)];
    unit.extend(map(2, PROGRAMS));
    unit.push(match random.below(2) {
        0 => mov(3, random.below(6) as i32),
        _ => mov_reg(3, random.pick(&[6, 7])),
    });
    unit.push(helper(HelperId::TAIL_CALL));
    unit
}

fn inner_map(random: &mut Random) -> Vec<Insn> {
    let mut unit = key(random);
    unit.extend(map(1, OUTER));
    let address = [mov_reg(2, 10), alu_imm(ADD, 2, OWN.into())];
    unit.extend(address);
    unit.push(helper(HelperId::MAP_LOOKUP_ELEM));
    let mut body = vec![mov_reg(1, 0)];
    body.extend(address);
    body.push(helper(HelperId::MAP_LOOKUP_ELEM));
    let mut inner = vec![mov_reg(1, 0)];
    access(random, &mut inner, 1, 16);
    body.push(branch(JEQ, 0, 0, inner.len() as i16));
    body.extend(inner);
    unit.push(branch(JEQ, 0, 0, body.len() as i16));
    unit.extend(body);
    unit
}

/// Accesses memory through a dynptr at [`OWN`], with a length that is not always known.
fn dynptr(random: &mut Random) -> Vec<Insn> {
    const ROOM: i32 = 48;
    let of_ring = random.once_in(2);
    let mut unit = Vec::new();
    if of_ring {
        unit.extend(map(1, shared(RING)));
    } else {
        unit.extend(imm64(1, PSEUDO_MAP_VALUE, shared(GLOBALS) as u64));
    }
    unit.extend([mov(2, ROOM), mov(3, 0), mov_reg(4, 10)]);
    unit.extend([
        alu_imm(ADD, 4, OWN.into()),
        helper(if of_ring {
            HelperId::RINGBUF_RESERVE_DYNPTR
        } else {
            HelperId::DYNPTR_FROM_MEM
        }),
    ]);
    let own = |register| [mov_reg(register, 10), alu_imm(ADD, register, OWN.into())];
    for _ in 0..1 + random.below(2) {
        let offset = random.below(ROOM as u64 + 4) as i32;
        match random.below(3) {
            0 => {
                let len = random.pick(&[1, 4, 8, 16]);
                unit.extend(own(1));
                unit.extend([mov(2, offset), mov(3, len), helper(HelperId::DYNPTR_DATA)]);
                let mut body = vec![mov_reg(1, 0)];
                access(random, &mut body, 1, len);
                unit.push(branch(JEQ, 0, 0, body.len() as i16));
                unit.extend(body);
            }
            1 => {
                // Reads into the slots of the stack.
                unit.extend([mov_reg(1, 10), alu_imm(ADD, 1, -40), mov_reg(2, 6)]);
                unit.push(alu_imm(AND, 2, random.pick(&[7, 15, 31])));
                unit.extend(own(3));
                unit.extend([mov(4, offset), mov(5, 0), helper(HelperId::DYNPTR_READ)]);
            }
            _ => {
                unit.extend(own(1));
                unit.extend([mov_reg(2, 7), mov_reg(3, 10), alu_imm(ADD, 3, -40)]);
                unit.extend([
                    mov(4, 1 + random.below(40) as i32),
                    mov(5, 0),
                    helper(HelperId::DYNPTR_WRITE),
                ]);
            }
        }
    }
    if of_ring && !random.once_in(40) {
        unit.extend(own(1));
        unit.extend([
            mov(2, 0),
            helper(random.pick(&[
                HelperId::RINGBUF_SUBMIT_DYNPTR,
                HelperId::RINGBUF_DISCARD_DYNPTR,
            ])),
        ]);
    }
    if !random.once_in(10) {
        unit.extend([store_imm(DW, 10, OWN, 0), store_imm(DW, 10, OWN + 8, 0)]);
    }
    unit
}

/// Bounds a number by a comparison or a mask.
fn bound(random: &mut Random, unit: &mut Vec<Insn>, register: u8, most: i32) {
    let narrow = |insn: Insn| Insn {
        code: insn.code & !CLASS_MASK | JMP32,
        ..insn
    };
    match random.below(6) {
        0 => unit.push(alu_imm(AND, register, most)),
        1 => unit.extend([branch(JLE, register, most, 1), mov(register, most)]),
        2 => unit.extend([narrow(branch(JLE, register, most, 1)), mov(register, most)]),
        3 => unit.extend([
            branch(JSLE, register, most, 1),
            mov(register, most),
            branch(JSGE, register, 0, 1),
            mov(register, 0),
        ]),
        4 => unit.extend([
            narrow(branch(JSLE, register, most, 1)),
            mov(register, most),
            narrow(branch(JSGE, register, 0, 1)),
            mov(register, 0),
        ]),
        _ => unit.extend([branch(JGT, register, most, 1), alu_imm(AND, register, most)]),
    }
}

/// Operations that keep small numbers small.
fn small_steps(random: &mut Random, unit: &mut Vec<Insn>, register: u8) {
    for _ in 0..1 + random.below(4) {
        let class = random.pick(&[ALU, ALU64]);
        let (op, imm) = match random.below(10) {
            0 => (ADD, random.below(9) as i32 - 4),
            1 => (SUB, random.below(9) as i32 - 4),
            2 => (MUL, random.below(5) as i32 - 1),
            3 => (LSH, random.below(4) as i32),
            4 => (RSH, random.below(4) as i32),
            5 => (ARSH, random.below(4) as i32),
            6 => (XOR, random.pick(&[1, 7, 0x10, -1])),
            7 => (OR, random.pick(&[1, 8, 0x30])),
            8 => (DIV, 1 + random.below(5) as i32),
            _ => (MOD, 1 + random.below(60) as i32),
        };
        let off = i16::from(matches!(op, DIV | MOD) && random.once_in(2));
        unit.push(Insn {
            code: class | K | op,
            dst: register,
            src: 0,
            off,
            imm,
        });
    }
}

/// Moves the value's address by a number that may be up to `most`, and uses it.
fn moved(random: &mut Random, unit: &mut Vec<Insn>, index: u8, most: i32) {
    unit.push(mov_reg(1, 8));
    let by_pointer = random.once_in(4);
    if by_pointer {
        unit.extend([mov_reg(2, index), alu(ADD, 2, 8)]);
    } else {
        unit.push(alu(ADD, 1, index));
    }
    let pointer = if by_pointer { 2 } else { 1 };
    access(random, unit, pointer, VALUE_BYTES - most);
}

/// Bounds a number, changes it, bounds it again, and moves a pointer by it.
fn computed(random: &mut Random) -> Vec<Insn> {
    let mut unit = Vec::new();
    let index = 2;
    unit.push(mov_reg(index, random.pick(&[5, 6, 7])));
    if random.once_in(3) {
        let bits = random.pick(&[8, 16, 32]);
        let class = random.pick(&[ALU, ALU64]);
        let bits = if class == ALU { bits.min(16) } else { bits };
        unit.push(Insn {
            code: class | X | MOV,
            off: bits,
            ..mov_reg(index, index)
        });
    }
    let first = random.pick(&[7, 15, 63, 255, 4095]);
    bound(random, &mut unit, index, first);
    small_steps(random, &mut unit, index);
    let most = random.pick(&[7, 15, 31, 55]);
    bound(random, &mut unit, index, most);
    if random.once_in(40) {
        // Too far, for some.
        small_steps(random, &mut unit, index);
    }
    unit.push(mov_reg(4, index));
    moved(random, &mut unit, 4, most);
    unit
}

/// A number goes to the stack and comes back, whole or in part, and moves a pointer.
fn through_stack(random: &mut Random) -> Vec<Insn> {
    let mut unit = vec![mov_reg(2, random.pick(&[5, 6, 7]))];
    let most = random.pick(&[7, 15, 31, 55]);
    let first = random.once_in(2);
    if first {
        bound(random, &mut unit, 2, most);
    }
    let ((wide, width), (back, back_width)) = (size(random), size(random));
    let slot = OWN - 8 * random.below(3) as i16;
    let at = (random.below(8 / width as u64) as i16) * width as i16;
    let at = if random.once_in(3) { at } else { 0 };
    if random.once_in(3) {
        unit.push(store_imm(DW, 10, slot, random.pick(&[0, 0, -1, 5])));
    }
    unit.push(store_sized(wide, 10, slot + at, 2));
    match random.below(5) {
        0 => {
            let (size, bytes) = self::size(random);
            let to = random.below(8 / bytes as u64) as i16 * bytes as i16;
            unit.push(store_imm(size, 10, slot + to, random.pick(&[0, 1, -1])));
        }
        1 => unit.extend([
            mov_reg(1, 6),
            alu_imm(AND, 1, 7),
            alu(ADD, 1, 10),
            store_sized(B, 1, slot, random.pick(&[6, 7])),
        ]),
        _ => {}
    }
    let from = if random.once_in(4) {
        random.below(8 / back_width as u64) as i16 * back_width as i16
    } else {
        at / back_width as i16 * back_width as i16
    };
    let mode = if back != DW && random.once_in(3) {
        MEMSX
    } else {
        MEM
    };
    unit.push(load_sized(mode | back, 3, 10, slot + from));
    // Facts about the one may be true of the other.
    let (known, used) = random.pick(&[(2, 3), (3, 2), (3, 3), (2, 2)]);
    if !first || random.once_in(2) {
        bound(random, &mut unit, known, most);
    }
    if random.once_in(3) {
        unit.push(load_sized(MEM | DW, 4, 10, slot));
    }
    // Without it, only a link between the two reveals enough: a wrong one shows.
    if !random.once_in(10) {
        bound(random, &mut unit, used, most);
    }
    moved(random, &mut unit, used, most);
    unit
}

/// The distance between two pointers is a number; so is the result of their comparison.
fn between_pointers(random: &mut Random) -> Vec<Insn> {
    let mut unit = vec![mov_reg(1, 8), mov_reg(2, 6)];
    bound(random, &mut unit, 2, 31);
    unit.extend([alu(ADD, 1, 2), mov_reg(3, 1), alu(SUB, 3, 8)]);
    match random.below(3) {
        0 => bound(random, &mut unit, 3, 31),
        1 => unit.extend([
            Insn {
                code: JMP | X | JEQ,
                src: 8,
                ..branch(JEQ, 1, 0, 1)
            },
            mov(3, 5),
        ]),
        _ => {}
    }
    unit.push(mov_reg(4, 3));
    if random.once_in(2) {
        bound(random, &mut unit, 4, 31);
        moved(random, &mut unit, 4, 31);
    } else {
        access(random, &mut unit, 1, 16);
    }
    unit
}

/// Uses numbers fetched by atomic operations, from a value or from the stack.
fn fetched(random: &mut Random) -> Vec<Insn> {
    let (size, _) = random.pick(&[(W, 4), (DW, 8)]);
    let ops = [ADD, AND, OR, XOR].map(|op| i32::from(op) | FETCH);
    let op = match random.below(4) {
        0 => XCHG,
        1 => CMPXCHG,
        _ => random.pick(&ops),
    };
    let mut unit = vec![mov_reg(2, random.pick(&[6, 7])), mov_reg(0, 5)];
    if random.once_in(2) {
        bound(random, &mut unit, 2, 15);
    }
    let on_stack = random.once_in(2);
    if on_stack {
        unit.push(store(10, OWN, random.pick(&[6, 2])));
        unit.push(atomic(size, 10, OWN, 2, op));
        unit.push(load_sized(MEM | size, 3, 10, OWN));
    } else {
        unit.push(atomic(size, 8, 16, 2, op));
        unit.push(mov_reg(3, 2));
    }
    let index = random.pick(&[0, 2, 3]);
    unit.push(mov_reg(4, index));
    bound(random, &mut unit, 4, 31);
    moved(random, &mut unit, 4, 31);
    unit
}

/// Appends the callbacks to a program whose units take their addresses.
pub fn link(random: &mut Random, insns: &mut Vec<Insn>) {
    for which in [Callback::OfLoop, Callback::OfEachElement] {
        let is_user = |insns: &[Insn], at: usize| {
            let insn = insns[at];
            insn.is_imm64() && insn.src == PSEUDO_FUNC && insn.imm == which as i32
        };
        let users: Vec<usize> = (0..insns.len()).filter(|&at| is_user(insns, at)).collect();
        if users.is_empty() {
            continue;
        }
        let start = insns.len();
        for at in users {
            // Distinct from an address that is still to be linked.
            insns[at].imm = (start - at - 1) as i32;
        }
        insns.extend(function(random, which));
    }
}

/// A callback: r6 and r7 are numbers, r8 its argument, 8 bytes of which may be used.
fn function(random: &mut Random, which: Callback) -> Vec<Insn> {
    let mut insns = match which {
        Callback::OfLoop => vec![mov_reg(6, 1), mov_reg(8, 2), load(7, 2, 0)],
        Callback::OfEachElement => vec![
            load_sized(MEM | W, 6, 2, 0),
            load(7, 3, 0),
            mov_reg(8, 4),
            mov_reg(9, 3),
        ],
    };
    for _ in 0..1 + random.below(5) {
        match random.below(7) {
            0 => small_steps(random, &mut insns, 7),
            1 => insns.push(store(8, 0, random.pick(&[6, 7]))),
            2 => {
                insns.push(mov_reg(2, random.pick(&[6, 7])));
                bound(random, &mut insns, 2, 7);
                insns.extend([mov_reg(1, 8), alu(ADD, 1, 2), load_sized(MEM | B, 3, 1, 0)]);
            }
            3 => {
                insns.push(mov_reg(4, 6));
                bound(random, &mut insns, 4, 31);
                insns.extend(imm64(1, PSEUDO_MAP_VALUE, shared(GLOBALS) as u64));
                insns.push(alu(ADD, 1, 4));
                insns.push(load_sized(MEM | B, 7, 1, 0));
            }
            4 => insns.extend([store(10, -8, 7), load_sized(MEM | W, 6, 10, -8)]),
            5 => insns.extend([load(3, 8, 0), alu_imm(ADD, 3, 1), store(8, 0, 3)]),
            _ if which == Callback::OfEachElement => insns.push(store(9, 0, 6)),
            _ => insns.extend([branch(JGT, 6, 3, 2), mov(0, 1), EXIT]),
        }
    }
    insns.push(match random.below(3) {
        0 => mov(0, random.below(2) as i32),
        _ => mov(0, 0),
    });
    insns.push(EXIT);
    insns
}

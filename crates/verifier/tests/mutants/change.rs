//! Changes a program.

use beeline_fuzz::Random;
use beeline_isa::Insn;
use beeline_isa::opcode::*;
use beeline_uapi::flags::{ANY_ALIGNMENT, STRICT_ALIGNMENT, TEST_STATE_FREQ};
use beeline_uapi::{MapType, ProgramType, flags};
use beeline_verifier::program::Kind;

use crate::case::Case;

/// Types whose programs any user with all capabilities may load as they are.
const KINDS: [ProgramType; 14] = [
    ProgramType::SOCKET_FILTER,
    ProgramType::KPROBE,
    ProgramType::SCHED_CLS,
    ProgramType::TRACEPOINT,
    ProgramType::XDP,
    ProgramType::PERF_EVENT,
    ProgramType::LWT_XMIT,
    ProgramType::SOCK_OPS,
    ProgramType::SK_SKB,
    ProgramType::SK_MSG,
    ProgramType::RAW_TRACEPOINT,
    ProgramType::LWT_IN,
    ProgramType::FLOW_DISSECTOR,
    ProgramType::RAW_TRACEPOINT_WRITABLE,
];

/// Changes something, mostly one thing.
pub fn change(random: &mut Random, case: &mut Case) {
    loop {
        match random.below(24) {
            0 => change_map(random, case),
            1 => change_kind(random, &mut case.kind),
            _ => change_insns(random, &mut case.insns),
        }
        if !random.once_in(3) {
            return;
        }
    }
}

fn change_map(random: &mut Random, case: &mut Case) {
    const TYPES: [MapType; 12] = [
        MapType::HASH,
        MapType::ARRAY,
        MapType::PROG_ARRAY,
        MapType::PERF_EVENT_ARRAY,
        MapType::PERCPU_HASH,
        MapType::PERCPU_ARRAY,
        MapType::LRU_HASH,
        MapType::LPM_TRIE,
        MapType::HASH_OF_MAPS,
        MapType::QUEUE,
        MapType::STACK,
        MapType::RINGBUF,
    ];
    if case.maps.is_empty() {
        return;
    }
    let at = random.below(case.maps.len() as u64) as usize;
    let map = &mut case.maps[at].1;
    let near = |random: &mut Random, number: &mut u32| {
        let by = random.pick(&[1_u32, 4, 8]);
        *number = match random.below(3) {
            0 => number.saturating_sub(by),
            1 => number.saturating_add(by),
            _ => random.pick(&[1, 4, 8, 16, 64]),
        };
    };
    match random.below(5) {
        0 => near(random, &mut map.key_size),
        1 => near(random, &mut map.value_size),
        2 => near(random, &mut map.max_entries),
        3 => map.flags ^= random.pick(&[flags::RDONLY_PROG, flags::WRONLY_PROG]),
        _ => {
            map.map_type = random.pick(&TYPES);
            map.inner = matches!(map.map_type, MapType::ARRAY_OF_MAPS | MapType::HASH_OF_MAPS)
                .then(|| {
                    Box::new(beeline_verifier::program::Map {
                        map_type: MapType::ARRAY,
                        key_size: 4,
                        value_size: 4,
                        max_entries: 1,
                        ..Default::default()
                    })
                });
        }
    }
    if map.map_type != MapType::ARRAY {
        map.constant = None;
    }
    // The kernel's map has values of this size.
    if let Some(constant) = &mut map.constant {
        constant.resize(map.value_size as usize, 0);
    }
}

fn change_kind(random: &mut Random, kind: &mut Kind) {
    if random.once_in(3) {
        kind.flags ^= random.pick(&[STRICT_ALIGNMENT, ANY_ALIGNMENT, TEST_STATE_FREQ]);
    } else {
        *kind = Kind {
            prog_type: random.pick(&KINDS),
            ..Kind::default()
        };
    }
}

fn change_insns(random: &mut Random, insns: &mut Vec<Insn>) {
    if insns.is_empty() {
        return;
    }
    let at = random.below(insns.len() as u64) as usize;
    let other = random.below(insns.len() as u64) as usize;
    match random.below(12) {
        0 => insert(insns, at, insns[other]),
        1 => {
            let insn = any(random);
            insert(insns, at, insn);
        }
        2 => remove(insns, at),
        3 => insns.swap(at, other),
        4 => insns[at] = insns[other],
        _ => change_insn(random, &mut insns[at]),
    }
}

fn change_insn(random: &mut Random, insn: &mut Insn) {
    let operation = *insn;
    match random.below(12) {
        0 => insn.dst = random.below(11) as u8,
        1 if !is_call(&operation) => insn.src = random.below(11) as u8,
        2 => insn.off = near(random, insn.off.into()) as i16,
        3..6 => insn.imm = near(random, insn.imm.into()) as i32,
        6 => insn.code = insn.code & !OP_MASK | (random.below(16) << 4) as u8,
        7 => insn.code ^= random.pick(&[X, SIZE_MASK & 0x08, SIZE_MASK & 0x10]),
        // 32 bits for 64, and back.
        8 => insn.code ^= 3,
        9 => {
            std::mem::swap(&mut insn.dst, &mut insn.src);
        }
        10 if is_call(&operation) => insn.imm = random.below(212) as i32,
        _ => {
            let bit = random.below(64);
            let bytes = (u64::from_le_bytes(insn.encode()) ^ 1 << bit).to_le_bytes();
            let mut decoded = Insn::decode_all(&bytes).into_iter().flatten();
            if let Some(changed) = decoded.next() {
                *insn = changed;
            }
        }
    }
    // The kernel's functions have their own numbers.
    if is_call(insn) && insn.src == PSEUDO_KFUNC_CALL {
        *insn = operation;
    }
}

fn is_call(insn: &Insn) -> bool {
    insn.code == JMP | CALL
}

/// Returns a number nearby, or a typical edge value.
pub fn near(random: &mut Random, number: i64) -> i64 {
    match random.below(8) {
        0 => number + 1,
        1 => number - 1,
        2 => number + random.pick(&[-8, -4, -2, 2, 4, 8]),
        3 => -number,
        4 => number ^ 1 << random.below(32),
        5 => random.below(32) as i64 - 8,
        6 => -8 * (random.below(8) as i64),
        _ => random.number() as i64,
    }
}

/// Returns any instruction of one slot, with small numbers.
fn any(random: &mut Random) -> Insn {
    let class = random.pick(&[LDX, ST, STX, ALU, ALU64, JMP, JMP32]);
    let code = match class {
        LDX => class | random.pick(&[MEM, MEMSX]) | random.pick(&[B, H, W, DW]),
        ST => class | MEM | random.pick(&[B, H, W, DW]),
        STX => class | random.pick(&[MEM, ATOMIC]) | random.pick(&[B, H, W, DW]),
        _ => class | random.pick(&[K, X]) | (random.below(15) << 4) as u8,
    };
    let uses_source = matches!(class, LDX | STX) || class >= ALU && code & X != 0;
    let has_off = !matches!(class, ALU | ALU64);
    let has_imm = class == ST || class >= ALU && !uses_source;
    Insn {
        code,
        dst: random.below(11) as u8,
        src: if uses_source {
            random.below(11) as u8
        } else {
            0
        },
        off: if has_off { near(random, 0) as i16 } else { 0 },
        imm: if has_imm { near(random, 0) as i32 } else { 0 },
    }
}

/// Inserts an instruction before another. Jumps over the place become longer.
pub fn insert(insns: &mut Vec<Insn>, at: usize, insn: Insn) {
    for (slot, jump) in insns.iter_mut().enumerate() {
        adjust(jump, slot, at, 1);
    }
    insns.insert(at, insn);
}

fn remove(insns: &mut Vec<Insn>, at: usize) {
    insns.remove(at);
    for (slot, jump) in insns.iter_mut().enumerate() {
        adjust(jump, slot, at, -1);
    }
}

fn adjust(jump: &mut Insn, slot: usize, at: usize, by: i16) {
    let is_jump = matches!(jump.code & CLASS_MASK, JMP | JMP32)
        && !matches!(jump.code & OP_MASK, CALL | EXIT);
    let is_local = is_call(jump) && jump.src == PSEUDO_CALL;
    let distance = if is_jump { jump.off.into() } else { jump.imm };
    let target = slot as i64 + 1 + i64::from(distance);
    let at = at as i64;
    let slot = slot as i64;
    let by = match (slot < at, target > at) {
        (true, true) => by,
        (false, false) if target <= at && slot >= at => -by,
        _ => return,
    };
    if is_jump && jump.code != JMP32 | JA {
        jump.off = jump.off.saturating_add(by);
    } else if is_local {
        jump.imm = jump.imm.saturating_add(by.into());
    }
}

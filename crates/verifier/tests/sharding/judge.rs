//! Hand-written programs, and the judgement on them.

use std::collections::BTreeMap;

use beeline_isa::{Insn, opcode::*};
use beeline_uapi::{MapType, flags};
use beeline_verifier::program::Map;
use beeline_verifier::sharding::{Sharing, Use, Word, uses};

use crate::assembly::*;
use crate::objects::map;

pub const ANY: i32 = flags::ANY as i32;
pub const NOEXIST: i32 = flags::NOEXIST as i32;

pub fn maps() -> Vec<(i32, Map)> {
    let all = [
        (TABLE, map(MapType::HASH, 8, 8)),
        (OTHER, map(MapType::HASH, 8, 8)),
        (ARRAY, map(MapType::ARRAY, 4, 64)),
        (RING, map(MapType::RINGBUF, 0, 0)),
        (WIDE, map(MapType::HASH, 16, 16)),
        (LRU, map(MapType::LRU_HASH, 8, 8)),
        (TRIE, map(MapType::LPM_TRIE, 8, 8)),
        (STORED_PROGRAMS, map(MapType::PROG_ARRAY, 4, 4)),
        (STACKS, map(MapType::STACK_TRACE, 4, 8 * 127)),
    ];
    let with_id = |(fd, map)| {
        (
            fd,
            Map {
                id: fd as u32,
                ..map
            },
        )
    };
    all.into_iter().map(with_id).collect()
}

pub fn analyse(parts: &[Vec<Insn>]) -> BTreeMap<i32, Use> {
    let maps = maps();
    let maps: Vec<(i32, &Map)> = maps.iter().map(|(fd, map)| (*fd, map)).collect();
    uses(&parts.concat(), &maps).into_iter().collect()
}

pub fn of(fd: i32, parts: &[Vec<Insn>]) -> Sharing {
    analyse(parts)[&fd].sharing()
}

#[track_caller]
pub fn whole(fd: i32, parts: &[Vec<Insn>]) {
    let found = of(fd, parts);
    assert!(matches!(found, Sharing::Whole(_)), "{found}");
}

pub fn summed() -> Sharing {
    Sharing::Summed(vec![Word { offset: 0, size: 8 }])
}

/// `if the element exists { r1 = it + 1 } else { r1 = 1 }`, as bpftrace has it.
pub fn next_count() -> Vec<Insn> {
    [
        store_imm(DW, 10, -8, 7),
        look_up(TABLE, -8),
        mov(1, 1),
        branch(JEQ, 0, 0, 2),
        load(DW, 1, 0, 0),
        alu(ADD, 1, 1),
    ]
    .concat()
}

pub fn count() -> Vec<Insn> {
    [
        next_count(),
        store(DW, 10, -16, 1),
        update(TABLE, -8, -16, ANY),
    ]
    .concat()
}

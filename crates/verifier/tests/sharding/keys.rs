//! Rules for keys, types of maps, and programs that use a map together.

use std::collections::BTreeMap;

use beeline_isa::{Insn, opcode::*};
use beeline_uapi::{HelperId, MapType, flags};
use beeline_verifier::program::{FieldKind, Map, MapField};
use beeline_verifier::sharding::{Sharing, Use, uses};

use crate::assembly::*;
use crate::judge::*;
use crate::objects::map;

/// Stores something under the key of 8 bytes that the instructions leave in r6.
fn keyed(key: Vec<Insn>, size: u8) -> Vec<Vec<Insn>> {
    vec![
        call(HelperId::GET_CURRENT_PID_TGID),
        store_imm(DW, 10, -8, 0),
        key,
        store(size, 10, -8, 0),
        call(HelperId::KTIME_GET_NS),
        store(DW, 10, -16, 0),
        update(TABLE, -8, -16, ANY),
        end(),
    ]
}

#[test]
fn keys_with_the_id_are_each_processes_own() {
    let at = |id| Sharing::PerProcess { id };
    let process = alu(RSH, 0, 32);
    let thread = [alu(LSH, 0, 32), alu(RSH, 0, 32)].concat();
    assert_eq!(of(TABLE, &keyed(vec![], DW)), at(0));
    assert_eq!(of(TABLE, &keyed(process.clone(), DW)), at(0));
    assert_eq!(of(TABLE, &keyed(thread, DW)), at(0));
    assert_eq!(of(TABLE, &keyed(alu(LSH, 0, 32), DW)), at(4));
    assert_eq!(
        of(TABLE, &keyed(insn(ALU | X | MOV, 0, 0, 0, 0), DW)),
        at(0)
    );
    for broken in [
        alu(AND, 0, 0xffff),
        alu(RSH, 0, 1),
        alu(LSH, 0, 33),
        alu(ADD, 0, 1),
        [process.clone(), alu(OR, 0, 1)].concat(),
        [process, alu(RSH, 0, 8)].concat(),
        mov(0, 5),
    ] {
        whole(TABLE, &keyed(broken, DW));
    }
}

#[test]
fn the_id_must_be_whole_and_in_place() {
    // Part of an id.
    whole(TABLE, &keyed(vec![], H));
    whole(TABLE, &keyed(vec![], B));
    for (off, size) in [(-8, B), (-6, H), (-10, W), (-12, DW)] {
        let overwritten = [
            call(HelperId::GET_CURRENT_PID_TGID),
            store_imm(DW, 10, -8, 0),
            store(W, 10, -8, 0),
            store_imm(size, 10, off, 0),
            store_imm(DW, 10, -24, 0),
            update(TABLE, -8, -24, ANY),
            end(),
        ];
        whole(TABLE, &overwritten);
    }
    let filled_by_a_helper = [
        call(HelperId::GET_CURRENT_PID_TGID),
        store(DW, 10, -8, 0),
        frame(1, -16),
        mov(2, 16),
        call(HelperId::GET_CURRENT_COMM),
        update(TABLE, -8, -16, ANY),
        end(),
    ];
    whole(TABLE, &filled_by_a_helper);
    let chosen = [
        call(HelperId::GET_CURRENT_PID_TGID),
        store(DW, 10, -8, 0),
        call(HelperId::GET_PRANDOM_U32),
        branch(JEQ, 0, 0, 1),
        store_imm(DW, 10, -8, 5),
        update(TABLE, -8, -8, ANY),
        end(),
    ];
    whole(TABLE, &chosen);
    // Each use needs it.
    let deleted = [
        keyed(vec![], DW)[..7].concat(),
        store_imm(DW, 10, -8, 7),
        look_up(TABLE, -8),
        end(),
    ];
    whole(TABLE, &deleted);
    // Written by a function that gets the address.
    let called = [
        call(HelperId::GET_CURRENT_PID_TGID),
        store(DW, 10, -8, 0),
        store_imm(DW, 10, -16, 0),
        frame(1, -16),
        call_local(10),
        update(TABLE, -8, -16, ANY),
        end(),
        store_imm(DW, 1, 8, 5),
        end(),
    ];
    assert_eq!(called[5..7].iter().map(Vec::len).sum::<usize>(), 10);
    whole(TABLE, &called);
}

#[test]
fn programs_must_agree_on_the_place_of_the_id() {
    let low = analyse(&keyed(alu(RSH, 0, 32), DW));
    let high = analyse(&keyed(alu(LSH, 0, 32), DW));
    let both = analyse(&keyed(vec![], DW));
    let and = |one: &BTreeMap<i32, Use>, two: &BTreeMap<i32, Use>| {
        one[&TABLE].and(&two[&TABLE]).sharing()
    };
    assert_eq!(and(&low, &both), Sharing::PerProcess { id: 0 });
    assert_eq!(and(&both, &high), Sharing::PerProcess { id: 4 });
    assert!(matches!(and(&low, &high), Sharing::Whole(_)));
    let reads = analyse(&[store_imm(DW, 10, -8, 7), look_up(TABLE, -8), end()]);
    assert_eq!(reads[&TABLE].sharing(), Sharing::ReadOnly);
    assert!(matches!(and(&low, &reads), Sharing::Whole(_)));
    let count = analyse(&[count(), end()]);
    assert_eq!(and(&count, &count), summed());
    assert!(matches!(and(&count, &low), Sharing::Whole(_)));
    // It looks, and does nothing with it.
    assert_eq!(and(&count, &reads), summed());
    let branches = [
        store_imm(DW, 10, -8, 7),
        look_up(TABLE, -8),
        if_missing(vec![], load(DW, 6, 0, 0)),
        end(),
    ];
    assert_eq!(and(&count, &analyse(&branches)), summed());
}

#[test]
fn stacks_are_kept_apart_and_counted_by_their_ids() {
    let counts = [
        map_fd(2, STACKS),
        mov(3, flags::USER_STACK as i32),
        call(HelperId::GET_STACKID),
        store(DW, 10, -8, 0),
        // But for its key.
        count().split_off(1),
        end(),
    ];
    assert_eq!(of(STACKS, &counts), Sharing::Stacks);
    assert_eq!(of(TABLE, &counts), summed());
}

#[test]
fn events_are_a_stream() {
    let sends = [store_imm(DW, 10, -32, 0), send(-32), end()];
    assert_eq!(of(RING, &sends), Sharing::Stream);
    let queries = [
        map_fd(1, RING),
        mov(2, 0),
        call(HelperId::RINGBUF_QUERY),
        end(),
    ];
    whole(RING, &queries);
}

#[test]
fn types_have_their_limits() {
    let on = |fd: i32, key: Vec<Insn>| {
        [
            call(HelperId::GET_CURRENT_PID_TGID),
            key,
            store(DW, 10, -8, 0),
            update(fd, -8, -8, ANY),
            end(),
        ]
    };
    assert_eq!(of(LRU, &on(LRU, vec![])), Sharing::PerProcess { id: 0 });
    whole(LRU, &on(LRU, mov(0, 1)));
    whole(LRU, &[store_imm(DW, 10, -8, 7), look_up(LRU, -8), end()]);
    // A shorter prefix may match.
    whole(TRIE, &on(TRIE, vec![]));
    assert_eq!(
        of(TRIE, &[store_imm(DW, 10, -8, 7), look_up(TRIE, -8), end()]),
        Sharing::ReadOnly
    );
    let tail = [
        map_fd(2, STORED_PROGRAMS),
        mov(3, 0),
        call(HelperId::TAIL_CALL),
        end(),
    ];
    assert_eq!(of(STORED_PROGRAMS, &tail), Sharing::ReadOnly);
    let locked = Map {
        fields: vec![MapField {
            offset: 0,
            size: 4,
            kind: FieldKind::SpinLock,
        }],
        ..map(MapType::HASH, 8, 8)
    };
    let found = uses(&on(TABLE, vec![]).concat(), &[(TABLE, &locked)]);
    assert!(matches!(found[0].1.sharing(), Sharing::Whole(_)));
}

#[test]
fn two_descriptors_of_a_map_are_one() {
    let table = map(MapType::HASH, 8, 8);
    let program = [
        next_count(),
        store(DW, 10, -16, 1),
        update(OTHER, -8, -16, ANY),
        end(),
    ];
    let found = uses(&program.concat(), &[(TABLE, &table), (OTHER, &table)]);
    assert!(found.iter().all(|(_, used)| used.sharing() == summed()));
}

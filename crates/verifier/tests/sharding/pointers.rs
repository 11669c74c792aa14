//! Rules for pointers to values, structures and loops, and programs that break them.

use beeline_isa::{Insn, opcode::*};
use beeline_uapi::HelperId;
use beeline_verifier::sharding::{Sharing, Word};

use crate::assembly::*;
use crate::judge::*;

#[test]
fn pointers_to_values_must_stay_in_sight() {
    let program = |use_it: Vec<Insn>| {
        [
            store_imm(DW, 10, -8, 7),
            look_up(TABLE, -8),
            if_missing(vec![], use_it),
            end(),
        ]
    };
    // A spilled pointer comes back.
    let spilled = [
        store(DW, 10, -24, 0),
        load(DW, 3, 10, -24),
        load(DW, 4, 3, 0),
        alu(ADD, 4, 1),
        store(DW, 3, 0, 4),
    ];
    let uses = analyse(&program(spilled.concat()));
    assert!(
        matches!(uses[&TABLE].sharing(), Sharing::Whole(reason) if reason.why.contains("missing"))
    );
    let filled = [
        copy(1, 0),
        mov(2, 8),
        mov(3, 0),
        call(HelperId::PROBE_READ_USER),
    ];
    whole(TABLE, &program(filled.concat()));
    let stored = [map_value(3, ARRAY, 0), store(DW, 3, 0, 0)];
    whole(TABLE, &program(stored.concat()));
    let read_by_a_helper = [
        copy(3, 0),
        frame(1, -40),
        mov(2, 8),
        call(HelperId::PROBE_READ_KERNEL),
    ];
    assert_eq!(
        of(TABLE, &program(read_by_a_helper.concat())),
        Sharing::ReadOnly
    );
    let exchanged = [mov(1, 1), insn(STX | ATOMIC | DW, 0, 1, 0, 0xe1)];
    whole(TABLE, &program(exchanged.concat()));
}

/// Whoever has only copies of values cannot change them where they are.
#[test]
fn changes_by_helpers_do_with_copies() {
    let by_value = |parts: &[Vec<Insn>]| analyse(parts)[&TABLE].by_value().is_ok();
    let with_pointer = |use_it: Vec<Insn>| {
        by_value(&[
            store_imm(DW, 10, -8, 7),
            look_up(TABLE, -8),
            if_missing(vec![], use_it),
            end(),
        ])
    };
    let read_and_replaced = [
        load(DW, 3, 0, 0),
        store(DW, 10, -16, 3),
        update(TABLE, -8, -16, ANY),
        map_fd(1, TABLE),
        frame(2, -8),
        call(HelperId::MAP_DELETE_ELEM),
    ];
    assert!(with_pointer(read_and_replaced.concat()));
    let read_by_a_helper = [
        copy(3, 0),
        frame(1, -40),
        mov(2, 8),
        call(HelperId::PROBE_READ_KERNEL),
    ];
    assert!(with_pointer(read_by_a_helper.concat()));
    assert!(!with_pointer(store_imm(DW, 0, 0, 1)));
    assert!(!with_pointer([mov(1, 1), add(DW, 0, 0, 1)].concat()));
    let exchanged = [mov(1, 1), insn(STX | ATOMIC | DW, 0, 1, 0, 0xe1)];
    assert!(!with_pointer(exchanged.concat()));
    let spilled = [
        store(DW, 10, -24, 0),
        load(DW, 3, 10, -24),
        store_imm(W, 3, 4, 1),
    ];
    assert!(!with_pointer(spilled.concat()));
    let filled = [
        copy(1, 0),
        mov(2, 8),
        mov(3, 0),
        call(HelperId::PROBE_READ_USER),
    ];
    assert!(!with_pointer(filled.concat()));
    let stored = [map_value(3, ARRAY, 0), store(DW, 3, 0, 0)];
    assert!(!with_pointer(stored.concat()));
    // Both programs must do with copies, and the map must be a plain hash.
    let reads = analyse(&[store_imm(DW, 10, -8, 7), look_up(TABLE, -8), end()]);
    let changes = [
        store_imm(DW, 10, -8, 7),
        look_up(TABLE, -8),
        if_missing(vec![], store_imm(DW, 0, 0, 1)),
        end(),
    ];
    let changes = analyse(&changes);
    assert!(reads[&TABLE].by_value().is_ok());
    assert!(reads[&TABLE].and(&changes[&TABLE]).by_value().is_err());
    assert!(reads[&LRU].by_value().is_err());
}

#[test]
fn values_addressed_directly_are_summed() {
    let plain = [
        map_value(1, ARRAY, 8),
        load(W, 2, 1, 4),
        alu(ADD, 2, 1),
        store(W, 1, 4, 2),
        end(),
    ];
    let word = |offset, size| Sharing::Summed(vec![Word { offset, size }]);
    assert_eq!(of(ARRAY, &plain), word(12, 4));
    let fetched = [
        map_value(1, ARRAY, 8),
        mov(2, 1),
        insn(STX | ATOMIC | DW, 1, 2, 0, 1),
        end(),
    ];
    assert_eq!(of(ARRAY, &fetched), word(8, 8));
    let fetched_and_used = [
        map_value(1, ARRAY, 8),
        mov(2, 1),
        insn(STX | ATOMIC | DW, 1, 2, 0, 1),
        branch(JEQ, 2, 0, 0),
        end(),
    ];
    whole(ARRAY, &fetched_and_used);
    let other_word = [
        map_value(1, ARRAY, 0),
        load(DW, 2, 1, 0),
        store(DW, 1, 8, 2),
        end(),
    ];
    whole(ARRAY, &other_word);
    let overlapping = [
        map_value(1, ARRAY, 0),
        mov(2, 1),
        add(DW, 1, 0, 2),
        add(W, 1, 4, 2),
        end(),
    ];
    whole(ARRAY, &overlapping);
    let indexed = |scale| {
        [
            call(HelperId::GET_PRANDOM_U32),
            alu(AND, 0, 7),
            alu(LSH, 0, scale),
            map_value(1, ARRAY, 0),
            alu_reg(ADD, 1, 0),
            mov(2, 1),
            add(W, 1, 0, 2),
            end(),
        ]
    };
    let Sharing::Summed(words) = of(ARRAY, &indexed(2)) else {
        panic!("not summed")
    };
    assert_eq!(words.len(), 16);
    whole(ARRAY, &indexed(1));
    let loads = [
        map_value(1, ARRAY, 0),
        load(DW, 2, 1, 0),
        branch(JEQ, 2, 0, 0),
        end(),
    ];
    assert_eq!(of(ARRAY, &loads), Sharing::ReadOnly);
}

#[test]
fn loops_do_not_confuse_values_of_different_rounds() {
    // r6 is the address of the element of the last round, r0 that of this one.
    let program = [
        mov(7, 3),
        store_imm(DW, 10, -16, 0),
        map_value(6, ARRAY, 0),
        call(HelperId::KTIME_GET_NS),
        store(DW, 10, -8, 0),
        update(TABLE, -8, -16, NOEXIST),
        look_up(TABLE, -8),
        branch(JEQ, 0, 0, 4),
        load(DW, 1, 6, 0),
        alu(ADD, 1, 1),
        store(DW, 0, 0, 1),
        copy(6, 0),
        alu(SUB, 7, 1),
        branch(JNE, 7, 0, -23),
        end(),
    ];
    whole(TABLE, &program);
    let add_in_a_loop = [
        mov(7, 3),
        store_imm(DW, 10, -16, 0),
        call(HelperId::KTIME_GET_NS),
        store(DW, 10, -8, 0),
        update(TABLE, -8, -16, NOEXIST),
        look_up(TABLE, -8),
        branch(JEQ, 0, 0, 2),
        mov(1, 1),
        add(DW, 0, 0, 1),
        alu(SUB, 7, 1),
        branch(JNE, 7, 0, -21),
        end(),
    ];
    assert_eq!(of(TABLE, &add_in_a_loop), summed());
}

#[test]
fn structures_are_summed_word_by_word() {
    let structure = |first: i32, second: i32| {
        [
            store_imm(DW, 10, -16, 7),
            store_imm(DW, 10, -8, 8),
            store_imm(DW, 10, -32, first),
            store_imm(DW, 10, -24, second),
            look_up(WIDE, -16),
            if_missing(
                update(WIDE, -16, -32, ANY),
                [mov(1, 1), add(DW, 0, 0, 1), mov(1, 9), add(DW, 0, 8, 1)].concat(),
            ),
            end(),
        ]
    };
    let words = vec![Word { offset: 0, size: 8 }, Word { offset: 8, size: 8 }];
    assert_eq!(of(WIDE, &structure(1, 9)), Sharing::Summed(words));
    whole(WIDE, &structure(9, 1));
    whole(WIDE, &structure(1, 0));
}

//! Rules for sums, and programs that break them.

use beeline_isa::{Insn, opcode::*};
use beeline_uapi::{HelperId, flags};
use beeline_verifier::sharding::Sharing;

use crate::assembly::*;
use crate::judge::*;

#[test]
fn an_unused_map_is_read_only() {
    assert_eq!(of(TABLE, &[end()]), Sharing::ReadOnly);
    assert_eq!(of(RING, &[end()]), Sharing::Stream);
}

#[test]
fn a_count_is_summed() {
    assert_eq!(of(TABLE, &[count(), end()]), summed());
}

#[test]
fn the_first_addend_must_be_the_same() {
    let other_first = [
        store_imm(DW, 10, -8, 7),
        look_up(TABLE, -8),
        mov(1, 5),
        branch(JEQ, 0, 0, 2),
        load(DW, 1, 0, 0),
        alu(ADD, 1, 1),
        store(DW, 10, -16, 1),
        update(TABLE, -8, -16, ANY),
        end(),
    ];
    whole(TABLE, &other_first);
}

#[test]
fn only_sums_are_summed() {
    for change in [
        alu(SUB, 1, 0),
        alu(ADD, 1, 3),
        alu(MUL, 1, 2),
        alu(LSH, 1, 1),
        alu(XOR, 1, 1),
        insn(ALU64 | NEG, 1, 0, 0, 0),
        alu_reg(ADD, 1, 1),
        insn(ALU | K | ADD, 1, 0, 0, 1),
    ] {
        let is_sum = change[0].code & OP_MASK == SUB || change[0].imm == 3;
        let program = [
            next_count(),
            change,
            store(DW, 10, -16, 1),
            update(TABLE, -8, -16, ANY),
            end(),
        ];
        if is_sum {
            assert_eq!(of(TABLE, &program), summed());
        } else {
            whole(TABLE, &program);
        }
    }
}

#[test]
fn a_sum_must_go_back_to_its_element() {
    let other_key = [
        next_count(),
        store(DW, 10, -16, 1),
        store_imm(DW, 10, -8, 8),
        update(TABLE, -8, -16, ANY),
        end(),
    ];
    whole(TABLE, &other_key);
    let other_map = [
        next_count(),
        store(DW, 10, -16, 1),
        update(OTHER, -8, -16, ANY),
        end(),
    ];
    assert_eq!(of(TABLE, &other_map), Sharing::ReadOnly);
    whole(OTHER, &other_map);
    let key_changed_in_part = [
        next_count(),
        store(DW, 10, -16, 1),
        store_imm(B, 10, -5, 8),
        update(TABLE, -8, -16, ANY),
        end(),
    ];
    whole(TABLE, &key_changed_in_part);
    let through_the_stack = [
        next_count(),
        store(DW, 10, -24, 1),
        load(DW, 3, 10, -24),
        store(DW, 10, -16, 3),
        update(TABLE, -8, -16, ANY),
        end(),
    ];
    assert_eq!(of(TABLE, &through_the_stack), summed());
}

#[test]
fn values_must_not_leak() {
    let leaks: [(&str, Vec<Insn>); 9] = [
        ("a branch", [branch(JGT, 6, 5, 0)].concat()),
        ("an event", [store(DW, 10, -32, 6), send(-32)].concat()),
        (
            "part of a stack slot",
            [
                store(DW, 10, -32, 6),
                load(W, 3, 10, -28),
                store(DW, 10, -40, 3),
                send(-40),
            ]
            .concat(),
        ),
        (
            "a slot that was overwritten in part",
            [store(DW, 10, -32, 6), store_imm(W, 10, -32, 0), send(-32)].concat(),
        ),
        (
            "another map",
            [map_value(3, ARRAY, 0), store(DW, 3, 0, 6)].concat(),
        ),
        (
            "an addend of another map",
            [map_value(3, ARRAY, 0), add(DW, 3, 0, 6)].concat(),
        ),
        (
            "an address",
            [
                map_value(3, ARRAY, 0),
                alu(AND, 6, 31),
                alu_reg(ADD, 3, 6),
                load(B, 4, 3, 0),
            ]
            .concat(),
        ),
        ("the result", [copy(0, 6), exit()].concat()),
        (
            "a key",
            [store(DW, 10, -32, 6), look_up(OTHER, -32)].concat(),
        ),
    ];
    for (name, leak) in leaks {
        let program = [
            next_count(),
            copy(6, 1),
            store(DW, 10, -16, 1),
            update(TABLE, -8, -16, ANY),
            leak,
            end(),
        ];
        let found = of(TABLE, &program);
        assert!(matches!(found, Sharing::Whole(_)), "{name}: {found}");
    }
}

#[test]
fn a_value_that_depends_on_a_branch_on_existence_leaks() {
    let program = [
        store_imm(DW, 10, -8, 7),
        look_up(TABLE, -8),
        mov(6, 0),
        branch(JEQ, 0, 0, 1),
        mov(6, 1),
        count(),
        store(DW, 10, -32, 6),
        send(-32),
        end(),
    ];
    whole(TABLE, &program);
    let in_the_stack = [
        store_imm(DW, 10, -32, 0),
        store_imm(DW, 10, -8, 7),
        look_up(TABLE, -8),
        branch(JEQ, 0, 0, 1),
        store_imm(W, 10, -28, 1),
        count(),
        send(-32),
        end(),
    ];
    whole(TABLE, &in_the_stack);
    let harmless = [store_imm(DW, 10, -32, 0), count(), send(-32), end()];
    assert_eq!(of(TABLE, &harmless), summed());
}

/// `if missing { update(TABLE, first, flags) } else { lock *v += number }`.
fn create_or_add(first: i32, number: i32, flags: i32) -> Vec<Insn> {
    [
        store_imm(DW, 10, -8, 7),
        store_imm(DW, 10, -16, first),
        look_up(TABLE, -8),
        if_missing(
            update(TABLE, -8, -16, flags),
            [mov(1, number), add(DW, 0, 0, 1)].concat(),
        ),
    ]
    .concat()
}

#[test]
fn a_missing_element_may_be_created_with_the_addend() {
    assert_eq!(of(TABLE, &[create_or_add(1, 1, ANY), end()]), summed());
    assert_eq!(of(TABLE, &[create_or_add(1, 1, NOEXIST), end()]), summed());
    assert_eq!(of(TABLE, &[create_or_add(-3, -3, ANY), end()]), summed());
    whole(TABLE, &[create_or_add(1, 2, ANY), end()]);
    // The first one is not counted.
    whole(TABLE, &[create_or_add(0, 1, ANY), end()]);
    whole(TABLE, &[create_or_add(1, 1, flags::EXIST as i32), end()]);
    // Both ways return.
    let returns = |missing: i32| {
        [
            store_imm(DW, 10, -8, 7),
            store_imm(DW, 10, -16, 1),
            look_up(TABLE, -8),
            branch(JNE, 0, 0, 10),
            update(TABLE, -8, -16, ANY),
            mov(0, missing),
            exit(),
            mov(1, 1),
            add(DW, 0, 0, 1),
            end(),
        ]
    };
    assert_eq!(returns(0)[4].len(), 8);
    assert_eq!(of(TABLE, &returns(0)), summed());
    whole(TABLE, &returns(1));
}

#[test]
fn a_missing_element_may_be_created_with_zeros_first() {
    let program = |then: Vec<Insn>, between: Vec<Insn>| {
        [
            store_imm(DW, 10, -8, 7),
            store_imm(DW, 10, -16, 0),
            look_up(TABLE, -8),
            copy(6, 0),
            branch(JNE, 0, 0, 21 + between.len() as i16),
            between,
            update(TABLE, -8, -16, NOEXIST),
            branch(JEQ, 0, 0, 3),
            branch(JEQ, 0, -17, 2),
            end(),
            look_up(TABLE, -8),
            copy(6, 0),
            branch(JNE, 6, 0, 2),
            end(),
            then,
            mov(1, 3),
            add(DW, 6, 0, 1),
            end(),
        ]
    };
    let sent = [store_imm(DW, 10, -32, 0), send(-32)].concat();
    let length: usize = program(vec![], vec![])[6..14].iter().map(Vec::len).sum();
    assert_eq!(length, 21);
    assert_eq!(of(TABLE, &program(vec![], vec![])), summed());
    // After both ways have met, anything may happen.
    assert_eq!(of(TABLE, &program(sent.clone(), vec![])), summed());
    // On one of them, nothing may.
    whole(TABLE, &program(vec![], sent));
}

#[test]
fn a_missing_element_must_not_decide_about_anything_else() {
    let sent = [store_imm(DW, 10, -32, 0), send(-32)].concat();
    let event = [
        store_imm(DW, 10, -8, 7),
        store_imm(DW, 10, -16, 1),
        look_up(TABLE, -8),
        if_missing(
            [update(TABLE, -8, -16, ANY), sent].concat(),
            [mov(1, 1), add(DW, 0, 0, 1)].concat(),
        ),
        end(),
    ];
    whole(TABLE, &event);
    let other_map = [
        store_imm(DW, 10, -8, 7),
        look_up(TABLE, -8),
        if_missing(
            [map_value(1, ARRAY, 0), mov(2, 1), add(DW, 1, 0, 2)].concat(),
            vec![],
        ),
        end(),
    ];
    assert_eq!(of(TABLE, &other_map), Sharing::ReadOnly);
    assert_eq!(of(ARRAY, &other_map), summed());
    let counts = analyse(&[count(), end()]);
    let both = counts[&TABLE].and(&analyse(&other_map)[&TABLE]);
    assert!(matches!(both.sharing(), Sharing::Whole(_)));
    let only_if_there = [
        store_imm(DW, 10, -8, 7),
        look_up(TABLE, -8),
        if_missing(vec![], [mov(1, 1), add(DW, 0, 0, 1)].concat()),
        end(),
    ];
    whole(TABLE, &only_if_there);
    let only_if_missing = [
        store_imm(DW, 10, -8, 7),
        store_imm(DW, 10, -16, 1),
        look_up(TABLE, -8),
        if_missing(update(TABLE, -8, -16, ANY), vec![]),
        end(),
    ];
    whole(TABLE, &only_if_missing);
}

#[test]
fn an_element_that_is_created_must_be_known_to_be_missing() {
    let blind = [
        store_imm(DW, 10, -8, 7),
        store_imm(DW, 10, -16, 0),
        update(TABLE, -8, -16, ANY),
        end(),
    ];
    whole(TABLE, &blind);
    let zeros_if_missing = [
        store_imm(DW, 10, -8, 7),
        store_imm(DW, 10, -16, 0),
        update(TABLE, -8, -16, NOEXIST),
        end(),
    ];
    assert_eq!(of(TABLE, &zeros_if_missing), Sharing::Summed(vec![]));
    let told_by_the_result = [
        store_imm(DW, 10, -8, 7),
        store_imm(DW, 10, -16, 0),
        update(TABLE, -8, -16, NOEXIST),
        store(DW, 10, -32, 0),
        send(-32),
        end(),
    ];
    whole(TABLE, &told_by_the_result);
    // The key looked up is another.
    let other_key = [
        call(HelperId::KTIME_GET_NS),
        store(DW, 10, -8, 0),
        store_imm(DW, 10, -16, 1),
        look_up(TABLE, -8),
        if_missing(
            [
                call(HelperId::KTIME_GET_NS),
                store(DW, 10, -8, 0),
                update(TABLE, -8, -16, ANY),
            ]
            .concat(),
            [mov(1, 1), add(DW, 0, 0, 1)].concat(),
        ),
        end(),
    ];
    whole(TABLE, &other_key);
    // Between the look-up and the creation, another key that may be the same is created.
    let same_key = [
        call(HelperId::KTIME_GET_NS),
        store(DW, 10, -8, 0),
        store_imm(DW, 10, -16, 1),
        store_imm(DW, 10, -24, 7),
        store_imm(DW, 10, -32, 0),
        look_up(TABLE, -8),
        if_missing(
            [
                update(TABLE, -24, -32, NOEXIST),
                update(TABLE, -8, -16, ANY),
            ]
            .concat(),
            [mov(1, 1), add(DW, 0, 0, 1)].concat(),
        ),
        end(),
    ];
    whole(TABLE, &same_key);
}

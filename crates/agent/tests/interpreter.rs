//! The interpreter's faults, and its clean-up after a program that ended early.

mod common;
#[path = "interpreter/insns.rs"]
mod insns;

use beeline_agent::helpers;
use beeline_codegen::{Bytecode, Engine, Interpreter};
use beeline_isa::{Insn, Listing, imm64, opcode::*};
use beeline_maps::Fields;
use beeline_uapi::{HelperId as Id, MapType, flags};

use common::Environment;
use common::maps::{Ours, spec};
use insns::{END, UNLESS_NULL, add, call, call_local, copy, insn, load, map, mov, slot, store};

/// Runs a program with 16 bytes of context; returns r0, or the fault.
fn outcome(environment: &mut Environment, parts: &[&[Insn]]) -> Result<u64, String> {
    let insns = parts.concat();
    let program = Interpreter::with_budget(1 << 20)
        .load(&Bytecode::new(&insns))
        .unwrap_or_else(|error| panic!("{error}\n{}", Listing(&insns)));
    let mut memory = [0; 16];
    environment
        .run_on(&*program, &mut memory)
        .map_err(|fault| fault.to_string())
}

/// Asserts that the program ends with a fault that says this.
#[track_caller]
fn refused(environment: &mut Environment, parts: &[&[Insn]], why: &str) {
    match outcome(environment, parts) {
        Err(fault) if fault.contains(why) => {}
        other => panic!("{other:?} in place of {why}"),
    }
}

#[test]
fn memory_that_is_not_the_programs() {
    let mut nothing = Environment::new();
    let refused = |one: &[Insn]| {
        refused(
            &mut Environment::new(),
            &[one, &[mov(0, 0), END]],
            "not the program's memory",
        );
    };
    refused(&[store(10, 0, 1)]);
    refused(&[store(10, -520, 1)]);
    refused(&[load(0, 10, -4)]);
    refused(&[load(0, 1, 9)]);
    refused(&[load(0, 1, -1)]);
    refused(&[mov(2, 0), load(0, 2, 0)]);
    refused(&[mov(2, -4), load(0, 2, 0)]);
    refused(&[insn(STX | ATOMIC | DW, 1, 1, 12, 0)]);
    let sound = [store(10, -512, 1), store(1, 8, 1), load(0, 10, -8)];
    assert_eq!(outcome(&mut nothing, &[&sound, &[END]]), Ok(0));
}

#[test]
fn a_callers_frame_is_reached_and_a_left_one_is_not() {
    let mut nothing = Environment::new();
    let write = [
        copy(1, 10),
        add(1, -8),
        call_local(2),
        load(0, 10, -8),
        END,
        insn(ST | MEM | DW, 1, 0, 0, 7),
        mov(0, 0),
        END,
    ];
    assert_eq!(outcome(&mut nothing, &[&write]), Ok(7));
    let left = [call_local(2), load(0, 0, -8), END, copy(0, 10), END];
    refused(&mut nothing, &[&left], "not the program's memory");
}

#[test]
fn atomics_that_are_not_aligned() {
    let odd = [
        store(10, -16, 1),
        insn(STX | ATOMIC | DW, 10, 1, -12, 0),
        mov(0, 0),
        END,
    ];
    refused(&mut Environment::new(), &[&odd], "misaligned");
}

#[test]
fn registers_that_were_never_written() {
    let mut nothing = Environment::new();
    let mut refused = |insns: &[Insn], why| refused(&mut nothing, &[insns], why);
    refused(&[copy(0, 3), END], "insn 0: R3 !read_ok");
    refused(&[END], "insn 0: R0 !read_ok");
    // After a helper, and after one that returns nothing.
    refused(&[call(Id::KTIME_GET_NS), copy(0, 1), END], "R1 !read_ok");
    // Written on one path only.
    refused(
        &[
            load(1, 1, 0),
            insn(JMP | JEQ | K, 1, 0, 1, 0),
            mov(0, 1),
            END,
        ],
        "insn 3: R0 !read_ok",
    );
    // By a function that returns nothing, and in one that did not get it.
    refused(&[call_local(1), END, mov(1, 0), END], "insn 1: R0 !read_ok");
    refused(&[call_local(1), END, copy(0, 5), END], "R5 !read_ok");
    refused(
        &[mov(6, 1), call_local(1), END, copy(0, 6), END],
        "R6 !read_ok",
    );
}

#[test]
fn programs_that_run_for_too_long_are_stopped() {
    let mut nothing = Environment::new();
    let mut refused = |insns: &[Insn]| refused(&mut nothing, &[insns], "for too long");
    refused(&[insn(JMP | JA, 0, 0, -1, 0), END]);
    refused(&[mov(0, 0), add(0, 1), insn(JMP | JNE | K, 0, 0, -2, 0), END]);
    // A callback that does nothing, more often than the instruction budget allows.
    let [function, rest] = imm64(2, PSEUDO_FUNC, 5);
    let many = |count| {
        [
            mov(1, count),
            function,
            rest,
            mov(3, 0),
            mov(4, 0),
            call(Id::LOOP),
            END,
        ]
    };
    refused(&[&many(8 << 20)[..], &[mov(6, 0), mov(6, 0), mov(0, 0), END]].concat());
}

#[test]
fn long_functions_that_are_called_often() {
    let mut nothing = Environment::new();
    let long = [vec![mov(0, 0); 4096], vec![END]].concat();
    // All of it straight on.
    let calls: Vec<Insn> = (0..400)
        .rev()
        .map(|behind| call_local(behind + 1))
        .collect();
    refused(&mut nothing, &[&calls, &[END], &long], "for too long");
    let [function, rest] = imm64(2, PSEUDO_FUNC, 5);
    let by_helper = [
        mov(1, 400),
        function,
        rest,
        mov(3, 0),
        mov(4, 0),
        call(Id::LOOP),
        END,
    ];
    refused(&mut nothing, &[&by_helper, &long], "for too long");
    assert_eq!(
        outcome(&mut nothing, &[&calls[200..], &[END], &long]),
        Ok(0)
    );
}

#[test]
fn places_of_the_table_that_are_no_helpers() {
    let mut nothing = Environment::new();
    for id in 240..256 {
        assert!(helpers::ALL.iter().all(|helper| helper.number != id));
        let why = format!("the arguments of helper {id} are not known");
        let by_number = [copy(3, 1), mov(2, 8), call(Id(id)), mov(0, 0), END];
        refused(&mut nothing, &[&by_number], &why);
    }
}

/// An array whose values have 16 bytes, a ring, a hash with locks, and an array that programs only
/// read.
struct Maps {
    environment: Environment,
    ring: Ours,
    hash: Ours,
    _others: [Ours; 2],
}

const ARRAY: u64 = 0;
const RING: u64 = 1;
const LOCKS: u64 = 2;
const CONSTANTS: u64 = 3;

fn maps() -> Maps {
    let new = |spec| Ours::new(&spec, 1).expect("a map");
    let array = new(spec(MapType::ARRAY, 4, 16, 2));
    let ring = new(spec(MapType::RINGBUF, 0, 0, 4096));
    let hash = new(spec(MapType::HASH, 4, 16, 4));
    let constants = new(beeline_maps::Spec {
        flags: flags::RDONLY_PROG,
        ..spec(MapType::ARRAY, 4, 16, 1)
    });
    let mut environment = Environment::new();
    let fields = Fields::new(hash.map.spec(), Some(4), None).expect("a lock");
    for map in [
        array.map,
        ring.map,
        hash.map.with_fields(fields),
        constants.map,
    ] {
        environment.add_map(map);
    }
    Maps {
        environment,
        ring,
        hash,
        _others: [array, constants],
    }
}

/// `r0` = the first element of map n, or the end.
fn look_up(number: u64) -> Vec<Insn> {
    [
        &map(1, number)[..],
        &slot(2, -8),
        &[call(Id::MAP_LOOKUP_ELEM)],
        &UNLESS_NULL,
    ]
    .concat()
}

#[test]
fn values_end_where_they_end() {
    let mut maps = maps();
    let here = &mut maps.environment;
    let found = look_up(ARRAY);
    let last = [insn(ST | MEM | DW, 0, 0, 8, 5), load(0, 0, 8), END];
    assert_eq!(outcome(here, &[&found, &last]), Ok(5));
    refused(
        here,
        &[&found, &[load(0, 0, 9), END]],
        "not the program's memory",
    );
    let by_address = imm64(1, PSEUDO_MAP_VALUE, ARRAY | 8 << 32);
    assert_eq!(outcome(here, &[&by_address, &[load(0, 1, 0), END]]), Ok(5));
    refused(
        here,
        &[&by_address, &[load(0, 1, 1), END]],
        "not the program's memory",
    );
    // Before any look-up, it is out of reach.
    let [other, rest] = map(1, ARRAY);
    refused(
        here,
        &[&[other, rest, load(0, 1, 0), END]],
        "not the program's memory",
    );
}

#[test]
fn stores_to_read_only_maps_are_refused() {
    let mut maps = maps();
    let here = &mut maps.environment;
    let constant = imm64(1, PSEUDO_MAP_VALUE, CONSTANTS);
    assert_eq!(outcome(here, &[&constant, &[load(0, 1, 0), END]]), Ok(0));
    refused(
        here,
        &[&constant, &[store(1, 0, 10), mov(0, 0), END]],
        "a write of 8 bytes",
    );
    let update = [
        &map(1, CONSTANTS)[..],
        &slot(2, -8),
        &slot(3, -24),
        &[mov(4, 0), call(Id::MAP_UPDATE_ELEM), END],
    ];
    refused(
        here,
        &[&update.concat()],
        "R1 is a map that programs only read",
    );
}

#[test]
fn arguments_of_helpers() {
    let mut maps = maps();
    let here = &mut maps.environment;
    let end = [mov(0, 0), END];
    let look_up = |parts: &[Insn]| [parts, &[call(Id::MAP_LOOKUP_ELEM)], &end].concat();
    refused(
        here,
        &[&look_up(&[mov(1, 1), mov(2, 0)])],
        "R1 is not a map",
    );
    refused(
        here,
        &[&look_up(&[&map(1, RING)[..], &slot(2, -8)].concat())],
        "R1 is a map of type 27",
    );
    let outside = [&map(1, ARRAY)[..], &[copy(2, 10), add(2, -2)]].concat();
    refused(
        here,
        &[&look_up(&outside)],
        "R2 invalid read from memory, 4 bytes",
    );
    let value = [
        &map(1, ARRAY)[..],
        &slot(2, -8),
        &[
            copy(3, 10),
            add(3, -12),
            mov(4, 0),
            call(Id::MAP_UPDATE_ELEM),
        ],
    ];
    refused(
        here,
        &[&value.concat(), &end],
        "R3 invalid read from memory, 16 bytes",
    );
    let comm = |size| {
        [
            &slot(1, -8)[..],
            &[mov(2, size), call(Id::GET_CURRENT_COMM)],
        ]
        .concat()
    };
    assert_eq!(outcome(here, &[&comm(8), &end]), Ok(0));
    refused(
        here,
        &[&comm(9), &end],
        "R1 invalid write to memory, 9 bytes",
    );
    refused(here, &[&comm(0), &end], "R2 invalid zero-sized access");
    refused(here, &[&comm(-1), &end], "R1 invalid write to memory");
    let compare = [&slot(1, -8)[..], &[mov(2, 8), copy(3, 10), add(3, -1)]].concat();
    let ones = insn(ST | MEM | DW, 10, 0, -8, -1);
    assert_eq!(
        outcome(here, &[&compare, &[call(Id::STRNCMP)], &end]),
        Ok(0)
    );
    refused(
        here,
        &[&compare, &[ones, call(Id::STRNCMP)], &end],
        "R3 is not a string that ends",
    );
    let looped = [mov(1, 1), mov(2, 7), mov(3, 0), mov(4, 0), call(Id::LOOP)];
    refused(here, &[&looped, &end], "R2 is not a function");
    refused(
        here,
        &[
            &[mov(1, 0), call(Id::GET_CURRENT_TASK), call(Id::GET_FUNC_IP)],
            &end,
        ],
        "R1 !read_ok",
    );
    refused(
        here,
        &[&[mov(1, 0), call(Id::GET_FUNC_IP)], &end],
        "R1 is not the context",
    );
    refused(
        here,
        &[&[mov(1, 0), mov(2, 0), call(Id::OVERRIDE_RETURN)], &end],
        "R1 is not the context",
    );
}

#[test]
fn records_are_handed_back() {
    let mut maps = maps();
    let here = &mut maps.environment;
    let reserve = [
        &map(1, RING)[..],
        &[mov(2, 8), mov(3, 0), call(Id::RINGBUF_RESERVE)],
        &UNLESS_NULL,
    ]
    .concat();
    let submit = [
        copy(1, 0),
        mov(2, 0),
        call(Id::RINGBUF_SUBMIT),
        mov(0, 3),
        END,
    ];
    assert_eq!(
        outcome(
            here,
            &[&reserve, &[insn(ST | MEM | DW, 0, 0, 0, 1)], &submit]
        ),
        Ok(3)
    );
    refused(
        here,
        &[&reserve, &[load(0, 0, 1), END]],
        "not the program's memory",
    );
    refused(here, &[&reserve, &[mov(0, 0), END]], "Unreleased reference");
    let twice = [
        copy(6, 0),
        copy(1, 0),
        mov(2, 0),
        call(Id::RINGBUF_SUBMIT),
        copy(1, 6),
        mov(2, 0),
        call(Id::RINGBUF_SUBMIT),
    ];
    refused(
        here,
        &[&reserve, &twice, &[mov(0, 0), END]],
        "R1 is not a reserved record",
    );
    let after = [
        copy(6, 0),
        copy(1, 0),
        mov(2, 0),
        call(Id::RINGBUF_SUBMIT),
        load(0, 6, 0),
        END,
    ];
    refused(here, &[&reserve, &after], "not the program's memory");
    // None of the programs that faulted keeps the ring busy: each record was submitted or
    // discarded.
    let ring = beeline_maps::ringbuf::Ring::of(&maps.ring.map).expect("a ring");
    let record = ring
        .reserve(8, 0, &common::maps::caller(2, 0))
        .expect("room");
    ring.commit(record, true, 0);
}

#[test]
fn dynptrs_are_what_a_helper_made() {
    let mut maps = maps();
    let here = &mut maps.environment;
    let make = [
        &map(1, RING)[..],
        &[
            mov(2, 8),
            mov(3, 0),
            copy(4, 10),
            add(4, -16),
            call(Id::RINGBUF_RESERVE_DYNPTR),
        ],
    ]
    .concat();
    let part = [
        copy(1, 10),
        add(1, -16),
        mov(2, 0),
        mov(3, 8),
        call(Id::DYNPTR_DATA),
    ];
    let discard = [
        copy(1, 10),
        add(1, -16),
        mov(2, 0),
        call(Id::RINGBUF_DISCARD_DYNPTR),
        mov(0, 4),
        END,
    ];
    let written = [
        &part[..],
        &[insn(JMP | JEQ | K, 0, 0, 1, 0), store(0, 0, 10)],
    ]
    .concat();
    assert_eq!(outcome(here, &[&make, &written, &discard]), Ok(4));
    refused(here, &[&part, &[END]], "R1 is not a dynptr");
    refused(here, &[&make, &part, &[END]], "Unreleased reference");
    let forged = [copy(1, 10), store(10, -16, 1)];
    refused(
        here,
        &[&make, &forged, &discard],
        "a dynptr that was written over",
    );
    refused(
        here,
        &[&make, &make, &discard],
        "cannot overwrite referenced dynptr",
    );
    let kept = [
        &part[..],
        &[copy(6, 0)],
        &discard[..4],
        &[load(0, 6, 0), END],
    ]
    .concat();
    refused(here, &[&make, &kept], "not the program's memory");
}

#[test]
fn locks_are_released() {
    let mut maps = maps();
    let caller = common::maps::caller(9, 0);
    maps.hash
        .set(&[0; 4], &[0; 16], 0, &caller)
        .expect("an element");
    let here = &mut maps.environment;
    let found = look_up(LOCKS);
    let lock = [copy(6, 0), copy(1, 0), add(1, 4), call(Id::SPIN_LOCK)];
    let unlock = [copy(1, 6), add(1, 4), call(Id::SPIN_UNLOCK), mov(0, 8), END];
    assert_eq!(outcome(here, &[&found, &lock, &unlock]), Ok(8));
    refused(
        here,
        &[&found, &lock, &[mov(0, 0), END]],
        "Unreleased reference",
    );
    // If it were still held, this would wait in vain, and say so.
    assert_eq!(outcome(here, &[&found, &lock, &unlock]), Ok(8));
    refused(
        here,
        &[&found, &lock, &[call(Id::KTIME_GET_NS), END]],
        "while holding a lock",
    );
    refused(
        here,
        &[&found, &[copy(1, 0), call(Id::SPIN_LOCK), END]],
        "R1 is not a lock",
    );
    refused(
        here,
        &[&found, &[copy(6, 0)], &unlock],
        "without taking a lock",
    );
}

#[test]
fn callbacks_are_watched_too() {
    let mut maps = maps();
    let here = &mut maps.environment;
    let [function, rest] = imm64(2, PSEUDO_FUNC, 5);
    let each = [
        &map(1, ARRAY)[..],
        &[
            function,
            rest,
            mov(3, 0),
            mov(4, 0),
            call(Id::FOR_EACH_MAP_ELEM),
            END,
        ],
    ]
    .concat();
    let count = |body: &[Insn]| [body, &[mov(0, 0), END]].concat();
    // Two elements; the body begins four slots behind the address.
    assert_eq!(outcome(here, &[&each, &count(&[load(5, 3, 8)])]), Ok(2));
    refused(
        here,
        &[&each, &count(&[insn(ST | MEM | B, 2, 0, 0, 1)])],
        "a write of 1 bytes",
    );
    refused(
        here,
        &[&each, &count(&[load(5, 3, 9)])],
        "not the program's memory",
    );
    refused(here, &[&each, &count(&[copy(0, 5)])], "R5 !read_ok");
    // Poison ends what the helper does, as in compiled code.
    assert_eq!(
        outcome(
            here,
            &[&each, &count(&[call(Id(POISON_CORE.cast_unsigned()))])]
        ),
        Ok(1)
    );
}

#[test]
fn missing_objects_are_refused() {
    let mut nothing = Environment::new();
    let mut refused = |insns: &[Insn], why| refused(&mut nothing, &[insns], why);
    refused(
        &[insn(JMP | CALL, 0, PSEUDO_KFUNC_CALL, 0, 9), END],
        "kernel function #9",
    );
    let [variable, rest] = imm64(0, PSEUDO_BTF_ID, 9);
    refused(&[variable, rest, END], "kernel variable #9");
    let [first, rest] = map(0, 0);
    refused(&[first, rest, END], "there is no map 0");
    refused(
        &[call(Id(250)), END],
        "the arguments of helper 250 are not known",
    );
    refused(
        &[mov(1, 0), call(Id::GET_FUNC_ARG_CNT), END],
        "R1 is not the context",
    );
    refused(
        &[call(Id::GET_FUNC_ARG_CNT), END],
        "there is no helper 185 here",
    );
    assert_eq!(
        outcome(
            &mut nothing,
            &[&[mov(0, 1), call(Id(POISON_CORE.cast_unsigned())), END]]
        ),
        Ok(0)
    );
}

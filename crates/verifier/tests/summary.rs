//! What an accepted program is said to use, and that nothing makes the verifier panic.

use beeline_isa::{Insn, imm64, opcode::*};
use beeline_verifier::{Flow, MapFacts, MapUse, Rules, Summary, Unresolved, check, resolve};
use proptest::prelude::*;

const END: Insn = Insn {
    code: JMP | EXIT,
    dst: 0,
    src: 0,
    off: 0,
    imm: 0,
};

fn insn(code: u8, dst: u8, src: u8, off: i16, imm: i32) -> Insn {
    Insn {
        code,
        dst,
        src,
        off,
        imm,
    }
}

fn mov(dst: u8, imm: i32) -> Insn {
    insn(ALU64 | K | MOV, dst, 0, 0, imm)
}

fn mov_reg(dst: u8, src: u8) -> Insn {
    insn(ALU64 | X | MOV, dst, src, 0, 0)
}

fn call(id: i32) -> Insn {
    insn(JMP | CALL, 0, HELPER_CALL, 0, id)
}

fn call_local(off: i32) -> Insn {
    insn(JMP | CALL, 0, PSEUDO_CALL, 0, off)
}

fn load(dst: u8, src: u8, off: i16) -> Insn {
    insn(LDX | MEM | DW, dst, src, off, 0)
}

fn store(dst: u8, off: i16, src: u8) -> Insn {
    insn(STX | MEM | DW, dst, src, off, 0)
}

const ANY: Rules<'static> = Rules {
    helper: &|id| id < 212,
    map: &|fd| {
        (fd < 100).then_some(MapFacts {
            direct_value_bytes: Some(64),
        })
    },
};

fn summary(insns: &[Insn]) -> Summary {
    check(insns, &ANY).unwrap_or_else(|reject| panic!("{reject}"))
}

#[test]
fn the_smallest_program_uses_nothing() {
    let nothing = Summary {
        helpers: vec![],
        maps: vec![],
        reads_context: false,
        stack_bytes: 0,
        calls_subprograms: false,
        frame_depth: 1,
    };
    assert_eq!(summary(&[mov(0, 0), END]), nothing);
}

#[test]
fn helpers_are_sorted_and_maps_in_the_order_of_use() {
    let [a, b] = imm64(1, PSEUDO_MAP_FD, 9);
    let [c, d] = imm64(2, PSEUDO_MAP_VALUE, 8 << 32 | 4);
    let [e, f] = imm64(3, PSEUDO_MAP_VALUE, 9);
    let insns = [a, b, c, d, e, f, call(14), call(5), call(14), END];
    let summary = summary(&insns);
    assert_eq!(summary.helpers, [5, 14]);
    let maps = [
        MapUse {
            fd: 9,
            by_handle: true,
            by_value: true,
        },
        MapUse {
            fd: 4,
            by_handle: false,
            by_value: true,
        },
    ];
    assert_eq!(summary.maps, maps);

    let resolved = resolve(&insns, &[(9, 0), (4, 1)]).expect("both are listed");
    assert_eq!(
        (
            resolved[0].imm,
            resolved[2].imm,
            resolved[3].imm,
            resolved[4].imm
        ),
        (0, 1, 8, 0)
    );
    assert_eq!(
        resolve(&insns, &[(9, 0)]),
        Err(Unresolved { insn: 2, fd: 4 })
    );
}

#[test]
fn a_second_slot_is_never_taken_for_a_map() {
    // Its fields but the immediate are 0, so it is none, whatever the immediate looks like.
    let [low, high] = imm64(1, 0, 0x18 << 32);
    let insns = [low, high, mov(0, 0), END];
    assert_eq!(resolve(&insns, &[]).as_deref(), Ok(&insns[..]));
}

#[test]
fn the_context_is_read_where_r1_or_a_copy_is_used() {
    let reads = |insns: &[Insn]| summary(insns).reads_context;
    assert!(reads(&[load(0, 1, 8), END]));
    assert!(reads(&[mov_reg(6, 1), call(14), load(0, 6, 8), END]));
    assert!(reads(&[mov_reg(0, 1), END]), "returned");
    assert!(reads(&[store(10, -8, 1), mov(0, 0), END]), "stored");
    assert!(
        reads(&[call(174), END]),
        "r1 goes to a helper that takes it"
    );
    assert!(
        reads(&[call(99), END]),
        "r1 goes to a helper that may take it"
    );
    assert!(
        reads(&[call_local(1), END, mov(0, 0), END]),
        "r1 goes to a function"
    );
    assert!(!reads(&[call(14), END]), "the helper takes no argument");
    assert!(
        !reads(&[mov_reg(6, 1), mov(0, 0), END]),
        "copied and forgotten"
    );
    assert!(!reads(&[mov(1, 3), mov_reg(0, 1), END]), "overwritten");
    assert!(!reads(&[
        mov(1, 0),
        store(10, -8, 1),
        load(1, 10, -8),
        call(5),
        END
    ]));
}

#[test]
fn the_stack_is_as_deep_as_its_accesses_or_all_of_it() {
    assert_eq!(
        summary(&[mov(0, 0), store(10, -24, 0), load(0, 10, -8), END]).stack_bytes,
        24
    );
    assert_eq!(summary(&[mov_reg(2, 10), mov(0, 0), END]).stack_bytes, 512);
    assert_eq!(
        summary(&[store(10, -8, 10), mov(0, 0), END]).stack_bytes,
        512
    );
}

#[test]
fn functions_are_counted_along_the_deepest_chain() {
    let insns = [
        call_local(3),
        call_local(2),
        mov(0, 0),
        END,
        call_local(1),
        END,
        mov(0, 0),
        END,
    ];
    let summary = summary(&insns);
    assert_eq!((summary.frame_depth, summary.calls_subprograms), (3, true));
}

#[test]
fn poison_ends_a_path() {
    // What follows would read r3, which nothing wrote.
    let insns = [mov(0, 0), call(POISON_EXTERN + 3), mov_reg(0, 3), END];
    assert_eq!(summary(&insns).helpers, Vec::<u32>::new());
    let flow = Flow::of(&insns).expect("a shape");
    assert_eq!(
        (0..4)
            .map(|index| flow.is_reachable(index))
            .collect::<Vec<_>>(),
        [true, true, false, false]
    );
}

/// Instructions that are defined more often than random bytes would be.
fn likely_insn() -> impl Strategy<Value = Insn> {
    let code = prop_oneof![
        any::<u8>(),
        proptest::sample::select(
            &[
                0x05, 0x15, 0x1d, 0x85, 0x95, 0x18, 0x79, 0x7b, 0xbf, 0xb7, 0x07, 0x06, 0xdb
            ][..]
        ),
    ];
    let imm = prop_oneof![any::<i32>(), -12..12_i32, Just(POISON_CORE)];
    let off = prop_oneof![any::<i16>(), -12..12_i16, Just(0)];
    (code, 0..12_u8, 0..7_u8, off, imm).prop_map(|(code, dst, src, off, imm)| {
        let is_defined_without = matches!(code, 0x18 | 0x85 | 0xbf | 0xb7 | 0x07);
        Insn {
            code,
            dst,
            src,
            off: if is_defined_without { 0 } else { off },
            imm,
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(4000) })]

    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(insns) = Insn::decode_all(&bytes) {
            let _ = check(&insns.collect::<Vec<_>>(), &ANY);
        }
    }

    #[test]
    fn no_instructions_make_it_panic(mut insns in proptest::collection::vec(likely_insn(), 0..24)) {
        insns.push(END);
        if let Ok(summary) = check(&insns, &ANY) {
            prop_assert!(summary.frame_depth >= 1 && summary.stack_bytes <= 512);
        }
        let _ = resolve(&insns, &[(1, 0)]);
    }
}

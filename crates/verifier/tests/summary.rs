//! The summary of an accepted program, and that nothing makes the verifier panic.

use beeline_isa::{Insn, imm64, opcode::*};
use beeline_uapi::{HelperId, MapType, ProgramType};
use beeline_verifier::program::{Kind, Map, Program};
use beeline_verifier::verdict::{LogLevel, MapUse, ProgramSummary, Verdict};
use beeline_verifier::{Flow, Unresolved, resolve, verify};
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

fn call(id: HelperId) -> Insn {
    insn(JMP | CALL, 0, HELPER_CALL, 0, id.0 as i32)
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

/// Verifies a probe that may use two arrays of one element, by the descriptors 4 and 9.
fn verdict(insns: &[Insn], level: u32) -> Verdict {
    let map = |id| Map {
        id,
        map_type: MapType::ARRAY,
        key_size: 4,
        value_size: 64,
        max_entries: 1,
        ..Map::default()
    };
    let program = Program {
        kind: Kind {
            prog_type: ProgramType::KPROBE,
            ..Kind::default()
        },
        gpl: true,
        insns,
        maps: &[(4, &map(1)), (9, &map(2))],
        types: None,
        kernel: None,
        ..Default::default()
    };
    verify(&program, LogLevel(level))
}

fn facts(insns: &[Insn]) -> ProgramSummary {
    let Verdict { result, log, .. } = verdict(insns, LogLevel::PATH);
    result.unwrap_or_else(|_| panic!("{log}"))
}

#[test]
fn the_smallest_program_uses_nothing() {
    let nothing = ProgramSummary {
        stack_bytes: vec![0],
        frame_depth: 1,
        ..ProgramSummary::default()
    };
    assert_eq!(facts(&[mov(0, 0), END]), nothing);
}

#[test]
fn helpers_are_sorted_and_maps_in_the_order_of_use() {
    let [a, b] = imm64(1, PSEUDO_MAP_FD, 9);
    let [c, d] = imm64(2, PSEUDO_MAP_VALUE, 8 << 32 | 4);
    let [e, f] = imm64(3, PSEUDO_MAP_VALUE, 9);
    let insns = [
        a,
        b,
        c,
        d,
        e,
        f,
        call(HelperId::GET_CURRENT_PID_TGID),
        call(HelperId::KTIME_GET_NS),
        call(HelperId::GET_CURRENT_PID_TGID),
        END,
    ];
    let facts = facts(&insns);
    let called = [HelperId::KTIME_GET_NS, HelperId::GET_CURRENT_PID_TGID];
    assert_eq!(facts.helpers, called);
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
    assert_eq!(facts.maps, maps);

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
    // Its fields but the immediate are 0, so it is no map, whatever the immediate looks like.
    let [low, high] = imm64(1, 0, 0x18 << 32);
    let insns = [low, high, mov(0, 0), END];
    assert_eq!(resolve(&insns, &[]).as_deref(), Ok(&insns[..]));
}

#[test]
fn the_context_is_read_where_r1_or_a_copy_is_used() {
    let reads = |insns: &[Insn]| facts(insns).reads_context;
    assert!(reads(&[load(0, 1, 8), END]));
    assert!(reads(&[
        mov_reg(6, 1),
        call(HelperId::GET_CURRENT_PID_TGID),
        load(0, 6, 8),
        END
    ]));
    assert!(
        reads(&[call(HelperId::GET_ATTACH_COOKIE), END]),
        "r1 goes to a helper that takes it"
    );
    assert!(
        reads(&[call_local(1), END, load(0, 1, 8), END]),
        "r1 goes to a function"
    );
    assert!(
        !reads(&[call(HelperId::GET_CURRENT_PID_TGID), END]),
        "the helper takes no argument"
    );
    assert!(
        !reads(&[mov_reg(6, 1), mov(0, 0), END]),
        "copied and forgotten"
    );
    assert!(!reads(&[mov(1, 3), mov_reg(0, 1), END]), "overwritten");
    assert!(!reads(&[
        mov(1, 0),
        store(10, -8, 1),
        load(1, 10, -8),
        call(HelperId::KTIME_GET_NS),
        END
    ]));
}

#[test]
fn the_stack_is_as_deep_as_it_is_used() {
    let bytes = |insns: &[Insn]| facts(insns).stack_bytes;
    let near = [mov(0, 0), store(10, -24, 0), load(0, 10, -8), END];
    let refused = verdict(&near, 0).result;
    assert!(
        refused.is_ok(),
        "privileged programs may read what they have not written"
    );
    assert_eq!(bytes(&near), [24]);
    // Compilers, which do not follow addresses, have to give the largest stack to a frame whose
    // address leaves r10.
    let escapes = [mov_reg(2, 10), mov(0, 0), store(2, -8, 0), END];
    assert_eq!(bytes(&escapes), [8]);
    let of_flow = |insns: &[Insn]| {
        let flow = Flow::of(insns).expect("a shape");
        flow.stack_bytes(flow.functions()[0])
    };
    assert_eq!((of_flow(&near), of_flow(&escapes)), (24, 512));
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
    let facts = facts(&insns);
    assert_eq!((facts.frame_depth, facts.calls_subprograms), (3, true));
}

#[test]
fn unreachable_code_is_dead_and_may_be_invalid() {
    let is_zero = insn(JMP | K | JEQ, 0, 0, 2, 0);
    let [low, high] = imm64(1, PSEUDO_BTF_ID, 1);
    let insns = [mov(0, 0), is_zero, low, high, END];
    assert_eq!(facts(&insns).dead, [2]);
    let poison = [
        mov(0, 0),
        insn(JMP | K | JEQ, 0, 0, 1, 0),
        call(HelperId(POISON_CORE as u32)),
        END,
    ];
    assert_eq!(facts(&poison).dead, [2]);
    let reached = [mov(0, 0), call(HelperId(POISON_CORE as u32)), END];
    let refusal = verdict(&reached, 0).result.expect_err("poison");
    assert_eq!(
        refusal.reason,
        format!("invalid func unknown#{POISON_CORE}")
    );
}

#[test]
fn a_log_is_as_long_as_it_once_was() {
    let two_ways = [
        call(HelperId::KTIME_GET_NS),
        insn(JMP | K | JEQ, 0, 0, 0, 7),
        mov(0, 0),
        END,
    ];
    let verdict = verdict(&two_ways, LogLevel::PATH);
    assert!(verdict.log.starts_with("processed "), "{}", verdict.log);
    assert!(verdict.longest_log > verdict.log.len());
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
            let _ = verdict(&insns.collect::<Vec<_>>(), LogLevel::PATH);
        }
    }

    #[test]
    fn no_instructions_make_it_panic(mut insns in proptest::collection::vec(likely_insn(), 0..24)) {
        insns.push(END);
        if let Ok(facts) = verdict(&insns, LogLevel::ALL).result {
            prop_assert!(facts.frame_depth >= 1 && facts.stack_bytes.iter().all(|bytes| *bytes <= 512));
        }
        let _ = resolve(&insns, &[(1, 0)]);
    }
}

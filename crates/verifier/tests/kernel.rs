//! Defective programs and good ones: the same verdict, error number and last words from the kernel
//! and from here.

use std::os::fd::AsRawFd;

use beeline_fuzz::kernel as bpf;
use beeline_isa::{Insn, imm64, opcode::*};
use beeline_uapi::{HelperId, MapType, ProgramType};
use beeline_verifier::program::{Kind, Map, Program};
use beeline_verifier::types::ProgramTypes;
use beeline_verifier::verdict::{LogLevel, Verdict};
use beeline_verifier::{function_starts, verify};

const END_PROGRAM: Insn = Insn {
    code: JMP | EXIT,
    dst: 0,
    src: 0,
    off: 0,
    imm: 0,
};
const R0_IS_0: Insn = Insn {
    code: ALU64 | K | MOV,
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

fn call_local(imm: i32) -> Insn {
    insn(JMP | CALL, 0, PSEUDO_CALL, 0, imm)
}

fn call(id: HelperId) -> Insn {
    insn(JMP | CALL, 0, HELPER_CALL, 0, id.0 as i32)
}

#[test]
fn single_instructions_get_the_kernels_verdicts() {
    agree(&[
        // Alone: undefined, or reading unwritten values.
        between(&[], insn(0x8d, 0, 1, 0, 0)),
        between(&[], insn(0xff, 0, 1, 0, 0)),
        between(&[], insn(0, 0, 0, 0, 0)),
        between(&[], insn(ALU64 | X | MOV, 0, 2, 0, 0)),
        between(&[], insn(ALU64 | X | MOV, 0, 12, 0, 0)),
        between(&[], insn(ALU64 | K | MOV, 10, 0, 0, 0)),
        between(&[], insn(ALU64 | K | MOV, 11, 0, 0, 0)),
        between(&[], insn(ALU64 | K | MOV, 0, 1, 0, 0)),
        between(&[], insn(ALU64 | K | MOV, 0, 0, 7, 0)),
        between(&[], insn(LDX | MEM | DW, 0, 10, -8, 1)),
        between(&[], insn(LDX | MEMSX | DW, 0, 10, -8, 0)),
        between(&[], insn(LD | ABS | DW, 0, 0, 0, 0)),
        between(
            &[insn(ALU64 | X | MOV, 6, 1, 0, 0)],
            insn(LD | IND | W, 0, 15, 0, 0),
        ),
        between(
            &[insn(ALU64 | X | MOV, 6, 1, 0, 0)],
            insn(LD | IND | W, 0, 11, 0, 0),
        ),
        between(&[], insn(LD | IND | W, 0, 15, 0, 0)),
        between(&[], insn(ALU | X | MOV, 0, 10, 0, 0)),
        // Arithmetic.
        between(&[R0_IS_0], insn(ALU | X | MOV, 0, 0, 32, 0)),
        between(&[R0_IS_0], insn(ALU64 | K | ADD, 0, 1, 0, 0)),
        between(&[R0_IS_0], insn(ALU64 | K | ADD, 0, 0, 1, 0)),
        between(&[R0_IS_0], insn(ALU64 | X | NEG, 0, 0, 0, 0)),
        between(&[R0_IS_0], insn(ALU64 | NEG, 0, 0, 0, 3)),
        between(&[R0_IS_0], insn(ALU | END, 0, 0, 0, 8)),
        between(&[R0_IS_0], insn(ALU64 | END | X, 0, 0, 0, 16)),
        between(&[R0_IS_0], insn(ALU64 | K | DIV, 0, 0, 0, 0)),
        between(&[R0_IS_0], insn(ALU64 | K | MOD, 0, 0, 1, 0)),
        between(&[R0_IS_0], insn(ALU64 | K | LSH, 0, 0, 0, 63)),
        between(&[R0_IS_0], insn(ALU64 | K | LSH, 0, 0, 0, 64)),
        between(&[R0_IS_0], insn(ALU | K | RSH, 0, 0, 0, 32)),
        between(&[R0_IS_0], insn(ALU | K | ARSH, 0, 0, 0, -1)),
        // Memory.
        between(&[R0_IS_0], insn(ST | MEM | DW, 10, 1, -8, 0)),
        between(&[R0_IS_0], insn(STX | MEM | DW, 10, 0, -8, 1)),
        between(&[R0_IS_0], insn(STX | MEM | DW, 10, 0, -512, 0)),
        between(&[R0_IS_0], insn(STX | MEM | DW, 10, 0, -520, 0)),
        between(&[R0_IS_0], insn(STX | MEM | DW, 10, 0, -12, 0)),
        between(&[R0_IS_0], insn(STX | MEM | W, 10, 0, 0, 0)),
        between(&[R0_IS_0], insn(LDX | MEM | B, 0, 10, 0, 0)),
        between(&[R0_IS_0], insn(STX | ATOMIC | H, 10, 0, -8, 0)),
        between(&[R0_IS_0], insn(STX | ATOMIC | DW, 10, 0, -8, 0x10)),
        between(&[R0_IS_0], insn(STX | ATOMIC | DW, 10, 10, -8, FETCH)),
        between(&[R0_IS_0], insn(STX | ATOMIC | B, 10, 0, -8, STORE_REL)),
        between(
            &[R0_IS_0, insn(ST | MEM | DW, 10, 0, -8, 0)],
            insn(STX | ATOMIC | DW, 0, 10, -8, LOAD_ACQ),
        ),
        // Calls.
        between(&[], call(HelperId::KTIME_GET_NS)),
        between(&[], call(HelperId::PROBE_READ)),
        between(&[], call(HelperId(5000))),
        between(&[], call(HelperId(u32::MAX))),
        between(
            &[call(HelperId::KTIME_GET_NS)],
            insn(ALU64 | X | MOV, 0, 1, 0, 0),
        ),
        between(&[], insn(JMP32 | CALL, 0, 0, 0, 5)),
        between(&[], insn(JMP | CALL, 1, 0, 0, 5)),
        between(&[], insn(JMP | CALL, 0, 0, 3, 5)),
        between(&[], insn(JMP | CALL, 0, 3, 0, 5)),
        // Jumps.
        between(&[R0_IS_0], insn(JMP | JA, 0, 0, 0, 1)),
        between(&[R0_IS_0], insn(JMP | JEQ, 0, 2, 0, 1)),
        between(&[R0_IS_0], insn(JMP32 | JA, 0, 0, 0, 0)),
        between(&[R0_IS_0], insn(JMP32 | JA, 0, 0, 1, 0)),
        between(&[R0_IS_0], insn(JMP | JEQ, 0, 0, 7, 0)),
        between(&[R0_IS_0], insn(JMP | JA, 0, 0, -3, 0)),
    ]);
}

#[test]
fn shapes_of_programs_get_the_kernels_verdicts() {
    let [low, high] = imm64(1, 0, 5);
    agree(&[
        vec![],
        vec![END_PROGRAM],
        vec![R0_IS_0, END_PROGRAM],
        vec![R0_IS_0],
        vec![R0_IS_0, insn(JMP | JEQ, 0, 0, -1, 0)],
        vec![R0_IS_0, END_PROGRAM, R0_IS_0, END_PROGRAM],
        vec![R0_IS_0, END_PROGRAM, call(HelperId(5000)), END_PROGRAM],
        vec![insn(JMP | JA, 0, 0, -1, 0)],
        vec![low, high, R0_IS_0, END_PROGRAM],
        vec![low, R0_IS_0, END_PROGRAM],
        vec![Insn { off: 1, ..low }, high, R0_IS_0, END_PROGRAM],
        vec![Insn { src: 9, ..low }, high, R0_IS_0, END_PROGRAM],
        vec![Insn { dst: 10, ..low }, high, R0_IS_0, END_PROGRAM],
        vec![R0_IS_0, insn(JMP | JEQ, 0, 0, 1, 0), low, high, END_PROGRAM],
        // libbpf's mark in code that constants make dead.
        vec![
            R0_IS_0,
            insn(JMP | JEQ, 0, 0, 1, 0),
            call(HelperId(POISON_CORE as u32)),
            END_PROGRAM,
        ],
    ]);
}

#[test]
fn may_goto_gets_the_kernels_verdict() {
    let may_goto = |dst, src, off, imm| insn(JMP | JCOND, dst, src, off, imm);
    let looped = |one| vec![R0_IS_0, one, insn(JMP | JA, 0, 0, -2, 0), END_PROGRAM];
    agree(&[
        looped(may_goto(0, 0, 1, 0)),
        looped(may_goto(0, 0, -1, 0)),
        looped(may_goto(0, 0, -3, 0)),
        looped(may_goto(0, 0, 1, 7)),
        looped(may_goto(1, 0, 1, 0)),
        looped(may_goto(0, 1, 1, 0)),
        looped(may_goto(0, 0, 3, 0)),
        looped(insn(JMP | JCOND | X, 0, 0, 1, 0)),
        looped(insn(JMP32 | JCOND, 0, 0, 1, 0)),
        vec![R0_IS_0, may_goto(0, 0, 0, 0), END_PROGRAM],
        vec![R0_IS_0, may_goto(0, 0, -2, 0)],
    ]);
}

/// A missing weak function may be called in dead code only.
#[test]
fn kernel_functions_that_are_not_there() {
    let missing = insn(JMP | CALL, 0, PSEUDO_KFUNC_CALL, 0, 0);
    let dead = insn(JMP | K | JEQ, 0, 0, 1, 0);
    agree(&[vec![R0_IS_0, dead, missing, R0_IS_0, END_PROGRAM]]);
}

#[test]
fn functions_get_the_kernels_verdicts() {
    let chain = |calls| {
        let mut insns = [call_local(1), END_PROGRAM].repeat(calls);
        insns.extend([R0_IS_0, END_PROGRAM]);
        insns
    };
    agree(&[
        chain(1),
        vec![call_local(2), R0_IS_0, END_PROGRAM, END_PROGRAM],
        chain(7),
        chain(8),
        vec![call_local(5), END_PROGRAM],
        vec![call_local(-1), END_PROGRAM],
        vec![call_local(1), END_PROGRAM, call_local(-1), END_PROGRAM],
        vec![
            call_local(1),
            END_PROGRAM,
            call_local(1),
            END_PROGRAM,
            call_local(-3),
            END_PROGRAM,
        ],
        vec![call_local(1), R0_IS_0, R0_IS_0, END_PROGRAM],
        vec![
            call_local(2),
            R0_IS_0,
            END_PROGRAM,
            R0_IS_0,
            insn(JMP | JEQ, 0, 0, -4, 0),
        ],
    ]);
}

/// `r0 = loop(1, f, 0, 0)`, f beginning so many slots behind these.
fn loop_with(distance: i32) -> Vec<Insn> {
    let [low, high] = imm64(2, PSEUDO_FUNC, (distance as u32 + 4).into());
    let set = |register, value| insn(ALU64 | K | MOV, register, 0, 0, value);
    vec![
        set(1, 1),
        low,
        high,
        set(3, 0),
        set(4, 0),
        call(HelperId::LOOP),
    ]
}

#[test]
fn callbacks_get_the_kernels_verdicts() {
    let then = |insns: &[Insn]| [&loop_with(2)[..], &[R0_IS_0, END_PROGRAM], insns].concat();
    // A callback may return 0 and 1 only.
    let chain = |callbacks| [then(&[]).repeat(callbacks), vec![R0_IS_0, END_PROGRAM]].concat();
    let [low, high] = imm64(1, PSEUDO_FUNC, 3);
    let named = [low, high, R0_IS_0, END_PROGRAM, R0_IS_0, END_PROGRAM];
    let with = |at: usize, insn| {
        let mut insns = named;
        insns[at] = insn;
        insns.to_vec()
    };
    agree(&[
        then(&[R0_IS_0, END_PROGRAM]),
        named.to_vec(),
        with(0, Insn { imm: 4, ..low }),
        with(0, Insn { imm: 5, ..low }),
        with(0, Insn { imm: -2, ..low }),
        with(0, Insn { off: 1, ..low }),
        with(1, Insn { imm: 1, ..high }),
        // Recursion: of the program, and of a callback.
        with(0, Insn { imm: -1, ..low }),
        then(&[&loop_with(-6)[..], &[R0_IS_0, END_PROGRAM]].concat()),
        chain(1),
        chain(7),
        chain(8),
    ]);
    // A function cannot begin in the middle of an instruction, either.
    if bpf::is_usable() {
        compare(&with(0, Insn { imm: 0, ..low }), &[], false);
    }
}

#[test]
fn tail_calls_get_the_kernels_verdicts() {
    if !bpf::is_usable() {
        return;
    }
    let array = bpf::map(MapType::PROG_ARRAY, 4, 4, 4).expect("a program array");
    let map = Map {
        id: 1,
        map_type: MapType::PROG_ARRAY,
        key_size: 4,
        value_size: 4,
        max_entries: 4,
        ..Map::default()
    };
    let maps = [(array.as_raw_fd(), &map)];
    let [low, high] = imm64(2, PSEUDO_MAP_FD, array.as_raw_fd() as u64);
    let index = insn(ALU64 | K | MOV, 3, 0, 0, 1);
    let tail = [low, high, index, call(HelperId::TAIL_CALL)];
    let end = [R0_IS_0, END_PROGRAM];
    for insns in [
        [&tail[..], &end].concat(),
        // It leaves nothing in r0.
        [&tail[..], &end[1..]].concat(),
        [&[call_local(2)][..], &end, &tail, &end].concat(),
        [&[call_local(2)][..], &end, &tail, &end[1..]].concat(),
    ] {
        compare(&insns, &maps, true);
    }
}

#[test]
fn addresses_that_are_not_served() {
    let load = |src, value| {
        let [low, high] = imm64(1, src, value);
        vec![low, high, R0_IS_0, END_PROGRAM]
    };
    agree(&[
        load(PSEUDO_MAP_IDX, 0),
        load(PSEUDO_MAP_IDX_VALUE, 0),
        load(7, 0),
    ]);
    // The kernel knows which variables there are; none can be reached from here.
    if bpf::is_usable() {
        for id in [0, 1] {
            compare(&load(PSEUDO_BTF_ID, id), &[], false);
        }
    }
}

/// The kernel finds more wrong with r1; the number is the same. Tools learn from it that the helper
/// exists.
#[test]
fn helpers_without_their_arguments() {
    if bpf::is_usable() {
        compare(&between(&[], call(HelperId::TRACE_PRINTK)), &[], false);
    }
}

#[test]
fn references_to_maps_get_the_kernels_verdicts() {
    if !bpf::is_usable() {
        return;
    }
    let one = bpf::array(16, 1).expect("an array");
    let many = bpf::array(16, 4).expect("an array");
    let load = |src, value| {
        let [low, high] = imm64(1, src, value);
        vec![low, high, R0_IS_0, END_PROGRAM]
    };
    let (one, many) = (one.as_raw_fd() as u64, many.as_raw_fd() as u64);
    let map = |id, max_entries| Map {
        id,
        map_type: MapType::ARRAY,
        key_size: 4,
        value_size: 16,
        max_entries,
        ..Map::default()
    };
    let maps = [(one as i32, &map(1, 1)), (many as i32, &map(2, 4))];
    let programs = [
        (load(PSEUDO_MAP_FD, one), true),
        (load(PSEUDO_MAP_FD, 9999), true),
        (load(PSEUDO_MAP_FD, one | 1 << 32), false),
        (load(PSEUDO_MAP_VALUE, one | 15 << 32), true),
        (load(PSEUDO_MAP_VALUE, one | 16 << 32), true),
        (load(PSEUDO_MAP_VALUE, many), false),
        (load(PSEUDO_MAP_IDX, 0), true),
    ];
    for (insns, same_words) in programs {
        compare(&insns, &maps, same_words);
    }
}

fn between(before: &[Insn], insn: Insn) -> Vec<Insn> {
    [before, &[insn, END_PROGRAM]].concat()
}

fn agree(programs: &[Vec<Insn>]) {
    if bpf::is_usable() {
        for insns in programs {
            compare(insns, &[], true);
        }
    }
}

fn compare(insns: &[Insn], maps: &[(i32, &Map)], same_words: bool) {
    let starts = function_starts(insns).ok();
    let ours = verdict(insns, starts.as_deref(), maps);
    let kernel = match &starts {
        Some(starts) => bpf::load_functions(ProgramType::SOCKET_FILTER, insns, starts),
        None => bpf::load(ProgramType::SOCKET_FILTER, insns),
    };
    let text = beeline_isa::Listing(insns);
    match (ours.result, kernel) {
        (Ok(_), Ok(_)) => {}
        (Err(ours), Err(kernel)) => {
            assert_eq!(
                ours.errno.0, kernel.errno,
                "{}; kernel: {}; of\n{text}",
                ours.reason, kernel.log
            );
            if same_words && !insns.is_empty() {
                assert_eq!(ours.reason, last_words(&kernel.log), "of\n{text}");
            }
        }
        (ours, kernel) => panic!("ours: {ours:?}\nkernel: {kernel:?}\nof\n{text}"),
    }
}

fn verdict(insns: &[Insn], starts: Option<&[usize]>, maps: &[(i32, &Map)]) -> Verdict {
    let kind = Kind {
        prog_type: ProgramType::SOCKET_FILTER,
        ..Kind::default()
    };
    let types = starts.map(|starts| {
        let (btf, functions) = bpf::functions(starts);
        let types = ProgramTypes::new(&btf, &functions, &[], &kind, insns, starts, None);
        types.expect("good type information")
    });
    let program = Program {
        kind,
        gpl: true,
        insns,
        maps,
        types: types.as_ref(),
        kernel: None,
        ..Default::default()
    };
    verify(&program, LogLevel(0))
}

/// Returns the last line of a log that is neither statistics nor states.
fn last_words(log: &str) -> &str {
    const OTHER: [&str; 4] = [
        "processed ",
        "verification time",
        "cur state: ",
        "old state: ",
    ];
    log.lines()
        .rfind(|line| !OTHER.iter().any(|start| line.starts_with(start)))
        .unwrap_or("")
}

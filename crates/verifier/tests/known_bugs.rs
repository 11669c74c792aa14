//! Programs that some kernel's verifier judged wrongly once: unsafe ones that were accepted, among them those behind published
//! vulnerabilities, and good ones that were refused. The same verdict here as from the kernel, and for each the right one.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::AsRawFd;

use beeline_fuzz::asm::{
    EXIT, alu, alu_imm, atomic, branch, call, load, load_sized, mov, mov_reg, store, store_imm,
};
use beeline_fuzz::kernel as bpf;
use beeline_isa::{Insn, imm64, opcode::*};
use beeline_kernel::{MapSpec, create_map};
use beeline_verifier::context::kinds::prog;
use beeline_verifier::program::{Kind, Map, Program};
use beeline_verifier::types::KernelTypes;
use beeline_verifier::verdict::LogLevel;
use beeline_verifier::verify;

/// Descriptors, as long as nobody has made the maps: values of 64 bytes, one that programs may not write, a ring buffer, programs.
const VALUES: i32 = 1000;
const CONSTANTS: i32 = 1001;
const RING: i32 = 1002;
const PROGRAMS: i32 = 1003;
/// Type, key, value, elements, flags.
const MAPS: [(i32, [u32; 5]); 4] = [
    (VALUES, [2, 4, 64, 1, 0]),
    (CONSTANTS, [2, 4, 64, 1, 1 << 7]),
    (RING, [27, 0, 0, 4096, 0]),
    (PROGRAMS, [3, 4, 4, 1, 0]),
];

const MAP_LOOKUP_ELEM: i32 = 1;
const PROBE_READ_KERNEL: i32 = 113;
const TAIL_CALL: i32 = 12;
const STRTOL: i32 = 105;
const RINGBUF_OUTPUT: i32 = 130;
const RINGBUF_RESERVE: i32 = 131;
const RINGBUF_SUBMIT: i32 = 132;
const DYNPTR_FROM_MEM: i32 = 197;
const DYNPTR_READ: i32 = 201;

struct Case {
    what: &'static str,
    prog_type: u32,
    good: bool,
    insns: Vec<Insn>,
}

fn case(what: &'static str, prog_type: u32, good: bool, parts: &[&[Insn]]) -> Case {
    let end = [mov(0, 0), EXIT];
    Case {
        what,
        prog_type,
        good,
        insns: [&parts.concat()[..], &end].concat(),
    }
}

/// A program that ends where it is unsafe, if it is taken.
fn unsafe_one(what: &'static str, parts: &[&[Insn]]) -> Case {
    case(what, prog::SOCKET_FILTER, false, parts)
}

fn good_one(what: &'static str, parts: &[&[Insn]]) -> Case {
    case(what, prog::SOCKET_FILTER, true, parts)
}

fn number(register: u8, value: u64) -> [Insn; 2] {
    imm64(register, 0, value)
}

/// r9 leads to a value, r6 is what it begins with: any number.
fn any_number() -> [Insn; 3] {
    let [low, high] = imm64(9, PSEUDO_MAP_VALUE, VALUES as u64);
    [low, high, load(6, 9, 0)]
}

/// Reads the value at r7, which is believed to be 0, times its size.
fn reads_at_r7() -> [Insn; 3] {
    [
        alu_imm(MUL, 7, 64),
        alu(ADD, 9, 7),
        load_sized(MEM | B, 0, 9, 0),
    ]
}

/// Ends the program if r6 is not as `cond` says.
fn only_if(cond: u8, value: i32) -> [Insn; 3] {
    [branch(cond, 6, value, 2), mov(0, 0), EXIT]
}

fn only_if_reg(cond: u8, other: u8) -> [Insn; 3] {
    let jump = Insn {
        code: JMP | cond | X,
        src: other,
        imm: 0,
        ..branch(cond, 6, 0, 2)
    };
    [jump, mov(0, 0), EXIT]
}

fn narrow(insn: Insn) -> Insn {
    let class = if insn.code & 7 == JMP { JMP32 } else { ALU };
    Insn {
        code: insn.code & !7 | class,
        ..insn
    }
}

fn only_if_narrow(cond: u8, value: i32) -> [Insn; 3] {
    let [jump, a, b] = only_if(cond, value);
    [narrow(jump), a, b]
}

/// Bounds of halves and wholes.
fn bounds() -> Vec<Case> {
    let any = any_number();
    let read = reads_at_r7();
    let to_r7 = [narrow(mov_reg(7, 6))];
    let less_one = [mov(7, 1), alu(SUB, 7, 6)];
    vec![
        unsafe_one(
            "CVE-2020-8835: a comparison of halves says nothing of the rest",
            &[
                &any,
                &number(8, 0x1_0000_0001),
                &only_if_reg(JLE, 8),
                &only_if(JGE, 1),
                &only_if_narrow(JNE, 5),
                &[mov_reg(7, 6), alu_imm(AND, 7, 2), alu_imm(RSH, 7, 1)],
                &read,
            ],
        ),
        unsafe_one(
            "CVE-2020-27194: the lower half of an or is not the whole's",
            &[
                &any,
                &number(8, 0x6_0000_0002),
                &only_if_reg(JLT, 8),
                &only_if(JGT, 0),
                &[alu_imm(OR, 6, 0)],
                &to_r7,
                &[alu_imm(RSH, 7, 1)],
                &read,
            ],
        ),
        unsafe_one(
            "CVE-2021-3490: of an and with a half that is known the other is not",
            &[
                &any,
                &[alu_imm(RSH, 6, 32), alu_imm(LSH, 6, 32), alu_imm(ADD, 6, 1)],
                &number(8, 0x1_0000_0002),
                &[alu(AND, 6, 8), mov_reg(7, 6), alu_imm(RSH, 7, 32)],
                &read,
            ],
        ),
        good_one(
            "CVE-2021-3490: the half that is known is",
            &[
                &any,
                &[alu_imm(RSH, 6, 32), alu_imm(LSH, 6, 32), alu_imm(ADD, 6, 1)],
                &number(8, 0x1_0000_0002),
                &[alu(AND, 6, 8)],
                &to_r7,
                &read,
            ],
        ),
        unsafe_one(
            "CVE-2021-31440: a whole that is not 0 may have a half that is",
            &[
                &any,
                &only_if(JGE, 1),
                &only_if_narrow(JLE, 1),
                &[narrow(mov_reg(6, 6))],
                &less_one,
                &read,
            ],
        ),
        unsafe_one(
            "a half that is negative is large",
            &[&any, &only_if_narrow(JSLE, 0), &to_r7, &read],
        ),
        unsafe_one(
            "an arithmetic shift of a half keeps its own sign",
            &[&any, &[narrow(alu_imm(ARSH, 6, 31)), mov_reg(7, 6)], &read],
        ),
        unsafe_one(
            "a difference of numbers may wrap",
            &[
                &any,
                &only_if(JLE, 1),
                &[mov_reg(7, 6), alu_imm(SUB, 7, 1), narrow(mov_reg(7, 7))],
                &read,
            ],
        ),
        unsafe_one(
            "a product may wrap",
            &[
                &any,
                &[
                    alu_imm(AND, 6, 1),
                    alu_imm(LSH, 6, 63),
                    alu_imm(MUL, 6, 2),
                    alu_imm(ADD, 6, 1),
                    mov_reg(7, 6),
                ],
                &read,
            ],
        ),
        unsafe_one(
            "CVE-2021-33200: what is taken away may be more than was added",
            &[
                &any,
                &[alu_imm(AND, 6, 15), alu_imm(ADD, 9, 8), alu(SUB, 9, 6)],
                &[load_sized(MEM | B, 0, 9, 0)],
            ],
        ),
    ]
}

/// States that were taken for covered ones.
fn pruning() -> Vec<Case> {
    let [map_low, map_high] = imm64(1, PSEUDO_MAP_FD, VALUES as u64);
    let at_most = |off| Insn {
        code: JMP | JLE | X,
        src: 9,
        ..branch(JLE, 6, 0, off)
    };
    vec![
        unsafe_one(
            "CVE-2023-2163: both sides of a comparison matter",
            &[
                &[mov(6, 1024), mov(7, 0), mov(8, 0), mov(9, i32::MIN)],
                &[alu_imm(MOD, 6, 1025), branch(JA, 0, 0, 0)],
                &[at_most(2), alu_imm(MOD, 6, 1), mov(9, 0)],
                &[at_most(1), mov(6, 0)],
                &[store_imm(W, 10, -4, 0), map_low, map_high],
                &[mov_reg(2, 10), alu_imm(ADD, 2, -4), call(MAP_LOOKUP_ELEM)],
                &[branch(JNE, 0, 0, 1), EXIT],
                &[alu_imm(RSH, 6, 10), alu_imm(MUL, 6, 8192), alu(ADD, 0, 6)],
                &[load(3, 0, 0)],
            ],
        ),
        unsafe_one(
            "what was spilled on one path only",
            &[
                &any_number(),
                &[mov(7, 0), branch(JEQ, 6, 1, 1), mov(7, 1), store(10, -8, 7)],
                &[branch(JEQ, 6, 2, 0), load(7, 10, -8)],
                &reads_at_r7(),
            ],
        ),
        unsafe_one(
            "an address of which a byte was written over",
            &[
                &any_number(),
                &[store(10, -8, 9), store_imm(B, 10, -5, 1), load(9, 10, -8)],
                &[load_sized(MEM | B, 0, 9, 0)],
            ],
        ),
    ]
}

/// Pointers that were used as they must not be.
fn pointers() -> Vec<Case> {
    let [ring_low, ring_high] = imm64(1, PSEUDO_MAP_FD, RING as u64);
    let reserve = [
        ring_low,
        ring_high,
        mov(2, 16),
        mov(3, 0),
        call(RINGBUF_RESERVE),
    ];
    let submit = [mov(2, 0), call(RINGBUF_SUBMIT)];
    let [constant_low, constant_high] = imm64(9, PSEUDO_MAP_VALUE, CONSTANTS as u64);
    let constant = [constant_low, constant_high];
    let local_dynptr = [
        mov_reg(1, 9),
        mov(2, 16),
        mov(3, 0),
        mov_reg(4, 10),
        alu_imm(ADD, 4, -16),
        call(DYNPTR_FROM_MEM),
    ];
    let read_dynptr = [
        mov_reg(1, 9),
        mov(2, 8),
        mov_reg(3, 10),
        alu_imm(ADD, 3, -16),
        mov(4, 0),
        mov(5, 0),
        call(DYNPTR_READ),
    ];
    let any = any_number();
    vec![
        unsafe_one(
            "CVE-2022-23222: nothing is added to what may be null",
            &[
                &reserve,
                &[
                    mov_reg(6, 0),
                    alu_imm(ADD, 6, 8),
                    branch(JNE, 0, 0, 1),
                    EXIT,
                ],
                &[mov_reg(1, 0)],
                &submit,
            ],
        ),
        unsafe_one(
            "CVE-2021-4204: another place than the record's is submitted",
            &[
                &reserve,
                &[
                    branch(JNE, 0, 0, 1),
                    EXIT,
                    mov_reg(1, 0),
                    alu_imm(ADD, 1, 8),
                ],
                &submit,
            ],
        ),
        unsafe_one(
            "CVE-2021-4204: more is put out than there is",
            &[
                &reserve,
                &[branch(JNE, 0, 0, 1), EXIT, mov_reg(6, 0)],
                &[
                    ring_low,
                    ring_high,
                    mov_reg(2, 6),
                    mov(3, 24),
                    mov(4, 0),
                    call(RINGBUF_OUTPUT),
                ],
                &[mov_reg(1, 6)],
                &submit,
            ],
        ),
        unsafe_one(
            "a record is used after it was submitted",
            &[
                &reserve,
                &[branch(JNE, 0, 0, 1), EXIT, mov_reg(6, 0), mov_reg(1, 0)],
                &submit,
                &[load(0, 6, 0)],
            ],
        ),
        unsafe_one(
            "CVE-2022-0500: a constant is stored to",
            &[&constant, &[store_imm(DW, 9, 0, 1)]],
        ),
        unsafe_one(
            "CVE-2022-0500: a constant is changed at once",
            &[&constant, &[mov(1, 1), atomic(DW, 9, 0, 1, 0)]],
        ),
        unsafe_one(
            "CVE-2022-0500: a constant is written by a helper",
            &[
                &constant,
                &[mov_reg(1, 9), mov(2, 8), mov(3, 0), call(PROBE_READ_KERNEL)],
            ],
        ),
        case(
            "CVE-2024-49861: a constant is written by a helper that gives a number",
            prog::SCHED_CLS,
            false,
            &[
                &constant,
                &[
                    store_imm(DW, 10, -8, 0x31),
                    mov_reg(1, 10),
                    alu_imm(ADD, 1, -8),
                ],
                &[mov(2, 8), mov(3, 0), mov_reg(4, 9), call(STRTOL)],
            ],
        ),
        case(
            "CVE-2023-39191: a dynptr that was written over",
            prog::TRACEPOINT,
            false,
            &[
                &any,
                &local_dynptr,
                &[store_imm(DW, 10, -16, 1)],
                &read_dynptr,
            ],
        ),
        case(
            "CVE-2023-39191: a dynptr that was half written over",
            prog::TRACEPOINT,
            false,
            &[
                &any,
                &local_dynptr,
                &[store_imm(B, 10, -3, 1)],
                &read_dynptr,
            ],
        ),
        case(
            "CVE-2023-39191: a dynptr that was never made",
            prog::TRACEPOINT,
            false,
            &[
                &any,
                &[store_imm(DW, 10, -16, 0), store_imm(DW, 10, -8, 0)],
                &read_dynptr,
            ],
        ),
        case(
            "a dynptr",
            prog::TRACEPOINT,
            true,
            &[&any, &local_dynptr, &read_dynptr],
        ),
        case(
            "CVE-2024-26589: a variable offset into keys",
            prog::FLOW_DISSECTOR,
            false,
            &[
                &[load(7, 1, 144)],
                &any,
                &[
                    alu_imm(AND, 6, 1),
                    alu(ADD, 7, 6),
                    load_sized(MEM | B, 0, 7, 0),
                ],
            ],
        ),
        unsafe_one(
            "CVE-2022-0264: an address by way of an exchange",
            &[
                &any,
                &[store(10, -8, 1), mov(0, 0), store(9, 0, 10), mov(2, 0)],
                &[
                    atomic(DW, 10, -8, 2, 0xe1),
                    alu(ADD, 9, 2),
                    load(0, 9, 0),
                    load(0, 2, 0),
                ],
            ],
        ),
        unsafe_one(
            "an end of the packet is no pointer",
            &[&[load_sized(MEM | W, 7, 1, 80), load(0, 7, 0)]],
        ),
    ]
}

/// Good programs that verifiers have refused.
fn refused_by_mistake() -> Vec<Case> {
    let any = any_number();
    let byte = |register| load_sized(MEM | B, 0, register, 0);
    let [programs_low, programs_high] = imm64(2, PSEUDO_MAP_FD, PROGRAMS as u64);
    vec![
        good_one(
            "a copy is compared and the other used",
            &[
                &any,
                &[
                    mov_reg(7, 6),
                    branch(JLE, 7, 63, 2),
                    mov(0, 0),
                    EXIT,
                    alu(ADD, 9, 6),
                    byte(9),
                ],
            ],
        ),
        good_one(
            "a half is compared and extended",
            &[
                &any,
                &only_if_narrow(JLE, 63),
                &[narrow(mov_reg(6, 6)), alu(ADD, 9, 6), byte(9)],
            ],
        ),
        good_one(
            "a spilled number is compared after it was filled",
            &[
                &any,
                &[
                    store(10, -8, 6),
                    load(7, 10, -8),
                    branch(JLE, 7, 63, 2),
                    mov(0, 0),
                    EXIT,
                ],
                &[load(6, 10, -8), alu(ADD, 9, 6), byte(9)],
            ],
        ),
        good_one(
            "both signs of a number are looked at",
            &[
                &any,
                &only_if(JSGE, 0),
                &only_if(JSLE, 63),
                &[alu(ADD, 9, 6), byte(9)],
            ],
        ),
        good_one(
            "a sign is extended by shifts",
            &[
                &any,
                &[alu_imm(LSH, 6, 32), alu_imm(ARSH, 6, 32)],
                &only_if(JSGE, 0),
                &only_if(JSLT, 64),
                &[alu(ADD, 9, 6), byte(9)],
            ],
        ),
        good_one(
            "0 was left out, and 1 taken away",
            &[
                &any,
                &[alu_imm(AND, 6, 63)],
                &only_if(JNE, 0),
                &[alu_imm(SUB, 6, 1), alu(ADD, 9, 6), byte(9)],
            ],
        ),
        good_one(
            "bits are tested",
            &[&any, &[branch(JSET, 6, !63, 2), alu(ADD, 9, 6), byte(9)]],
        ),
        good_one(
            "a size that may be 0",
            &[
                &any,
                &[alu_imm(AND, 6, 63), mov_reg(1, 9), mov_reg(2, 6), mov(3, 0)],
                &[call(PROBE_READ_KERNEL)],
            ],
        ),
        good_one(
            "CVE-2022-2905: a tail call past the end does nothing",
            &[&[programs_low, programs_high, mov(3, 7), call(TAIL_CALL)]],
        ),
        good_one(
            "CVE-2024-49888: the smallest number by -1",
            &[
                &any,
                &[Insn {
                    off: 1,
                    ..alu_imm(DIV, 6, -1)
                }],
                &[Insn {
                    off: 1,
                    ..narrow(alu_imm(MOD, 6, -1))
                }],
            ],
        ),
        good_one(
            "CVE-2024-41003: a number is compared with itself",
            &[
                &any,
                &[
                    Insn {
                        code: JMP | JEQ | X,
                        src: 6,
                        ..branch(JEQ, 6, 0, 1)
                    },
                    mov(2, 0),
                    Insn {
                        code: JMP | JLE | X,
                        src: 6,
                        ..branch(JLE, 6, 0, 0)
                    },
                ],
            ],
        ),
        case(
            "a packet is read at an offset that is known to be small",
            prog::SCHED_CLS,
            true,
            &[
                &[load_sized(MEM | W, 7, 1, 76), load_sized(MEM | W, 8, 1, 80)],
                &any,
                &[
                    alu_imm(AND, 6, 0xff),
                    alu(ADD, 7, 6),
                    mov_reg(2, 7),
                    alu_imm(ADD, 2, 4),
                ],
                &[
                    Insn {
                        code: JMP | JGT | X,
                        src: 8,
                        ..branch(JGT, 2, 0, 1)
                    },
                    load_sized(MEM | W, 0, 7, 0),
                ],
            ],
        ),
    ]
}

#[test]
fn bugs_of_verifiers_are_none_of_ours() {
    let btf = std::fs::read("/sys/kernel/btf/vmlinux").ok();
    let kernel = btf.and_then(KernelTypes::new);
    let maps = MAPS.map(
        |(fd, [map_type, key_size, value_size, max_entries, flags])| {
            let map = Map {
                id: fd.cast_unsigned(),
                map_type,
                key_size,
                value_size,
                max_entries,
                flags,
                ..Map::default()
            };
            (fd, map)
        },
    );
    let maps = maps.each_ref().map(|(fd, map)| (*fd, map));
    let made = bpf::is_usable().then(make_maps);
    let mut wrong = String::new();
    let all = [bounds(), pruning(), pointers(), refused_by_mistake()];
    for case in all.iter().flatten() {
        let program = Program {
            kind: Kind {
                prog_type: case.prog_type,
                ..Kind::default()
            },
            gpl: true,
            insns: &case.insns,
            maps: &maps,
            kernel: kernel.as_ref(),
            ..Program::default()
        };
        let ours = verify(&program, LogLevel(0)).result.map(|_| ());
        let theirs = made.as_ref().map(|made| kernels(case, made));
        let same = theirs.as_ref().is_none_or(|it| it.is_ok() == ours.is_ok());
        if ours.is_ok() != case.good || !same {
            let ours = ours.map_err(|it| it.reason);
            wrong += &format!("{}: here {ours:?}, the kernel {theirs:?}\n", case.what);
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// Kernels with connection tracking have such functions.
#[test]
fn a_connection_that_is_not_yet_inserted_is_marked() {
    let Ok(btf) = std::fs::read("/sys/kernel/btf/vmlinux") else {
        return;
    };
    let kernel = KernelTypes::new(btf).expect("good BTF");
    let functions = ["bpf_xdp_ct_alloc", "bpf_ct_insert_entry", "bpf_ct_release"];
    let ids = functions.map(|name| kernel.function(name));
    let ([Some(alloc), Some(insert), Some(release)], Some(mark)) =
        (ids, kernel.offset_of("nf_conn", "mark"))
    else {
        eprintln!("skipped: this kernel tracks no connections");
        return;
    };
    let call = |id: u32| Insn {
        src: PSEUDO_KFUNC_CALL,
        ..call(id as i32)
    };
    for (off, good) in [(mark as i16, true), (mark as i16 + 4, false)] {
        let case = case(
            "a mark",
            prog::XDP,
            good,
            &[
                &[store_imm(DW, 10, -8, 0), store_imm(DW, 10, -16, 0)],
                &[store_imm(DW, 10, -24, 0), store_imm(DW, 10, -32, 0)],
                &[mov_reg(2, 10), alu_imm(ADD, 2, -16), mov(3, 12)],
                &[
                    mov_reg(4, 10),
                    alu_imm(ADD, 4, -32),
                    mov(5, 16),
                    call(alloc),
                ],
                &[
                    branch(JEQ, 0, 0, 6),
                    store_imm(W, 0, off, 7),
                    mov_reg(1, 0),
                    call(insert),
                ],
                &[branch(JEQ, 0, 0, 2), mov_reg(1, 0), call(release)],
            ],
        );
        let program = Program {
            kind: Kind {
                prog_type: case.prog_type,
                ..Kind::default()
            },
            gpl: true,
            insns: &case.insns,
            kernel: Some(&kernel),
            ..Program::default()
        };
        let ours = verify(&program, LogLevel(0)).result.map_err(|it| it.reason);
        assert_eq!(ours.is_ok(), good, "{ours:?}");
        if bpf::is_usable() {
            let theirs = kernels(&case, &HashMap::new());
            assert_eq!(theirs.is_ok(), good, "{theirs:?}");
        }
    }
}

fn make_maps() -> HashMap<i32, File> {
    let make = |(fd, [map_type, key_size, value_size, max_entries, flags]): (i32, [u32; 5])| {
        let map = create_map(&MapSpec {
            map_type,
            key_size,
            value_size,
            max_entries,
            flags,
            ..MapSpec::default()
        });
        (fd, map.expect("a map").into())
    };
    MAPS.into_iter().map(make).collect()
}

fn kernels(case: &Case, maps: &HashMap<i32, File>) -> Result<(), String> {
    let mut insns = case.insns.clone();
    for insn in &mut insns {
        if insn.is_imm64() && insn.src != 0 {
            insn.imm = maps[&insn.imm].as_raw_fd();
        }
    }
    let made = bpf::load(case.prog_type, &insns);
    made.map(drop).map_err(|refusal| {
        let mut lines = refusal.log.lines();
        let last = lines.rfind(|line| !line.starts_with("processed "));
        format!("errno {}: {}", refusal.errno, last.unwrap_or_default())
    })
}

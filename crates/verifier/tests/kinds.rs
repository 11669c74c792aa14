//! Properties of a program's kind besides its context: packets, classic loads, return values,
//! attach types. The same answers from the running kernel and from here.

mod oracle;

use std::ops::RangeInclusive;
use std::os::fd::AsRawFd;

use beeline_btf::kind::{FUNC, TYPEDEF};
use beeline_isa::{Insn, imm64, opcode::*};
use beeline_uapi::flags::SLEEPABLE;
use beeline_uapi::{AttachType, HelperId, MapType, ProgramType};
use beeline_verifier::context::returns::{Returns, not_a_number, out_of_range, returns};
use beeline_verifier::context::{Field, access, attach, packet};
use beeline_verifier::program::Kind;
use oracle::*;

#[test]
fn accesses_of_packets_get_the_kernels_verdicts() {
    let map =
        is_usable().then(|| beeline_fuzz::kernel::map(MapType::HASH, 4, 4, 1).expect("a hash map"));
    let mut seen = 0;
    for (kind, bytes) in kinds() {
        let find = |field| {
            (0..bytes)
                .flat_map(|off| [(off, 4, W), (off, 8, DW)])
                .find(|&(off, size, _)| access(&kind, off, size, false) == Some(field))
        };
        let (Some((data, _, bits)), Some((end, ..))) =
            (find(Field::Packet), find(Field::PacketEnd))
        else {
            continue;
        };
        let bounded = [
            insn(LDX | MEM | bits, 2, 1, data as i16, 0),
            insn(LDX | MEM | bits, 3, 1, end as i16, 0),
            insn(ALU64 | X | MOV, 4, 2, 0, 0),
            insn(ALU64 | K | ADD, 4, 0, 0, 8),
            insn(JMP | X | JLE, 4, 3, 2, 0),
            R0_IS_1,
            END_PROGRAM,
        ];
        let [low, high] = imm64(
            1,
            PSEUDO_MAP_FD,
            map.as_ref().map_or(0, |map| map.as_raw_fd() as u64),
        );
        let store = vec![insn(ST | MEM | B, 2, 0, 0, 0)];
        let pass = vec![low, high, call(HelperId::MAP_LOOKUP_ELEM)];
        let print = vec![
            insn(ALU64 | X | MOV, 1, 2, 0, 0),
            insn(ALU64 | K | MOV, 2, 0, 0, 8),
            call(HelperId::TRACE_PRINTK),
        ];
        const NOT_ALLOWED: &str = "helper access to the packet is not allowed";
        for (what, may, words) in [
            (store, packet::may_store(&kind), "cannot write into packet"),
            (pass, packet::may_pass(&kind, true), NOT_ALLOWED),
            (print, packet::may_pass(&kind, false), NOT_ALLOWED),
        ] {
            let end = [R0_IS_1, END_PROGRAM];
            match load(&kind, &[&bounded[..], &what, &end].concat()) {
                Ok(_) => assert!(may, "{kind:?} is refused: {words}"),
                Err(refusal) => assert_eq!((may, refusal.last_words()), (false, words), "{kind:?}"),
            }
        }
        seen += 1;
    }
    assert!(seen > 20 || map.is_none(), "{seen}");
}

#[test]
fn classic_loads_get_the_kernels_verdicts() {
    for (kind, _) in kinds() {
        let insns = [
            insn(ALU64 | X | MOV, 6, 1, 0, 0),
            insn(LD | ABS | B, 0, 0, 0, 0),
            R0_IS_1,
            END_PROGRAM,
        ];
        match load(&kind, &insns) {
            Ok(_) => assert!(packet::may_load_classic(&kind), "{kind:?}"),
            Err(refusal) => {
                assert!(!packet::may_load_classic(&kind), "{kind:?}: {refusal}");
                let words = "BPF_LD_[ABS|IND] instructions not allowed for this program type";
                assert_eq!(refusal.last_words(), words);
            }
        }
    }
}

#[test]
fn return_values_get_the_kernels_verdicts() {
    for kind in kinds().into_iter().map(|(kind, _)| kind).chain(by_btf()) {
        compare_returns(&kind);
    }
}

fn compare_returns(kind: &Kind) {
    let range = match returns(kind) {
        Returns::Anything => None,
        Returns::Within(range) => Some(range),
        other => panic!("{kind:?}: {other:?}"),
    };
    let set = |value| insn(ALU64 | K | MOV, 0, 0, 0, value);
    let mut programs = vec![
        (vec![call(HelperId::GET_PRANDOM_U32)], i64::MIN, i64::MAX),
        (
            vec![
                call(HelperId::GET_PRANDOM_U32),
                insn(ALU64 | K | AND, 0, 0, 0, 255),
            ],
            0,
            255,
        ),
        (
            vec![
                call(HelperId::GET_PRANDOM_U32),
                insn(ALU64 | K | AND, 0, 0, 0, 1),
            ],
            0,
            1,
        ),
    ];
    programs.extend((-1..=5).map(|value| (vec![set(value)], value.into(), value.into())));
    for (insns, least, most) in programs {
        let within = |range: &RangeInclusive<i32>| {
            i64::from(*range.start()) <= least && most <= i64::from(*range.end())
        };
        let broken = range.as_ref().filter(|range| !within(range));
        let ours = broken.map(|range| out_of_range("At program exit", 0, least, most, range));
        compare_refusals(kind, &insns, ours);
    }
    let ours = range.map(|_| not_a_number("At program exit", 0, "ctx"));
    compare_refusals(kind, &[insn(ALU64 | X | MOV, 0, 1, 0, 0)], ours);
}

fn compare_refusals(kind: &Kind, insns: &[Insn], ours: Option<String>) {
    let kernel = load(kind, &[insns, &[END_PROGRAM]].concat()).err();
    let kernel = kernel.as_ref().map(Refusal::last_words);
    assert_eq!(ours.as_deref(), kernel, "{kind:?}");
}

#[test]
fn attach_types_get_the_kernels_verdicts() {
    if !is_usable() {
        return;
    }
    for prog_type in types() {
        for attach_type in (0..64).chain([1000, u32::MAX]) {
            let kind = kind(prog_type, AttachType(attach_type));
            refused_at_once(&kind);
            refused_at_once(&Kind {
                attach_btf_id: 1,
                ..kind
            });
        }
    }
}

fn refused_at_once(kind: &Kind) {
    match load(kind, &[R0_IS_1, END_PROGRAM]) {
        Ok(_) => assert!(attach::is_loadable(kind), "{kind:?}"),
        Err(refusal) => {
            assert!(!attach::is_loadable(kind), "{kind:?}: {refusal}");
            assert_eq!(
                (refusal.errno, refusal.log.as_str()),
                (libc::EINVAL, ""),
                "{kind:?}"
            );
        }
    }
}

#[test]
fn sleepable_programs_get_the_kernels_verdicts() {
    for kind in kinds().into_iter().map(|(kind, _)| kind).chain(by_btf()) {
        for flags in [0, SLEEPABLE] {
            let kind = Kind { flags, ..kind };
            let kernel = load(&kind, &[R0_IS_1, END_PROGRAM]);
            let kernel = kernel.as_ref().map_err(Refusal::last_words);
            assert_eq!(attach::check_sleepable(&kind), kernel.map(drop), "{kind:?}");
        }
    }
}

/// Returns the program types of [`KINDS`] that this kernel has.
fn types() -> Vec<ProgramType> {
    let mut types: Vec<ProgramType> = kinds().iter().map(|(kind, _)| kind.prog_type).collect();
    types.dedup();
    types
}

/// Kinds of programs that are attached by BTF.
fn by_btf() -> Vec<Kind> {
    if !is_usable() {
        return Vec::new();
    }
    let there = |(attach_type, btf_kind, name)| {
        let attach_btf_id = btf_id(btf_kind, name);
        if attach_btf_id.is_none() {
            eprintln!("not compared: the kernel does not tell of {name}");
        }
        Some(Kind {
            attach_btf_id: attach_btf_id?,
            ..kind(ProgramType::TRACING, attach_type)
        })
    };
    let tracepoint = (AttachType::TRACE_RAW_TP, TYPEDEF, "btf_trace_sched_switch");
    let iterator = (AttachType::TRACE_ITER, FUNC, "bpf_iter_task");
    [tracepoint, iterator]
        .into_iter()
        .filter_map(there)
        .collect()
}

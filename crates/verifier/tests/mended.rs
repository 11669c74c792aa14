//! Programs that were once judged wrongly: most of them do wrong, and were accepted.

use std::os::fd::AsRawFd;

use beeline_fuzz::asm::{
    EXIT, alu, alu_imm, atomic, branch, load, load_sized, mov, mov_reg, store,
};
use beeline_fuzz::kernel as bpf;
use beeline_isa::{Insn, imm64, opcode::*};
use beeline_uapi::flags::SLEEPABLE;
use beeline_uapi::{MapType, ProgramType};
use beeline_verifier::program::{FieldKind, Kind, Map, MapField, Program};
use beeline_verifier::types::KernelTypes;
use beeline_verifier::verdict::{LogLevel, ProgramSummary};
use beeline_verifier::verify;

const VALUE_BYTES: u32 = 64;
/// A descriptor of an array of one value.
const ARRAY: i32 = 1000;
/// A descriptor of another one, with a lock in its value.
const LOCKED: i32 = 1001;

fn ours(insns: &[Insn]) -> Result<(), String> {
    facts(insns, None).map(|_| ())
}

fn facts(insns: &[Insn], kernel: Option<&KernelTypes>) -> Result<ProgramSummary, String> {
    let map = Map {
        id: 1,
        map_type: MapType::ARRAY,
        key_size: 4,
        value_size: VALUE_BYTES,
        max_entries: 1,
        ..Map::default()
    };
    let lock = MapField {
        offset: 0,
        size: 4,
        kind: FieldKind::SpinLock,
    };
    let locked = Map {
        id: 2,
        fields: vec![lock],
        ..map.clone()
    };
    let verdict = verify(
        &Program {
            kind: Kind {
                prog_type: ProgramType::SOCKET_FILTER,
                ..Kind::default()
            },
            gpl: true,
            insns,
            maps: &[(ARRAY, &map), (LOCKED, &locked)],
            types: None,
            kernel,
            ..Default::default()
        },
        LogLevel(0),
    );
    verdict.result.map_err(|no| no.reason)
}

fn kernels(insns: &[Insn]) -> Option<bool> {
    if !bpf::is_usable() {
        return None;
    }
    let array = bpf::array(VALUE_BYTES, 1).expect("an array");
    let mut insns = insns.to_vec();
    for insn in &mut insns {
        if insn.is_imm64() && insn.src == PSEUDO_MAP_VALUE {
            insn.imm = array.as_raw_fd();
        }
    }
    Some(bpf::load(ProgramType::SOCKET_FILTER, &insns).is_ok())
}

/// r8 leads into the array's value.
fn value(offset: u64) -> [Insn; 2] {
    imm64(8, PSEUDO_MAP_VALUE, ARRAY as u64 | offset << 32)
}

/// Facts about a sign-extended fill are not true of the spilled number. Linux 6.18 accepts this
/// program, which reads beyond the value.
#[test]
fn fills_that_extend_the_sign_are_no_copies() {
    let program = |mode| {
        let mut insns = value(0).to_vec();
        insns.extend([
            load_sized(MEM | W, 0, 8, 28),
            store(10, -16, 0),
            load_sized(mode | W, 7, 10, -16),
            // Either branch reveals something about r7.
            Insn {
                code: JMP32 | JGE | K,
                ..branch(JGE, 7, 0x8000, 2)
            },
            mov(0, 0),
            EXIT,
            branch(JSGT, 0, -1, 2),
            mov(0, 0),
            EXIT,
            // 0, if r0 equalled r7: up to 0x7fff_ffff.
            alu_imm(RSH, 0, 31),
            alu_imm(MUL, 0, VALUE_BYTES as i32),
            alu(ADD, 8, 0),
            load_sized(MEM | B, 1, 8, 0),
            mov(0, 0),
            EXIT,
        ]);
        insns
    };
    assert!(ours(&program(MEMSX)).is_err());
    assert!(ours(&program(MEM)).is_err());
}

/// A link stays where sign extension changes nothing.
#[test]
fn fills_without_a_sign_are_copies() {
    let mut insns = value(0).to_vec();
    insns.extend([
        load_sized(MEM | W, 0, 8, 28),
        alu_imm(AND, 0, 0xffff),
        store(10, -16, 0),
        load_sized(MEMSX | W, 7, 10, -16),
        branch(JLT, 7, VALUE_BYTES as i32, 2),
        mov(0, 0),
        EXIT,
        alu(ADD, 8, 0),
        load_sized(MEM | B, 1, 8, 0),
        mov(0, 0),
        EXIT,
    ]);
    assert_eq!(ours(&insns), Ok(()));
    assert!(kernels(&insns).is_none_or(|accepts| accepts));
}

/// `check_atomic_load`, `check_atomic_store`: as all atomic accesses.
#[test]
fn acquire_and_release_are_aligned() {
    let sizes = [(B, 1), (H, 2), (W, 4), (DW, 8)];
    for (size, bytes) in sizes {
        for offset in 32..=40 {
            let in_value = |access: Insn| {
                let mut insns = value(offset).to_vec();
                insns.extend([mov(9, 1), access, mov(0, 0), EXIT]);
                insns
            };
            let on_stack = |access: Insn| {
                let clear = [mov(9, 1), store(10, -8, 9), store(10, -16, 9)];
                let off = -(offset as i32 - 24);
                let address = [mov_reg(8, 10), alu_imm(ADD, 8, off)];
                [&clear[..], &address, &[access, mov(0, 0), EXIT]].concat()
            };
            let accesses = [
                atomic(size, 9, 0, 8, LOAD_ACQ),
                atomic(size, 8, 0, 9, STORE_REL),
            ];
            for access in accesses {
                for insns in [in_value(access), on_stack(access)] {
                    let accepts = ours(&insns).is_ok();
                    assert_eq!(
                        accepts,
                        offset % bytes == 0,
                        "{bytes} bytes at {offset}: {:?}",
                        ours(&insns)
                    );
                    if let Some(kernels) = kernels(&insns) {
                        assert_eq!(accepts, kernels, "{bytes} bytes at {offset}");
                    }
                }
            }
        }
    }
    // Others need not be.
    let mut insns = value(33).to_vec();
    insns.extend([load(9, 8, 0), mov(0, 0), EXIT]);
    assert_eq!(ours(&insns), Ok(()));
}

/// The kernel lets programs read its structure of a map; elsewhere a map's address leads to
/// something else, so it has to be known.
#[test]
fn reads_of_a_maps_structure_are_told() {
    let types = std::fs::read("/sys/kernel/btf/vmlinux").ok();
    let Some(types) = types.and_then(KernelTypes::new) else {
        eprintln!("skipped: the running kernel tells no types");
        return;
    };
    let array = imm64(8, PSEUDO_MAP_FD, ARRAY as u64);
    let reads = [&array[..], &[load(6, 8, 0), mov(0, 0), EXIT]].concat();
    let facts_of = |insns: &[Insn]| facts(insns, Some(&types)).map(|facts| facts.map_structure);
    assert_eq!(facts_of(&reads), Ok(Some(2)));
    let does_not = [&array[..], &[mov(0, 0), EXIT]].concat();
    assert_eq!(facts_of(&does_not), Ok(None));
}

/// `check_map_prog_compatibility` applies to the maps that a program names, not to others in the
/// same file.
#[test]
fn maps_that_are_not_named_do_not_matter() {
    let naming = |fd: i32| {
        let names = imm64(8, PSEUDO_MAP_FD, fd as u64);
        [&names[..], &[mov(0, 0), EXIT]].concat()
    };
    assert_eq!(ours(&naming(ARRAY)), Ok(()));
    let refused = ours(&naming(LOCKED)).expect_err("its type may not take locks");
    assert!(refused.contains("bpf_spin_lock"), "{refused}");
}

/// `check_map_prog_compatibility`: programs that sleep cannot use every type of map.
#[test]
fn maps_for_programs_that_sleep() {
    if !bpf::is_usable() {
        return;
    }
    let mut compared = 0;
    for &map_type in &MapType::ALL[1..] {
        let sizes = [(4, 8), (4, 4), (8, 8), (0, 8), (0, 0)];
        let made = sizes.iter().find_map(|&(key, value)| {
            let entries = if matches!(map_type, MapType::RINGBUF | MapType::USER_RINGBUF) {
                4096
            } else {
                4
            };
            let map = bpf::map(map_type, key, value, entries).ok()?;
            Some((map, key, value, entries))
        });
        let Some((file, key_size, value_size, max_entries)) = made else {
            continue;
        };
        let map = Map {
            id: 1,
            map_type,
            key_size,
            value_size,
            max_entries,
            ..Map::default()
        };
        let fd = file.as_raw_fd();
        let names = imm64(8, PSEUDO_MAP_FD, fd as u64);
        let insns = [&names[..], &[mov(0, 0), EXIT]].concat();
        let verdict = verify(
            &Program {
                kind: Kind {
                    prog_type: ProgramType::SYSCALL,
                    flags: SLEEPABLE,
                    ..Kind::default()
                },
                gpl: true,
                insns: &insns,
                maps: &[(fd, &map)],
                types: None,
                kernel: None,
                ..Default::default()
            },
            LogLevel(0),
        );
        let kernels = bpf::load(ProgramType::SYSCALL, &insns).is_ok();
        assert_eq!(verdict.result.is_ok(), kernels, "maps of type {map_type}");
        compared += 1;
    }
    assert!(compared > 10);
}

/// The verifier does not backtrack over all of the path each time that a number matters.
#[test]
fn long_paths_on_which_everything_matters() {
    // Backtracking does not follow numbers fetched from the stack. Each turn of the loop has a
    // state of its own.
    let mut insns = vec![mov(6, 0), mov(7, 0), store(10, -8, 6)];
    let turn = [
        mov(2, 1),
        atomic(DW, 10, -8, 2, XCHG),
        alu_imm(AND, 2, 1),
        branch(JEQ, 2, 5, 1),
        alu_imm(ADD, 7, 1),
        alu_imm(ADD, 6, 1),
    ];
    insns.extend(turn);
    insns.push(branch(JLT, 6, 100_000, -(turn.len() as i16) - 1));
    insns.extend([mov(0, 0), EXIT]);
    let start = std::time::Instant::now();
    assert_eq!(ours(&insns), Ok(()));
    println!("took {:.0?}", start.elapsed());
}

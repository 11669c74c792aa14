//! Programs that some kernel's verifier once judged wrongly: unsafe ones that were accepted, among
//! them those behind published vulnerabilities, and good ones that were refused. The verdict here
//! is the kernel's, and the right one for each.

mod bounds;
mod cases;
mod good;
mod pointers;
mod pruning;

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::AsRawFd;

use beeline_fuzz::asm::{alu_imm, branch, call, mov, mov_reg, store_imm};
use beeline_fuzz::kernel as bpf;
use beeline_isa::{Insn, opcode::*};
use beeline_kernel::{MapSpec, create_map};
use beeline_uapi::{MapType, ProgramType};
use beeline_verifier::program::{Kind, Map, Program};
use beeline_verifier::types::KernelTypes;
use beeline_verifier::verdict::LogLevel;
use beeline_verifier::verify;
use bounds::bounds;
use good::refused_by_mistake;
use pointers::pointers;
use pruning::pruning;

use crate::cases::{Case, MAPS, case};

#[test]
fn bugs_of_verifiers_are_none_of_ours() {
    let btf = std::fs::read("/sys/kernel/btf/vmlinux").ok();
    let kernel = btf.and_then(KernelTypes::new);
    let maps = MAPS.map(
        |(fd, map_type, [key_size, value_size, max_entries, flags])| {
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
            ProgramType::XDP,
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
    let make =
        |(fd, map_type, [key_size, value_size, max_entries, flags]): (i32, MapType, [u32; 4])| {
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

//! Type information: the reader and the verifier examine every type in every way.

use beeline_btf::{Btf, Type};
use beeline_uapi::ProgramType;
use beeline_verifier::program::{Kind, Program};
use beeline_verifier::types::{FileTypes, KernelTypes, ProgramTypes};

use crate::bytecode::judge;

/// The number of types to examine.
const MOST_TYPES: u32 = 2_000;

/// BTF, as of a kernel, of a file or of a program.
pub fn btf(data: &[u8]) {
    if let Some(btf) = Btf::parse(data) {
        for id in 0..btf.len().min(MOST_TYPES) + 2 {
            if let Some(of) = btf.get(id) {
                look_at(&btf, id, of);
            }
        }
    }
    use_in_verifier(data);
}

fn look_at<'a>(btf: &Btf<'a>, id: u32, of: Type<'a>) {
    let _ = (btf.kind(id), btf.resolve(id), btf.size(id));
    let _ = (of.size(), of.count(), of.is_flagged(), of.component());
    let _ = (of.refers_to(), of.linkage(), of.int_encoding(), of.array());
    let _ = (btf.variables(of).count(), btf.params(of).count());
    let _ = btf.bit_members(of).count();
    for member in btf.members(of).take(64) {
        if let Ok(name) = std::str::from_utf8(member.name) {
            let _ = btf.field(id, name);
        }
    }
    let _ = btf.field(id, "a.b.c");
    let _ = btf.string(id.wrapping_mul(7));
}

/// A program with these types, and a kernel that has them.
fn use_in_verifier(data: &[u8]) {
    let kernel = KernelTypes::new(data.to_vec()).map(KernelTypes::indexed);
    let Some(types) = FileTypes::parse(data.to_vec()) else {
        return;
    };
    // r1 = 0; r2 = 0; call +2; r0 = 0; exit; r0 = 0; exit
    let zero = |register: u8| [0xb7, register, 0, 0, 0, 0, 0, 0];
    let (call, exit) = ([0x85, 0x10, 0, 0, 2, 0, 0, 0], [0x95, 0, 0, 0, 0, 0, 0, 0]);
    let bytes = [zero(1), zero(2), call, zero(0), exit, zero(0), exit].concat();
    let insns: Vec<_> = beeline_isa::Insn::decode_all(&bytes)
        .into_iter()
        .flatten()
        .collect();
    for (prog_type, attach_btf_id) in [
        (ProgramType::KPROBE, 0),
        (ProgramType::TRACING, 3),
        (ProgramType::STRUCT_OPS, 1),
        (ProgramType::LSM, 2),
    ] {
        let kind = Kind {
            prog_type,
            attach_btf_id,
            ..Kind::default()
        };
        for function in (1..24).step_by(3) {
            let info = [[0, function], [5, function + 1]];
            let lines = [[0, 1, 1, 1 << 10], [5, 1, 1, 2 << 10]];
            let of = ProgramTypes::of(
                &types,
                &info,
                &lines,
                &kind,
                &insns,
                &[0, 5],
                kernel.as_ref(),
            );
            judge(&Program {
                kind,
                gpl: true,
                insns: &insns,
                maps: &[],
                types: of.ok().as_ref(),
                kernel: kernel.as_ref(),
                ..Default::default()
            });
        }
    }
}

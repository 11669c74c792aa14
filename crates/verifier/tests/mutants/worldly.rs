//! Programs from the generator of valid ones, and the maps that random programs use.

use beeline_fuzz::world::{CONSTANTS, MAPS};
use beeline_fuzz::{Random, program};
use beeline_isa::Insn;
use beeline_uapi::ProgramType;
use beeline_uapi::flags::SLEEPABLE;
use beeline_verifier::program::{Kind, Map};

use crate::case::Case;

/// The first descriptor of the maps.
pub const FIRST_FD: i32 = 1000;

/// Returns a program that the kernel accepts, as long as it takes the address of no function.
pub fn worldly(random: &mut Random) -> Case {
    let length = 1 + random.below(6) as usize;
    let mut insns = program::worldly(random.bits(), length);
    let mut second = false;
    for insn in &mut insns {
        second = !second && insn.is_imm64();
        if second && is_map(insn) {
            insn.imm += FIRST_FD;
        }
    }
    Case {
        kind: Kind {
            prog_type: ProgramType::SYSCALL,
            flags: SLEEPABLE,
            ..Kind::default()
        },
        insns,
        maps: world(),
    }
}

fn is_map(insn: &Insn) -> bool {
    use beeline_isa::opcode::{PSEUDO_MAP_FD, PSEUDO_MAP_VALUE};
    matches!(insn.src, PSEUDO_MAP_FD | PSEUDO_MAP_VALUE)
}

/// The world's maps.
pub fn world() -> Vec<(i32, Map)> {
    let map = |(number, shape): (usize, &beeline_fuzz::world::Shape)| {
        let constant = (number == CONSTANTS).then(|| {
            let (_, value) = beeline_fuzz::world::contents(number).swap_remove(0);
            value
        });
        let map = Map {
            id: number as u32 + 1,
            map_type: shape.map_type,
            key_size: shape.key,
            value_size: shape.value,
            max_entries: shape.entries,
            flags: shape.flags,
            constant,
            ..Map::default()
        };
        (FIRST_FD + number as i32, map)
    };
    MAPS.iter().enumerate().map(map).collect()
}

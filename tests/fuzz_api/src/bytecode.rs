//! Instructions: decoded, printed, judged, compiled.

use beeline_codegen::{Baseline, Compiler, Machine};
use beeline_fuzz::world::{CONSTANTS, MAPS, contents};
use beeline_isa::{Insn, Listing};
use beeline_uapi::{MapType, ProgramType};
use beeline_verifier::oracle;
use beeline_verifier::program::{FieldKind, Kind, Map, MapField, Program};
use beeline_verifier::{function_starts, resolve};

/// A descriptor of the first map that a program may name; the others follow.
pub const FIRST_FD: i32 = 1000;
/// The most instructions that the verifier may go through.
const MOST: u32 = 20_000;
/// The most instructions on all paths when none is left out.
const MOST_ON_ALL_PATHS: u32 = 500;

/// Bytes of a program: what type it is of, its flags, and its instructions, which may name the maps
/// of `maps`.
pub fn bytecode(data: &[u8]) {
    let Some((&[prog_type, flags], insns)) = data.split_first_chunk() else {
        return;
    };
    let whole = insns.len() / 8 * 8;
    let Ok(insns) = Insn::decode_all(&insns[..whole]) else {
        return;
    };
    let insns: Vec<Insn> = insns.collect();
    let maps = maps();
    let maps: Vec<(i32, &Map)> = maps.iter().map(|(fd, map)| (*fd, map)).collect();
    judge(&Program {
        kind: Kind {
            prog_type: ProgramType(u32::from(prog_type % 33)),
            flags: flags.into(),
            ..Kind::default()
        },
        gpl: true,
        insns: &insns,
        maps: &maps,
        types: None,
        kernel: None,
        ..Default::default()
    });
}

/// Judges a program, and compiles an accepted one.
pub fn judge(program: &Program<'_>) {
    let _ = function_starts(program.insns);
    if oracle::verify_shortly(program, MOST).result.is_err() {
        return;
    }
    let _ = oracle::every_path(program, MOST_ON_ALL_PATHS);
    let indexes: Vec<(i32, u32)> = program.maps.iter().map(|(fd, _)| *fd).zip(0..).collect();
    let Ok(resolved) = resolve(program.insns, &indexes) else {
        return;
    };
    for machine in [Machine::X86_64, Machine::Aarch64] {
        let _ = Baseline.compile(&beeline_codegen::Bytecode::new(&resolved), machine);
    }
}

/// Bytes that may be instructions: decoded ones encode to the same bytes.
pub fn decode(data: &[u8]) {
    let Ok(insns) = Insn::decode_all(data) else {
        return;
    };
    let insns: Vec<Insn> = insns.collect();
    let encoded: Vec<u8> = insns.iter().flat_map(|insn| insn.encode()).collect();
    assert_eq!(encoded, data);
    for insn in &insns {
        let _ = insn.op();
    }
    let _ = Listing(&insns).to_string();
    let _ = function_starts(&insns);
}

/// Returns maps of many types.
fn maps() -> Vec<(i32, Map)> {
    let mut maps: Vec<Map> = MAPS
        .iter()
        .enumerate()
        .map(|(number, shape)| Map {
            map_type: shape.map_type,
            key_size: shape.key,
            value_size: shape.value,
            max_entries: shape.entries,
            flags: shape.flags,
            constant: (number == CONSTANTS).then(|| contents(number).swap_remove(0).1),
            ..Map::default()
        })
        .collect();
    for map_type in [
        MapType::PROG_ARRAY,
        MapType::PERF_EVENT_ARRAY,
        MapType::STACK_TRACE,
        MapType::CGROUP_ARRAY,
        MapType::LPM_TRIE,
        MapType::ARRAY_OF_MAPS,
        MapType::HASH_OF_MAPS,
        MapType::SOCKMAP,
        MapType::XSKMAP,
        MapType::USER_RINGBUF,
        MapType::ARENA,
    ] {
        maps.push(Map {
            map_type,
            key_size: if matches!(map_type, MapType::USER_RINGBUF | MapType::ARENA) {
                0
            } else {
                8
            },
            value_size: 8,
            max_entries: 4,
            inner: matches!(map_type, MapType::ARRAY_OF_MAPS | MapType::HASH_OF_MAPS)
                .then(|| Box::new(maps[0].clone())),
            ..Map::default()
        });
    }
    let locked = Map {
        fields: vec![MapField {
            offset: 0,
            size: 4,
            kind: FieldKind::SpinLock,
        }],
        ..maps[0].clone()
    };
    maps.push(locked);
    for (map, id) in maps.iter_mut().zip(1..) {
        map.id = id;
    }
    (FIRST_FD..).zip(maps).collect()
}

//! Seeds for fuzzing: valid bytes of each kind.

use std::fs;
use std::path::{Path, PathBuf};

use beeline_codegen::aot::{Aot, AotMap, AotProgram};
use beeline_codegen::container::seal;
use beeline_codegen::{Baseline, Bytecode, Code, Compiler, Digest, Machine};
use beeline_fuzz::program;
use beeline_isa::Insn;
use beeline_isa::opcode::{PSEUDO_MAP_FD, PSEUDO_MAP_VALUE};
use beeline_object::{Object, RunningKernel};
use beeline_uapi::{AttachType, MapType, ProgramType};

use crate::bytecode::FIRST_FD;

/// The header of a container before its contents: its kind and a checksum.
const BEGINNING: usize = 8 + 32;
/// The number of generated programs.
const PROGRAMS: u64 = 24;

/// Returns the seeds of a target, by name.
pub fn of(target: &str) -> Vec<(String, Vec<u8>)> {
    match target {
        "object" => objects(),
        "btf" => objects()
            .into_iter()
            .map(|(name, bytes)| (name, types_of(&bytes)))
            .filter(|(_, bytes)| !bytes.is_empty())
            .collect(),
        "bytecode" => programs(|number, bytes| [&head(number)[..], &bytes].concat()),
        "decode" => programs(|_, bytes| bytes),
        "aot_file" => vec![("one".to_owned(), aot().to_bytes().split_off(BEGINNING))],
        "stored_code" => {
            let entry = (Digest::of_bytes(b"name"), code());
            let bytes = seal(*b"bee seed", &entry).split_off(BEGINNING);
            vec![("one".to_owned(), bytes)]
        }
        "host_message" => crate::guest::host_seeds(),
        "guest_message" => crate::guest::guest_seeds(),
        "address" => crate::guest::address_seeds(),
        "policy" => crate::guest::policy_seeds(),
        "memory_tree" => crate::guest::memory_seeds(),
        "tool_calls" => crate::supervisor::seeds(),
        "relay_ring" => crate::relay::relay_seeds(),
        "map_memory" => crate::maps::map_seeds(),
        "map_shards" => crate::shards::shard_seeds(),
        "trace_ring" => crate::trace::trace_seeds(),
        "session_page" => crate::session_page::page_seeds(),
        "dead_session" => crate::remains::dead_seeds(),
        "seccomp_filter" => crate::filter::filter_seeds(),
        "unwind_info" => crate::unwind::unwind_seeds(),
        _ => Vec::new(),
    }
}

/// Returns the type of a program, and its flags: the type that the world is for, sleepable; or a
/// socket filter.
fn head(number: u64) -> [u8; 2] {
    if is_worldly(number) { [31, 16] } else { [1, 0] }
}

fn is_worldly(number: u64) -> bool {
    !number.is_multiple_of(3)
}

fn programs(bytes: impl Fn(u64, Vec<u8>) -> Vec<u8>) -> Vec<(String, Vec<u8>)> {
    let seed = |number: u64| {
        let insns = made_up(number);
        let encoded = insns.iter().flat_map(|insn| insn.encode()).collect();
        (format!("program-{number}"), bytes(number, encoded))
    };
    (0..PROGRAMS).map(seed).collect()
}

fn made_up(number: u64) -> Vec<Insn> {
    let length = 1 + number as usize % 5;
    if !is_worldly(number) {
        return program::program(number, length);
    }
    let mut insns = program::worldly_with_may_goto(number, length);
    let mut second = false;
    for insn in &mut insns {
        second = !second && insn.is_imm64();
        if second && matches!(insn.src, PSEUDO_MAP_FD | PSEUDO_MAP_VALUE) {
            insn.imm += FIRST_FD;
        }
    }
    insns
}

/// Returns the object files beside the fuzz targets.
fn objects() -> Vec<(String, Vec<u8>)> {
    let directory: PathBuf = [env!("CARGO_MANIFEST_DIR"), "../../fuzz/seeds/object"]
        .iter()
        .collect();
    files(&directory)
}

/// Returns the files in a directory, by name.
pub fn files(directory: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut files: Vec<_> = entries
        .filter_map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            Some((name, fs::read(entry.path()).ok()?))
        })
        .collect();
    files.sort();
    files
}

fn types_of(object: &[u8]) -> Vec<u8> {
    let parsed = Object::parse(object, &RunningKernel::default());
    parsed.map(|object| object.btf).unwrap_or_default()
}

fn code() -> Code {
    let insns = made_up(0);
    let code = Baseline.compile(&Bytecode::new(&insns), Machine::X86_64);
    code.expect("a good program")
}

fn aot() -> Aot {
    let insns = made_up(0);
    let mut aot = empty_aot();
    aot.maps.push(AotMap {
        name: "counts".to_owned(),
        map_type: MapType::ARRAY.0,
        key_size: 4,
        value_size: 8,
        max_entries: 1,
        map_flags: 0,
        map_extra: 0,
        value_type: 0,
        inner: Some(0),
        contents: vec![1, 2, 3],
    });
    aot.add(AotProgram {
        section: "uprobe".to_owned(),
        name: "program".to_owned(),
        prog_type: ProgramType::KPROBE.0,
        expected_attach_type: AttachType::UNSPECIFIED.0,
        flags: 0,
        attach_btf_id: 0,
        functions: vec![[0, 1]],
        digest: Digest::of_program(&Bytecode::new(&insns)),
        insns: insns.iter().flat_map(|insn| insn.encode()).collect(),
        maps: vec![0],
        engine: "baseline".to_owned(),
        code: code(),
    });
    aot
}

fn empty_aot() -> Aot {
    let helpers = Digest::of_helpers([(1, "map_lookup_elem")]);
    Aot::new(Machine::X86_64, helpers, "GPL".to_owned(), Vec::new())
}

/// Returns a file without programs.
pub fn empty_aot_file() -> Vec<u8> {
    empty_aot().to_bytes()
}

//! Code loaded from disk is the code that was stored, or nothing.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use beeline_codegen::aot::{Aot, AotMap, AotProgram};
use beeline_codegen::{
    Baseline, Bytecode, Code, CodeStore, Compiler, Digest, Machine, Worker, container,
};
use beeline_isa::Insn;
use proptest::prelude::*;
use tempfile::TempDir;

/// `r0 = value; exit`.
fn program(value: i32) -> [Insn; 2] {
    let insn = |code, imm| Insn {
        code,
        imm,
        ..Insn::default()
    };
    [insn(0xb7, value), insn(0x95, 0)]
}

fn compiled(value: i32) -> (Digest, Code) {
    let insns = program(value);
    let program = Bytecode::new(&insns);
    let code = Baseline
        .compile(&program, Machine::X86_64)
        .expect("compiles");
    let name = Digest::of_code(&Digest::of_program(&program), &Baseline, Machine::X86_64);
    (name, code)
}

fn store() -> (TempDir, CodeStore) {
    let directory = TempDir::new().expect("a temporary directory");
    let store = CodeStore::open(directory.path()).expect("ours");
    (directory, store)
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).expect("readable");
    entries
        .map(|entry| entry.expect("readable").path())
        .collect()
}

#[test]
fn stored_code_is_found_by_later_processes() {
    let (directory, store) = store();
    let (one, two) = (compiled(1), compiled(2));
    assert_eq!(store.get(&one.0), None);
    store.put(&one.0, &one.1).expect("put");
    store.put(&two.0, &two.1).expect("put");
    store.put(&two.0, &two.1).expect("put again");
    let again = CodeStore::open(directory.path()).expect("ours");
    assert_eq!(again.get(&one.0), Some(one.1));
    assert_eq!(again.get(&two.0), Some(two.1));
    assert_eq!(files(directory.path()).len(), 2);
}

#[test]
fn damaged_files_are_none_and_are_written_anew() {
    let (directory, store) = store();
    let (name, code) = compiled(1);
    store.put(&name, &code).expect("put");
    let [path] = &files(directory.path())[..] else {
        panic!("one file");
    };
    let whole = fs::read(path).expect("readable");
    for at in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 1;
        fs::write(path, &damaged).expect("writable");
        assert_eq!(store.get(&name), None, "byte {at}");
        fs::write(path, &whole[..at]).expect("writable");
        assert_eq!(store.get(&name), None, "length {at}");
    }
    store.put(&name, &code).expect("put");
    assert_eq!(store.get(&name), Some(code));
}

#[test]
fn a_file_under_another_name_is_none() {
    let (directory, store) = store();
    let ((one, code), (two, _)) = (compiled(1), compiled(2));
    store.put(&one, &code).expect("put");
    let path = &files(directory.path())[0];
    fs::rename(path, directory.path().join(format!("{two}.code"))).expect("renamed");
    assert_eq!(store.get(&two), None);
}

#[test]
fn code_that_others_can_write_is_not_run() {
    let (directory, store) = store();
    let (name, code) = compiled(1);
    store.put(&name, &code).expect("put");
    let path = &files(directory.path())[0];
    for mode in [0o620, 0o602, 0o666] {
        fs::set_permissions(path, Permissions::from_mode(mode)).expect("ours");
        assert_eq!(store.get(&name), None, "{mode:o}");
    }
    fs::set_permissions(path, Permissions::from_mode(0o644)).expect("ours");
    assert!(store.get(&name).is_some());
    // Only root can give files away.
    if chown(path, Some(12345), None).is_ok() {
        assert_eq!(store.get(&name), None, "another's file");
    }
}

#[test]
fn a_link_is_not_followed() {
    let (directory, store) = store();
    let (name, code) = compiled(1);
    store.put(&name, &code).expect("put");
    let path = &files(directory.path())[0];
    let elsewhere = directory.path().join("elsewhere");
    fs::rename(path, &elsewhere).expect("renamed");
    symlink(&elsewhere, path).expect("linked");
    assert_eq!(store.get(&name), None);
}

#[test]
fn a_file_with_another_name_elsewhere_is_not_run() {
    let (directory, store) = store();
    let (name, code) = compiled(1);
    store.put(&name, &code).expect("put");
    let path = &files(directory.path())[0];
    fs::hard_link(path, directory.path().join("elsewhere")).expect("linked");
    assert_eq!(store.get(&name), None);
}

#[test]
fn a_directory_that_others_can_write_later_is_left_alone() {
    let (directory, store) = store();
    let (name, code) = compiled(1);
    store.put(&name, &code).expect("put");
    let set_mode = |mode| {
        fs::set_permissions(directory.path(), Permissions::from_mode(mode)).expect("ours");
    };
    set_mode(0o770);
    assert_eq!(store.get(&name), None);
    store
        .put(&compiled(2).0, &code)
        .expect_err("others can write it");
    assert_eq!(files(directory.path()).len(), 1);
    set_mode(0o700);
    assert_eq!(store.get(&name), Some(code));
}

#[test]
fn a_directory_that_is_swapped_stays_the_one_that_was_opened() {
    let directory = TempDir::new().expect("a temporary directory");
    let path = directory.path().join("store");
    let store = CodeStore::open(&path).expect("ours");
    let (one, two) = (compiled(1), compiled(2));
    store.put(&one.0, &one.1).expect("put");
    fs::rename(&path, directory.path().join("away")).expect("renamed");
    let other = directory.path().join("other");
    fs::create_dir(&other).expect("made");
    symlink(&other, &path).expect("linked");
    assert_eq!(store.get(&one.0), Some(one.1));
    store.put(&two.0, &two.1).expect("put");
    assert!(files(&other).is_empty());
}

#[test]
fn a_directory_that_others_can_write_is_refused() {
    let directory = TempDir::new().expect("a temporary directory");
    let path = directory.path().join("store");
    drop(CodeStore::open(&path).expect("made"));
    assert_eq!(
        fs::metadata(&path).expect("there").permissions().mode() & 0o777,
        0o700
    );
    fs::set_permissions(&path, Permissions::from_mode(0o777)).expect("ours");
    let refused = CodeStore::open(&path).expect_err("anyone can write it");
    assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
    fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("ours");
    CodeStore::open(&path).expect("only we can write it");
    if chown(&path, Some(12345), None).is_ok() {
        CodeStore::open(&path).expect_err("another's directory");
    }
}

#[test]
fn the_oldest_files_go_when_there_is_too_much() {
    let directory = TempDir::new().expect("a temporary directory");
    let open = || CodeStore::open(directory.path()).expect("ours");
    let (_, code) = compiled(0);
    let unlimited = open();
    unlimited.put(&compiled(0).0, &code).expect("put");
    let one = fs::metadata(&files(directory.path())[0])
        .expect("there")
        .len();
    let store = open().limited_to(8 * one);
    for value in 1..20 {
        let (name, code) = compiled(value);
        store.put(&name, &code).expect("put");
        assert_eq!(store.get(&name), Some(code), "the newest stays");
        assert!(files(directory.path()).len() <= 8);
    }
    let too_great = open().limited_to(one - 1).put(&compiled(0).0, &code);
    assert!(too_great.is_err());
}

#[test]
fn a_killed_writers_leftovers_are_not_found() {
    let (directory, store) = store();
    let (name, code) = compiled(1);
    fs::write(directory.path().join("1-0.coming"), b"half").expect("writable");
    assert_eq!(store.get(&name), None);
    store.put(&name, &code).expect("put");
    assert_eq!(store.get(&name), Some(code));
}

#[test]
fn code_of_another_compiler_is_not_taken() {
    let directory = TempDir::new().expect("a temporary directory");
    let path = directory.path().join("compiler");
    fs::write(&path, "one").expect("writable");
    let worker = Worker::new(&path);
    let insns = program(1);
    let program = Digest::of_program(&Bytecode::new(&insns));
    let name = || Digest::of_code(&program, &worker, Machine::X86_64);
    let before = name();
    assert_eq!(name(), before);
    let newer = directory.path().join("newer");
    fs::write(&newer, "two").expect("writable");
    fs::rename(&newer, &path).expect("renamed");
    assert_ne!(name(), before);
    fs::remove_file(&path).expect("ours");
    assert!(worker.identity().is_empty(), "nothing to keep code of");
}

#[test]
fn programs_that_differ_have_different_names() {
    let name = |program: &Bytecode<'_>| Digest::of_program(program);
    let (one, two) = (program(1), program(2));
    assert_ne!(name(&Bytecode::new(&one)), name(&Bytecode::new(&two)));
    let shape = |entries| beeline_codegen::MapShape::Array { entries, stride: 8 };
    let with = |maps: &[_], in_agent| {
        let insns = &one;
        name(&Bytecode {
            insns,
            maps,
            in_agent,
        })
    };
    assert_ne!(with(&[], false), with(&[], true));
    let over = |maps: &[_]| with(maps, true);
    assert_ne!(over(&[shape(1)]), over(&[shape(2)]));
    assert_ne!(over(&[shape(1)]), over(&[shape(1), shape(1)]));
    assert_ne!(over(&[]), over(&[beeline_codegen::MapShape::Opaque]));
    let helpers = |list: &[(u32, &'static str)]| Digest::of_helpers(list.iter().copied());
    assert_ne!(helpers(&[(1, "a")]), helpers(&[(2, "a")]));
    assert_eq!(
        helpers(&[(1, "a"), (2, "b")]),
        helpers(&[(2, "b"), (1, "a")])
    );
}

/// A file with a program and a map, without its header.
fn aot_contents() -> Vec<u8> {
    let (digest, code) = compiled(1);
    let helpers = Digest::of_helpers([(1, "one")]);
    let mut aot = Aot::new(Machine::X86_64, helpers, "GPL".into(), Vec::new());
    aot.maps.push(AotMap {
        name: "counts".into(),
        map_type: 2,
        key_size: 4,
        value_size: 8,
        max_entries: 1,
        map_flags: 0,
        map_extra: 0,
        value_type: 0,
        inner: Some(0),
        contents: vec![1; 8],
    });
    aot.add(AotProgram {
        section: "uprobe".into(),
        name: "probe".into(),
        prog_type: 2,
        expected_attach_type: 0,
        flags: 0,
        attach_btf_id: 0,
        functions: vec![[0, 1]],
        digest,
        insns: Vec::new(),
        maps: vec![0],
        engine: "baseline".into(),
        code,
    });
    aot.to_bytes()[40..].to_vec()
}

proptest! {
    /// Contents that the checksum covers, as the maker of such a file can choose them.
    #[test]
    fn no_contents_make_a_reader_panic(
        noise: Vec<u8>,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        length: prop::sample::Index,
    ) {
        let mut changed = aot_contents();
        for (at, byte) in changes {
            let at = at.index(changed.len());
            changed[at] = byte;
        }
        changed.truncate(length.index(2 * changed.len()) + 1);
        for contents in [&noise, &changed] {
            let sealed = |kind: &[u8; 8]| [kind, &Digest::of_bytes(contents).bytes()[..], contents].concat();
            if let Ok(aot) = Aot::from_bytes(&sealed(b"bee aot\x01")) {
                prop_assert_eq!(Aot::from_bytes(&aot.to_bytes()), Ok(aot));
            }
            let _ = container::unseal::<(Digest, Code)>(*b"bee code", &sealed(b"bee code"));
        }
    }
}

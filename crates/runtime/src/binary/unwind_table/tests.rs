use std::fs;
use std::path::PathBuf;

use beeline_agent::unwind_table::{Cfa, Saved, UnwindTable};
use gimli::{BaseAddresses, EhFrame, LittleEndian, UnwindContext, UnwindSection};
use object::{Object, ObjectSection};
use proptest::prelude::*;

use super::super::unwind_rules::rule_at;
use super::*;

const LARGEST_OF_LIBC: usize = 200_000;

fn shell() -> Vec<u8> {
    fs::read("/bin/sh").expect("every system has a shell")
}

/// Returns the C library that this process runs with.
fn libc() -> PathBuf {
    let regions = beeline_inject::regions_of(std::process::id() as i32).unwrap();
    let mut paths = regions.into_iter().map(|region| region.path);
    let is_libc = |path: &PathBuf| path.to_string_lossy().contains("/libc.so.");
    paths.find(is_libc).expect("a C library")
}

fn table_of(bytes: &[u8]) -> Option<Table> {
    encoded(bytes)?.1
}

fn segment(address: u64, len: u64) -> Vec<Segment> {
    vec![Segment::new(0, address, len).unwrap()]
}

fn ruled(start: u64, end: u64, distance: i32) -> Ruled {
    let rule = Rule::new(Cfa::Sp(distance), Saved::Kept);
    Ruled { start, end, rule }
}

/// Returns the distances that a table has for some addresses; 0 where it has none.
fn distances(table: &Table, addresses: &[u64]) -> Vec<i32> {
    let view = UnwindTable::of(&table.words);
    let rules = addresses.iter().map(|at| view.rule(at - table.origin));
    let distance = |rule: Rule| match rule.cfa() {
        Cfa::Sp(distance) => distance,
        _ => 0,
    };
    rules.map(distance).collect()
}

/// The table says of every place what a look-up of that place in the unwind information says.
#[test]
fn a_table_says_what_the_unwind_information_says() {
    for path in [std::env::current_exe().unwrap(), libc()] {
        let bytes = fs::read(&path).unwrap();
        let table = table_of(&bytes).unwrap();
        let view = UnwindTable::of(&table.words);
        let file = object::File::parse(&*bytes).unwrap();
        let section = file.section_by_name(".eh_frame").unwrap();
        let data = section.data().unwrap();
        let frames = EhFrame::new(data, LittleEndian);
        let bases = BaseAddresses::default().set_eh_frame(section.address());
        let mut context = UnwindContext::new();
        let (mut checked, mut known) = (0, 0);
        for ruled in rules(data, section.address()).iter().step_by(97) {
            for address in [ruled.start, ruled.end - 1] {
                let info = frames.unwind_info_for_address(
                    &bases,
                    &mut context,
                    address,
                    EhFrame::cie_from_offset,
                );
                let fde = frames.fde_for_address(&bases, address, EhFrame::cie_from_offset);
                if fde.unwrap().is_signal_trampoline() {
                    continue;
                }
                let expected = rule_at(info.unwrap(), &frames);
                let found = view.rule(address - table.origin);
                assert_eq!(found, expected, "{}: {address:#x}", path.display());
                checked += 1;
                known += u32::from(found != Rule::UNKNOWN);
            }
        }
        assert!(checked > 100, "{}: {checked}", path.display());
        // Some functions of a C library end with the stack pointer in another register.
        assert!(known * 100 >= checked * 98, "{known} of {checked}");
    }
}

#[test]
fn the_table_of_the_c_library_is_small() {
    let table = table_of(&fs::read(libc()).unwrap()).unwrap();
    let bytes = table.words.len() * 4;
    assert!(bytes < LARGEST_OF_LIBC, "{bytes}");
}

#[test]
fn gaps_are_unknown_but_for_padding() {
    let code = segment(0x1000, 0x10_0000);
    let rules = vec![
        ruled(0x1000, 0x1010, 8),
        ruled(0x1018, 0x1020, 16),
        ruled(0x2000, 0x2010, 24),
    ];
    let table = table(rules, &code).unwrap();
    let at = [
        0x1000, 0x100f, 0x1010, 0x101f, 0x1020, 0x1fff, 0x2000, 0x2010, 0x9_0000,
    ];
    assert_eq!(distances(&table, &at), [8, 8, 16, 16, 0, 0, 24, 0, 0]);
}

#[test]
fn rules_go_on_over_pages_and_the_later_of_two_counts() {
    let code = segment(0x40_0123, 0x20_0000);
    let rules = vec![
        ruled(0x40_0200, 0x43_0000, 8),
        ruled(0x41_0000, 0x41_0001, 16),
        ruled(0x45_0000, 0x47_0000, 24),
        ruled(0x45_0000, 0x45_8000, 32),
    ];
    let table = table(rules, &code).unwrap();
    let at = [0x40_ffff, 0x41_0000, 0x41_0001, 0x45_0000, 0x45_8000];
    assert_eq!(distances(&table, &at), [8, 16, 0, 32, 0]);
}

#[test]
fn rules_for_places_without_code_are_left_out() {
    let code = segment(0x1000, 0x1000);
    let wild = vec![
        ruled(0, 0x10, 8),
        ruled(0x1f00, 0x2001, 16),
        ruled(u64::MAX - 1, u64::MAX, 24),
    ];
    assert!(table(wild, &code).is_none());
    assert!(table(Vec::new(), &code).is_none());
    assert!(table(vec![ruled(0, 1, 8)], &[]).is_none());
}

#[test]
fn a_table_has_as_many_rules_as_there_are_indexes() {
    let code = segment(0, 1 << 20);
    let rules = (0..70_000).map(|at| ruled(at, at + 1, at as i32 + 1));
    let table = table(rules.collect(), &code).unwrap();
    let at = [0, 1, 65_534, 65_535, 69_999];
    assert_eq!(distances(&table, &at), [1, 2, 65_535, 0, 0]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Files of targets can be arbitrary bytes.
    #[test]
    fn a_spoiled_file_has_a_table_or_none(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..40),
        place in 0..3,
        offset in any::<u64>(),
    ) {
        let mut bytes = shell();
        let part = {
            let file = object::File::parse(&*bytes).unwrap();
            let section = file.section_by_name(".eh_frame").unwrap();
            let (start, len) = section.file_range().unwrap();
            match place {
                0 => 0..1024,
                1 => start as usize..(start + len) as usize,
                _ => 0..bytes.len(),
            }
        };
        for (at, byte) in changes {
            bytes[part.start + at.index(part.len())] = byte;
        }
        if let Some(table) = table_of(&bytes) {
            let view = UnwindTable::of(&table.words);
            for at in [offset, offset % (1 << 20), 0] {
                let _ = view.rule(at);
            }
        }
    }
}

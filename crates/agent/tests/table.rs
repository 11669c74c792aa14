//! The table of helpers in `docs/helpers.md` is true.

mod common;

use std::collections::BTreeMap;

use beeline_agent::helpers;
use beeline_uapi::{HelperId, ProgramType};
use common::maps::kernel::{insn, is_missing, move_imm, try_load};

/// Program types: kprobe (and uprobe), tracepoint, perf event, raw tracepoint.
const TYPES: [ProgramType; 4] = [
    ProgramType::KPROBE,
    ProgramType::TRACEPOINT,
    ProgramType::PERF_EVENT,
    ProgramType::RAW_TRACEPOINT,
];

/// Name and whether it is served, by number.
fn table() -> BTreeMap<u32, (String, bool)> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/helpers.md");
    let text = std::fs::read_to_string(path).unwrap();
    let rows = text.lines().filter_map(|line| {
        let mut cells = line.split('|').map(str::trim).skip(1);
        let number = cells.next()?.parse().ok()?;
        let name = cells.next()?.trim_matches('`').to_owned();
        let served = match cells.next()? {
            "yes" => true,
            "no" => false,
            other => panic!("{line}: {other} is neither yes nor no"),
        };
        let note = cells.next()?;
        assert!(served || !note.is_empty(), "{line}: why not?");
        Some((number, (name, served)))
    });
    rows.collect()
}

#[test]
fn the_table_has_exactly_the_helpers_that_are_served() {
    let served: Vec<(u32, String)> = table()
        .into_iter()
        .filter(|(_, (_, served))| *served)
        .map(|(number, (name, _))| (number, name))
        .collect();
    let there: Vec<(u32, String)> = helpers::ALL
        .iter()
        .map(|helper| (helper.number, helper.name.to_owned()))
        .collect();
    assert_eq!(served, there);
}

#[test]
fn names_are_the_kernels() {
    for (number, (name, _)) in table() {
        assert_eq!(HelperId(number).name(), Some(&*name), "{number}");
    }
}

#[test]
fn all_that_the_kernel_offers_is_in_it() {
    if is_missing() {
        return;
    }
    let table = table();
    let mut offered = 0;
    for number in 1..512 {
        for prog_type in TYPES {
            let call = insn(0x85, 0, 0, 0, number as i32);
            let program = [call, move_imm(0, 0), insn(0x95, 0, 0, 0, 0)];
            let mut log = vec![0; 4096];
            let loaded = try_load(prog_type, &program, &mut log);
            let log = String::from_utf8_lossy(&log);
            let unknown = ["cannot use helper", "unknown func", "invalid func"]
                .iter()
                .any(|words| log.contains(words));
            if loaded.is_ok() || !unknown {
                assert!(
                    table.contains_key(&number),
                    "{number} {:?}",
                    HelperId(number).name()
                );
                offered += 1;
            }
        }
    }
    assert!(offered > 200, "{offered}");
}

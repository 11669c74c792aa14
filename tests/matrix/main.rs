//! Tools as they are shipped, on the kernel and under `beeline run`: the matrix on
//! `docs/tools.md`.
//!
//! `make matrix` runs `measure`, which is no part of the tests: it takes most of an hour, and its
//! outcome is the page. `MATRIX` names families, `MATRIX_TOOL` a part of tools' names; what is not
//! run keeps its last result. With `MATRIX_RESUME` that is also what has a result of today.

mod bcc;
mod bpftool;
mod bpftrace;
mod compare;
mod entry;
mod family;
mod go;
mod libbpf;
mod newer;
mod page;
mod results;
mod run;
mod verdict;
mod work;

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use beeline_e2e::{Scratch, Turn, need, remark};

use entry::Entry;
use family::{FAMILIES, Family};
use results::{Line, Measured};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/tools.md");

#[test]
fn the_page_shows_what_was_measured() {
    let results = results::parse(&fs::read_to_string(results::file()).expect("it is there"));
    let page = fs::read_to_string(PAGE).expect("it is there");
    assert_eq!(page, page::page(&results), "`make matrix` writes the page");
    assert_eq!(results::parse(&results::written(&results)), results);
}

#[test]
#[ignore = "`make matrix` runs it: most of an hour"]
fn measure() {
    need!(beeline_e2e::kernel_available());
    let wanted = std::env::var("MATRIX").unwrap_or_default();
    let is_wanted = |name: &str| wanted.is_empty() || wanted.split(' ').any(|one| one == name);
    let programs = Scratch::new();
    for family in FAMILIES.iter().filter(|family| is_wanted(family.name)) {
        match family.version() {
            Ok(version) => measure_family(family, version, &programs),
            Err(why) => remark(&format!("skipped: {}: {why}", family.name)),
        }
    }
    fs::write(PAGE, page::page(&read())).expect("it can be written");
}

/// Runs a family's tools, and writes the results and the page after each: a run that is cut short
/// keeps what it has.
fn measure_family(family: &Family, version: String, programs: &Scratch) {
    let part = std::env::var("MATRIX_TOOL").unwrap_or_default();
    let entries = family.entries();
    let is_known = |line: &Line| {
        entries
            .iter()
            .any(|entry| verdict::command(entry) == line.command)
    };
    let today = said(&["date", "-u", "+%F"]);
    let is_done = |entry: &Entry| {
        let all = read();
        let family = all.get(family.name).filter(|family| family.day == today);
        let command = verdict::command(entry);
        std::env::var_os("MATRIX_RESUME").is_some()
            && family.is_some_and(|family| family.lines.iter().any(|line| line.command == command))
    };
    for entry in entries.iter().filter(|entry| entry.tool.contains(&part)) {
        if is_done(entry) {
            continue;
        }
        let _turn = Turn::take();
        let line = verdict::measure(entry, family, programs);
        remark(&format!(
            "{}: {}: {}",
            line.command,
            line.verdict.words(),
            line.detail
        ));
        let mut all = read();
        let old = all
            .remove(family.name)
            .map(|old| old.lines)
            .unwrap_or_default();
        let mut lines: Vec<_> = old
            .into_iter()
            .filter(|old| old.command != line.command && is_known(old))
            .collect();
        lines.push(line);
        lines.sort_by(|one, other| one.command.cmp(&other.command));
        let measured = Measured {
            version: version.clone(),
            kernel: said(&["uname", "-r"]),
            day: today.clone(),
            lines,
        };
        all.insert(family.name.to_owned(), measured);
        fs::write(results::file(), results::written(&all)).expect("it can be written");
        fs::write(PAGE, page::page(&all)).expect("it can be written");
    }
}

/// Returns the results so far; none if there are none.
fn read() -> BTreeMap<String, Measured> {
    let text = fs::read_to_string(results::file());
    text.map_or_else(|_| BTreeMap::new(), |text| results::parse(&text))
}

fn said(command: &[&str]) -> String {
    let output = Command::new(command[0]).args(&command[1..]).output();
    let output = output.expect("it is there");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

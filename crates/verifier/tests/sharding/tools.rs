//! Programs that bpftrace and libbpf-tools load.

use std::collections::BTreeMap;

use beeline_uapi::MapType;
use beeline_verifier::program::Map;
use beeline_verifier::sharding::{Sharing, Use};

use crate::objects::{bpftrace, embedded, map};

/// Compares the ways to split maps with those that are expected, as they are printed.
#[track_caller]
fn check(uses: &BTreeMap<String, Use>, expected: &[(&str, &str)]) {
    for (name, sharing) in expected {
        let found = uses[*name].sharing().to_string();
        assert!(found.starts_with(sharing), "{name}: {found}, not {sharing}");
    }
}

/// Checks a script whose map number 0 is a per-CPU hash table, as those of counts are.
#[track_caller]
fn check_script(script: &str, key_size: u32, expected: &[(&str, &str)]) {
    let types = |name: &str| match name {
        "@0" => map(MapType::PERCPU_HASH, key_size, 8),
        "@1" => map(MapType::HASH, 8, 8),
        _ => map(MapType::PERF_EVENT_ARRAY, 4, 4),
    };
    if let Some(object) = bpftrace(script) {
        check(&object.uses(&[], types), expected);
    }
}

#[test]
fn counts_are_summed() {
    let word = [("@0", "summed, 8 bytes at 0")];
    let probe = "uprobe:/bin/true:0x2600";
    check_script(&format!("{probe} {{ @ = count() }}"), 8, &word);
    check_script(&format!("{probe} {{ @[comm] = count() }}"), 16, &word);
    check_script(&format!("{probe} {{ @[pid] = count() }}"), 8, &word);
    check_script(&format!("{probe} {{ @[arg0, comm] = count() }}"), 24, &word);
    check_script(&format!("{probe} {{ @ = sum(arg0) }}"), 8, &word);
    check_script(
        &format!("{probe} {{ @[tid, comm] = sum(arg0) }}"),
        24,
        &word,
    );
    check_script(&format!("{probe} {{ @ = avg(arg0) }}"), 8, &word);
    check_script(&format!("{probe} {{ @ = stats(arg0) }}"), 8, &word);
    check_script(&format!("{probe} {{ @ = hist(arg0) }}"), 8, &word);
    check_script(
        &format!("{probe} {{ @ = lhist(arg0, 0, 100, 10) }}"),
        8,
        &word,
    );
}

#[test]
fn other_maps_of_scripts_are_whole() {
    let probe = "uprobe:/bin/true:0x2600";
    let whole = [("@0", "whole")];
    check_script(&format!("{probe} {{ @ = min(arg0) }}"), 8, &whole);
    check_script(&format!("{probe} {{ @ = arg0 }}"), 8, &whole);
    check_script(
        &format!("{probe} {{ @++; if (@ > 5) {{ exit() }} }}"),
        8,
        &whole,
    );
    check_script(&format!("{probe} {{ @++; printf(\"%d\", @) }}"), 8, &whole);
    check_script(
        &format!("{probe} {{ @[comm] = count(); delete(@[comm]) }}"),
        16,
        &whole,
    );
}

#[test]
fn counts_beside_each_other_are_summed() {
    let script = "uprobe:/bin/true:0x2600 { @ = count(); @u[uid] = count(); @c[comm] = count(); }";
    if let Some(object) = bpftrace(script) {
        let types = |name: &str| match name {
            "@0" => map(MapType::PERCPU_ARRAY, 4, 8),
            "@1" => map(MapType::PERCPU_HASH, 16, 8),
            _ => map(MapType::PERCPU_HASH, 8, 8),
        };
        let summed = ["@0", "@1", "@2"].map(|name| (name, "summed, 8 bytes at 0"));
        check(&object.uses(&[], types), &summed);
    }
}

#[test]
fn latencies_are_measured_by_thread() {
    let script = "uprobe:/bin/true:0x2600 { @s[tid] = nsecs }
        uretprobe:/bin/true:0x2600 /@s[tid]/ { @ = hist(nsecs - @s[tid]); delete(@s[tid]) }";
    if let Some(object) = bpftrace(script) {
        let types = |name: &str| match name {
            "@0" => map(MapType::PERCPU_HASH, 8, 8),
            _ => map(MapType::HASH, 8, 8),
        };
        let uses = object.uses(&[], types);
        check(
            &uses,
            &[("@0", "summed"), ("@1", "by process, with its id at 0")],
        );
    }
}

#[test]
fn counts_of_stacks_are_summed_and_the_stacks_kept_apart() {
    let script = "uprobe:/bin/true:0x2600 { @[ustack] = count(); }";
    if let Some(object) = bpftrace(script) {
        let types = |name: &str| match name {
            "@0" => map(MapType::PERCPU_HASH, 8, 8),
            _ => map(MapType::STACK_TRACE, 4, 1016),
        };
        check(
            &object.uses(&[], types),
            &[("@0", "summed"), ("@1", "stacks")],
        );
    }
}

fn libbpf_tools(name: &str) -> Map {
    match name {
        ".rodata" | ".data" => map(MapType::ARRAY, 4, 64),
        ".bss" => map(MapType::ARRAY, 4, 1024),
        "events" => map(MapType::PERF_EVENT_ARRAY, 4, 4),
        "cgroup_map" => map(MapType::CGROUP_ARRAY, 4, 4),
        "start" | "starts" => map(MapType::HASH, 4, 8),
        "values" => map(MapType::HASH, 4, 24),
        "execs" => map(MapType::HASH, 4, 8192),
        "data" => map(MapType::HASH, 4, 32),
        name => panic!("unknown map {name}"),
    }
}

#[test]
fn opensnoop_can_be_split() {
    let Some(object) = embedded("opensnoop") else {
        return;
    };
    let expected = [
        ("start", "by process, with its id at 0"),
        ("events", "events"),
        (".rodata", "read only"),
    ];
    check(&object.uses(&[], libbpf_tools), &expected);
}

#[test]
fn other_snoops_can_be_split() {
    if let Some(object) = embedded("statsnoop") {
        let expected = [
            ("values", "by process"),
            ("events", "events"),
            (".rodata", "read only"),
        ];
        check(&object.uses(&[], libbpf_tools), &expected);
    }
    if let Some(object) = embedded("execsnoop") {
        let expected = [
            ("execs", "by process"),
            ("events", "events"),
            ("cgroup_map", "read only"),
            (".rodata", "read only"),
        ];
        check(&object.uses(&[], libbpf_tools), &expected);
    }
}

#[test]
fn funclatency_can_be_split() {
    let Some(object) = embedded("funclatency") else {
        return;
    };
    let uses = object.uses(&["kprobe/", "kretprobe/"], libbpf_tools);
    let expected = [
        ("starts", "by process"),
        (".rodata", "read only"),
        (".bss", "summed, 256 words"),
    ];
    check(&uses, &expected);
    let Sharing::Summed(words) = uses[".bss"].sharing() else {
        unreachable!()
    };
    assert!(words.iter().all(|word| word.size == 4));
}

#[test]
fn syscount_can_be_split_in_part() {
    let Some(object) = embedded("syscount") else {
        return;
    };
    // By its constants it either counts by process or does not: only without those does it store
    // names in what it counts.
    check(
        &object.uses(&[], libbpf_tools),
        &[("start", "by process"), ("data", "whole")],
    );
}

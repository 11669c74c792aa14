//! The guest's kernel answers a tool's requests on its descriptors, as inside; requests that name
//! something of this machine are refused.

use super::place::{Place, Setting};
use super::*;

/// The tool's path in the guest.
const TOOL: &str = "/test/descriptors";

/// The output of the small tool, the same everywhere.
fn printed(what: &str) -> Vec<(Place, Vec<String>, Vec<String>)> {
    let guest = match shared() {
        Ok(guest) => guest,
        Err(why) => {
            println!("skipped: {why}");
            return Vec::new();
        }
    };
    let setting = Setting::new(&guest).expect("a guest runs tools");
    let scratch = Scratch::new();
    let tool = scratch.build_with("descriptors.c", &["-static"]);
    guest.put(&std::fs::read(&tool).expect("it was built"), TOOL);
    let places = setting.places.iter().map(|&place| {
        let path = match place {
            Place::Inside => TOOL,
            _ => tool.to_str().expect("a name in ASCII"),
        };
        let output = setting.run(place, &[path, what]);
        assert_eq!(output.code, Some(0), "{place}: {output:?}");
        (place, output.stdout, output.stderr)
    });
    places.collect()
}

/// Asserts that the output is the same everywhere, and contains each of these lines.
fn as_inside(what: &str, known: &[&str]) {
    let printed = printed(what);
    for (place, lines, _) in &printed {
        for line in known {
            assert!(
                lines.iter().any(|found| found == line),
                "{place}: no {line} in {lines:#?}"
            );
        }
    }
    for pair in printed.windows(2) {
        assert_eq!(pair[0].1, pair[1].1, "{} and {}", pair[0].0, pair[1].0);
    }
}

#[test]
fn values_of_perf_events_are_read_as_inside() {
    as_inside(
        "counters",
        &[
            "value[0] > 0: 1",
            "values(leader, value, 40): 40",
            "value[3] == id: 1",
        ],
    );
}

#[test]
fn descriptors_are_asked_about_as_inside() {
    as_inside(
        "query",
        &[
            "kprobe: 0, type 2, \"__x64_sys_sethostname\" (21), offset 0, address 1, this program 1",
            "raw tracepoint: 0, type 0, \"sched_switch\" (12), offset 0, address 0, this program 1",
            "a file: -524, type 0, \"untouched\" (64), offset 0, address 0, this program 1",
        ],
    );
}

#[test]
fn references_to_this_machine_are_refused_with_a_reason() {
    const REFUSED: [&str; 8] = [
        "link_to(filter, cgroup, BPF_CGROUP_INET_INGRESS): -95",
        "link_to(packets, device, BPF_XDP): -95",
        "bpf(BPF_PROG_ATTACH, &attr): -95",
        "bpf(BPF_PROG_DETACH, &attr): -95",
        "bpf(BPF_PROG_QUERY, &attr): -95",
        "bpf(BPF_PROG_LOAD, &attr): -95",
        "bpf(BPF_MAP_CREATE, &attr): -95",
        "perf_open(&own, 0, -1, -1): -3",
    ];
    const SAID: [&str; 7] = [
        "a link to a cgroup: its descriptor is of this machine's",
        "a link to a network device: its number is of this machine's",
        "attaching a program to a cgroup: its descriptor is of this machine's",
        "detaching a program from a cgroup: its descriptor is of this machine's",
        "asking for the programs of a cgroup: its descriptor is of this machine's",
        "an object for a network device: its number is of this machine's",
        "perf_event_open of the tool itself (pid 0): it is no process of the guest's",
    ];
    for (place, lines, said) in printed("refused") {
        if place == Place::Inside {
            continue;
        }
        assert_eq!(lines, REFUSED, "{place}");
        for line in SAID {
            let count = said.iter().filter(|found| found.contains(line)).count();
            assert_eq!(count, 1, "{place}: {line}, in {said:#?}");
        }
    }
}

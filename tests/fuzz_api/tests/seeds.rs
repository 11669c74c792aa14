//! The fuzz targets accept their seeds, and slightly changed ones. `make fuzz` goes further.

use beeline_fuzz::Random;
use beeline_fuzz_api::{
    TARGETS, frames_walked, lines_read, operations_done, operations_on_shards, passes,
    records_relayed, remains_seen, requests_answered, seeds, tool_answers,
};
use beeline_uapi::Errno;

/// Changed copies of each seed.
const COPIES: u64 = 40;

#[test]
fn seeds_and_what_is_near_them_are_taken() {
    for (name, target) in TARGETS {
        let seeds = seeds::of(name);
        assert!(!seeds.is_empty(), "no seeds for {name}");
        for (at, (seed, bytes)) in seeds.iter().enumerate() {
            println!("{name}: {seed}");
            target(bytes);
            for copy in 0..COPIES {
                let mut random = Random::new(at as u64 * COPIES + copy);
                random.bits();
                target(&damaged(&mut random, bytes));
            }
        }
        target(&[]);
    }
}

/// Good seeds let inputs near them get far.
#[test]
fn a_tools_seeds_are_good_calls() {
    for (name, bytes) in seeds::of("tool_calls") {
        let answers = tool_answers(&bytes);
        let is_good = match name.as_str() {
            // There is no room for the data to read.
            "large" => answers == [Err(Errno(14))],
            // It would change a ring's descriptor, in no process.
            "poll" => answers == [Err(Errno(25))],
            _ => answers == [Ok(())],
        };
        assert!(is_good, "{name}: {answers:?}");
    }
}

#[test]
fn the_records_of_seeds_are_relayed() {
    for (name, bytes) in seeds::of("relay_ring") {
        let wanted = match name.as_str() {
            "ring-kinds" => 3,
            "perf-kinds" => 2,
            _ => 24 * 16,
        };
        assert_eq!(records_relayed(&bytes), wanted, "{name}");
    }
}

#[test]
fn the_operations_of_seeds_reach_each_kind_of_map() {
    for (name, bytes) in seeds::of("map_memory") {
        let done = operations_done(&bytes);
        assert!(done > 5, "{name}: {done}");
    }
    for (name, bytes) in seeds::of("map_shards") {
        let done = operations_on_shards(&bytes);
        assert!(done > 6, "{name}: {done}");
    }
}

#[test]
fn the_lines_of_seeds_are_read() {
    for (name, bytes) in seeds::of("trace_ring") {
        let lines = lines_read(&bytes);
        assert_eq!(lines > 0, name != "ahead", "{name}");
    }
}

#[test]
fn stacks_are_walked_by_the_unwind_information_of_seeds() {
    for (name, bytes) in seeds::of("unwind_info") {
        let frames = frames_walked(&bytes);
        assert!(frames > 100, "{name}: {frames}");
    }
}

#[test]
fn the_filters_of_seeds_are_told_apart() {
    for (name, bytes) in seeds::of("seccomp_filter") {
        assert_eq!(passes(&bytes), name.starts_with("passes"), "{name}");
    }
}

#[test]
fn the_requests_of_seeds_are_answered() {
    for (name, bytes) in seeds::of("session_page") {
        let wanted = match name.as_str() {
            "execs" => (2, true),
            "others" | "false" => (3, true),
            "counts" => (0, true),
            // The target is left alone from then on.
            "dismissed" | "confines" => (1, false),
            _ => (1, true),
        };
        if let Some(answered) = requests_answered(&bytes) {
            assert_eq!(answered, wanted, "{name}");
        }
    }
}

#[test]
fn the_remains_of_seeds_are_seen_and_taken_out() {
    for (name, bytes) in seeds::of("dead_session") {
        let kind = name.trim_end_matches("-taken-out");
        let (sites, calls) = match kind {
            "functions" | "two" | "returns" => (2, 0),
            "overlapping" => (1, 0),
            "calls" => (0, 3),
            "endless" => (0, 4),
            _ => (0, 0),
        };
        // One of the two lies under the other.
        let cleared = match kind {
            _ if kind == name => 0,
            "two" => 1,
            _ => 2,
        };
        if let Some(seen) = remains_seen(&bytes) {
            let found = (seen.sessions, seen.sites, seen.calls, seen.cleared);
            assert_eq!(found, (2, sites, calls, cleared), "{name}");
        }
    }
}

/// Returns it with a few bytes changed, or the end cut off.
fn damaged(random: &mut Random, bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let length = bytes.len() as u64;
    if length == 0 {
        return bytes;
    }
    for _ in 0..1 + random.below(8) {
        let at = random.below(length) as usize;
        bytes[at] = match random.below(3) {
            0 => bytes[at] ^ 1 << random.below(8),
            1 => random.pick(&[0, 1, 0x7f, 0x80, 0xff]),
            _ => random.bits() as u8,
        };
    }
    if random.once_in(4) {
        bytes.truncate(random.below(length) as usize);
    }
    bytes
}

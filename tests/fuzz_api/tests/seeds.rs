//! The fuzz targets accept their seeds, and slightly changed ones. `make fuzz` goes further.

use beeline_fuzz::Random;
use beeline_fuzz_api::{TARGETS, records_relayed, seeds, tool_answers};
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

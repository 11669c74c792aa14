//! QEMU's words on a machine's addresses: `info mtree -f`, the *flat* tree, in which regions
//! neither overlap nor nest.
//!
//! A view of it has a line for each address space that sees it so, and a line for each range:
//!
//! ```text
//! FlatView #1
//!  AS "memory", root: system
//!  Root memory region: system
//!   0000000000000000-00000000000bffff (prio 0, ram): mem0 KVM
//!   00000000000c0000-00000000000dffff (prio 1, rom): pc.rom
//!   0000000100000000-000000017fffffff (prio 0, ram): mem0 @0000000080000000 KVM
//! ```

use std::ops::RangeInclusive;

/// The address space that processors and devices see.
const SYSTEM: &str = "AS \"memory\",";

/// Returns the guest-physical addresses that are plain memory, in the tree's order: neither ROM,
/// nor devices, nor non-volatile memory. Lines that make no sense are left out.
pub fn memory(tree: &str) -> Vec<RangeInclusive<u64>> {
    let mut found = Vec::new();
    let mut is_system = false;
    for line in tree.lines().map(str::trim) {
        if line.starts_with("FlatView") {
            is_system = false;
            if !found.is_empty() {
                break;
            }
        }
        is_system |= line.starts_with(SYSTEM);
        if is_system {
            found.extend(range(line));
        }
    }
    found
}

fn range(line: &str) -> Option<RangeInclusive<u64>> {
    let (addresses, rest) = line.split_once(' ')?;
    let (kind, _) = rest.strip_prefix("(prio ")?.split_once(')')?;
    let (_, kind) = kind.split_once(", ")?;
    let (first, last) = addresses.split_once('-')?;
    let hex = |digits| u64::from_str_radix(digits, 16).ok();
    let range = hex(first)?..=hex(last)?;
    (kind == "ram" && !range.is_empty()).then_some(range)
}

/// Returns the address in QEMU's own memory from the answer of `gpa2hva`: `Host virtual address for
/// 0x0 (mem0) is 0x7fa463fff000`.
pub fn host_address(answer: &str) -> Option<u64> {
    let (_, address) = answer.trim().rsplit_once(" is 0x")?;
    u64::from_str_radix(address, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As QEMU 10.0 has printed it.
    fn of(machine: &str) -> Vec<RangeInclusive<u64>> {
        let path = format!("{}/tests/qemu/{machine}", env!("CARGO_MANIFEST_DIR"));
        memory(&std::fs::read_to_string(path).unwrap())
    }

    const LOW: [RangeInclusive<u64>; 1] = [0..=0xb_ffff];

    #[test]
    fn addresses_below_and_above_the_gap_are_translated() {
        let below = |last| 0x10_0000..=last;
        for (machine, others) in [
            ("q35-1g", vec![below(0x3fff_ffff)]),
            (
                "q35-4g",
                vec![below(0x7fff_ffff), 0x1_0000_0000..=0x1_7fff_ffff],
            ),
            (
                "q35-6g-memfd",
                vec![below(0x7fff_ffff), 0x1_0000_0000..=0x1_ffff_ffff],
            ),
            (
                "pc-4g",
                vec![below(0xbfff_ffff), 0x1_0000_0000..=0x1_3fff_ffff],
            ),
            ("pc-unshared", vec![below(0x3fff_ffff)]),
        ] {
            assert_eq!(of(machine), [&LOW[..], &others].concat(), "{machine}");
        }
    }

    #[test]
    fn firmware_that_is_memory_of_qemus_own() {
        let firmware = [0xe_0000..=0xf_ffff, 0xfffe_0000..=0xffff_ffff];
        let [low, high] = firmware;
        let all = [0..=0xd_ffff, low, 0x10_0000..=0x3fff_ffff, high];
        assert_eq!(of("microvm"), all);
    }

    #[test]
    fn memory_of_two_nodes() {
        let nodes = [
            0..=0xb_ffff,
            0x10_0000..=0x7fff_ffff,
            0x1_0000_0000..=0x1_3fff_ffff,
            0x1_4000_0000..=0x1_ffff_ffff,
        ];
        assert_eq!(of("q35-numa"), nodes);
    }

    #[test]
    fn lines_without_sense_are_left_out() {
        let tree = "FlatView #0\n AS \"memory\", root: system\n  0-fff (prio 0, ram): a\n  10-zz (prio 0, ram): b\n  9-1 (prio 0, ram): c\n  \
                    -5 (prio\n  0-fff (prio 0, nv-ram): d\n\nFlatView #1\n AS \"memory\",\n  0-1fff (prio 0, ram): e\n";
        assert_eq!(memory(tree), [0..=0xfff]);
        assert_eq!(memory(""), []);
    }

    #[test]
    fn addresses_of_the_host() {
        let said = "Host virtual address for 0x0 (mem0) is 0x7fa463fff000\r\n";
        assert_eq!(host_address(said), Some(0x7fa4_63ff_f000));
        assert_eq!(
            host_address("No memory is mapped at address 0x80000000\r\n"),
            None
        );
    }
}

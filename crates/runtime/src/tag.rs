//! A program's tag: eight bytes of a digest of its instructions, the same that the running kernel
//! computes.
//!
//! The kernel digests the instructions as the tool passed them, with the descriptors of maps
//! zeroed, since those differ from run to run. Up to 6.17 it used SHA-1, from 6.18 on SHA-256.

use std::sync::OnceLock;

use beeline_isa::INSN_BYTES;
use beeline_isa::opcode::{DW, IMM, LD, PSEUDO_MAP_FD, PSEUDO_MAP_VALUE};
use sha1::Sha1;
use sha2::{Digest, Sha256};

const INSN: usize = INSN_BYTES;
/// The instruction that loads a constant, and the two sources of it that are maps.
const LD_IMM64: u8 = LD | IMM | DW;
const MAP_SOURCES: [u8; 2] = [PSEUDO_MAP_FD, PSEUDO_MAP_VALUE];

/// Returns the tag of a program of raw instructions.
pub fn of(insns: &[u8]) -> [u8; 8] {
    let mut plain = insns.to_vec();
    each_map_load(&mut plain, |first, second| {
        first.fill(0);
        second.fill(0);
    });
    static SHA256: OnceLock<bool> = OnceLock::new();
    if *SHA256.get_or_init(kernel_uses_sha256) {
        first_8(&Sha256::digest(&plain))
    } else {
        first_8(&Sha1::digest(&plain))
    }
}

/// Calls `change` with both constants of each instruction that loads a map or an address in its
/// value.
pub fn each_map_load(insns: &mut [u8], mut change: impl FnMut(&mut [u8], &mut [u8])) {
    let mut rest = insns;
    while let Some((insn, after)) = rest.split_at_mut_checked(INSN) {
        rest = after;
        let [LD_IMM64, registers, _, _, first @ ..] = insn else {
            continue;
        };
        let Some((second_half, after)) = std::mem::take(&mut rest).split_at_mut_checked(INSN)
        else {
            return;
        };
        rest = after;
        if MAP_SOURCES.contains(&(*registers >> 4)) {
            let (_, second) = second_half.split_at_mut(INSN / 2);
            change(first, second);
        }
    }
}

fn first_8(digest: &[u8]) -> [u8; 8] {
    let mut tag = [0; 8];
    for (to, from) in tag.iter_mut().zip(digest) {
        *to = *from;
    }
    tag
}

fn kernel_uses_sha256() -> bool {
    let release = rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned();
    version(&release).is_none_or(|version| version >= (6, 18))
}

/// Returns major and minor of a release such as `6.1.0-30-amd64`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(['.', '-']);
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn map_loads_are_found_and_nothing_else_is() {
        let mut insns = vec![0u8; 5 * INSN];
        insns[0] = LD_IMM64;
        insns[1] = 0x11;
        // The second half of the first load looks like a load itself.
        insns[8] = LD_IMM64;
        insns[9] = 0x11;
        insns[16] = LD_IMM64;
        insns[32] = LD_IMM64;
        insns[33] = 0x21;
        let mut found = 0;
        each_map_load(&mut insns, |_, _| found += 1);
        assert_eq!(found, 1);
    }

    #[test]
    fn versions_are_read() {
        assert_eq!(version("6.1.0-30-amd64"), Some((6, 1)));
        assert_eq!(version("6.18-rc1"), Some((6, 18)));
        assert_eq!(version("unknown"), None);
    }
}

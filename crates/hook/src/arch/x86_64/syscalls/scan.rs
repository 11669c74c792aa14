//! Searches through the bytes of a text, without decoding more than necessary.

use iced_x86::{Decoder, DecoderOptions, Instruction as Decoded};
use memchr::memmem::Finder;

use super::SYSCALL;
use crate::arch::x86_64::jump::{CALL_OPCODE, JUMP_OPCODE};
use crate::plan::Function;
use crate::syscalls::Ranges;

/// Finds the `syscall` instructions of functions.
pub(crate) struct CallFinder(Finder<'static>);

impl CallFinder {
    /// Prepares the search.
    pub fn new() -> Self {
        Self(Finder::new(&SYSCALL))
    }

    /// Returns the offsets of the `syscall` instructions from an offset on, where an instruction
    /// starts. Bytes that are none are left out.
    pub fn calls<'a>(
        &'a self,
        function: &Function<'a>,
        start: usize,
    ) -> impl Iterator<Item = usize> + 'a {
        let code = function.code.get(start..).unwrap_or_default();
        let mut decoder = Decoder::new(64, code, DecoderOptions::NONE);
        let mut instruction = Decoded::default();
        self.0
            .find_iter(code)
            .filter(move |call| {
                while decoder.position() < *call {
                    let at = decoder.position();
                    decoder.decode_out(&mut instruction);
                    if instruction.is_invalid() && decoder.set_position(at + 1).is_err() {
                        return false;
                    }
                }
                decoder.position() == *call
            })
            .map(move |call| start + call)
    }
}

/// True if bytes of the function look like a call of one of the addresses.
pub(crate) fn calls_one_of(function: &Function, addresses: &[u64]) -> bool {
    memchr::memchr_iter(CALL_OPCODE, function.code)
        .filter_map(|at| far_target(function, at + 1))
        .any(|target| addresses.contains(&target))
}

/// Returns the target of a branch with its 32-bit displacement at that offset.
fn far_target(function: &Function, at: usize) -> Option<u64> {
    let field = function.code.get(at..at + 4)?.try_into().ok()?;
    let end = function.start.wrapping_add(at as u64 + 4);
    Some(end.wrapping_add_signed(i64::from(i32::from_le_bytes(field))))
}

/// Searches code for branches into ranges.
pub(crate) struct BranchScan<'a> {
    ranges: &'a Ranges,
    /// Ranges that contain all of them: the low half of the first address, and the distance to the
    /// last.
    clusters: Vec<(u32, u32)>,
}

/// Bytes that are checked together.
const BLOCK: usize = 64;
/// The most clusters: each is a comparison for each byte of the text.
const CLUSTERS: usize = 4;
/// The least number of bytes between two clusters: few displacements lead into so small a range by
/// chance.
const GAP: u64 = 1 << 16;

/// The reach of a branch with an 8-bit displacement, itself included.
const SHORT_REACH: u64 = 130;

impl<'a> BranchScan<'a> {
    /// Prepares the search.
    pub fn of(ranges: &'a Ranges) -> Self {
        Self {
            clusters: clusters(ranges.bounds()),
            ranges,
        }
    }

    /// True if bytes of the function look like an instruction that leads from it to one of the
    /// ranges.
    pub fn may_lead_there(&self, function: &Function) -> bool {
        self.far(function) || self.short(function)
    }

    /// Checks for 32-bit displacements: in a jump, a conditional jump, a call or an address that is
    /// loaded.
    fn far(&self, function: &Function) -> bool {
        self.far_targets(function).next().is_some()
    }

    /// Returns where these bytes lead, each with its address.
    fn far_targets(&self, function: &Function) -> impl Iterator<Item = (u64, u64)> {
        let Function { start, code } = *function;
        let leads = move |at: usize| {
            far_target(function, at).filter(|target| {
                self.ranges.hold(*target) && target.wrapping_sub(start) >= code.len() as u64
            })
        };
        let target = move |at: usize| {
            let next = code.get(at + 1).copied().unwrap_or_default();
            let target = match code[at] {
                CALL_OPCODE | JUMP_OPCODE => leads(at + 1),
                // jcc rel32
                0x0f if next & 0xf0 == 0x80 => leads(at + 2),
                // lea r64, [rip + disp32]
                0x8d if next & 0xc7 == 0x05 => leads(at + 2),
                _ => None,
            };
            target.map(|target| (target, start.wrapping_add(at as u64)))
        };
        let blocks = (0..code.len()).step_by(BLOCK);
        let blocks = blocks.filter(|block| self.may_hold_displacement(function, *block));
        // A displacement in the block may belong to an instruction that starts before it.
        blocks
            .flat_map(|block| block.saturating_sub(2)..(block + BLOCK).min(code.len()))
            .filter_map(target)
    }

    /// Adds where bytes of unnamed code seem to lead, without decoding: a false target can only
    /// make the answer more careful.
    pub fn collect(&self, function: &Function, targets: &mut Vec<(u64, u64)>) {
        targets.extend(self.far_targets(function));
        targets.extend(self.short_targets(function));
    }

    /// True if the four bytes from some place in the block on could lead into a cluster of ranges.
    /// Checks all of them at once, whatever instruction they are in.
    fn may_hold_displacement(&self, function: &Function, block: usize) -> bool {
        const LANES: usize = BLOCK / 4;
        let Some(bytes) = function.code.get(block..block + BLOCK + 3) else {
            return true;
        };
        let end = function.start.wrapping_add(block as u64 + 4) as u32;
        let mut outside = [-1; LANES];
        for shift in 0..4 {
            let (words, _) = bytes[shift..shift + BLOCK].as_chunks::<4>();
            for (low, len) in &self.clusters {
                let origin = end.wrapping_add(shift as u32).wrapping_sub(*low);
                for (lane, (word, outside)) in words.iter().zip(&mut outside).enumerate() {
                    let offset = u32::from_le_bytes(*word)
                        .wrapping_add(origin)
                        .wrapping_add(4 * lane as u32);
                    *outside &= -i32::from(signed(offset) > signed(*len));
                }
            }
        }
        outside.contains(&0)
    }

    /// Checks for 8-bit displacements.
    fn short(&self, function: &Function) -> bool {
        self.short_targets(function).next().is_some()
    }

    /// Returns where these bytes lead, each with its address.
    fn short_targets(&self, function: &Function) -> impl Iterator<Item = (u64, u64)> {
        let Function { start, code } = *function;
        let end = start.saturating_add(code.len() as u64);
        let ranges = self.ranges.bounds();
        let first = ranges.partition_point(|(_, high)| high.saturating_add(SHORT_REACH) < start);
        let offset = move |address: u64| {
            let offset = address.saturating_sub(start);
            usize::try_from(offset)
                .unwrap_or(usize::MAX)
                .min(code.len())
        };
        let target = move |(bytes, at): (&[u8], usize)| {
            let from = start.wrapping_add(at as u64);
            let displacement = i64::from(bytes[1].cast_signed());
            let target = from.wrapping_add(2).wrapping_add_signed(displacement);
            let leads = matches!(bytes[0], 0x70..=0x7f | 0xe0..=0xe3 | 0xeb)
                && target.wrapping_sub(start) >= code.len() as u64
                && self.ranges.hold(target);
            leads.then_some((target, from))
        };
        ranges[first..]
            .iter()
            .take_while(move |(low, _)| low.saturating_sub(SHORT_REACH) < end)
            .flat_map(move |(low, high)| {
                let from = offset(low.saturating_sub(SHORT_REACH));
                let to = offset(high.saturating_add(SHORT_REACH));
                code[from..to].windows(2).zip(from..)
            })
            .filter_map(target)
    }
}

/// Splits the ranges at the widest gaps. A part of 4 GB or more becomes one that holds every
/// address.
fn clusters(ranges: &[(u64, u64)]) -> Vec<(u32, u32)> {
    let gap = |after: &usize| ranges[*after].0 - ranges[after - 1].1;
    let mut gaps: Vec<usize> = (1..ranges.len()).filter(|after| gap(after) > GAP).collect();
    gaps.sort_by_key(|after| std::cmp::Reverse(gap(after)));
    gaps.truncate(CLUSTERS - 1);
    gaps.sort_unstable();
    let starts = std::iter::once(0).chain(gaps.iter().copied());
    let ends = gaps.iter().copied().chain([ranges.len()]);
    starts
        .zip(ends)
        .filter_map(|(start, end)| {
            let (low, high) = (ranges.get(start)?.0, ranges.get(end.checked_sub(1)?)?.1);
            Some((low as u32, u32::try_from(high - low).unwrap_or(u32::MAX)))
        })
        .collect()
}

/// Maps to the same order in signed numbers, several of which every processor can compare at once.
fn signed(value: u32) -> i32 {
    (value ^ 1 << 31).cast_signed()
}

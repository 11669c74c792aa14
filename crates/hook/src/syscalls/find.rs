//! Finding the `syscall` instructions of a text, and the branches near them, without decoding more
//! than necessary.

use std::time::Instant;

use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic};
use memchr::memmem::Finder;

use super::cancel::{self, CancellationPoint};
use super::choose::{self, Point, SENSITIVE, Targets};
use super::tables::{Data, Jumps};
use super::{CallSites, SYSCALL, SYSCALL_LEN, Unhookable, UnhookableCall};
use crate::incoming;
use crate::plan::Function;
use crate::survey::Survey;

/// The longest function. Surveying one takes some ten times its length of memory.
pub const LONGEST_FUNCTION: usize = 4 << 20;
/// The most bytes of the functions of a text that are surveyed, together.
const MOST_SURVEYED: usize = 8 << 20;

/// A function that makes system calls.
struct Holder<'a> {
    function: Function<'a>,
    survey: Survey,
    /// The places, ascending.
    points: Vec<Point>,
}

impl CallSites {
    /// Finds and plans all of a text, given as its functions, in any order. They should not
    /// overlap. Code that belongs to none of them is not looked at.
    ///
    /// Only functions that hold the bytes of a `syscall` or seem to branch near one are decoded.
    /// Code that is longer than [`LONGEST_FUNCTION`] is not a function but unnamed code: it is
    /// scanned as [`Self::of_unknown`] does, and for branches from there into functions. Functions
    /// are treated in the same way once `MOST_SURVEYED` bytes of others have been surveyed.
    ///
    /// `data` returns the bytes of the file from an address on, as far as they lie together,
    /// wherever they are mapped: the tables of a `switch` are read, and every place that one leads
    /// to is left alone. Without them, some sites in functions with such tables are unhookable.
    pub fn of<'a>(functions: &[Function], data: impl Fn(u64) -> Option<&'a [u8]> + 'a) -> Self {
        let sites = Self::find(functions, &data, &|| false);
        sites.unwrap_or_default()
    }

    /// As [`Self::of`]; `None` if it was not done at that time, or a moment later.
    pub fn of_until<'a>(
        functions: &[Function],
        data: impl Fn(u64) -> Option<&'a [u8]> + 'a,
        until: Instant,
    ) -> Option<Self> {
        Self::find(functions, &data, &|| Instant::now() >= until)
    }

    fn find(functions: &[Function], data: &Data, is_late: &dyn Fn() -> bool) -> Option<Self> {
        let finder = Finder::new(&SYSCALL);
        let mut sites = Self::default();
        let (mut holders, mut long, mut short) = (Vec::new(), Vec::new(), Vec::new());
        let mut surveyed = 0;
        for function in functions {
            if is_late() {
                return None;
            }
            let len = function.code.len();
            let is_short = len <= LONGEST_FUNCTION;
            let holds = is_short && may_hold_call(function, &finder);
            if !is_short || holds && surveyed + len > MOST_SURVEYED {
                long.push(*function);
                continue;
            }
            short.push(*function);
            if holds {
                surveyed += len;
                holders.push(Holder::of(*function));
            }
        }
        for holder in &holders {
            sites.add_lost(holder, &finder);
        }
        for point in take_cancellation_points(&mut holders) {
            let is_called = add_callers(&point, &short, &mut holders, is_late)?;
            // Calls from there are not seen, as nobody knows what branches around them.
            if !is_called || is_called_from(&long, &point, is_late)? {
                sites.unhookable.push(UnhookableCall {
                    call: point.call,
                    why: Unhookable::CancellationPoint,
                });
            }
        }
        let near = Ranges::around(&holders);
        let others = branches_into(&near, &short, &long, is_late)?;
        for holder in holders {
            if is_late() {
                return None;
            }
            holder.plan(&others, data, &mut sites);
        }
        for Function { start, code } in &long {
            sites.append(Self::of_unknown(*start, code));
        }
        sites.is_partial |= !long.is_empty();
        sites.plans.sort_by_key(|plan| plan.call);
        sites.unhookable.sort_by_key(|unhookable| unhookable.call);
        sites.unhookable.dedup();
        Some(sites)
    }
}

/// Returns what leads from functions and from unnamed code to the ranges, ascending, each with the
/// address of the instruction. `None` if that took too long.
fn branches_into(
    near: &Ranges,
    functions: &[Function],
    long: &[Function],
    is_late: &dyn Fn() -> bool,
) -> Option<Vec<(u64, u64)>> {
    let mut found = Vec::new();
    if near.is_empty() {
        return Some(found);
    }
    for function in functions {
        if is_late() {
            return None;
        }
        if near.may_be_target(function) {
            incoming::collect(function, &mut found);
        }
    }
    for code in long {
        near.collect(code, &mut found);
    }
    found.sort_unstable();
    Some(found)
}

impl CallSites {
    /// Adds what seems to be a `syscall`, but is behind bytes that are no instruction.
    fn add_lost(&mut self, holder: &Holder, finder: &Finder) {
        let Function { start, code } = holder.function;
        let from = holder.survey.end.wrapping_sub(start) as usize;
        for call in calls_from(&holder.function, from, finder) {
            if !self.add_unknown(start, code, call) {
                self.unhookable.push(UnhookableCall {
                    call: start.wrapping_add(call as u64),
                    why: Unhookable::Doubtful,
                });
            }
        }
    }
}

/// True if there is a `syscall` among the function's instructions. The search stops where its bytes
/// are found.
fn may_hold_call(function: &Function, finder: &Finder) -> bool {
    calls_from(function, 0, finder).next().is_some()
}

/// Returns the offsets of the `syscall` instructions from an offset on, where an instruction
/// starts. Bytes that are none are left out.
fn calls_from<'a>(
    function: &Function<'a>,
    start: usize,
    finder: &'a Finder,
) -> impl Iterator<Item = usize> + 'a {
    let code = function.code.get(start..).unwrap_or_default();
    let mut decoder = Decoder::new(64, code, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    finder
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

/// Takes the cancellation points out of the `syscall` instructions, which no longer count as such.
fn take_cancellation_points(holders: &mut [Holder]) -> Vec<CancellationPoint> {
    let mut found = Vec::new();
    for Holder {
        function,
        survey,
        points,
    } in holders
    {
        for cancellation in cancel::find(function, survey) {
            let is_it = |point: &Point| survey.instructions[point.index].ip() == cancellation.call;
            if points.iter().any(is_it) {
                points.retain(|point| !is_it(point));
                found.push(cancellation);
            }
        }
    }
    found
}

/// Makes points of all instructions that call the function of a cancellation point. Returns false
/// if there is none, and `None` if it took too long.
fn add_callers<'a>(
    point: &CancellationPoint,
    functions: &[Function<'a>],
    holders: &mut Vec<Holder<'a>>,
    is_late: &dyn Fn() -> bool,
) -> Option<bool> {
    let mut is_called = false;
    for function in functions {
        if is_late() {
            return None;
        }
        if !calls_one_of(function, &point.starts) {
            continue;
        }
        let known = holders
            .iter()
            .position(|holder| holder.function.start == function.start);
        let holder = known.unwrap_or_else(|| {
            holders.push(Holder::of(*function));
            holders.len() - 1
        });
        let Holder { survey, points, .. } = &mut holders[holder];
        let calls = |instruction: &Instruction| {
            instruction.is_call_near() && point.starts.contains(&instruction.near_branch_target())
        };
        let callers = survey.instructions.iter().enumerate();
        for (index, _) in callers.filter(|(_, instruction)| calls(instruction)) {
            let calls = Some(point.call);
            points.push(Point { index, calls });
            is_called = true;
        }
        points.sort_unstable();
    }
    Some(is_called)
}

/// True if unnamed code seems to call a cancellation point. `None` if it took too long.
fn is_called_from(
    code: &[Function],
    point: &CancellationPoint,
    is_late: &dyn Fn() -> bool,
) -> Option<bool> {
    for code in code {
        if is_late() {
            return None;
        }
        if calls_one_of(code, &point.starts) {
            return Some(true);
        }
    }
    Some(false)
}

/// True if bytes of the function look like a call of one of the addresses.
fn calls_one_of(function: &Function, addresses: &[u64]) -> bool {
    const CALL_REL32: u8 = 0xe8;
    memchr::memchr_iter(CALL_REL32, function.code)
        .filter_map(|at| far_target(function, at + 1))
        .any(|target| addresses.contains(&target))
}

/// Returns the target of a branch with its 32-bit displacement at that offset.
fn far_target(function: &Function, at: usize) -> Option<u64> {
    let field = function.code.get(at..at + 4)?.try_into().ok()?;
    let end = function.start.wrapping_add(at as u64 + 4);
    Some(end.wrapping_add_signed(i64::from(i32::from_le_bytes(field))))
}

impl<'a> Holder<'a> {
    /// Collects a function's `syscall` instructions.
    fn of(function: Function<'a>) -> Self {
        let survey = Survey::of(&function);
        let is_call = |index: &usize| survey.instructions[*index].mnemonic() == Mnemonic::Syscall;
        let points = (0..survey.instructions.len())
            .filter(is_call)
            .map(|index| Point { index, calls: None })
            .collect();
        Self {
            function,
            survey,
            points,
        }
    }

    /// Plans the function. `others` are the addresses that other functions lead to, ascending, each
    /// with the address of the instruction.
    fn plan(&self, others: &[(u64, u64)], data: &Data, sites: &mut CallSites) {
        let Function { start, code } = self.function;
        let first = others.partition_point(|(target, _)| *target <= start);
        let inside = others[first..]
            .iter()
            .map(|(target, _)| *target)
            .take_while(|target| target.wrapping_sub(start) < code.len() as u64);
        let jumps = Jumps::of(&self.function, &self.survey, data);
        let targets = Targets::of(&self.function, &self.survey, jumps, inside);
        choose::plan_function(
            &self.function,
            &self.survey,
            &self.points,
            &targets,
            &mut sites.plans,
            &mut sites.unhookable,
        );
    }
}

/// The ranges around `syscall` instructions that must be checked for branches into them.
struct Ranges {
    /// First and last address; ascending, and apart.
    ranges: Vec<(u64, u64)>,
    /// A bit for each [`GRANULE`] that contains one, by the low bits of its number.
    granules: Vec<u64>,
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

const GRANULE: u32 = 6;
/// The number of granules that can be distinguished: 64 MB of text.
const GRANULES: u64 = 1 << 20;

/// The reach of a branch with an 8-bit displacement, itself included.
const SHORT_REACH: u64 = 130;

impl Ranges {
    fn around(holders: &[Holder]) -> Self {
        let mut all = Vec::new();
        for holder in holders {
            let Function { start, code } = holder.function;
            // A branch to the function's first byte does no harm.
            let last = start.saturating_add((code.len() as u64).saturating_sub(1));
            all.extend(holder.points.iter().map(|point| {
                let call = holder.survey.instructions[point.index].ip();
                let behind = call.saturating_add(SYSCALL_LEN + SENSITIVE);
                (
                    call.saturating_sub(SENSITIVE).max(start.saturating_add(1)),
                    behind.min(last),
                )
            }));
        }
        all.sort_unstable();
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for (low, high) in all {
            match ranges.last_mut() {
                Some(before) if low <= before.1 => before.1 = before.1.max(high),
                _ => ranges.push((low, high)),
            }
        }
        let mut granules = vec![0; (GRANULES / 64) as usize];
        for (low, high) in &ranges {
            for granule in low >> GRANULE..=high >> GRANULE {
                granules[(granule % GRANULES / 64) as usize] |= 1 << (granule % 64);
            }
        }
        Self {
            clusters: clusters(&ranges),
            ranges,
            granules,
        }
    }

    fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    fn hold(&self, address: u64) -> bool {
        let granule = address >> GRANULE;
        self.granules[(granule % GRANULES / 64) as usize] >> (granule % 64) & 1 != 0 && {
            let next = self.ranges.partition_point(|(_, high)| *high < address);
            self.ranges
                .get(next)
                .is_some_and(|(low, _)| *low <= address)
        }
    }

    /// True if bytes of the function look like an instruction that leads from it to one of the
    /// ranges.
    fn may_be_target(&self, function: &Function) -> bool {
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
                self.hold(*target) && target.wrapping_sub(start) >= code.len() as u64
            })
        };
        let target = move |at: usize| {
            let next = code.get(at + 1).copied().unwrap_or_default();
            let target = match code[at] {
                0xe8 | 0xe9 => leads(at + 1),
                0x0f if next & 0xf0 == 0x80 => leads(at + 2),
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
    fn collect(&self, function: &Function, targets: &mut Vec<(u64, u64)>) {
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
        let first = self
            .ranges
            .partition_point(|(_, high)| high.saturating_add(SHORT_REACH) < start);
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
                && self.hold(target);
            leads.then_some((target, from))
        };
        self.ranges[first..]
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

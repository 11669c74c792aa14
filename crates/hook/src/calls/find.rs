//! The `syscall` instructions of a text, and what branches near them, without decoding more than has to be.

use iced_x86::Mnemonic;
use memchr::memmem::Finder;

use super::choose::{self, SENSITIVE, Targets};
use super::{CallSites, SYSCALL, SYSCALL_LEN};
use crate::incoming;
use crate::plan::Function;
use crate::survey::Survey;

/// A function with `syscall` instructions.
struct Holder<'a> {
    function: Function<'a>,
    survey: Survey,
    /// Of the instructions.
    indices: Vec<usize>,
}

impl CallSites {
    /// Finds and plans all of a text, given as its functions, in any order. They should not overlap, and what belongs to
    /// none of them is not looked at.
    ///
    /// Only functions that hold the bytes of a `syscall` or seem to branch near one are decoded.
    pub fn of(functions: &[Function]) -> Self {
        let finder = Finder::new(&SYSCALL);
        let holders: Vec<Holder> = functions
            .iter()
            .filter(|function| finder.find(function.code).is_some())
            .filter_map(|function| Holder::of(*function))
            .collect();
        let near = Ranges::around(&holders);
        let mut others = Vec::new();
        for function in functions.iter().filter(|_| !near.is_empty()) {
            if near.may_be_target(function) {
                incoming::collect(function, &mut others);
            }
        }
        others.sort_unstable();
        let mut sites = Self::default();
        for holder in holders {
            holder.plan(&others, &mut sites);
        }
        sites.plans.sort_by_key(|plan| plan.call);
        sites.spared.sort_by_key(|spared| spared.call);
        sites
    }
}

impl<'a> Holder<'a> {
    fn of(function: Function<'a>) -> Option<Self> {
        let survey = Survey::of(&function);
        let is_call = |index: &usize| survey.instructions[*index].mnemonic() == Mnemonic::Syscall;
        let indices: Vec<usize> = (0..survey.instructions.len()).filter(is_call).collect();
        (!indices.is_empty()).then_some(Self {
            function,
            survey,
            indices,
        })
    }

    /// `others` are what other functions lead to, rising, each with the address where.
    fn plan(&self, others: &[(u64, u64)], sites: &mut CallSites) {
        let Function { start, code } = self.function;
        let first = others.partition_point(|(target, _)| *target <= start);
        let inside = others[first..]
            .iter()
            .map(|(target, _)| *target)
            .take_while(|target| target.wrapping_sub(start) < code.len() as u64);
        let targets = Targets::of(&self.function, &self.survey, inside);
        choose::plan_function(
            &self.function,
            &self.survey,
            &self.indices,
            &targets,
            &mut sites.plans,
            &mut sites.spared,
        );
    }
}

/// Where it matters what branches there: around the `syscall` instructions.
struct Ranges {
    /// First and last address; rising, and apart.
    ranges: Vec<(u64, u64)>,
    /// A bit for each [`GRANULE`] that one is in, by the low bits of its number.
    granules: Vec<u64>,
}

const GRANULE: u32 = 6;
/// Granules that are told apart: 64 MB of text.
const GRANULES: u64 = 1 << 20;

/// How far a branch with an 8-bit displacement reaches, itself included.
const SHORT_REACH: u64 = 130;

impl Ranges {
    fn around(holders: &[Holder]) -> Self {
        let mut all = Vec::new();
        for holder in holders {
            let Function { start, code } = holder.function;
            // A branch to the function's first byte harms nobody.
            let last = start.saturating_add((code.len() as u64).saturating_sub(1));
            all.extend(holder.indices.iter().map(|index| {
                let call = holder.survey.instructions[*index].ip();
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
        Self { ranges, granules }
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

    /// Do bytes of the function look like an instruction that leads from it to one of the ranges?
    fn may_be_target(&self, function: &Function) -> bool {
        self.far(function) || self.short(function)
    }

    /// By a 32-bit displacement: in a jump, a conditional jump, a call or an address that is loaded.
    fn far(&self, function: &Function) -> bool {
        let code = function.code;
        let leads = |at: usize| {
            let field = code.get(at..at + 4).and_then(|field| field.try_into().ok());
            field.is_some_and(|field| {
                let target = function
                    .start
                    .wrapping_add(at as u64 + 4)
                    .wrapping_add_signed(i64::from(i32::from_le_bytes(field)));
                self.hold(target) && target.wrapping_sub(function.start) >= code.len() as u64
            })
        };
        memchr::memchr2_iter(0xe8, 0xe9, code).any(|at| leads(at + 1))
            || memchr::memchr2_iter(0x0f, 0x8d, code).any(|at| {
                let next = code.get(at + 1).copied().unwrap_or_default();
                let has_displacement = match code[at] {
                    0x0f => next & 0xf0 == 0x80,
                    _ => next & 0xc7 == 0x05,
                };
                has_displacement && leads(at + 2)
            })
    }

    /// By an 8-bit displacement.
    fn short(&self, function: &Function) -> bool {
        let Function { start, code } = *function;
        let end = start.saturating_add(code.len() as u64);
        let first = self
            .ranges
            .partition_point(|(_, high)| high.saturating_add(SHORT_REACH) < start);
        self.ranges[first..]
            .iter()
            .take_while(|(low, _)| low.saturating_sub(SHORT_REACH) < end)
            .any(|(low, high)| {
                let offset = |address: u64| {
                    let offset = address.saturating_sub(start);
                    usize::try_from(offset)
                        .unwrap_or(usize::MAX)
                        .min(code.len())
                };
                let from = offset(low.saturating_sub(SHORT_REACH));
                let to = offset(high.saturating_add(SHORT_REACH));
                code[from..to].windows(2).zip(from..).any(|(bytes, at)| {
                    let target = start
                        .wrapping_add(at as u64 + 2)
                        .wrapping_add_signed(i64::from(bytes[1].cast_signed()));
                    matches!(bytes[0], 0x70..=0x7f | 0xe0..=0xe3 | 0xeb)
                        && target.wrapping_sub(start) >= code.len() as u64
                        && self.hold(target)
                })
            })
    }
}

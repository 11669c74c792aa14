//! The system calls of files: the places in their code that make them, found once per file.

mod call_set;
mod files;

use std::collections::VecDeque;
use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use beeline_hook::{CallPatch, CallPlan, CallSites, Function, Unhookable, UnhookableCall};
use beeline_inject::Region;
use parking_lot::Mutex;

use crate::binary::Binary;
use crate::binary::parts::Parts;
use crate::error::Error;
use crate::vdso;
pub use call_set::CallSet;
pub use files::{CallFiles, Planned};

/// The system calls in a file's code, by the file's own addresses. Where a mapping's functions are
/// unknown, by the mapping's addresses.
#[derive(Debug)]
pub struct FileCalls {
    sites: CallSites,
    /// `None` if the addresses are those of the mapping.
    binary: Option<Binary>,
    /// The stubs that were written for some of its mappings. Mostly the next process has everything
    /// at the same distances.
    written: Mutex<VecDeque<Arc<StubSet>>>,
    /// True if it was scanned for [`LONGEST_LOOK`] without a result.
    is_given_up: bool,
}

/// The longest time that a file's code is scanned. A browser's takes seconds.
pub const LONGEST_LOOK: Duration = Duration::from_secs(30);

/// The number of layouts of a file's code and what belongs to it around a pool for which the stubs
/// are remembered.
const LAYOUTS: usize = 8;

/// Calls of a mapping that are hooked together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Those that are to be hooked.
    pub wanted: CallSet,
    /// Those of them that are hooked already.
    pub had: CallSet,
}

impl Part {
    /// All calls.
    pub const ALL: Self = Self {
        wanted: CallSet::ALL,
        had: CallSet::NONE,
    };

    fn has(&self, plan: &CallPlan) -> bool {
        self.wanted.has(plan) && !self.had.has(plan)
    }
}

/// The relative positions of everything that stubs refer to. Two layouts that differ only in the
/// pool's address have the same stubs, with addresses that all differ as much as the pools'.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// The calls that the stubs are for.
    pub part: Part,
    /// Offset in the file and length of the mapping.
    pub mapping: (u64, u64),
    /// From the pool to the mapping.
    pub code: u64,
    /// From the pool to the first stub.
    pub stubs: u64,
    /// From the pool to the descriptor that stubs hand to the agent.
    pub descriptor: u64,
    /// From the pool to the parts of the common code.
    pub common: [u64; 6],
}

/// The stubs of all calls of a mapping that can be hooked, as they are in one process.
#[derive(Debug)]
pub struct StubSet {
    /// `None` if they do not stand one behind the other, for every call.
    pub layout: Option<Layout>,
    /// The pool's address.
    pub pool: u64,
    /// The bytes that stand there.
    pub bytes: Vec<u8>,
    /// See [`CallStub::addresses`](beeline_hook::CallStub::addresses).
    pub addresses: Vec<usize>,
    /// The patches that lead there.
    pub patches: Vec<CallPatch>,
    /// See [`CallStub::moves`](beeline_hook::CallStub::moves).
    pub moves: Vec<(u64, u64)>,
    /// The number of stubs.
    pub count: usize,
}

impl FileCalls {
    fn scan(path: &Path) -> Result<Self, Error> {
        let parts = File::open(path).and_then(Parts::read);
        let parts = parts.map_err(|source| Error::Open {
            path: path.into(),
            source,
        })?;
        let binary = Binary::parse_nameless(parts.bytes()).map_err(|why| Error::Binary {
            path: path.into(),
            why,
        })?;
        let ranges = binary.functions_in_memory();
        let data = |offset| parts.data(offset);
        let until = Instant::now() + LONGEST_LOOK;
        let sites = sites_of(&binary, ranges, parts.bytes(), data, until);
        Ok(Self {
            is_given_up: sites.is_none(),
            sites: sites.unwrap_or_default(),
            binary: Some(binary),
            written: Mutex::default(),
        })
    }

    /// Finds the calls of the kernel's vDSO. What the vDSO cannot answer itself, it asks the kernel
    /// by system calls of its own.
    ///
    /// The instructions stay where they are: [`beeline_inject`] makes calls in a process by them.
    fn of_vdso(bytes: &[u8]) -> Option<Self> {
        let binary = Binary::parse(bytes).ok()?;
        let code = vdso::code(bytes)?;
        let inside = |range: Range<u64>| range.start.max(code.start)..range.end.min(code.end);
        let ranges = binary.functions_in_memory().into_iter().map(inside);
        let ranges = ranges.filter(|range| !range.is_empty()).collect();
        let data = |offset: u64| bytes.get(offset as usize..);
        let until = Instant::now() + LONGEST_LOOK;
        let mut sites = sites_of(&binary, ranges, bytes, data, until)?;
        sites.keep_instructions();
        Some(Self {
            is_given_up: false,
            sites,
            binary: Some(binary),
            written: Mutex::default(),
        })
    }

    /// Finds the calls in the bytes that a mapping has now. Fewer of them can be hooked than of a
    /// file's, as the starts of functions are not known.
    pub fn of_memory(region: &Region, bytes: &[u8]) -> Self {
        Self {
            is_given_up: false,
            sites: CallSites::of_unknown(region.start, bytes),
            binary: None,
            written: Mutex::default(),
        }
    }

    /// Returns the stubs that were written for such a layout.
    pub fn written(&self, layout: &Layout) -> Option<Arc<StubSet>> {
        let written = self.written.lock();
        let mut sets = written.iter();
        sets.find(|set| set.layout.as_ref() == Some(layout))
            .cloned()
    }

    /// Remembers written stubs.
    pub fn remember(&self, set: &Arc<StubSet>) {
        let mut written = self.written.lock();
        written.retain(|known| known.layout != set.layout);
        written.truncate(LAYOUTS - 1);
        written.push_front(set.clone());
    }

    /// True if there is no call in it.
    pub fn is_empty(&self) -> bool {
        self.sites.plans.is_empty() && self.sites.unhookable.is_empty()
    }

    /// True if it was too much code to be scanned.
    pub fn is_given_up(&self) -> bool {
        self.is_given_up
    }

    /// True if a mapping may have unhooked calls. Calls that only end a thread or a signal handler
    /// do not count, nor does data.
    pub fn may_have_unhooked(&self, region: &Region) -> bool {
        let is_harmless = |unhookable: &UnhookableCall| {
            matches!(
                unhookable.why,
                Unhookable::Restorer | Unhookable::WithoutStack | Unhookable::Data
            )
        };
        let is_unnamed = |binary: &Binary| binary.unnamed_code().next().is_some();
        let unhookable = self.unhookable_within(region);
        self.binary.as_ref().is_none_or(is_unnamed)
            || self.sites.is_partial
            || self.is_given_up
            || !unhookable
                .iter()
                .all(|(_, unhookable)| is_harmless(unhookable))
    }

    /// See [`Binary::has_small_stacks`]. It is unknown for code that is in no file.
    pub fn has_small_stacks(&self) -> bool {
        self.binary.as_ref().is_none_or(Binary::has_small_stacks)
    }

    /// Returns the difference between a mapping's addresses and the file's, and the range of the
    /// file's addresses that it maps.
    fn place(&self, region: &Region) -> Option<(u64, Range<u64>)> {
        let Some(binary) = &self.binary else {
            return Some((0, region.start..region.end));
        };
        let len = region.end - region.start;
        let mapped = region.offset..region.offset.checked_add(len)?;
        let start = binary.address_of(&mapped)?;
        let bias = region.start.wrapping_sub(start);
        Some((bias, start..start.checked_add(len)?))
    }

    /// Returns the number of calls in a mapping of the file that can be hooked.
    pub fn hookable_within(&self, region: &Region, part: Part) -> usize {
        self.place(region).map_or(0, |(_, mapped)| {
            let plans = self.sites.plans.iter();
            let plans = plans.filter(|plan| mapped.contains(&plan.call) && part.has(plan));
            plans.count()
        })
    }

    /// Returns the plans for a mapping of the file, at the addresses there.
    pub fn within(&self, region: &Region, part: Part) -> Vec<CallPlan> {
        let Some((bias, mapped)) = self.place(region) else {
            return Vec::new();
        };
        let plans = self.sites.plans.iter();
        plans
            .filter(|plan| mapped.contains(&plan.call) && part.has(plan))
            .map(|plan| plan.at(bias))
            .collect()
    }

    /// Returns the calls of a mapping that cannot be hooked, with their addresses there.
    pub fn unhookable_within(&self, region: &Region) -> Vec<(u64, &UnhookableCall)> {
        let Some((bias, mapped)) = self.place(region) else {
            return Vec::new();
        };
        let unhookable = self.sites.unhookable.iter();
        unhookable
            .filter(|unhookable| mapped.contains(&unhookable.call))
            .map(|unhookable| (unhookable.call.wrapping_add(bias), unhookable))
            .collect()
    }
}

/// Returns the calls of a file's functions, by where they are in memory; `None` if they were not
/// found in time. `bytes` are the file's, with its code; `data` returns those of any part from an
/// offset on.
fn sites_of<'a>(
    binary: &Binary,
    ranges: Vec<Range<u64>>,
    bytes: &[u8],
    data: impl Fn(u64) -> Option<&'a [u8]>,
    until: Instant,
) -> Option<CallSites> {
    let function = |range: &Range<u64>| {
        let start = range.start;
        let offset = binary.offsets_from(start)?.start as usize;
        let code = bytes.get(offset..)?;
        let code = code.get(..(range.end - start) as usize)?;
        Some(Function { start, code })
    };
    let functions: Vec<_> = ranges.iter().filter_map(function).collect();
    let data = |address| {
        let offsets = binary.offsets_from(address)?;
        let data = data(offsets.start)?;
        let len = (offsets.end - offsets.start).min(data.len() as u64);
        data.get(..len as usize)
    };
    let mut sites = CallSites::of_until(&functions, data, until)?;
    for Function { start, code } in binary.unnamed_code().filter_map(|code| function(&code)) {
        sites.append(CallSites::of_unknown(start, code));
    }
    let starts = binary.restorers().iter();
    let starts = starts.flat_map(|start| [*start, start.saturating_add(1)]);
    let ranges = starts.map(|start| start..start.saturating_add(RESTORER));
    sites.hook_restorers(ranges.filter_map(|range| function(&range)));
    sites.spare_data(binary.data());
    Some(sites)
}

/// The number of bytes that identify a restorer of signal frames.
const RESTORER: u64 = beeline_hook::RESTORER.len() as u64;

#[cfg(test)]
mod tests {
    use super::*;

    /// On the kernels that the tests run on there is none that could not be hooked, and injected
    /// calls still find one.
    #[test]
    fn all_calls_of_the_vdso_are_hooked_and_stay() {
        let bytes = vdso::own().expect("a vDSO");
        let calls = FileCalls::of_vdso(&bytes).expect("it is an ELF file");
        assert!(calls.sites.plans.len() >= 3, "{calls:?}");
        assert_eq!(calls.sites.unhookable, []);
        let mut plans = calls.sites.plans.iter();
        assert!(plans.all(|plan| plan.keeps_instruction() && plan.number.is_some()));
    }
}

//! Branches from one function to the inside of another.
//!
//! Compilers make them between a function's hot and cold part, and hand-written code wherever it
//! saves a byte: several of a C library's string functions begin by jumping a few bytes into the
//! next one.

use crate::arch;
use crate::plan::Function;

/// The places inside functions that code of other functions leads to. Made once for a file's text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Incoming {
    /// Ascending, without duplicates: targets, and the addresses of the instructions that name
    /// them.
    targets: Vec<(u64, u64)>,
}

impl Incoming {
    /// Scans all functions of a text. This decodes everything, which takes tens of milliseconds for
    /// each MB.
    pub fn of<'a>(functions: impl IntoIterator<Item = Function<'a>>) -> Self {
        let mut targets = Vec::new();
        let mut starts = Vec::new();
        let mut end = 0;
        for function in functions {
            starts.push(function.start);
            end = end.max(function.start.saturating_add(function.code.len() as u64));
            collect(&function, &mut targets);
        }
        starts.sort_unstable();
        let text = starts.first().copied().unwrap_or_default()..end;
        targets
            .retain(|(target, _)| text.contains(target) && starts.binary_search(target).is_err());
        targets.sort_unstable();
        targets.dedup_by_key(|(target, _)| *target);
        Self { targets }
    }

    /// The same for the text mapped `bias` bytes higher than it was scanned (wrapping: lower is
    /// possible too). So a file can be scanned once, at the addresses in the file.
    pub fn shifted(&self, bias: u64) -> Self {
        let shift =
            |(target, from): &(u64, u64)| (target.wrapping_add(bias), from.wrapping_add(bias));
        let mut targets: Vec<_> = self.targets.iter().map(shift).collect();
        targets.sort_unstable();
        Self { targets }
    }

    /// Returns the first place that names an address strictly between `start` and `start + len`.
    pub(crate) fn inside(&self, start: u64, len: usize) -> Option<u64> {
        let next = self.targets.partition_point(|(target, _)| *target <= start);
        let (target, from) = self.targets.get(next)?;
        (target - start < len as u64).then_some(*from)
    }
}

/// Adds the addresses that the function names outside of itself, each with the address of the
/// instruction.
pub(crate) fn collect(function: &Function, targets: &mut Vec<(u64, u64)>) {
    // Bytes that do not decode may be data: misreading them can only make the answer more careful.
    for instruction in arch::decode(function.code, function.start).flatten() {
        if let Some(target) = instruction.target()
            && target.wrapping_sub(function.start) >= function.code.len() as u64
        {
            targets.push((target, instruction.address()));
        }
    }
}

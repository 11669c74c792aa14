//! Finding the `syscall` instructions of a text, and the branches near them, without decoding more
//! than necessary.

use std::time::Instant;

use super::choose::{self, Point, SENSITIVE, Targets};
use super::ranges::Ranges;
use super::tables::{Data, Jumps};
use super::{CallSites, Unhookable, UnhookableCall};
use crate::arch::{self, BranchScan, CallFinder, CancellationPoint, Instruction, SYSCALL_LEN};
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
        let finder = CallFinder::new();
        let mut sites = Self::default();
        let (mut holders, mut long, mut short) = (Vec::new(), Vec::new(), Vec::new());
        let mut surveyed = 0;
        for function in functions {
            if is_late() {
                return None;
            }
            let len = function.code.len();
            let is_short = len <= LONGEST_FUNCTION;
            // The search stops where the first one is found.
            let holds = is_short && finder.calls(function, 0).next().is_some();
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
            // Calls from there are not seen, as it is not known what branches around them.
            if !is_called || is_called_from(&long, &point, is_late)? {
                sites.unhookable.push(UnhookableCall {
                    call: point.call,
                    why: Unhookable::CancellationPoint,
                });
            }
        }
        let near = around(&holders);
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
    let scan = BranchScan::of(near);
    for function in functions {
        if is_late() {
            return None;
        }
        if scan.may_lead_there(function) {
            incoming::collect(function, &mut found);
        }
    }
    for code in long {
        scan.collect(code, &mut found);
    }
    found.sort_unstable();
    Some(found)
}

impl CallSites {
    /// Adds what seems to be a `syscall`, but is behind bytes that are no instruction.
    fn add_lost(&mut self, holder: &Holder, finder: &CallFinder) {
        let Function { start, code } = holder.function;
        let from = holder.survey.end.wrapping_sub(start) as usize;
        for call in finder.calls(&holder.function, from) {
            if !self.add_unknown(start, code, call) {
                self.unhookable.push(UnhookableCall {
                    call: start.wrapping_add(call as u64),
                    why: Unhookable::Doubtful,
                });
            }
        }
    }
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
        for cancellation in arch::cancellation_points(function, survey) {
            let is_it =
                |point: &Point| survey.instructions[point.index].address() == cancellation.call;
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
        if !arch::calls_one_of(function, &point.starts) {
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
            let called = instruction.called();
            called.is_some_and(|called| point.starts.contains(&called))
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
        if arch::calls_one_of(code, &point.starts) {
            return Some(true);
        }
    }
    Some(false)
}

impl<'a> Holder<'a> {
    /// Collects a function's `syscall` instructions.
    fn of(function: Function<'a>) -> Self {
        let survey = Survey::of(&function);
        let is_call = |index: &usize| survey.instructions[*index].is_system_call();
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

/// Returns the ranges around the points that must be checked for branches into them.
fn around(holders: &[Holder]) -> Ranges {
    let mut all = Vec::new();
    for holder in holders {
        let Function { start, code } = holder.function;
        // A branch to the function's first byte does no harm.
        let last = start.saturating_add((code.len() as u64).saturating_sub(1));
        all.extend(holder.points.iter().map(|point| {
            let call = holder.survey.instructions[point.index].address();
            let behind = call.saturating_add(SYSCALL_LEN + SENSITIVE);
            (
                call.saturating_sub(SENSITIVE).max(start.saturating_add(1)),
                behind.min(last),
            )
        }));
    }
    Ranges::of(all)
}

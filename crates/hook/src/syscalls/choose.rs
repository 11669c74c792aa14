//! The choice of the bytes around each `syscall` of a function that are overwritten.

use std::sync::Arc;

use super::numbers::{EXIT, EXIT_GROUP, MUNMAP, RT_SIGRETURN};
use super::tables::Jumps;
use super::{CallPlan, Shape, Unhookable, UnhookableCall, Window};
use crate::arch::{
    self, CALL_NUMBER_WITHIN, Displaced, Instruction, JUMP_LEN, RESTORER_MOVES, SYSCALL_LEN,
};
use crate::flags::Flags;
use crate::plan::{self, Function, Reason};
use crate::survey::Survey;

/// Bytes on both sides of a `syscall` that must be checked for branches to them.
pub(super) const SENSITIVE: u64 = CALL_NUMBER_WITHIN + 32;

/// Addresses in a function that something other than the previous instruction leads to.
pub(crate) struct Targets {
    /// Ascending.
    addresses: Vec<u64>,
    /// An indirect jump that leads to unknown ones.
    unknown: Option<u64>,
}

impl Targets {
    /// Collects those that the function's own instructions and its jumps' tables name, and
    /// `others`.
    pub(super) fn of(
        function: &Function,
        survey: &Survey,
        jumps: Jumps,
        others: impl Iterator<Item = u64>,
    ) -> Self {
        let inside =
            |address: &u64| address.wrapping_sub(function.start) < function.code.len() as u64;
        let mut addresses: Vec<u64> = survey
            .instructions
            .iter()
            .filter_map(Instruction::target)
            .chain(jumps.targets)
            .chain(others)
            .filter(inside)
            .collect();
        addresses.sort_unstable();
        addresses.dedup();
        Self {
            addresses,
            unknown: jumps.unknown,
        }
    }

    pub fn holds(&self, address: u64) -> bool {
        self.addresses.binary_search(&address).is_ok()
    }

    /// True if one of them is strictly between the two addresses.
    fn between(&self, start: u64, end: u64) -> bool {
        let next = self.addresses.partition_point(|target| *target <= start);
        self.addresses.get(next).is_some_and(|target| *target < end)
    }
}

/// One way to hook a `syscall`.
struct Choice {
    shape: Shape,
    /// The start of everything that it overwrites.
    start: u64,
    /// The end of it.
    end: u64,
    /// Less is better.
    cost: usize,
}

impl Choice {
    /// True if it begins where functions are probed, at `start`, with a jump that does harm beside
    /// a kernel uprobe. If it displaces only the number's move it is not, as the stub begins anew
    /// if the number was wrong.
    fn is_exposed(&self, start: u64) -> bool {
        let moves_number = match &self.shape {
            Shape::InPlace { entry, .. } => entry.moves_number(),
            _ => false,
        };
        self.start == start && !moves_number
    }
}

/// The cost of a call that is made elsewhere: more than any number of displaced instructions.
const MOVED: usize = 100;
/// The cost of a jump at a function's start that does harm beside a kernel uprobe there: more than
/// that.
const EXPOSED: usize = 1_000;
/// The cost of a call that is not hooked: more than all others.
const NOT_HOOKED: usize = 100_000;

/// Instructions around a `syscall` that are checked for what they do to the stack.
const NEAR: usize = 4;

/// An instruction that makes a system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Point {
    /// Its index.
    pub index: usize,
    /// Set if it is not a `syscall`, but calls the function that has the one at this address.
    pub calls: Option<u64>,
}

/// A point of the function under consideration.
struct Site {
    /// The address of the instruction.
    at: u64,
    /// The address of the `syscall`.
    call: u64,
    number: Option<u32>,
    keeps_flags: bool,
    is_markable: bool,
    outcome: Result<Vec<Choice>, Unhookable>,
}

/// Plans the points, which are ascending.
pub(super) fn plan_function(
    function: &Function,
    survey: &Survey,
    points: &[Point],
    targets: &Targets,
    plans: &mut Vec<CallPlan>,
    unhookable: &mut Vec<UnhookableCall>,
) {
    let look = Look {
        function,
        survey,
        targets,
    };
    let mut sites: Vec<Site> = points.iter().map(|point| look.site(*point)).collect();
    let best = best(&sites);
    for (site, choice) in sites.iter_mut().zip(best) {
        let call = site.call;
        let why = match (&mut site.outcome, choice) {
            (Ok(choices), Some(choice)) => {
                plans.push(CallPlan {
                    call,
                    number: site.number,
                    keeps_flags: site.keeps_flags,
                    is_markable: site.is_markable,
                    shape: choices.swap_remove(choice).shape,
                });
                continue;
            }
            (Ok(_), None) => Unhookable::CannotHook(Reason::AnotherProbe),
            (Err(why), _) => why.clone(),
        };
        unhookable.push(UnhookableCall { call, why });
    }
}

/// Returns the choice of each site, so that no two overwrite the same bytes, and the sum of all
/// costs is the least.
fn best(sites: &[Site]) -> Vec<Option<usize>> {
    /// A site's choice, the cost up to it, and the choice of the previous site that led to it.
    type Step = (Option<usize>, usize, usize);
    let mut steps: Vec<Vec<Step>> = Vec::with_capacity(sites.len());
    let span = |site: &Site, choice: Option<usize>| match (&site.outcome, choice) {
        (Ok(choices), Some(choice)) => (choices[choice].start, choices[choice].end),
        _ => (site.at, site.at.wrapping_add(SYSCALL_LEN)),
    };
    for (i, site) in sites.iter().enumerate() {
        let count = site.outcome.as_ref().map_or(0, Vec::len);
        let reachable = (0..count).map(Some).chain([None]).filter_map(|choice| {
            let (start, _) = span(site, choice);
            let own = match (&site.outcome, choice) {
                (Ok(choices), Some(choice)) => choices[choice].cost,
                _ => NOT_HOOKED,
            };
            let Some(before) = i.checked_sub(1) else {
                return Some((choice, own, 0));
            };
            let fits = |step: &Step| span(&sites[before], step.0).1 <= start;
            let (from, least) = steps[before]
                .iter()
                .enumerate()
                .filter(|(_, step)| fits(step))
                .min_by_key(|(_, step)| step.1)?;
            Some((choice, own.saturating_add(least.1), from))
        });
        let reachable = reachable.collect();
        steps.push(reachable);
    }
    let last = steps.last().and_then(|last| {
        let least = last.iter().enumerate().min_by_key(|(_, step)| step.1)?;
        Some(least.0)
    });
    let mut at = last.unwrap_or_default();
    let mut best: Vec<Option<usize>> = steps
        .iter()
        .rev()
        .map(|steps| {
            let (choice, _, from) = steps[at];
            at = from;
            choice
        })
        .collect();
    best.reverse();
    best
}

/// A function that holds `syscall` instructions.
struct Look<'a> {
    function: &'a Function<'a>,
    survey: &'a Survey,
    targets: &'a Targets,
}

impl Look<'_> {
    fn site(&self, point: Point) -> Site {
        let Point { index, calls } = point;
        let at = self.survey.instructions[index].address();
        let number = self.number(index).filter(|_| calls.is_none());
        let flags = match calls {
            Some(_) => Flags::Dead,
            None => arch::flags_wanted_behind_call(self.survey, index),
        };
        // The function that makes the call for others has the argument on its stack.
        let is_markable = calls.is_some()
            || arch::is_last_argument_dead_behind(self.survey, index, number.is_some());
        let outcome = match (calls, self.unhookable(index, number)) {
            (Some(_), _) => self
                .caller(index)
                .map(|choice| vec![choice])
                .map_err(|_| Unhookable::CancellationPoint),
            (None, Some(why)) => Err(why),
            (None, None) => self
                .choices(index, number, flags)
                .map_err(Unhookable::CannotHook),
        };
        Site {
            at,
            call: calls.unwrap_or(at),
            number,
            keeps_flags: flags.live(),
            is_markable,
            outcome,
        }
    }

    fn number(&self, index: usize) -> Option<u32> {
        arch::call_number_before(self.survey, index, self.targets)
    }

    /// Returns the reason if it is one of those that are left alone.
    fn unhookable(&self, index: usize, number: Option<u32>) -> Option<Unhookable> {
        let before = self.bytes_before(index);
        match number {
            Some(RT_SIGRETURN) => Some(Unhookable::Restorer),
            // Unwind information has the restorer start a byte early, so its first instruction may
            // not be seen.
            _ if RESTORER_MOVES.iter().any(|bytes| before.ends_with(bytes)) => {
                Some(Unhookable::Restorer)
            }
            Some(EXIT) if self.stack_was_given_away(index) => Some(Unhookable::WithoutStack),
            Some(MUNMAP) if self.thread_ends_behind(index) => Some(Unhookable::WithoutStack),
            _ if arch::leads_to_cancellation_point(before) => Some(Unhookable::CancellationPoint),
            _ => self.odd_form(index),
        }
    }

    /// A prefix means nothing there, but the address behind the instruction is not where stubs take
    /// it to be. No compiler writes such code.
    fn odd_form(&self, index: usize) -> Option<Unhookable> {
        let call = &self.survey.instructions[index];
        (call.is_system_call() && call.len() as u64 != SYSCALL_LEN).then(|| {
            Unhookable::CannotHook(Reason::CannotMove {
                instruction: call.to_string(),
                why: "it has prefixes",
            })
        })
    }

    /// Go's thread stores a zero, and musl's unmaps its stack, right before `exit`.
    fn stack_was_given_away(&self, index: usize) -> bool {
        self.near_before(index).any(|(i, instruction)| {
            let unmaps = instruction.is_system_call() && self.number(i) == Some(MUNMAP);
            unmaps || instruction.stores_zero_for_others()
        })
    }

    fn thread_ends_behind(&self, index: usize) -> bool {
        (index + 1..self.survey.instructions.len())
            .take(NEAR)
            .find(|i| !self.survey.instructions[*i].runs_on())
            .is_some_and(|i| {
                self.survey.instructions[i].is_system_call() && self.number(i) == Some(EXIT)
            })
    }

    /// Returns the few instructions that always run before.
    fn near_before(&self, index: usize) -> impl Iterator<Item = (usize, &Instruction)> {
        let runs_on =
            |instruction: &Instruction| instruction.runs_on() || instruction.is_system_call();
        (0..index)
            .rev()
            .take(NEAR)
            .map(|i| (i, &self.survey.instructions[i]))
            .take_while(move |(_, instruction)| runs_on(instruction))
    }

    fn bytes_before(&self, index: usize) -> &[u8] {
        let at = self.survey.instructions[index].address();
        let offset = at.wrapping_sub(self.function.start) as usize;
        self.function.code.get(..offset).unwrap_or_default()
    }

    /// Windows over a `call`, and behind it.
    fn caller(&self, index: usize) -> Result<Choice, Reason> {
        let instruction = &self.survey.instructions[index];
        let (start, behind) = (instruction.address(), instruction.end());
        let entry = self.window(index, self.displaced(index..index + 1), behind)?;
        if entry.original.len() < JUMP_LEN {
            return Err(Reason::TooShort {
                len: entry.original.len(),
            });
        }
        let exit = self.exit(index)?;
        Ok(Choice {
            start,
            end: exit.end(),
            cost: exit.code.len(),
            shape: Shape::Caller { entry, exit },
        })
    }

    /// Returns the window behind an instruction, which nothing else may lead to.
    fn exit(&self, index: usize) -> Result<Window, Reason> {
        let start = self.survey.instructions[index].end();
        if self.targets.holds(start) {
            return Err(self.branch_inside(start));
        }
        let (code, len) = plan::window_from(self.function, self.survey, index + 1, JUMP_LEN)?;
        self.window(index + 1, code, start.wrapping_add(len as u64))
    }

    fn choices(
        &self,
        index: usize,
        number: Option<u32>,
        flags: Flags,
    ) -> Result<Vec<Choice>, Reason> {
        // The code that makes calls of any number keeps no flags.
        if flags == Flags::All || flags.live() && number.is_none() {
            return Err(Reason::FlagsWanted);
        }
        let mut choices = Vec::new();
        let mut refused = None;
        let mut add = |choice: Result<Choice, Reason>| match choice {
            Ok(choice) => choices.push(choice),
            Err(reason) => refused = refused.take().or(Some(reason)),
        };
        if let Some(number) = number {
            add(self.in_place(index, number));
        }
        for first in (self.furthest_start(index)..=index).rev() {
            add(self.moved(first, index));
        }
        let start = self.function.start;
        let exposed = choices.iter_mut().filter(|choice| choice.is_exposed(start));
        exposed.for_each(|choice| choice.cost += EXPOSED);
        match refused {
            Some(reason) if choices.is_empty() => Err(reason),
            _ => Ok(choices),
        }
    }

    /// Returns both windows around a call that stays.
    fn in_place(&self, index: usize, number: u32) -> Result<Choice, Reason> {
        let call = self.survey.instructions[index].address();
        let behind = call.wrapping_add(SYSCALL_LEN);
        let first = self.furthest_start(index);
        let len = self.bytes(first, index);
        if len < JUMP_LEN {
            return Err(Reason::TooShort { len });
        }
        let entry = self.window(first, self.displaced(first..index), call)?;
        if self.targets.holds(call) {
            return Err(self.branch_inside(call));
        }
        let returns = !matches!(number, EXIT | EXIT_GROUP);
        let exit = returns.then(|| self.exit(index)).transpose()?;
        let cost = entry.code.len() + exit.as_ref().map_or(0, |exit| exit.code.len());
        Ok(Choice {
            start: entry.start,
            end: exit.as_ref().map_or(behind, Window::end),
            shape: Shape::InPlace { entry, exit },
            cost,
        })
    }

    /// Returns one window, from the instruction `first` on, around a call that moves.
    fn moved(&self, first: usize, index: usize) -> Result<Choice, Reason> {
        let start = self.survey.instructions[first].address();
        let before = self.displaced(first..index);
        let len = self.bytes(first, index) + SYSCALL_LEN as usize;
        let (behind, more) = plan::window_from(
            self.function,
            self.survey,
            index + 1,
            JUMP_LEN.saturating_sub(len),
        )?;
        let end = start.wrapping_add((len + more) as u64);
        self.check_targets(start, end, false)?;
        let cost = MOVED + before.len() + behind.len();
        let stays = behind.is_empty() && len >= JUMP_LEN + SYSCALL_LEN as usize;
        Ok(Choice {
            shape: Shape::Moved {
                before,
                behind,
                start,
                original: self.original(start, end),
                stays,
            },
            start,
            end,
            cost,
        })
    }

    fn window(&self, first: usize, code: Vec<Displaced>, end: u64) -> Result<Window, Reason> {
        let start = self.survey.instructions[first].address();
        self.check_targets(start, end, code.len() == 1)?;
        Ok(Window {
            start,
            original: self.original(start, end),
            code,
        })
    }

    /// Fails if something can lead to the inside of the bytes. `is_one`: they are those of one
    /// instruction, and padding.
    fn check_targets(&self, start: u64, end: u64, is_one: bool) -> Result<(), Reason> {
        if self.targets.between(start, end) {
            return Err(self.branch_inside(start));
        }
        let offset = |address: u64| address.wrapping_sub(self.function.start);
        match (self.survey.hidden, self.targets.unknown) {
            _ if is_one => Ok(()),
            (Some(address), _) => Err(Reason::Undecodable {
                offset: offset(address),
            }),
            (_, Some(address)) => Err(Reason::IndirectJump {
                offset: offset(address),
            }),
            _ => Ok(()),
        }
    }

    /// Something leads to an address, or to one behind it.
    fn branch_inside(&self, start: u64) -> Reason {
        let leads_near = |instruction: &&Instruction| {
            let target = instruction.target();
            target.is_some_and(|target| target.wrapping_sub(start) < SENSITIVE)
        };
        match self.survey.instructions.iter().find(leads_near) {
            Some(instruction) => Reason::BranchInside {
                offset: instruction.address().wrapping_sub(self.function.start),
            },
            None => Reason::BranchFromOutside { from: start },
        }
    }

    /// Returns how far back a window may start: the first of the fewest instructions before `index`
    /// that fill it, or of those that can be displaced.
    fn furthest_start(&self, index: usize) -> usize {
        let mut first = index;
        while let Some(before) = first.checked_sub(1)
            && self.bytes(first, index) < JUMP_LEN
        {
            let instruction = &self.survey.instructions[before];
            if !instruction.goes_on() || plan::check_member(instruction).is_err() {
                break;
            }
            first = before;
        }
        first
    }

    /// Returns the bytes of the instructions from `first` to before `index`.
    fn bytes(&self, first: usize, index: usize) -> usize {
        let at = |i: usize| self.survey.instructions[i].address();
        at(index).wrapping_sub(at(first)) as usize
    }

    fn displaced(&self, range: std::ops::Range<usize>) -> Vec<Displaced> {
        range
            .filter_map(|i| self.survey.displaced(i, self.function))
            .collect()
    }

    fn original(&self, start: u64, end: u64) -> Arc<[u8]> {
        let offset = |address: u64| address.wrapping_sub(self.function.start) as usize;
        let bytes = self.function.code.get(offset(start)..offset(end));
        bytes.unwrap_or_default().into()
    }
}

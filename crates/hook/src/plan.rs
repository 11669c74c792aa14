//! Plans: the decision how a site is to be hooked.

mod reason;

use std::ops::RangeInclusive;

use thiserror::Error;

use crate::arch::{self, BREAKPOINT, BREAKPOINT_LEN, Displaced, Instruction, JUMP_LEN};
use crate::flags::Flags;
use crate::guard::{Guard, Live, Trap};
use crate::incoming::Incoming;
use crate::patch;
use crate::survey::Survey;

pub use reason::Reason;

/// The code that contains a site.
#[derive(Debug, Clone, Copy)]
pub struct Function<'a> {
    /// Run-time address of the first byte.
    pub start: u64,
    /// The bytes from `start` to the next symbol, including the padding behind the function.
    /// Unpatched.
    pub code: &'a [u8],
}

/// The way a site is hooked. Made by [`plan()`].
#[derive(Debug, Clone)]
pub struct Plan {
    /// The hooked address.
    pub site: u64,
    /// The number of bytes from the site on that the hook stands for. For a jump at least
    /// [`JUMP_LEN`], all of them overwritten; for a breakpoint the length of one or two
    /// instructions, with overwritten first bytes.
    pub window_len: usize,
    /// Jump or breakpoint.
    pub kind: Kind,
    /// The part of the flags register that the code behind the site may still read.
    pub flags: Flags,
    /// True if the site is its function's first instruction, so the stack pointer is at the return
    /// address.
    pub at_start: bool,
    /// True if there may be live data in the red zone below the stack pointer.
    pub red_zone: bool,
    /// For a jump: the ways to lay it so that kernel uprobes upon it do no harm, the best first.
    /// Empty if there is none.
    pub guards: Vec<Guard>,
    /// For a breakpoint: what the second one, behind the first instruction, catches beside a kernel
    /// uprobe.
    pub second: Option<Trap>,
    pub(crate) window: Vec<Displaced>,
}

/// The greatest distance of a breakpoint's trampoline from its site. Any distance would do; this
/// leaves enough to choose from.
const FAR: u64 = 1 << 40;

impl Plan {
    /// Returns the displaced instructions, decoded at their original addresses, without padding
    /// that may follow them.
    pub fn instructions(&self) -> impl Iterator<Item = &Instruction> {
        self.window.iter().map(|displaced| &displaced.instruction)
    }

    /// Returns the bytes of each of them, as found at the site.
    pub fn displaced_bytes(&self) -> impl Iterator<Item = &[u8]> {
        self.window.iter().map(|displaced| &*displaced.bytes)
    }

    /// The same site, hooked by a breakpoint: for a site with another site in its window, or one
    /// where a jump would not be safe.
    pub fn into_breakpoint(mut self, reason: Reason) -> Self {
        let is_alone = reason == Reason::AnotherProbe;
        self.window.truncate(if is_alone { 1 } else { 2 });
        self.kind = Kind::Breakpoint { reason };
        self.guards.clear();
        self.settle_breakpoint();
        self
    }

    /// The same site, with the jump of another session's patch as its first instruction, planned as
    /// for the file's code alone. The jump does not show what the code behind it reads, and kernel
    /// uprobes are meant for the file's code.
    pub fn over(mut self, file: Self, patch: &[u8]) -> Self {
        let guards = file.guards.into_iter();
        self.guards = guards.filter_map(|guard| guard.over(patch)).collect();
        self.flags = file.flags;
        self.red_zone = file.red_zone;
        self
    }

    /// Returns the bytes to store for a breakpoint.
    pub fn breakpoint_patch(&self) -> Vec<u8> {
        let mut bytes = BREAKPOINT.to_vec();
        if let (Some(_), Some(first)) = (self.second, self.window.first()) {
            bytes.extend(&first.bytes[BREAKPOINT_LEN..]);
            bytes.extend(BREAKPOINT);
        }
        bytes
    }

    /// Takes the second instruction along only if it gets a breakpoint too.
    fn settle_breakpoint(&mut self) {
        self.second = match &*self.window {
            [first, _] if first.instruction.goes_on() => arch::second_trap(first),
            _ => None,
        };
        if self.second.is_none() {
            self.window.truncate(1);
        }
        self.window_len = self.window.iter().map(|one| one.bytes.len()).sum();
    }

    /// Returns where a trampoline may start so that the site reaches it, and its displaced
    /// instructions reach what they address.
    ///
    /// A breakpoint's trampoline may be far away, unless an operand is relative to the instruction.
    /// Returns `None` if there is no such place; only the kernel can then hook the site.
    pub fn reach(&self) -> Option<RangeInclusive<u64>> {
        let is_near = matches!(self.kind, Kind::Jump);
        let around = match is_near {
            true => patch::reach(self.site),
            false => self.site.saturating_sub(FAR)..=self.site.saturating_add(FAR),
        };
        let (mut low, mut high) = around.into_inner();
        for displaced in &self.window {
            let needs_target = is_near || !displaced.instruction.leads_far();
            let target = displaced.instruction.target();
            if let Some(target) = target.filter(|_| needs_target) {
                let (target_low, target_high) = patch::reach(target).into_inner();
                low = low.max(target_low);
                high = high.min(target_high);
            }
        }
        (low <= high).then_some(low..=high)
    }
}

/// The kind of patch that is written over the site.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A jump to the trampoline; see [`jump_patch`](crate::jump_patch).
    Jump,
    /// A breakpoint, because a jump would not be safe.
    Breakpoint {
        /// The reason against a jump.
        reason: Reason,
    },
}

/// The reason why an address cannot be hooked at all.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PlanError {
    /// The site is not in the function.
    #[error(
        "address {site:#x} is outside the function ({len} bytes at {start:#x}): choose an address inside"
    )]
    Outside {
        /// The address asked for.
        site: u64,
        /// The function's start.
        start: u64,
        /// The function's length in bytes.
        len: usize,
    },
    /// The site is in the middle of an instruction.
    #[error(
        "offset +{offset:#x} is inside the instruction `{instruction}` at +{instruction_offset:#x}: \
         choose an offset where an instruction starts"
    )]
    NotBoundary {
        /// Bytes from the function's start.
        offset: u64,
        /// In Intel syntax.
        instruction: String,
        /// The offset of its start, in bytes from the function's start.
        instruction_offset: u64,
    },
    /// Bytes up to and including the site do not decode.
    #[error(
        "the bytes at +{offset:#x} are no instruction, so +{site_offset:#x} cannot be told to be one: probe the function's start"
    )]
    Undecodable {
        /// Bytes from the function's start.
        offset: u64,
        /// The site's, likewise.
        site_offset: u64,
    },
    /// The instruction at the site has to run where it is.
    #[error(
        "the instruction `{instruction}` at +{offset:#x} cannot be hooked: {why}; choose the one before or after it"
    )]
    CannotMove {
        /// Bytes from the function's start.
        offset: u64,
        /// In Intel syntax.
        instruction: String,
        /// The reason, as a phrase.
        why: &'static str,
    },
}

/// Decides how `site` is hooked.
///
/// A jump is chosen only if nothing in the function can branch to the middle of the bytes it
/// overwrites. Branches from other functions are not seen: use [`plan_among`] wherever their code
/// is at hand.
///
/// # Errors
///
/// - [`PlanError::Outside`]: the site is not in the function.
/// - [`PlanError::NotBoundary`]: it is in the middle of an instruction.
/// - [`PlanError::Undecodable`]: bytes up to and including the site are no instructions.
/// - [`PlanError::CannotMove`]: the instruction there has to run where it is.
pub fn plan(site: u64, function: &Function) -> Result<Plan, PlanError> {
    decide(site, function, None, Role::Any)
}

/// Decides how `site` is hooked, knowing what the other functions of the same file branch to.
///
/// Exception landing pads stay unknown, for sites that are not their function's start.
///
/// # Errors
///
/// As [`plan()`].
pub fn plan_among(site: u64, function: &Function, incoming: &Incoming) -> Result<Plan, PlanError> {
    decide(site, function, Some(incoming), Role::Any)
}

/// As [`plan_among`], for a site that is a `syscall` instruction and is to be given a
/// [`SystemCall`](crate::SystemCall): it moves together with what follows it.
///
/// The kernel sees the moved instruction's address: it comes back behind it, and when it restarts
/// the call, to it. The difference is only visible to a process with seccomp filters that look at
/// addresses, or to one that compares them itself as cancellable calls do.
///
/// # Errors
///
/// As [`plan()`].
pub fn plan_system_call(
    site: u64,
    function: &Function,
    incoming: &Incoming,
) -> Result<Plan, PlanError> {
    decide(site, function, Some(incoming), Role::SystemCall)
}

/// The purpose that a site is hooked for.
#[derive(Clone, Copy, PartialEq)]
enum Role {
    Any,
    SystemCall,
}

fn decide(
    site: u64,
    function: &Function,
    incoming: Option<&Incoming>,
    role: Role,
) -> Result<Plan, PlanError> {
    let survey = Survey::of(function);
    let index = find_site(site, function, &survey)?;
    let first = survey
        .displaced(index, function)
        .ok_or(undecodable(site, function, site))?;
    if let Err(why) = first.instruction.can_move() {
        let offset = site.wrapping_sub(function.start);
        return Err(PlanError::CannotMove {
            offset,
            instruction: first.instruction.to_string(),
            why,
        });
    }

    let at_start = site == function.start;
    // A loop to the function's first instruction reaches it with a frame's data below the stack
    // pointer.
    let entered_by_call_only = at_start && !survey.refers_to(site);
    let checked = |wanted: usize| {
        let (window, len) = fill_window(function, &survey, index, role, wanted)?;
        check_references(site, len, function, &survey, incoming).map(|()| (window, len))
    };
    let (kind, window, window_len) = match guarded_window(&first, role, checked) {
        Ok((window, len)) => (Kind::Jump, window, len),
        Err(reason) => {
            let pair = checked(first.bytes.len() + 1).map(|(window, _)| window);
            (Kind::Breakpoint { reason }, pair.unwrap_or(vec![first]), 0)
        }
    };
    let mut plan = Plan {
        site,
        window_len,
        kind,
        flags: arch::flags_needed(&survey, index, entered_by_call_only),
        at_start,
        red_zone: !entered_by_call_only,
        guards: Vec::new(),
        second: None,
        window,
    };
    match plan.kind {
        Kind::Jump => {
            let live = Live {
                flags: plan.flags.live(),
                red_zone: plan.red_zone,
            };
            let padding = padding_behind(function, &survey, index, &plan);
            plan.guards = arch::guards(&plan.window, &padding, live);
        }
        Kind::Breakpoint { .. } => {
            plan.window.truncate(2);
            plan.settle_breakpoint();
        }
    }
    Ok(plan)
}

/// Returns the instructions that a jump displaces and their bytes, including those beyond the jump
/// that a guard can use, if there are any.
fn guarded_window(
    first: &Displaced,
    role: Role,
    checked: impl Fn(usize) -> Result<(Vec<Displaced>, usize), Reason>,
) -> Result<(Vec<Displaced>, usize), Reason> {
    let is_alone = role == Role::SystemCall || !first.instruction.goes_on();
    let wanted = match is_alone {
        true => JUMP_LEN,
        false => arch::guarded_len(first),
    };
    match checked(wanted) {
        Err(_) if wanted > JUMP_LEN => checked(JUMP_LEN),
        outcome => outcome,
    }
}

/// Returns the padding that the window of a plan has behind its instructions.
fn padding_behind(
    function: &Function,
    survey: &Survey,
    index: usize,
    plan: &Plan,
) -> Vec<Displaced> {
    let end = plan.site + plan.window_len as u64;
    let rest = (index + plan.window.len()..).map_while(|next| survey.displaced(next, function));
    rest.take_while(|one| one.instruction.address() < end)
        .collect()
}

/// Returns the index of the instruction at the site.
fn find_site(site: u64, function: &Function, survey: &Survey) -> Result<usize, PlanError> {
    let len = function.code.len();
    let offset = site.wrapping_sub(function.start);
    let past_the_end = function.start.checked_add(len as u64).is_none();
    if site < function.start || offset >= len as u64 || past_the_end {
        return Err(PlanError::Outside {
            site,
            start: function.start,
            len,
        });
    }
    let index = survey
        .instructions
        .partition_point(|instruction| instruction.address() < site);
    match survey.instructions.get(index) {
        Some(instruction) if instruction.address() == site => return Ok(index),
        _ => {}
    }
    match index
        .checked_sub(1)
        .and_then(|before| survey.instructions.get(before))
    {
        Some(around) if around.end() > site => Err(PlanError::NotBoundary {
            offset,
            instruction: around.to_string(),
            instruction_offset: around.address().wrapping_sub(function.start),
        }),
        _ => Err(undecodable(survey.end, function, site)),
    }
}

fn undecodable(at: u64, function: &Function, site: u64) -> PlanError {
    PlanError::Undecodable {
        offset: at.wrapping_sub(function.start),
        site_offset: site.wrapping_sub(function.start),
    }
}

/// Returns the instructions from `index` on that fill at least `wanted` bytes, and the number of
/// bytes that they and the padding behind them fill.
pub(crate) fn window_from(
    function: &Function,
    survey: &Survey,
    index: usize,
    wanted: usize,
) -> Result<(Vec<Displaced>, usize), Reason> {
    fill_window(function, survey, index, Role::Any, wanted)
}

fn fill_window(
    function: &Function,
    survey: &Survey,
    index: usize,
    role: Role,
    wanted: usize,
) -> Result<(Vec<Displaced>, usize), Reason> {
    let mut window = Vec::new();
    let mut len = 0;
    let mut ended = false;
    let mut next = index;
    while len < wanted {
        let Some(displaced) = survey.displaced(next, function) else {
            return Err(Reason::TooShort { len });
        };
        if ended {
            // Nothing runs behind a return or a jump, so the bytes there must be padding, or they
            // belong to something else.
            if !displaced.instruction.is_padding() {
                return Err(Reason::TooShort { len });
            }
            len += displaced.bytes.len();
        } else {
            let is_the_call = role == Role::SystemCall
                && window.is_empty()
                && displaced.instruction.is_system_call();
            if !is_the_call {
                check_member(&displaced.instruction)?;
            }
            len += displaced.bytes.len();
            if displaced.instruction.is_call() && len < wanted {
                return Err(Reason::CallNotLast);
            }
            ended = displaced.instruction.ends_flow();
            window.push(displaced);
        }
        next += 1;
    }
    Ok((window, len))
}

/// Fails unless the instruction can be one of several that move.
pub(crate) fn check_member(instruction: &Instruction) -> Result<(), Reason> {
    instruction
        .can_move()
        .and_then(|()| instruction.can_move_with_others())
        .map_err(|why| Reason::CannotMove {
            instruction: instruction.to_string(),
            why,
        })
}

/// Fails if anything in the function leads to the middle of the window, or may lead there unseen.
fn check_references(
    site: u64,
    len: usize,
    function: &Function,
    survey: &Survey,
    incoming: Option<&Incoming>,
) -> Result<(), Reason> {
    if let Some(from) = incoming.and_then(|incoming| incoming.inside(site, len)) {
        return Err(Reason::BranchFromOutside { from });
    }
    let offset_of = |address: u64| address.wrapping_sub(function.start);
    let inside = |target: u64| target > site && target - site < len as u64;
    for instruction in &survey.instructions {
        let Some(target) = instruction.target() else {
            continue;
        };
        if inside(target) {
            return Err(Reason::BranchInside {
                offset: offset_of(instruction.address()),
            });
        }
        if target == site && instruction.address() == site && instruction.branch_target().is_some()
        {
            return Err(Reason::SelfLoop);
        }
    }
    if let Some(address) = survey.hidden {
        return Err(Reason::Undecodable {
            offset: offset_of(address),
        });
    }
    if site == function.start {
        return Ok(());
    }
    if let Some(address) = survey.indirect_jump {
        return Err(Reason::IndirectJump {
            offset: offset_of(address),
        });
    }
    if let (Some(address), None) = (survey.leaves, incoming) {
        return Err(Reason::LeavesFunction {
            offset: offset_of(address),
        });
    }
    Ok(())
}

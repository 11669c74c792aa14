//! Hooks around every `syscall` instruction of a text.
//!
//! [`CallSites::of`] finds the instructions of a file's functions and plans each, once, at the
//! file's addresses. [`CallPlan::at`] takes a plan to where a process has the file.
//! [`CommonCode::emit`](crate::CommonCode::emit) writes the code that all hooks of a process share;
//! [`CallPlan::emit`] writes a site's own [`CallStub`], with the patches that lead to it.
//!
//! A table of bytes ([`CallSpec::watched`]) chooses the calls for which the hooks ask. Its owner
//! can change it at any time without patching again: an unwatched call costs two compared bytes.
//!
//! There are three forms:
//!
//! - *In place* ([`CallForm::InPlace`]): a jump over the instructions before the `syscall`, another
//!   over those behind it. The instruction itself stays, so the kernel, seccomp filters that look
//!   at addresses, unwinders and threads asleep in the call see nothing new. For this the call's
//!   number has to be known from the code.
//! - *Moved* ([`CallForm::Moved`]): one jump over the `syscall` and its neighbours; the call is
//!   made from the stub.
//! - *At the caller* ([`CallForm::Caller`]): a C library that compares the instruction pointer of a
//!   thread that is to be cancelled with the addresses from a check to the `syscall` behind it
//!   keeps all of that function. Its callers are hooked instead: a jump over the `call`, another
//!   over the bytes behind it.
//!
//! In all of them the kernel sees the stack pointer that the process has, and nothing of the hook's
//! is on the stack, so calls that return twice or switch stacks are like any other. The exception
//! is a watched call at a site where the number is only known when it runs: it is made from below a
//! frame that remembers it. Even there, clone, vfork, clone3 and `rt_sigreturn` have no frame.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::arch::{Displaced, SYSCALL_LEN};
use crate::patch;
use crate::plan::Reason;

mod choose;
mod find;
pub(crate) mod numbers;
mod ranges;
mod restorer;
mod spec;
mod stub;
mod tables;
mod unknown;

pub(crate) use choose::Targets;
pub use find::LONGEST_FUNCTION;
pub(crate) use ranges::Ranges;
pub(crate) use spec::NUMBERS;
pub use spec::{CallSpec, MARKABLE, WATCHED, WATCHED_COMPACTLY, WATCHED_LEN};
pub use stub::{CallPatch, CallStub};

/// The `syscall` instructions of a text. Made once for a file.
#[derive(Debug, Clone, Default)]
pub struct CallSites {
    /// Those that can be hooked, by ascending address.
    pub plans: Vec<CallPlan>,
    /// The others, likewise.
    pub unhookable: Vec<UnhookableCall>,
    /// True if some of the text was searched only for calls with a number that is loaded by the
    /// instruction before.
    pub is_partial: bool,
}

impl CallSites {
    /// Adds those of another part of the text, which contains none of these.
    pub fn append(&mut self, other: Self) {
        self.plans.extend(other.plans);
        self.unhookable.extend(other.unhookable);
        self.is_partial |= other.is_partial;
        self.plans.sort_by_key(|plan| plan.call);
        self.unhookable.sort_by_key(|unhookable| unhookable.call);
    }

    /// Leaves alone ranges that a symbol marks as data, given by start and end, and calls with
    /// hooks that would reach into them.
    pub fn spare_data(&mut self, data: &BTreeMap<u64, u64>) {
        let is_data = |start: u64, len: u64| {
            let end = start.saturating_add(len);
            let before = data.range(..end).next_back();
            before.is_some_and(|(_, data_end)| start < *data_end)
        };
        let reaches = |plan: &mut CallPlan| {
            let mut windows = plan.original();
            is_data(plan.call, SYSCALL_LEN)
                || windows.any(|(start, bytes)| is_data(start, bytes.len() as u64))
        };
        let unhookable = self
            .plans
            .extract_if(.., reaches)
            .map(|plan| UnhookableCall {
                call: plan.call,
                why: Unhookable::Data,
            });
        self.unhookable.extend(unhookable);
        for unhookable in &mut self.unhookable {
            if is_data(unhookable.call, SYSCALL_LEN) {
                unhookable.why = Unhookable::Data;
            }
        }
        self.unhookable.sort_by_key(|unhookable| unhookable.call);
    }

    /// Leaves alone every call with a hook that would take the instruction itself away from its
    /// place.
    pub fn keep_instructions(&mut self) {
        let (kept, displaced) = std::mem::take(&mut self.plans)
            .into_iter()
            .partition(CallPlan::keeps_instruction);
        self.plans = kept;
        let displaced: Vec<CallPlan> = displaced;
        self.unhookable
            .extend(displaced.iter().map(|plan| UnhookableCall {
                call: plan.call,
                why: Unhookable::Displaced,
            }));
        self.unhookable.sort_by_key(|unhookable| unhookable.call);
    }
}

/// A `syscall` instruction that is not hooked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnhookableCall {
    /// Its address.
    pub call: u64,
    /// The reason.
    pub why: Unhookable,
}

/// The reason why a `syscall` instruction is not hooked; prints as a phrase.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unhookable {
    /// It returns from a signal handler, and unwinders recognize the place by its bytes alone.
    /// Where they recognize it by unwind information it can be hooked:
    /// [`CallSites::hook_restorers`].
    Restorer,
    /// The C library compares the addresses around it with the instruction pointer of a thread that
    /// is to be cancelled, and the callers of that function cannot be hooked.
    CancellationPoint,
    /// The thread has given its stack away and only ends: there is no memory that a hook could use.
    WithoutStack,
    /// It may be data: the bytes before it in its function are no code. It is hooked nevertheless
    /// if the bytes right before load the number of a call.
    Doubtful,
    /// A symbol marks it as data, or its hook would reach into data.
    Data,
    /// A hook would leave no `syscall` instruction in its place, and one is wanted there.
    Displaced,
    /// A hook would not be safe.
    CannotHook(Reason),
}

impl fmt::Display for Unhookable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Restorer => {
                f.write_str("it returns from a signal handler, and unwinders know it by its bytes")
            }
            Self::CancellationPoint => {
                f.write_str("the C library compares its address when it cancels a thread")
            }
            Self::WithoutStack => f.write_str("the thread has given its stack away"),
            Self::Doubtful => f.write_str("it may be data: what is before it is no code"),
            Self::Data => f.write_str("a symbol says that there is data"),
            Self::Displaced => f.write_str("the instruction itself has to stay where it is"),
            Self::CannotHook(reason) => reason.fmt(f),
        }
    }
}

/// The way a `syscall` instruction is hooked.
#[derive(Debug, Clone)]
pub struct CallPlan {
    /// Address of the instruction. Only in the form [`CallForm::Caller`] can several plans have the
    /// same.
    pub call: u64,
    /// The call's number, if the code before the instruction always sets the same.
    pub number: Option<u32>,
    /// True if the code behind it reads arithmetic flags that were set before it. Only where the
    /// number is known.
    pub(crate) keeps_flags: bool,
    /// True if code before the call may change the register of a sixth argument, where the call has
    /// none, for as long as the call lasts.
    pub(crate) is_markable: bool,
    pub(crate) shape: Shape,
}

/// The place where a hooked `syscall` instruction runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CallForm {
    /// In its original place.
    InPlace,
    /// In the stub.
    Moved,
    /// In its original place, in a function that makes all calls for others. The callers of that
    /// function are hooked.
    Caller,
}

/// The parts of the text that are overwritten.
#[derive(Debug, Clone)]
pub(crate) enum Shape {
    InPlace {
        /// Ends where the `syscall` starts.
        entry: Window,
        /// Starts where the `syscall` ends. `None` if the call never returns.
        exit: Option<Window>,
    },
    Moved {
        /// The instructions before the `syscall`, if any.
        before: Vec<Displaced>,
        /// The instructions behind it, if any.
        behind: Vec<Displaced>,
        /// All the bytes, including the `syscall` and padding.
        start: u64,
        original: Arc<[u8]>,
        /// True if the `syscall`, which is at the end and no part of the jump, also stays there for
        /// code that branches to it.
        stays: bool,
    },
    Caller {
        /// The one instruction that calls the function.
        entry: Window,
        /// Starts where `entry` ends.
        exit: Window,
    },
}

/// Bytes that a jump overwrites.
#[derive(Debug, Clone)]
pub(crate) struct Window {
    pub start: u64,
    /// Including the padding behind the last instruction.
    pub original: Arc<[u8]>,
    pub code: Vec<Displaced>,
}

impl Window {
    fn shifted(&self, bias: u64) -> Self {
        Self {
            start: self.start.wrapping_add(bias),
            original: self.original.clone(),
            code: shifted(&self.code, bias),
        }
    }

    /// Returns the address behind it.
    pub(crate) fn end(&self) -> u64 {
        self.start.wrapping_add(self.original.len() as u64)
    }

    /// True if a jump takes just the place of an instruction that loads the call's number.
    pub(crate) fn moves_number(&self) -> bool {
        matches!(&*self.code, [only] if only.loads_number())
    }
}

fn shifted(code: &[Displaced], bias: u64) -> Vec<Displaced> {
    code.iter()
        .map(|displaced| displaced.shifted(bias))
        .collect()
}

impl CallPlan {
    /// Returns where the instruction runs when it is hooked.
    pub fn form(&self) -> CallForm {
        match self.shape {
            Shape::InPlace { .. } => CallForm::InPlace,
            Shape::Moved { .. } => CallForm::Moved,
            Shape::Caller { .. } => CallForm::Caller,
        }
    }

    /// True if there is a `syscall` instruction where it always was, even if it may not be the one
    /// that runs.
    pub fn keeps_instruction(&self) -> bool {
        match self.shape {
            Shape::InPlace { .. } | Shape::Caller { .. } => true,
            Shape::Moved { stays, .. } => stays,
        }
    }

    /// The same plan for a text that is mapped `bias` bytes higher (wrapping) than it was planned
    /// at.
    pub fn at(&self, bias: u64) -> Self {
        let shape = match &self.shape {
            Shape::InPlace { entry, exit } => Shape::InPlace {
                entry: entry.shifted(bias),
                exit: exit.as_ref().map(|exit| exit.shifted(bias)),
            },
            Shape::Moved {
                before,
                behind,
                start,
                original,
                stays,
            } => Shape::Moved {
                before: shifted(before, bias),
                behind: shifted(behind, bias),
                start: start.wrapping_add(bias),
                original: original.clone(),
                stays: *stays,
            },
            Shape::Caller { entry, exit } => Shape::Caller {
                entry: entry.shifted(bias),
                exit: exit.shifted(bias),
            },
        };
        Self {
            call: self.call.wrapping_add(bias),
            number: self.number,
            keeps_flags: self.keeps_flags,
            is_markable: self.is_markable,
            shape,
        }
    }

    /// Returns where the stub may start so that the site reaches it, and its displaced instructions
    /// reach what they address; `None` if there is no such place.
    pub fn reach(&self) -> Option<RangeInclusive<u64>> {
        let (mut low, mut high) = patch::reach(self.call).into_inner();
        let windows = self.original().map(|(start, _)| start);
        let targets = self
            .displaced()
            .filter_map(|displaced| displaced.instruction.target());
        for address in windows.chain(targets) {
            let (lowest, highest) = patch::reach(address).into_inner();
            low = low.max(lowest);
            high = high.min(highest);
        }
        (low <= high).then_some(low..=high)
    }

    /// Returns the overwritten bytes as they were: the start and the bytes of each window. Compare
    /// them with the bytes in a process before patching it.
    pub fn original(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let (first, second) = match &self.shape {
            Shape::InPlace { entry, exit } => (
                (entry.start, &entry.original),
                exit.as_ref().map(|exit| (exit.start, &exit.original)),
            ),
            Shape::Caller { entry, exit } => (
                (entry.start, &entry.original),
                Some((exit.start, &exit.original)),
            ),
            Shape::Moved {
                start, original, ..
            } => ((*start, original), None),
        };
        std::iter::once(first)
            .chain(second)
            .map(|(start, original)| (start, &**original))
    }

    fn displaced(&self) -> impl Iterator<Item = &Displaced> {
        let (first, second) = match &self.shape {
            Shape::InPlace { entry, exit } => (
                entry.code.as_slice(),
                exit.as_ref().map_or(&[][..], |exit| &exit.code),
            ),
            Shape::Moved { before, behind, .. } => (before.as_slice(), behind.as_slice()),
            Shape::Caller { entry, exit } => (entry.code.as_slice(), exit.code.as_slice()),
        };
        first.iter().chain(second)
    }
}

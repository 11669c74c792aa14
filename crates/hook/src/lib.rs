//! Chooses how an address is hooked, moves the instructions that the hook displaces, and writes the
//! trampoline.
//!
//! Bytes and addresses go in, bytes come out; no process is touched here. A *site* is the address
//! to hook. [`plan()`] decides whether it can take a jump or only a breakpoint, and why. [`emit`]
//! writes the *trampoline*: code near the site that saves the registers, calls the hook, restores
//! them, runs the displaced instructions and jumps back behind them. [`jump_patch`] and
//! [`BREAKPOINT`] are the bytes for the site itself. [`displaced`] moves only the instructions, for
//! a signal handler that does the rest. [`Incoming`] holds what a file's other functions know about
//! a site, for [`plan_among`].
//!
//! System calls are hooked as a whole: [`CallSites`] finds every `syscall` instruction of a text,
//! and hooks both ways through it, into the kernel and back.
//!
//! The modules here plan; `arch` knows the machine: its instructions, their encoding and the code
//! of trampolines. Only x86-64 is there yet.
//!
//! Two things are not preserved. `endbr64` at the site is displaced like any other instruction, so
//! a process that enforces indirect-branch tracking must not be hooked. With a shadow stack, the
//! processor would refuse a displaced call (which pushes its original return address and jumps).
//!
//! Its terms are in docs/glossary.md.

#![forbid(unsafe_code)]

mod arch;
mod exits;
mod flags;
mod guard;
mod incoming;
mod patch;
mod plan;
mod survey;
mod syscalls;
mod trampoline;

pub use arch::{
    AssembleError, BREAKPOINT, BREAKPOINT_LEN, CommonCode, INT3, Instruction, JUMP_LEN,
    JUMP_OPCODE, RESTORER, Registers, SYSCALL, SYSCALL_LEN, begins_function, jump_target,
    kernel_call_len, notice_stub, unwinder_exits,
};
pub use exits::{Exit, Exits, UnwinderExit, exits};
pub use flags::Flags;
pub use guard::{Guard, Trap};
pub use incoming::Incoming;
pub use patch::{ReachError, jump_patch, reach};
pub use plan::{Function, Kind, Plan, PlanError, Reason, plan, plan_among, plan_system_call};
pub use survey::branches_sometimes;
pub use syscalls::{
    CallForm, CallPatch, CallPlan, CallSites, CallSpec, CallStub, LONGEST_FUNCTION, MARKABLE,
    Unhookable, UnhookableCall, WATCHED, WATCHED_COMPACTLY, WATCHED_LEN,
};
pub use trampoline::{
    Direct, EmitError, Filter, Full, RelocateError, SystemCall, Trampoline, TrampolineSpec,
    displaced, emit,
};

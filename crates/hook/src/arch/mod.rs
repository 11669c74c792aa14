//! The machine: its instructions, and the code that is written for it.
//!
//! The rest of the crate decides what to hook and how, in terms of what is here. Each machine has a
//! module with the same face:
//!
//! - **Instructions.** [`decode`] yields the [`Instruction`]s of a code, which answer questions:
//!   where an instruction leads, if it goes on, if it can move. [`Displaced`] is one with its
//!   bytes, and [`relocate`] writes it for another address.
//! - **Patches.** The bytes of a jump ([`JUMP_LEN`], [`JUMP_OPCODE`], [`DISPLACEMENT_LEN`],
//!   [`jump`], [`jump_anywhere`], [`jump_target`]), its reach ([`JUMP_REACH`],
//!   [`JUMP_REACH_IN_WORDS`]), and those of a breakpoint ([`BREAKPOINT`], [`BREAKPOINT_LEN`]).
//!   [`INT3`] is for code that looks at bytes.
//! - **Guards.** [`guards`] returns the ways to lay a jump beside kernel uprobes, and
//!   [`guarded_len`] the bytes that they need. [`guarded_targets`], [`disturbed_targets`] and
//!   [`guarded_jump`] turn the fixed bytes of one into addresses and back. [`second_trap`] is a
//!   breakpoint's. [`kernel_call_len`] knows the call that the kernel puts in an instruction's
//!   place, and [`begins_function`] what it takes for the start of a function.
//! - **State.** The general registers ([`Registers`], [`STACK_POINTER`]), and the liveness of flags
//!   ([`flags_needed`], [`flags_wanted_behind_call`]) and of a call's sixth argument
//!   ([`is_last_argument_dead_behind`]).
//! - **Shapes of code.** The end of a frame ([`torn_down`]), unwinders ([`unwinder_exits`],
//!   [`returns_by_jump`]) and the tables of a `switch` ([`JumpTable`]).
//! - **Trampolines.** [`trampoline_head`] writes the part that calls the hook; [`AssembleError`] is
//!   the assembler's refusal. [`notice_stub`] is code before a trampoline that reports a thread.
//! - **System calls, found.** The instruction ([`SYSCALL`], [`SYSCALL_LEN`]), the search for it
//!   ([`CallFinder`]) and for branches to it ([`BranchScan`], [`calls_one_of`]), and the call's
//!   number in the code before it ([`call_number_before`], [`call_number_right_before`],
//!   [`CALL_NUMBER_WITHIN`]). The C library's special places: [`cancellation_points`],
//!   [`CancellationPoint`], [`leads_to_cancellation_point`], [`RESTORER`], [`RESTORER_MOVES`].
//! - **System calls, hooked.** [`CommonCode`] is what the hooks of a process share, [`call_stub`]
//!   writes a site's own code.

#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "x86_64")]
use x86_64 as machine;

#[cfg(not(target_arch = "x86_64"))]
compile_error!("hook does not know this machine: it needs a module beside arch::x86_64");

pub use machine::{
    AssembleError, BREAKPOINT, BREAKPOINT_LEN, CommonCode, INT3, Instruction, JUMP_LEN,
    JUMP_OPCODE, RESTORER, Registers, SYSCALL, SYSCALL_LEN, begins_function, jump_target,
    kernel_call_len, notice_stub, unwinder_exits,
};
pub(crate) use machine::{
    BranchScan, CALL_NUMBER_WITHIN, CallFinder, CancellationPoint, DISPLACEMENT_LEN, Displaced,
    JUMP_REACH, JUMP_REACH_IN_WORDS, JumpTable, RESTORER_MOVES, STACK_POINTER, call_number_before,
    call_number_right_before, call_stub, calls_one_of, cancellation_points, decode,
    disturbed_targets, flags_needed, flags_wanted_behind_call, guarded_jump, guarded_len,
    guarded_targets, guards, is_last_argument_dead_behind, jump, jump_anywhere,
    leads_to_cancellation_point, relocate, returns_by_jump, second_trap, torn_down,
    trampoline_head,
};

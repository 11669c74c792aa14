//! The machine.

#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub use x86_64::{
    AssembleError, BREAKPOINT, BREAKPOINT_LEN, CALL_OPCODE, CommonCode, INT3, Instruction,
    JUMP_LEN, JUMP_OPCODE, PT_REGS_LEN, Registers, SYSCALL, SYSCALL_LEN, unwinder_exits,
};
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::{
    BranchScan, CallFinder, CancellationPoint, DISPLACEMENT_LEN, Displaced, EXIT, EXIT_GROUP,
    JUMP_REACH, JUMP_REACH_IN_WORDS, JumpTable, MUNMAP, NUMBER_WITHIN, RESTORER_MOVES,
    RT_SIGRETURN, call_stub, calls_one_of, cancellation_points, decode, disturbed_targets,
    flags_needed, flags_wanted_behind_call, guarded_jump, guarded_len, guarded_targets, guards,
    head, jump, jump_anywhere, leads_to_cancellation_point, number_before, number_right_before,
    relocate, returns_by_jump, second_trap, torn_down,
};

//! x86-64.

mod effects;
mod flags;
mod frames;
mod guarded_jump;
mod guards;
mod instruction;
mod jump;
mod kernel_uprobe;
mod last_argument;
mod notice;
mod pt_regs;
mod registers;
mod relocate;
mod syscalls;
mod trampoline;

pub(crate) use flags::{flags_needed, flags_wanted_behind_call};
pub use frames::unwinder_exits;
pub(crate) use frames::{returns_by_jump, torn_down};
pub(crate) use guarded_jump::{disturbed_targets, guarded_jump, guarded_targets};
pub(crate) use guards::{guarded_len, guards, second_trap};
pub use iced_x86::IcedError as AssembleError;
pub use instruction::Instruction;
pub(crate) use instruction::decode;
pub use jump::{BREAKPOINT, BREAKPOINT_LEN, INT3, JUMP_LEN, JUMP_OPCODE, jump_target};
pub(crate) use jump::{DISPLACEMENT_LEN, JUMP_REACH, JUMP_REACH_IN_WORDS, jump, jump_anywhere};
pub use kernel_uprobe::{begins_function, kernel_call_len};
pub(crate) use last_argument::is_last_argument_dead_behind;
pub use notice::notice_stub;
pub use registers::Registers;
pub(crate) use registers::STACK_POINTER;
pub(crate) use relocate::{Displaced, relocate};
pub(crate) use syscalls::{
    BranchScan, CALL_NUMBER_WITHIN, CallFinder, CancellationPoint, JumpTable, RESTORER_MOVES,
    call_number_before, call_number_right_before, call_stub, calls_one_of, cancellation_points,
    leads_to_cancellation_point,
};
pub use syscalls::{CommonCode, RESTORER, SYSCALL, SYSCALL_LEN};
pub(crate) use trampoline::trampoline_head;

//! x86-64, with the System V calling convention.

mod frames;
mod guarded_reads;
mod handler_code;
pub mod loads;
mod memory;
mod registers;
mod signal_frame;
mod signal_return;
mod system_call;
mod thread;

pub use frames::{INTERRUPTED_FP, INTERRUPTED_IP, INTERRUPTED_SP, is_restorer, plt_frame};
pub use guarded_reads::{fault_fixup, guarded_copy, guarded_copy_string, guarded_load};
pub use handler_code::HandlerCode;
pub use memory::{copy, shift, zero};
pub use registers::PtRegs;
pub use signal_frame::{BREAKPOINT_CODE, UserContext, is_breakpoint, set_mask_behind};
pub use signal_return::return_from_signal;
pub use system_call::syscall6;
pub use thread::{call_on_stack, cpu, node, processor_flags, stop, thread_pointer, thread_word};

//! The machine: instructions, registers and the kernel's layouts of them.
//!
//! Nothing else in the agent knows them. A machine is a module that provides these names:
//!
//! | name | meaning |
//! | --- | --- |
//! | [`syscall6`] | the instruction that calls the kernel |
//! | [`PtRegs`] | `struct pt_regs`, with methods that name registers by their role: at any place, at a system call, at a function's first instruction and behind its return |
//! | [`UserContext`] | the registers in the kernel's signal frame |
//! | [`BREAKPOINT_CODE`], [`is_breakpoint`] | how a breakpoint shows |
//! | [`set_mask_behind`] | the signals blocked behind a handler |
//! | [`return_from_signal`] | the code by which a signal handler returns to the kernel |
//! | [`INTERRUPTED_IP`], [`INTERRUPTED_SP`], [`INTERRUPTED_FP`], [`is_restorer`], [`plt_frame`] | frames on the stack that no compiler has made |
//! | [`HandlerCode`] | the code by which the kernel enters the agent's signal handler |
//! | [`guarded_copy`], [`guarded_copy_string`], [`guarded_load`], [`fault_fixup()`] | reads whose faults the handler catches |
//! | [`loads`] | a decoder of the loads that compiled programs make, to skip one that faulted |
//! | [`copy`], [`shift`], [`zero`] | memory, as there is no `memcpy` to call |
//! | [`thread_pointer`], [`thread_word`] | a thread's own memory |
//! | [`cpu`], [`node`] | the processor that the thread is on |
//! | [`processor_flags`] | what the processor has, as the target's flags say it |
//! | [`call_on_stack`], [`stop`] | a call on another stack; the end of the process |
//!
//! The rest of the agent relies on this: the platform's C calling convention is that of compiled
//! programs; in a chain of frames the return address lies behind the caller's frame pointer; a page
//! has 4096 bytes; at a function's first instruction the return address is on the stack. The last
//! is not so on aarch64, where watched returns ([`crate::returns`]) would need another key.
//!
//! The kernel's numbers for the machine are in [`beeline_uapi::nr`] and [`beeline_uapi::linux`].

#[cfg(target_arch = "x86_64")]
mod x86_64;

// Public because `abi` and `signals` show some of it to the runtime; the module itself is private.
#[cfg(target_arch = "x86_64")]
pub use x86_64::*;

//! The hooks that a trampoline can call.

use crate::arch::Registers;

/// The action of the trampoline before the displaced instructions run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrampolineSpec {
    /// Calls a function with all registers.
    Full(Full),
    /// Asks a filter first, and calls the function only if that lets the hit pass.
    Filtered(Filter, Full),
    /// Calls a function that needs nothing.
    Direct(Direct),
    /// Asks a function before a system call is made, at the instruction that makes it.
    SystemCall(SystemCall),
}

/// A hook written as a function of the System V calling convention that uses general registers
/// only: vector and x87 state is not kept for it. The direction flag is clear when it is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full {
    /// The second argument of both functions: an address that stands for the site.
    pub descriptor: u64,
    /// Address of `extern "sysv64" fn(*mut pt_regs, descriptor) -> u64`, called when the site is
    /// reached.
    ///
    /// `pt_regs` is the kernel's structure as a uprobe program sees it. Changes to the registers
    /// that a call may change (rax, rcx, rdx, rsi, rdi, r8 to r11) take effect; changes to others
    /// do not.
    ///
    /// With `leave`, anything but 0 says that this call's return is wanted, and that the function
    /// has saved the return address, which is at `pt_regs.sp`. The slot there will hold another one
    /// while the call runs.
    pub enter: u64,
    /// Address of a function of the same signature, called when such a call has returned.
    /// `pt_regs.ip` is 0, `sp` is that after the return (8 above the slot), `ax` and `dx` hold the
    /// result. The function returns the saved return address. Only for sites at a function's start.
    pub leave: Option<u64>,
    /// True if the functions look at other registers than `sp`. If not, `pt_regs.cs` is 0, and the
    /// registers that calls keep are not shown, nor are the flags and `ip`.
    pub shows_registers: bool,
}

/// A function `extern "sysv64" fn(*const pt_regs, argument) -> u64` that says if the hook has to be
/// called at all: not if it returns 0. It uses general registers only, and is called with the
/// direction flag clear.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Filter {
    /// Its address.
    pub entry: u64,
    /// Its second argument; `None` if it takes only one.
    pub argument: Option<u64>,
    /// The words of `pt_regs` that it looks at, bit n for word n: some of [`Filter::WORDS`]. The
    /// others hold anything.
    pub reads: u32,
    /// The general registers that it does not preserve.
    pub clobbers: Registers,
}

impl Filter {
    /// The words of `pt_regs` that a filter may look at: the general registers, without the stack
    /// pointer.
    pub const WORDS: u32 = (1 << 15) - 1;
}

/// A hook without arguments. Vector and x87 state is not kept for it; the direction flag is clear
/// when it is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Direct {
    /// Address of the code, entered by a call.
    pub entry: u64,
    /// The general registers that it does not preserve. Flags need not be named.
    pub clobbers: Registers,
}

/// A function that is asked first at a `syscall` instruction: `(first, second, third argument,
/// data) -> result`, by the System V ABI, with general registers only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SystemCall {
    /// The number of the call that it is asked about.
    pub number: u32,
    /// Address of the function.
    pub function: u64,
    /// Its last argument.
    pub data: u64,
    /// The result by which it declines. The call is made then.
    pub declined: i64,
}

//! A tool's system calls that come as SIGSYS, and are forwarded to the supervisor from here.
//!
//! Where a container's own seccomp filter fails `bpf(2)` with an errno, that outranks a
//! notification (seccomp(2) has the order of actions). The signal of `SECCOMP_RET_TRAP` outranks
//! the errno, so the supervisor's filter raises one for these calls, and for those that would block
//! the signal. Its handler is [`beeline_trapped`], which the runtime installs in every program that
//! runs under the filter, before the first of its instructions. It makes a `prctl(2)` whose option
//! no kernel knows ([`FORWARDED`]) and whose further arguments are the call's. The supervisor is
//! notified of that one; its reply is the call's result, or asks the handler to make the call
//! itself.

use core::mem::offset_of;

use beeline_uapi::linux::{EPOLLET, EpollEvent, PAGE_SIZE};
use beeline_uapi::nr;
use beeline_uapi::signal::{
    SA_NODEFER, SA_ONSTACK, SA_RESTART, SA_RESTORER, SA_SIGINFO, SIG_BLOCK, SIGSYS, SYS_SECCOMP,
    SigInfo,
};

use crate::abi::SignalAction;
pub use crate::arch::return_from_signal;
use crate::arch::{self, UserContext, syscall6};
use crate::{signals, sys};

/// The value of `si_errno` that the supervisor's filter gives: its `SECCOMP_RET_DATA`.
pub const FILTER_DATA: u16 = 0xbee;

/// The option of `prctl(2)` that forwards a call, plus the call's number. No kernel has such
/// options.
pub const FORWARDED: u64 = 0x0bee_1000;
/// The bits of an option that hold the forwarded call's number.
pub const NUMBER_MASK: u64 = 0xfff;
/// The number of arguments that are forwarded.
pub const ARGUMENTS: usize = 5;
/// The mark of a call that the supervisor's filter lets pass: the value of a sixth argument, in a
/// register that the kernel does not read for the call.
pub const PASS_MARK: u64 = 0x0bee_9a55_c0de_0bee;
/// The mark of a call with a path that the filter lets pass: the uppermost bits of that register,
/// which are otherwise zero in it. So the mark can be taken away again. An address has zeros there.
pub const PATH_MARK: u64 = 0x0be1 << PATH_MARK_SHIFT;
/// The place of [`PATH_MARK`], which takes all bits from here on.
pub const PATH_MARK_SHIFT: u32 = 48;

/// Returns the register without the mark, if the call with that number is marked.
#[inline(always)]
pub fn unmarked(number: u64, register: u64) -> Option<u64> {
    let is_marked = register >> PATH_MARK_SHIFT == PATH_MARK >> PATH_MARK_SHIFT;
    (is_marked && nr::path_argument(number).is_some()).then_some(register ^ PATH_MARK)
}

/// A reply: the handler makes the call.
pub const PASS: i64 = i64::MIN;
/// A reply, plus a descriptor's number: the handler makes the call, which is `epoll_ctl(2)`, for that
/// descriptor in place of the one that the program named, edge-triggered.
pub const WATCH: i64 = i64::MIN + 1;
/// The last of these replies.
pub const WATCH_LAST: i64 = WATCH + i32::MAX as i64;

/// The address of a program's [`Kept`], far from what loaders and allocators choose.
pub const KEPT_AT: u64 = 0x2bfe_0000_0000;
/// The bytes that are mapped there.
pub const KEPT_LEN: u64 = PAGE_SIZE;

/// Private memory of each program that runs under the filter.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Kept {
    /// The program's own action for SIGSYS, which the kernel does not have.
    pub own: SignalAction,
    /// The handler's action, for the call that installs it.
    pub handler: SignalAction,
}

/// The address of [`Kept::own`].
pub const OWN_AT: u64 = KEPT_AT + offset_of!(Kept, own) as u64;
/// The address of [`Kept::handler`].
pub const HANDLER_AT: u64 = KEPT_AT + offset_of!(Kept, handler) as u64;

/// Returns the action by which [`beeline_trapped`] is installed, for an agent mapped at `agent` with
/// the entry points' offsets `handler` and `restorer`.
///
/// The handler runs on an alternate stack where there is one: a goroutine's stack has no room. It
/// can be interrupted by itself, as programs' own handlers for SIGSYS may make eBPF calls.
pub fn action(agent: u64, handler: u64, restorer: u64) -> SignalAction {
    SignalAction {
        handler: agent + handler,
        flags: SA_SIGINFO | SA_ONSTACK | SA_RESTART | SA_NODEFER | SA_RESTORER,
        restorer: agent + restorer,
        mask: 0,
    }
}

/// The handler of SIGSYS in a tool.
///
/// # Safety
///
/// For the kernel only, in a process that has [`Kept`] mapped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn beeline_trapped(
    signal: u32,
    info: *mut SigInfo,
    context: *mut UserContext,
) {
    // SAFETY: the kernel passes a frame that the handler may change.
    let (raised, registers) = unsafe { (&*info, &mut *context) };
    if raised.si_code != SYS_SECCOMP || raised.si_errno != i32::from(FILTER_DATA) {
        // SAFETY: the same frame is handed on.
        unsafe { hand_on(signal, info, context) };
        return;
    }
    let (number, arguments) = registers.trapped_call();
    if number == nr::RT_SIGPROCMASK {
        registers.set_result(set_mask(arguments));
        // SAFETY: this is the kernel's own frame.
        unsafe { arch::set_mask_behind(context, own_mask()) };
        return;
    }
    let mut forwarded = [FORWARDED | number, 0, 0, 0, 0, 0];
    forwarded[1..].copy_from_slice(&arguments);
    if number == nr::BPF {
        // It has three arguments. The supervisor learns where the call comes from.
        forwarded[ARGUMENTS] = registers.ip();
    }
    // SAFETY: to the supervisor these are the program's own call. The kernel knows no such option.
    let reply = unsafe { syscall6(nr::PRCTL, forwarded) };
    let result = match reply {
        PASS => pass(number, arguments),
        WATCH..=WATCH_LAST => watch(number, arguments, (reply - WATCH) as u64),
        result => result,
    };
    registers.set_result(result);
}

/// Makes the program's call.
fn pass(number: u64, [first, second, third, fourth, fifth]: [u64; ARGUMENTS]) -> i64 {
    // SAFETY: this is the call that the program has made.
    unsafe { syscall6(number, [first, second, third, fourth, fifth, PASS_MARK]) }
}

/// Sets the thread's mask by the program's `rt_sigprocmask(how, set, old, bytes)`, without SIGSYS: a
/// signal that a filter raises and the thread blocks kills it.
fn set_mask(mut arguments: [u64; ARGUMENTS]) -> i64 {
    let mut set = 0u64;
    let (from, bytes) = (arguments[1], sys::SIGSET_BYTES);
    // SAFETY: there is room for a mask.
    let read = unsafe { sys::read_memory(sys::pid(), (&raw mut set).cast(), from, bytes) };
    // Otherwise the kernel says what is wrong.
    if read == bytes as i64 {
        set &= !(1 << (SIGSYS - 1));
        arguments[1] = &raw const set as u64;
    }
    pass(nr::RT_SIGPROCMASK, arguments)
}

/// Returns the mask of the thread.
fn own_mask() -> u64 {
    let mut mask = 0u64;
    let place = &raw mut mask as u64;
    pass(
        nr::RT_SIGPROCMASK,
        [SIG_BLOCK, 0, place, sys::SIGSET_BYTES, 0],
    );
    mask
}

/// Makes the program's `epoll_ctl(epoll, operation, descriptor, event)` for another descriptor.
fn watch(number: u64, mut arguments: [u64; ARGUMENTS], descriptor: u64) -> i64 {
    let mut event = EpollEvent::default();
    let (from, bytes) = (arguments[3], size_of::<EpollEvent>());
    arguments[2] = descriptor;
    if from != 0 {
        // SAFETY: the supervisor has just read the program's event there, and only the program
        // itself could have taken it away since.
        unsafe { arch::copy((&raw mut event).cast(), from as *const u8, bytes) };
        event.events |= EPOLLET;
        arguments[3] = &raw const event as u64;
    }
    pass(number, arguments)
}

/// Does what the program's own action says, which the kernel would have done.
///
/// # Safety
///
/// The arguments are those of the handler.
unsafe fn hand_on(signal: u32, info: *mut SigInfo, context: *mut UserContext) {
    let set_default = || {
        let default = SignalAction::default();
        let (place, bytes) = (&raw const default as u64, sys::SIGSET_BYTES);
        let set = [signal.into(), place, 0, bytes, 0, PASS_MARK];
        // SAFETY: this only reads the local structure, which has no handler.
        unsafe { syscall6(nr::RT_SIGACTION, set) };
    };
    // SAFETY: the memory is mapped as long as the handler is installed, and the supervisor changes it
    // only while a thread waits for that. The frame is the kernel's own. The handler's own mask and
    // stack stand for what the action asks for.
    unsafe {
        let own = &mut *(OWN_AT as *mut SignalAction);
        signals::take(own, signal, info, context, set_default);
    }
}

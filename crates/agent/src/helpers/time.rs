//! Clocks, read through the target's vDSO without a system call.

use beeline_uapi::linux::{CLOCK_BOOTTIME, CLOCK_MONOTONIC, CLOCK_MONOTONIC_COARSE, CLOCK_TAI};
use beeline_uapi::nr;

use crate::abi::{Context, PtRegs, Slot, Target};
use crate::sys;

/// `bpf_ktime_get_ns()`.
pub fn ktime_get_ns(context: &mut Context) -> u64 {
    read(context, CLOCK_MONOTONIC)
}

/// `bpf_ktime_get_boot_ns()`.
pub fn ktime_get_boot_ns(context: &mut Context) -> u64 {
    read(context, CLOCK_BOOTTIME)
}

/// `bpf_ktime_get_coarse_ns()`.
pub fn ktime_get_coarse_ns(context: &mut Context) -> u64 {
    read(context, CLOCK_MONOTONIC_COARSE)
}

/// `bpf_ktime_get_tai_ns()`.
pub fn ktime_get_tai_ns(context: &mut Context) -> u64 {
    read(context, CLOCK_TAI)
}

/// `bpf_jiffies64()`: ticks since five minutes before the low half of the counter wraps at boot, as
/// in the kernel.
pub fn jiffies64(context: &mut Context) -> u64 {
    let mut resolution = [0u64; 2];
    let place = (&raw mut resolution) as u64;
    // SAFETY: the call fills `resolution`.
    unsafe { sys::syscall(nr::CLOCK_GETRES, [CLOCK_MONOTONIC_COARSE, place, 0, 0]) };
    // The coarse clock moves at each tick.
    let tick = resolution[1].max(1);
    let before_boot = 300 * (1_000_000_000 / tick);
    let ticks = read(context, CLOCK_MONOTONIC_COARSE) / tick;
    (1u64 << 32).wrapping_sub(before_boot).wrapping_add(ticks)
}

/// Returns a number that changes at every tick of the coarse clock (1 to 4 ms) and is never 0: it
/// tells how fresh a remembered fact is.
pub fn tick(context: &mut Context) -> u32 {
    if context.tick == 0 {
        // A tick is at least a millisecond: 2^17 ns is well below that, so two ticks never share a
        // number within a second; 12 bits are compared in the page cache.
        context.tick = (read(context, CLOCK_MONOTONIC_COARSE) >> 17) as u32 | 1 << 31;
    }
    context.tick
}

/// Returns nanoseconds of the monotonic clock.
pub fn now(context: &Context) -> u64 {
    read(context, CLOCK_MONOTONIC)
}

/// True if this call of `clock_gettime` comes from the vDSO, which [`read`] has called and which
/// cannot tell the time itself (that depends on the machine's clock). Programs must not run for it,
/// as they would ask for the time again.
///
/// Only [`read`] has times put into slots.
#[cold]
pub fn asks(regs: &PtRegs, target: &Target) -> bool {
    let slots = target.slots as usize;
    let end = slots.wrapping_add(target.cpus as usize * size_of::<Slot>());
    (slots..end).contains(&(regs.call_arguments()[1] as usize))
}

/// Returns nanoseconds of a clock.
fn read(context: &Context, clock: u64) -> u64 {
    // SAFETY: the slot is leased by the run.
    let time = unsafe { &raw mut (*context.slot).time };
    // SAFETY: the runtime found the vDSO's clock_gettime at this address; the time is the slot's.
    unsafe { sys::read_clock(context.target().clock_gettime, clock, time) }
}

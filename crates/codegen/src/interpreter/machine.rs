//! The machine that runs steps.

use std::ptr::with_exposed_provenance_mut as place;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

use beeline_isa::abi::Run;
use beeline_isa::{Atomic, FRAME_POINTER, MAY_GOTO_LIMIT};
use beeline_uapi::limits::MAX_CALL_FRAMES;

use super::frames::never_written;
use super::helper_calls::Held;
use super::memory::{FRAME_BYTES, Memory};
use super::steps::{Code, Step, fetching};
use super::words::Word;
use super::written::{ARGUMENTS, bit};
use super::{Decoded, Watch};
use crate::engine::Fault;

/// The values of r0 to r10, and of some unused ones.
pub(super) type Registers = [u64; 16];

/// The bytes of stack of all functions that can be active.
pub(super) const STACK_BYTES: usize = MAX_CALL_FRAMES * FRAME_BYTES as usize;

/// A program while it runs.
pub(super) struct Machine<'a> {
    pub program: &'a Decoded,
    pub run: *const Run,
    pub context: u64,
    pub memory: Memory,
    /// The slots that may still be run.
    ///
    /// They are counted where control goes back and where a function ends, so the count lags by the
    /// length of the active functions.
    pub budget: u64,
    /// The number of active functions, not counting the program's entry.
    pub depth: usize,
    pub held: Held,
    /// The watcher. With it, registers are checked as they are read, regardless of earlier proof.
    pub watch: Option<Watch<'a>>,
}

/// The reasons why a program does not continue.
#[derive(Debug)]
pub(super) enum Stop {
    /// The program has reached poison.
    Poison,
    Fault(Fault),
}

/// The state that a function keeps when it calls another.
#[derive(Clone, Copy, Default)]
struct Frame {
    back: usize,
    /// The slot at which it begins.
    start: usize,
    saved: [u64; 4],
    may_goto: u32,
    written: u16,
}

/// The outcome of a tail call.
pub(super) enum Tail {
    /// There was no next program.
    GoesOn,
    /// The next program has returned this.
    Returned(u64),
}

#[cold]
#[inline(never)]
pub(super) fn fault(slot: usize, what: impl Into<String>) -> Stop {
    Stop::Fault(Fault {
        insn: slot,
        what: what.into(),
    })
}

#[cold]
#[inline(never)]
fn no_access(slot: usize, verb: &str, bytes: u64, register: u8, address: u64) -> Stop {
    fault(
        slot,
        format!(
            "{verb} of {bytes} bytes at {address:#x} through r{register}: not the program's memory"
        ),
    )
}

impl Machine<'_> {
    /// Runs a function from its first slot; returns its r0.
    ///
    /// With `CHECK`, reading a register that was never written is a fault; without it, it has been
    /// shown that there is no such read.
    ///
    /// One match over all codes is what makes this fast, so it is one function.
    ///
    /// # Errors
    ///
    /// `Stop::Poison` if the program reaches poison, `Stop::Fault` if it does what it must not.
    pub fn execute<const CHECK: bool>(
        &mut self,
        mut start: usize,
        mut r: Registers,
        given: u16,
    ) -> Result<u64, Stop> {
        let steps: &[Step] = &self.program.steps;
        let mut frames = [Frame::default(); MAX_CALL_FRAMES];
        let base = self.depth;
        let mut pc = start;
        let mut may_goto = MAY_GOTO_LIMIT;
        let mut written = given | bit(FRAME_POINTER);
        self.enter(start, &mut r);

        macro_rules! goto {
            ($to:expr) => {{
                let to = $to as usize;
                if to < pc {
                    self.charge(pc - to, pc)?;
                }
                pc = to;
            }};
        }
        // Returns from the current function; from the one that this began with, for good.
        macro_rules! leave {
            () => {{
                self.charge(pc - start, pc - 1)?;
                let Some(frame) = (self.depth - base)
                    .checked_sub(1)
                    .map(|active| frames[active])
                else {
                    if CHECK && written & 1 == 0 {
                        return Err(never_written(pc - 1, 0));
                    }
                    return Ok(r[0]);
                };
                self.return_frame();
                [r[6], r[7], r[8], r[9]] = frame.saved;
                r[usize::from(FRAME_POINTER)] = self.memory.frame() + FRAME_BYTES;
                (pc, start, may_goto) = (frame.back, frame.start, frame.may_goto);
                written = frame.written | written & 1;
            }};
        }
        loop {
            let slot = pc;
            // SAFETY: jumps lead to slots of the program, no function's last slot goes on, and a
            // hole follows the last slot.
            let step = unsafe { steps.get_unchecked(slot) };
            pc += 1;
            if CHECK {
                written = self.check_written(slot, written)?;
                self.show(slot, start, &r)?;
            }
            macro_rules! dst {
                () => {
                    r[usize::from(step.dst & 15)]
                };
            }
            macro_rules! src {
                () => {
                    r[usize::from(step.src & 15)]
                };
            }
            macro_rules! x {
                ($op:ident) => {
                    dst!() = Word::$op(dst!(), src!())
                };
            }
            macro_rules! k {
                ($op:ident) => {
                    dst!() = Word::$op(dst!(), step.imm)
                };
            }
            macro_rules! x32 {
                ($op:ident) => {
                    dst!() = Word::$op(dst!() as u32, src!() as u32).into()
                };
            }
            macro_rules! k32 {
                ($op:ident) => {
                    dst!() = Word::$op(dst!() as u32, step.imm as u32).into()
                };
            }
            // Branches if a comparison has the given result; those that begin with r compare in
            // reverse.
            macro_rules! branch {
                (x $op:ident $truth:literal) => {
                    branch!(@ Word::$op(dst!(), src!()) == $truth)
                };
                (k $op:ident $truth:literal) => {
                    branch!(@ Word::$op(dst!(), step.imm) == $truth)
                };
                (x32 $op:ident $truth:literal) => {
                    branch!(@ Word::$op(dst!() as u32, src!() as u32) == $truth)
                };
                (k32 $op:ident $truth:literal) => {
                    branch!(@ Word::$op(dst!() as u32, step.imm as u32) == $truth)
                };
                (rx $op:ident $truth:literal) => {
                    branch!(@ Word::$op(src!(), dst!()) == $truth)
                };
                (rk $op:ident $truth:literal) => {
                    branch!(@ Word::$op(step.imm, dst!()) == $truth)
                };
                (rx32 $op:ident $truth:literal) => {
                    branch!(@ Word::$op(src!() as u32, dst!() as u32) == $truth)
                };
                (rk32 $op:ident $truth:literal) => {
                    branch!(@ Word::$op(step.imm as u32, dst!() as u32) == $truth)
                };
                (@ $holds:expr) => {
                    if $holds {
                        goto!(step.at)
                    }
                };
            }
            macro_rules! reach {
                ($write:literal, $register:ident, $size:ty) => {{
                    let address = r[usize::from(step.$register & 15)]
                        .wrapping_add_signed(step.at.cast_signed().into());
                    if !self
                        .memory
                        .allows::<$write>(address, size_of::<$size>() as u64)
                    {
                        let bytes = size_of::<$size>() as u64;
                        let verb = if $write { "a write" } else { "a read" };
                        return Err(no_access(slot, verb, bytes, step.$register, address));
                    }
                    place::<$size>(address as usize)
                }};
            }
            macro_rules! load {
                ($size:ty) => {{
                    let address = src!().wrapping_add_signed(step.at.cast_signed().into());
                    let bytes = size_of::<$size>() as u64;
                    let loaded = if self.memory.allows::<false>(address, bytes) {
                        // SAFETY: the check before has shown that the program may read there.
                        unsafe { place::<$size>(address as usize).read_unaligned() }
                    } else {
                        match self.read_of_kernel(address, bytes) {
                            Some(value) => value as $size,
                            None => {
                                return Err(no_access(slot, "a read", bytes, step.src, address));
                            }
                        }
                    };
                    dst!() = loaded as u64;
                }};
            }
            macro_rules! store {
                ($size:ty, $value:expr) => {{
                    let to = reach!(true, dst, $size);
                    // SAFETY: the check before has shown that the program may write there.
                    unsafe { to.write_unaligned($value as $size) }
                }};
            }
            macro_rules! atomic {
                ($atomic:ty, $size:ty, $write:literal, $register:ident) => {{
                    let at = reach!($write, $register, $size);
                    if !at.is_aligned() {
                        return Err(fault(slot, "misaligned atomic access"));
                    }
                    // SAFETY: the address is aligned, and the program may access it; other accesses
                    // are atomic, or their authors answer for them.
                    unsafe { <$atomic>::from_ptr(at) }
                }};
            }
            macro_rules! load_acquire {
                ($atomic:ty, $size:ty) => {
                    dst!() = atomic!($atomic, $size, false, src).load(Acquire).into()
                };
            }
            macro_rules! store_release {
                ($atomic:ty, $size:ty) => {
                    atomic!($atomic, $size, true, dst).store(src!() as $size, Release)
                };
            }
            macro_rules! modify {
                ($atomic:ty, $size:ty) => {{
                    let word = atomic!($atomic, $size, true, dst);
                    let operand = src!() as $size;
                    let (op, fetch) = fetching(step.imm);
                    let old = match op {
                        Atomic::Add => word.fetch_add(operand, SeqCst),
                        Atomic::Or => word.fetch_or(operand, SeqCst),
                        Atomic::And => word.fetch_and(operand, SeqCst),
                        Atomic::Xor => word.fetch_xor(operand, SeqCst),
                        Atomic::Exchange => word.swap(operand, SeqCst),
                        Atomic::CompareExchange => {
                            let (Ok(old) | Err(old)) =
                                word.compare_exchange(r[0] as $size, operand, SeqCst, Relaxed);
                            r[0] = old.into();
                            continue;
                        }
                    };
                    if fetch {
                        src!() = old.into();
                    }
                }};
            }

            match step.code {
                Code::AddX => x!(add),
                Code::AddK => k!(add),
                Code::AddX32 => x32!(add),
                Code::AddK32 => k32!(add),
                Code::SubX => x!(sub),
                Code::SubK => k!(sub),
                Code::SubX32 => x32!(sub),
                Code::SubK32 => k32!(sub),
                Code::MulX => x!(mul),
                Code::MulK => k!(mul),
                Code::MulX32 => x32!(mul),
                Code::MulK32 => k32!(mul),
                Code::DivX => x!(div),
                Code::DivK => k!(div),
                Code::DivX32 => x32!(div),
                Code::DivK32 => k32!(div),
                Code::SignedDivX => x!(signed_div),
                Code::SignedDivK => k!(signed_div),
                Code::SignedDivX32 => x32!(signed_div),
                Code::SignedDivK32 => k32!(signed_div),
                Code::ModX => x!(rem),
                Code::ModK => k!(rem),
                Code::ModX32 => x32!(rem),
                Code::ModK32 => k32!(rem),
                Code::SignedModX => x!(signed_rem),
                Code::SignedModK => k!(signed_rem),
                Code::SignedModX32 => x32!(signed_rem),
                Code::SignedModK32 => k32!(signed_rem),
                Code::OrX => x!(or),
                Code::OrK => k!(or),
                Code::OrX32 => x32!(or),
                Code::OrK32 => k32!(or),
                Code::AndX => x!(and),
                Code::AndK => k!(and),
                Code::AndX32 => x32!(and),
                Code::AndK32 => k32!(and),
                Code::XorX => x!(xor),
                Code::XorK => k!(xor),
                Code::XorX32 => x32!(xor),
                Code::XorK32 => k32!(xor),
                Code::LshX => x!(lsh),
                Code::LshK => k!(lsh),
                Code::LshX32 => x32!(lsh),
                Code::LshK32 => k32!(lsh),
                Code::RshX => x!(rsh),
                Code::RshK => k!(rsh),
                Code::RshX32 => x32!(rsh),
                Code::RshK32 => k32!(rsh),
                Code::ArshX => x!(arsh),
                Code::ArshK => k!(arsh),
                Code::ArshX32 => x32!(arsh),
                Code::ArshK32 => k32!(arsh),

                Code::EqualX => branch!(x equal true),
                Code::EqualK => branch!(k equal true),
                Code::EqualX32 => branch!(x32 equal true),
                Code::EqualK32 => branch!(k32 equal true),
                Code::NotEqualX => branch!(x equal false),
                Code::NotEqualK => branch!(k equal false),
                Code::NotEqualX32 => branch!(x32 equal false),
                Code::NotEqualK32 => branch!(k32 equal false),
                Code::GreaterX => branch!(rx less true),
                Code::GreaterK => branch!(rk less true),
                Code::GreaterX32 => branch!(rx32 less true),
                Code::GreaterK32 => branch!(rk32 less true),
                Code::GreaterEqualX => branch!(x less false),
                Code::GreaterEqualK => branch!(k less false),
                Code::GreaterEqualX32 => branch!(x32 less false),
                Code::GreaterEqualK32 => branch!(k32 less false),
                Code::LessX => branch!(x less true),
                Code::LessK => branch!(k less true),
                Code::LessX32 => branch!(x32 less true),
                Code::LessK32 => branch!(k32 less true),
                Code::LessEqualX => branch!(rx less false),
                Code::LessEqualK => branch!(rk less false),
                Code::LessEqualX32 => branch!(rx32 less false),
                Code::LessEqualK32 => branch!(rk32 less false),
                Code::SignedGreaterX => branch!(rx signed_less true),
                Code::SignedGreaterK => branch!(rk signed_less true),
                Code::SignedGreaterX32 => branch!(rx32 signed_less true),
                Code::SignedGreaterK32 => branch!(rk32 signed_less true),
                Code::SignedGreaterEqualX => branch!(x signed_less false),
                Code::SignedGreaterEqualK => branch!(k signed_less false),
                Code::SignedGreaterEqualX32 => branch!(x32 signed_less false),
                Code::SignedGreaterEqualK32 => branch!(k32 signed_less false),
                Code::SignedLessX => branch!(x signed_less true),
                Code::SignedLessK => branch!(k signed_less true),
                Code::SignedLessX32 => branch!(x32 signed_less true),
                Code::SignedLessK32 => branch!(k32 signed_less true),
                Code::SignedLessEqualX => branch!(rx signed_less false),
                Code::SignedLessEqualK => branch!(rk signed_less false),
                Code::SignedLessEqualX32 => branch!(rx32 signed_less false),
                Code::SignedLessEqualK32 => branch!(rk32 signed_less false),
                Code::AnySetX => branch!(x any_set true),
                Code::AnySetK => branch!(k any_set true),
                Code::AnySetX32 => branch!(x32 any_set true),
                Code::AnySetK32 => branch!(k32 any_set true),

                Code::MoveX => dst!() = src!(),
                Code::MoveK => dst!() = step.imm,
                Code::MoveX32 => dst!() = u64::from(src!() as u32),
                Code::MoveSigned8 => dst!() = src!() as i8 as u64,
                Code::MoveSigned16 => dst!() = src!() as i16 as u64,
                Code::MoveSigned32 => dst!() = src!() as i32 as u64,
                Code::MoveSigned8To32 => dst!() = u64::from(src!() as i8 as u32),
                Code::MoveSigned16To32 => dst!() = u64::from(src!() as i16 as u32),
                Code::Neg => dst!() = dst!().wrapping_neg(),
                Code::Neg32 => dst!() = u64::from((dst!() as u32).wrapping_neg()),
                Code::Reverse16 => dst!() = u64::from((dst!() as u16).swap_bytes()),
                Code::Reverse32 => dst!() = u64::from((dst!() as u32).swap_bytes()),
                Code::Reverse64 => dst!() = dst!().swap_bytes(),
                Code::Low16 => dst!() = u64::from(dst!() as u16),
                Code::Low32 => dst!() = u64::from(dst!() as u32),
                Code::Nothing => {}

                Code::Load8 => load!(u8),
                Code::Load16 => load!(u16),
                Code::Load32 => load!(u32),
                Code::Load64 => load!(u64),
                Code::LoadSigned8 => load!(i8),
                Code::LoadSigned16 => load!(i16),
                Code::LoadSigned32 => load!(i32),
                Code::StoreX8 => store!(u8, src!()),
                Code::StoreX16 => store!(u16, src!()),
                Code::StoreX32 => store!(u32, src!()),
                Code::StoreX64 => store!(u64, src!()),
                Code::StoreK8 => store!(u8, step.imm),
                Code::StoreK16 => store!(u16, step.imm),
                Code::StoreK32 => store!(u32, step.imm),
                Code::StoreK64 => store!(u64, step.imm),
                Code::LoadAcquire8 => load_acquire!(AtomicU8, u8),
                Code::LoadAcquire16 => load_acquire!(AtomicU16, u16),
                Code::LoadAcquire32 => load_acquire!(AtomicU32, u32),
                Code::LoadAcquire64 => load_acquire!(AtomicU64, u64),
                Code::StoreRelease8 => store_release!(AtomicU8, u8),
                Code::StoreRelease16 => store_release!(AtomicU16, u16),
                Code::StoreRelease32 => store_release!(AtomicU32, u32),
                Code::StoreRelease64 => store_release!(AtomicU64, u64),
                Code::Atomic32 => modify!(AtomicU32, u32),
                Code::Atomic64 => modify!(AtomicU64, u64),

                Code::Number => {
                    dst!() = step.imm;
                    pc += 1;
                }
                Code::Map => {
                    dst!() = self.map(slot, step.at)?;
                    pc += 1;
                }
                Code::MapValue => {
                    dst!() = self.map_value(slot, step.at, step.imm)?;
                    pc += 1;
                }
                Code::Function => {
                    dst!() = self.program.function_address(step.at);
                    pc += 1;
                }
                Code::Jump => goto!(step.at),
                Code::MayGoto => {
                    if may_goto == 0 {
                        goto!(step.at);
                    } else {
                        may_goto -= 1;
                    }
                }
                Code::CallLocal => {
                    self.charge(1, slot)?;
                    frames[self.depth - base] = Frame {
                        back: pc,
                        start,
                        saved: [r[6], r[7], r[8], r[9]],
                        may_goto,
                        written: written & !(ARGUMENTS | 1),
                    };
                    self.call_frame(slot)?;
                    written = written & ARGUMENTS | bit(FRAME_POINTER);
                    may_goto = MAY_GOTO_LIMIT;
                    (pc, start) = (step.at as usize, step.at as usize);
                    self.enter(pc, &mut r);
                }
                Code::CallHelper => r[0] = self.call_helper(slot, step.imm, &r)?,
                Code::TailCall => match self.tail_call(slot, &r)? {
                    Tail::GoesOn => {}
                    Tail::Returned(result) => {
                        r[0] = result;
                        written |= 1;
                        leave!();
                    }
                },
                Code::Exit => leave!(),
                Code::Poison => return Err(Stop::Poison),
                Code::CallKernel => {
                    return Err(fault(
                        slot,
                        format!(
                            "kernel function #{} cannot be reached from user space",
                            step.at
                        ),
                    ));
                }
                Code::KernelVariable => {
                    return Err(fault(
                        slot,
                        format!(
                            "kernel variable #{} cannot be reached from user space",
                            step.at
                        ),
                    ));
                }
                Code::MapIndex => {
                    return Err(fault(
                        slot,
                        "a map named by its index in fd_array is not resolved",
                    ));
                }
                Code::Hole => return Err(fault(slot, "no instruction")),
            }
        }
    }
}

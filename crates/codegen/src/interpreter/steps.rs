//! A program in the form that the interpreter runs: one step a slot, with everything looked up in
//! advance.

use beeline_isa::{Alu, Atomic, Cond, Imm64, Insn, Op, Operand, Size, Swap};
use beeline_uapi::HelperId;
use beeline_verifier::Flow;

/// One instruction. The step of slot n is the n-th.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct Step {
    pub code: Code,
    /// Below 16, as `src`.
    pub dst: u8,
    pub src: u8,
    /// For a jump or call: the target slot. For an access: the offset, as signed bits.
    pub at: u32,
    /// The immediate, extended as the instruction does; for other steps as their codes define.
    pub imm: u64,
}

/// The operation of a step. In names that end in `X` the second operand is a register, in `K` the
/// immediate; 32: on the low halves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
#[rustfmt::skip]
pub(super) enum Code {
    AddX, AddK, AddX32, AddK32,
    SubX, SubK, SubX32, SubK32,
    MulX, MulK, MulX32, MulK32,
    DivX, DivK, DivX32, DivK32,
    SignedDivX, SignedDivK, SignedDivX32, SignedDivK32,
    ModX, ModK, ModX32, ModK32,
    SignedModX, SignedModK, SignedModX32, SignedModK32,
    OrX, OrK, OrX32, OrK32,
    AndX, AndK, AndX32, AndK32,
    XorX, XorK, XorX32, XorK32,
    LshX, LshK, LshX32, LshK32,
    RshX, RshK, RshX32, RshK32,
    ArshX, ArshK, ArshX32, ArshK32,
    EqualX, EqualK, EqualX32, EqualK32,
    NotEqualX, NotEqualK, NotEqualX32, NotEqualK32,
    GreaterX, GreaterK, GreaterX32, GreaterK32,
    GreaterEqualX, GreaterEqualK, GreaterEqualX32, GreaterEqualK32,
    LessX, LessK, LessX32, LessK32,
    LessEqualX, LessEqualK, LessEqualX32, LessEqualK32,
    SignedGreaterX, SignedGreaterK, SignedGreaterX32, SignedGreaterK32,
    SignedGreaterEqualX, SignedGreaterEqualK, SignedGreaterEqualX32, SignedGreaterEqualK32,
    SignedLessX, SignedLessK, SignedLessX32, SignedLessK32,
    SignedLessEqualX, SignedLessEqualK, SignedLessEqualX32, SignedLessEqualK32,
    AnySetX, AnySetK, AnySetX32, AnySetK32,
    MoveX, MoveK, MoveX32,
    MoveSigned8, MoveSigned16, MoveSigned32, MoveSigned8To32, MoveSigned16To32,
    Neg, Neg32,
    Reverse16, Reverse32, Reverse64, Low16, Low32, Nothing,
    Load8, Load16, Load32, Load64, LoadSigned8, LoadSigned16, LoadSigned32,
    StoreX8, StoreX16, StoreX32, StoreX64, StoreK8, StoreK16, StoreK32, StoreK64,
    LoadAcquire8, LoadAcquire16, LoadAcquire32, LoadAcquire64,
    StoreRelease8, StoreRelease16, StoreRelease32, StoreRelease64,
    /// `imm` is a [`fetching`] number.
    Atomic32, Atomic64,
    /// `imm` is the whole number; the next slot is skipped.
    Number,
    /// `at` is the map's index, `imm` the offset in its value.
    Map, MapValue,
    /// `at` is the function's first slot.
    Function,
    KernelVariable, MapIndex,
    Jump, MayGoto,
    /// `imm` is its place among the program's [`Callee`](super::helper_calls::Callee)s.
    CallHelper, TailCall, CallLocal, CallKernel, Poison, Exit,
    /// Never reached.
    Hole,
}

/// Returns the steps of a program that calls these helpers, and one more, a hole.
pub(super) fn steps(insns: &[Insn], flow: &Flow, helpers: &[HelperId]) -> Vec<Step> {
    let slots = 0..=flow.len();
    slots.map(|slot| step(insns, flow, helpers, slot)).collect()
}

const HOLE: Step = Step {
    code: Code::Hole,
    dst: 0,
    src: 0,
    at: 0,
    imm: 0,
};

fn step(insns: &[Insn], flow: &Flow, helpers: &[HelperId], slot: usize) -> Step {
    let Some(op) = flow.op(slot) else {
        return HOLE;
    };
    let target = |off: i32| slot.wrapping_add(1).wrapping_add_signed(off as isize) as u32;
    match op {
        Op::Alu { op, wide, dst, src } => {
            operation(choose(alu_codes(op), wide, src), wide, dst, src)
        }
        Op::Move { wide, dst, src } => operation(move_code(wide, src), wide, dst, src),
        Op::Branch {
            cond,
            wide,
            dst,
            src,
            off,
        } => Step {
            at: target(off.into()),
            ..operation(choose(branch_codes(cond), wide, src), wide, dst, src)
        },
        Op::MoveSigned {
            wide,
            dst,
            src,
            from,
        } => registers(move_signed_code(wide, from), dst, src),
        Op::Neg { wide, dst } => registers(if wide { Code::Neg } else { Code::Neg32 }, dst, 0),
        Op::Swap { swap, dst, size } => registers(swap_code(swap, size), dst, 0),
        Op::Load { .. }
        | Op::Store { .. }
        | Op::Atomic { .. }
        | Op::LoadAcquire { .. }
        | Op::StoreRelease { .. } => access(op),
        Op::Imm64 { kind, dst, low } => {
            let high = insns.get(slot + 1).map_or(0, |second| second.imm);
            Step {
                dst,
                ..immediate(kind, low, high, target(low))
            }
        }
        Op::Jump { off } => led(Code::Jump, target(off)),
        Op::MayGoto { off } => led(Code::MayGoto, target(off.into())),
        Op::CallLocal { off } => led(Code::CallLocal, target(off)),
        Op::CallHelper {
            id: HelperId::TAIL_CALL,
        } => led(Code::TailCall, 0),
        Op::CallHelper { id } => Step {
            imm: helpers.iter().position(|known| *known == id).unwrap_or(0) as u64,
            ..led(Code::CallHelper, id.0)
        },
        Op::CallKernel { btf_id } => led(Code::CallKernel, btf_id.cast_unsigned()),
        Op::Poison { imm } => led(Code::Poison, imm.cast_unsigned()),
        Op::Exit => led(Code::Exit, 0),
    }
}

fn led(code: Code, at: u32) -> Step {
    Step { code, at, ..HOLE }
}

fn registers(code: Code, dst: u8, src: u8) -> Step {
    Step {
        code,
        dst,
        src,
        ..HOLE
    }
}

fn operation(code: Code, wide: bool, dst: u8, operand: Operand) -> Step {
    match operand {
        Operand::Reg(src) => registers(code, dst, src),
        Operand::Imm(imm) => Step {
            imm: if wide {
                i64::from(imm).cast_unsigned()
            } else {
                imm.cast_unsigned().into()
            },
            ..registers(code, dst, 0)
        },
    }
}

fn choose([x, k, x32, k32]: [Code; 4], wide: bool, operand: Operand) -> Code {
    match (wide, operand) {
        (true, Operand::Reg(_)) => x,
        (true, Operand::Imm(_)) => k,
        (false, Operand::Reg(_)) => x32,
        (false, Operand::Imm(_)) => k32,
    }
}

#[rustfmt::skip]
fn alu_codes(op: Alu) -> [Code; 4] {
    use Code::*;
    match op {
        Alu::Add => [AddX, AddK, AddX32, AddK32],
        Alu::Sub => [SubX, SubK, SubX32, SubK32],
        Alu::Mul => [MulX, MulK, MulX32, MulK32],
        Alu::Div => [DivX, DivK, DivX32, DivK32],
        Alu::SignedDiv => [SignedDivX, SignedDivK, SignedDivX32, SignedDivK32],
        Alu::Mod => [ModX, ModK, ModX32, ModK32],
        Alu::SignedMod => [SignedModX, SignedModK, SignedModX32, SignedModK32],
        Alu::Or => [OrX, OrK, OrX32, OrK32],
        Alu::And => [AndX, AndK, AndX32, AndK32],
        Alu::Xor => [XorX, XorK, XorX32, XorK32],
        Alu::Lsh => [LshX, LshK, LshX32, LshK32],
        Alu::Rsh => [RshX, RshK, RshX32, RshK32],
        Alu::Arsh => [ArshX, ArshK, ArshX32, ArshK32],
    }
}

#[rustfmt::skip]
fn branch_codes(cond: Cond) -> [Code; 4] {
    use Code::*;
    match cond {
        Cond::Equal => [EqualX, EqualK, EqualX32, EqualK32],
        Cond::NotEqual => [NotEqualX, NotEqualK, NotEqualX32, NotEqualK32],
        Cond::Greater => [GreaterX, GreaterK, GreaterX32, GreaterK32],
        Cond::GreaterEqual => [GreaterEqualX, GreaterEqualK, GreaterEqualX32, GreaterEqualK32],
        Cond::Less => [LessX, LessK, LessX32, LessK32],
        Cond::LessEqual => [LessEqualX, LessEqualK, LessEqualX32, LessEqualK32],
        Cond::SignedGreater => [SignedGreaterX, SignedGreaterK, SignedGreaterX32, SignedGreaterK32],
        Cond::SignedGreaterEqual => [SignedGreaterEqualX, SignedGreaterEqualK, SignedGreaterEqualX32, SignedGreaterEqualK32],
        Cond::SignedLess => [SignedLessX, SignedLessK, SignedLessX32, SignedLessK32],
        Cond::SignedLessEqual => [SignedLessEqualX, SignedLessEqualK, SignedLessEqualX32, SignedLessEqualK32],
        Cond::AnySet => [AnySetX, AnySetK, AnySetX32, AnySetK32],
    }
}

fn move_code(wide: bool, src: Operand) -> Code {
    match (wide, src) {
        (_, Operand::Imm(_)) => Code::MoveK,
        (true, Operand::Reg(_)) => Code::MoveX,
        (false, Operand::Reg(_)) => Code::MoveX32,
    }
}

fn move_signed_code(wide: bool, from: Size) -> Code {
    match (wide, from) {
        (true, Size::B1) => Code::MoveSigned8,
        (true, Size::B2) => Code::MoveSigned16,
        (true, Size::B4) => Code::MoveSigned32,
        (false, Size::B1) => Code::MoveSigned8To32,
        (false, Size::B2) => Code::MoveSigned16To32,
        // The instruction set has no such move; they would be plain ones.
        (false, Size::B4) => Code::MoveX32,
        (_, Size::B8) => Code::MoveX,
    }
}

fn swap_code(swap: Swap, size: Size) -> Code {
    let is_kept = match swap {
        Swap::Little => cfg!(target_endian = "little"),
        Swap::Big => cfg!(target_endian = "big"),
        Swap::Reverse => false,
    };
    match (is_kept, size) {
        (true, Size::B2) => Code::Low16,
        (true, Size::B4) => Code::Low32,
        (false, Size::B2) => Code::Reverse16,
        (false, Size::B4) => Code::Reverse32,
        (false, Size::B8) => Code::Reverse64,
        (true, Size::B8) | (_, Size::B1) => Code::Nothing,
    }
}

fn access(op: Op) -> Step {
    use Code::*;
    let by_size = |size: Size, [one, two, four, eight]: [Code; 4]| match size {
        Size::B1 => one,
        Size::B2 => two,
        Size::B4 => four,
        Size::B8 => eight,
    };
    let (step, off) = match op {
        Op::Load {
            size,
            signed,
            dst,
            src,
            off,
        } => {
            let codes = if signed {
                [LoadSigned8, LoadSigned16, LoadSigned32, Load64]
            } else {
                [Load8, Load16, Load32, Load64]
            };
            (registers(by_size(size, codes), dst, src), off)
        }
        Op::Store {
            size,
            dst,
            src,
            off,
        } => {
            let codes = match src {
                Operand::Reg(_) => [StoreX8, StoreX16, StoreX32, StoreX64],
                Operand::Imm(_) => [StoreK8, StoreK16, StoreK32, StoreK64],
            };
            (operation(by_size(size, codes), true, dst, src), off)
        }
        Op::LoadAcquire {
            size,
            dst,
            src,
            off,
        } => {
            let codes = [LoadAcquire8, LoadAcquire16, LoadAcquire32, LoadAcquire64];
            (registers(by_size(size, codes), dst, src), off)
        }
        Op::StoreRelease {
            size,
            dst,
            src,
            off,
        } => {
            let codes = [
                StoreRelease8,
                StoreRelease16,
                StoreRelease32,
                StoreRelease64,
            ];
            (registers(by_size(size, codes), dst, src), off)
        }
        Op::Atomic {
            op,
            fetch,
            wide,
            dst,
            src,
            off,
        } => {
            let step = registers(if wide { Atomic64 } else { Atomic32 }, dst, src);
            let imm = op as u64 * 2 + u64::from(fetch);
            (Step { imm, ..step }, off)
        }
        _ => (HOLE, 0),
    };
    Step {
        at: i32::from(off).cast_unsigned(),
        ..step
    }
}

/// Returns the operation of an atomic step, and whether it fetches; the inverse of the encoding in
/// [`Step::imm`].
pub(super) fn fetching(imm: u64) -> (Atomic, bool) {
    const OPS: [Atomic; 6] = [
        Atomic::Add,
        Atomic::Or,
        Atomic::And,
        Atomic::Xor,
        Atomic::Exchange,
        Atomic::CompareExchange,
    ];
    let op = OPS.get((imm / 2) as usize).copied();
    (op.unwrap_or(Atomic::Add), !imm.is_multiple_of(2))
}

fn immediate(kind: Imm64, low: i32, high: i32, target: u32) -> Step {
    let (low, high) = (low.cast_unsigned(), u64::from(high.cast_unsigned()));
    let (code, at, imm) = match kind {
        Imm64::Number => (Code::Number, 0, high << 32 | u64::from(low)),
        Imm64::Map => (Code::Map, low, 0),
        Imm64::MapValue => (Code::MapValue, low, high),
        Imm64::Function => (Code::Function, target, 0),
        Imm64::KernelVariable => (Code::KernelVariable, low, 0),
        Imm64::MapIndex | Imm64::MapIndexValue => (Code::MapIndex, low, 0),
    };
    Step {
        code,
        at,
        imm,
        ..HOLE
    }
}

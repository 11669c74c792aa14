//! The operations of instructions.

use core::fmt;

use beeline_uapi::HelperId;

use crate::opcode::{B, H, SIZE_MASK, W};

/// A defined instruction.
///
/// Registers are 0 to 10; a written register is never r10. `wide` is true for operations on 64
/// bits. Operations that are not wide use the low halves and clear the high half of the register
/// they write. `off` counts bytes in loads and stores, slots in jumps and calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are those of the formulas")]
pub enum Op {
    /// `dst = dst op src`.
    Alu {
        op: Alu,
        wide: bool,
        dst: u8,
        src: Operand,
    },
    /// `dst = src`; immediates are sign-extended if wide.
    Move { wide: bool, dst: u8, src: Operand },
    /// `dst = src`, sign-extended from `from` (never 64 bits, nor 32 if not wide).
    MoveSigned {
        wide: bool,
        dst: u8,
        src: u8,
        from: Size,
    },
    /// `dst = -dst`.
    Neg { wide: bool, dst: u8 },
    /// The low 2, 4 or 8 bytes of `dst` in another order, the rest cleared.
    Swap { swap: Swap, dst: u8, size: Size },
    /// `dst = *(src + off)`, sign-extended or else zero-extended.
    Load {
        size: Size,
        signed: bool,
        dst: u8,
        src: u8,
        off: i16,
    },
    /// `*(dst + off) = src`.
    Store {
        size: Size,
        dst: u8,
        src: Operand,
        off: i16,
    },
    /// Reads, changes and writes `*(dst + off)` as one step.
    ///
    /// With `fetch` the old value goes to `src`, or for a compare and exchange to r0.
    Atomic {
        op: Atomic,
        fetch: bool,
        wide: bool,
        dst: u8,
        src: u8,
        off: i16,
    },
    /// `dst = *(src + off)` with acquire order.
    LoadAcquire {
        size: Size,
        dst: u8,
        src: u8,
        off: i16,
    },
    /// `*(dst + off) = src` with release order.
    StoreRelease {
        size: Size,
        dst: u8,
        src: u8,
        off: i16,
    },
    /// The first slot of a 64-bit immediate, with its low half in `low`.
    ///
    /// The `imm` of the next slot is the high half.
    Imm64 { kind: Imm64, dst: u8, low: i32 },
    /// Continues `off` slots after the next one.
    Jump { off: i32 },
    /// Continues `off` slots after the next one if the condition holds.
    Branch {
        cond: Cond,
        wide: bool,
        dst: u8,
        src: Operand,
        off: i16,
    },
    /// Goes on, and counts, up to [`MAY_GOTO_LIMIT`](crate::MAY_GOTO_LIMIT) times in a run of its
    /// function, all of the function's together.
    ///
    /// From then on it continues `off` slots after the next one.
    MayGoto { off: i16 },
    /// `r0 = helper(r1..r5)`.
    CallHelper { id: HelperId },
    /// Calls the function `off` slots after the next slot.
    CallLocal { off: i32 },
    /// Calls a kernel function by the BTF id of its type.
    CallKernel { btf_id: i32 },
    /// The replacement by libbpf of an instruction that it could not relocate, or of the call of a
    /// missing weak function (`imm` 0).
    ///
    /// It must not be reached.
    Poison { imm: i32 },
    /// Returns r0.
    Exit,
}

/// The second operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operand {
    /// A register's value.
    Reg(u8),
    /// A constant, sign-extended to the operation's width.
    Imm(i32),
}

/// Two-operand arithmetic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Alu {
    Add,
    Sub,
    Mul,
    /// Unsigned; 0 if the divisor is 0.
    Div,
    /// Signed, towards zero; 0 if the divisor is 0; the smallest number by -1 is itself.
    SignedDiv,
    /// Unsigned; the dividend if the divisor is 0.
    Mod,
    /// Has the dividend's sign; the dividend if the divisor is 0; 0 if it is -1.
    SignedMod,
    Or,
    And,
    Xor,
    /// Shift counts are taken modulo the width.
    Lsh,
    Rsh,
    /// Arithmetic right shift.
    Arsh,
}

/// Byte orders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Swap {
    /// To or from little endian.
    Little,
    /// To or from big endian.
    Big,
    /// Always reversed.
    Reverse,
}

/// Atomic read-modify-write operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Atomic {
    Add,
    Or,
    And,
    Xor,
    /// Always fetches.
    Exchange,
    /// Writes `src` if the old value equals r0; the old value goes to r0.
    CompareExchange,
}

/// Conditions of a branch: `dst cond src`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Cond {
    Equal,
    NotEqual,
    Greater,
    GreaterEqual,
    Less,
    LessEqual,
    SignedGreater,
    SignedGreaterEqual,
    SignedLess,
    SignedLessEqual,
    /// `dst & src != 0`.
    AnySet,
}

/// Width of an access.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Size {
    /// 1 byte.
    B1,
    /// 2 bytes.
    B2,
    /// 4 bytes.
    B4,
    /// 8 bytes.
    B8,
}

/// The meaning of a 64-bit immediate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Imm64 {
    /// Itself.
    Number,
    /// A map: `low` is its descriptor (after resolution: its index), the high half is 0.
    Map,
    /// Memory of a map's first value: `low` is the map, the high half the offset in bytes.
    MapValue,
    /// A kernel variable by BTF id.
    KernelVariable,
    /// A function of this program, `low` slots after the next slot.
    Function,
    /// Like [`Imm64::Map`]; `low` is an index into the `fd_array` of the load.
    MapIndex,
    /// Like [`Imm64::MapValue`]; `low` is an index into the `fd_array` of the load.
    MapIndexValue,
}

/// The reasons why eight bytes are not an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadInsn {
    /// The opcode byte is not defined.
    Opcode,
    /// A field that this opcode does not use is not zero, or one that selects a variant has an
    /// unknown value.
    Reserved,
    /// r11 to r15.
    Register(u8),
    /// r10 would be written.
    FramePointer,
    /// `BPF_LD_ABS`, `BPF_LD_IND`: packet access of classic BPF.
    Packet,
    /// A field of `may_goto` that must be 0 is not.
    MayGoto,
}

impl fmt::Display for BadInsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Opcode => f.write_str("unknown opcode"),
            Self::Reserved => f.write_str("instruction uses reserved fields"),
            Self::Register(register) => write!(f, "R{register} is invalid"),
            Self::FramePointer => f.write_str("frame pointer is read only"),
            Self::Packet => {
                f.write_str("BPF_LD_[ABS|IND] instructions not allowed for this program type")
            }
            Self::MayGoto => f.write_str("invalid may_goto"),
        }
    }
}

impl core::error::Error for BadInsn {}

impl Size {
    /// Returns the width in bytes.
    pub const fn bytes(self) -> u8 {
        match self {
            Self::B1 => 1,
            Self::B2 => 2,
            Self::B4 => 4,
            Self::B8 => 8,
        }
    }

    pub(crate) const fn of_code(code: u8) -> Self {
        match code & SIZE_MASK {
            B => Self::B1,
            H => Self::B2,
            W => Self::B4,
            _ => Self::B8,
        }
    }

    pub(crate) const fn of_bits(bits: i32) -> Option<Self> {
        match bits {
            8 => Some(Self::B1),
            16 => Some(Self::B2),
            32 => Some(Self::B4),
            64 => Some(Self::B8),
            _ => None,
        }
    }
}

impl Op {
    /// Returns the register to which this operation gives a new value; calls also destroy r1 to r5.
    pub fn written(&self) -> Option<u8> {
        match *self {
            Self::Alu { dst, .. }
            | Self::Move { dst, .. }
            | Self::MoveSigned { dst, .. }
            | Self::Neg { dst, .. }
            | Self::Swap { dst, .. }
            | Self::Load { dst, .. }
            | Self::LoadAcquire { dst, .. }
            | Self::Imm64 { dst, .. } => Some(dst),
            Self::Atomic {
                op: Atomic::CompareExchange,
                ..
            } => Some(0),
            Self::Atomic {
                fetch: true, src, ..
            } => Some(src),
            Self::CallHelper { .. } | Self::CallLocal { .. } | Self::CallKernel { .. } => Some(0),
            _ => None,
        }
    }

    /// Returns the registers with values that this operation uses, at most three, if it is not a
    /// call.
    pub fn read(&self) -> impl Iterator<Item = u8> + use<> {
        let reg = |operand| {
            if let Operand::Reg(register) = operand {
                Some(register)
            } else {
                None
            }
        };
        let registers = match *self {
            Self::Alu { dst, src, .. }
            | Self::Store { dst, src, .. }
            | Self::Branch { dst, src, .. } => [Some(dst), reg(src), None],
            Self::Move { src, .. } => [reg(src), None, None],
            Self::MoveSigned { src, .. }
            | Self::Load { src, .. }
            | Self::LoadAcquire { src, .. } => [Some(src), None, None],
            Self::Neg { dst, .. } | Self::Swap { dst, .. } => [Some(dst), None, None],
            Self::Atomic {
                op: Atomic::CompareExchange,
                dst,
                src,
                ..
            } => [Some(dst), Some(src), Some(0)],
            Self::Atomic { dst, src, .. } | Self::StoreRelease { dst, src, .. } => {
                [Some(dst), Some(src), None]
            }
            Self::Exit => [Some(0), None, None],
            _ => [None, None, None],
        };
        registers.into_iter().flatten()
    }
}

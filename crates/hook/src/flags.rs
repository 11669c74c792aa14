//! Which processor flags a hook has to keep.

use iced_x86::{FlowControl, Instruction, Mnemonic, Register, RflagsBits};

use crate::survey::Survey;

/// What of the flags register is still wanted behind a site.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flags {
    /// Nothing: all is written before it is read, or the calling convention says so.
    Dead,
    /// The arithmetic flags: carry, parity, adjust, zero, sign, overflow. The direction flag is clear.
    Arithmetic,
    /// The arithmetic flags, and the direction flag may be set.
    All,
}

impl Flags {
    /// Is there anything to keep?
    pub fn live(self) -> bool {
        self != Self::Dead
    }
}

const ARITHMETIC: u32 = RflagsBits::OF
    | RflagsBits::SF
    | RflagsBits::ZF
    | RflagsBits::AF
    | RflagsBits::CF
    | RflagsBits::PF;

/// What has to be kept at the instruction of that index. `by_call` says that only calls lead there, and the
/// calling convention defines no arithmetic flag and a clear direction flag for those.
pub(crate) fn needed(survey: &Survey, index: usize, by_call: bool) -> Flags {
    let sets_direction = |instruction: &Instruction| {
        matches!(
            instruction.mnemonic(),
            Mnemonic::Std | Mnemonic::Popf | Mnemonic::Popfd | Mnemonic::Popfq
        )
    };
    if !by_call && survey.instructions.iter().any(sets_direction) {
        return Flags::All;
    }
    if arithmetic_live(
        survey.instructions.get(index..).unwrap_or_default(),
        by_call,
    ) {
        Flags::Arithmetic
    } else {
        Flags::Dead
    }
}

/// Is an arithmetic flag read before it is written? `undecided` is the answer where the straight line ends early:
/// at a function's entry nothing can be wanted that no instruction there has read yet.
fn arithmetic_live(line: &[Instruction], by_call: bool) -> bool {
    let undecided = !by_call;
    let mut open = ARITHMETIC;
    for instruction in line {
        if instruction.rflags_read() & open != 0 {
            return true;
        }
        if instruction.flow_control() != FlowControl::Next {
            return undecided;
        }
        if always_writes(instruction) {
            open &= !instruction.rflags_modified();
        }
        if open == 0 {
            return false;
        }
    }
    undecided
}

/// A shift by a register, or a repeated string instruction, whose count is zero leaves the flags alone.
fn always_writes(instruction: &Instruction) -> bool {
    let repeated = instruction.has_rep_prefix() || instruction.has_repne_prefix();
    let by_count = matches!(
        instruction.mnemonic(),
        Mnemonic::Rcl
            | Mnemonic::Rcr
            | Mnemonic::Rol
            | Mnemonic::Ror
            | Mnemonic::Sal
            | Mnemonic::Sar
            | Mnemonic::Shl
            | Mnemonic::Shld
            | Mnemonic::Shr
            | Mnemonic::Shrd
    ) && instruction.op_register(instruction.op_count().saturating_sub(1))
        == Register::CL;
    !repeated && !by_count
}

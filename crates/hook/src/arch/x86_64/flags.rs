//! The liveness of the processor's flags.

use iced_x86::{FlowControl, Mnemonic, Register, RflagsBits};

use super::instruction::Instruction;
use crate::flags::Flags;
use crate::survey::Survey;

const ARITHMETIC: u32 = RflagsBits::OF
    | RflagsBits::SF
    | RflagsBits::ZF
    | RflagsBits::AF
    | RflagsBits::CF
    | RflagsBits::PF;

/// Returns the flags to keep at the instruction of that index. `by_call` says that only calls lead
/// there; the calling convention then defines no arithmetic flag and a clear direction flag.
pub(crate) fn flags_needed(survey: &Survey, index: usize, by_call: bool) -> Flags {
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

fn sets_direction(instruction: &Instruction) -> bool {
    matches!(
        instruction.decoded().mnemonic(),
        Mnemonic::Std | Mnemonic::Popf | Mnemonic::Popfd | Mnemonic::Popfq
    )
}

/// Returns the flags that may be read behind the `syscall` of that index and were set before it.
pub(crate) fn flags_wanted_behind_call(survey: &Survey, index: usize) -> Flags {
    if direction_may_be_set(survey, index) {
        return Flags::All;
    }
    match arithmetic_wanted_behind_call(survey, index) {
        true => Flags::Arithmetic,
        false => Flags::Dead,
    }
}

/// True if an arithmetic flag is wanted behind a call. Returns, calls and jumps to other functions
/// end the search, as the calling convention hands on no arithmetic flags.
fn arithmetic_wanted_behind_call(survey: &Survey, index: usize) -> bool {
    let mut open = ARITHMETIC;
    let mut next = index + 1;
    // A longer path without a write is a loop that has none.
    for _ in 0..survey.instructions.len() {
        let Some(instruction) = survey.instructions.get(next) else {
            return false;
        };
        next += 1;
        if instruction.is_system_call() {
            continue;
        }
        if instruction.decoded().rflags_read() & open != 0 {
            return true;
        }
        if always_writes(instruction) {
            open &= !instruction.decoded().rflags_modified();
        }
        if open == 0 {
            return false;
        }
        match instruction.decoded().flow_control() {
            FlowControl::Next => {}
            FlowControl::UnconditionalBranch => {
                match survey.index_of(instruction.decoded().near_branch_target()) {
                    Some(target) => next = target,
                    None => return false,
                }
            }
            FlowControl::IndirectBranch | FlowControl::ConditionalBranch => return true,
            _ => return false,
        }
    }
    false
}

/// True if the direction flag is set in the straight line that leads to the instruction of that
/// index. The calling convention has it clear, and no code makes a system call while it works
/// backwards.
fn direction_may_be_set(survey: &Survey, index: usize) -> bool {
    let before = survey.instructions.get(..index).unwrap_or_default();
    before
        .iter()
        .rev()
        .take_while(|instruction| !instruction.ends_flow())
        .map(|instruction| instruction.decoded().mnemonic())
        .find(|mnemonic| matches!(mnemonic, Mnemonic::Std | Mnemonic::Cld))
        .is_some_and(|mnemonic| mnemonic == Mnemonic::Std)
}

/// True if an arithmetic flag is read before it is written. `undecided` is the answer where the
/// straight line ends early: at a function's entry nothing can be wanted that no instruction there
/// has read yet.
fn arithmetic_live(line: &[Instruction], by_call: bool) -> bool {
    let undecided = !by_call;
    let mut open = ARITHMETIC;
    for instruction in line {
        if instruction.decoded().rflags_read() & open != 0 {
            return true;
        }
        if !instruction.runs_on() {
            return undecided;
        }
        if always_writes(instruction) {
            open &= !instruction.decoded().rflags_modified();
        }
        if open == 0 {
            return false;
        }
    }
    undecided
}

/// False for a shift by a register, or a repeated string instruction, which leaves the flags alone
/// if its count is zero.
fn always_writes(instruction: &Instruction) -> bool {
    let instruction = instruction.decoded();
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

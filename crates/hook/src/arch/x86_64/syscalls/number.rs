//! The number of a system call, where the code says it.

use std::ops::RangeInclusive;

use iced_x86::{
    FlowControl, Instruction as Decoded, InstructionInfoFactory, Mnemonic, OpAccess, OpKind,
    Register,
};

use crate::arch::x86_64::instruction::Instruction;
use crate::survey::Survey;
use crate::syscalls::Targets;

/// The most bytes before a `syscall` that are looked at for its number.
pub(crate) const CALL_NUMBER_WITHIN: u64 = 96;

/// The known contents of general registers, by the numbers of the processor's encoding.
type Known = [Option<u64>; 16];

/// Returns what eax holds whenever the instruction of that index is reached.
pub(crate) fn call_number_before(survey: &Survey, index: usize, targets: &Targets) -> Option<u32> {
    let site = survey.instructions.get(index)?.address();
    let first = survey.instructions.partition_point(|instruction| {
        instruction.address() < site.saturating_sub(CALL_NUMBER_WITHIN)
    });
    let mut known: Known = [None; 16];
    let mut pushed = None;
    let mut info = InstructionInfoFactory::new();
    for instruction in &survey.instructions[first..index] {
        if targets.holds(instruction.address()) {
            known = [None; 16];
            pushed = None;
        }
        pushed = step(instruction, &mut known, pushed, &mut info);
    }
    if targets.holds(site) {
        return None;
    }
    known[0].map(|value| value as u32)
}

/// Follows one instruction. Takes and returns the constant that is on top of the stack, if the last
/// instruction pushed one.
fn step(
    instruction: &Instruction,
    known: &mut Known,
    pushed: Option<u64>,
    info: &mut InstructionInfoFactory,
) -> Option<u64> {
    if instruction.ends_flow() {
        *known = [None; 16];
        return None;
    }
    let is_call = instruction.is_system_call();
    let instruction = instruction.decoded();
    if !is_call
        && instruction.flow_control() != FlowControl::Next
        && instruction.flow_control() != FlowControl::ConditionalBranch
    {
        // A call keeps some registers, but perhaps not this one.
        *known = [None; 16];
        return None;
    }
    if instruction.mnemonic() == Mnemonic::Push {
        let whole_word = instruction.stack_pointer_increment() == -8;
        return instruction.try_immediate(0).ok().filter(|_| whole_word);
    }
    let value = value_of(instruction, known, pushed);
    for used in info.info(instruction).used_registers() {
        let writes = matches!(
            used.access(),
            OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite
        );
        if writes && let Some(slot) = slot(known, used.register()) {
            *slot = None;
        }
    }
    if let (Some(value), Some(slot)) = (value, slot(known, instruction.op0_register())) {
        *slot = Some(value);
    }
    None
}

/// Returns the value that the instruction puts into its first operand, a whole register.
fn value_of(instruction: &Decoded, known: &Known, pushed: Option<u64>) -> Option<u64> {
    if instruction.op_count() == 0 || instruction.op0_kind() != OpKind::Register {
        return None;
    }
    let to = instruction.op0_register();
    let value = match instruction.mnemonic() {
        Mnemonic::Mov if instruction.op1_kind() == OpKind::Register => {
            known[number(instruction.op1_register())?]
        }
        Mnemonic::Mov => instruction.try_immediate(1).ok(),
        Mnemonic::Xor | Mnemonic::Sub
            if instruction.op1_kind() == OpKind::Register && instruction.op1_register() == to =>
        {
            Some(0)
        }
        Mnemonic::Pop => pushed,
        _ => None,
    }?;
    match to.size() {
        8 => Some(value),
        4 => Some(value & u64::from(u32::MAX)),
        _ => None,
    }
}

/// Returns the number of a 32-bit or 64-bit general register.
fn number(register: Register) -> Option<usize> {
    matches!(register.size(), 4 | 8)
        .then(|| whole(register))
        .flatten()
}

fn slot(known: &mut Known, register: Register) -> Option<&mut Option<u64>> {
    known.get_mut(whole(register)?)
}

/// Returns the number of the general register that it is, or is a part of.
fn whole(register: Register) -> Option<usize> {
    let full = register.full_register();
    full.is_gpr64().then(|| full.number())
}

/// `mov eax, imm32` and `mov rax, imm32`, up to the number.
const MOVES: [&[u8]; 2] = [&[0xb8], &[0x48, 0xc7, 0xc0]];
/// REX prefixes, and the one for operands of 16 bits.
const PREFIXES: RangeInclusive<u8> = 0x40..=0x4f;
const NARROW: u8 = 0x66;
/// Bytes of a number.
const NUMBER: usize = 4;
/// Numbers of system calls are below this: the bytes can then hardly be anything else.
const NUMBERS: u32 = 512;

/// Returns the start of the instruction right before, if it loads the number of a call, and the
/// number.
pub(crate) fn call_number_right_before(code: &[u8], call: usize) -> Option<(usize, u32)> {
    let at = call.checked_sub(NUMBER)?;
    let number = u32::from_le_bytes(code.get(at..call)?.try_into().ok()?);
    // The longer one first: the shorter one's bytes may be the end of others.
    let is_move = |bytes: &&&[u8]| code.get(..at).is_some_and(|before| before.ends_with(bytes));
    let bytes = MOVES.iter().rev().find(is_move)?;
    // With a prefix the short one moves to another register, or is longer.
    let before = code[..at - bytes.len()].last();
    if bytes.len() == 1 && before.is_some_and(|byte| PREFIXES.contains(byte) || *byte == NARROW) {
        return None;
    }
    (number < NUMBERS).then_some((at - bytes.len(), number))
}

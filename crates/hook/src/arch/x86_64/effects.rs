//! The effects of an instruction on registers.

use iced_x86::{
    Instruction as Decoded, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register,
};

use super::instruction::Instruction;
use super::registers::Registers;

/// Returns the number that undoes what the instruction does to the stack pointer, and the registers
/// that it changes. `None` if the stack pointer is unknown.
pub(super) fn effects(instruction: &Instruction) -> Option<(i32, Registers)> {
    let instruction = instruction.decoded();
    let mut factory = InstructionInfoFactory::new();
    let mut lost = Registers::NONE;
    let mut moves_stack = false;
    for used in factory.info(instruction).used_registers() {
        let writes = !matches!(
            used.access(),
            OpAccess::None | OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess
        );
        let register = used.register();
        if !writes || !register.is_gpr() {
            continue;
        }
        match register.full_register() {
            Register::RSP => moves_stack = true,
            _ => lost = lost | Registers::of(register),
        }
    }
    let stack = match moves_stack {
        false => 0,
        true => -stack_change(instruction)?,
    };
    Some((stack, lost))
}

fn stack_change(instruction: &Decoded) -> Option<i32> {
    let is_rsp = |operand: u32| {
        instruction.op_kind(operand) == OpKind::Register
            && instruction.op_register(operand) == Register::RSP
    };
    match instruction.mnemonic() {
        Mnemonic::Push | Mnemonic::Pop | Mnemonic::Pushfq | Mnemonic::Popfq
            if !is_rsp(0) || instruction.mnemonic() == Mnemonic::Push =>
        {
            Some(instruction.stack_pointer_increment())
        }
        Mnemonic::Sub | Mnemonic::Add
            if is_rsp(0)
                && instruction.op_kind(1) != OpKind::Register
                && instruction.op_kind(1) != OpKind::Memory =>
        {
            let amount = i32::try_from(instruction.immediate(1).cast_signed()).ok()?;
            if instruction.mnemonic() == Mnemonic::Add {
                Some(amount)
            } else {
                amount.checked_neg()
            }
        }
        Mnemonic::Lea
            if is_rsp(0)
                && instruction.memory_base() == Register::RSP
                && instruction.memory_index() == Register::None =>
        {
            i32::try_from(instruction.memory_displacement64().cast_signed()).ok()
        }
        _ => None,
    }
}

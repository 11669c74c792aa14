//! The registers of eBPF: variables on the stack.

use beeline_isa::{FRAME_POINTER, Operand};
use inkwell::types::IntType;
use inkwell::values::{FunctionValue, IntValue, PointerValue};

use super::Translation;
use super::ir::Ir;
use crate::trouble::Trouble;

/// The registers of a function, and the instructions that work on them alone. Arithmetic and
/// accesses to memory are in modules of their own.
pub(super) struct Registers<'a, 'c> {
    pub(super) program: &'a Translation<'a, 'c>,
    pub(super) ir: &'a Ir<'c>,
    /// r0 to r9.
    variables: Vec<PointerValue<'c>>,
    /// The end of the eBPF stack, r10.
    pub(super) frame: PointerValue<'c>,
}

impl<'a, 'c> Registers<'a, 'c> {
    /// Declares the variables of r0 to r9.
    pub(super) fn variables(ir: &Ir<'c>) -> Result<Vec<PointerValue<'c>>, Trouble> {
        let long = ir.types.long;
        let variables = (0..FRAME_POINTER).map(|_| ir.builder.build_alloca(long, ""));
        Ok(variables.collect::<Result<_, _>>()?)
    }

    pub(super) fn new(
        program: &'a Translation<'a, 'c>,
        variables: Vec<PointerValue<'c>>,
        frame: PointerValue<'c>,
    ) -> Self {
        Self {
            program,
            ir: &program.ir,
            variables,
            frame,
        }
    }

    /// Sets the registers to the arguments; for the entry to the context, with the second argument
    /// in r2, whatever it is. The rest is 0.
    pub(super) fn initialise(
        &self,
        function: FunctionValue<'c>,
        is_entry: bool,
    ) -> Result<(), Trouble> {
        let builder = &self.ir.builder;
        let long = self.ir.types.long;
        for register in 0..FRAME_POINTER {
            let argument = u32::from(register).checked_sub(1);
            let argument = argument.and_then(|number| function.get_nth_param(number));
            let value = match argument {
                Some(argument) if argument.is_pointer_value() && is_entry => {
                    builder.build_ptr_to_int(argument.into_pointer_value(), long, "")?
                }
                Some(argument) if argument.is_int_value() => argument.into_int_value(),
                _ => long.const_zero(),
            };
            self.write(register, value)?;
        }
        Ok(())
    }

    pub(super) fn read(&self, register: u8) -> Result<IntValue<'c>, Trouble> {
        let builder = &self.ir.builder;
        let long = self.ir.types.long;
        match self.variables.get(usize::from(register)) {
            Some(&variable) => Ok(builder.build_load(long, variable, "")?.into_int_value()),
            None => Ok(builder.build_ptr_to_int(self.frame, long, "")?),
        }
    }

    /// Reads a register's low bits, or all.
    pub(super) fn read_as(&self, register: u8, ty: IntType<'c>) -> Result<IntValue<'c>, Trouble> {
        let builder = &self.ir.builder;
        let value = self.read(register)?;
        Ok(builder.build_int_truncate_or_bit_cast(value, ty, "")?)
    }

    /// Sets a register; shorter values are zero-extended.
    pub(super) fn write(&self, register: u8, value: IntValue<'c>) -> Result<(), Trouble> {
        let builder = &self.ir.builder;
        if let Some(&variable) = self.variables.get(usize::from(register)) {
            let long = self.ir.types.long;
            let value = builder.build_int_z_extend_or_bit_cast(value, long, "")?;
            builder.build_store(variable, value)?;
        }
        Ok(())
    }

    /// Reads an operand of 64 or 32 bits; immediates are sign-extended.
    pub(super) fn operand(&self, operand: Operand, wide: bool) -> Result<IntValue<'c>, Trouble> {
        let width = self.ir.width(wide);
        match operand {
            Operand::Reg(register) => self.read_as(register, width),
            Operand::Imm(imm) => Ok(width.const_int(i64::from(imm).cast_unsigned(), true)),
        }
    }

    /// Sets `r0 = value`; the registers that a call destroys are no longer of interest.
    pub(super) fn after_call(&self, value: IntValue<'c>) -> Result<(), Trouble> {
        for register in 1..=5 {
            self.write(register, self.ir.types.long.const_zero())?;
        }
        self.write(0, value)
    }
}

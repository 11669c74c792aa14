//! The run: all that code reaches besides its context and its stack.

use beeline_codegen::Error;
use beeline_isa::abi::{CONTEXT_CPU, HELPER_SLOTS, MAX_MAPS, RUN_HELPERS, RUN_VALUES};
use inkwell::values::{IntValue, PointerValue};

use super::ir::Ir;
use crate::trouble::Trouble;

/// Loads from the run of a function, which is its last argument.
pub(super) struct Run<'a, 'c> {
    pub(super) ir: &'a Ir<'c>,
    pub(super) pointer: PointerValue<'c>,
}

impl<'c> Run<'_, 'c> {
    /// Loads a field of 8 bytes.
    pub(super) fn field(&self, offset: usize) -> Result<IntValue<'c>, Trouble> {
        self.ir.load_long(self.pointer, offset as i64)
    }

    /// Like [`Self::field`], for a pointer.
    pub(super) fn pointer_field(&self, offset: usize) -> Result<PointerValue<'c>, Trouble> {
        self.ir.load_pointer(self.pointer, offset as i64)
    }

    /// Loads the CPU's number.
    pub(super) fn cpu(&self) -> Result<IntValue<'c>, Trouble> {
        self.ir.load_word(self.pointer, CONTEXT_CPU)
    }

    /// Loads the address of a helper, which an instruction calls.
    pub(super) fn helper(&self, insn: usize, id: u32) -> Result<PointerValue<'c>, Trouble> {
        if id as usize >= HELPER_SLOTS {
            return Err(Error::NoSuchHelper { insn, id }.into());
        }
        let table = self.pointer_field(RUN_HELPERS)?;
        self.ir.load_pointer(table, i64::from(id) * 8)
    }

    /// Returns `run.table[index]`.
    pub(super) fn table_entry(
        &self,
        insn: usize,
        table: usize,
        index: i32,
    ) -> Result<IntValue<'c>, Trouble> {
        if !(0..MAX_MAPS).contains(&index) {
            return Err(Error::NoSuchMap { insn, index }.into());
        }
        let table = self.ir.load_pointer(self.pointer, table as i64)?;
        self.ir.load_long(table, i64::from(index) * 8)
    }

    /// Returns `values[map] + cpu * cpu_stride`.
    pub(super) fn first_value(
        &self,
        index: usize,
        map: u32,
        cpu_stride: u32,
    ) -> Result<IntValue<'c>, Trouble> {
        let map = i32::try_from(map).unwrap_or(-1);
        let first = self.table_entry(index, RUN_VALUES, map)?;
        if cpu_stride == 0 {
            return Ok(first);
        }
        let (builder, cpu) = (&self.ir.builder, self.cpu()?);
        let offset = builder.build_int_mul(cpu, self.ir.number(cpu_stride), "")?;
        Ok(builder.build_int_add(first, offset, "")?)
    }
}

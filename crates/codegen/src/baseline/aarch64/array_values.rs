//! The addresses of an array map's values, in place of the calls that look them up.

use beeline_isa::abi::RUN_VALUES;

use super::assembler::{Access, Condition, Reg, Three, ZR};
use super::macro_assembler::MacroAssembler;
use super::registers::home;

/// The values of an array map.
#[derive(Clone, Copy)]
pub(crate) struct ArrayValues {
    /// The map's index.
    pub(crate) map: u32,
    /// The bytes between two CPUs' values; 0 if the CPUs share the value.
    pub(crate) cpu_stride: u32,
}

impl ArrayValues {
    /// Emits `r0 = values + cpu * cpu_stride + offset`.
    pub(crate) fn at(self, masm: &mut MacroAssembler, offset: u32) {
        let r0 = home(0);
        self.first(masm, r0);
        if offset != 0 {
            masm.add_offset(r0, r0, offset.cast_signed());
        }
    }

    /// Emits `r0 = key < entries ? values + cpu * cpu_stride + key * stride : 0`.
    pub(crate) fn element(self, masm: &mut MacroAssembler, entries: u32, stride: u32) {
        let (r0, key) = (home(0), masm.scratch(3));
        let _always = masm.asm.access(Access::Load, 2, key, home(2), 0);
        self.first(masm, r0);
        masm.add_multiple(r0, key, stride);
        masm.null_unless_below(key, entries);
    }

    /// Emits `r0 = key < entries && r3 < cpus ? values + r3 * cpu_stride + key * stride : 0`.
    pub(crate) fn element_of_cpu(
        self,
        masm: &mut MacroAssembler,
        entries: u32,
        stride: u32,
        cpus: u32,
    ) {
        let (r0, key, cpu) = (home(0), masm.scratch(3), masm.scratch(2));
        let of_first_cpu = Self {
            cpu_stride: 0,
            ..self
        };
        let _always = masm.asm.access(Access::Load, 2, key, home(2), 0);
        of_first_cpu.first(masm, r0);
        masm.asm.mov(false, cpu, home(3));
        masm.add_multiple(r0, cpu, self.cpu_stride);
        masm.add_multiple(r0, key, stride);
        masm.null_unless_below(key, entries);
        masm.null_unless_below(cpu, cpus);
    }

    /// Emits `d = values + cpu * cpu_stride`.
    fn first(self, masm: &mut MacroAssembler, d: Reg) {
        masm.table_entry(RUN_VALUES, d, self.map.cast_signed());
        if self.cpu_stride != 0 {
            let cpu = masm.scratch(2);
            masm.cpu(cpu);
            masm.add_multiple(d, cpu, self.cpu_stride);
        }
    }
}

impl MacroAssembler {
    /// Emits `r0 = 0` unless a number is below a limit.
    fn null_unless_below(&mut self, number: Reg, limit: u32) {
        let limit = self.operand(limit.into());
        self.asm.three(Three::Subs, false, ZR, number, limit);
        self.asm.csel(home(0), home(0), ZR, Condition::Lo);
    }
}

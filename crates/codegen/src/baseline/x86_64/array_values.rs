//! The addresses of an array map's values, in place of the calls that look them up.

use beeline_isa::abi::{CONTEXT_CPU, RUN_VALUES};
use iced_x86::IcedError;
use iced_x86::code_asm::*;

use super::macro_assembler::MacroAssembler;
use super::registers::RUN;

/// The values of an array map.
#[derive(Clone, Copy)]
pub(crate) struct ArrayValues {
    /// The map's index.
    pub(crate) map: u32,
    /// The bytes between two CPUs' values; 0 if the CPUs share the value.
    pub(crate) cpu_stride: u32,
}

impl ArrayValues {
    /// Emits `rax = values + cpu * cpu_stride + offset`.
    pub(crate) fn at(self, masm: &mut MacroAssembler, offset: u32) -> Result<(), IcedError> {
        self.first(masm, rax)?;
        if offset == 0 {
            return Ok(());
        }
        masm.asm.add(rax, offset.cast_signed())
    }

    /// Emits `rax = key < entries ? values + cpu * cpu_stride + key * stride : 0`.
    pub(crate) fn element(
        self,
        masm: &mut MacroAssembler,
        entries: u32,
        stride: u32,
    ) -> Result<(), IcedError> {
        masm.asm.mov(eax, dword_ptr(rsi))?;
        self.first(masm, rdi)?;
        masm.clobber(rsi);
        masm.asm.mov(esi, eax)?;
        masm.add_multiple(rdi, rsi, stride)?;
        masm.asm.cmp(eax, entries.cast_signed())?;
        masm.asm.mov(eax, 0)?;
        masm.asm.cmovb(rax, rdi)
    }

    /// Emits `rax = key < entries && r3 < cpus ? values + r3 * cpu_stride + key * stride : 0`.
    pub(crate) fn element_of_cpu(
        self,
        masm: &mut MacroAssembler,
        entries: u32,
        stride: u32,
        cpus: u32,
    ) -> Result<(), IcedError> {
        let of_first_cpu = Self {
            cpu_stride: 0,
            ..self
        };
        of_first_cpu.element(masm, entries, stride)?;
        masm.clobber(rcx);
        masm.asm.mov(ecx, edx)?;
        masm.clobber(rdi);
        masm.asm.xor(edi, edi)?;
        // Without an element there is none for any CPU either.
        masm.asm.cmp(edx, cpus.cast_signed())?;
        masm.asm.cmovae(rax, rdi)?;
        masm.asm.mov(rdi, rax)?;
        masm.add_multiple(rax, rcx, self.cpu_stride)?;
        masm.asm.test(rdi, rdi)?;
        masm.asm.cmove(rax, rdi)
    }

    /// Emits `to = values + cpu * cpu_stride`.
    fn first(self, masm: &mut MacroAssembler, to: AsmRegister64) -> Result<(), IcedError> {
        masm.clobber(to);
        masm.asm.mov(to, qword_ptr(RUN + RUN_VALUES as i32))?;
        masm.asm
            .mov(to, qword_ptr(to + self.map.cast_signed() * 8))?;
        if self.cpu_stride == 0 {
            return Ok(());
        }
        masm.clobber(rcx);
        masm.asm.mov(ecx, dword_ptr(RUN + CONTEXT_CPU as i32))?;
        masm.add_multiple(to, rcx, self.cpu_stride)
    }
}

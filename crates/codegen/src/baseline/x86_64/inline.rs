//! Helpers that are a few instructions long, emitted in place of their calls.

use beeline_isa::abi::{
    CONTEXT_COOKIE, CONTEXT_CPU, CONTEXT_SITE, CONTEXT_TARGET, RUN_VALUES, SITE_ADDRESS,
    TARGET_CONTROL, TARGET_TID_OFFSET, TID_UNKNOWN,
};
use iced_x86::IcedError;
use iced_x86::code_asm::*;

use super::macro_assembler::MacroAssembler;
use super::registers::RUN;
use crate::code::Error;
use crate::inline::Inline;

impl MacroAssembler {
    /// Emits the code in place of the call of a helper. Registers of arguments are free, as a call
    /// destroys them.
    pub(crate) fn inline(&mut self, index: usize, id: u32, inline: Inline) -> Result<(), Error> {
        self.clobber(rax);
        match inline {
            Inline::Null => self.asm.xor(eax, eax)?,
            Inline::Value {
                map,
                offset,
                cpu_stride,
            } => self.value(map, offset, cpu_stride)?,
            Inline::Element {
                map,
                entries,
                stride,
                cpu_stride,
            } => self.element(map, entries, stride, cpu_stride)?,
            Inline::ElementOfCpu {
                map,
                entries,
                stride,
                cpu_stride,
                cpus,
            } => self.element_of_cpu(map, [entries, cpus], [stride, cpu_stride])?,
            Inline::Helper(place) => self.call_helper(index, place)?,
            Inline::Cpu => self.asm.mov(eax, dword_ptr(RUN + CONTEXT_CPU as i32))?,
            Inline::Cookie => self.asm.mov(rax, qword_ptr(RUN + CONTEXT_COOKIE as i32))?,
            Inline::FuncIp => self.func_ip()?,
            Inline::PidTgid => self.pid_tgid(index, id)?,
        }
        Ok(())
    }

    /// Emits `rax = values + cpu * cpu_stride + offset`.
    fn value(&mut self, map: u32, offset: u32, cpu_stride: u32) -> Result<(), IcedError> {
        self.first_value(rax, map, cpu_stride)?;
        if offset == 0 {
            return Ok(());
        }
        self.asm.add(rax, offset.cast_signed())
    }

    /// Emits `rax = key < entries ? values + cpu * cpu_stride + key * stride : 0`.
    fn element(
        &mut self,
        map: u32,
        entries: u32,
        stride: u32,
        cpu_stride: u32,
    ) -> Result<(), IcedError> {
        self.asm.mov(eax, dword_ptr(rsi))?;
        self.first_value(rdi, map, cpu_stride)?;
        self.clobber(rsi);
        self.asm.mov(esi, eax)?;
        self.add_multiple(rdi, rsi, stride)?;
        self.asm.cmp(eax, entries.cast_signed())?;
        self.asm.mov(eax, 0)?;
        self.asm.cmovb(rax, rdi)
    }

    /// Emits `rax = key < entries && r3 < cpus ? values + r3 * cpu_stride + key * stride : 0`.
    fn element_of_cpu(
        &mut self,
        map: u32,
        [entries, cpus]: [u32; 2],
        [stride, cpu_stride]: [u32; 2],
    ) -> Result<(), IcedError> {
        self.element(map, entries, stride, 0)?;
        self.clobber(rcx);
        self.asm.mov(ecx, edx)?;
        self.clobber(rdi);
        self.asm.xor(edi, edi)?;
        // Without an element there is none for any CPU either.
        self.asm.cmp(edx, cpus.cast_signed())?;
        self.asm.cmovae(rax, rdi)?;
        self.asm.mov(rdi, rax)?;
        self.add_multiple(rax, rcx, cpu_stride)?;
        self.asm.test(rdi, rdi)?;
        self.asm.cmove(rax, rdi)
    }

    /// Emits `to = values + cpu * cpu_stride`.
    fn first_value(
        &mut self,
        to: AsmRegister64,
        map: u32,
        cpu_stride: u32,
    ) -> Result<(), IcedError> {
        self.clobber(to);
        self.asm.mov(to, qword_ptr(RUN + RUN_VALUES as i32))?;
        self.asm.mov(to, qword_ptr(to + map.cast_signed() * 8))?;
        if cpu_stride == 0 {
            return Ok(());
        }
        self.clobber(rcx);
        self.asm.mov(ecx, dword_ptr(RUN + CONTEXT_CPU as i32))?;
        self.add_multiple(to, rcx, cpu_stride)
    }

    /// Emits `to += number * factor`; may change `number`.
    fn add_multiple(
        &mut self,
        to: AsmRegister64,
        number: AsmRegister64,
        factor: u32,
    ) -> Result<(), IcedError> {
        match factor {
            1 | 2 | 4 | 8 => {
                return self.asm.lea(to, qword_ptr(to + number * factor));
            }
            _ if factor.is_power_of_two() => self
                .asm
                .shl(number, factor.trailing_zeros().cast_signed())?,
            _ => self.asm.imul_3(number, number, factor.cast_signed())?,
        }
        self.asm.add(to, number)
    }

    /// Emits `rax = site ? site.address : 0`.
    fn func_ip(&mut self) -> Result<(), IcedError> {
        let nowhere = self.asm.create_label();
        self.asm.mov(rax, qword_ptr(RUN + CONTEXT_SITE as i32))?;
        self.asm.test(rax, rax)?;
        self.asm.je(nowhere)?;
        self.asm.mov(rax, qword_ptr(rax + SITE_ADDRESS as i32))?;
        self.set(nowhere)
    }

    /// Emits `rax = pid << 32 | tid`, from the target's words; by the helper if the thread's id has
    /// to be asked for.
    fn pid_tgid(&mut self, index: usize, id: u32) -> Result<(), Error> {
        let [ask, done] = [(); 2].map(|()| self.asm.create_label());
        let asm = &mut self.asm;
        asm.mov(rax, qword_ptr(RUN + CONTEXT_TARGET as i32))?;
        asm.movsxd(rcx, dword_ptr(rax + TARGET_TID_OFFSET as i32))?;
        asm.cmp(ecx, TID_UNKNOWN)?;
        asm.je(ask)?;
        asm.mov(rax, qword_ptr(rax + TARGET_CONTROL as i32))?;
        asm.mov(eax, dword_ptr(rax))?;
        asm.shl(rax, 32)?;
        asm.mov(ecx, dword_ptr(rcx).fs())?;
        asm.or(rax, rcx)?;
        asm.jmp(done)?;
        self.set(ask)?;
        self.call_helper(index, id)?;
        Ok(self.set(done)?)
    }
}

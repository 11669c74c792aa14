//! Helpers that are a few instructions long, emitted in place of their calls.

use beeline_isa::abi::{
    CONTEXT_COOKIE, CONTEXT_CPU, CONTEXT_SITE, CONTEXT_TARGET, SITE_ADDRESS, TARGET_CONTROL,
    TARGET_TID_OFFSET, TID_UNKNOWN,
};
use iced_x86::IcedError;
use iced_x86::code_asm::*;

use super::array_values::ArrayValues;
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
            } => ArrayValues { map, cpu_stride }.at(self, offset)?,
            Inline::Element {
                map,
                entries,
                stride,
                cpu_stride,
            } => ArrayValues { map, cpu_stride }.element(self, entries, stride)?,
            Inline::ElementOfCpu {
                map,
                entries,
                stride,
                cpu_stride,
                cpus,
            } => ArrayValues { map, cpu_stride }.element_of_cpu(self, entries, stride, cpus)?,
            Inline::Helper(place) => self.call_helper(index, place)?,
            Inline::Cpu => self.asm.mov(eax, dword_ptr(RUN + CONTEXT_CPU as i32))?,
            Inline::Cookie => self.asm.mov(rax, qword_ptr(RUN + CONTEXT_COOKIE as i32))?,
            Inline::FuncIp => self.func_ip()?,
            Inline::PidTgid => self.pid_tgid(index, id)?,
        }
        Ok(())
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

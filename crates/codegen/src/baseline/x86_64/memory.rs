//! Loads, stores, atomics, and the 64-bit immediates, which name memory.

use beeline_isa::abi::{RUN_MAPS, RUN_VALUES};
use beeline_isa::{Atomic, Operand, Size};
use iced_x86::IcedError;
use iced_x86::code_asm::*;

use super::macro_assembler::MacroAssembler;
use super::registers::{RUN, home8, home16, home32, home64};
use crate::baseline::outline::Value;

impl MacroAssembler {
    pub(crate) fn load(
        &mut self,
        size: Size,
        signed: bool,
        dst: u8,
        src: u8,
        off: i16,
    ) -> Result<(), IcedError> {
        self.load_from(size, signed, dst, home64(src) + i32::from(off))
    }

    /// Emits `dst = *address`, sign-extended or else zero-extended.
    pub(crate) fn load_from(
        &mut self,
        size: Size,
        signed: bool,
        dst: u8,
        address: AsmMemoryOperand,
    ) -> Result<(), IcedError> {
        match (size, signed) {
            (Size::B1, false) => self.asm.movzx(home32(dst), byte_ptr(address)),
            (Size::B1, true) => self.asm.movsx(home64(dst), byte_ptr(address)),
            (Size::B2, false) => self.asm.movzx(home32(dst), word_ptr(address)),
            (Size::B2, true) => self.asm.movsx(home64(dst), word_ptr(address)),
            (Size::B4, false) => self.asm.mov(home32(dst), dword_ptr(address)),
            (Size::B4, true) => self.asm.movsxd(home64(dst), dword_ptr(address)),
            (Size::B8, _) => self.asm.mov(home64(dst), qword_ptr(address)),
        }
    }

    pub(crate) fn store(
        &mut self,
        size: Size,
        dst: u8,
        src: Operand,
        off: i16,
    ) -> Result<(), IcedError> {
        let address = home64(dst) + i32::from(off);
        match (size, src) {
            (Size::B1, Operand::Reg(src)) => self.asm.mov(byte_ptr(address), home8(src)),
            (Size::B2, Operand::Reg(src)) => self.asm.mov(word_ptr(address), home16(src)),
            (Size::B4, Operand::Reg(src)) => self.asm.mov(dword_ptr(address), home32(src)),
            (Size::B8, Operand::Reg(src)) => self.asm.mov(qword_ptr(address), home64(src)),
            // A store takes the low bytes of its immediate.
            (Size::B1, Operand::Imm(imm)) => self.asm.mov(byte_ptr(address), i32::from(imm as i8)),
            (Size::B2, Operand::Imm(imm)) => self.asm.mov(word_ptr(address), i32::from(imm as i16)),
            (Size::B4, Operand::Imm(imm)) => self.asm.mov(dword_ptr(address), imm),
            (Size::B8, Operand::Imm(imm)) => self.asm.mov(qword_ptr(address), imm),
        }
    }

    pub(crate) fn atomic(
        &mut self,
        op: Atomic,
        fetch: bool,
        wide: bool,
        [dst, src]: [u8; 2],
        off: i16,
    ) -> Result<(), IcedError> {
        let memory = home64(dst) + i32::from(off);
        let (wide_src, src32) = (home64(src), home32(src));
        match (op, wide) {
            (Atomic::Exchange, true) => self.asm.xchg(qword_ptr(memory), wide_src),
            (Atomic::Exchange, false) => self.asm.xchg(dword_ptr(memory), src32),
            (Atomic::CompareExchange, true) => self.asm.lock().cmpxchg(qword_ptr(memory), wide_src),
            (Atomic::CompareExchange, false) => {
                self.asm.lock().cmpxchg(dword_ptr(memory), src32)?;
                // On success the machine leaves rax as it was, high half included.
                self.asm.mov(eax, eax)
            }
            (Atomic::Add, true) if fetch => self.asm.lock().xadd(qword_ptr(memory), wide_src),
            (Atomic::Add, false) if fetch => self.asm.lock().xadd(dword_ptr(memory), src32),
            _ if fetch => self.atomic_fetch(op, wide, [dst, src], off),
            (Atomic::Add, true) => self.asm.lock().add(qword_ptr(memory), wide_src),
            (Atomic::Add, false) => self.asm.lock().add(dword_ptr(memory), src32),
            (Atomic::Or, true) => self.asm.lock().or(qword_ptr(memory), wide_src),
            (Atomic::Or, false) => self.asm.lock().or(dword_ptr(memory), src32),
            (Atomic::And, true) => self.asm.lock().and(qword_ptr(memory), wide_src),
            (Atomic::And, false) => self.asm.lock().and(dword_ptr(memory), src32),
            (Atomic::Xor, true) => self.asm.lock().xor(qword_ptr(memory), wide_src),
            (Atomic::Xor, false) => self.asm.lock().xor(dword_ptr(memory), src32),
        }
    }

    /// Emits a fetching or, and, or xor. The machine cannot fetch the old value there, so this is a
    /// loop of compare and exchange until nothing comes between.
    fn atomic_fetch(
        &mut self,
        op: Atomic,
        wide: bool,
        [dst, src]: [u8; 2],
        off: i16,
    ) -> Result<(), IcedError> {
        // rax takes the old value, r10 the new one; r11 keeps r0, and stands for it where it is an
        // operand.
        let (old, new, r0) = (rax, self.clobber(r10), self.clobber(r11));
        let base = if home64(dst) == old { r0 } else { home64(dst) };
        let operand = if home64(src) == old { r0 } else { home64(src) };
        let memory = base + i32::from(off);
        let mut again = self.asm.create_label();
        self.asm.mov(r0, old)?;
        if wide {
            self.asm.mov(old, qword_ptr(memory))?;
        } else {
            self.asm.mov(eax, dword_ptr(memory))?;
        }
        self.asm.set_label(&mut again)?;
        self.asm.mov(new, old)?;
        match op {
            Atomic::Or => self.asm.or(new, operand)?,
            Atomic::And => self.asm.and(new, operand)?,
            _ => self.asm.xor(new, operand)?,
        }
        if wide {
            self.asm.lock().cmpxchg(qword_ptr(memory), new)?;
        } else {
            self.asm.lock().cmpxchg(dword_ptr(memory), r10d)?;
        }
        self.asm.jne(again)?;
        if home64(src) != old {
            self.asm.mov(home64(src), old)?;
            self.asm.mov(old, r0)?;
        }
        Ok(())
    }

    /// Emits `dst = value`, of a 64-bit immediate.
    pub(crate) fn imm64(&mut self, dst: u8, value: Value<CodeLabel>) -> Result<(), IcedError> {
        match value {
            Value::Number(value) => self.constant(dst, value),
            Value::Map(map) => self.table_entry(RUN_MAPS, dst, map),
            Value::Memory(map, offset) => {
                self.table_entry(RUN_VALUES, dst, map)?;
                if offset == 0 {
                    return Ok(());
                }
                self.asm.add(home64(dst), offset)
            }
            Value::Callback(thunk) => self.asm.lea(home64(dst), ptr(thunk)),
        }
    }

    /// Emits `dst = run.table[index]`.
    fn table_entry(&mut self, table: usize, dst: u8, index: i32) -> Result<(), IcedError> {
        self.asm.mov(home64(dst), qword_ptr(RUN + table as i32))?;
        self.asm
            .mov(home64(dst), qword_ptr(home64(dst) + index * 8))
    }
}

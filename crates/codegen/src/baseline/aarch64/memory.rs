//! Loads, stores, atomics, and the 64-bit immediates, which name memory.

use beeline_isa::abi::{RUN_MAPS, RUN_VALUES};
use beeline_isa::{Atomic, FRAME_POINTER, Operand, Size};

use super::arithmetic::extended;
use super::assembler::{Access, Condition, Label, Ordered, Reg, SP, Three, ZR};
use super::macro_assembler::MacroAssembler;
use super::registers::{RUN, home};
use crate::baseline::outline::Value;

impl MacroAssembler {
    pub(crate) fn load(&mut self, size: Size, signed: bool, dst: u8, src: u8, off: i16) {
        let op = if signed {
            Access::LoadSigned
        } else {
            Access::Load
        };
        self.access(op, size, home(dst), src, off);
    }

    pub(crate) fn store(&mut self, size: Size, dst: u8, src: Operand, off: i16) {
        let value = match src {
            Operand::Reg(src) => home(src),
            // A store takes the low bytes of its immediate.
            Operand::Imm(imm) => match size {
                Size::B1 => self.operand(u64::from(imm as u8)),
                Size::B2 => self.operand(u64::from(imm as u16)),
                _ => self.operand(extended(imm, size == Size::B8)),
            },
        };
        self.access(Access::Store, size, value, dst, off);
    }

    fn access(&mut self, op: Access, size: Size, value: Reg, base: u8, off: i16) {
        let off = i32::from(off);
        let size = log2(size);
        if self.asm.access(op, size, value, home(base), off) {
            return;
        }
        // An address far below the frame pointer is near above the stack pointer.
        if base == FRAME_POINTER && self.asm.access(op, size, value, SP, off + self.below) {
            return;
        }
        let offset = self.scratch(1);
        self.constant(offset, extended(off, true));
        self.asm.access_indexed(op, size, value, home(base), offset);
    }

    /// Returns the register that holds `base + off`.
    fn address(&mut self, base: u8, off: i16) -> Reg {
        if off == 0 {
            return home(base);
        }
        let address = self.scratch(1);
        self.add_offset(address, home(base), off.into());
        address
    }

    pub(crate) fn load_acquire(&mut self, size: Size, dst: u8, src: u8, off: i16) {
        let address = self.address(src, off);
        self.asm
            .ordered(Ordered::Ldar, log2(size), home(dst), address);
    }

    pub(crate) fn store_release(&mut self, size: Size, dst: u8, src: u8, off: i16) {
        let address = self.address(dst, off);
        self.asm
            .ordered(Ordered::Stlr, log2(size), home(src), address);
    }

    /// Emits a loop of exclusive load and store, which every processor of the architecture has.
    /// Fetching atomics order all accesses before them with all behind them, as in the kernel; the
    /// others order nothing.
    pub(crate) fn atomic(
        &mut self,
        op: Atomic,
        fetch: bool,
        wide: bool,
        [dst, src]: [u8; 2],
        off: i16,
    ) {
        let address = self.address(dst, off);
        let [old, new, status] = [0, 2, 3].map(|number| self.scratch(number));
        let [again, done] = [self.asm.label(), self.asm.label()];
        let size = if wide { 3 } else { 2 };
        self.asm.bind(again);
        self.asm.ordered(Ordered::Ldxr, size, old, address);
        let changed = match op {
            Atomic::Exchange => None,
            Atomic::CompareExchange => {
                self.asm.three(Three::Subs, wide, ZR, old, home(0));
                self.asm.b_if(Condition::Ne, done);
                None
            }
            Atomic::Add => Some(Three::Add),
            Atomic::Or => Some(Three::Orr),
            Atomic::And => Some(Three::And),
            Atomic::Xor => Some(Three::Eor),
        };
        let written = match changed {
            Some(op) => {
                self.asm.three(op, wide, new, old, home(src));
                new
            }
            None => home(src),
        };
        self.asm.stxr(fetch, size, status, written, address);
        self.asm.cbnz(false, status, again);
        self.asm.bind(done);
        if fetch {
            self.asm.barrier();
            // The load has cleared the high half of a narrow value.
            let fetched = if op == Atomic::CompareExchange {
                0
            } else {
                src
            };
            self.asm.mov(true, home(fetched), old);
        }
    }

    /// Emits `d = value`, of a 64-bit immediate.
    pub(crate) fn imm64(&mut self, d: Reg, value: Value<Label>) {
        match value {
            Value::Number(value) => self.constant(d, value),
            Value::Map(map) => self.table_entry(RUN_MAPS, d, map),
            Value::Memory(map, offset) => {
                self.table_entry(RUN_VALUES, d, map);
                if offset != 0 {
                    self.add_offset(d, d, offset);
                }
            }
            Value::Callback(callback) => self.asm.entry_address(d, callback),
        }
    }

    /// Emits `d = run.table[index]`.
    pub(crate) fn table_entry(&mut self, table: usize, d: Reg, index: i32) {
        self.load_field(d, RUN, table);
        if !self.asm.access(Access::Load, 3, d, d, index * 8) {
            let offset = self.operand(extended(index * 8, true));
            self.asm.access_indexed(Access::Load, 3, d, d, offset);
        }
    }

    /// Emits `d = *(base + off)`, where `off` is the offset of a field of the
    /// [`beeline_isa::abi::Run`], or in the table of helpers.
    pub(crate) fn load_field(&mut self, d: Reg, base: Reg, off: usize) {
        self.asm.word_access(Access::Load, d, base, off as u32);
    }
}

fn log2(size: Size) -> u32 {
    size.bytes().trailing_zeros()
}

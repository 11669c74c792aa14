//! Tables behind the code, which replace searches by comparing.

use beeline_isa::{Alu, Op, Operand};
use iced_x86::IcedError;
use iced_x86::code_asm::*;

use super::emit::Emitter;
use super::macro_assembler::MacroAssembler;
use super::registers::{home32, home64};
use crate::baseline::lookup::Lookup;
use crate::code::Error;

/// Constants, and the label of their place.
pub(crate) struct Table {
    label: CodeLabel,
    constants: Vec<i32>,
}

impl Emitter<'_> {
    /// Looks a constant up, if a slot begins a search that amounts to a look-up. Values that the
    /// table does not have continue behind this, in the search.
    pub(crate) fn look_up(&mut self, index: usize) -> Result<(), Error> {
        let is_start = |slot| self.labels.at(slot).is_some();
        let decision = self.decisions.at(self.outline.flow, index, &is_start);
        let Some(lookup) = decision.as_ref().and_then(Lookup::of) else {
            return Ok(());
        };
        if self.labels.at(lookup.slot).is_none() {
            return Ok(());
        }
        self.moves.make_all(&mut self.masm)?;
        let label = self.masm.asm.create_label();
        let mut search = self.masm.asm.create_label();
        self.masm.clobber(r11);
        let place = self.place_in_table(index, &lookup)?;
        self.masm.asm.cmp(place, lookup.constants.len() as i32)?; // some thousand at the most
        self.masm.asm.jae(search)?;
        self.masm.asm.lea(r11, qword_ptr(label))?;
        self.masm.clobber(home64(lookup.dst));
        let constant = dword_ptr(r11 + place * 4);
        let mut next = lookup.slot;
        match self.combination(index, &lookup) {
            Some(op) => {
                self.combine(op, home32(lookup.dst), constant)?;
                next += 1;
            }
            None if lookup.extends => self.masm.asm.movsxd(home64(lookup.dst), constant)?,
            None => self.masm.asm.mov(home32(lookup.dst), constant)?,
        }
        self.go_on_at(next)?;
        self.tables.push(Table {
            label,
            constants: lookup.constants,
        });
        Ok(self.masm.asm.set_label(&mut search)?)
    }

    /// Returns the index of the constant, if the value is one of the table's, as a register that
    /// may be compared and added whole.
    fn place_in_table(&mut self, slot: usize, lookup: &Lookup) -> Result<AsmRegister64, IcedError> {
        let register = home64(lookup.register);
        if lookup.first == 0 && (lookup.wide || self.peephole.is_low(slot, lookup.register)) {
            return Ok(register);
        }
        let distance = qword_ptr(register - lookup.first);
        match lookup.wide {
            true => self.masm.asm.lea(r10, distance)?,
            false => self.masm.asm.lea(r10d, distance)?,
        }
        Ok(self.masm.clobber(r10))
    }

    /// Returns the operation that combines a constant with its register's content before the
    /// search, if there is one. Then a copy of that content, as compilers make it, need not be
    /// waited for: `dst = constant; dst op= copy` is `dst op= constant`.
    fn combination(&self, search: usize, lookup: &Lookup) -> Option<Alu> {
        self.peephole.short_way_to_branch(lookup.slot)?;
        let Some(Op::Alu {
            op: op @ (Alu::Add | Alu::Or | Alu::And | Alu::Xor),
            wide: false,
            dst,
            src: Operand::Reg(copy),
        }) = self.peephole.op(lookup.slot)
        else {
            return None;
        };
        (dst == lookup.dst && self.peephole.is_copy(search, copy, dst)).then_some(op)
    }

    fn combine(
        &mut self,
        op: Alu,
        dst: AsmRegister32,
        with: AsmMemoryOperand,
    ) -> Result<(), IcedError> {
        match op {
            Alu::Add => self.masm.asm.add(dst, with),
            Alu::Or => self.masm.asm.or(dst, with),
            Alu::And => self.masm.asm.and(dst, with),
            _ => self.masm.asm.xor(dst, with),
        }
    }

    /// Continues at a slot that has a label, or behind the first instruction of a short way. If the
    /// instructions there up to a branch are few, they are copied, so that a loop around a search
    /// jumps once in each turn; otherwise this is a jump.
    fn go_on_at(&mut self, slot: usize) -> Result<(), Error> {
        let mut next = slot;
        if let Some(branch) = self.peephole.short_way_to_branch(slot) {
            while next <= branch
                && let Some(op) = self.peephole.op(next)
            {
                if let Some(register) = op.written() {
                    self.masm.clobber(home64(register));
                }
                next = self.fused(next, op)?;
            }
        }
        match self.labels.at(next) {
            Some(label) => Ok(self.masm.asm.jmp(label)?),
            None => Ok(()),
        }
    }
}

impl Table {
    /// Puts the table behind the code.
    pub(crate) fn put(mut self, masm: &mut MacroAssembler) -> Result<(), IcedError> {
        masm.asm.set_label(&mut self.label)?;
        let constants = self.constants.into_iter().map(i32::cast_unsigned);
        masm.asm.dd(&constants.collect::<Vec<_>>())
    }
}

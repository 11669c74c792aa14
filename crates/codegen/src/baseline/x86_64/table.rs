//! Tables behind the code, which replace searches by comparing.

use beeline_isa::{Alu, Op, Operand, Size};
use iced_x86::IcedError;
use iced_x86::code_asm::*;

use super::emit::Emitter;
use super::registers::{home32, home64};
use crate::baseline::lookup::Lookup;
use crate::code::Error;

/// The most instructions that are copied, the branch at their end included.
const COPIED: usize = 8;

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
        self.make_postponed()?;
        let label = self.asm.create_label();
        let mut search = self.asm.create_label();
        self.clobber(r11);
        let place = self.place_in_table(index, &lookup)?;
        self.asm.cmp(place, lookup.constants.len() as i32)?; // some thousand at the most
        self.asm.jae(search)?;
        self.asm.lea(r11, qword_ptr(label))?;
        self.clobber(home64(lookup.dst));
        let constant = dword_ptr(r11 + place * 4);
        let mut next = lookup.slot;
        match self.combination(index, &lookup) {
            Some(op) => {
                self.combine(op, home32(lookup.dst), constant)?;
                next += 1;
            }
            None if lookup.extends => self.asm.movsxd(home64(lookup.dst), constant)?,
            None => self.asm.mov(home32(lookup.dst), constant)?,
        }
        self.go_on_at(next)?;
        self.tables.push(Table {
            label,
            constants: lookup.constants,
        });
        Ok(self.asm.set_label(&mut search)?)
    }

    /// Returns the index of the constant, if the value is one of the table's, as a register that
    /// may be compared and added whole.
    fn place_in_table(&mut self, slot: usize, lookup: &Lookup) -> Result<AsmRegister64, IcedError> {
        let register = home64(lookup.register);
        if lookup.first == 0 && (lookup.wide || self.is_low(slot, lookup.register)) {
            return Ok(register);
        }
        let distance = qword_ptr(register - lookup.first);
        match lookup.wide {
            true => self.asm.lea(r10, distance)?,
            false => self.asm.lea(r10d, distance)?,
        }
        Ok(self.clobber(r10))
    }

    /// Returns whether the only instruction that leads to a slot clears the high half of a
    /// register.
    fn is_low(&self, slot: usize, register: u8) -> bool {
        let before = slot
            .checked_sub(1)
            .and_then(|before| self.outline.flow.op(before));
        let clears = match before {
            Some(Op::Load {
                size, signed, dst, ..
            }) => dst == register && !signed && size != Size::B8,
            _ => false,
        };
        clears && self.labels.at(slot).is_none()
    }

    /// Returns the operation that combines a constant with its register's content before the
    /// search, if there is one. Then a copy of that content, as compilers make it, need not be
    /// waited for: `dst = constant; dst op= copy` is `dst op= constant`.
    fn combination(&self, search: usize, lookup: &Lookup) -> Option<Alu> {
        self.short_way_to_branch(lookup.slot)?;
        let Some(Op::Alu {
            op: op @ (Alu::Add | Alu::Or | Alu::And | Alu::Xor),
            wide: false,
            dst,
            src: Operand::Reg(copy),
        }) = self.outline.flow.op(lookup.slot)
        else {
            return None;
        };
        (dst == lookup.dst && self.is_copy(search, copy, dst)).then_some(op)
    }

    /// Returns whether a register holds the low half of another one where a search begins.
    fn is_copy(&self, search: usize, copy: u8, of: u8) -> bool {
        let mut slot = search;
        for _ in 0..COPIED {
            if self.labels.at(slot).is_some() || slot == 0 {
                return false;
            }
            slot -= 1;
            match self.outline.flow.op(slot) {
                Some(Op::Move {
                    dst,
                    src: Operand::Reg(src),
                    ..
                }) if (dst, src) == (copy, of) => return true,
                Some(op) if is_simple(op) => {
                    if op
                        .written()
                        .is_some_and(|written| written == copy || written == of)
                    {
                        return false;
                    }
                }
                _ => return false,
            }
        }
        false
    }

    fn combine(
        &mut self,
        op: Alu,
        dst: AsmRegister32,
        with: AsmMemoryOperand,
    ) -> Result<(), IcedError> {
        match op {
            Alu::Add => self.asm.add(dst, with),
            Alu::Or => self.asm.or(dst, with),
            Alu::And => self.asm.and(dst, with),
            _ => self.asm.xor(dst, with),
        }
    }

    /// Continues at a slot that has a label, or behind the first instruction of a short way. If the
    /// instructions there up to a branch are few, they are copied, so that a loop around a search
    /// jumps once in each turn; otherwise this is a jump.
    fn go_on_at(&mut self, slot: usize) -> Result<(), Error> {
        let mut next = slot;
        if let Some(branch) = self.short_way_to_branch(slot) {
            while next <= branch
                && let Some(op) = self.outline.flow.op(next)
            {
                if let Some(register) = op.written() {
                    self.clobber(home64(register));
                }
                next = self.fused(next, op)?;
            }
        }
        match self.labels.at(next) {
            Some(label) => Ok(self.asm.jmp(label)?),
            None => Ok(()),
        }
    }

    /// Returns the slot of the branch that control reaches from this one in a few instructions, if
    /// both ways from there on have labels.
    fn short_way_to_branch(&self, slot: usize) -> Option<usize> {
        let mut slots = slot..slot + COPIED;
        let branch = slots.find(|&slot| !self.outline.flow.op(slot).is_some_and(is_simple))?;
        let op = self.outline.flow.op(branch)?;
        // One with a constant may begin another search.
        let src = match op {
            Op::Branch { src, .. } => src,
            _ => return None,
        };
        let on = self.outline.flow.successors(branch).next()?;
        (matches!(src, Operand::Reg(_)) && self.labels.at(on).is_some()).then_some(branch)
    }

    /// Puts the tables behind the code.
    pub(crate) fn put_tables(&mut self) -> Result<(), Error> {
        for mut table in std::mem::take(&mut self.tables) {
            self.asm.set_label(&mut table.label)?;
            let constants = table.constants.into_iter().map(i32::cast_unsigned);
            self.asm.dd(&constants.collect::<Vec<_>>())?;
        }
        Ok(())
    }
}

/// Returns whether an operation becomes an instruction or two, with no label within.
fn is_simple(op: Op) -> bool {
    match op {
        Op::Alu { op, .. } => matches!(
            op,
            Alu::Add | Alu::Sub | Alu::Mul | Alu::Or | Alu::And | Alu::Xor
        ),
        _ => matches!(
            op,
            Op::Move { .. } | Op::MoveSigned { .. } | Op::Load { .. } | Op::Store { .. }
        ),
    }
}

//! Words in place of the elements that a loop copies.

use beeline_isa::Operand;
use iced_x86::IcedError;
use iced_x86::code_asm::*;

use super::emit::Emitter;
use super::macro_assembler::MacroAssembler;
use super::registers::home64;
use crate::baseline::copying::{Copying, Count, Order, Sum};

impl Emitter<'_> {
    /// Copies words, if a slot begins a loop that copies.
    pub(crate) fn copy_words(&mut self, index: usize) -> Result<(), IcedError> {
        if let Some(copying) = self.copying.get(&index) {
            let elements = self.masm.copy_words(copying)?;
            // Few turns are left, so the loop's own jump back leads here.
            self.ways_back.insert(copying.last, elements);
        }
        Ok(())
    }
}

impl MacroAssembler {
    /// Copies words before a loop for as many turns as are certain to come; returns the place
    /// behind that.
    fn copy_words(&mut self, copying: &Copying) -> Result<CodeLabel, IcedError> {
        let elements = self.asm.create_label();
        let mut words = self.asm.create_label();
        self.clobber(r10);
        self.clobber(r11);
        if copying.from.distance(&copying.to).is_none() {
            self.asm.lea(r10, ptr(address(copying.to)))?;
            self.asm.lea(r11, ptr(address(copying.from)))?;
            self.asm.sub(r10, r11)?;
            self.asm.cmp(r10, 8)?;
            self.asm.jb(elements)?;
        }
        self.certain_turns(copying.count, elements)?;
        self.asm.sub(r11, copying.turns)?;
        self.asm.jb(elements)?;
        self.asm.set_label(&mut words)?;
        self.copy_word(copying)?;
        self.asm.sub(r11, copying.turns)?;
        self.asm.jae(words)?;
        self.set(elements)?;
        Ok(elements)
    }

    /// Sets r11 to the number of turns after which the loop is certain to go on. If there are none,
    /// the code may go to `elements`.
    fn certain_turns(&mut self, count: Count, elements: CodeLabel) -> Result<(), IcedError> {
        let (register, plus) = count.number;
        let (number, bound) = if count.up { (r10, r11) } else { (r11, r10) };
        self.asm.lea(number, qword_ptr(home64(register) + plus))?;
        match count.bound {
            Operand::Reg(register) => self.asm.mov(bound, home64(register))?,
            Operand::Imm(imm) => self.asm.mov(bound, i64::from(imm))?,
        }
        match count.order {
            Order::None => {}
            Order::Unsigned => {
                self.asm.cmp(r11, r10)?;
                self.asm.jbe(elements)?;
            }
            Order::Signed => {
                self.asm.cmp(r11, r10)?;
                self.asm.jle(elements)?;
            }
        }
        self.asm.sub(r11, r10)
    }

    fn copy_word(&mut self, copying: &Copying) -> Result<(), IcedError> {
        self.asm.mov(r10, qword_ptr(address(copying.from)))?;
        self.asm.mov(qword_ptr(address(copying.to)), r10)?;
        for &(register, step) in &copying.steps {
            self.asm.add(home64(register), step)?;
        }
        Ok(())
    }
}

fn address(sum: Sum) -> AsmMemoryOperand {
    let [one, two] = sum.registers;
    match (one.or(two), one.and(two)) {
        (Some(one), Some(two)) => home64(one) + home64(two) + sum.plus,
        (Some(one), None) => home64(one) + sum.plus,
        // A sum that changes in each turn has a register.
        (None, _) => qword_ptr(i64::from(sum.plus)),
    }
}

//! Tables behind the code, in place of searches by comparing.

use iced_x86::IcedError;
use iced_x86::code_asm::*;

use super::emit::Emitter;
use super::registers::{home32, home64};
use crate::light::lookup::Lookup;

/// Constants, and where they stand.
pub(crate) struct Table {
    label: CodeLabel,
    constants: Vec<i32>,
}

impl Emitter<'_> {
    /// Looks a constant up, if a slot begins a search that is a look-up. Values that the table does not have go on behind
    /// this, where the search is.
    pub(crate) fn look_up(&mut self, index: usize) -> Result<(), IcedError> {
        let is_start = |slot| self.labels.at(slot).is_some();
        let decision = self.decisions.at(self.outline.flow, index, &is_start);
        let Some(lookup) = decision.as_ref().and_then(Lookup::of) else {
            return Ok(());
        };
        let Some(target) = self.labels.at(lookup.slot) else {
            return Ok(());
        };
        let label = self.asm.create_label();
        let mut search = self.asm.create_label();
        self.clobber(r10);
        self.clobber(r11);
        let distance = home64(lookup.register) - lookup.first;
        match lookup.wide {
            true => self.asm.lea(r10, qword_ptr(distance))?,
            false => self.asm.lea(r10d, qword_ptr(distance))?,
        }
        self.asm.cmp(r10, lookup.constants.len() as i32)?; // some thousand at the most
        self.asm.jae(search)?;
        self.asm.lea(r11, qword_ptr(label))?;
        self.clobber(home64(lookup.dst));
        let constant = dword_ptr(r11 + r10 * 4);
        if lookup.extends {
            self.asm.movsxd(home64(lookup.dst), constant)?;
        } else {
            self.asm.mov(home32(lookup.dst), constant)?;
        }
        self.asm.jmp(target)?;
        self.tables.push(Table {
            label,
            constants: lookup.constants,
        });
        self.asm.set_label(&mut search)
    }

    /// Puts the tables behind the code.
    pub(crate) fn put_tables(&mut self) -> Result<(), IcedError> {
        for mut table in std::mem::take(&mut self.tables) {
            self.asm.set_label(&mut table.label)?;
            let constants = table.constants.into_iter().map(i32::cast_unsigned);
            self.asm.dd(&constants.collect::<Vec<_>>())?;
        }
        Ok(())
    }
}

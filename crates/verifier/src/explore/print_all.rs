//! The parts of the log at its second level only: the functions and the registers that are read
//! later, before the first path (`check_subprogs`, `compute_live_registers`), and each way back to
//! a number's origin (`mark_chain_precision`).

use std::fmt::Write as _;

use beeline_isa::FRAME_POINTER;

use super::Explorer;
use crate::state::State;

impl Explorer<'_> {
    /// Prints the start of functions, and the facts about each instruction.
    pub(crate) fn print_shape(&mut self) {
        if !self.log.level.all() {
            return;
        }
        for (number, function) in self.flow.functions().iter().enumerate() {
            self.log.line(&format!("func#{number} @{}", function.start));
        }
        self.log.line("Live regs before insn:");
        for index in (0..self.flow.len()).filter(|index| self.flow.op(*index).is_some()) {
            let place = self.shape.at(index);
            let component = match place.component {
                0 => String::new(),
                component => component.to_string(),
            };
            let live: String = (0..FRAME_POINTER)
                .map(|number| match place.live & 1 << number {
                    0 => '.',
                    _ => char::from(b'0' + number),
                })
                .collect();
            let insn = self.insn_text(index);
            let line = format!("{component:>3} {index:>3}: {live} {insn}");
            self.log.line(&line);
        }
    }

    /// Prints that a part of a path is about to be gone back over.
    pub(super) fn print_segment(
        &mut self,
        frame: usize,
        last: Option<usize>,
        first: usize,
        after: Option<usize>,
    ) {
        if self.log.level.all() {
            let (last, after) = (number(last), number(after));
            // The kernel's line ends in a space.
            self.log.line(&format!(
                "mark_precise: frame{frame}: last_idx {last} first_idx {first} subseq_idx {after} "
            ));
        }
    }

    /// Prints that an instruction is about to be gone back over.
    pub(super) fn print_back(&mut self, frame: usize, (registers, slots): (u16, u64), insn: usize) {
        if self.log.level.all() && self.flow.op(insn).is_some() {
            let what = self.insn_text(insn);
            self.log.line(&format!(
                "mark_precise: frame{frame}: {} before {insn}: {what}",
                wanted_text(registers, slots)
            ));
        }
    }

    /// Prints that numbers have been marked in a kept state; `wanted` are those of each frame.
    pub(super) fn print_marked(&mut self, state: &State, frame: usize, wanted: &[(u16, u64)]) {
        if !self.log.level.all() {
            return;
        }
        for number in (0..=frame.min(state.depth())).rev() {
            let (registers, slots) = wanted.get(number).copied().unwrap_or_default();
            let text = format!(
                "mark_precise: frame{number}: parent state {}: {}",
                wanted_text(registers, slots),
                self.text().frame(state, number)
            );
            self.log.line(&text);
        }
    }

    /// Prints the numbers that mattered in a kept state, for one frame.
    pub(super) fn print_taken_over(&mut self, frame: usize, (registers, slots): (u16, u64)) {
        if !self.log.level.all() || (registers, slots) == (0, 0) {
            return;
        }
        let registers = bits(registers.into()).map(|number| format!("r{number}"));
        let slots = bits(slots).map(|slot| format!("fp{}", place(slot)));
        let all: Vec<_> = registers.chain(slots).collect();
        self.log
            .line(&format!("frame {frame}: propagating {}", all.join(",")));
    }

    /// Prints that the way back was lost.
    pub(super) fn print_everything_matters(&mut self, depth: usize) {
        if self.log.level.all() {
            self.log.line(&format!(
                "mark_precise: frame{depth}: falling back to forcing all scalars precise"
            ));
        }
    }

    /// Prints that every number of a kept state is about to be marked.
    pub(super) fn print_forced(&mut self, state: &State) {
        if !self.log.level.all() {
            return;
        }
        for (number, frame) in state.frames.iter().enumerate() {
            let regs = frame.regs.iter().enumerate().take(FRAME_POINTER.into());
            let regs = regs.filter(|(_, reg)| reg.is_scalar() && !reg.precise);
            let regs = regs.map(|(register, _)| format!("r{register}"));
            let slots = frame.stack.iter().enumerate();
            let slots = slots.filter(|(_, it)| it.is_spilled_scalar() && !it.reg.precise);
            let slots = slots.map(|(slot, _)| format!("fp{}", place(slot as u32)));
            for what in regs.chain(slots) {
                self.log.line(&format!(
                    "force_precise: frame{number}: forcing {what} to be precise"
                ));
            }
        }
    }
}

fn number(insn: Option<usize>) -> i64 {
    insn.map_or(-1, |insn| insn as i64)
}

/// Returns the bytes from the frame pointer to a slot.
fn place(slot: u32) -> i64 {
    -(i64::from(slot) + 1) * 8
}

fn bits(mask: u64) -> impl Iterator<Item = u32> {
    (0..64).filter(move |bit| mask & 1 << bit != 0)
}

/// Formats `regs=r1,r2 stack=-8`.
fn wanted_text(registers: u16, slots: u64) -> String {
    let mut text = String::from("regs=");
    let mut separator = "";
    for register in bits(registers.into()) {
        let _ = write!(text, "{separator}r{register}");
        separator = ",";
    }
    text += " stack=";
    separator = "";
    for slot in bits(slots) {
        let _ = write!(text, "{separator}{}", place(slot));
        separator = ",";
    }
    text
}

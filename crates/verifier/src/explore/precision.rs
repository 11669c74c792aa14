//! Tracks the numbers that mattered. When a bound decides something, the path is followed back to
//! the number's origin, and the registers and slots on the way are marked in the states that were
//! kept. States are alike if they agree on these; other numbers may differ (`mark_chain_precision`,
//! `backtrack_insn`).

use beeline_isa::{FRAME_POINTER, Op, Operand};
use beeline_uapi::HelperId;

use super::{Check, Explorer};
use crate::flow::Odd;
use crate::state::{Linked, State, StateId, Step, Type};

/// r1 to r5.
const ARGUMENTS: u16 = 0b11_1110;

/// The registers and slots that are searched, by frame.
#[derive(Debug, Default)]
struct Wanted {
    frames: Vec<(u16, u64)>,
    /// The frame of the instruction being looked at.
    frame: usize,
}

/// The way back cannot be followed: every number mattered.
struct Lost;

impl Wanted {
    fn at(&mut self, frame: usize) -> &mut (u16, u64) {
        if self.frames.len() <= frame {
            self.frames.resize(frame + 1, (0, 0));
        }
        &mut self.frames[frame]
    }

    fn is_empty(&self) -> bool {
        self.frames.iter().all(|&wanted| wanted == (0, 0))
    }

    fn registers(&mut self) -> &mut u16 {
        let frame = self.frame;
        &mut self.at(frame).0
    }

    fn has(&mut self, register: u8) -> bool {
        *self.registers() & 1 << register != 0
    }

    fn add(&mut self, register: u8) {
        if register != FRAME_POINTER {
            *self.registers() |= 1 << register;
        }
    }

    fn remove(&mut self, register: u8) {
        *self.registers() &= !(1 << register);
    }

    /// Enters a function at its end, going back.
    fn enter_callee(&mut self) {
        self.frame += 1;
        let frame = self.frame;
        *self.at(frame) = (0, 0);
    }

    /// Leaves a function at its start, going back.
    fn leave_callee(&mut self) -> Result<(), Lost> {
        self.frame = self.frame.checked_sub(1).ok_or(Lost)?;
        Ok(())
    }

    /// Adds linked numbers: numbers with the same id matter together (`bt_sync_linked_regs`).
    fn spread(&mut self, linked: &Linked) {
        let any = linked.iter().any(|place| {
            let (registers, slots) = *self.at(place.frame.into());
            if place.is_slot {
                slots & 1 << place.number != 0
            } else {
                registers & 1 << place.number != 0
            }
        });
        if !any || linked.len() == 0 {
            return;
        }
        for place in linked.iter() {
            let wanted = self.at(place.frame.into());
            if place.is_slot {
                wanted.1 |= 1 << place.number;
            } else {
                wanted.0 |= 1 << place.number;
            }
        }
    }
}

impl Explorer<'_> {
    /// Marks a register's number, which decides something now.
    pub(super) fn mark_precise(&mut self, register: u8) -> Check {
        if !self.cur.reg(register).is_scalar() {
            return Ok(());
        }
        let mut wanted = Wanted {
            frame: self.cur.depth(),
            ..Wanted::default()
        };
        wanted.add(register);
        let mut cur = self.take_state();
        let _changed = self.follow_back(&mut cur, wanted);
        self.cur = cur;
        Ok(())
    }

    /// Marks in a state the numbers that mattered in the kept state which covers it
    /// (`propagate_precision`). Returns whether anything was newly marked.
    pub(super) fn take_over_precision(
        &mut self,
        from: StateId,
        mut to: State,
    ) -> (State, Check<bool>) {
        let mut wanted = Wanted {
            frame: to.depth(),
            ..Wanted::default()
        };
        for (number, frame) in self.explored.state(from).frames.iter().enumerate() {
            let mut found = (0_u16, 0_u64);
            for (register, reg) in frame.regs.iter().enumerate().take(10) {
                if reg.is_scalar() && reg.precise {
                    found.0 |= 1 << register;
                }
            }
            for (slot, content) in frame.stack.iter().enumerate() {
                if content.is_spilled_scalar() && content.reg.precise {
                    found.1 |= 1 << slot;
                }
            }
            *wanted.at(number) = found;
        }
        for (number, found) in wanted.frames.iter().enumerate().rev() {
            self.print_taken_over(number, *found);
        }
        let changed = self.follow_back(&mut to, wanted);
        (to, Ok(changed))
    }

    /// Follows back the number in a stack slot of the current state, which decides something.
    pub(super) fn follow_slot_back(&mut self, state: &mut State, frame: usize, slot: usize) {
        let mut wanted = Wanted {
            frame: state.depth(),
            ..Wanted::default()
        };
        wanted.at(frame).1 = 1 << slot;
        let _changed = self.follow_back(state, wanted);
    }

    /// Marks numbers in the kept states that a state comes from. Returns whether anything was newly
    /// marked.
    fn follow_back(&mut self, state: &mut State, mut wanted: Wanted) -> bool {
        if wanted.is_empty() {
            return false;
        }
        match self.follow_segments(state, &mut wanted) {
            Ok(changed) if wanted.is_empty() => changed,
            _ => {
                self.everything_matters(state);
                true
            }
        }
    }

    fn follow_segments(&mut self, state: &State, wanted: &mut Wanted) -> Result<bool, Lost> {
        let mut changed = false;
        let mut history = state.history.clone();
        let (mut first, mut parent) = (state.first_insn, state.parent);
        let mut last = Some(state.insn);
        let mut after: Option<usize> = None;
        // The instruction before which the state stands was not executed, or makes the request
        // itself.
        let mut skip = true;
        loop {
            let mut left = history.len();
            self.print_segment(wanted.frame, last, first, after);
            let Some(start) = last else {
                return self.at_function_entry(wanted, changed);
            };
            let mut insn = start;
            loop {
                if !std::mem::take(&mut skip) {
                    let step = left
                        .checked_sub(1)
                        .and_then(|at| history.get(at))
                        .filter(|step| step.insn == insn);
                    self.print_back(wanted.frame, *wanted.at(wanted.frame), insn);
                    self.back_over(insn, after, step, wanted)?;
                }
                if wanted.is_empty() {
                    return Ok(changed);
                }
                after = Some(insn);
                match previous(&history, first, insn, &mut left) {
                    Before::Start => break,
                    Before::Insn(previous) => insn = previous,
                    Before::Nothing => return self.at_function_entry(wanted, changed),
                }
            }
            let Some(id) = parent else {
                return self.at_function_entry(wanted, changed);
            };
            changed |= mark(self.explored.state_mut(id), wanted);
            if self.log.level.all() {
                let copy = State::clone(self.explored.state(id));
                self.print_marked(&copy, wanted.frame, &wanted.frames);
            }
            if wanted.is_empty() {
                return Ok(changed);
            }
            after = Some(first);
            let kept = self.explored.state(id);
            last = kept.last_insn;
            first = kept.first_insn;
            parent = kept.parent;
            history = kept.history.clone();
        }
    }

    /// Handles the start of a function that is walked by itself: its parameters have no past.
    fn at_function_entry(&self, wanted: &mut Wanted, changed: bool) -> Result<bool, Lost> {
        let only_arguments =
            wanted
                .frames
                .iter()
                .enumerate()
                .all(|(frame, &(registers, slots))| {
                    slots == 0 && registers & !ARGUMENTS == 0 && (frame == 0 || registers == 0)
                });
        if !only_arguments {
            return Err(Lost);
        }
        wanted.frames.clear();
        Ok(changed)
    }

    /// Marks every number in this state, and in those that it comes from
    /// (`mark_all_scalars_precise`).
    pub(super) fn everything_matters(&mut self, state: &mut State) {
        let mark = |state: &mut State| {
            state.for_each_reg(|reg| {
                if reg.is_scalar() {
                    reg.precise = true;
                }
            });
        };
        mark(state);
        self.print_everything_matters(state.depth());
        let mut parent = state.parent;
        while let Some(id) = parent {
            if self.log.level.all() {
                let copy = State::clone(self.explored.state(id));
                self.print_forced(&copy);
            }
            let kept = self.explored.state_mut(id);
            // Then so does everything before it: paths with many states need not be gone back over
            // each time.
            if std::mem::replace(&mut kept.all_precise, true) {
                return;
            }
            mark(kept);
            parent = kept.parent;
        }
    }

    /// Computes what must be known before an instruction for what is wanted after it
    /// (`backtrack_insn`).
    fn back_over(
        &self,
        insn: usize,
        after: Option<usize>,
        step: Option<&Step>,
        wanted: &mut Wanted,
    ) -> Result<(), Lost> {
        let Some(op) = self.op_at(insn) else {
            return self.back_over_odd(insn, after, wanted);
        };
        if let Some(step) = step {
            wanted.spread(&step.linked);
        }
        let stack = step.and_then(|step| step.stack);
        match op {
            Op::Alu { dst, src, .. } => {
                if let (true, Operand::Reg(src)) = (wanted.has(dst), src) {
                    wanted.add(src);
                }
            }
            Op::Neg { .. } | Op::Swap { .. } => {}
            Op::Move { dst, src, .. } => {
                if wanted.has(dst) {
                    wanted.remove(dst);
                    if let Operand::Reg(src) = src {
                        wanted.add(src);
                    }
                }
            }
            Op::MoveSigned { dst, src, .. } => {
                if wanted.has(dst) {
                    wanted.remove(dst);
                    wanted.add(src);
                }
            }
            Op::Load { dst, .. } | Op::LoadAcquire { dst, .. } => {
                if wanted.has(dst) {
                    wanted.remove(dst);
                    if let Some((frame, slot)) = stack {
                        wanted.at(frame.into()).1 |= 1 << slot;
                    }
                }
            }
            Op::Store { dst, src, .. } => back_over_store(wanted, dst, src, stack)?,
            Op::StoreRelease { dst, src, .. } => {
                back_over_store(wanted, dst, Operand::Reg(src), stack)?;
            }
            Op::Atomic {
                op,
                fetch,
                dst,
                src,
                ..
            } => {
                let fetched = match op {
                    beeline_isa::Atomic::CompareExchange => Some(0),
                    _ => fetch.then_some(src),
                };
                if wanted.has(dst) {
                    return Err(Lost);
                }
                if let (Some(fetched), true) = (fetched, fetched.is_some_and(|reg| wanted.has(reg)))
                {
                    wanted.remove(fetched);
                    // The memory's content before is the fetched value, however it got there.
                    if stack.is_some() {
                        return Err(Lost);
                    }
                }
                if let Some((frame, slot)) = stack
                    && wanted.at(frame.into()).1 & 1 << slot != 0
                {
                    return Err(Lost);
                }
            }
            Op::Imm64 { dst, .. } => wanted.remove(dst),
            Op::Jump { .. } | Op::MayGoto { .. } => {}
            Op::Branch { dst, src, .. } => {
                if let Operand::Reg(src) = src
                    && (wanted.has(dst) || wanted.has(src))
                {
                    if !step.is_some_and(|step| step.src_is_stack) {
                        wanted.add(src);
                    }
                    if !step.is_some_and(|step| step.dst_is_stack) {
                        wanted.add(dst);
                    }
                }
            }
            Op::CallLocal { .. } => self.back_over_call(insn, wanted)?,
            Op::CallHelper { .. } | Op::CallKernel { .. } => {
                self.back_over_helper(insn, &op, after, wanted)?;
            }
            Op::Poison { .. } => return Err(Lost),
            Op::Exit => self.back_over_exit(after, wanted)?,
        }
        if let Some(step) = step {
            wanted.spread(&step.linked);
        }
        Ok(())
    }

    /// Goes back over a call: for a global function the call itself; for others out of their start.
    fn back_over_call(&self, insn: usize, wanted: &mut Wanted) -> Result<(), Lost> {
        let callee = self.flow.callee(insn).ok_or(Lost)?;
        let function = self.flow.function_at(callee).ok_or(Lost)?;
        if self.is_global(function) {
            wanted.remove(0);
            return if *wanted.registers() & ARGUMENTS == 0 {
                Ok(())
            } else {
                Err(Lost)
            };
        }
        let frame = wanted.frame;
        let (registers, slots) = *wanted.at(frame);
        if registers & !ARGUMENTS != 0 || slots != 0 {
            return Err(Lost);
        }
        *wanted.at(frame) = (0, 0);
        wanted.leave_callee()?;
        *wanted.registers() |= registers;
        Ok(())
    }

    /// Goes back over a load from the packet, by which a function may have ended, or over the
    /// second half of a 64-bit immediate.
    fn back_over_odd(
        &self,
        insn: usize,
        after: Option<usize>,
        wanted: &mut Wanted,
    ) -> Result<(), Lost> {
        if !matches!(self.flow.odd(insn), Some(Odd::PacketLoad { .. })) {
            return Ok(());
        }
        if wanted.has(0) {
            return Err(Lost);
        }
        if after != Some(insn + 1) {
            wanted.enter_callee();
        }
        Ok(())
    }

    fn back_over_helper(
        &self,
        insn: usize,
        op: &Op,
        after: Option<usize>,
        wanted: &mut Wanted,
    ) -> Result<(), Lost> {
        if self.shape.at(insn).calls_back && after != Some(insn + 1) {
            // Out of a callback's start.
            let frame = wanted.frame;
            let (registers, slots) = *wanted.at(frame);
            if registers & !ARGUMENTS != 0 || slots != 0 {
                return Err(Lost);
            }
            *wanted.at(frame) = (0, 0);
            return wanted.leave_callee();
        }
        wanted.remove(0);
        if *wanted.registers() & ARGUMENTS != 0 {
            return Err(Lost);
        }
        if matches!(
            op,
            Op::CallHelper {
                id: HelperId::TAIL_CALL
            }
        ) && after != Some(insn + 1)
        {
            wanted.enter_callee();
        }
        Ok(())
    }

    /// Goes back into the end of a function that was called, or of a callback.
    fn back_over_exit(&self, after: Option<usize>, wanted: &mut Wanted) -> Result<(), Lost> {
        let after = after.ok_or(Lost)?;
        if self.shape.at(after).calls_back {
            *wanted.registers() &= !ARGUMENTS;
        }
        if *wanted.registers() & ARGUMENTS != 0 {
            return Err(Lost);
        }
        let called = after
            .checked_sub(1)
            .and_then(|call| self.op_at(call))
            .is_some_and(|op| matches!(op, Op::CallLocal { .. }));
        let result = called && wanted.has(0);
        wanted.remove(0);
        wanted.enter_callee();
        if result {
            wanted.add(0);
        }
        Ok(())
    }
}

fn back_over_store(
    wanted: &mut Wanted,
    dst: u8,
    src: Operand,
    stack: Option<(u8, u8)>,
) -> Result<(), Lost> {
    // A number is no address: two pointers were subtracted.
    if wanted.has(dst) {
        return Err(Lost);
    }
    let Some((frame, slot)) = stack else {
        return Ok(());
    };
    let slots = &mut wanted.at(frame.into()).1;
    if *slots & 1 << slot != 0 {
        *slots &= !(1 << slot);
        if let Operand::Reg(src) = src {
            wanted.add(src);
        }
    }
    Ok(())
}

/// Marks the wanted numbers in a kept state. Numbers that are marked already, or cannot be marked,
/// are no longer wanted.
fn mark(state: &mut State, wanted: &mut Wanted) -> bool {
    let mut changed = false;
    for (number, frame) in state.frames.iter_mut().enumerate() {
        let Some((registers, slots)) = wanted.frames.get_mut(number) else {
            break;
        };
        for (register, reg) in frame.regs.iter_mut().enumerate() {
            let bit = 1 << register;
            if *registers & bit == 0 {
                continue;
            }
            if reg.kind != Type::Scalar || reg.precise {
                *registers &= !bit;
            } else {
                reg.precise = true;
                changed = true;
            }
        }
        for slot in 0..64 {
            let bit = 1 << slot;
            if *slots & bit == 0 {
                continue;
            }
            match frame.stack.get_mut(slot) {
                Some(content) if content.is_spilled_scalar() && !content.reg.precise => {
                    content.reg.precise = true;
                    changed = true;
                }
                _ => *slots &= !bit,
            }
        }
    }
    changed
}

enum Before {
    Insn(usize),
    /// The segment begins here.
    Start,
    /// The function begins here, too.
    Nothing,
}

/// Returns the instruction that came before one on a path (`get_prev_insn_idx`). `left` is the
/// length of the history before it.
fn previous(history: &[Step], first: usize, insn: usize, left: &mut usize) -> Before {
    if insn == first {
        match *left {
            0 => return Before::Start,
            1 if history.first().is_some_and(|step| step.insn == insn) => return Before::Start,
            _ => {}
        }
    }
    let step = left.checked_sub(1).and_then(|at| history.get(at));
    if let Some(step) = step.filter(|step| step.insn == insn) {
        *left -= 1;
        return step.previous.map_or(Before::Nothing, Before::Insn);
    }
    insn.checked_sub(1).map_or(Before::Nothing, Before::Insn)
}

//! Paths without the pruning of the exploration: one run's, step by step, or all of them. Nothing
//! is compared with kept states, so the claims of a path follow from its own instructions alone.
//! Later reads are not considered either.

use beeline_isa::{FRAME_POINTER, Op};
use beeline_uapi::Errno;

use super::{Check, Explorer, Next, Pending, callback, no};
use crate::oracle::Moment;
use crate::state::{Byte, Frame, Reg, State, Type};

/// The bytes from a function's frame pointer to its caller's.
const FRAME_BYTES: u64 = beeline_isa::STACK_BYTES.unsigned_abs() as u64;
/// The most paths that are tried for a run's step. There are more than two if an instruction
/// distinguishes values, and at the end of a callback.
const MOST_WAYS: usize = 8;

/// The path that a run takes, and the paths that wait for the return of functions which are walked
/// by themselves.
#[derive(Default)]
pub(crate) struct Run {
    started: bool,
    outer: Vec<Outer>,
    /// The depth of the call of the function that is being walked.
    depth: usize,
}

/// A path that called a global function.
struct Outer {
    state: State,
    insn: usize,
    depth: usize,
}

impl Explorer<'_> {
    /// Moves the run to another instruction, with these values. The error says where the
    /// exploration claims otherwise.
    pub(crate) fn come_to(&mut self, run: &mut Run, at: &Moment<'_>) -> Result<(), String> {
        if !run.started {
            run.started = true;
            self.begin(0)?;
            return self.check_claims(&self.cur, at);
        }
        let op = self.op_at(self.insn);
        if let Some(Op::CallLocal { .. }) = op
            && let Some(callee) = self
                .flow
                .function_at(at.insn)
                .filter(|&it| self.is_global(it))
        {
            return self.come_into_global(run, callee, at);
        }
        if matches!(op, Some(Op::Exit)) && self.cur.depth() == 0 {
            return self.come_out_of_global(run, at);
        }
        let frames = (at.depth + 1).saturating_sub(run.depth);
        self.take_way(frames, at)
    }

    /// Executes the instruction that the run has executed, and continues with the path that is
    /// where the run is, with its values.
    fn take_way(&mut self, frames: usize, at: &Moment<'_>) -> Result<(), String> {
        let start = self.insn;
        let mut differs = None;
        let mut ways = vec![(self.take_state(), start)];
        for _ in 0..MOST_WAYS {
            let Some((state, insn)) = ways.pop() else {
                break;
            };
            (self.cur, self.insn) = (state, insn);
            let goes_on = self.one_step()?;
            let pending = std::mem::take(&mut self.pending);
            let next = (self.take_state(), self.insn);
            let all = pending.into_iter().map(|way| (way.state, way.insn));
            for (state, insn) in goes_on.then_some(next).into_iter().chain(all) {
                if insn == at.insn && state.frames.len() == frames {
                    match self.check_claims(&state, at) {
                        Ok(()) => {
                            (self.cur, self.insn) = (state, insn);
                            return Ok(());
                        }
                        Err(why) => differs = differs.or(Some(why)),
                    }
                } else if insn == start || self.calls_back(insn) {
                    // One of the values that the instruction distinguishes, or a callback's end,
                    // which leads to its call.
                    ways.push((state, insn));
                }
            }
        }
        Err(differs.unwrap_or_else(|| {
            let to = at.insn;
            format!("insn {start}: the run goes to insn {to}, which no path does")
        }))
    }

    fn calls_back(&self, insn: usize) -> bool {
        let op = self.op_at(insn);
        op.is_some_and(|op| callback::is_synchronous(self.program, &op))
    }

    fn begin(&mut self, function: usize) -> Result<(), String> {
        let mut frame = Frame::new(None, function, 0);
        let entry = self.entry_registers(function, &mut frame);
        entry.map_err(|no| no.why)?;
        self.cur = State::new(frame);
        self.cur.in_sleepable = self.program.kind.is_sleepable();
        self.insn = self.flow.functions()[function].start;
        self.previous = None;
        self.enter_instance();
        Ok(())
    }

    fn come_into_global(
        &mut self,
        run: &mut Run,
        callee: usize,
        at: &Moment<'_>,
    ) -> Result<(), String> {
        self.one_step()?;
        run.outer.push(Outer {
            state: self.take_state(),
            insn: self.insn,
            depth: std::mem::replace(&mut run.depth, at.depth),
        });
        self.begin(callee)?;
        self.check_claims(&self.cur, at)
    }

    fn come_out_of_global(&mut self, run: &mut Run, at: &Moment<'_>) -> Result<(), String> {
        let here = self.insn;
        self.one_step()?;
        let outer = run.outer.pop().filter(|outer| outer.insn == at.insn);
        let Some(outer) = outer else {
            return Err(format!(
                "insn {here}: the run goes on at insn {} behind its end",
                at.insn
            ));
        };
        self.cur = outer.state;
        self.insn = outer.insn;
        self.previous = None;
        run.depth = outer.depth;
        self.check_claims(&self.cur, at)
    }

    /// Executes an instruction without recording the way back: numbers that matter are not tracked.
    /// Other ways are left in `pending`. Returns `false` if the current path is at its end.
    fn one_step(&mut self) -> Result<bool, String> {
        self.pending.clear();
        let here = self.insn;
        let next = self
            .alone()
            .map_err(|no| format!("insn {here}: refused on its path: {}", no.why))?;
        Ok(match next {
            Next::Insn(next) => {
                self.insn = next;
                true
            }
            Next::End => false,
        })
    }

    fn alone(&mut self) -> Check<Next> {
        self.step = None;
        self.effort.insns_processed += 1;
        self.cur.history = std::rc::Rc::default();
        self.cur.last_insn = self.previous;
        self.cur.insn = self.insn;
        self.cur.first_insn = self.insn;
        let here = self.insn;
        let next = match (self.flow.odd(here), self.flow.op(here)) {
            (Some(odd), _) => self.odd_instruction(odd)?,
            (None, Some(op)) => self.instruction(op)?,
            (None, None) => return no(Errno::EFAULT, format!("invalid insn idx {here}")),
        };
        self.previous = Some(here);
        Ok(next)
    }

    /// Checks that these values are among those that a state stands for.
    fn check_claims(&self, state: &State, at: &Moment<'_>) -> Result<(), String> {
        let frame = state.frame();
        let innermost = state.depth();
        for (number, (reg, &value)) in frame.regs.iter().zip(at.registers).enumerate() {
            if !holds(reg, value, innermost, at) {
                return Err(format!(
                    "before insn {} R{number} is {value:#x}, and not {}",
                    at.insn,
                    self.text().reg(reg, self.cur.depth())
                ));
            }
        }
        for (number, slot) in frame.stack.iter().enumerate() {
            let end = at.stack.len().checked_sub(8 * number);
            let Some(bytes) = end.and_then(|end| at.stack.get(end.checked_sub(8)?..end)) else {
                break;
            };
            let spilled = slot
                .bytes
                .iter()
                .take_while(|&&byte| byte == Byte::Spill)
                .count();
            let mut value = [0; 8];
            value[..spilled].copy_from_slice(&bytes[..spilled]);
            let value = u64::from_le_bytes(value);
            let good = match spilled {
                0 => true,
                8 => holds(&slot.reg, value, innermost, at),
                _ if !slot.reg.is_scalar() => true,
                _ => {
                    let low = u64::MAX >> (64 - 8 * spilled);
                    let bits = slot.reg.var.bits;
                    (value ^ bits.value) & !bits.mask & low == 0
                }
            };
            let zeros = slot.bytes.iter().zip(bytes);
            let zeros = zeros
                .into_iter()
                .all(|(kind, &byte)| *kind != Byte::Zero || byte == 0);
            if !good || !zeros {
                return Err(format!(
                    "before insn {} the stack at -{} is {bytes:x?}, and not {:?} {}",
                    at.insn,
                    8 * (number + 1),
                    slot.bytes,
                    self.text().reg(&slot.reg, self.cur.depth())
                ));
            }
        }
        Ok(())
    }

    /// Follows every path of the whole program separately, for up to so many instructions. An
    /// accepted program must be accepted this way too: skipping paths may hide nothing. Returns
    /// `None` if there is more.
    pub(crate) fn every_path(&mut self, most: u32) -> Option<Result<(), String>> {
        let outcome = self.check_maps_suit().and_then(|()| {
            let mut number = Some(0);
            let mut done = vec![false; self.called.len()];
            while let Some(function) = number {
                done[function] = true;
                self.pending.clear();
                if let Err(why) = self.begin(function) {
                    return no(Errno::EINVAL, why);
                }
                while self.every_step(most)? {}
                number = (1..done.len()).find(|&at| self.called[at] && !done[at]);
            }
            Ok(())
        });
        match outcome {
            Err(no) if no.errno == Errno::E2BIG => None,
            Err(no) => {
                let (insn, state) = (self.insn, self.state_text());
                Some(Err(format!("insn {insn}: {}\n{}", no.why, state.trim())))
            }
            Ok(()) => Some(Ok(())),
        }
    }

    /// Takes a step; returns `false` if there is no further path.
    fn every_step(&mut self, most: u32) -> Check<bool> {
        if self.effort.insns_processed > most {
            return no(Errno::E2BIG, "");
        }
        if let Next::Insn(next) = self.alone()? {
            self.insn = next;
            return Ok(true);
        }
        let Some(Pending {
            state,
            insn,
            previous,
            ..
        }) = self.pending.pop()
        else {
            return Ok(false);
        };
        self.cur = state;
        self.insn = insn;
        self.previous = Some(previous);
        Ok(true)
    }
}

/// Returns whether a register in this state may have this value.
fn holds(reg: &Reg, value: u64, innermost: usize, at: &Moment<'_>) -> bool {
    let start = match reg.kind {
        Type::Uninit => return true,
        Type::Scalar => return reg.var.has(value),
        _ if reg.may_be_null() && value == 0 => return true,
        Type::Stack(frame) => {
            let outwards = innermost.saturating_sub(frame.into()) as u64;
            at.registers[usize::from(FRAME_POINTER)].wrapping_add(outwards * FRAME_BYTES)
        }
        Type::Context => at.context,
        Type::MapValue(_) | Type::Mem(_) | Type::Map(_) | Type::Packet => return value != 0,
        _ => return true,
    };
    // For a pointer, the 64-bit bounds are those of the added number.
    let moved = value
        .wrapping_sub(start)
        .wrapping_sub(i64::from(reg.off).cast_unsigned());
    let var = &reg.var;
    var.bits.has(moved)
        && (var.wide.umin..=var.wide.umax).contains(&moved)
        && (var.wide.smin..=var.wide.smax).contains(&moved.cast_signed())
}

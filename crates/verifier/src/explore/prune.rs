//! Decides whether there is anything new in a state. States are kept at some instructions. A path
//! that arrives there in a state which one of them covers need not be followed any further
//! (`is_state_visited`).

use beeline_uapi::Errno;
use beeline_uapi::flags::TEST_STATE_FREQ;
use beeline_uapi::limits::LONG_JMP_HISTORY;

use super::equal::{Alike, states_equal};
use super::{Check, Explorer, no};
use crate::state::{Object, Reg, Slot, State, StateId};

impl Explorer<'_> {
    /// Returns `true` if the current path need not be followed.
    pub(super) fn is_visited(&mut self) -> Check<bool> {
        let checkpoint = self.shape.at(self.insn).checkpoint;
        let forced = self.program.kind.flags & TEST_STATE_FREQ != 0
            || checkpoint
            || self.cur.history.len() > LONG_JMP_HISTORY;
        let jumps = self.jumps - self.jumps_kept;
        let insns = self.effort.insns_processed - self.insns_kept;
        let mut add = forced || jumps >= 2 && insns >= 8;
        match self.look_through(forced, checkpoint, &mut add)? {
            Some((id, in_loop)) => {
                self.hit(id, in_loop)?;
                Ok(true)
            }
            None => {
                if add {
                    self.keep();
                }
                Ok(false)
            }
        }
    }

    /// Finds the newest state that covers the current one, and whether that is in a loop. States
    /// that are not worth it are given up.
    fn look_through(
        &mut self,
        forced: bool,
        checkpoint: bool,
        add: &mut bool,
    ) -> Check<Option<(StateId, bool)>> {
        let callsite = self.cur.frame().callsite;
        let mut states = 0;
        let mut given_up = false;
        let mut found = None;
        for at in (0..self.explored.at(self.insn).len()).rev() {
            let id = self.explored.at(self.insn)[at];
            if self.explored.state(id).frame().callsite != callsite {
                continue;
            }
            states += 1;
            self.clean(id);
            if let Some(in_loop) = self.compare(id, forced, add)? {
                found = Some((id, in_loop));
                break;
            }
            if self.explored.missed(id, *add, checkpoint) {
                given_up = true;
                self.drop_retired(id);
            }
        }
        self.effort.max_states_per_insn = self.effort.max_states_per_insn.max(states);
        if given_up {
            self.explored.forget_retired(self.insn);
        }
        Ok(found)
    }

    /// Returns whether a kept state covers the current one. `Some(true)`: the kept one is not yet
    /// known to be good, but the current one is a further turn of the same loop.
    fn compare(&mut self, id: StateId, forced: bool, add: &mut bool) -> Check<Option<bool>> {
        let old = self.explored.state(id);
        if old.branches == 0 {
            let in_loop = self.is_incomplete(id);
            // The kernel does not take calls of callbacks for loops here, and compares less
            // closely; but the numbers that mattered are not known in them either.
            let alike = match in_loop {
                true if self.only_calls_back(old) => Alike::Enclosed,
                true => Alike::Within,
                false => Alike::Covered,
            };
            return Ok(self.is_like(id, alike).then_some(in_loop));
        }
        let place = self.shape.at(self.insn);
        let frame = old.frame();
        let another_async =
            frame.in_async_callback && frame.async_entry != self.cur.frame().async_entry;
        let is_next = self
            .op_at(self.insn)
            .is_some_and(|op| super::kernel_call::is_next(self.program, &op));
        let is_may_goto = matches!(self.op_at(self.insn), Some(beeline_isa::Op::MayGoto { .. }));
        if another_async {
            // This is not a loop, and not known to be good either.
        } else if is_next {
            if self.is_like(id, Alike::Within) && self.iterator_is_active() {
                return Ok(Some(true));
            }
        } else if place.calls_back {
            if self.is_like(id, Alike::Within) {
                return Ok(Some(true));
            }
        } else {
            if is_may_goto
                && old.may_goto_depth != self.cur.may_goto_depth
                && self.is_like(id, Alike::Within)
            {
                return Ok(Some(true));
            }
            let old = self.explored.state(id);
            if may_loop(old, &self.cur)
                && old.may_goto_depth == self.cur.may_goto_depth
                && old.callback_unroll_depth == self.cur.callback_unroll_depth
                && !iterators_differ(old, &self.cur)
                && self.is_like(id, Alike::Exactly)
            {
                return no(
                    Errno::EINVAL,
                    format!("infinite loop detected at insn {}", self.insn),
                );
            }
        }
        let jumps = self.jumps - self.jumps_kept;
        let insns = self.effort.insns_processed - self.insns_kept;
        if !forced && jumps < 20 && insns < 100 {
            *add = false;
        }
        Ok(None)
    }

    fn is_like(&self, id: StateId, alike: Alike) -> bool {
        let live = |insn| self.shape.at(insn).live;
        states_equal(
            self.program,
            self.explored.state(id),
            &self.cur,
            live,
            alike,
        )
    }

    /// Returns whether the iterator that r1 points to has not come to its end.
    fn iterator_is_active(&self) -> bool {
        let reg = self.cur.reg(1);
        let Some(off) = reg.var.constant() else {
            return false;
        };
        let at = reg.off.wrapping_add(off as i32);
        if at >= 0 {
            return false;
        }
        let (slot, _) = crate::state::place(at);
        let frame = &self.cur.frames[Self::frame_of(reg)];
        frame
            .stack
            .get(slot)
            .is_some_and(|slot| matches!(slot.object, Object::Iter { active: true, .. }))
    }

    fn hit(&mut self, id: StateId, in_loop: bool) -> Check {
        self.explored.hit(id);
        if self.shape.at(self.insn).jump {
            self.remember(|_| ());
        }
        let cur = self.take_state();
        let (cur, outcome) = self.take_over_precision(id, cur);
        self.cur = cur;
        outcome?;
        if in_loop {
            self.add_way_back(id);
        }
        Ok(())
    }

    /// Drops a retired state when no path comes from it any more.
    pub(super) fn drop_retired(&mut self, id: StateId) {
        if self.explored.is_over(id) && !self.is_incomplete(id) {
            self.explored.remove(id);
        }
    }

    fn keep(&mut self) {
        self.jumps_kept = self.jumps;
        self.insns_kept = self.effort.insns_processed;
        self.cur.for_each_reg(|reg| reg.precise = false);
        let id = self.explored.keep(self.insn, self.cur.clone());
        self.effort.total_states += 1;
        self.effort.peak_states = self.effort.peak_states.max(self.explored.count());
        self.enter_loop(id);
        self.cur.parent = Some(id);
        self.cur.first_insn = self.insn;
        self.cur.dfs_depth += 1;
        self.cur.history = std::rc::Rc::default();
    }

    /// Ends the current path; states that all paths have returned from are done
    /// (`update_branch_counts`).
    pub(super) fn path_ended(&mut self) -> Check {
        let mut next = self.cur.parent;
        while let Some(id) = next {
            let state = self.explored.state_mut(id);
            state.branches -= 1;
            if state.branches > 0 {
                break;
            }
            next = state.parent;
            self.leave_loop(id)?;
            self.drop_retired(id);
        }
        Ok(())
    }

    /// Drops from a done state the parts that no path from it reads, so that it covers more states
    /// (`clean_live_states`).
    fn clean(&mut self, id: StateId) {
        let state = self.explored.state(id);
        if state.branches > 0 || state.cleaned || self.is_incomplete(id) {
            return;
        }
        let state = self.explored.state(id);
        let frames: Vec<_> = state
            .frames
            .iter()
            .map(|frame| (frame.callsite, frame.function))
            .collect();
        let insns: Vec<_> = (0..frames.len())
            .map(|frame| state.insn_of(frame))
            .collect();
        let chain = self.chain(&frames);
        self.update_chain(&chain);
        let live: Vec<_> = insns.iter().map(|&insn| self.shape.at(insn).live).collect();
        let alive: Vec<_> = (0..frames.len())
            .map(|frame| self.slots_alive(&chain, &insns, frame))
            .collect();
        let state = self.explored.state_mut(id);
        state.cleaned = true;
        for ((frame, live), alive) in state.frames.iter_mut().zip(live).zip(alive) {
            for (number, reg) in frame.regs.iter_mut().enumerate().take(10) {
                if live & 1 << number == 0 {
                    *reg = Reg::UNINIT;
                }
            }
            for (number, slot) in frame.stack.iter_mut().enumerate() {
                if alive & 1 << number == 0 {
                    *slot = Slot::INVALID;
                }
            }
        }
    }

    /// Returns an earlier turn of the current path's loop, at this instruction, with fewer than
    /// `depth` kept states before it (`find_prev_entry`).
    pub(super) fn earlier_turn(&self, insn: usize, depth: u32) -> Option<StateId> {
        let callsites = |state: &State| {
            state
                .frames
                .iter()
                .map(|frame| frame.callsite)
                .collect::<Vec<_>>()
        };
        let own = callsites(&self.cur);
        let candidates = self.explored.at(insn);
        candidates.iter().rev().copied().find(|&id| {
            let state = self.explored.state(id);
            state.branches > 0 && state.dfs_depth < depth && callsites(state) == own
        })
    }

    /// Takes the current state, which must be put back.
    pub(super) fn take_state(&mut self) -> State {
        let frame = crate::state::Frame::new(None, 0, 0);
        std::mem::replace(&mut self.cur, State::new(frame))
    }
}

/// Implements `states_maybe_looping`: a quick look.
fn may_loop(old: &State, new: &State) -> bool {
    old.frames.len() == new.frames.len()
        && old.frame().regs[..10]
            .iter()
            .zip(&new.frame().regs[..10])
            .all(|(old, new)| {
                old.kind == new.kind
                    && old.flags == new.flags
                    && old.off == new.off
                    && old.var == new.var
            })
}

/// Returns whether an iterator has moved on in between (`iter_active_depths_differ`).
fn iterators_differ(old: &State, new: &State) -> bool {
    old.frames.iter().zip(&new.frames).any(|(old, new)| {
        old.stack.iter().zip(&new.stack).any(|(old, new)| {
            matches!(
                (old.object, new.object),
                (
                    Object::Iter { depth: old, active: true, .. },
                    Object::Iter { depth: new, active: true, .. },
                ) if old != new
            )
        })
    })
}

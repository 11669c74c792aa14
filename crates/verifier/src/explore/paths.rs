//! Paths: the exploration follows one, and puts the others off (`do_check`, `push_stack`).

use beeline_uapi::Errno;
use beeline_uapi::limits::BPF_COMPLEXITY_LIMIT_JMP_SEQ;

use super::{Check, Explorer, Next, no};
use crate::state::{Frame, State};

/// A path to be followed later.
pub(super) struct Pending {
    pub state: State,
    pub insn: usize,
    pub previous: usize,
    /// The log's length at that time.
    pub log: usize,
    /// The bytes of the state.
    pub weight: usize,
}

impl Explorer<'_> {
    /// Follows paths until none are left (`do_check`).
    pub(super) fn paths(&mut self) -> Check {
        loop {
            self.step = None;
            self.effort.insns_processed += 1;
            if self.effort.insns_processed > self.most_insns {
                let processed = self.effort.insns_processed;
                return no(
                    Errno::E2BIG,
                    format!("BPF program is too large. Processed {processed} insn"),
                );
            }
            self.check_weight()?;
            self.cur.last_insn = self.previous;
            self.cur.insn = self.insn;
            if self.shape.at(self.insn).prune && self.is_visited()? {
                self.log.safe(self.previous, self.insn);
                if !self.next_path()? {
                    return Ok(());
                }
                continue;
            }
            if self.shape.at(self.insn).jump {
                self.remember(|_| ());
            }
            let Some(op) = self.flow.op(self.insn) else {
                return no(Errno::EFAULT, format!("invalid insn idx {}", self.insn));
            };
            self.print_before();
            self.seen[self.insn].reached = true;
            self.stack_liveness.begin(self.insn);
            let here = self.insn;
            let next = match self.flow.odd(here) {
                Some(odd) => self.odd_instruction(odd)?,
                None => self.instruction(op)?,
            };
            self.stack_liveness.commit(here);
            self.previous = Some(here);
            match next {
                Next::Insn(next) => self.insn = next,
                Next::End => {
                    if !self.next_path()? {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Ends the current path, and takes up the one that was put off last. Returns `false` if there
    /// is none.
    fn next_path(&mut self) -> Check<bool> {
        self.update_alive();
        self.path_ended()?;
        let Some(pending) = self.pending.pop() else {
            return Ok(false);
        };
        if !self.log.level.all() {
            self.log.back_to(pending.log);
        }
        self.pending_bytes -= pending.weight;
        self.cur = pending.state;
        self.insn = pending.insn;
        self.previous = Some(pending.previous);
        self.log.print_state = true;
        self.enter_instance();
        Ok(true)
    }

    /// Puts off a path that continues from the current state at another instruction (`push_stack`).
    pub(super) fn put_off(&mut self, insn: usize) -> Check<&mut State> {
        let mut state = self.cur.clone();
        state.branches = 1;
        if let Some(parent) = state.parent {
            self.explored.state_mut(parent).branches += 1;
        }
        self.push(insn, state, "The sequence of {} jumps is too complex.")
    }

    /// Puts off a path that begins at `insn` with nothing before it (`push_async_cb`).
    pub(super) fn put_off_alone(&mut self, insn: usize, frame: Frame) -> Check<&mut State> {
        let mut state = State::new(frame);
        state.branches = 1;
        self.push(
            insn,
            state,
            "The sequence of {} jumps is too complex for async cb.",
        )
    }

    fn push(&mut self, insn: usize, state: State, too_many: &str) -> Check<&mut State> {
        let weight = state.weight();
        self.pending_bytes += weight;
        self.pending.push(Pending {
            state,
            weight,
            insn,
            previous: self.insn,
            log: self.log.len(),
        });
        if self.pending.len() > BPF_COMPLEXITY_LIMIT_JMP_SEQ {
            let pending = self.pending.len().to_string();
            return no(Errno::E2BIG, too_many.replace("{}", &pending));
        }
        match self.pending.last_mut() {
            Some(pending) => Ok(&mut pending.state),
            None => no(Errno::EFAULT, "no path was put off"),
        }
    }
}

//! Loops that end by themselves: iterators, callbacks and `may_goto`.
//!
//! In such a loop, a path ends when it comes round in a state that lies within one seen before,
//! although it is not yet known whether that one is good, nor which of its numbers matter. So as
//! long as paths are in the loop, its states are compared closely. When all are done, the numbers
//! that mattered in the states that paths came round to are carried over to the states that came
//! round, until nothing changes (the *backedges* of `kernel/bpf/verifier.c`).

use std::collections::HashMap;
use std::fmt;

use beeline_uapi::limits::MAX_BACKEDGE_ITERS;

use super::{Check, Explorer};
use crate::state::{State, StateId};

/// A loop as one chain of calls reaches it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Place {
    callsites: Vec<usize>,
    component: u32,
}

/// Formats it as the log names it.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(")?;
        for callsite in &self.callsites {
            write!(f, "{callsite},")?;
        }
        write!(f, "{})", self.component)
    }
}

#[derive(Debug, Default)]
struct Visit {
    /// The first kept state in the loop.
    entry: Option<StateId>,
    /// States that came round.
    ways_back: Vec<State>,
}

#[derive(Debug, Default)]
pub(super) struct Loops {
    visits: HashMap<Place, Visit>,
    /// The number of ways back in all visits.
    ways_back: usize,
}

impl Loops {
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

impl Explorer<'_> {
    /// Returns the outermost loop that a state is in (`compute_scc_callchain`).
    fn loop_of(&self, state: &State) -> Option<Place> {
        let mut callsites = Vec::new();
        for frame in 0..state.frames.len() {
            let insn = state.insn_of(frame);
            let component = self.shape.at(insn).component;
            if component != 0 {
                return Some(Place {
                    callsites,
                    component,
                });
            }
            callsites.push(insn);
        }
        None
    }

    /// Returns whether the outermost loop of a state is one only because a function is called back.
    pub(super) fn only_calls_back(&self, state: &State) -> bool {
        let mut places = (0..state.frames.len()).map(|frame| self.shape.at(state.insn_of(frame)));
        places
            .find(|place| place.component != 0)
            .is_some_and(|place| place.only_calls_back)
    }

    /// Records that a state was kept.
    pub(super) fn enter_loop(&mut self, id: StateId) {
        if let Some(place) = self.loop_of(self.explored.state(id)) {
            let name = self.log.level.all().then(|| place.to_string());
            let visit = self.loops.visits.entry(place).or_default();
            if visit.entry.is_none() {
                visit.entry = Some(id);
                self.log
                    .line(&name.map_or_else(String::new, |it| format!("SCC enter {it}")));
            }
        }
    }

    /// Records that all paths from a state are done.
    pub(super) fn leave_loop(&mut self, id: StateId) -> Check {
        let Some(place) = self.loop_of(self.explored.state(id)) else {
            return Ok(());
        };
        let Some(visit) = self.loops.visits.get_mut(&place) else {
            return Ok(());
        };
        if visit.entry != Some(id) {
            return Ok(());
        }
        if self.log.level.all() {
            self.log.line(&format!("SCC exit {place}"));
        }
        visit.entry = None;
        let mut ways_back = std::mem::take(&mut visit.ways_back);
        self.loops.ways_back -= ways_back.len();
        let mut changed = !ways_back.is_empty();
        let mut rounds = 0;
        while changed {
            changed = false;
            rounds += 1;
            for way in &mut ways_back {
                if rounds > MAX_BACKEDGE_ITERS {
                    self.everything_matters(way);
                    continue;
                }
                let frame = crate::state::Frame::new(None, 0, 0);
                let state = std::mem::replace(way, State::new(frame));
                let Some(equal) = state.equal else { continue };
                let (state, outcome) = self.take_over_precision(equal, state);
                *way = state;
                changed |= outcome?;
            }
        }
        // These were given up long ago, and were kept only for the ways back.
        let retired: Vec<_> = ways_back.iter().filter_map(|way| way.equal).collect();
        for id in retired {
            if self.explored.has(id) {
                self.drop_retired(id);
            }
        }
        Ok(())
    }

    /// Records that the current path has come round to a state.
    pub(super) fn add_way_back(&mut self, id: StateId) {
        let Some(place) = self.loop_of(self.explored.state(id)) else {
            return;
        };
        if self.log.level.all() {
            self.log.line(&format!("SCC backedge {place}"));
        }
        let mut state = self.cur.clone();
        state.equal = Some(id);
        state.insn = self.insn;
        self.loops.ways_back += 1;
        self.loops
            .visits
            .entry(place)
            .or_default()
            .ways_back
            .push(state);
    }

    /// Returns whether it is still unknown which of its numbers matter.
    pub(super) fn is_incomplete(&self, id: StateId) -> bool {
        if self.loops.ways_back == 0 {
            return false;
        }
        let place = self.loop_of(self.explored.state(id));
        place
            .and_then(|place| self.loops.visits.get(&place))
            .is_some_and(|visit| !visit.ways_back.is_empty())
    }
}

//! The passes over a program.
//!
//! The first finds the branches on the existence of elements, and the ways that are taken only if a
//! map has no room. The second, which knows where those branches' ways meet, computes the states.
//! The last goes over each instruction once and takes notes.

use std::collections::{BTreeMap, BTreeSet};

use beeline_isa::{Insn, Op};

use super::branches::{Failing, Ways};
use super::record::{Record, Records};
use super::regions::{self, EXIT, Region};
use super::state::{Effect, Open, State};
use super::step::{MISSING, Maps, Step};
use super::value::*;
use crate::flow::{Flow, Function};

/// A program that takes more steps, all passes together, is too complicated.
const STEPS_PER_INSN: usize = 256;

/// Returns a record for each map; `None` if the program has no shape that can be followed.
pub(super) fn run(insns: &[Insn], maps: &Maps<'_>) -> Option<Vec<Record>> {
    let flow = Flow::of(insns).ok()?;
    let mut analysis = Analysis {
        flow: &flow,
        insns,
        maps,
        records: Records::new(maps.all.len()),
        regions: BTreeMap::new(),
        branches: BTreeMap::new(),
        pruned: BTreeSet::new(),
        meets: BTreeSet::new(),
        ends: BTreeMap::new(),
        loops: false,
        steps: insns.len() * STEPS_PER_INSN,
    };
    let functions = flow.functions().iter().copied();
    for function in functions.filter(|function| flow.is_reachable(function.start)) {
        analysis.function(function);
    }
    (analysis.steps > 0).then_some(analysis.records.all)
}

struct Analysis<'a> {
    flow: &'a Flow,
    insns: &'a [Insn],
    maps: &'a Maps<'a>,
    records: Records,
    regions: BTreeMap<usize, Region>,
    /// Branches on the existence of elements, with the maps.
    branches: BTreeMap<usize, usize>,
    /// Edges that are taken only if a map has no room: from, to, the map.
    pruned: BTreeSet<(usize, usize, usize)>,
    /// Instructions at which ways meet.
    meets: BTreeSet<usize>,
    /// By branch on existence: the effect of the first of its ways to end, and the number that the
    /// function returns if it ends there.
    ends: BTreeMap<usize, (Effect, Option<u64>)>,
    loops: bool,
    /// The number of steps that may still be made: a program may be too complicated.
    steps: usize,
}

type States = BTreeMap<usize, State>;

impl Analysis<'_> {
    fn function(&mut self, function: Function) {
        (self.regions, self.ends) = (BTreeMap::new(), BTreeMap::new());
        (self.branches, self.pruned) = (BTreeMap::new(), BTreeSet::new());
        let edges = self.flow.reachable_ops(function);
        let edges = edges.flat_map(|(at, _)| self.flow.successors(at).map(move |to| (at, to)));
        let edges: Vec<(usize, usize)> = edges.collect();
        self.loops = edges.iter().any(|(at, to)| to <= at);
        let mut seen = BTreeSet::from([function.start]);
        let met = edges.iter().filter(|(_, to)| !seen.insert(*to));
        self.meets = met.map(|(_, to)| *to).collect();
        let records = self.records.all.clone();
        // What seemed certain on the way need not be so in the end.
        let states = self.fixpoint(function.start);
        (self.branches, self.pruned) = (BTreeMap::new(), BTreeSet::new());
        for (at, state) in states {
            self.walk(at, state, |_, _, _, _| {});
        }
        self.regions = regions::find(self.flow, function, &self.branches, &self.pruned);
        let states = self.fixpoint(function.start);
        self.records.all = records;
        for (at, state) in states {
            self.walk(at, state, |this, at, to, state| {
                this.end_regions(at, to, state)
            });
        }
    }

    /// Returns the state at the start and at each instruction where ways meet.
    fn fixpoint(&mut self, start: usize) -> States {
        let mut states = BTreeMap::from([(start, State::entry())]);
        let mut pending = BTreeSet::from([start]);
        while let Some(at) = pending.pop_first() {
            if self.steps == 0 {
                break;
            }
            let state = states[&at].clone();
            for (to, state, closing) in self.walk(at, state, |_, _, _, _| {}) {
                let changed = match states.get_mut(&to) {
                    Some(known) => known.join(state, to, closing),
                    None => {
                        states.insert(to, state);
                        true
                    }
                };
                if changed {
                    pending.insert(to);
                }
            }
        }
        states
    }

    /// Follows all ways from an instruction up to where they meet others; returns the states there,
    /// with the maps by whose elements the ways were chosen. `edge` gets each step.
    fn walk(
        &mut self,
        at: usize,
        state: State,
        mut edge: impl FnMut(&mut Self, usize, usize, &State),
    ) -> Vec<(usize, State, MapSet)> {
        let mut pending = vec![(at, state)];
        let mut met = Vec::new();
        while let Some((at, state)) = pending.pop() {
            for (to, mut state) in self.step(at, state) {
                edge(self, at, to, &state);
                if to == EXIT {
                    continue;
                }
                let closing = self.close(to, &mut state);
                if self.meets.contains(&to) {
                    if self.loops {
                        state.forget(|def| matches!(def, Def::Join(site, _) if site == to));
                    }
                    met.push((to, state, closing));
                } else {
                    pending.push((to, state));
                }
            }
        }
        met
    }

    /// Ends the branches whose ways meet at `to`; returns their maps.
    fn close(&self, to: usize, state: &mut State) -> MapSet {
        let mut closing = MapSet::default();
        for (branch, region) in self.regions.iter().filter(|(_, region)| region.end == to) {
            let open = state
                .open
                .iter()
                .find(|open| open.branch == *branch)
                .cloned();
            if let Some(open) = open {
                closing = closing.with(MapSet::one(open.place.map));
                state.close(&open, |site| region.has(site) || site == to);
            }
        }
        closing
    }

    /// Compares what the ways of a branch on existence have done where they end.
    fn end_regions(&mut self, at: usize, to: usize, state: &State) {
        self.records.at = at;
        for Open {
            branch,
            place,
            effect,
        } in &state.open
        {
            let end = self.regions.get(branch).map(|region| region.end);
            if end.is_some_and(|end| end != to) && to != EXIT {
                continue;
            }
            let is_known = end.is_some();
            let returned = (to == EXIT).then(|| state.reg(0).as_const()).flatten();
            let end = (effect.clone(), returned);
            let first = self.ends.entry(*branch).or_insert_with(|| end.clone());
            let is_equal =
                is_known && effect.is_some() && *first == end && returned.is_some() == (to == EXIT);
            if !is_equal {
                self.records.leak(MapSet::one(place.map), MISSING);
            }
        }
    }

    /// Returns the states after an instruction, by the instruction that follows.
    fn step(&mut self, at: usize, mut state: State) -> Vec<(usize, State)> {
        self.records.at = at;
        self.steps = self.steps.saturating_sub(1);
        if self.loops {
            state.forget(|def| matches!(def, Def::Insn(site) | Def::Buffer(site) if site == at));
        }
        let Some(op) = self.flow.op(at) else {
            return Vec::new();
        };
        let mut step = Step {
            maps: self.maps,
            records: &mut self.records,
            regions: &self.regions,
            at,
            state,
        };
        match op {
            Op::Branch {
                cond,
                wide,
                dst,
                src,
                off,
            } => {
                let ways = step.branch(cond, wide, dst, src);
                return self.ways(at, (at + 1).wrapping_add_signed(off.into()), ways);
            }
            Op::CallHelper { id } => step.call_helper(id),
            Op::CallLocal { .. } => step.call_local(),
            Op::CallKernel { .. } => step.call_kernel(),
            Op::Exit | Op::Poison { .. } => {
                let result = step.state.reg(0).clone();
                step.give_up(&result, "a program returns its values");
                return vec![(EXIT, step.state)];
            }
            _ => {
                let high = self.insns.get(at + 1).map_or(0, |insn| insn.imm);
                step.run(&op, high);
            }
        }
        let state = step.state;
        let next: Vec<usize> = self.flow.successors(at).collect();
        next.into_iter().map(|to| (to, state.clone())).collect()
    }

    fn ways(&mut self, at: usize, target: usize, ways: Ways) -> Vec<(usize, State)> {
        if let Some(map) = ways.by_existence {
            self.branches.insert(at, map);
        }
        if let Some(Failing { map, if_taken }) = ways.failing {
            let to = if if_taken { target } else { at + 1 };
            self.pruned.insert((at, to, map));
        }
        vec![(at + 1, ways.not_taken), (target, ways.taken)]
    }
}

//! Finds the stack slots that are read later (`kernel/bpf/liveness.c`).
//!
//! The caller of a function decides whether a slot's content matters after an instruction. So reads
//! and writes are recorded for each chain of calls (an *instance*): by the exploration, for the
//! function's own frame and for those of its callers that it reaches through pointers. When a path
//! ends, all its reads have been recorded. The slots that are alive before each instruction then
//! follow by going backwards until nothing changes.

use std::collections::HashMap;

use super::Explorer;
use crate::flow::{Flow, Function};

/// A set of slots of one frame.
type Slots = u64;

/// The marks of one instruction and one frame.
#[derive(Debug, Clone, Copy, Default)]
struct Marks {
    may_read: Slots,
    /// The slots written on each visit so far.
    must_write: Slots,
    live_before: Slots,
}

#[derive(Debug)]
struct Instance {
    /// The function's first instruction, and the number of its instructions.
    start: usize,
    len: usize,
    /// The call that led here, and the instance of the call.
    outer: Option<(usize, usize)>,
    /// The marks by frame, outermost first, the last being its own; empty until something is
    /// recorded.
    frames: Vec<Vec<Marks>>,
    /// The instructions that some path has reached. One that wrote nothing on its first visit is
    /// not required to write, whatever it does later.
    visited: Vec<bool>,
    /// True if it has loops.
    loops: bool,
    /// The last instruction with changed marks, counted from the start.
    changed: Option<usize>,
}

#[derive(Debug, Default)]
pub(super) struct StackLiveness {
    instances: Vec<Instance>,
    /// The instances by outer instance, call site and function.
    by_call: HashMap<(Option<usize>, Option<usize>, usize), usize>,
    /// The instance of the current path's innermost frame.
    current: usize,
    insn: usize,
    /// The slots that the current instruction has written, by frame.
    written: Vec<(usize, Slots)>,
    /// The bytes of all instances.
    bytes: usize,
}

impl StackLiveness {
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Returns the approximate bytes of memory.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn begin(&mut self, insn: usize) {
        self.insn = insn;
        self.written.clear();
    }

    pub(super) fn read(&mut self, frame: usize, slot: usize) {
        let insn = self.insn;
        let Some(instance) = self.instances.get_mut(self.current) else {
            return;
        };
        if let Some(marks) = instance.marks(frame, insn, &mut self.bytes) {
            let bit = 1 << slot;
            if marks.may_read & bit == 0 {
                marks.may_read |= bit;
                instance.note_change(insn);
            }
        }
    }

    pub(super) fn write(&mut self, frame: usize, slot: usize) {
        self.written.push((frame, 1 << slot));
    }

    /// Records the current writes: a slot written on every visit of an instruction is not alive
    /// before it.
    pub(super) fn commit(&mut self, insn: usize) {
        let Some(instance) = self.instances.get_mut(self.current) else {
            return;
        };
        let at = insn.wrapping_sub(instance.start);
        let Some(visited) = instance.visited.get_mut(at) else {
            return; // A call, or an end: the path is in another function now.
        };
        let is_first = !std::mem::replace(visited, true);
        for frame in 0..instance.frames.len() {
            let written = self
                .written
                .iter()
                .filter(|(of, _)| *of == frame)
                .fold(0, |slots, (_, slot)| slots | slot);
            if written == 0 && instance.frames.get(frame).is_none_or(Vec::is_empty) {
                continue;
            }
            if let Some(marks) = instance.marks(frame, insn, &mut self.bytes) {
                let all = if is_first {
                    written
                } else {
                    marks.must_write & written
                };
                if all != marks.must_write {
                    marks.must_write = all;
                    instance.note_change(insn);
                }
            }
        }
    }

    fn instance(
        &mut self,
        outer: Option<usize>,
        callsite: Option<usize>,
        function: usize,
        flow: &Flow,
    ) -> usize {
        let (instances, bytes) = (&mut self.instances, &mut self.bytes);
        *self
            .by_call
            .entry((outer, callsite, function))
            .or_insert_with(|| {
                let depth = outer.map_or(0, |outer| instances[outer].frames.len());
                let place = flow.functions()[function];
                // Includes its entry in the table.
                *bytes += 2 * size_of::<Instance>() + place.end - place.start;
                instances.push(Instance {
                    start: place.start,
                    len: place.end - place.start,
                    outer: outer.zip(callsite),
                    frames: vec![Vec::new(); depth + 1],
                    visited: vec![false; place.end - place.start],
                    loops: has_loops(flow, place),
                    changed: None,
                });
                instances.len() - 1
            })
    }

    /// Updates an instance; its call then reads the slots that it reads of its callers' frames.
    fn update(&mut self, number: usize, flow: &Flow) {
        let instance = &mut self.instances[number];
        let Some(last) = instance.changed.take() else {
            return;
        };
        for frame in 0..instance.frames.len() {
            instance.go_backwards(frame, last, flow);
        }
        let own = instance.frames.len() - 1;
        let at_entry: Vec<Slots> = (0..own)
            .map(|frame| {
                let marks = instance.frames.get(frame).and_then(|frame| frame.first());
                marks.map_or(0, |marks| marks.live_before)
            })
            .collect();
        if let Some((outer, callsite)) = instance.outer {
            let outer = &mut self.instances[outer];
            for (frame, &slots) in at_entry.iter().enumerate() {
                if slots == 0 {
                    continue;
                }
                if let Some(marks) = outer.marks(frame, callsite, &mut self.bytes)
                    && marks.may_read | slots != marks.may_read
                {
                    marks.may_read |= slots;
                    outer.note_change(callsite);
                }
            }
        }
    }
}

impl Instance {
    /// Returns the marks; adds the bytes of new ones to `bytes`.
    fn marks(&mut self, frame: usize, insn: usize, bytes: &mut usize) -> Option<&mut Marks> {
        let len = self.len;
        let at = insn.checked_sub(self.start)?;
        let frame = self.frames.get_mut(frame)?;
        if frame.is_empty() {
            frame.resize(len, Marks::default());
            *bytes += len * size_of::<Marks>();
        }
        frame.get_mut(at)
    }

    fn note_change(&mut self, insn: usize) {
        let at = insn.saturating_sub(self.start);
        self.changed = Some(self.changed.map_or(at, |changed| changed.max(at)));
    }

    fn live_before(&self, frame: usize, insn: usize) -> Slots {
        let marks = self.frames.get(frame);
        let at = insn.wrapping_sub(self.start);
        marks
            .and_then(|marks| marks.get(at))
            .map_or(0, |marks| marks.live_before)
    }

    /// Propagates backwards from `last`, the last instruction with changed marks. Without loops,
    /// one sweep finds everything.
    fn go_backwards(&mut self, frame: usize, last: usize, flow: &Flow) {
        let (start, len) = (self.start, self.len);
        let marks = &mut self.frames[frame];
        if marks.is_empty() {
            return;
        }
        let mut sweep = last + 1;
        loop {
            let mut changed = false;
            for at in (0..sweep).rev() {
                let after = flow
                    .successors(start + at)
                    .filter_map(|next| marks.get(next.wrapping_sub(start)))
                    .fold(0, |live, next| live | next.live_before);
                let Some(own) = marks.get_mut(at) else {
                    continue;
                };
                let live = after & !own.must_write | own.may_read;
                changed |= live != own.live_before;
                own.live_before = live;
            }
            if !changed || !self.loops {
                return;
            }
            sweep = len;
        }
    }
}

fn has_loops(flow: &Flow, function: Function) -> bool {
    (function.start..function.end).any(|insn| flow.successors(insn).any(|next| next <= insn))
}

impl Explorer<'_> {
    /// Enters, or returns to, another chain of calls on the current path.
    pub(super) fn enter_instance(&mut self) {
        let chain = self.chain_of_current();
        self.stack_liveness.current = chain.last().copied().unwrap_or(0);
    }

    /// Returns the instances of the current path's frames, outermost first.
    fn chain_of_current(&mut self) -> Vec<usize> {
        let frames: Vec<_> = self
            .cur
            .frames
            .iter()
            .map(|frame| (frame.callsite, frame.function))
            .collect();
        self.chain(&frames)
    }

    pub(super) fn chain(&mut self, frames: &[(Option<usize>, usize)]) -> Vec<usize> {
        let mut chain = Vec::with_capacity(frames.len());
        for &(callsite, function) in frames {
            let outer = chain.last().copied();
            chain.push(
                self.stack_liveness
                    .instance(outer, callsite, function, self.flow),
            );
        }
        chain
    }

    /// Tells the callers which slots the current path's frames have read.
    pub(super) fn update_alive(&mut self) {
        let chain = self.chain_of_current();
        self.update_chain(&chain);
    }

    pub(super) fn update_chain(&mut self, chain: &[usize]) {
        for &instance in chain.iter().rev() {
            self.stack_liveness.update(instance, self.flow);
        }
    }

    /// Returns the slots of a frame that some path from a state reads. `chain` are the instances of
    /// its frames, `insns` their instructions.
    pub(super) fn slots_alive(&self, chain: &[usize], insns: &[usize], frame: usize) -> Slots {
        let innermost = chain.len() - 1;
        let mut alive = 0;
        for (depth, (&instance, &insn)) in chain.iter().zip(insns).enumerate().skip(frame) {
            // The callee's instance knows better which slots of its caller's frames a call reads.
            let at = if depth == innermost { insn } else { insn + 1 };
            alive |= self.stack_liveness.instances[instance].live_before(frame, at);
        }
        alive
    }
}

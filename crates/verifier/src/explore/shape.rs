//! The facts that instructions tell before the exploration: where states are kept, which registers
//! are read later, and which instructions form loops (`check_cfg`, `compute_live_registers`,
//! `compute_scc`).

use std::collections::HashMap;

use beeline_isa::{FRAME_POINTER, Imm64, Op};

use super::{callback, kernel_call};
use crate::flow::{Flow, Odd};
use crate::helpers::helper;
use crate::program::Program;

/// The facts about an instruction.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Place {
    /// True if states are compared here.
    pub prune: bool,
    /// True if the history records how a path came here.
    pub jump: bool,
    /// True if a state is kept here each time: loops that end by themselves come round here.
    pub checkpoint: bool,
    /// True if it calls a function of the program during its own run.
    pub calls_back: bool,
    /// The registers with values that are read from here on, a bit each.
    pub live: u16,
    /// Instructions with the same number other than 0 form a loop.
    pub component: u32,
    /// True if it is a loop only because it calls back more than once.
    pub only_calls_back: bool,
}

#[derive(Debug)]
pub(super) struct Shape {
    places: Vec<Place>,
}

/// Returns the target of a jump of `off`.
pub(super) fn target(insn: usize, off: i32) -> usize {
    (insn + 1).wrapping_add_signed(off as isize)
}

impl Shape {
    pub(super) fn of(flow: &Flow, program: &Program<'_>) -> Self {
        let mut places = vec![Place::default(); flow.len()];
        for index in 0..flow.len() {
            if let Some(op) = flow.op(index) {
                mark(flow, program, index, &op, &mut places);
            }
        }
        let mut shape = Self { places };
        shape.find_live(flow, program);
        shape.find_loops(flow, program);
        shape
    }

    pub(super) fn at(&self, insn: usize) -> Place {
        self.places.get(insn).copied().unwrap_or_default()
    }

    /// Finds live registers: goes backwards until nothing changes.
    fn find_live(&mut self, flow: &Flow, program: &Program<'_>) {
        let uses: Vec<(u16, u16)> = (0..flow.len())
            .map(|index| {
                let op = flow.op(index);
                match flow.odd(index) {
                    Some(Odd::PacketLoad { index }) => {
                        (1 << 6 | index.map_or(0, |index| 1 << index), 0b11_1111)
                    }
                    _ => op.map_or((0, 0), |op| read_and_written(program, &op)),
                }
            })
            .collect();
        let mut changed = true;
        while changed {
            changed = false;
            for index in (0..flow.len()).rev() {
                if flow.op(index).is_none() {
                    continue;
                }
                let after = flow
                    .successors(index)
                    .fold(0, |live, next| live | self.at(next).live);
                let (read, written) = uses[index];
                let live = after & !written | read;
                let place = &mut self.places[index];
                changed |= place.live != live;
                place.live = live;
            }
        }
    }

    /// Finds strongly connected components, by Tarjan's algorithm without recursion; a function's
    /// calls count as edges.
    fn find_loops(&mut self, flow: &Flow, program: &Program<'_>) {
        let edges = |index: usize| {
            let op = flow.op(index);
            let calls_back = op.is_some_and(|op| callback::is_synchronous(program, &op));
            flow.successors(index)
                .filter(|&next| next < flow.len())
                .chain(calls_back.then_some(index))
        };
        let mut number = 0;
        let mut order: HashMap<usize, (u32, u32)> = HashMap::new();
        let mut on_stack = vec![false; flow.len()];
        let (mut stack, mut components) = (Vec::new(), 0);
        for root in 0..flow.len() {
            if flow.op(root).is_none() || order.contains_key(&root) {
                continue;
            }
            let mut work = vec![(root, edges(root).collect::<Vec<_>>(), 0)];
            number += 1;
            order.insert(root, (number, number));
            stack.push(root);
            on_stack[root] = true;
            while let Some((node, next, at)) = work.last_mut() {
                let node = *node;
                if let Some(&to) = next.get(*at) {
                    *at += 1;
                    if let Some(&(seen, _)) = order.get(&to) {
                        if on_stack[to]
                            && let Some((_, low)) = order.get_mut(&node)
                        {
                            *low = (*low).min(seen);
                        }
                    } else {
                        number += 1;
                        order.insert(to, (number, number));
                        stack.push(to);
                        on_stack[to] = true;
                        work.push((to, edges(to).collect(), 0));
                    }
                    continue;
                }
                work.pop();
                let (own, low) = order[&node];
                if let Some((parent, ..)) = work.last()
                    && let Some((_, parent_low)) = order.get_mut(parent)
                {
                    *parent_low = (*parent_low).min(low);
                }
                if own != low {
                    continue;
                }
                let from = stack.iter().rposition(|&on| on == node).unwrap_or(0);
                let members = stack.split_off(from);
                for &member in &members {
                    on_stack[member] = false;
                }
                let is_loop = members.len() > 1 || edges(node).any(|to| to == node);
                if is_loop {
                    components += 1;
                    let jumps_to_itself = flow.successors(node).any(|to| to == node);
                    self.places[node].only_calls_back = members.len() == 1 && !jumps_to_itself;
                    for member in members {
                        self.places[member].component = components;
                    }
                }
            }
        }
    }
}

/// Marks for one instruction where states are kept, and how a path is followed back (`visit_insn`).
fn mark(flow: &Flow, program: &Program<'_>, index: usize, op: &Op, places: &mut [Place]) {
    match *op {
        Op::Jump { off } => prune_and_jump(places, target(index, off)),
        Op::Branch { off, .. } => {
            prune_and_jump(places, target(index, off.into()));
            places[index].prune = true;
        }
        Op::MayGoto { off } => {
            prune_and_jump(places, target(index, off.into()));
            places[index].prune = true;
            places[index].checkpoint = true;
        }
        Op::CallLocal { .. } => {
            prune_and_jump(places, index + 1);
            if let Some(callee) = flow.callee(index) {
                prune_and_jump(places, callee);
            }
            places[index].prune = true;
        }
        Op::Imm64 {
            kind: Imm64::Function,
            ..
        } => {
            if let Some(callee) = flow.callee(index) {
                prune_and_jump(places, callee);
            }
            places[index].prune = true;
            prune_and_jump(places, index + 2);
        }
        Op::CallHelper { .. } | Op::CallKernel { .. } => {
            prune_and_jump(places, index + 1);
            if callback::is_synchronous(program, op) {
                prune_and_jump(places, index);
                places[index].checkpoint = true;
                places[index].calls_back = true;
            } else if callback::is_asynchronous(program, op) {
                places[index].prune = true;
            } else if kernel_call::is_next(program, op) {
                places[index].prune = true;
                places[index].checkpoint = true;
            }
        }
        _ => {}
    }
}

fn prune_and_jump(places: &mut [Place], at: usize) {
    if let Some(place) = places.get_mut(at) {
        place.prune = true;
        place.jump = true;
    }
}

/// Returns the registers read and written, a bit each (`compute_insn_live_regs`).
fn read_and_written(program: &Program<'_>, op: &Op) -> (u16, u16) {
    let bit = |register: u8| 1_u16 << register;
    let arguments = |count: u8| (1..=count).fold(0, |bits, register| bits | bit(register));
    let mut read = op.read().fold(0, |bits, register| bits | bit(register));
    let mut written = op.written().map_or(0, bit);
    let count = match *op {
        Op::CallHelper { id } => {
            helper(id, &program.kind, None).map_or(5, |helper| helper.args.len() as u8)
        }
        Op::CallKernel { btf_id } => kernel_call::parameters(program, btf_id).unwrap_or(5),
        Op::CallLocal { .. } => 5,
        _ => return (read & !bit(FRAME_POINTER), written & !bit(FRAME_POINTER)),
    };
    read |= arguments(count);
    written |= arguments(5) | bit(0);
    (read, written)
}

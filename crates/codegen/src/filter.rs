//! Filters: the beginning of a program, as far as it decides if the rest runs at all.
//!
//! Many programs look at an argument or at the process first, and mostly end there. That beginning
//! needs nothing but the context and the thread's ids, so it can be run where the event happens,
//! before anything is prepared for the rest. It has no effect, so the program itself begins anew.

use std::collections::{BTreeMap, BTreeSet};

use beeline_isa::opcode::{ALU64, EXIT, JA, JMP, K, MOV};
use beeline_isa::{FRAME_POINTER, Imm64, Insn, Op};
use beeline_uapi::HelperId;
use beeline_verifier::Flow;

/// The most instructions of a filter: what passes it is run twice.
const MOST: usize = 24;

/// The part of an instruction in a filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// It has no effect but on registers and the own stack.
    Kept,
    /// It ends the program, which has done nothing.
    Ends,
    /// The rest of the program begins here.
    Rest,
}

/// Returns a program that returns 0 if a verified program ends without any effect, and else 1.
///
/// It reads of its context only what the program reads, and calls only
/// `bpf_get_current_pid_tgid`. `None` if the program does not begin with such a decision.
pub fn filter(insns: &[Insn]) -> Option<Vec<Insn>> {
    let flow = Flow::of(insns).ok()?;
    let parts = parts(&flow)?;
    let has = |wanted| parts.values().any(|part| *part == wanted);
    (has(Part::Ends) && has(Part::Rest)).then(|| write(insns, &flow, &parts))?
}

/// Returns the instructions that a filter is made from, by their slots.
fn parts(flow: &Flow) -> Option<BTreeMap<usize, Part>> {
    let mut parts = BTreeMap::new();
    let mut waiting = BTreeSet::from([0]);
    // Ways lead forward only, so the first one that waits has been reached on all of them.
    while let Some(index) = waiting.pop_first() {
        let op = flow.op(index)?;
        let leads_back = || flow.successors(index).any(|next| next <= index);
        let part = match op {
            Op::Exit => Part::Ends,
            _ if has_no_effect(&op) && !leads_back() => Part::Kept,
            _ => Part::Rest,
        };
        if part == Part::Kept {
            waiting.extend(flow.successors(index));
        }
        parts.insert(index, part);
        if parts.len() > MOST {
            return None;
        }
    }
    Some(parts)
}

/// True if an instruction changes only registers and the own stack, and gives the same when it is
/// executed once more.
fn has_no_effect(op: &Op) -> bool {
    match *op {
        Op::Alu { .. }
        | Op::Move { .. }
        | Op::MoveSigned { .. }
        | Op::Neg { .. }
        | Op::Swap { .. }
        | Op::Load { .. }
        | Op::Jump { .. }
        | Op::Branch { .. } => true,
        Op::Store { dst, .. } => dst == FRAME_POINTER,
        Op::Imm64 { kind, .. } => matches!(kind, Imm64::Number | Imm64::MapValue),
        Op::CallHelper { id } => id == HelperId::GET_CURRENT_PID_TGID,
        _ => false,
    }
}

/// Writes the filter, in the order of the program.
fn write(insns: &[Insn], flow: &Flow, parts: &BTreeMap<usize, Part>) -> Option<Vec<Insn>> {
    let slots = |(index, part): (&usize, &Part)| match part {
        Part::Kept if insns.get(*index).is_some_and(|insn| insn.is_imm64()) => 2,
        Part::Kept => 1,
        Part::Ends | Part::Rest => 2,
    };
    let mut next = 0;
    let mut places = BTreeMap::new();
    for one in parts {
        places.insert(*one.0, next);
        next += slots(one);
    }
    let mut filter = Vec::with_capacity(next);
    for (&index, part) in parts {
        match part {
            Part::Ends => filter.extend(returning(0)),
            Part::Rest => filter.extend(returning(1)),
            Part::Kept => {
                let off = match flow.op(index)? {
                    Op::Jump { off } => Some(off),
                    Op::Branch { off, .. } => Some(off.into()),
                    _ => None,
                };
                let insn = *insns.get(index)?;
                let Some(off) = off else {
                    let second = insns.get(index + 1).filter(|_| insn.is_imm64());
                    filter.push(insn);
                    filter.extend(second);
                    continue;
                };
                let target = (index + 1).checked_add_signed(off as isize)?;
                let distance = places.get(&target)?.checked_sub(filter.len() + 1)?;
                let off = i16::try_from(distance).ok()?;
                filter.push(match flow.op(index)? {
                    Op::Jump { .. } => Insn {
                        code: JMP | JA,
                        off,
                        ..Insn::default()
                    },
                    _ => Insn { off, ..insn },
                });
            }
        }
    }
    Some(filter)
}

/// Returns `r0 = value; exit`.
fn returning(value: i32) -> [Insn; 2] {
    let load = Insn {
        code: ALU64 | MOV | K,
        imm: value,
        ..Insn::default()
    };
    let exit = Insn {
        code: JMP | EXIT,
        ..Insn::default()
    };
    [load, exit]
}

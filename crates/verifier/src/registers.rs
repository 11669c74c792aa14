//! One forward pass over the registers of every function: which were never written, and which may still hold the
//! program's context.
//!
//! Both are unions over all paths, so a register that some path writes counts as written. The kernel, which follows
//! each path by itself, refuses more.

use beeline_isa::{FRAME_POINTER, Insn, Op, Operand, helper};

use crate::flow::{Flow, Function};
use crate::reject::{EACCES, Reject};

/// Sets of registers, bit n for r(n), as they are before an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct State {
    /// May have been written.
    written: u16,
    /// May hold the context that the program was given in r1.
    context: u16,
}

const ARGUMENTS: u16 = 0b11_1110;
const CALLER_SAVED: u16 = ARGUMENTS | 1;

/// Refuses programs that read a register that nothing has written; says if any instruction uses the context.
pub(crate) fn follow(insns: &[Insn], flow: &Flow) -> Result<bool, Reject> {
    let mut reads_context = false;
    for (number, &function) in flow.functions().iter().enumerate() {
        let entry = if number == 0 {
            State {
                written: bit(1) | bit(FRAME_POINTER),
                context: bit(1),
            }
        } else {
            State {
                written: ARGUMENTS | bit(FRAME_POINTER),
                context: 0,
            }
        };
        let states = fixpoint(flow, function, entry);
        for (index, op) in flow.reachable_ops(function) {
            let state = states
                .get(index - function.start)
                .copied()
                .unwrap_or_default();
            // Only the program has to return something; other functions may leave r0 alone.
            let returns_nothing = number != 0 && op == Op::Exit;
            let unwritten = needed(&op) & !state.written;
            if unwritten != 0 && !returns_nothing {
                let register = unwritten.trailing_zeros();
                let insn = insns.get(index).copied().unwrap_or_default();
                return Err(Reject::insn(
                    EACCES,
                    index,
                    insn,
                    format!("R{register} !read_ok"),
                ));
            }
            reads_context |= used(&op) & state.context != 0;
        }
    }
    Ok(reads_context)
}

/// The state before each instruction of a function.
fn fixpoint(flow: &Flow, function: Function, entry: State) -> Vec<State> {
    let mut states = vec![State::default(); function.end - function.start];
    let mut pending = vec![(function.start, entry)];
    while let Some((index, arriving)) = pending.pop() {
        let Some(state) = index
            .checked_sub(function.start)
            .and_then(|offset| states.get_mut(offset))
        else {
            continue;
        };
        let joined = State {
            written: state.written | arriving.written,
            context: state.context | arriving.context,
        };
        if joined == *state {
            continue;
        }
        *state = joined;
        if let Some(op) = flow.op(index) {
            let leaving = after(joined, &op);
            pending.extend(flow.successors(index).map(|next| (next, leaving)));
        }
    }
    states
}

fn after(mut state: State, op: &Op) -> State {
    if is_call(op) {
        state.written &= !CALLER_SAVED;
        state.context &= !CALLER_SAVED;
    }
    let returns = !matches!(*op, Op::CallHelper { id } if !helper::returns(id));
    if let Some(dst) = op.written().filter(|_| returns) {
        let copies_context = matches!(*op, Op::Move { wide: true, src: Operand::Reg(src), .. } if state.context & bit(src) != 0);
        state.written |= bit(dst);
        state.context = state.context & !bit(dst) | if copies_context { bit(dst) } else { 0 };
    }
    state
}

/// The registers that an operation cannot do without.
fn needed(op: &Op) -> u16 {
    match *op {
        Op::CallHelper { id } => arguments(helper::arguments(id).map_or(0, |(least, _)| least)),
        _ => op.read().fold(0, |set, register| set | bit(register)),
    }
}

/// The registers whose values may matter to an operation; copying a register alone does not count.
fn used(op: &Op) -> u16 {
    match *op {
        Op::CallHelper { id } => arguments(helper::arguments(id).map_or(5, |(_, most)| most)),
        _ if is_call(op) => ARGUMENTS,
        Op::Move { wide: true, .. } => 0,
        _ => needed(op),
    }
}

/// r1 to r(count).
fn arguments(count: u8) -> u16 {
    ((1 << count) - 1) << 1
}

fn is_call(op: &Op) -> bool {
    matches!(
        op,
        Op::CallHelper { .. } | Op::CallLocal { .. } | Op::CallKernel { .. }
    )
}

fn bit(register: u8) -> u16 {
    1 << (register & 15)
}

//! The origin of addresses: it decides which loads may fault, which may see unwritten stack, and
//! which accesses others may observe or interrupt.
//!
//! A tracing program may follow pointers that it has read without checking them for null. Such a
//! load returns 0 where there is nothing to read, with the help of a signal handler that knows the
//! form of the instruction. The verifier makes sure that addresses which were not read are good.

use beeline_isa::{Alu, FRAME_POINTER, Imm64, Op, Operand};
use beeline_uapi::HelperId;
use beeline_verifier::Flow;

/// The memory that an address is known to lead to, from the best known to the least.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Origin {
    /// The context.
    Context,
    /// A map's value, or memory that a helper returned.
    Memory,
    /// A stack of this program's.
    Stack,
    /// An argument of a callback: a stack, or a map's value.
    Given,
    /// Anything, null included; also a number that is no address.
    Anything,
}

impl Origin {
    /// Returns whether other programs and the tool may use the memory at the same time. Then each
    /// access is a single one, as the kernel's compiler makes it: bytecode does not say which of
    /// them its author wanted repeated, or not moved.
    pub(crate) fn is_shared(self) -> bool {
        matches!(self, Self::Memory | Self::Given | Self::Anything)
    }

    /// Returns whether all of the memory has been written. A stack's may not have been.
    pub(crate) fn is_written(self) -> bool {
        matches!(self, Self::Context | Self::Memory)
    }
}

/// Helpers that return memory, or null, for which the verifier requires a check.
const GIVE_MEMORY: [HelperId; 4] = [
    HelperId::MAP_LOOKUP_ELEM,
    HelperId::RINGBUF_RESERVE,
    HelperId::MAP_LOOKUP_PERCPU_ELEM,
    HelperId::DYNPTR_DATA,
];

type Registers = [Origin; FRAME_POINTER as usize];

/// The contents of the registers before each instruction of a program.
pub(crate) struct Origins {
    /// By slot; `None` for slots that control does not reach.
    before: Vec<Option<Registers>>,
}

impl Origins {
    pub(crate) fn of(flow: &Flow) -> Self {
        let mut origins = Self {
            before: vec![None; flow.len()],
        };
        let mut entry = [Origin::Anything; FRAME_POINTER as usize];
        if let Some(context) = entry.get_mut(1) {
            *context = Origin::Context;
        }
        let mut pending = Vec::new();
        origins.meet(0, entry, &mut pending);
        while let Some(index) = pending.pop() {
            let (Some(op), Some(&Some(before))) = (flow.op(index), origins.before.get(index))
            else {
                continue;
            };
            if let Some(callee) = flow.callee(index) {
                origins.meet(callee, arguments(op, before), &mut pending);
            }
            let after = after(op, before);
            for next in flow.successors(index) {
                origins.meet(next, after, &mut pending);
            }
        }
        origins
    }

    /// Returns the content of a register before an instruction.
    pub(crate) fn register(&self, index: usize, register: u8) -> Origin {
        match self.before.get(index) {
            Some(Some(registers)) => get(registers, register),
            _ => Origin::Anything,
        }
    }

    fn meet(&mut self, index: usize, more: Registers, pending: &mut Vec<usize>) {
        let Some(known) = self.before.get_mut(index) else {
            return;
        };
        let before = known.unwrap_or([Origin::Context; FRAME_POINTER as usize]);
        let both = std::array::from_fn(|register| {
            let pair = (before.get(register), more.get(register));
            pair.0
                .copied()
                .max(pair.1.copied())
                .unwrap_or(Origin::Anything)
        });
        if *known != Some(both) {
            *known = Some(both);
            pending.push(index);
        }
    }
}

fn get(registers: &Registers, register: u8) -> Origin {
    // Any register without an entry is the frame pointer.
    registers
        .get(usize::from(register))
        .copied()
        .unwrap_or(Origin::Stack)
}

/// Returns the contents of a called function's registers. Helpers make the arguments of a callback,
/// and the verifier knows them.
fn arguments(op: Op, mut registers: Registers) -> Registers {
    for (number, register) in registers.iter_mut().enumerate() {
        *register = match op {
            Op::Imm64 { .. } if (1..=5).contains(&number) => Origin::Given,
            Op::CallLocal { .. } if (1..=5).contains(&number) => *register,
            _ => Origin::Anything,
        };
    }
    registers
}

/// Returns the origin of an address plus a number, in either order.
fn sum(one: Origin, other: Origin) -> Origin {
    match (one, other) {
        (Origin::Anything, known) | (known, Origin::Anything) => known,
        _ => one.max(other),
    }
}

fn after(op: Op, mut registers: Registers) -> Registers {
    let written = op.written();
    let origin = match op {
        Op::Move {
            wide: true,
            src: Operand::Reg(src),
            ..
        } => get(&registers, src),
        Op::Alu {
            op: Alu::Add,
            wide: true,
            dst,
            src,
        } => match src {
            Operand::Reg(src) => sum(get(&registers, dst), get(&registers, src)),
            Operand::Imm(_) => get(&registers, dst),
        },
        Op::Alu {
            op: Alu::Sub,
            wide: true,
            dst,
            src,
        } => match src {
            // The distance of two addresses is no address.
            Operand::Reg(src) if get(&registers, src) != Origin::Anything => Origin::Anything,
            _ => get(&registers, dst),
        },
        Op::Imm64 {
            kind: Imm64::MapValue,
            ..
        } => Origin::Memory,
        Op::CallHelper { id } if GIVE_MEMORY.contains(&id) => Origin::Memory,
        _ => Origin::Anything,
    };
    if let Some(register) = written.and_then(|register| registers.get_mut(usize::from(register))) {
        *register = origin;
    }
    if matches!(
        op,
        Op::CallHelper { .. } | Op::CallLocal { .. } | Op::CallKernel { .. }
    ) {
        for register in registers.iter_mut().take(6).skip(1) {
            *register = Origin::Anything;
        }
    }
    registers
}

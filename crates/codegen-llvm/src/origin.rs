//! Where addresses come from: which loads may fault, which may see a stack that nobody wrote, and which accesses others may
//! see or come between.
//!
//! A tracing program may follow pointers that it has read without a look whether they are null; such a load gives 0
//! where there is nothing to read, by the help of a signal handler that knows the form of the instruction. Of
//! addresses that were not read the verifier knows that they are good.

use beeline_isa::{Alu, FRAME_POINTER, Imm64, Op, Operand};
use beeline_verifier::Flow;

/// What an address is known to lead to, from the best known to the least.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Origin {
    /// The context.
    Context,
    /// A map's value, or what a helper gave.
    Memory,
    /// A stack of this program's.
    Stack,
    /// What a callback was given: a stack, or a map's value.
    Given,
    /// Anything, null included; also what is no address.
    Anything,
}

impl Origin {
    /// May other programs and the tool use the memory at the same time? Then each access is one, as the kernel's compiler
    /// makes it: bytecode does not tell which of them its author wanted done once more, or not moved.
    pub(crate) fn is_shared(self) -> bool {
        matches!(self, Self::Memory | Self::Given | Self::Anything)
    }

    /// Has all of the memory been written? A stack's may not have been.
    pub(crate) fn is_written(self) -> bool {
        matches!(self, Self::Context | Self::Memory)
    }
}

/// Helpers that give memory, or null, which the verifier wants to be looked for: `map_lookup_elem`, `ringbuf_reserve`,
/// `map_lookup_percpu_elem`, `dynptr_data`.
const GIVE_MEMORY: [u32; 4] = [1, 131, 195, 203];

type Registers = [Origin; FRAME_POINTER as usize];

/// What the registers hold before each instruction of a program.
pub(crate) struct Origins {
    /// By slot; `None` where control does not get.
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

    /// What a register holds before an instruction.
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
    // What is no other register is the frame pointer.
    registers
        .get(usize::from(register))
        .copied()
        .unwrap_or(Origin::Stack)
}

/// What a called function's registers hold. The arguments of a callback are what helpers make, and the verifier knows
/// them.
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

/// An address and a number, whichever is which.
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
            // The distance of two addresses is none.
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

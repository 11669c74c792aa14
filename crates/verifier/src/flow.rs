//! The shape of a program: the operation of each slot, the bounds of functions, and the order of
//! execution.

use std::collections::{BTreeMap, BTreeSet};

use beeline_isa::{BadInsn, Imm64, Insn, Op, Operand};
use beeline_uapi::Errno;
use beeline_uapi::limits::{BPF_COMPLEXITY_LIMIT_INSNS, MAX_CALL_FRAMES};

use crate::reject::Reject;

/// The longest program, in slots; the kernel's limit for privileged users.
pub const MAX_INSNS: usize = BPF_COMPLEXITY_LIMIT_INSNS as usize;

/// A program of defined instructions with jumps and calls that all lead to instructions of the
/// right function.
#[derive(Debug, Clone)]
pub struct Flow {
    /// The operations by slot; `None` for the second slot of a 64-bit immediate.
    ops: Vec<Option<Op>>,
    /// Instructions that are not operations; other operations stand in their places.
    odd: BTreeMap<usize, Odd>,
    functions: Vec<Function>,
    reachable: Vec<bool>,
    /// The start of a function that nothing calls and that runs nevertheless.
    exception_callback: Option<usize>,
}

/// An instruction that only the verifier handles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Odd {
    /// Not defined: a program that reaches it is refused.
    Bad(BadInsn),
    /// A load from the packet, as in classic BPF; the register is an index to be added.
    PacketLoad {
        /// r0 to r10.
        index: Option<u8>,
    },
    /// `dst = src` from one address space into the other: into the program's, where arenas are, or
    /// out of it.
    Cast {
        /// r0 to r9.
        dst: u8,
        /// r0 to r10.
        src: u8,
        /// True if the copy is a pointer into an arena.
        inward: bool,
    },
}

/// The slots `start..end`.
///
/// The first function is the program's entry; the functions follow each other without a gap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Function {
    /// The first slot.
    pub start: usize,
    /// One more than the last slot.
    pub end: usize,
}

impl Flow {
    /// Finds the shape of a program in which every instruction is valid, even dead code
    /// (`check_subprogs`, `resolve_pseudo_ldimm64`).
    ///
    /// # Errors
    /// `E2BIG` if the program is empty or longer than [`MAX_INSNS`]. `EACCES` if an instruction
    /// writes r10. `EINVAL` if an instruction is undefined, a jump leaves its function, a call
    /// leads to no instruction, or a function ends without an exit or a jump.
    pub fn of(insns: &[Insn]) -> Result<Self, Reject> {
        Self::made(insns, false, None)
    }

    /// Finds the shape if instructions that may be dead code need not be valid.
    /// `exception_callback` is the start of a function that runs when the program throws.
    pub(crate) fn tolerant(
        insns: &[Insn],
        exception_callback: Option<usize>,
    ) -> Result<Self, Reject> {
        Self::made(insns, true, exception_callback)
    }

    fn made(
        insns: &[Insn],
        tolerant: bool,
        exception_callback: Option<usize>,
    ) -> Result<Self, Reject> {
        match insns.len() {
            0 => {
                return Err(Reject::program(
                    Errno::E2BIG,
                    "a program needs at least one insn",
                ));
            }
            length if length > MAX_INSNS => {
                return Err(Reject::program(
                    Errno::E2BIG,
                    format!("{length} insns are more than the {MAX_INSNS} allowed"),
                ));
            }
            _ => {}
        }
        let (ops, odd) = decode(insns, tolerant)?;
        let functions = functions(insns, &ops, exception_callback)?;
        let mut flow = Self {
            exception_callback,
            odd,
            reachable: vec![false; ops.len()],
            ops,
            functions,
        };
        for &function in &flow.functions {
            flow.check_jumps(function)?;
        }
        flow.reachable = flow.reach(false);
        Ok(flow)
    }

    /// Returns the number of slots.
    #[allow(clippy::len_without_is_empty, reason = "a program is never empty")]
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// Returns the slot's operation; `None` for the second slot of a 64-bit immediate and outside
    /// the program.
    pub fn op(&self, index: usize) -> Option<Op> {
        self.ops.get(index).copied().flatten()
    }

    /// Returns all functions, in the order of their slots, called or not.
    pub fn functions(&self) -> &[Function] {
        &self.functions
    }

    /// Returns the number of the function that begins at a slot.
    pub fn function_at(&self, start: usize) -> Option<usize> {
        self.functions
            .binary_search_by_key(&start, |function| function.start)
            .ok()
    }

    /// Returns whether control may reach this slot.
    ///
    /// Nothing follows poison; branches are assumed to go either way.
    pub fn is_reachable(&self, index: usize) -> bool {
        self.reachable.get(index).copied().unwrap_or(false)
    }

    /// Returns the reachable operations of a function with their slots.
    pub fn reachable_ops(&self, function: Function) -> impl Iterator<Item = (usize, Op)> {
        (function.start..function.end)
            .filter(|&index| self.is_reachable(index))
            .filter_map(|index| Some((index, self.op(index)?)))
    }

    /// Returns the slots that control may go to from a slot within its function.
    pub fn successors(&self, index: usize) -> impl Iterator<Item = usize> + use<> {
        let next = index + 1;
        let (first, second) = match self.op(index) {
            Some(Op::Poison { .. }) if self.is_packet_load(index) => (Some(next), None),
            Some(Op::Exit | Op::Poison { .. }) => (None, None),
            Some(Op::Jump { off }) => (target(index, off), None),
            Some(Op::Branch { off, .. } | Op::MayGoto { off }) => {
                (Some(next), target(index, off.into()))
            }
            Some(Op::Imm64 { .. }) => (Some(next + 1), None),
            _ => (Some(next), None),
        };
        [first, second].into_iter().flatten()
    }

    /// Returns the instruction at a slot if it is not an operation.
    pub(crate) fn odd(&self, index: usize) -> Option<Odd> {
        self.odd.get(&index).copied()
    }

    fn is_packet_load(&self, index: usize) -> bool {
        matches!(self.odd(index), Some(Odd::PacketLoad { .. }))
    }

    /// Returns the start of the function that this slot calls or takes the address of.
    pub fn callee(&self, index: usize) -> Option<usize> {
        self.op(index).and_then(|op| callee(index, &op))
    }

    /// Returns the first slot that control cannot reach if poison counts as an ordinary call, as
    /// for the kernel.
    pub(crate) fn first_unreachable(&self) -> Option<usize> {
        let reachable = self.reach(true);
        (0..self.len())
            .find(|&index| self.op(index).is_some() && reachable.get(index) == Some(&false))
    }

    /// Returns the longest chain of calls in functions, 1 if there are no calls.
    ///
    /// # Errors
    /// `E2BIG` above [`MAX_CALL_FRAMES`].
    pub fn frame_depth(&self) -> Result<usize, Reject> {
        self.deepest(|_| 1)
    }

    /// Returns the largest sum of `cost` (called with a function's number) over a chain of calls.
    ///
    /// # Errors
    /// `E2BIG` if a chain has more than [`MAX_CALL_FRAMES`] functions, as recursion always has.
    pub fn deepest(&self, cost: impl Fn(usize) -> usize) -> Result<usize, Reject> {
        let calls = self.calls();
        // By function: the cost of the most expensive chain of so many calls that ends in it.
        let mut chains: Vec<Option<usize>> = vec![None; self.functions.len()];
        if let Some(entry) = chains.first_mut() {
            *entry = Some(cost(0));
        }
        let mut deepest = 0;
        for _ in 0..MAX_CALL_FRAMES {
            deepest = chains.iter().flatten().copied().fold(deepest, usize::max);
            let mut longer = vec![None; chains.len()];
            for &(caller, callee) in &calls {
                if let (Some(&Some(chain)), Some(slot)) =
                    (chains.get(caller), longer.get_mut(callee))
                {
                    *slot = (*slot).max(Some(chain + cost(callee)));
                }
            }
            chains = longer;
            if chains.iter().all(Option::is_none) {
                return Ok(deepest);
            }
        }
        Err(Reject::program(
            Errno::E2BIG,
            format!(
                "the call stack of {} frames is too deep",
                MAX_CALL_FRAMES + 1
            ),
        ))
    }

    /// Returns the reachable calls, each pair of caller and callee once.
    fn calls(&self) -> BTreeSet<(usize, usize)> {
        let mut calls = BTreeSet::new();
        for (number, &function) in self.functions.iter().enumerate() {
            for (index, _) in self.reachable_ops(function) {
                if let Some(callee) = self.callee(index).and_then(|start| self.function_at(start)) {
                    calls.insert((number, callee));
                }
            }
        }
        calls
    }

    fn check_jumps(&self, function: Function) -> Result<(), Reject> {
        let inside = function.start..function.end;
        for index in inside.clone() {
            let destination = match self.op(index) {
                Some(Op::Jump { off }) => i64::from(off),
                Some(Op::Branch { off, .. } | Op::MayGoto { off }) => off.into(),
                _ => continue,
            };
            let destination = index as i64 + 1 + destination;
            let Some(to) = usize::try_from(destination)
                .ok()
                .filter(|to| inside.contains(to))
            else {
                return Err(Reject::program(
                    Errno::EINVAL,
                    format!("jump out of range from insn {index} to {destination}"),
                ));
            };
            if self.op(to).is_none() {
                return Err(Reject::program(
                    Errno::EINVAL,
                    format!("jump into the middle of ldimm64 insn {}", to - 1),
                ));
            }
        }
        // Poison may stand in place of any instruction but the last; control ends there
        // nevertheless.
        match self.op(function.end - 1) {
            Some(Op::Exit | Op::Jump { .. }) => Ok(()),
            _ => Err(Reject::program(
                Errno::EINVAL,
                "last insn is not an exit or jmp",
            )),
        }
    }

    fn reach(&self, through_poison: bool) -> Vec<bool> {
        let mut reached = vec![false; self.len()];
        let mut pending = vec![0];
        pending.extend(self.exception_callback);
        while let Some(index) = pending.pop() {
            match reached.get_mut(index) {
                Some(seen @ false) => *seen = true,
                _ => continue,
            }
            pending.extend(self.successors(index));
            pending.extend(self.callee(index));
            if through_poison && matches!(self.op(index), Some(Op::Poison { .. })) {
                pending.push(index + 1);
            }
        }
        reached
    }
}

/// Returns the slot `off` after the one that follows `index`; `None` below 0.
fn target(index: usize, off: i32) -> Option<usize> {
    (index + 1).checked_add_signed(isize::try_from(off).ok()?)
}

fn callee(index: usize, op: &Op) -> Option<usize> {
    match *op {
        Op::CallLocal { off }
        | Op::Imm64 {
            kind: Imm64::Function,
            low: off,
            ..
        } => target(index, off),
        _ => None,
    }
}

/// The operations by slot, and, if `tolerant`, the instructions that are not operations.
type Decoded = (Vec<Option<Op>>, BTreeMap<usize, Odd>);

fn decode(insns: &[Insn], tolerant: bool) -> Result<Decoded, Reject> {
    let mut ops = Vec::with_capacity(insns.len());
    let mut odd = BTreeMap::new();
    let mut slots = insns.iter().enumerate();
    while let Some((index, &insn)) = slots.next() {
        let op = match insn.op() {
            Ok(op) => op,
            Err(bad) => match odd_insn(insn, bad).filter(|_| tolerant) {
                Some(found) => {
                    odd.insert(index, found);
                    match found {
                        Odd::PacketLoad { .. } => Op::Poison { imm: insn.imm },
                        Odd::Cast { dst, src, .. } => Op::Move {
                            wide: true,
                            dst,
                            src: Operand::Reg(src),
                        },
                        Odd::Bad(_) => faultless(insn),
                    }
                }
                None => return Err(undefined(index, insn, bad)),
            },
        };
        ops.push(Some(op));
        if insn.is_imm64() {
            match slots.next() {
                Some((
                    _,
                    &Insn {
                        code: 0,
                        dst: 0,
                        src: 0,
                        off: 0,
                        imm,
                    },
                )) if imm == 0 || takes_high_half(&op) => ops.push(None),
                _ => {
                    return Err(Reject::insn(
                        Errno::EINVAL,
                        index,
                        insn,
                        "invalid bpf_ld_imm64 insn",
                    ));
                }
            }
        }
    }
    Ok((ops, odd))
}

/// Returns the operation that an instruction would be without the faults in fields that do not
/// affect control flow.
fn faultless(insn: Insn) -> Op {
    use beeline_isa::opcode::*;
    const NEXT: Op = Op::Jump { off: 0 };
    if insn.is_imm64() {
        let without = Insn {
            dst: 0,
            off: 0,
            ..insn
        };
        return without.op().unwrap_or(NEXT);
    }
    if !matches!(insn.code & CLASS_MASK, JMP | JMP32) {
        return NEXT;
    }
    let keeps_off = !matches!(insn.code & OP_MASK, CALL | EXIT) && insn.code != JMP32 | JA;
    let keeps_imm = matches!(insn.code & OP_MASK, CALL) || insn.code == JMP32 | JA;
    let without = Insn {
        code: insn.code & !SOURCE_MASK,
        dst: 0,
        src: if insn.code == JMP | CALL { insn.src } else { 0 },
        off: if keeps_off { insn.off } else { 0 },
        imm: if keeps_imm { insn.imm } else { 0 },
    };
    without.op().unwrap_or(NEXT)
}

/// Returns an instruction that the kernel refuses when a path reaches it, not before.
fn odd_insn(insn: Insn, bad: BadInsn) -> Option<Odd> {
    use beeline_isa::opcode::{CLASS_MASK, IND, LDX, MODE_MASK, PSEUDO_MAP_IDX_VALUE};
    if let Some(cast) = cast(insn) {
        return Some(cast);
    }
    match bad {
        BadInsn::Opcode => None,
        // The kind does not exist.
        _ if insn.is_imm64() && insn.src > PSEUDO_MAP_IDX_VALUE => None,
        _ if insn.code & CLASS_MASK == LDX && insn.imm != 0 => None,
        BadInsn::Packet if insn.dst == 0 && insn.off == 0 => match insn.code & MODE_MASK {
            IND => Some(Odd::PacketLoad {
                index: Some(insn.src),
            }),
            _ if insn.src == 0 => Some(Odd::PacketLoad { index: None }),
            _ => Some(Odd::Bad(BadInsn::Packet)),
        },
        _ => Some(Odd::Bad(bad)),
    }
}

/// Parses `addr_space_cast`.
fn cast(insn: Insn) -> Option<Odd> {
    use beeline_isa::FRAME_POINTER;
    use beeline_isa::opcode::*;
    /// `BPF_ADDR_SPACE_CAST`, in the place of an offset.
    const CAST: i16 = 1;
    /// From address space 1, that of arenas, to 0; and back.
    const INWARD: i32 = 1;
    const OUTWARD: i32 = 1 << 16;
    let is_cast = insn.code == ALU64 | MOV | SOURCE_MASK
        && insn.off == CAST
        && matches!(insn.imm, INWARD | OUTWARD)
        && insn.dst < FRAME_POINTER
        && insn.src <= FRAME_POINTER;
    is_cast.then_some(Odd::Cast {
        dst: insn.dst,
        src: insn.src,
        inward: insn.imm == INWARD,
    })
}

fn takes_high_half(op: &Op) -> bool {
    !matches!(
        op,
        Op::Imm64 {
            kind: Imm64::Map | Imm64::MapIndex,
            ..
        }
    )
}

pub(crate) fn undefined(index: usize, insn: Insn, bad: BadInsn) -> Reject {
    match bad {
        BadInsn::Opcode => Reject::insn(
            Errno::EINVAL,
            index,
            insn,
            format!("unknown opcode {:02x}", insn.code),
        ),
        BadInsn::Reserved => Reject::insn(Errno::EINVAL, index, insn, reserved(insn)),
        BadInsn::MayGoto => Reject::insn(
            Errno::EINVAL,
            index,
            insn,
            format!("invalid may_goto imm {}", insn.imm),
        ),
        BadInsn::FramePointer => Reject::insn(Errno::EACCES, index, insn, bad.to_string()),
        _ => Reject::insn(Errno::EINVAL, index, insn, bad.to_string()),
    }
}

/// Returns the kernel's message for a field that should be 0.
fn reserved(insn: Insn) -> String {
    use beeline_isa::opcode::*;
    let name = match (insn.code & CLASS_MASK, insn.code & OP_MASK) {
        (LD, _) if insn.off == 0 => return "unrecognized bpf_ld_imm64 insn".to_owned(),
        (LD, _) => "BPF_LD_IMM64",
        (LDX, _) => "BPF_LDX",
        (ST, _) => "BPF_ST",
        (STX, _) if insn.code & MODE_MASK != ATOMIC => "BPF_STX",
        (STX, _) if matches!(insn.code & SIZE_MASK, B | H) => {
            return "invalid atomic operand size".to_owned();
        }
        (STX, _) => return format!("BPF_ATOMIC uses invalid atomic opcode {:02x}", insn.imm),
        (ALU | ALU64, NEG) => "BPF_NEG",
        (ALU | ALU64, END) => "BPF_END",
        (ALU64, MOV) if insn.code & SOURCE_MASK != 0 && insn.off == 1 => {
            let why = "addr_space_cast insn can only convert between address space 1 and 0";
            return why.to_owned();
        }
        (ALU | ALU64, MOV) => "BPF_MOV",
        (ALU | ALU64, _) => "BPF_ALU",
        (_, JA) => "BPF_JA",
        (_, CALL) => "BPF_CALL",
        (_, EXIT) => "BPF_EXIT",
        _ => "BPF_JMP/JMP32",
    };
    format!("{name} uses reserved fields")
}

/// Cuts the program at the targets of its calls.
fn functions(
    insns: &[Insn],
    ops: &[Option<Op>],
    exception_callback: Option<usize>,
) -> Result<Vec<Function>, Reject> {
    let mut starts = BTreeSet::from([0]);
    if let Some(start) = exception_callback {
        if !matches!(ops.get(start), Some(Some(_))) {
            return Err(Reject::program(
                Errno::EINVAL,
                "call to invalid destination",
            ));
        }
        starts.insert(start);
    }
    for (index, op) in ops.iter().enumerate() {
        let Some(
            Op::CallLocal { .. }
            | Op::Imm64 {
                kind: Imm64::Function,
                ..
            },
        ) = op
        else {
            continue;
        };
        match op.as_ref().and_then(|op| callee(index, op)) {
            Some(start) if matches!(ops.get(start), Some(Some(_))) => starts.insert(start),
            _ => {
                let insn = insns.get(index).copied().unwrap_or_default();
                return Err(Reject::insn(
                    Errno::EINVAL,
                    index,
                    insn,
                    "call to invalid destination",
                ));
            }
        };
    }
    let ends = starts.iter().copied().skip(1).chain([ops.len()]);
    Ok(starts
        .iter()
        .zip(ends)
        .map(|(&start, end)| Function { start, end })
        .collect())
}

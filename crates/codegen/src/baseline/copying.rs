//! Loops that copy elements of less than a word, one in each turn, and the conditions under which
//! whole words can be copied instead.
//!
//! Compilers for eBPF leave such a loop as it is written, at best a store in each cycle. A word may
//! stand for its elements if the loop does nothing else, if it goes on for as many turns, and if
//! nothing that it stores is loaded again within the word. The loop always does the last turns
//! itself, so they leave every register as it must be.

use std::collections::HashMap;

use beeline_isa::{Alu, Cond, Op, Operand, Size};
use beeline_verifier::Flow;

/// The most slots of a loop.
const MAX_SLOTS: usize = 16;
const REGISTERS: usize = 11;

/// A loop that copies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Copying {
    /// The slot of the jump or branch back.
    pub(crate) last: usize,
    /// The number of elements in a word.
    pub(crate) turns: i32,
    pub(crate) from: Sum,
    pub(crate) to: Sum,
    /// The registers that change by the same number in each turn, with their change over the turns
    /// of a word.
    pub(crate) steps: Vec<(u8, i32)>,
    pub(crate) count: Count,
}

/// The condition on which the loop goes on: a number, which changes by one in each turn, is not the
/// bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Count {
    /// The number that the first turn compares.
    pub(crate) number: (u8, i32),
    pub(crate) bound: Operand,
    /// True if the number grows.
    pub(crate) up: bool,
    pub(crate) order: Order,
}

/// The behaviour of the loop if the number is already past its bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// The loop goes on, all around.
    None,
    /// The loop ends, in unsigned order.
    Unsigned,
    /// The loop ends, in signed order.
    Signed,
}

/// Up to two registers, as they are at the start of a turn, and a distance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sum {
    pub(crate) registers: [Option<u8>; 2],
    pub(crate) plus: i32,
}

/// The content of a register within a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Held {
    Sum(Sum),
    Element,
}

/// Returns the copying loops of a program, by their first slots.
pub(crate) fn copying_loops(
    flow: &Flow,
    is_target: &dyn Fn(usize) -> bool,
) -> HashMap<usize, Copying> {
    let functions = flow.functions().iter();
    let ops = functions.flat_map(|&function| flow.reachable_ops(function));
    ops.filter_map(|(last, op)| {
        let off = match op {
            Op::Jump { off } => off,
            Op::Branch { off, .. } => off.into(),
            _ => return None,
        };
        let first = (last + 1).checked_add_signed(off as isize)?;
        let is_short = first < last && last - first < MAX_SLOTS;
        let is_whole = || !(first + 1..=last).any(is_target);
        let copying = (is_short && is_whole()).then(|| Turn::of(flow, first, last))??;
        Some((first, copying))
    })
    .collect()
}

/// One turn of a loop, followed from its first slot to its last.
struct Turn {
    held: [Held; REGISTERS],
    load: Option<(Size, Sum)>,
    store: Option<Sum>,
    /// The comparison: whether the loop goes on if the condition holds, and the operands.
    test: Option<(bool, Cond, Held, Operand)>,
}

impl Turn {
    fn of(flow: &Flow, first: usize, last: usize) -> Option<Copying> {
        let mut turn = Self {
            held: std::array::from_fn(|register| Held::Sum(Sum::of(register as u8))),
            load: None,
            store: None,
            test: None,
        };
        for slot in first..=last {
            let op = flow.op(slot)?;
            // Only the jump back may follow the comparison.
            if turn.test.is_some() && !matches!((op, slot == last), (Op::Jump { .. }, true)) {
                return None;
            }
            turn.pass(op, slot == last)?;
        }
        turn.copying(last)
    }

    /// Applies an instruction's changes; returns `None` for instructions that copying does not
    /// need.
    fn pass(&mut self, op: Op, is_last: bool) -> Option<()> {
        match op {
            Op::Move { wide, dst, src } => {
                let held = match src {
                    Operand::Reg(src) if wide => self.get(src)?,
                    Operand::Imm(imm) if wide || imm >= 0 => Held::Sum(Sum::number(imm)),
                    _ => return None,
                };
                self.set(dst, held)
            }
            Op::Alu {
                op: Alu::Add,
                wide: true,
                dst,
                src,
            } => {
                let more = match src {
                    Operand::Reg(src) => self.sum(src)?,
                    Operand::Imm(imm) => Sum::number(imm),
                };
                let sum = self.sum(dst)?.and(more)?;
                self.set(dst, Held::Sum(sum))
            }
            Op::Alu {
                op: Alu::Sub,
                wide: true,
                dst,
                src: Operand::Imm(imm),
            } => {
                let sum = self.sum(dst)?.and(Sum::number(imm.checked_neg()?))?;
                self.set(dst, Held::Sum(sum))
            }
            Op::Load {
                size,
                dst,
                src,
                off,
                ..
            } if self.load.is_none() && size != Size::B8 => {
                let from = self.sum(src)?.and(Sum::number(off.into()))?;
                self.load = Some((size, from));
                self.set(dst, Held::Element)
            }
            Op::Store {
                size,
                dst,
                src: Operand::Reg(src),
                off,
            } if self.store.is_none() => {
                let is_element = self.get(src)? == Held::Element;
                let is_size = self.load.is_some_and(|(loaded, _)| loaded == size);
                let to = self.sum(dst)?.and(Sum::number(off.into()))?;
                self.store = (is_element && is_size).then_some(to);
                self.store.map(drop)
            }
            Op::Branch {
                cond,
                wide: true,
                dst,
                src,
                ..
            } => {
                self.test = Some((is_last, cond, self.get(dst)?, src));
                Some(())
            }
            Op::Jump { .. } if is_last => Some(()),
            _ => None,
        }
    }

    fn get(&self, register: u8) -> Option<Held> {
        self.held.get(usize::from(register)).copied()
    }

    fn set(&mut self, register: u8, held: Held) -> Option<()> {
        *self.held.get_mut(usize::from(register))? = held;
        Some(())
    }

    fn sum(&self, register: u8) -> Option<Sum> {
        match self.get(register)? {
            Held::Sum(sum) => Some(sum),
            Held::Element => None,
        }
    }

    /// Returns the loop, if its turns only copy one element after the other.
    fn copying(&self, last: usize) -> Option<Copying> {
        let (size, from) = self.load?;
        let to = self.store?;
        // A register that is set anew in each turn must get its value from the known ones.
        let are_known = self.held.iter().all(|held| match held {
            Held::Sum(sum) => sum.step(&|register| self.step(register)).is_some(),
            Held::Element => true,
        });
        let bytes = i32::from(size.bytes());
        let advances = |sum: Sum| sum.step(&|register| self.step(register)) == Some(bytes);
        if !are_known || !advances(from) || !advances(to) || overlap(from, to) {
            return None;
        }
        let turns = 8 / bytes;
        let registers = 0..REGISTERS as u8;
        let steps = registers.filter_map(|register| Some((register, self.step(register)?)));
        let steps = steps.filter(|(_, step)| *step != 0);
        let steps = steps.map(|(register, step)| Some((register, step.checked_mul(turns)?)));
        Some(Copying {
            last,
            turns,
            from,
            to,
            steps: steps.collect::<Option<_>>()?,
            count: self.count()?,
        })
    }

    /// Returns the change of a register in a turn, if that is always the same.
    fn step(&self, register: u8) -> Option<i32> {
        let Sum { registers, plus } = self.sum(register)?;
        (registers == Sum::of(register).registers).then_some(plus)
    }

    fn count(&self) -> Option<Count> {
        let (goes_on, cond, Held::Sum(sum), bound) = self.test? else {
            return None;
        };
        let [Some(register), None] = sum.registers else {
            return None;
        };
        let up = match self.step(register)? {
            1 => true,
            -1 => false,
            _ => return None,
        };
        if let Operand::Reg(bound) = bound
            && self.step(bound) != Some(0)
        {
            return None;
        }
        let order = match (cond, goes_on, up) {
            (Cond::NotEqual, true, _) | (Cond::Equal, false, _) => Order::None,
            (Cond::Less, true, true) | (Cond::GreaterEqual, false, true) => Order::Unsigned,
            (Cond::Greater, true, false) | (Cond::LessEqual, false, false) => Order::Unsigned,
            (Cond::SignedLess, true, true) | (Cond::SignedGreaterEqual, false, true) => {
                Order::Signed
            }
            (Cond::SignedGreater, true, false) | (Cond::SignedLessEqual, false, false) => {
                Order::Signed
            }
            _ => return None,
        };
        Some(Count {
            number: (register, sum.plus),
            bound,
            up,
            order,
        })
    }
}

impl Sum {
    const fn of(register: u8) -> Self {
        Self {
            registers: [Some(register), None],
            plus: 0,
        }
    }

    const fn number(plus: i32) -> Self {
        Self {
            registers: [None; 2],
            plus,
        }
    }

    fn and(self, more: Self) -> Option<Self> {
        let mut both = self.registers.into_iter().chain(more.registers).flatten();
        let registers = [both.next(), both.next()];
        let plus = self.plus.checked_add(more.plus)?;
        both.next().is_none().then_some(Self { registers, plus })
    }

    /// Returns its change in a turn, if that of its registers is known.
    fn step(&self, of: &impl Fn(u8) -> Option<i32>) -> Option<i32> {
        let mut registers = self.registers.iter().flatten();
        registers.try_fold(0_i32, |sum, &register| sum.checked_add(of(register)?))
    }

    /// Returns the distance of another sum of the same registers behind this one.
    pub(crate) fn distance(&self, other: &Self) -> Option<i64> {
        let [one, two] = self.registers;
        let same = other.registers == [one, two] || other.registers == [two, one];
        same.then(|| i64::from(other.plus) - i64::from(self.plus))
    }
}

/// Returns whether elements that the same word stores are known to be loaded again.
fn overlap(from: Sum, to: Sum) -> bool {
    let distance = from.distance(&to);
    distance.is_some_and(|bytes| (0..8).contains(&bytes))
}

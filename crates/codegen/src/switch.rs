//! Choices among many constants.
//!
//! Compilers for eBPF turn a `switch` into a search of comparisons, as the instruction set has no
//! jump tables. This module recovers the switch from such a tree.

use std::collections::{BTreeMap, HashSet};

use beeline_isa::{Cond, Op, Operand};
use beeline_verifier::Flow;

/// The most comparisons of one tree.
const MAX_NODES: usize = 1024;
/// The most cases of a switch.
const MAX_CASES: u64 = 1024;
/// Fewer comparisons are better left alone.
const MIN_NODES: usize = 4;

/// The end of a way through the comparisons.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Leaf {
    /// The moves on the way.
    pub moves: Moves,
    /// The slot that comes next; a jump or a branch leads there.
    pub slot: usize,
}

/// A tree of comparisons of one register with constants.
#[derive(Debug)]
pub struct Decision {
    /// True if it looks at all of the register; false for its low half.
    pub wide: bool,
    /// The register.
    pub register: u8,
    /// The leaves for values.
    pub cases: Vec<(u64, Leaf)>,
    /// The leaf for all other values.
    pub default: Leaf,
}

/// Moves of constants by register: whether the move is wide, and the constant.
pub type Moves = BTreeMap<u8, (bool, i32)>;

/// Values from the first to the last, as unsigned numbers.
type Range = (u64, u64);

/// The decisions of a function, requested in the order of its slots.
#[derive(Debug, Default)]
pub struct Decisions {
    /// Slots that are part of an earlier tree.
    seen: HashSet<usize>,
}

impl Decisions {
    /// Returns the decision that begins with the branch in a slot, if it is one.
    ///
    /// Leaves are at slots that `is_start` allows.
    pub fn at(
        &mut self,
        flow: &Flow,
        slot: usize,
        is_start: &dyn Fn(usize) -> bool,
    ) -> Option<Decision> {
        let Some(Op::Branch {
            wide,
            dst: register,
            ..
        }) = flow.op(slot)
        else {
            return None;
        };
        if self.seen.contains(&slot) {
            return None;
        }
        let mut tree = DecisionTree {
            flow,
            is_start,
            wide,
            register,
            seen: &self.seen,
            nodes: HashSet::new(),
            leaves: BTreeMap::new(),
        };
        let all = (0, if wide { u64::MAX } else { u32::MAX.into() });
        let leaf = Leaf {
            moves: Moves::new(),
            slot,
        };
        tree.explore(leaf, vec![all]);
        let nodes = std::mem::take(&mut tree.nodes);
        let decision = tree.decision(nodes.len());
        self.seen.extend(nodes);
        decision
    }
}

struct DecisionTree<'a> {
    flow: &'a Flow,
    is_start: &'a dyn Fn(usize) -> bool,
    wide: bool,
    register: u8,
    /// Comparisons of other trees.
    seen: &'a HashSet<usize>,
    /// The comparisons.
    nodes: HashSet<usize>,
    leaves: BTreeMap<Leaf, Vec<Range>>,
}

impl DecisionTree<'_> {
    /// Follows all ways from a place that the register reaches with these values.
    fn explore(&mut self, start: Leaf, values: Vec<Range>) {
        let mut pending = vec![(start, values)];
        while let Some((place, values)) = pending.pop() {
            if values.is_empty() {
                continue;
            }
            let Some((moves, slot, test)) = self.next_test(&place) else {
                let leaf = self.end_of(place);
                self.leaves.entry(leaf).or_default().extend(values);
                continue;
            };
            self.nodes.insert(slot);
            let mut successors = self.flow.successors(slot);
            let sides = [(false, successors.next()), (true, successors.next())];
            for (holds, successor) in sides {
                let Some(slot) = successor else { continue };
                let moves = moves.clone();
                pending.push((Leaf { moves, slot }, test.among(&values, holds)));
            }
        }
    }

    /// Finds the next comparison of the register behind a place, with only moves of constants to
    /// other registers and jumps before it. Returns these moves, too, with earlier ones.
    fn next_test(&self, place: &Leaf) -> Option<(Moves, usize, Test)> {
        let mut moves = place.moves.clone();
        let mut slot = place.slot;
        // A few moves and jumps at most: this must not follow a loop.
        for _ in 0..4 {
            match self.flow.op(slot)? {
                Op::Move {
                    wide,
                    dst,
                    src: Operand::Imm(imm),
                } if dst != self.register => {
                    moves.insert(dst, (wide, imm));
                }
                Op::Jump { .. } => {}
                Op::Branch {
                    cond,
                    wide,
                    dst,
                    src: Operand::Imm(imm),
                    ..
                } if wide == self.wide && dst == self.register && cond != Cond::AnySet => {
                    let is_old = self.nodes.contains(&slot) || self.seen.contains(&slot);
                    let is_new = !is_old && self.nodes.len() < MAX_NODES;
                    let test = Test { cond, wide, imm };
                    return is_new.then_some((moves, slot, test));
                }
                _ => return None,
            }
            slot = self.flow.successors(slot).next()?;
        }
        None
    }

    /// Returns the place behind the moves of constants and the jumps that follow a place, so that
    /// equal ways are recognised as equal.
    fn end_of(&self, place: Leaf) -> Leaf {
        let mut end = place.clone();
        let Leaf {
            mut moves,
            mut slot,
        } = place;
        for _ in 0..4 {
            match self.flow.op(slot) {
                Some(Op::Move {
                    wide,
                    dst,
                    src: Operand::Imm(imm),
                }) => {
                    moves.insert(dst, (wide, imm));
                }
                Some(Op::Jump { .. }) => {}
                _ => break,
            }
            let Some(next) = self.flow.successors(slot).next() else {
                break;
            };
            slot = next;
            if (self.is_start)(slot) {
                end = Leaf {
                    moves: moves.clone(),
                    slot,
                };
            }
        }
        end
    }

    /// Returns a switch, if there is enough to choose from.
    fn decision(mut self, nodes: usize) -> Option<Decision> {
        let count = |ranges: &Vec<Range>| {
            let lengths = ranges.iter().map(|(first, last)| last - first);
            lengths.fold(0_u64, |sum, more| {
                sum.saturating_add(more).saturating_add(1)
            })
        };
        let default = self
            .leaves
            .iter()
            .max_by_key(|(_, ranges)| count(ranges))
            .map(|(leaf, _)| leaf.clone())?;
        self.leaves.remove(&default);
        let total = self
            .leaves
            .values()
            .map(count)
            .fold(0_u64, u64::saturating_add);
        if nodes < MIN_NODES || total > MAX_CASES {
            return None;
        }
        let mut cases = Vec::new();
        for (leaf, ranges) in self.leaves {
            for (first, last) in ranges {
                cases.extend((first..=last).map(|value| (value, leaf.clone())));
            }
        }
        Some(Decision {
            wide: self.wide,
            register: self.register,
            cases,
            default,
        })
    }
}

/// A comparison with a constant.
struct Test {
    cond: Cond,
    wide: bool,
    imm: i32,
}

impl Test {
    /// Returns those of the values for which the comparison holds, or does not.
    fn among(&self, values: &[Range], holds: bool) -> Vec<Range> {
        let wanted = self.ranges(holds);
        let mut both = Vec::new();
        for &(first, last) in values {
            for &(low, high) in &wanted {
                let (first, last) = (first.max(low), last.min(high));
                if first <= last {
                    both.push((first, last));
                }
            }
        }
        both
    }

    /// Returns all values for which it holds, or does not.
    fn ranges(&self, holds: bool) -> Vec<Range> {
        let (max, number) = if self.wide {
            (u64::MAX, i64::from(self.imm).cast_unsigned())
        } else {
            (u32::MAX.into(), self.imm.cast_unsigned().into())
        };
        // A signed order is the unsigned one, started at the smallest negative number.
        let smallest = match self.cond {
            Cond::SignedGreater
            | Cond::SignedGreaterEqual
            | Cond::SignedLess
            | Cond::SignedLessEqual => max / 2 + 1,
            _ => 0,
        };
        let turn = |value: u64| value.wrapping_sub(smallest) & max;
        let number = turn(number);
        let below = number.checked_sub(1).map(|last| (0, last));
        let above = (number < max).then(|| (number + 1, max));
        let equal = Some((number, number));
        let (yes, no) = match self.cond {
            Cond::Equal => ([equal, None], [below, above]),
            Cond::NotEqual => ([below, above], [equal, None]),
            Cond::Greater | Cond::SignedGreater => ([above, None], [below, equal]),
            Cond::GreaterEqual | Cond::SignedGreaterEqual => ([equal, above], [below, None]),
            Cond::Less | Cond::SignedLess => ([below, None], [equal, above]),
            Cond::LessEqual | Cond::SignedLessEqual => ([below, equal], [above, None]),
            // Not requested.
            Cond::AnySet => ([Some((0, max)), None], [Some((0, max)), None]),
        };
        let chosen = if holds { yes } else { no };
        chosen
            .into_iter()
            .flatten()
            .flat_map(|(first, last)| unturn(first, last, smallest, max))
            .collect()
    }
}

/// Turns a range of a turned order into one or two of the unsigned one.
fn unturn(first: u64, last: u64, smallest: u64, max: u64) -> Vec<Range> {
    let back = |value: u64| value.wrapping_add(smallest) & max;
    let (first, last) = (back(first), back(last));
    if first <= last {
        vec![(first, last)]
    } else {
        vec![(first, max), (0, last)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Holds = fn(i64, i64) -> bool;

    const CONDS: [(Cond, Holds); 10] = [
        (Cond::Equal, |a, b| a == b),
        (Cond::NotEqual, |a, b| a != b),
        (Cond::Greater, |a, b| a.cast_unsigned() > b.cast_unsigned()),
        (Cond::GreaterEqual, |a, b| {
            a.cast_unsigned() >= b.cast_unsigned()
        }),
        (Cond::Less, |a, b| a.cast_unsigned() < b.cast_unsigned()),
        (Cond::LessEqual, |a, b| {
            a.cast_unsigned() <= b.cast_unsigned()
        }),
        (Cond::SignedGreater, |a, b| a > b),
        (Cond::SignedGreaterEqual, |a, b| a >= b),
        (Cond::SignedLess, |a, b| a < b),
        (Cond::SignedLessEqual, |a, b| a <= b),
    ];

    #[test]
    fn ranges_hold_what_the_condition_says() {
        let edges = [
            0,
            1,
            -1,
            2,
            -2,
            i32::MAX,
            i32::MIN,
            i32::MIN + 1,
            i32::MAX - 1,
            77,
        ];
        for (cond, holds) in CONDS {
            for (imm, value) in edges
                .iter()
                .flat_map(|&imm| edges.map(|value| (imm, value)))
            {
                for wide in [false, true] {
                    let test = Test { cond, wide, imm };
                    let number = if wide {
                        i64::from(value).cast_unsigned()
                    } else {
                        value.cast_unsigned().into()
                    };
                    let inside = |wanted| {
                        let ranges = test.ranges(wanted);
                        ranges
                            .iter()
                            .any(|&(low, high)| (low..=high).contains(&number))
                    };
                    let expected = holds(value.into(), imm.into());
                    assert_eq!((inside(true), inside(false)), (expected, !expected));
                }
            }
        }
    }
}

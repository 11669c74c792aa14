//! Choices among constants that amount to a look-up in a table: each value leads to the same place,
//! with another constant.

use std::collections::BTreeMap;

use crate::switch::{Decision, Leaf};

/// The fewest cases: fewer are found as fast by comparing.
const MIN_CASES: usize = 8;

/// Constants to be looked up by a register. Values that are not in the table go through the
/// comparisons.
pub(crate) struct Lookup {
    /// True if all of the register is compared; false for its low half.
    pub(crate) wide: bool,
    pub(crate) register: u8,
    /// The register's value for the first constant.
    pub(crate) first: i32,
    pub(crate) constants: Vec<i32>,
    /// The register that gets the constant.
    pub(crate) dst: u8,
    /// True if the constant is sign-extended to the full register.
    pub(crate) extends: bool,
    /// The slot that comes next.
    pub(crate) slot: usize,
}

impl Lookup {
    /// Returns the table that replaces a decision, if the decision does nothing else, and at least
    /// half of the table are its cases.
    pub(crate) fn of(decision: &Decision) -> Option<Self> {
        let cases: BTreeMap<u64, &Leaf> = decision
            .cases
            .iter()
            .map(|(value, leaf)| (*value, leaf))
            .collect();
        let (&first, leaf) = cases.first_key_value()?;
        let (&last, _) = cases.last_key_value()?;
        let (slot, dst, extends, _) = constant(leaf)?;
        if cases.len() < MIN_CASES || (last - first) / 2 >= cases.len() as u64 {
            return None;
        }
        let constants = (first..=last).map(|value| {
            let leaf = cases.get(&value).copied().unwrap_or(&decision.default);
            let (its_slot, its_dst, its_extends, imm) = constant(leaf)?;
            ((its_slot, its_dst, its_extends) == (slot, dst, extends)).then_some(imm)
        });
        Some(Self {
            wide: decision.wide,
            register: decision.register,
            first: i32::try_from(first).ok()?,
            constants: constants.collect::<Option<_>>()?,
            dst,
            extends,
            slot,
        })
    }
}

/// Returns the slot that a leaf leads to, and its constant with the register, if it changes only
/// that one.
fn constant(leaf: &Leaf) -> Option<(usize, u8, bool, i32)> {
    let mut moves = leaf.moves.iter();
    let (&dst, &(wide, imm)) = moves.next()?;
    moves
        .next()
        .is_none()
        .then_some((leaf.slot, dst, wide, imm))
}

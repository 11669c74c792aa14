//! Atomic operations, by the instruction set's definition.

mod common;

use common::{atomics, result};

#[test]
fn atomics_on_all_registers() {
    atomics::atomics_on_all_registers(result);
}

#[test]
fn compare_and_exchange_in_both_outcomes() {
    atomics::compare_and_exchange_in_both_outcomes(result);
}

//! Formats numbers in the manner of the kernel's log.

use std::fmt::Write;

use super::Scalar;
use crate::tnum::{Signed, Unsigned};

impl Scalar {
    /// Appends the facts, as the kernel's log lists them between the parentheses of `scalar(...)`
    /// or of a pointer: `smin=0,smax=umax=255,var_off=(0x0; 0xff)`.
    ///
    /// A comma comes before unless `out` is empty or ends with `(`. For a number that is
    /// [`constant`](Self::constant) the log has only that, as [`Signed`].
    pub fn describe(&self, out: &mut String) {
        for (names, value) in self.bounds() {
            separate(out);
            for name in names {
                out.push_str(name);
                out.push('=');
            }
            match value {
                Bound::Signed(value) => write!(out, "{}", Signed(value)),
                Bound::Unsigned(value) => write!(out, "{}", Unsigned(value)),
            }
            .expect("a string takes all");
        }
        if !self.bits.is_unknown() {
            separate(out);
            write!(out, "var_off={}", self.bits).expect("a string takes all");
        }
    }

    /// Returns the line of the kernel's log if bounds contradict each other, with the name of the
    /// place where that was noticed.
    ///
    /// The names are `alu`, `true_reg1`, `true_reg2`, `false_reg1` or `false_reg2`.
    pub fn violation(&self, place: &str) -> Option<String> {
        let what = self.contradiction()?;
        let Self { bits, .. } = self;
        Some(format!(
            "verifier bug: REG INVARIANTS VIOLATION ({place}): {what} u64=[{:#x}, {:#x}] s64=[{:#x}, {:#x}] \
             u32=[{:#x}, {:#x}] s32=[{:#x}, {:#x}] var_off=({:#x}, {:#x})",
            self.wide.umin,
            self.wide.umax,
            self.wide.smin,
            self.wide.smax,
            self.narrow.umin,
            self.narrow.umax,
            self.narrow.smin,
            self.narrow.smax,
            bits.value,
            bits.mask
        ))
    }

    /// Returns the bounds that say something; those of one value are named together.
    fn bounds(&self) -> Vec<(Vec<&'static str>, Bound)> {
        // The width decides which hexadecimal digits a negative number has.
        let narrow = |value: i32| match i16::try_from(value) {
            Ok(_) => i64::from(value),
            Err(_) => i64::from(value as u32),
        };
        let signed = |name, value, tells| (name, Bound::Signed(value), tells);
        let unsigned = |name, value, tells| (name, Bound::Unsigned(value), tells);
        let mut rest = vec![
            signed("smin", self.wide.smin, self.wide.smin != i64::MIN),
            signed("smax", self.wide.smax, self.wide.smax != i64::MAX),
            unsigned("umin", self.wide.umin, self.wide.umin != 0),
            unsigned("umax", self.wide.umax, self.wide.umax != u64::MAX),
            signed(
                "smin32",
                narrow(self.narrow.smin),
                self.narrow.smin != i32::MIN,
            ),
            signed(
                "smax32",
                narrow(self.narrow.smax),
                self.narrow.smax != i32::MAX,
            ),
            unsigned("umin32", self.narrow.umin.into(), self.narrow.umin != 0),
            unsigned(
                "umax32",
                self.narrow.umax.into(),
                self.narrow.umax != u32::MAX,
            ),
        ];
        rest.retain(|&(_, _, tells)| tells);
        let mut bounds = Vec::new();
        while let Some(&(first, value, _)) = rest.first() {
            // A minimum stands with minima only.
            let joins = |&&mut (name, other, _): &&mut (&'static str, Bound, bool)| {
                is_minimum(name) == is_minimum(first) && other.is_like(value)
            };
            let names = rest
                .extract_if(.., |bound| joins(&bound))
                .map(|(name, ..)| name)
                .collect();
            bounds.push((names, value));
        }
        bounds
    }
}

#[derive(Clone, Copy)]
enum Bound {
    Signed(i64),
    Unsigned(u64),
}

impl Bound {
    /// Returns whether it is written the same.
    fn is_like(self, other: Self) -> bool {
        let parts = |bound| match bound {
            Self::Signed(value) => (value as u64, value < 0),
            Self::Unsigned(value) => (value, false),
        };
        parts(self) == parts(other)
    }
}

fn is_minimum(name: &str) -> bool {
    name[1..].starts_with("min")
}

fn separate(out: &mut String) {
    if !out.is_empty() && !out.ends_with('(') {
        out.push(',');
    }
}

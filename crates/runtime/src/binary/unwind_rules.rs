//! The rules by which callers are found, from a file's `.eh_frame`.

use beeline_agent::unwind_table::{Cfa, Rule, Saved};
use gimli::{
    BaseAddresses, CfaRule, Encoding, EndianSlice, Format, LittleEndian, Operation, Register,
    RegisterRule, UnwindContext, UnwindExpression, UnwindTableRow,
};

use super::unwind::{Entry, Frames, each_entry};
use crate::arch::{FRAME_POINTER, INSTRUCTION_POINTER, STACK_POINTER};

/// Code, by the file's own addresses, that one rule is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ruled {
    /// Its first address.
    pub start: u64,
    /// The address behind it.
    pub end: u64,
    /// The rule.
    pub rule: Rule,
}

/// The most rules of a file. A browser has a million.
const MOST_RULES: usize = 8 << 20;
/// The operations of the longest expression that is understood.
const LONGEST: usize = 9;

const ENCODING: Encoding = Encoding {
    format: Format::Dwarf32,
    version: 4,
    address_size: 8,
};

type Operations<'a> = Vec<Operation<EndianSlice<'a, LittleEndian>>>;

/// Returns the rules that a section at an address names, in its own order. Parts that make no sense
/// are left out, and what is too much.
pub fn rules(data: &[u8], address: u64) -> Vec<Ruled> {
    let mut found = Vec::new();
    let mut context = UnwindContext::new();
    each_entry(data, address, |fde, frames, bases| {
        if fde.is_signal_trampoline() {
            let start = fde.initial_address();
            found.push(Ruled {
                start,
                end: start.saturating_add(fde.len()),
                rule: Rule::SIGNAL,
            });
        } else {
            append(&mut found, fde, frames, bases, &mut context);
        }
    });
    found
}

fn append(
    found: &mut Vec<Ruled>,
    fde: &Entry<'_>,
    frames: &Frames<'_>,
    bases: &BaseAddresses,
    context: &mut UnwindContext<usize>,
) {
    let Ok(mut rows) = fde.rows(frames, bases, context) else {
        return;
    };
    while let Ok(Some(row)) = rows.next_row() {
        if found.len() >= MOST_RULES {
            return;
        }
        let (start, end) = (row.start_address(), row.end_address());
        if start < end {
            let rule = rule_of(row, frames).unwrap_or(Rule::UNKNOWN);
            found.push(Ruled { start, end, rule });
        }
    }
}

/// Returns the rule of a row; `None` if it is one that tables do not have.
fn rule_of(row: &UnwindTableRow<usize>, frames: &Frames<'_>) -> Option<Rule> {
    match row.register(INSTRUCTION_POINTER) {
        Some(RegisterRule::Offset(-8)) => {}
        Some(RegisterRule::Undefined) => return Some(Rule::END),
        _ => return None,
    }
    let cfa = match row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => {
            let offset = i32::try_from(*offset).ok()?;
            match *register {
                STACK_POINTER => Cfa::Sp(offset),
                FRAME_POINTER => Cfa::Fp(offset),
                _ => return None,
            }
        }
        CfaRule::Expression(expression) => cfa_of(&operations(expression, frames)?)?,
    };
    let saved = match row.register(FRAME_POINTER) {
        None | Some(RegisterRule::SameValue | RegisterRule::Undefined) => Saved::Kept,
        Some(RegisterRule::Offset(offset)) => Saved::AtCfa(i16::try_from(offset).ok()?),
        Some(RegisterRule::Expression(expression)) => {
            match operations(&expression, frames)?.as_slice() {
                [operation] => Saved::AtFp(distance(operation, FRAME_POINTER)?),
                _ => return None,
            }
        }
        Some(_) => return None,
    };
    Some(Rule::new(cfa, saved))
}

/// Returns [`rule_of`] a row, or that nothing is known.
#[cfg(test)]
pub fn rule_at(row: &UnwindTableRow<usize>, frames: &Frames<'_>) -> Rule {
    rule_of(row, frames).unwrap_or(Rule::UNKNOWN)
}

fn operations<'a>(
    expression: &UnwindExpression<usize>,
    frames: &Frames<'a>,
) -> Option<Operations<'a>> {
    let expression = expression.get(frames).ok()?;
    let mut rest = expression.operations(ENCODING);
    let mut operations = Vec::new();
    while let Some(operation) = rest.next().ok()? {
        if operations.len() == LONGEST {
            return None;
        }
        operations.push(operation);
    }
    Some(operations)
}

/// Returns the way to the CFA that an expression describes.
fn cfa_of(operations: &Operations<'_>) -> Option<Cfa> {
    match operations.as_slice() {
        [base, Operation::Deref { size: 8, .. }] => at(base, 0),
        [
            base,
            Operation::Deref { size: 8, .. },
            Operation::PlusConstant { value },
        ] => at(base, i16::try_from(*value).ok()?),
        // Linkers describe all entries of a procedure linkage table at once.
        [
            sp,
            ip,
            Operation::UnsignedConstant { value: 15 },
            Operation::And,
            Operation::UnsignedConstant { value: pushed },
            Operation::Ge,
            Operation::UnsignedConstant { value: 3 },
            Operation::Shl,
            Operation::Plus,
        ] if distance(sp, STACK_POINTER) == Some(8)
            && distance(ip, INSTRUCTION_POINTER) == Some(0) =>
        {
            Some(Cfa::Plt(u8::try_from(*pushed).ok()?))
        }
        _ => None,
    }
}

fn at(base: &Operation<EndianSlice<'_, LittleEndian>>, further: i16) -> Option<Cfa> {
    let of = |register| distance(base, register);
    let by_fp = || Some(Cfa::AtFp(of(FRAME_POINTER)?, further));
    of(STACK_POINTER).map_or_else(by_fp, |distance| Some(Cfa::AtSp(distance, further)))
}

/// Returns the number that an operation adds to a register, if it is that.
fn distance(operation: &Operation<EndianSlice<'_, LittleEndian>>, wanted: Register) -> Option<i16> {
    match operation {
        Operation::RegisterOffset {
            register, offset, ..
        } if *register == wanted => i16::try_from(*offset).ok(),
        _ => None,
    }
}

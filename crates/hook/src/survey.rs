//! A function's instructions, and the unknowns of its control flow.

use crate::arch::{self, Displaced, Instruction};
use crate::plan::Function;

/// The findings of one linear pass over a function.
#[derive(Debug)]
pub(crate) struct Survey {
    /// From the start on, without a gap.
    pub instructions: Vec<Instruction>,
    /// The address behind the last of them.
    pub end: u64,
    /// The first byte that does not decode, where code may follow it.
    pub hidden: Option<u64>,
    /// The first jump with unknown targets.
    pub indirect_jump: Option<u64>,
    /// The first conditional branch that leaves the function.
    pub leaves: Option<u64>,
}

impl Survey {
    pub fn of(function: &Function) -> Self {
        let mut survey = Self {
            instructions: Vec::with_capacity(function.code.len() / 4),
            end: function.start,
            hidden: None,
            indirect_jump: None,
            leaves: None,
        };
        let limit = function.start.saturating_add(function.code.len() as u64);
        let mut furthest = function.start;
        let mut ended = false;
        for instruction in arch::decode(function.code, function.start) {
            let Some(instruction) = instruction else {
                // Behind the last return there may be tables; anywhere else the decoder has lost
                // its way.
                if !ended || furthest >= survey.end || survey.indirect_jump.is_some() {
                    survey.hidden = Some(survey.end);
                }
                break;
            };
            if let Some(target) = instruction.branch_target()
                && (function.start..limit).contains(&target)
            {
                furthest = furthest.max(target);
            }
            if !arch::returns_by_jump(survey.instructions.last(), &instruction) {
                survey.note(&instruction, function.start..limit);
            }
            ended = instruction.ends_flow();
            survey.end = instruction.end();
            survey.instructions.push(instruction);
        }
        survey
    }

    /// Notes the unknowns of an instruction.
    fn note(&mut self, instruction: &Instruction, function: std::ops::Range<u64>) {
        let leaves = |target: u64| !function.contains(&target);
        if instruction.jumps_anywhere() {
            self.indirect_jump.get_or_insert(instruction.address());
        } else if instruction.conditional_target().is_some_and(leaves) {
            self.leaves.get_or_insert(instruction.address());
        }
    }

    /// Returns the index of the instruction that starts at `address`.
    pub fn index_of(&self, address: u64) -> Option<usize> {
        self.instructions
            .binary_search_by_key(&address, Instruction::address)
            .ok()
    }

    /// True if an instruction branches to `address`. Calls do not count: they come with a fresh
    /// stack frame.
    pub fn refers_to(&self, address: u64) -> bool {
        let mut branches = self.instructions.iter().map(Instruction::branch_target);
        branches.any(|target| target == Some(address))
    }

    /// Returns the instruction of that index with its bytes; `None` behind the last.
    pub fn displaced(&self, index: usize, function: &Function) -> Option<Displaced> {
        let address = self.instructions.get(index)?.address();
        let offset = usize::try_from(address.wrapping_sub(function.start)).ok()?;
        Displaced::first_of(function.code.get(offset..)?, address)
    }
}

/// True if the first of these instructions is a conditional branch: not a call, and not a jump.
pub fn branches_sometimes(code: &[u8]) -> bool {
    let first = arch::decode(code, 0).next().flatten();
    first.is_some_and(|first| first.branch_target().is_some() && first.goes_on())
}

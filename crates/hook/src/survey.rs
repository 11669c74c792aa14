//! A function's instructions, and what its control flow leaves open.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction};

use crate::plan::{Function, ends_flow};
use crate::relocate::{self, Displaced};

/// What one linear pass over a function finds.
#[derive(Debug)]
pub(crate) struct Survey {
    /// From the start on, without a gap.
    pub instructions: Vec<Instruction>,
    /// Address behind the last of them.
    pub end: u64,
    /// First byte that does not decode, where code may follow it.
    pub hidden: Option<u64>,
    /// The first jump whose targets are not known.
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
        let mut decoder = Decoder::with_ip(64, function.code, function.start, DecoderOptions::NONE);
        let mut furthest = function.start;
        let mut ended = false;
        while decoder.can_decode() {
            let instruction = decoder.decode();
            if instruction.is_invalid() {
                // Behind the last return there may be tables; anywhere else the decoder has lost its way.
                if !ended || furthest >= survey.end || survey.indirect_jump.is_some() {
                    survey.hidden = Some(survey.end);
                }
                break;
            }
            if relocate::is_direct_branch(&instruction) {
                let target = instruction.near_branch_target();
                if (function.start..limit).contains(&target) {
                    furthest = furthest.max(target);
                }
            }
            survey.note(&instruction, function.start..limit);
            ended = ends_flow(&instruction);
            survey.end = instruction.next_ip();
            survey.instructions.push(instruction);
        }
        survey
    }

    fn note(&mut self, instruction: &Instruction, function: std::ops::Range<u64>) {
        match instruction.flow_control() {
            // Through a fixed slot (a tail call to an imported function) there is but one target, elsewhere.
            FlowControl::IndirectBranch if !instruction.is_ip_rel_memory_operand() => {
                self.indirect_jump.get_or_insert(instruction.ip());
            }
            FlowControl::ConditionalBranch
                if !function.contains(&instruction.near_branch_target()) =>
            {
                self.leaves.get_or_insert(instruction.ip());
            }
            _ => {}
        }
    }

    /// The index of the instruction that starts at `address`.
    pub fn index_of(&self, address: u64) -> Option<usize> {
        self.instructions
            .binary_search_by_key(&address, |instruction| instruction.ip())
            .ok()
    }

    /// Does an instruction branch to `address`? Calls do not count: they come with a fresh stack frame.
    pub fn refers_to(&self, address: u64) -> bool {
        self.instructions.iter().any(|instruction| {
            relocate::is_direct_branch(instruction) && instruction.near_branch_target() == address
        })
    }

    /// The instruction of that index with its bytes; `None` behind the last.
    pub fn displaced(&self, index: usize, function: &Function) -> Option<Displaced> {
        let instruction = *self.instructions.get(index)?;
        let offset = usize::try_from(instruction.ip().wrapping_sub(function.start)).ok()?;
        let rest = function.code.get(offset..)?;
        let bytes = rest.get(..instruction.len())?.into();
        let mut decoder = Decoder::with_ip(64, rest, instruction.ip(), DecoderOptions::NONE);
        let instruction = decoder.decode();
        let constants = decoder.get_constant_offsets(&instruction);
        let displacement = (constants.has_displacement() && constants.displacement_size() == 4)
            .then(|| constants.displacement_offset());
        Some(Displaced {
            instruction,
            bytes,
            displacement,
        })
    }
}

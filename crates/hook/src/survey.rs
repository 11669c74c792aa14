//! A function's instructions, and the unknowns of its control flow.

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register,
};

use crate::plan::{Function, ends_flow};
use crate::relocate::{self, Displaced};

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
        let mut decoder = Decoder::with_ip(64, function.code, function.start, DecoderOptions::NONE);
        let mut furthest = function.start;
        let mut ended = false;
        while decoder.can_decode() {
            let instruction = decoder.decode();
            if instruction.is_invalid() {
                // Behind the last return there may be tables; anywhere else the decoder has lost
                // its way.
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
            if !returns_by_jump(survey.instructions.last(), &instruction) {
                survey.note(&instruction, function.start..limit);
            }
            ended = ends_flow(&instruction);
            survey.end = instruction.next_ip();
            survey.instructions.push(instruction);
        }
        survey
    }

    /// Notes the unknowns of an instruction.
    fn note(&mut self, instruction: &Instruction, function: std::ops::Range<u64>) {
        match instruction.flow_control() {
            // A jump through a fixed slot (a tail call to an imported function) has only one
            // target, elsewhere.
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

    /// Returns the index of the instruction that starts at `address`.
    pub fn index_of(&self, address: u64) -> Option<usize> {
        self.instructions
            .binary_search_by_key(&address, |instruction| instruction.ip())
            .ok()
    }

    /// True if an instruction branches to `address`. Calls do not count: they come with a fresh
    /// stack frame.
    pub fn refers_to(&self, address: u64) -> bool {
        self.instructions.iter().any(|instruction| {
            relocate::is_direct_branch(instruction) && instruction.near_branch_target() == address
        })
    }

    /// Returns the instruction of that index with its bytes; `None` behind the last.
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

/// True if it is a jump to an address that the instruction before has taken from the stack.
/// Unwinders go on in this way where an exception is caught.
fn returns_by_jump(before: Option<&Instruction>, jump: &Instruction) -> bool {
    before.is_some_and(|pop| {
        pop.code() == Code::Pop_r64
            && jump.code() == Code::Jmp_rm64
            && jump.op0_kind() == OpKind::Register
            && jump.op0_register() == pop.op0_register()
    })
}

/// Returns where an unwinder's function leaves the stack that it has unwound, with all registers
/// but the stack pointer set; and how.
pub fn unwinder_exits(function: &Function) -> Vec<(u64, UnwinderExit)> {
    let instructions = Survey::of(function).instructions;
    let exit = |at: usize| {
        let (this, next) = (instructions.get(at)?, instructions.get(at + 1)?);
        let is_of_sp = this.op_count() == 2 && this.op0_register() == Register::RSP;
        match this.mnemonic() {
            Mnemonic::Mov if is_of_sp && this.op1_register() == Register::RCX => {
                let jumps = returns_by_jump(Some(next), instructions.get(at + 2)?);
                (jumps || is_return(next)).then_some(UnwinderExit::Lands)
            }
            Mnemonic::Add if is_of_sp => {
                let mut rest = instructions[at + 1..].iter();
                let last =
                    rest.find(|one| !matches!(one.mnemonic(), Mnemonic::Pop | Mnemonic::Mov))?;
                is_return(last).then_some(UnwinderExit::Returns)
            }
            _ => None,
        }
    };
    (0..instructions.len())
        .filter_map(|at| Some((instructions[at].ip(), exit(at)?)))
        .collect()
}

fn is_return(instruction: &Instruction) -> bool {
    instruction.flow_control() == FlowControl::Return
}

/// See [`unwinder_exits`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnwinderExit {
    /// To where the exception is caught, or something is cleaned up: rcx has the address on the
    /// stack of that place's address.
    Lands,
    /// To its caller.
    Returns,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Kind, plan};

    #[test]
    fn an_unwinder_is_left_where_it_lands_and_where_it_returns() {
        let code = [
            0x48, 0x81, 0xc4, 0x78, 0x02, 0, 0, // add rsp, 0x278
            0x5b, 0x5d, 0xc3, // pop rbx; pop rbp; ret
            0x48, 0x83, 0xc4, 0x08, // add rsp, 8
            0xff, 0xd0, // call rax
            0x48, 0x89, 0xcc, // mov rsp, rcx
            0x59, 0xff, 0xe1, // pop rcx; jmp rcx
        ];
        let start = 0x1000;
        let function = Function { start, code: &code };
        assert_eq!(
            unwinder_exits(&function),
            [
                (start, UnwinderExit::Returns),
                (start + 16, UnwinderExit::Lands)
            ]
        );
        assert_eq!(plan(start + 16, &function).unwrap().kind, Kind::Jump);
    }
}

//! Keeps short loops within one line of 64 bytes.
//!
//! The processor takes decoded instructions from one such line in a cycle. A loop of some
//! instructions takes half as long again, or twice as long, if it lies in two. Code begins at a
//! line in pools; there, no-ops before a loop move it into one line.

use std::collections::HashMap;

use iced_x86::code_asm::CodeAssembler;
use iced_x86::{BlockEncoder, BlockEncoderOptions, IcedError, Instruction, InstructionBlock};

const LINE: u32 = 64;
const OPTIONS: u32 = BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS;

/// Machine code.
pub(crate) struct Assembled {
    pub(crate) bytes: Vec<u8>,
    /// The offsets by the number of the instruction.
    offsets: Vec<u32>,
}

/// No-ops: the instruction that they precede, and their bytes.
type Padding = (usize, u32);

impl Assembled {
    pub(crate) fn of(mut asm: CodeAssembler) -> Result<Self, IcedError> {
        let assembled = asm.assemble_options(0, OPTIONS)?.inner;
        let bytes = assembled.code_buffer;
        let offsets = assembled.new_instruction_offsets;
        let plain = Self { bytes, offsets };
        let insns = asm.take_instructions();
        match plain.paddings(&insns) {
            paddings if paddings.is_empty() => Ok(plain),
            paddings => Self::padded(&insns, &paddings),
        }
    }

    /// Returns the start of an instruction's code.
    pub(crate) fn offset(&self, insn: usize) -> Option<u32> {
        self.offsets.get(insn).copied()
    }

    fn padded(insns: &[Instruction], paddings: &[Padding]) -> Result<Self, IcedError> {
        let mut padded = Vec::with_capacity(insns.len() + paddings.len());
        let mut places = Vec::with_capacity(insns.len());
        let mut paddings = paddings.iter().peekable();
        for (number, insn) in insns.iter().enumerate() {
            if let Some(&(_, bytes)) = paddings.next_if(|(before, _)| *before == number) {
                let mut no_ops = CodeAssembler::new(64)?;
                no_ops.nops_with_size(bytes as usize)?;
                padded.extend(no_ops.take_instructions());
            }
            places.push(padded.len());
            padded.push(*insn);
        }
        let block = InstructionBlock::new(&padded, 0);
        let encoded = BlockEncoder::encode(64, block, OPTIONS)?;
        let offset = |place: usize| encoded.new_instruction_offsets.get(place).copied();
        Ok(Self {
            offsets: places.into_iter().filter_map(offset).collect(),
            bytes: encoded.code_buffer,
        })
    }

    /// Returns the no-ops that move each loop into one line, if a line has room for it. It takes
    /// the outermost such loop of a nest.
    fn paddings(&self, insns: &[Instruction]) -> Vec<Padding> {
        let mut loops: Vec<(u32, u32, usize)> = self.loops(insns);
        loops.sort_unstable_by_key(|&(start, end, _)| (start, std::cmp::Reverse(end)));
        let mut paddings = Vec::new();
        let (mut added, mut done) = (0, 0);
        for (start, end, first) in loops {
            if start < done {
                continue;
            }
            done = end;
            let within = (start + added) % LINE;
            if within + (end - start) > LINE {
                paddings.push((first, LINE - within));
                added += LINE - within;
            }
        }
        paddings
    }

    /// Returns loops of up to a line: start, end, and first instruction.
    fn loops(&self, insns: &[Instruction]) -> Vec<(u32, u32, usize)> {
        let mut loops = Vec::new();
        // The instructions so far, by their labels.
        let mut labelled: HashMap<u64, usize> = HashMap::new();
        for (number, insn) in insns.iter().enumerate() {
            if insn.ip() != 0 {
                labelled.entry(insn.ip()).or_insert(number);
            }
            if !insn.is_jcc_short_or_near() && !insn.is_jmp_short_or_near() {
                continue;
            }
            let Some(&first) = labelled.get(&insn.near_branch_target()) else {
                continue;
            };
            let end = self.offset(number + 1).unwrap_or(self.bytes.len() as u32);
            if let Some(start) = self.offset(first)
                && let Some(bytes) = end.checked_sub(start)
                && bytes <= LINE
            {
                loops.push((start, end, first));
            }
        }
        loops
    }
}

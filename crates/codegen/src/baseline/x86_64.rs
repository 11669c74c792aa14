//! Code for x86-64.

mod align;
mod arithmetic;
mod array_values;
mod copying;
mod division;
mod emit;
mod frame;
mod fuse;
mod helper_calls;
mod inline;
mod macro_assembler;
mod memory;
mod peephole;
mod postpone;
mod registers;
mod table;

use beeline_verifier::Flow;
use iced_x86::IcedError;
use iced_x86::code_asm::CodeAssembler;

use super::outline::{Labels, Outline};
use super::walk::walk;
use crate::code::{Code, Error, InsnAt};
use crate::engine::Bytecode;
use align::Assembled;
use emit::Emitter;
use frame::Frame;
use helper_calls::CALLBACK_BYTES;
use macro_assembler::MacroAssembler;
use registers::CALLER_SAVED;

impl From<IcedError> for Error {
    fn from(error: IcedError) -> Self {
        Self::Assembler(error.to_string())
    }
}

pub(super) fn compile(program: &Bytecode<'_>) -> Result<Code, Error> {
    let flow = Flow::of(program.insns)?;
    let outline = Outline::of(program, &flow);
    let mut asm = CodeAssembler::new(64)?;
    let labels = Labels::of(&outline, || asm.create_label());
    let frames: Vec<Frame> = (0..)
        .zip(outline.needs())
        .map(|(number, needs)| Frame::of(&needs, outline.uses_run && number == 0))
        .collect();
    let frame_bytes = |number| frames.get(number).map_or(0, Frame::bytes_with_call);
    let stack_bytes = outline.stack_bytes(&labels, frame_bytes, CALLBACK_BYTES)?;
    let mut emitter = Emitter::new(asm, &outline, &labels);
    let starts = walk(&mut emitter, &outline, &labels, &frames)?;
    let MacroAssembler { asm, clobbers } = emitter.finish()?;
    let assembled = Assembled::of(asm)?;
    let place = |&(before, insn): &(usize, usize)| {
        let at = assembled.offset(before)?;
        let insn = insn as u32; // a program has a million at the most
        Some(InsnAt { at, insn })
    };
    Ok(Code {
        insns: starts.iter().filter_map(place).collect(),
        bytes: assembled.bytes,
        clobbers: clobbers.intersection(CALLER_SAVED),
        uses_run: outline.uses_run,
        stack_bytes,
    })
}

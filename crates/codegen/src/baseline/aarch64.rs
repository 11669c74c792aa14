//! Code for aarch64, of the first version of the architecture: no extension is needed.

mod arithmetic;
mod array_values;
mod assembler;
mod emit;
mod frame;
mod helper_calls;
mod immediate;
mod inline;
mod macro_assembler;
mod memory;
mod registers;

use beeline_verifier::Flow;

use super::outline::{Labels, Outline};
use super::walk::walk;
use crate::code::{Code, Error, InsnAt};
use crate::engine::Bytecode;
use assembler::{Assembler, TooFar};
use emit::Emitter;
use frame::Frame;
use helper_calls::CALLBACK_BYTES;
use macro_assembler::MacroAssembler;
use registers::CALLER_SAVED;

pub(super) fn compile(program: &Bytecode<'_>) -> Result<Code, Error> {
    let flow = Flow::of(program.insns)?;
    let outline = Outline::of(program, &flow);
    // Conditional branches reach 1 MiB, which is enough for nearly all programs; jumps reach 128
    // MiB.
    let code = match compile_with(&outline, Assembler::new(false))? {
        Err(TooFar) => compile_with(&outline, Assembler::new(true))?,
        near => near,
    };
    code.map_err(|TooFar| Error::Assembler("a jump beyond 128 MiB".to_owned()))
}

fn compile_with(outline: &Outline<'_>, mut asm: Assembler) -> Result<Result<Code, TooFar>, Error> {
    let labels = Labels::of(outline, || asm.label());
    let frames: Vec<Frame> = (0..)
        .zip(outline.needs())
        .map(|(number, needs)| Frame::of(&needs, outline.uses_run && number == 0))
        .collect();
    let frame_bytes = |number| frames.get(number).map_or(0, Frame::bytes_with_call);
    let stack_bytes = outline.stack_bytes(&labels, frame_bytes, CALLBACK_BYTES)?;
    let mut emitter = Emitter {
        masm: MacroAssembler::new(asm),
        outline,
        labels: &labels,
    };
    let starts = walk(&mut emitter, outline, &labels, &frames)?;
    // Code is less than 4 GiB long, and a program has a million instructions at the most.
    let place = |(at, insn)| InsnAt {
        at: at as u32,
        insn: insn as u32,
    };
    let clobbers = emitter.masm.clobbers.intersection(CALLER_SAVED);
    Ok(emitter.masm.asm.finish().map(|bytes| Code {
        bytes,
        clobbers,
        uses_run: outline.uses_run,
        stack_bytes,
        insns: starts.into_iter().map(place).collect(),
    }))
}

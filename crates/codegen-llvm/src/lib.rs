//! The optimizing engine: eBPF through LLVM 19.
//!
//! [`Llvm`] makes code of the same form as the baseline compiler's ([`beeline_isa::abi`]), only
//! faster: registers become values of LLVM's IR (`translate`), its pipeline works on them
//! (`machine`), and the object file that it writes is flattened to one piece of
//! position-independent code (`flatten`). The code is inspected before it is returned: for the
//! registers it uses (`registers`), and the stack (`frames`).
//!
//! LLVM is told nothing that bytecode does not promise. Numbers wrap, addresses may be unaligned
//! and may alias anything, and null is an address. Others may use memory that is neither stack nor
//! context at the same time, so each access to it is done as it stands. A load through a pointer of
//! unknown origin may fault, and then returns 0 (`origin`).
//!
//! LLVM is large and can crash. Only `beeline-llvm`, the worker that `beeline_codegen::Worker`
//! talks to, links this crate, so a crash takes no other process down.
//!
//! Its terms are in docs/glossary.md.

mod flatten;
mod frames;
mod machine;
mod origin;
mod registers;
mod translate;
mod trouble;

use beeline_codegen::{Bytecode, Code, Compiler, Error, Machine};
use beeline_isa::{Imm64, Op};
use beeline_verifier::Flow;
use inkwell::context::Context;

use trouble::Trouble;

/// The compiler on LLVM.
#[derive(Debug, Clone, Copy, Default)]
pub struct Llvm;

impl Compiler for Llvm {
    fn name(&self) -> &'static str {
        "llvm"
    }

    fn compile(&self, program: &Bytecode<'_>, machine: Machine) -> Result<Code, Error> {
        let flow = Flow::of(program.insns)?;
        // Refuses recursion before LLVM sees it.
        flow.frame_depth()?;
        Ok(compile(program, &flow, machine)?)
    }
}

fn compile(program: &Bytecode<'_>, flow: &Flow, machine: Machine) -> Result<Code, Trouble> {
    let context = Context::create();
    let target = machine::Target::new(machine)?;
    let module = context.create_module("program");
    target.prepare(&module);
    translate::program(&module, program, flow, machine)?;
    let object = target.object(&module)?;
    let flat = flatten::flatten(object.as_slice())?;
    let clobbers = registers::clobbered(machine, flat.text(), calls_helpers(flow))?;
    let frames = frames::Frames::of(machine, &flat)?;
    let stack = flow
        .deepest(|function| frames.bytes(flow, function))
        .map_err(Error::from)?;
    Ok(Code {
        bytes: flat.bytes,
        clobbers,
        uses_run: any(flow, needs_run),
        stack_bytes: u32::try_from(stack).unwrap_or(u32::MAX),
        // LLVM's code is not the work of one instruction after the other.
        insns: Vec::new(),
    })
}

fn any(flow: &Flow, is_one: impl Fn(&Op) -> bool) -> bool {
    (0..flow.len())
        .any(|index| flow.is_reachable(index) && flow.op(index).is_some_and(|op| is_one(&op)))
}

fn calls_helpers(flow: &Flow) -> bool {
    any(flow, |op| matches!(op, Op::CallHelper { .. }))
}

fn needs_run(op: &Op) -> bool {
    matches!(
        op,
        Op::CallHelper { .. }
            | Op::Imm64 {
                kind: Imm64::Map | Imm64::MapValue,
                ..
            }
    )
}

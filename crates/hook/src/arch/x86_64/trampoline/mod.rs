//! The heads of trampolines: the code that calls a hook.

use iced_x86::code_asm::{CodeAssembler, CodeAssemblerResult};
use iced_x86::{BlockEncoderOptions, IcedError};

use crate::plan::Plan;
use crate::trampoline::{EmitError, Head, TrampolineSpec};

mod call;
mod direct;
mod full;

/// Writes the head for a site, to be placed at `at`. The body follows it at once.
///
/// # Errors
///
/// As [`emit`](crate::emit), which also writes the body.
pub(crate) fn trampoline_head(
    plan: &Plan,
    at: u64,
    spec: &TrampolineSpec,
) -> Result<Head, EmitError> {
    match spec {
        TrampolineSpec::Full(full) => full::head(plan, at, None, full),
        TrampolineSpec::Filtered(filter, full) => full::head(plan, at, Some(filter), full),
        TrampolineSpec::Direct(direct) => direct::head(plan, at, direct),
        TrampolineSpec::SystemCall(call) => call::head(plan, at, call),
    }
}

/// Assembles a head, with the errors of this crate.
pub(super) fn assemble<T>(
    at: u64,
    write: impl FnOnce(&mut CodeAssembler) -> Result<T, IcedError>,
) -> Result<(CodeAssemblerResult, T), EmitError> {
    let build = || {
        let mut assembler = CodeAssembler::new(64)?;
        let extra = write(&mut assembler)?;
        let options = BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS;
        Ok((assembler.assemble_options(at, options)?, extra))
    };
    build().map_err(|source| EmitError::Assemble { at, source })
}

/// Bytes below the stack pointer that a function may use without moving it (System V ABI, 3.2.2).
pub(super) const RED_ZONE: i32 = 128;

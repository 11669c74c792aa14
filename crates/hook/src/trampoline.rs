//! Trampolines: the code between a site and its hook.
//!
//! A trampoline is two pieces: the *head* calls the hook and puts the registers back as they were;
//! the *body* is the displaced instructions, and the jump back.

use iced_x86::IcedError;
use iced_x86::code_asm::CodeAssembler;
use thiserror::Error;

use crate::patch::{JUMP_LEN, displacement, far_jump};
use crate::plan::Plan;
use crate::relocate::{self, RelocateError};

mod call;
mod direct;
pub(crate) mod full;
mod registers;

pub use call::SystemCall;
pub use direct::Direct;
pub use full::{Full, PT_REGS_LEN};
pub use registers::Registers;

/// The action of the trampoline before the displaced instructions run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrampolineSpec {
    /// Calls a function with all registers.
    Full(Full),
    /// Calls a function that needs nothing.
    Direct(Direct),
    /// Asks a function before a system call is made, at the instruction that makes it.
    SystemCall(SystemCall),
}

/// Code for one address. Only its bytes have to be mapped, readable and executable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trampoline {
    /// To be placed at the address it was made for; entered at its first byte.
    pub bytes: Vec<u8>,
    /// Address of the body: enter here to go on at the site as if it were not hooked.
    pub body: u64,
    /// Each displaced instruction's original address and its address in the body, ascending; then,
    /// unless the last one never goes on, the address behind the window and that of the jump back.
    ///
    /// They serve to set threads that are stopped at one to the other. Addresses within the body
    /// that are not listed are halfway through a moved instruction: step such a thread until it has
    /// left.
    pub resume_map: Vec<(u64, u64)>,
    /// The address that a watched call returns to. It is in return addresses on the stack while the
    /// call runs.
    pub return_entry: Option<u64>,
}

/// The reason why no trampoline was written.
#[derive(Debug, Error)]
pub enum EmitError {
    /// A displaced instruction cannot run there.
    #[error(transparent)]
    Relocate(#[from] RelocateError),
    /// The jump back does not reach.
    #[error("the moved instructions at {at:#x} cannot jump back: {source}")]
    JumpBack {
        /// The body's address.
        at: u64,
        /// The origin and the target.
        source: crate::ReachError,
    },
    /// A return probe elsewhere than at a function's start.
    #[error(
        "{site:#x} is not its function's first instruction, so the return address is not known there: \
         put the return probe at the function's start"
    )]
    ReturnInside {
        /// The site.
        site: u64,
    },
    /// A hook in place of a system call, where there is none.
    #[error("there is no syscall instruction at {site:#x}")]
    NoSystemCall {
        /// The site.
        site: u64,
    },
    /// The hook changes the stack pointer.
    #[error("a hook that changes the stack pointer cannot be called: remove rsp from its clobbers")]
    ClobbersStackPointer,
    /// The assembler refused: a defect of this crate.
    #[error("assembling the trampoline at {at:#x}: {source}")]
    Assemble {
        /// The trampoline's address.
        at: u64,
        /// From the assembler.
        source: IcedError,
    },
}

/// Writes the trampoline of a site, to be placed at `at`. Choose `at` by [`Plan::reach`].
///
/// For a breakpoint plan too: a signal handler may send the thread to the trampoline's first byte.
pub fn emit(plan: &Plan, at: u64, spec: &TrampolineSpec) -> Result<Trampoline, EmitError> {
    let head = match spec {
        TrampolineSpec::Full(full) => full::head(plan, at, full)?,
        TrampolineSpec::Direct(direct) => direct::head(plan, at, direct)?,
        TrampolineSpec::SystemCall(call) => call::head(plan, at, call)?,
    };
    let body = displaced(plan, at.wrapping_add(head.bytes.len() as u64))?;
    let mut bytes = head.bytes;
    bytes.extend(body.bytes);
    Ok(Trampoline {
        bytes,
        return_entry: head.return_entry,
        ..body
    })
}

/// Writes only the body, to be placed at `at`, for a signal handler that has run the hook itself
/// and goes on there.
pub fn displaced(plan: &Plan, at: u64) -> Result<Trampoline, EmitError> {
    const JMP_REL32: u8 = 0xe9;
    let mut bytes: Vec<u8> = Vec::new();
    let mut resume_map = Vec::new();
    let mut goes_on = true;
    for displaced in &plan.window {
        let address = at.wrapping_add(bytes.len() as u64);
        resume_map.push((displaced.instruction.ip(), address));
        bytes.extend_from_slice(&relocate::relocate(displaced, address)?);
        goes_on = relocate::goes_on(&displaced.instruction);
    }
    if goes_on {
        let back = plan.site.wrapping_add(plan.window_len as u64);
        let jump = at.wrapping_add(bytes.len() as u64);
        let end = jump.wrapping_add(JUMP_LEN as u64);
        resume_map.push((back, jump));
        match displacement(end, back) {
            Ok(displacement) => {
                bytes.push(JMP_REL32);
                bytes.extend(displacement.to_le_bytes());
            }
            Err(_) => bytes.extend(far_jump(back)),
        }
    }
    Ok(Trampoline {
        bytes,
        body: at,
        resume_map,
        return_entry: None,
    })
}

/// The code before the body.
struct Head {
    bytes: Vec<u8>,
    return_entry: Option<u64>,
}

/// Assembles a head, with the errors of this crate.
pub(crate) fn assemble<T>(
    at: u64,
    write: impl FnOnce(&mut CodeAssembler) -> Result<T, IcedError>,
) -> Result<(iced_x86::code_asm::CodeAssemblerResult, T), EmitError> {
    let build = || {
        let mut assembler = CodeAssembler::new(64)?;
        let extra = write(&mut assembler)?;
        let options = iced_x86::BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS;
        Ok((assembler.assemble_options(at, options)?, extra))
    };
    build().map_err(|source| EmitError::Assemble { at, source })
}

/// Bytes below the stack pointer that a function may use without moving it (System V ABI, 3.2.2).
pub(crate) const RED_ZONE: i32 = 128;

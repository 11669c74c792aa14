//! Trampolines: the code between a site and its hook.
//!
//! A trampoline is two pieces: the *head* calls the hook and puts the registers back as they were;
//! the *body* is the displaced instructions, and the jump back.

mod error;
mod spec;

use crate::arch;
use crate::plan::Plan;

pub use error::{EmitError, RelocateError};
pub use spec::{Direct, Filter, Full, SystemCall, TrampolineSpec};

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

/// Writes the trampoline of a site, to be placed at `at`. Choose `at` by [`Plan::reach`].
///
/// For a breakpoint plan too: a signal handler may send the thread to the trampoline's first byte.
///
/// # Errors
///
/// - [`EmitError::Relocate`]: a displaced instruction cannot run there.
/// - [`EmitError::ReturnInside`]: [`Full::leave`] is given, and the site is not its function's
///   start.
/// - [`EmitError::NoSystemCall`]: a [`SystemCall`] is given, and the site is none.
/// - [`EmitError::ClobbersStackPointer`]: a [`Direct`] or a [`Filter`] changes the stack pointer.
/// - [`EmitError::Assemble`]: a defect of this crate.
pub fn emit(plan: &Plan, at: u64, spec: &TrampolineSpec) -> Result<Trampoline, EmitError> {
    let head = arch::trampoline_head(plan, at, spec)?;
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
///
/// # Errors
///
/// [`EmitError::Relocate`] if a displaced instruction cannot run there.
pub fn displaced(plan: &Plan, at: u64) -> Result<Trampoline, EmitError> {
    let mut bytes: Vec<u8> = Vec::new();
    let mut resume_map = Vec::new();
    let mut goes_on = true;
    for displaced in &plan.window {
        let address = at.wrapping_add(bytes.len() as u64);
        resume_map.push((displaced.instruction.address(), address));
        bytes.extend_from_slice(&arch::relocate(displaced, address)?);
        goes_on = displaced.instruction.goes_on();
    }
    if goes_on {
        let back = plan.site.wrapping_add(plan.window_len as u64);
        let jump = at.wrapping_add(bytes.len() as u64);
        resume_map.push((back, jump));
        bytes.extend(arch::jump_anywhere(jump, back));
    }
    Ok(Trampoline {
        bytes,
        body: at,
        resume_map,
        return_entry: None,
    })
}

/// The code before the body.
pub(crate) struct Head {
    /// To be placed right before it.
    pub bytes: Vec<u8>,
    /// See [`Trampoline::return_entry`].
    pub return_entry: Option<u64>,
}

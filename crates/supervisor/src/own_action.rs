//! A tool's own action for SIGSYS, where the agent's handler of that signal forwards its calls.

use std::mem::offset_of;

use beeline_agent::abi::SignalAction;
use beeline_agent::trapped::OWN_AT;
use beeline_uapi::Errno;
use beeline_uapi::fields::u64_at;
use beeline_uapi::signal::{SIG_DFL, SIGSET_BYTES};
use zerocopy::IntoBytes;

use crate::call::{Answer, Call};
use crate::notify::Reply;

/// Answers `rt_sigaction(SIGSYS, new, old, bytes of a mask)` as the kernel would without the agent's
/// handler, which stays. The action is kept in the tool, for the handler to hand signals on to.
pub(crate) fn exchange(call: &Call<'_>) -> Answer {
    let [_, new, old, bytes, ..] = call.args;
    if bytes != SIGSET_BYTES as u64 {
        return Err(Errno::EINVAL);
    }
    let new = match new {
        0 => None,
        at => Some(call.memory.bytes(at, size_of::<SignalAction>())?),
    };
    let own = call.memory.bytes(OWN_AT, size_of::<SignalAction>());
    // A program that Beeline could not prepare has no such memory, and no handler to hand on.
    let own = own.unwrap_or_else(|_| SignalAction::default().as_bytes().to_vec());
    if old != 0 {
        call.memory.write(old, &own)?;
    }
    if let Some(new) = new {
        let is_kept = call.memory.write(OWN_AT, &new).is_ok();
        let handler = u64_at(&new, offset_of!(SignalAction, handler));
        if !is_kept && handler != SIG_DFL {
            return Ok(Reply::Continue);
        }
    }
    Ok(Reply::Value(0))
}

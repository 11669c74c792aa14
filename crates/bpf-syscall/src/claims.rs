//! Records the programs that are attached, for places that take a program once only.

use std::collections::HashMap;
use std::sync::Arc;

use beeline_runtime::backend::{AttachPoint, CallContext, Edge, Id};
use beeline_uapi::Errno;
use beeline_uapi::limits::BPF_TRACE_MAX_PROGS;
use parking_lot::Mutex;

/// A place that records its programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Spot {
    /// The tracepoint of a call, or of all calls. Every event of a tracepoint has the same
    /// programs.
    Tracepoint(Option<u32>, Edge),
    /// Programs on the entry or exit of a function. Each program names its function, so the program
    /// is the place.
    Trampoline(Id),
}

impl Spot {
    fn of(program: Id, point: &AttachPoint) -> Option<Self> {
        match *point {
            AttachPoint::SystemCall {
                number,
                edge,
                context: CallContext::Tracepoint,
                ..
            } => Some(Self::Tracepoint(number, edge)),
            AttachPoint::SystemCall {
                context: CallContext::Trampoline | CallContext::FunctionTrampoline(_),
                ..
            } => Some(Self::Trampoline(program)),
            _ => None,
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Claims(Mutex<HashMap<Spot, Vec<Id>>>);

/// A program's place. Dropping this gives it up.
pub(crate) struct Claim {
    claims: Arc<Claims>,
    spot: Spot,
    program: Id,
}

impl Claims {
    /// Claims the program's place at a point; returns `None` where any number of the same program
    /// may be attached.
    ///
    /// Fails with EEXIST if the program is on the tracepoint already, E2BIG if the tracepoint has
    /// too many, and EBUSY if the program is on its function already.
    pub(crate) fn claim(
        self: &Arc<Self>,
        program: Id,
        point: &AttachPoint,
    ) -> Result<Option<Claim>, Errno> {
        let Some(spot) = Spot::of(program, point) else {
            return Ok(None);
        };
        let mut claimed = self.0.lock();
        let programs = claimed.entry(spot).or_default();
        let refused = match spot {
            _ if programs.len() >= BPF_TRACE_MAX_PROGS => Some(Errno::E2BIG),
            _ if !programs.contains(&program) => None,
            Spot::Tracepoint(..) => Some(Errno::EEXIST),
            Spot::Trampoline(_) => Some(Errno::EBUSY),
        };
        if let Some(errno) = refused {
            return Err(errno);
        }
        programs.push(program);
        let claims = Arc::clone(self);
        Ok(Some(Claim {
            claims,
            spot,
            program,
        }))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let Some(programs) = self.claims.0.lock().get_mut(&self.spot) {
            programs.retain(|&program| program != self.program);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(context: CallContext) -> AttachPoint {
        AttachPoint::SystemCall {
            number: Some(1),
            edge: Edge::Enter,
            context,
            cookie: 0,
        }
    }

    #[test]
    fn a_tracepoint_takes_each_program_once_and_not_too_many() {
        let claims = Arc::new(Claims::default());
        let tracepoint = point(CallContext::Tracepoint);
        let claim = |id| claims.claim(Id(id), &tracepoint);
        let first = claim(1).unwrap();
        assert_eq!(claim(1).err(), Some(Errno::EEXIST));
        let more: Vec<_> = (2..=64).map(|id| claim(id).unwrap()).collect();
        assert_eq!(claim(65).err(), Some(Errno::E2BIG));
        drop(first);
        assert!(claim(65).is_ok());
        drop(more);
        assert!(claim(2).is_ok());
    }

    #[test]
    fn a_function_takes_each_program_once_and_raw_tracepoints_any_number() {
        let claims = Arc::new(Claims::default());
        let function = point(CallContext::Trampoline);
        let held = claims.claim(Id(1), &function).unwrap();
        assert!(held.is_some());
        assert_eq!(claims.claim(Id(1), &function).err(), Some(Errno::EBUSY));
        let raw = point(CallContext::RawTracepoint);
        assert!(matches!(claims.claim(Id(1), &raw), Ok(None)));
        assert!(matches!(claims.claim(Id(1), &raw), Ok(None)));
    }
}

//! A session's programs in the host's kernel, as they are loaded.

use std::collections::HashMap;
use std::sync::Arc;

use beeline_uapi::{Errno, ProgramType};
use beeline_verifier::program::Policy;

use super::Runtime;
use crate::backend::{Backend, Id, LoadError, ProgramSpec, VerifierLog};
use crate::map::MapObject;
use crate::objects::Object;
use crate::program::{self, Program};

/// A program that was loaded here, with its log.
type Outcome = Result<(Program, VerifierLog), LoadError>;

impl Runtime {
    /// Loads a program: with the kernel's verdict where it is refused here, and with the kernel's
    /// log where both accept it. Returns also whether only the kernel can run it.
    pub(super) fn judge_and_load(
        &self,
        id: Id,
        spec: &ProgramSpec,
        maps: &HashMap<i32, Arc<MapObject>>,
    ) -> (Outcome, bool) {
        let load = |spec: &ProgramSpec| {
            let types = self.shared.kernel_types();
            let rules = self.rules;
            Program::load(id, spec, maps, types, &self.engines, rules, &self.budget)
        };
        let verdict = || self.kernels_verdict(spec, maps);
        let loaded = match load(spec) {
            Err(refused) if !refused.reason.is_empty() => match verdict() {
                Some(Ok(_)) => {
                    // What it does is known to the kernel's verifier only.
                    let in_kernel = ProgramSpec {
                        in_kernel: true,
                        ..spec.clone()
                    };
                    return (load(&in_kernel), true);
                }
                Some(Err(kernels)) => Err(kernels),
                None => Err(refused),
            },
            // The program runs here, whatever another kernel says of it.
            Ok((program, log)) if spec.log_level != 0 => match verdict() {
                Some(Ok(kernels)) => Ok((program, kernels)),
                _ => Ok((program, log)),
            },
            loaded => loaded,
        };
        (loaded, spec.in_kernel)
    }

    /// Returns the kernel's verdict on a program that the tool may ask it about, and its log.
    /// `None` for a program that is judged by other rules here.
    fn kernels_verdict(
        &self,
        spec: &ProgramSpec,
        maps: &HashMap<i32, Arc<MapObject>>,
    ) -> Option<Result<VerifierLog, LoadError>> {
        let is_forbidden = self.rules.policy == Policy::ObserveOnly
            && program::forbidden(&spec.insns).next().is_some();
        // Of a uprobe's program, which has less here than in the kernel.
        let is_here = spec.prog_type == ProgramType::KPROBE;
        match spec.may_use_kernel && !spec.in_kernel && !is_forbidden && !is_here {
            true => self.kernel.verdict(spec, maps),
            false => None,
        }
    }

    /// Loads a program into the kernel, which gives the log. That may fail for a program that
    /// Beeline has accepted, unless it has to be in the kernel; but the elements of its maps must
    /// get there.
    pub(super) fn load_into_kernel(
        &self,
        program: &Program,
        (log_level, in_kernel): (u32, bool),
        log: &mut VerifierLog,
    ) -> Result<(), LoadError> {
        match self.kernel.load_alone(program, log_level) {
            Ok((_, kernels)) => *log = kernels,
            // Without a log it is no verdict on the program, which nobody may ever run.
            Err(error) if !in_kernel && error.log.text.is_empty() => return Ok(()),
            Err(error) => {
                if error.errno == Errno::EBUSY {
                    self.unsupported(&error.reason);
                }
                return Err(error);
            }
        }
        self.kernel.fill_maps_of(program).inspect_err(|error| {
            self.tell(error);
        })
    }

    /// Sets an element of a map's twin. The user is told if that fails.
    pub(super) fn put_in_kernel(
        &self,
        map: &Arc<MapObject>,
        key: &[u8],
        object: &Object,
        flags: u64,
    ) -> Result<(), Errno> {
        let put = self.kernel.put_object(map, key, object, flags);
        put.map_err(|error| self.tell(&error))
    }

    /// Sets an element of a map's twin to what it is here.
    pub(super) fn undo_in_kernel(&self, map: &Arc<MapObject>, key: &[u8]) {
        let elements = map.elements.stored();
        let element = elements.iter().find(|(other, _)| other == key);
        match element {
            // It was there before.
            Some((_, object)) => {
                let _ = self.put_in_kernel(map, key, object, 0);
            }
            None => {
                let _ = map.in_twin(|twin| twin.delete(key));
            }
        }
    }

    /// Tells the user why an object cannot be in the kernel; the tool gets the number only.
    pub(super) fn tell(&self, error: &LoadError) -> Errno {
        self.unsupported(&error.reason);
        error.errno
    }
}

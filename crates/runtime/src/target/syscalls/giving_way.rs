//! Other sessions that hook system calls of the same target: one of them gives way.

use beeline_inject::Region;

use super::Syscalls;
use crate::detach::{Presence, presences, presences_among};
use crate::error::Error;
use crate::liveness::SessionId;
use crate::target::Hold;
use crate::target::memory::TargetMemory;

impl Syscalls {
    /// True if another session has taken out what was hooked here for Beeline's own sake. It is
    /// reported once.
    pub fn has_given_way(&mut self, memory: &TargetMemory) -> bool {
        let Some(calls) = self.calls.as_mut().filter(|calls| calls.follows) else {
            return false;
        };
        let Some((site, stored)) = memory.syscall_patches.first_key_value() else {
            return false;
        };
        let mut now = vec![0; stored.bytes().len()];
        let is_read = memory.process.read_memory(*site, &mut now).is_ok();
        let is_there = now == stored.bytes() || now.first() == Some(&beeline_hook::INT3);
        let is_gone = is_read && !is_there && calls.links.is_empty();
        calls.follows &= !is_gone;
        is_gone
    }
}

/// The other sessions in a target.
pub(in crate::target) struct OtherSessions<'a>(pub &'a TargetMemory);

impl OtherSessions<'_> {
    /// True if another session has hooked calls here.
    fn is_hooked_by(&self, other: &Presence) -> bool {
        other.session != SessionId::own() && other.hooks_calls(&self.0.process)
    }

    /// Takes out calls that other sessions have hooked for their own sake only. Returns false if
    /// there are none.
    ///
    /// # Errors
    ///
    /// [`Error::Inject`] if the process cannot be stopped, or its code cannot be read or written.
    pub fn give_way(&self, regions: &[Region], hold: &mut Hold<'_>) -> Result<bool, Error> {
        let gives_way = |other: &&Presence| other.gives_way() && self.is_hooked_by(other);
        if !presences_among(&self.0.process, regions)?
            .iter()
            .any(|other| gives_way(&other))
        {
            return Ok(false);
        }
        hold.with(&self.0.process, |stopped| {
            let others = presences(stopped.process())?;
            for other in others.iter().filter(gives_way) {
                other.give_way(stopped)?;
            }
            Ok(true)
        })
    }

    /// Fails or makes others give way if another session has hooked calls.
    ///
    /// Two sessions at one `syscall` instruction would hide each other's calls. A session that has
    /// hooked them for its own sake only gives way to one that has programs there.
    ///
    /// # Errors
    ///
    /// [`Error::Target`] if another session stays, and those of [`Self::give_way`].
    pub fn make_alone(
        &self,
        regions: &[Region],
        has_programs: bool,
        hold: &mut Hold<'_>,
    ) -> Result<(), Error> {
        if has_programs {
            self.give_way(regions, hold)?;
        }
        let others = presences_among(&self.0.process, regions)?;
        let mut others = others.iter();
        let other = others.find(|other| self.is_hooked_by(other));
        other.map_or(Ok(()), |other| {
            Err(self.0.error(format!(
                "session {} of Beeline traces its system calls ({}): end that first",
                other.session, other.tool
            )))
        })
    }
}

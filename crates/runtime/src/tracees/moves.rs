//! Targets whose process has become another user's: they move to another security domain.
//!
//! A daemon that begins as root gives up its rights in the middle of its life, and is worth as much
//! to an attacker as any process of its new user. What it shares with the old domain is taken out of
//! it, and it becomes a target anew. That takes one stop, in which no hit is missed, if there is a
//! moment when no thread is in a program. Calls that are under way then have no return probe, and
//! what programs keep by thread stays in the old domain.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use beeline_inject::{Process, Stopped};

use super::Tracees;
use super::target_table::SharedTarget;
use crate::detach;
use crate::domain::DomainId;
use crate::error::Error;
use crate::liveness::SessionId;
use crate::rules::Isolation;

/// The turns of targets, and those that could not be moved.
#[derive(Default)]
pub(super) struct Moves {
    next: usize,
    /// Since when.
    failed: BTreeMap<i32, Instant>,
}

/// The time before the next attempt with a process that could not be moved, because somebody else
/// traces it for example.
const PAUSE: Duration = Duration::from_secs(5);
/// The most processes whose credentials are read in a round: that takes several system calls each.
const MOST: usize = 10;

impl Tracees {
    /// Moves the targets that have left their domains, among the next that have their turn.
    pub(super) fn move_targets(self: &Arc<Self>, moves: &mut Moves) {
        if self.shared.isolation == Isolation::None {
            return;
        }
        let all = self.targets.table.all();
        moves.failed.retain(|pid, _| self.targets.table.has(*pid));
        for at in 0..all.len().min(MOST) {
            let target = &all[(moves.next + at) % all.len()];
            let Some(known) = target.try_lock() else {
                continue;
            };
            let (process, domain) = (known.process().clone(), known.domain().clone());
            drop(known);
            let pid = process.pid();
            let failed = moves.failed.get(&pid);
            let rests = failed.is_some_and(|since| since.elapsed() < PAUSE);
            // A process that is about to run another program becomes a target anew by that.
            let is_bound = domain.id == DomainId::TOOL || rests || self.waits.has(pid);
            if is_bound || !domain.has_lost(pid) {
                continue;
            }
            tracing::info!(pid, domain = domain.id.0, "left its domain");
            let outcome = self.move_target(&process, target);
            let is_told = moves.failed.contains_key(&pid);
            if outcome.is_err() && process.is_alive() {
                moves.failed.insert(pid, Instant::now());
            }
            // A failure is told once, a gap each time.
            if process.is_alive() && (outcome.is_ok() || !is_told) {
                self.diagnostics.moved(pid, &outcome);
            }
        }
        moves.next = moves.next.wrapping_add(MOST);
    }

    /// Returns the time in which it was not traced.
    ///
    /// # Errors
    ///
    /// It could not be left. It is as before then, or nothing of this session is in it and it is no
    /// target any more.
    fn move_target(
        self: &Arc<Self>,
        process: &Process,
        target: &SharedTarget,
    ) -> Result<Duration, Error> {
        let own = SessionId::own();
        // The lock keeps others from attaching to it meanwhile.
        let old = target.lock();
        let owner = old.owner();
        let present = detach::presences(process)?;
        let Some(presence) = present.iter().find(|presence| presence.session == own) else {
            // Nothing has been mapped yet.
            self.targets.replace(process, owner)?;
            return Ok(Duration::ZERO);
        };
        let outcome =
            presence.remove_and(process, |stopped| self.begin_anew(process, owner, stopped));
        drop(old);
        let is_left = || {
            let present = detach::presences(process);
            present.is_ok_and(|present| present.iter().all(|one| one.session != own))
        };
        if outcome.is_err() && is_left() {
            self.targets.bury_one(process.pid(), target.clone());
        }
        outcome
    }

    /// Makes a process a target again that has just been left and stands still.
    fn begin_anew(
        self: &Arc<Self>,
        process: &Process,
        owner: u32,
        stopped: &mut Stopped,
    ) -> Result<(), Error> {
        self.targets.replace(process, owner)?;
        self.attach_to_held(process, stopped)
    }
}

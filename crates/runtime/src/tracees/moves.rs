//! Targets whose process has become another user's: they move to another security domain.
//!
//! A daemon that begins as root gives up its rights in the middle of its life, and is worth as much
//! to an attacker as any process of its new user. What it shares with the old domain is taken out of
//! it, and it becomes a target anew. That takes one stop, in which no hit is missed, if there is a
//! moment when no thread is in a program.

use std::sync::Arc;
use std::time::Duration;

use beeline_inject::{Process, Stopped};

use super::Tracees;
use super::target_table::SharedTarget;
use crate::detach;
use crate::domain::DomainId;
use crate::error::Error;
use crate::liveness::SessionId;
use crate::rules::Isolation;

/// The most processes whose credentials are read in a round: each takes some 30 us.
const MOST: usize = 10;

impl Tracees {
    /// Moves the targets that have left their domains, among those whose turn it is.
    pub(super) fn move_targets(self: &Arc<Self>, round: u32) {
        if self.shared.isolation == Isolation::None {
            return;
        }
        let all = self.targets.table.all();
        let turns = all.len().div_ceil(MOST).max(1) as u32;
        for target in all {
            let Some(known) = target.try_lock() else {
                continue;
            };
            let (process, domain) = (known.process().clone(), known.domain().clone());
            let is_its_turn = process.pid().unsigned_abs() % turns == round % turns;
            let is_bound = domain.id == DomainId::TOOL || known.waits_for_child();
            drop(known);
            if is_bound || !is_its_turn || !domain.has_lost(process.pid()) {
                continue;
            }
            tracing::info!(pid = process.pid(), domain = domain.id.0, "left its domain");
            let outcome = self.move_target(&process, &target);
            if outcome.is_err() {
                self.targets.bury_one(process.pid(), target);
            }
            if process.is_alive() {
                self.diagnostics.moved(process.pid(), &outcome);
            }
        }
    }

    /// Returns the time in which it was not traced.
    fn move_target(
        self: &Arc<Self>,
        process: &Process,
        target: &SharedTarget,
    ) -> Result<Duration, Error> {
        let own = SessionId::own();
        // The lock keeps others from attaching to it meanwhile.
        let old = target.lock();
        let present = detach::presences(process)?;
        let Some(presence) = present.iter().find(|presence| presence.session == own) else {
            return Ok(Duration::ZERO);
        };
        let owner = old.owner();
        presence.remove_and(process, |stopped| self.begin_anew(process, owner, stopped))
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

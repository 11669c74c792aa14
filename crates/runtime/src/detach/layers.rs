//! Several sessions at one place: the patch of each lies over that of the one before, and comes off
//! before it.

use std::collections::{BTreeMap, BTreeSet};

use beeline_agent::abi::{PASSES_ON, SiteTrap};
use beeline_inject::Process;

use super::{Presence, SiteFacts, presences};
use crate::error::Error;
use crate::kernel_uprobes::Stored;
use crate::liveness::SessionId;

/// The patch that a new one is to lie over.
#[derive(Debug, Clone)]
pub(crate) struct Beneath {
    /// The number of patches below the new one.
    pub layer: u32,
    /// True if it is a breakpoint.
    pub is_breakpoint: bool,
    /// The stored bytes.
    pub patch: Vec<u8>,
    /// The traps of that patch, for the session that lies over it.
    pub traps: [SiteTrap; beeline_agent::abi::SITE_TRAPS],
}

impl Beneath {
    /// Returns the uppermost patch of these sessions at an address, if there is one.
    pub fn at(others: &[Presence], address: u64) -> Option<Self> {
        let sites = others.iter().flat_map(|other| &other.sites);
        let there = sites.filter(|site| site.address == address);
        let site = there.max_by_key(|site| site.layer)?;
        let mut traps = site.traps;
        let known = traps.iter_mut().filter(|trap| trap.resume != 0);
        known.for_each(|trap| trap.resume = PASSES_ON);
        Some(Self {
            layer: site.layer + 1,
            is_breakpoint: site.is_breakpoint,
            patch: site.patch.clone(),
            traps,
        })
    }
}

impl Presence {
    /// Returns the layer of the patch at an address that is not taken back yet.
    fn layer_at(&self, address: u64) -> Option<u32> {
        let mut records = self.records.iter();
        let is_it = |site: &&SiteFacts| site.address == address && site.is_patched;
        records.find(is_it).map(|site| site.layer)
    }

    /// Returns the places where another session's patch lies over this one's.
    ///
    /// The code shows whether it does: a session that has left such a place, and cannot go yet, has
    /// not changed its records.
    pub(super) fn lies_under(&self, others: &[Presence]) -> BTreeSet<u64> {
        let above = others.iter().flat_map(|other| &other.sites);
        let is_under = |site: &&SiteFacts| {
            let own = self.layer_at(site.address);
            own.is_some_and(|own| site.layer > own)
        };
        above.filter(is_under).map(|site| site.address).collect()
    }
}

/// Other sessions' patches in a process.
#[derive(Debug, Default)]
pub(crate) struct Layers {
    /// The layer of the uppermost one at an address.
    uppermost: BTreeMap<u64, u32>,
    /// All patches that there ever were, of the sessions that are there.
    known: BTreeMap<u64, Vec<Vec<u8>>>,
}

impl Layers {
    /// Reads those in a process now.
    ///
    /// # Errors
    ///
    /// The process cannot be read.
    pub fn of(process: &Process) -> Result<Self, Error> {
        let own = SessionId::own();
        let mut others = presences(process)?;
        others.retain(|other| other.session != own);
        Ok(Self::among(&others))
    }

    /// Returns the patches of these sessions.
    pub fn among(others: &[Presence]) -> Self {
        let mut this = Self::default();
        for other in others {
            for site in &other.sites {
                let uppermost = this.uppermost.entry(site.address).or_insert(site.layer);
                *uppermost = site.layer.max(*uppermost);
            }
            for site in &other.records {
                let known = this.known.entry(site.address).or_default();
                known.push(site.patch.clone());
            }
        }
        this
    }

    /// True if another session's patch lies over one of this layer.
    pub fn is_under(&self, address: u64, layer: u32) -> bool {
        let uppermost = self.uppermost.get(&address);
        uppermost.is_some_and(|uppermost| *uppermost > layer)
    }

    /// Returns the bytes that replace a patch: what was there before, or the file's bytes if that
    /// leads to a session that has gone.
    pub fn underneath<'a>(&self, site: &'a SiteFacts) -> &'a [u8] {
        self.below(site.address, site.layer, site.stored())
    }

    /// The same for a site of this session.
    pub fn below<'a>(&self, address: u64, layer: u32, stored: Stored<'a>) -> &'a [u8] {
        let is_it = |patch: &Vec<u8>| patch.iter().zip(stored.original).all(|(a, b)| a == b);
        let is_there = || {
            let known = self.known.get(&address);
            known.is_some_and(|known| known.iter().any(is_it))
        };
        match layer == 0 || is_there() {
            true => stored.original,
            false => stored.file,
        }
    }
}

//! Several sessions at one place: the patch of each lies over that of the one before, and comes off before it.

use std::collections::{BTreeMap, BTreeSet};

use beeline_image::abi::{PASSES_ON, SiteTrap};
use beeline_inject::Process;

use super::{Presence, SiteFacts, presences};
use crate::error::Error;
use crate::life::SessionId;

/// The patch that a new one is to lie over.
#[derive(Debug, Clone)]
pub(crate) struct Beneath {
    /// The number of patches below the new one.
    pub layer: u32,
    /// It is a breakpoint.
    pub is_breakpoint: bool,
    /// The stored bytes.
    pub patch: Vec<u8>,
    /// The same traps, for the session that lies over it.
    pub traps: [SiteTrap; beeline_image::abi::SITE_TRAPS],
}

impl Beneath {
    /// The uppermost patch of these sessions at an address, if there is one.
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
    /// The layer of the patch at an address that is not taken back yet.
    fn layer_at(&self, address: u64) -> Option<u32> {
        let mut records = self.records.iter();
        let is_it = |site: &&SiteFacts| site.address == address && site.is_patched;
        records.find(is_it).map(|site| site.layer)
    }

    /// The places where another session's patch lies over ours. That it does is seen in the code: who has left it, and cannot go
    /// yet, has not changed its records.
    pub(super) fn lies_under(&self, others: &[Presence]) -> BTreeSet<u64> {
        let above = others.iter().flat_map(|other| &other.sites);
        let is_under = |site: &&SiteFacts| {
            let own = self.layer_at(site.address);
            own.is_some_and(|own| site.layer > own)
        };
        above.filter(is_under).map(|site| site.address).collect()
    }
}

/// The layers of other sessions' uppermost patches in a process, by their addresses.
///
/// Errors: the process cannot be read.
pub(crate) fn layers(process: &Process) -> Result<BTreeMap<u64, u32>, Error> {
    let mut layers = BTreeMap::new();
    let own = SessionId::own();
    let others = presences(process)?;
    for other in others.iter().filter(|other| other.session != own) {
        for site in &other.sites {
            let uppermost = layers.entry(site.address).or_insert(site.layer);
            *uppermost = site.layer.max(*uppermost);
        }
    }
    Ok(layers)
}

//! The pool by which a target is recognized in memory.

use beeline_agent::abi;
use beeline_inject::{Process, Region, Stopped};

use crate::environment::Environment;
use crate::liveness::SessionId;

/// The pool by which a process that makes an upcall shows that it is a target, or a child of one.
#[derive(Debug)]
pub struct Home {
    base: u64,
    inode: Option<u64>,
}

impl Home {
    pub(super) fn of(environment: &Environment) -> Self {
        Self {
            base: environment.home.base(),
            inode: environment.home.inode(),
        }
    }

    /// Returns what a process has mapped if it has this pool at its place: it is the target, a copy
    /// that `fork` made, or a child that shares its memory.
    pub fn regions_around(&self, pid: i32) -> Option<Vec<Region>> {
        let regions = beeline_inject::regions_of(pid).ok()?;
        let is_home =
            |region: &Region| region.contains(self.base) && self.inode == Some(region.inode);
        regions.iter().any(is_home).then_some(regions)
    }

    /// True if the target, the process with this tag, still has the pool. This check is cheaper
    /// than [`Self::regions_around`].
    pub fn is_of(&self, process: &Process, owner: u32) -> bool {
        let own = SessionId::own();
        let mut words = [0; MANIFEST_START];
        let is_read = process.read_memory(self.base, &mut words).is_ok();
        is_read && words == manifest_start(abi::MANIFEST_MAGIC, own.pid as u32, owner)
    }
}

impl Environment {
    /// True if a stopped process has this pool at its place.
    pub(super) fn is_in(&self, stopped: &Stopped) -> bool {
        let ours = self.manifest();
        let mut words = [0; MANIFEST_START];
        let is_read = stopped.read(self.home.base(), &mut words).is_ok();
        is_read && words == manifest_start(ours.magic, ours.session, ours.owner)
    }
}

/// Returns the bytes that a manifest of a session and an owner starts with.
pub(super) fn manifest_start(magic: u64, session: u32, owner: u32) -> [u8; MANIFEST_START] {
    let mut bytes = [0; MANIFEST_START];
    bytes[..8].copy_from_slice(&magic.to_ne_bytes());
    bytes[8..12].copy_from_slice(&session.to_ne_bytes());
    bytes[12..].copy_from_slice(&owner.to_ne_bytes());
    bytes
}
/// The number of those bytes.
pub(super) const MANIFEST_START: usize = 16;

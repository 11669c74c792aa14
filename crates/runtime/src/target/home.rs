//! What a target is known by in memory.

use beeline_agent::abi;
use beeline_inject::{Process, Region, Stopped};

use crate::environment::Environment;
use crate::liveness::SessionId;

/// The pool by which whoever asks for something shows that it is a target, or a child of one.
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

    /// Does a process have this pool at its place: is it the target, a copy that `fork` made, or a child that shares its
    /// memory?
    pub fn is_mapped_by(&self, pid: i32) -> bool {
        let Ok(regions) = beeline_inject::regions_of(pid) else {
            return false;
        };
        let is_home =
            |region: &Region| region.contains(self.base) && self.inode == Some(region.inode);
        regions.iter().any(is_home)
    }

    /// Has the target it still, which is the one with this tag? That costs less to find out.
    pub fn is_of(&self, process: &Process, owner: u32) -> bool {
        let own = SessionId::own();
        let mut words = [0; MANIFEST_START];
        let is_read = process.read_memory(self.base, &mut words).is_ok();
        is_read && words == manifest_start(abi::MANIFEST_MAGIC, own.pid as u32, owner)
    }
}

impl Environment {
    /// Is it this that a stopped process has at its place?
    pub(super) fn is_in(&self, stopped: &Stopped) -> bool {
        let ours = self.manifest();
        let mut words = [0; MANIFEST_START];
        let is_read = stopped.read(self.home.base(), &mut words).is_ok();
        is_read && words == manifest_start(ours.magic, ours.session, ours.owner)
    }
}

/// The bytes that a manifest starts with, of a session and an owner.
pub(super) fn manifest_start(magic: u64, session: u32, owner: u32) -> [u8; MANIFEST_START] {
    let mut bytes = [0; MANIFEST_START];
    bytes[..8].copy_from_slice(&magic.to_ne_bytes());
    bytes[8..12].copy_from_slice(&session.to_ne_bytes());
    bytes[12..].copy_from_slice(&owner.to_ne_bytes());
    bytes
}
/// How many.
pub(super) const MANIFEST_START: usize = 16;

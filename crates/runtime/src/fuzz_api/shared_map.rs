//! A map that processes of several security domains have, each in memory of its own.

use std::sync::Arc;

use beeline_maps::{Batch, Map};
use beeline_uapi::Errno;

use super::View;
use crate::backend::{Id, MapSpec};
use crate::budget::Budget;
use crate::domain::Domain;
use crate::map::MapObject;

/// Domains beside the tool's own.
const DOMAINS: u32 = 2;

/// See the module documentation. The operations are the tool's.
pub struct SharedMap {
    map: MapObject,
    domains: Vec<Arc<Domain>>,
    made: u32,
}

impl SharedMap {
    /// Shards of a map: its own memory, then those of the domains.
    pub const SHARDS: usize = 1 + DOMAINS as usize;

    /// Creates an empty map that the tool sees in a way.
    ///
    /// # Errors
    ///
    /// Those of `MapObject::new`, `MapObject::see_as` and `MapObject::shard_of`.
    pub fn new(spec: &MapSpec, view: &View, cpus: u32) -> Result<Self, Errno> {
        let map = MapObject::new(Id(1), spec, None, cpus, &Budget::default())?;
        map.see_as(view)?;
        let mut this = Self {
            map,
            domains: Vec::new(),
            made: 0,
        };
        for _ in 0..DOMAINS {
            let domain = this.new_domain()?;
            this.domains.push(domain);
        }
        Ok(this)
    }

    fn new_domain(&mut self) -> Result<Arc<Domain>, Errno> {
        self.made += 1;
        let domain = Domain::without_processes(self.made).map_err(|_| Errno::ENOMEM)?;
        self.map.shard_of(&domain)?;
        Ok(domain)
    }

    /// Returns the handle that programs of a shard's domain have. It is valid until the shard is
    /// [retired](Self::retire), and as long as this map.
    ///
    /// # Errors
    ///
    /// Those of `MapObject::shard_of`.
    pub fn shard(&self, number: usize) -> Result<Map, Errno> {
        match number.checked_sub(1).and_then(|at| self.domains.get(at)) {
            Some(domain) => Ok(*self.map.shard_of(domain)?.here()),
            None => Ok(*self.map.here()),
        }
    }

    /// Takes a further shard away, as its processes have ended. Others come, and make a new one.
    ///
    /// # Errors
    ///
    /// Those of `MapObject::retire` and `MapObject::shard_of`.
    pub fn retire(&mut self, number: usize) -> Result<(), Errno> {
        let Some(at) = number.checked_sub(1).filter(|at| *at < self.domains.len()) else {
            return Ok(());
        };
        let outcome = self.map.retire(self.domains[at].id);
        self.domains[at] = self.new_domain()?;
        outcome
    }

    /// Frees what a dead process of a shard's domain held.
    ///
    /// # Errors
    ///
    /// Those of `MapObject::release_owner`.
    pub fn release(&self, number: usize, owner: u32) -> Result<bool, Errno> {
        match number.checked_sub(1).and_then(|at| self.domains.get(at)) {
            Some(domain) => self.map.release_owner(owner, domain),
            None => self.map.here().release_owner(owner, &MapObject::caller()),
        }
    }

    /// Empties the elements of threads that have ended.
    pub fn forget_threads(&self, is_gone: &dyn Fn(u32) -> bool) {
        self.map.forget_threads(is_gone);
    }

    /// Copies an element's value out.
    ///
    /// # Errors
    ///
    /// Those of `MapObject::lookup`.
    pub fn lookup(&self, key: &[u8], value: &mut [u8]) -> Result<(), Errno> {
        self.map.lookup(key, value, 0)
    }

    /// Creates or replaces an element.
    ///
    /// # Errors
    ///
    /// Those of `MapObject::update`.
    pub fn update(&self, key: &[u8], value: &[u8], flags: u64) -> Result<(), Errno> {
        self.map.update(key, value, flags)
    }

    /// Deletes an element.
    ///
    /// # Errors
    ///
    /// Those of `MapObject::delete`.
    pub fn delete(&self, key: &[u8]) -> Result<(), Errno> {
        self.map.delete(key)
    }

    /// Copies an element's value out and deletes it.
    ///
    /// # Errors
    ///
    /// Those of `MapObject::lookup_and_delete`.
    pub fn lookup_and_delete(&self, key: &[u8], value: &mut [u8]) -> Result<(), Errno> {
        self.map.lookup_and_delete(key, value, 0)
    }

    /// Finds the key after another.
    ///
    /// # Errors
    ///
    /// Those of `MapObject::next_key`.
    pub fn next_key(&self, key: Option<&[u8]>, next: &mut [u8]) -> Result<(), Errno> {
        self.map.next_key(key, next)
    }

    /// Copies elements out, and deletes them if that is wanted.
    ///
    /// # Errors
    ///
    /// Those of `MapObject::read_batch`.
    pub fn read_batch(
        &self,
        cursor: u32,
        room: (&mut [u8], &mut [u8]),
        delete: bool,
    ) -> Result<Batch, Errno> {
        self.map.read_batch(cursor, room, delete)
    }
}

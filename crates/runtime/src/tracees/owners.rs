//! Owner tags: each process holds things in shared memory under a tag of its own, and they are
//! freed when it dies.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::time::Duration;

use beeline_agent::abi::MOVING_OWNER;
use beeline_inject::Process;
use parking_lot::Mutex;

use crate::deaths::Deaths;
use crate::domain::{Domain, DomainId};
use crate::map::{MapObject, RUNTIME_OWNER};
use crate::perf_ring::Ring;
use crate::shared::Shared;

/// The time without targets after which a domain is retired. A user who runs one short program after
/// the other keeps it.
const RETIRE_AFTER: Duration = Duration::from_secs(10);

/// See the module documentation.
pub(super) struct Owners {
    shared: Arc<Shared>,
    next: AtomicU32,
    /// The domains of all owners that have not been freed.
    living: Mutex<BTreeMap<u32, Arc<Domain>>>,
    /// Maps that have locks to free when a process dies.
    maps: Mutex<Vec<Weak<MapObject>>>,
    rings: Mutex<Vec<Weak<Ring>>>,
    /// Reports the death of a process that holds things in shared memory, by its tag.
    deaths: Mutex<Option<Deaths>>,
    /// Owners that have been reported dead since the last round.
    ended: Mutex<BTreeSet<u32>>,
    /// Dead owners that still hold things that could not be freed yet.
    dead: Mutex<Vec<u32>>,
    /// The last owners that were freed. A lock of theirs may show only when somebody waits for it.
    freed: Mutex<VecDeque<u32>>,
}

/// The most owners that are remembered when they have been freed.
const MOST_FREED: usize = 1024;

impl Owners {
    /// Starts to watch for deaths. Where that is not possible, rounds find them.
    pub fn start(shared: Arc<Shared>) -> Arc<Self> {
        Arc::new_cyclic(|owners: &Weak<Self>| {
            let owners = owners.clone();
            let died = move |owner| {
                if let Some(owners) = owners.upgrade() {
                    owners.ended.lock().insert(owner);
                    owners.died(owner);
                }
            };
            Self {
                shared,
                next: AtomicU32::new(RUNTIME_OWNER + 1),
                living: Mutex::default(),
                maps: Mutex::default(),
                rings: Mutex::default(),
                deaths: Mutex::new(Deaths::start(died).ok()),
                ended: Mutex::default(),
                dead: Mutex::default(),
                freed: Mutex::default(),
            }
        })
    }

    /// Stops watching for deaths.
    pub fn end(&self) {
        let deaths = self.deaths.lock().take();
        drop(deaths);
    }

    /// Returns the tag for what a process will hold in the memory of its domain.
    pub fn new_tag(&self) -> u32 {
        self.next.fetch_add(1, SeqCst)
    }

    /// Watches a process of the home domain, and returns its tag.
    pub fn of_home(&self, process: &Process) -> u32 {
        let (owner, home) = (self.new_tag(), self.shared.domains.home());
        let _is_never_retired = home.admit(owner);
        self.watch(process, owner, home.clone());
        owner
    }

    /// Watches a process that the domain has admitted under this tag.
    pub fn watch(&self, process: &Process, owner: u32, domain: Arc<Domain>) {
        self.living.lock().insert(owner, domain);
        if let Some(deaths) = &*self.deaths.lock() {
            deaths.watch(process, owner);
        }
    }

    /// Frees this map's locks when a process dies.
    pub fn watch_map(&self, map: &Arc<MapObject>) {
        let mut maps = self.maps.lock();
        maps.retain(|map| map.strong_count() > 0);
        maps.push(Arc::downgrade(map));
    }

    /// Frees this ring's lock when a process dies.
    pub fn watch_ring(&self, ring: &Arc<Ring>) {
        let mut rings = self.rings.lock();
        rings.retain(|ring| ring.strong_count() > 0);
        rings.push(Arc::downgrade(ring));
    }

    /// Takes the owners that have been reported dead since the last call.
    pub fn take_ended(&self) -> BTreeSet<u32> {
        std::mem::take(&mut *self.ended.lock())
    }

    /// Handles the death of a process: frees at once what others may be waiting for, and leaves the
    /// rest to the next round.
    pub fn died(&self, owner: u32) {
        if !self.free(owner) {
            self.dead.lock().push(owner);
        }
    }

    /// Frees what these owners held, and what was left of earlier ones.
    pub fn bury(&self, owners: impl Iterator<Item = u32>) {
        let mut dead = self.dead.lock();
        dead.extend(owners);
        dead.retain(|owner| !self.free(*owner));
    }

    /// Frees what somebody has waited for in vain since its owner was freed.
    pub fn free_left(&self) {
        let freed: BTreeSet<u32> = self.freed.lock().iter().copied().collect();
        if freed.is_empty() {
            return;
        }
        let maps: Vec<_> = self.maps.lock().iter().filter_map(Weak::upgrade).collect();
        for map in maps {
            map.release_left(&|tag| freed.contains(&tag));
        }
    }

    /// Frees the slots of a domain that are leased under a tag which is none of its own: some process
    /// there has written nonsense.
    pub fn take_back_slots(&self, domain: &Domain) {
        for lease in &domain.page().leases {
            let owner = lease.owner();
            let is_ours =
                matches!(owner, RUNTIME_OWNER | MOVING_OWNER) && domain.id == DomainId::HOME;
            if owner != 0 && !is_ours && !domain.has(owner) {
                tracing::info!(
                    domain = domain.id.0,
                    owner,
                    "took back a slot that nobody owns"
                );
                lease.take_from(owner);
            }
        }
    }

    /// Empties task storages of threads that have ended.
    pub fn forget_threads(&self) {
        let is_gone = |tid: u32| !Path::new(&format!("/proc/{tid}")).exists();
        for map in self.maps.lock().iter().filter_map(Weak::upgrade) {
            map.forget_threads(&is_gone);
        }
    }

    /// Empties and frees the memory of domains that have had no targets for some time, and returns
    /// them.
    pub fn retire_domains(&self) -> Vec<Arc<Domain>> {
        let retired = self.shared.domains.retire(RETIRE_AFTER);
        if retired.is_empty() {
            return retired;
        }
        let maps: Vec<_> = self.maps.lock().iter().filter_map(Weak::upgrade).collect();
        for domain in &retired {
            for map in &maps {
                if let Err(error) = map.retire(domain.id) {
                    domain.has_left_too_much(&map.spec.name, error);
                }
            }
            for ring in self.rings.lock().iter().filter_map(Weak::upgrade) {
                ring.retire(domain.id);
            }
        }
        retired
    }

    /// Frees what a dead process held, in the memory of its domain.
    ///
    /// Returns false if a live process keeps a lock that this needs; it has to be tried again.
    fn free(&self, owner: u32) -> bool {
        let Some(domain) = self.living.lock().get(&owner).cloned() else {
            return true;
        };
        let mut is_done = true;
        // A lock that is waited for must not keep others from the list.
        let maps: Vec<_> = self.maps.lock().iter().filter_map(Weak::upgrade).collect();
        for map in maps {
            is_done &= map.release_owner(owner, &domain).is_ok();
        }
        for ring in self.rings.lock().iter().filter_map(Weak::upgrade) {
            ring.release(&|tag| tag == owner);
        }
        // The next user of a slot overwrites what the maps know of the dead one.
        if is_done {
            self.living.lock().remove(&owner);
            let mut freed = self.freed.lock();
            if freed.len() == MOST_FREED {
                freed.pop_front();
            }
            freed.push_back(owner);
            drop(freed);
            domain.dismiss(owner);
            for lease in &domain.page().leases {
                lease.take_from(owner);
            }
        }
        is_done
    }
}

//! The state that all connections share.

use std::sync::Arc;

use rustix::process::{Resource, getrlimit};

use crate::audit::Audit;
use crate::digests::Digests;
use crate::facts::Facts;
use crate::holder::Holder;
use crate::limits::Limit;
use crate::lookup_channel::LookupChannels;
use crate::memory;
use crate::policy::Policy;

/// The most sessions of all peers: each has some threads.
const SESSIONS: u64 = 128;
/// Descriptors that are not hosts' objects: of connections and files, and of things to wait for.
const OTHER_DESCRIPTORS: u64 = 1024;
/// The fewest descriptors for hosts' objects, however few the proxy may have.
const FEWEST_OBJECTS: u64 = 256;

/// The state.
#[derive(Debug)]
pub struct Host {
    /// The rules for hosts.
    pub policy: Policy,
    /// The log of their actions.
    pub audit: Audit,
    /// The kernel.
    pub facts: Facts,
    /// Bytes of all maps.
    pub taken: Arc<Limit>,
    /// Sessions.
    pub sessions: Arc<Limit>,
    /// Objects, each of which is a descriptor.
    pub objects: Arc<Limit>,
    /// Bytes of requests and answers.
    pub memory: Arc<Limit>,
    /// Holds memory that hosts have mapped.
    pub holder: Arc<Holder>,
    /// The digests of the kernel's large files.
    pub digests: Arc<Digests>,
    /// Further connections.
    pub lookup_channels: LookupChannels,
}

impl Host {
    /// Creates the state, without any sessions. The limit of open files must not change later.
    pub fn new(policy: Policy, audit: Audit, facts: Facts, holder: Arc<Holder>) -> Self {
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let objects = descriptors.saturating_sub(OTHER_DESCRIPTORS);
        Self {
            policy,
            audit,
            facts,
            taken: Limit::new(0),
            sessions: Limit::new(SESSIONS),
            objects: Limit::new(objects.max(FEWEST_OBJECTS)),
            memory: Limit::new(memory::MOST),
            holder,
            digests: Arc::default(),
            lookup_channels: LookupChannels::default(),
        }
    }
}

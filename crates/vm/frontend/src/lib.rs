//! Carries out a tool's calls in a virtual machine's guest.
//!
//! The guest's kernel is a whole one, so nothing is interpreted here. A call's arguments are taken
//! from the tool's memory, the data that they point to goes to the proxy in the guest
//! ([`beeline_vm_protocol`]), and the answer is written to the tool. `syscalls` leads each call to
//! the area that answers it: the modules in it. The table [`beeline_vm_protocol::layout`] lists the
//! commands of `bpf(2)` that go to the guest; the table in `syscalls::files` lists the guest's
//! files. All else is the host's.
//!
//! A descriptor of a guest's object is an anchor, as for local objects
//! ([`beeline_supervisor::keys::anchor`]). Memory that a tool maps (rings, arrays) is a memory
//! file, which `rings` keeps equal to the guest's; the descriptor becomes that file when the tool
//! first maps it. Where the guest's memory can be seen from here, its own pages lie over the file
//! (`sharing`).
//!
//! Of the runtime, only [`beeline_runtime::fast_path`] is used: a tool's process gets its fast path
//! by the runtime's own means (trampoline pools, patches, the agent), for a guest as well.
//!
//! Its terms are in docs/glossary.md.

mod changes;
mod clocks;
mod closing;
mod connection;
#[cfg(test)]
mod fake;
mod kept;
mod memory;
mod objects;
mod polling;
mod rings;
mod sharing;
mod syscalls;

use std::sync::Arc;

use beeline_runtime::fast_path::{Prefetch, ToolClocks};
use beeline_supervisor::bpffs::BpfFs;
use beeline_supervisor::keys::Key;
use beeline_supervisor::{Answer, Answers, Call, Heat, HotSites, Listener, Request, ToolCall};
use beeline_uapi::Command;

pub use clocks::Difference;
pub use connection::Connection;
pub use sharing::Sharing;

use crate::changes::Changes;
use crate::kept::Kept;
use crate::objects::{Object, Objects};
use crate::rings::Rings;
use crate::sharing::may_be_stopped;
use crate::syscalls::files::Fetched;
use crate::syscalls::lookup_channel::LookupChannels;
use crate::syscalls::{Dispatcher, Types};

/// The reasons why the guest cannot be asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Its proxy does not answer as it should.
    #[error("the guest cannot be asked: {0}")]
    Guest(String),
    /// No thread could be started.
    #[error("starting a thread failed: {}", beeline_inject::with_remedy(.0))]
    Thread(std::io::Error),
}

/// The state that all calls of one tool share.
pub struct Guest {
    connection: Arc<Connection>,
    objects: Arc<Objects>,
    bpffs: BpfFs<Arc<Object>>,
    files: Fetched,
    rings: Rings,
    types: Types,
    kept: Kept,
    /// The part of the tool's iterations through maps that its processes see.
    prefetch: Prefetch,
    lookup_channels: Arc<LookupChannels>,
    hot_sites: HotSites,
    changes: Arc<Changes>,
    /// The guest's memory, where it can be seen from here.
    sharing: Option<Arc<Sharing>>,
}

impl Guest {
    /// Prepares to answer from a guest.
    ///
    /// With `sharing`, the memory that the tool maps is the guest's own.
    ///
    /// # Errors
    /// Fails if this process has no descriptors left.
    pub fn new(
        connection: Arc<Connection>,
        sharing: Option<Arc<Sharing>>,
    ) -> std::io::Result<Self> {
        let lookup_channels = Arc::new(LookupChannels::new(connection.may_join()));
        let at_loss = (Arc::clone(&lookup_channels), sharing.clone());
        connection.set_at_loss(Box::new(move || {
            let (lookup_channels, sharing) = at_loss;
            if let Some(sharing) = sharing {
                sharing.tear_down();
            }
            lookup_channels.end();
        }));
        Ok(Self {
            lookup_channels,
            sharing,
            objects: Arc::new(Objects::new()?),
            bpffs: BpfFs::default(),
            files: Fetched::default(),
            rings: Rings::default(),
            types: Types::default(),
            kept: Kept::new(connection.welcome()),
            prefetch: Prefetch::new()?,
            hot_sites: HotSites::default(),
            changes: Arc::default(),
            connection,
        })
    }

    /// Serves a tool whose process has clocks of its own, ahead of Beeline's by so many nanoseconds.
    ///
    /// # Errors
    ///
    /// The process cannot be looked at.
    pub fn with_clocks(mut self, process: i32, ahead: i64) -> std::io::Result<Self> {
        let clocks = ToolClocks::of(&process.to_string(), ahead)?;
        self.prefetch = self.prefetch.with_clocks(clocks);
        Ok(self)
    }
}

impl Answers for Guest {
    fn answer(&self, call: &Call<'_>, asked: ToolCall) -> Answer {
        Dispatcher::new(self, call).answer(asked)
    }

    fn is_plainly_kernels(&self, call: &Call<'_>, asked: ToolCall) -> bool {
        Dispatcher::new(self, call).is_plainly_kernels(asked)
    }

    /// Returns true for commands on single elements: no thread waits for these, unless more of a
    /// map has to be fetched, or they are long.
    fn is_short(&self, request: &Request) -> bool {
        request.bpf_command().is_some_and(|command| {
            (Command::MAP_LOOKUP_ELEM..=Command::MAP_GET_NEXT_KEY).contains(&command)
        })
    }

    fn deliver(&self, listener: &Listener, request: &Request, answer: Answer, let_lead: &dyn Fn()) {
        // If the tool is gone, its end of an anchor closes with ours.
        listener.answer(request.id, answer);
        let is_step = request.bpf_command() == Some(Command::MAP_GET_NEXT_KEY);
        let is_often = || {
            self.hot_sites.count(request.tid, request.ip) == Some(Heat::Hot)
                && may_be_stopped(self.sharing.as_deref())
        };
        if (is_step && is_often()) || self.lookup_channels.take_due(request) {
            let_lead();
            // Where there can be no fast path, the supervisor keeps answering.
            if let Ok(true) = self.prefetch.open(request.process(), request.ip) {
                self.lookup_channels.has_fast_path(request.tid);
            }
        }
    }

    /// Does nothing, because programs run in the guest.
    fn found_tool(&self, _: i32) {}

    fn is_in_use(&self) -> bool {
        self.objects.are_there()
    }

    fn tend(&self) {
        let store = || self.rings.store(&self.connection);
        let closed = |key: Key| self.prefetch.unlist((key.device, key.inode));
        self.objects.reap(self.sharing.as_deref(), store, closed);
    }

    fn stop(&self) {
        self.objects.stop();
    }

    fn clear(&self) {
        // No process has the guest's pages mapped any more, so the guest may give them to others.
        if let Some(sharing) = &self.sharing {
            sharing.release(&self.connection);
        }
        self.lookup_channels.end();
        drop(self.bpffs.clear());
        self.objects.clear();
        self.connection.close();
    }
}

//! Carries out a tool's calls in a virtual machine's guest.
//!
//! The guest's kernel is a whole one, so nothing is interpreted here. A call's arguments are taken
//! from the tool's memory, the data that they point to goes to the proxy in the guest
//! ([`beeline_vm_protocol`]), and the answer is written to the tool. The table
//! [`beeline_vm_protocol::layout`] lists the commands of `bpf(2)` that go to the guest; the table
//! in `files` lists the guest's files. All else is the host's.
//!
//! A descriptor of a guest's object is an anchor, as for local objects
//! ([`beeline_supervisor::keys::anchor`]). Memory that a tool maps (rings, arrays) is a memory
//! file, which `rings` keeps equal to the guest's; the descriptor becomes that file when the tool
//! first maps it. Where the guest's memory can be seen from here, its own pages lie over the file
//! (`sharing`).

mod attr;
mod changes;
mod closing;
mod commands;
mod connection;
mod descriptors;
mod elements;
mod events;
#[cfg(test)]
mod fake;
mod files;
mod iterators;
mod kept;
mod lookup_channel;
mod memory;
mod objects;
mod pins;
mod polling;
mod prefetch;
mod refused;
mod rings;
mod sharing;
mod trace;
mod types;
mod waiting;

use std::ops::Deref;
use std::sync::Arc;

use beeline_runtime::fast_path::Prefetch;
use beeline_supervisor::bpffs::{BpfFs, BpfFsCall};
use beeline_supervisor::keys::Key;
use beeline_supervisor::{Answer, Answers, Call, HotSites, Listener, Reply, Request};
use beeline_uapi::{Command, Errno};
use beeline_vm_protocol::messages::Welcome;
use beeline_vm_protocol::messages::guest_message::Body as Said;
use beeline_vm_protocol::messages::host_message::Body as Asked;

pub use connection::Connection;
pub use sharing::Sharing;
use sharing::steady_calls;

use crate::changes::Changes;
use crate::files::Files;
use crate::kept::Kept;
use crate::lookup_channel::LookupChannels;
use crate::objects::{Object, Objects};
use crate::rings::Rings;
use crate::types::Types;

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
    pub(crate) connection: Arc<Connection>,
    objects: Arc<Objects>,
    bpffs: BpfFs<Arc<Object>>,
    pub(crate) files: Files,
    pub(crate) rings: Rings,
    pub(crate) types: Types,
    pub(crate) kept: Kept,
    /// The part of the tool's walks through maps that its processes see.
    pub(crate) prefetch: Prefetch,
    pub(crate) lookup_channels: Arc<LookupChannels>,
    hot_sites: HotSites,
    changes: Arc<Changes>,
    /// The guest's memory, where it can be seen from here.
    pub(crate) sharing: Option<Arc<Sharing>>,
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
            files: Files::default(),
            rings: Rings::default(),
            types: Types::default(),
            kept: Kept::new(connection.welcome()),
            prefetch: Prefetch::new()?,
            hot_sites: HotSites::default(),
            changes: Arc::default(),
            connection,
        })
    }

    /// Sends a request, after the data that the tool has written to arrays until now.
    fn ask(&self, request: Asked) -> Result<Said, Errno> {
        self.rings.store(&self.connection);
        self.connection.ask(request)
    }

    /// Returns whether a process of the tool may be stopped. It is left alone if it is stopped for
    /// the guest's memory, or if stopping it interrupts its calls.
    fn may_be_stopped(&self) -> bool {
        self.sharing.is_none() && steady_calls()
    }

    fn welcome(&self) -> &Welcome {
        self.connection.welcome()
    }
}

impl Answers for Guest {
    fn answer(&self, call: &Call<'_>, nr: i64) -> Answer {
        let call = &Handler { guest: self, call };
        let [a, b, c, ..] = call.args;
        match nr {
            libc::SYS_bpf => call.bpf(),
            libc::SYS_perf_event_open => call.perf_event_open(),
            libc::SYS_ioctl => call.ioctl(),
            libc::SYS_mmap => call.mmap(),
            libc::SYS_epoll_ctl => call.epoll_ctl(),
            libc::SYS_poll | libc::SYS_ppoll => call.poll(a, b),
            libc::SYS_select | libc::SYS_pselect6 => call.select(a, b),
            libc::SYS_statfs => call.statfs(a, b),
            libc::SYS_read => call.read(a, b, c),
            libc::SYS_uname => call.uname(a),
            libc::SYS_rt_sigreturn => call.settle(),
            _ => match call.path_call(nr) {
                Some(asked) => call.file(asked),
                None => call.bpffs().answer(nr).unwrap_or(Ok(Reply::Continue)),
            },
        }
    }

    fn is_plainly_kernels(&self, call: &Call<'_>, nr: i64) -> bool {
        let call = &Handler { guest: self, call };
        if let Some(asked) = call.path_call(nr) {
            return call.is_elsewhere(asked.directory, asked.path);
        }
        match nr {
            libc::SYS_poll | libc::SYS_ppoll | libc::SYS_select | libc::SYS_pselect6 => {
                self.objects.none_to_wait_for()
            }
            libc::SYS_read => call.is_no_object(call.args[0]),
            libc::SYS_rt_sigreturn => self.rings.none_to_settle(),
            _ => false,
        }
    }

    /// Returns true for commands on single elements: no thread waits for these, unless more of a
    /// map has to be fetched, or they are long.
    fn is_short(&self, request: &Request) -> bool {
        let command = Command(request.args[0] as u32);
        request.nr == libc::SYS_bpf
            && (Command::MAP_LOOKUP_ELEM..=Command::MAP_GET_NEXT_KEY).contains(&command)
    }

    fn deliver(&self, listener: &Listener, request: &Request, answer: Answer, let_lead: &dyn Fn()) {
        // If the tool is gone, its end of an anchor closes with ours.
        listener.answer(request.id, answer);
        let is_step = request.nr == libc::SYS_bpf
            && Command(request.args[0] as u32) == Command::MAP_GET_NEXT_KEY;
        let is_often = || self.hot_sites.count(request.tid, request.ip) && self.may_be_stopped();
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

/// A call, and the guest that it is for. The handlers are its methods, in a module for each group
/// of system calls.
pub(crate) struct Handler<'a> {
    pub(crate) guest: &'a Guest,
    call: &'a Call<'a>,
}

impl Handler<'_> {
    /// Returns the same call, as a handler for paths in the BPF file system.
    pub(crate) fn bpffs(&self) -> BpfFsCall<'_, Guest> {
        BpfFsCall::new(self.guest, self.call)
    }
}

impl<'a> Deref for Handler<'a> {
    type Target = Call<'a>;

    fn deref(&self) -> &Call<'a> {
        self.call
    }
}

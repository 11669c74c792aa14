//! Answers a tool's calls from a [`Backend`] on this machine.

use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Once};

use beeline_inject::with_remedy;
use beeline_runtime::backend::{Backend, Release};
use beeline_supervisor::bpffs::BpfFs;
use beeline_supervisor::keys::key_of;
use beeline_supervisor::{
    Answer, Answers, Call, Heat, HotSites, Listener, Reply, Request, ToolCall,
};
use beeline_uapi::Errno;

use crate::claims::Claims;
use crate::event_types::EventTypes;
use crate::fds::Descriptors;
use crate::members::Members;
use crate::objects::Numbers;
use crate::pinned::Pinned;
use crate::reclaim::Reaper;
use crate::semaphores::Semaphores;
use crate::syscalls::Dispatcher;
use crate::tracefs::TraceFs;
use crate::tracepoints::KernelIds;

/// The state that all calls of one tool share.
pub struct Local {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) fds: Descriptors,
    pub(crate) bpffs: BpfFs<Pinned>,
    pub(crate) event_types: EventTypes,
    pub(crate) tracefs: TraceFs,
    pub(crate) tracepoint_ids: KernelIds,
    pub(crate) claims: Arc<Claims>,
    pub(crate) semaphores: Arc<Semaphores>,
    /// The objects in maps.
    pub(crate) members: Members,
    pub(crate) numbers: Numbers,
    pub(crate) reaper: Reaper,
    /// True once a kprobe of the tool's was refused by name. What the tool tries then is no news.
    pub(crate) kprobe_refused: AtomicBool,
    hot_sites: HotSites,
    /// Done once the backend knows that the BPF file system is used.
    no_path_passes: Once,
}

impl Local {
    /// Prepares to answer from a backend.
    ///
    /// # Errors
    /// Fails if this process has no descriptors left.
    pub fn new(backend: Arc<dyn Backend>) -> io::Result<Self> {
        let bpffs = BpfFs::default();
        // The tool begins in this directory, too.
        if let Ok(here) = std::env::current_dir() {
            bpffs.enter(&here);
        }
        Ok(Local {
            backend,
            fds: Descriptors::new()?,
            bpffs,
            event_types: EventTypes::read(),
            tracefs: TraceFs::default(),
            tracepoint_ids: KernelIds::default(),
            claims: Arc::default(),
            semaphores: Arc::default(),
            members: Members::default(),
            numbers: Numbers::default(),
            reaper: Reaper::new()?,
            kprobe_refused: AtomicBool::new(false),
            hot_sites: HotSites::default(),
            no_path_passes: Once::new(),
        })
    }
}

impl Local {
    /// Counts a map operation.
    fn heat_of(&self, request: &Request) -> Option<Heat> {
        let command = request.bpf_command()?;
        let is_counted = command.is_for_elements();
        is_counted.then(|| self.hot_sites.count(request.tid, request.ip))?
    }

    /// Answers a call when the operations of its process have been shortened. The thread waits
    /// until then: a busy one would hold up what is done to its process, and others of the tool.
    fn deliver_and_shorten(
        &self,
        listener: &Listener,
        request: &Request,
        answer: Answer,
        heat: Heat,
    ) {
        let (listener, id) = (listener.clone(), request.id);
        let waiting = Release::new(move || {
            listener.answer(id, answer);
        });
        let pid = request.process();
        match heat {
            Heat::Warm => self.backend.shorten_copy(pid, request.ip, waiting),
            Heat::Hot => self.backend.shorten(pid, request.ip, waiting),
        }
    }
}

impl Answers for Local {
    fn answer(&self, call: &Call<'_>, asked: ToolCall) -> Answer {
        let answer = Dispatcher::new(self, call).answer(asked);
        if self.bpffs.is_used() {
            self.no_path_passes
                .call_once(|| self.backend.let_no_path_pass());
        }
        answer
    }

    fn is_plainly_kernels(&self, call: &Call<'_>, asked: ToolCall) -> bool {
        Dispatcher::new(self, call).is_plainly_kernels(asked)
    }

    /// Returns false: a call may wait, for example for the targets that it stops, which may make
    /// calls themselves.
    fn is_short(&self, _: &Request) -> bool {
        false
    }

    fn deliver(&self, listener: &Listener, request: &Request, answer: Answer, _: &dyn Fn()) {
        let installing = match &answer {
            Ok(Reply::Descriptor { file, .. }) => key_of(file).ok(),
            _ => None,
        };
        // The tool cannot know that our files are the ones that are too many.
        if matches!(answer, Err(Errno::EMFILE)) {
            let why = with_remedy(&io::Error::from_raw_os_error(libc::EMFILE));
            self.backend
                .unsupported(&format!("a call of the tool's was refused: {why}"));
        }
        let heat = match installing {
            None => self.heat_of(request),
            Some(_) => None,
        };
        if let Some(heat) = heat {
            return self.deliver_and_shorten(listener, request, answer, heat);
        }
        let transit = installing.map(|_| self.fds.transit());
        let taken = listener.answer(request.id, answer);
        drop(transit);
        if let Some(key) = installing {
            self.fds.installed(key, taken);
        }
    }

    fn found_tool(&self, pid: i32) {
        self.backend.found_tool(pid);
    }

    fn is_in_use(&self) -> bool {
        self.fds.has_users()
    }

    fn tend(&self) {
        self.reaper.run(&self.fds);
    }

    fn stop(&self) {
        self.reaper.stop();
    }

    fn clear(&self) {
        let pinned = self.bpffs.clear();
        self.fds
            .clear(pinned.into_iter().map(|pin| pin.object).collect());
    }
}

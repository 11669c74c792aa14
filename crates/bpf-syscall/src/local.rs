//! Answers a tool's calls from a [`Backend`] on this machine.

use std::io;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use beeline_inject::with_remedy;
use beeline_runtime::backend::Backend;
use beeline_supervisor::bpffs::{BpfFs, BpfFsCall};
use beeline_supervisor::keys::key_of;
use beeline_supervisor::{Answer, Answers, Call, HotSites, Listener, Reply, Request};
use beeline_uapi::Errno;
use rustix::event::{EventfdFlags, eventfd};

use crate::claims::Claims;
use crate::elements::Members;
use crate::fds::Descriptors;
use crate::pin::Pinned;
use crate::sysfs::EventTypes;
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
    /// The objects in maps.
    pub(crate) members: Members,
    /// Wakes the thread that releases objects.
    pub(crate) reaper: OwnedFd,
    /// The number of memory files given to the tool since the last look for closed ones.
    pub(crate) unswept: AtomicU64,
    /// True when the tool and its children are gone.
    pub(crate) done: AtomicBool,
    pub(crate) hot_sites: HotSites,
}

impl Local {
    /// Prepares to answer from a backend.
    ///
    /// # Errors
    /// Fails if this process has no descriptors left.
    pub fn new(backend: Arc<dyn Backend>) -> io::Result<Self> {
        Ok(Local {
            backend,
            fds: Descriptors::new()?,
            bpffs: BpfFs::default(),
            event_types: EventTypes::read(),
            tracefs: TraceFs::default(),
            tracepoint_ids: KernelIds::default(),
            claims: Arc::default(),
            members: Members::default(),
            reaper: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            unswept: AtomicU64::new(0),
            done: AtomicBool::new(false),
            hot_sites: HotSites::default(),
        })
    }

    /// Makes the reaper look for work.
    pub(crate) fn wake_reaper(&self) {
        // Fails only when the count is full, and then the reaper wakes anyway.
        let _ = rustix::io::write(&self.reaper, &1u64.to_ne_bytes());
    }
}

impl Answers for Local {
    fn answer(&self, call: &Call<'_>, nr: i64) -> Answer {
        let call = &Handler { local: self, call };
        let [a, b, ..] = call.args;
        match nr {
            libc::SYS_bpf => call.bpf(),
            libc::SYS_perf_event_open => call.with_room(|| call.perf_event_open()),
            libc::SYS_ioctl => call.with_room(|| call.ioctl()),
            libc::SYS_mmap => call.with_room(|| call.mmap()),
            libc::SYS_epoll_ctl => call.epoll_ctl(),
            libc::SYS_poll | libc::SYS_ppoll => call.poll(a, b),
            libc::SYS_select | libc::SYS_pselect6 => call.select(a, b),
            libc::SYS_statfs => call.statfs(a, b),
            libc::SYS_execve | libc::SYS_execveat => call.run_program(),
            _ => match call.at_arguments(nr) {
                Some(arguments) => call.file(nr, arguments),
                None => call.bpffs().answer(nr).unwrap_or(Err(Errno(libc::ENOSYS))),
            },
        }
    }

    fn is_plainly_kernels(&self, call: &Call<'_>, nr: i64) -> bool {
        let call = &Handler { local: self, call };
        if let Some([at, path, ..]) = call.at_arguments(nr) {
            return call.is_elsewhere(at, path);
        }
        match nr {
            libc::SYS_poll | libc::SYS_ppoll | libc::SYS_select | libc::SYS_pselect6 => {
                !self.fds.has_rings()
            }
            libc::SYS_execve | libc::SYS_execveat => !self.backend.follows_programs(),
            _ => false,
        }
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
        if matches!(answer, Err(Errno(libc::EMFILE))) {
            let why = with_remedy(&io::Error::from_raw_os_error(libc::EMFILE));
            self.backend
                .unsupported(&format!("a call of the tool's was refused: {why}"));
        }
        let is_often = is_map_operation(request) && self.hot_sites.count(request.tid, request.ip);
        let transit = installing.map(|_| self.fds.transit());
        let taken = listener.answer(request.id, answer);
        drop(transit);
        if let Some(key) = installing {
            self.fds.installed(key, taken);
        }
        if is_often {
            self.backend.shorten(request.process(), request.ip);
        }
    }

    fn found_tool(&self, pid: i32) {
        self.backend.found_tool(pid);
    }

    fn is_in_use(&self) -> bool {
        self.has_users()
    }

    fn tend(&self) {
        self.reap();
    }

    fn stop(&self) {
        self.done.store(true, Ordering::Release);
        self.wake_reaper();
    }

    fn clear(&self) {
        let pinned = self.bpffs.clear();
        self.fds
            .clear(pinned.into_iter().map(|pin| pin.object).collect());
    }
}

/// A call, and the state that its handlers work on. The handlers are its methods, in a module for
/// each group of system calls.
pub(crate) struct Handler<'a> {
    pub(crate) local: &'a Local,
    call: &'a Call<'a>,
}

impl Handler<'_> {
    /// Returns the same call, as a handler for paths in the BPF file system.
    pub(crate) fn bpffs(&self) -> BpfFsCall<'_, Local> {
        BpfFsCall::new(self.local, self.call)
    }

    /// Answers `execve`. The program starts whatever the outcome here.
    fn run_program(&self) -> Answer {
        if let Ok(pid) = self.process() {
            self.local.backend.begins_program(pid);
        }
        Ok(Reply::Continue)
    }
}

impl<'a> Deref for Handler<'a> {
    type Target = Call<'a>;

    fn deref(&self) -> &Call<'a> {
        self.call
    }
}

/// Returns whether it is a command on elements of a map.
fn is_map_operation(request: &Request) -> bool {
    request.nr == libc::SYS_bpf && matches!(request.args[0], 1..=4 | 21 | 24..=27)
}

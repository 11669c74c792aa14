//! Serving one tool: threads that take its calls, and the handlers they give them to.
//!
//! One thread at a time leads: it waits for the next call, then lets another lead while it answers.
//! There is always one that leads, made when needed, so a call that takes long (attaching to many
//! processes) holds up no other; not even those that the door itself causes when a target is a
//! child of the tool. Most calls name a file that is none of the door's: the leader sends those on
//! to the kernel itself, as changing threads costs more than all else.

use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, Scope};

use beeline_runtime::backend::{Backend, Errno};
use rustix::event::{EventfdFlags, eventfd};
use rustix::process::{Resource, getrlimit, setrlimit};

use crate::bpffs::BpfFs;
use crate::claims::Claims;
use crate::elements::Members;
use crate::fds::{Descriptors, key_of};
use crate::memory::Memory;
use crate::notify::{Listener, Reply, Request};
use crate::often::Often;
use crate::paths::HERE;
use crate::sysfs::EventTypes;
use crate::tracefs::TraceFs;
use crate::tracepoints::KernelIds;

/// Threads kept for the next call; more come and go with need.
const SPARE_THREADS: usize = 2;

pub(crate) type Answer = Result<Reply, Errno>;

/// What all calls of one tool share.
pub(crate) struct Door {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) fds: Descriptors,
    pub(crate) bpffs: BpfFs,
    pub(crate) event_types: EventTypes,
    pub(crate) tracefs: TraceFs,
    pub(crate) tracepoint_ids: KernelIds,
    pub(crate) claims: Arc<Claims>,
    /// Objects in maps.
    pub(crate) members: Members,
    /// Wakes the thread that releases objects.
    pub(crate) reaper: OwnedFd,
    /// Memory files given to the tool since the last look for closed ones.
    pub(crate) unswept: AtomicU64,
    /// The tool and its children are gone.
    pub(crate) done: AtomicBool,
    pub(crate) often: Often,
}

/// One call of the tool. The handlers are its methods, in a module for each group of system calls.
pub(crate) struct Call<'a> {
    pub(crate) door: &'a Door,
    pub(crate) memory: Memory<'a>,
    pub(crate) listener: &'a Listener,
    /// The kernel's cookie for the call.
    pub(crate) id: u64,
    pub(crate) tid: i32,
    pub(crate) args: [u64; 6],
}

impl Call<'_> {
    fn answer(&self, nr: i64) -> Answer {
        let [a, b, c, d, e, _] = self.args;
        match nr {
            libc::SYS_bpf => self.bpf(),
            libc::SYS_perf_event_open => self.perf_event_open(),
            libc::SYS_ioctl => self.ioctl(),
            libc::SYS_mmap => self.mmap(),
            libc::SYS_epoll_ctl => self.epoll_ctl(),
            libc::SYS_poll | libc::SYS_ppoll => self.poll(a, b),
            libc::SYS_select | libc::SYS_pselect6 => self.select(a, b),
            libc::SYS_openat => self.open(a, b, c),
            libc::SYS_open => self.open(HERE, a, b),
            libc::SYS_mkdirat => self.mkdir(a, b, c),
            libc::SYS_mkdir => self.mkdir(HERE, a, b),
            libc::SYS_unlinkat => self.unlink(a, b, c),
            libc::SYS_unlink => self.unlink(HERE, a, 0),
            libc::SYS_rmdir => self.unlink(HERE, a, libc::AT_REMOVEDIR as u64),
            libc::SYS_rename => self.rename((HERE, a), (HERE, b), 0),
            libc::SYS_renameat => self.rename((a, b), (c, d), 0),
            libc::SYS_renameat2 => self.rename((a, b), (c, d), e),
            libc::SYS_faccessat | libc::SYS_faccessat2 => self.access(a, b, c),
            libc::SYS_access => self.access(HERE, a, b),
            libc::SYS_stat | libc::SYS_lstat => self.stat(HERE, a, b),
            libc::SYS_newfstatat => self.stat(a, b, c),
            libc::SYS_statx => self.statx(a, b, d, e),
            libc::SYS_getxattr | libc::SYS_lgetxattr => self.xattr(a, Err(Errno(libc::EOPNOTSUPP))),
            libc::SYS_listxattr | libc::SYS_llistxattr => self.xattr(a, Ok(0)),
            libc::SYS_statfs => self.statfs(a, b),
            libc::SYS_fstatfs => self.fstatfs(a, b),
            libc::SYS_readlink => self.readlink(a, b, c),
            libc::SYS_readlinkat => self.readlink(b, c, d),
            _ => Err(Errno(libc::ENOSYS)),
        }
    }

    /// Is it one of the calls that are made often, and none of the door's business? A look that waits for nothing but
    /// the page that the path is in.
    fn is_plainly_kernels(&self, nr: i64) -> bool {
        let [a, b, ..] = self.args;
        match nr {
            libc::SYS_openat
            | libc::SYS_newfstatat
            | libc::SYS_statx
            | libc::SYS_faccessat
            | libc::SYS_faccessat2
            | libc::SYS_readlinkat => self.is_elsewhere(a, b),
            libc::SYS_open
            | libc::SYS_stat
            | libc::SYS_lstat
            | libc::SYS_access
            | libc::SYS_readlink => self.is_elsewhere(HERE, a),
            libc::SYS_poll | libc::SYS_ppoll | libc::SYS_select | libc::SYS_pselect6 => {
                !self.door.fds.has_rings()
            }
            _ => false,
        }
    }
}

/// The threads of the door.
pub(crate) struct Server {
    listener: Listener,
    door: Door,
    /// Held by the thread that waits for the next call.
    lead: Mutex<()>,
    /// Threads that lead or wait to.
    free: AtomicUsize,
}

impl Server {
    pub(crate) fn new(listener: Listener, backend: Arc<dyn Backend>) -> io::Result<Self> {
        allow_many_files();
        let door = Door {
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
            often: Often::default(),
        };
        Ok(Server {
            listener,
            door,
            lead: Mutex::new(()),
            free: AtomicUsize::new(1),
        })
    }

    /// Returns when the last process under the filter is gone, and all it had is released.
    pub(crate) fn run(&self) {
        std::thread::scope(|outer| {
            let reaper = Builder::new().name("beeline-reaper".into());
            let reaper = reaper.spawn_scoped(outer, || self.door.reap());
            std::thread::scope(|scope| self.work(scope));
            self.door.done.store(true, Ordering::Release);
            self.door.wake_reaper();
            // Without a reaper, or if it panicked, objects stay until here; no harm to the tool.
            let _ = reaper.map(|thread| thread.join());
        });
        let pinned = self.door.bpffs.clear();
        self.door.fds.clear(pinned);
    }

    /// Takes calls and answers them until there are none, or enough others do.
    fn work<'scope, 'env>(&'scope self, scope: &'scope Scope<'scope, 'env>) {
        loop {
            let request = {
                let _lead = self.lead.lock().unwrap_or_else(PoisonError::into_inner);
                self.receive()
            };
            let left = self.free.fetch_sub(1, Ordering::AcqRel) - 1;
            let Some(request) = request else { return };
            if left == 0 {
                self.add_worker(scope);
            }
            self.serve(&request);
            if self.free.fetch_add(1, Ordering::AcqRel) >= SPARE_THREADS {
                self.free.fetch_sub(1, Ordering::AcqRel);
                return;
            }
        }
    }

    fn add_worker<'scope, 'env>(&'scope self, scope: &'scope Scope<'scope, 'env>) {
        self.free.fetch_add(1, Ordering::AcqRel);
        let started = Builder::new()
            .name("beeline-door".into())
            .spawn_scoped(scope, move || self.work(scope));
        if started.is_err() {
            // No threads to be had: the next call waits until this one is answered.
            self.free.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// The next call that needs a thread; `None` when there are no more.
    fn receive(&self) -> Option<Request> {
        loop {
            let request = self.listener.receive()?;
            let call = self.call(&request);
            let is_kernels = catch_unwind(AssertUnwindSafe(|| call.is_plainly_kernels(request.nr)));
            if !is_kernels.unwrap_or(false) {
                return Some(request);
            }
            self.listener.answer(request.id, Ok(Reply::Continue));
        }
    }

    fn call<'a>(&'a self, request: &'a Request) -> Call<'a> {
        Call {
            door: &self.door,
            memory: Memory::new(&self.listener, request),
            listener: &self.listener,
            id: request.id,
            tid: request.tid,
            args: request.args,
        }
    }

    fn serve(&self, request: &Request) {
        let call = self.call(request);
        // A fault in the door or the backend fails the call, and must not leave the tool waiting
        // for ever.
        let answer = catch_unwind(AssertUnwindSafe(|| call.answer(request.nr)))
            .unwrap_or(Err(Errno(libc::EIO)));
        let installing = match &answer {
            Ok(Reply::Descriptor { file, .. }) => key_of(file).ok(),
            _ => None,
        };
        let is_often = is_map_operation(request) && self.door.often.count(request.tid, request.ip);
        let transit = installing.map(|_| self.door.fds.transit());
        let taken = self.listener.answer(request.id, answer);
        drop(transit);
        if let Some(key) = installing {
            self.door.fds.installed(key, taken);
        }
        if is_often {
            self.door
                .backend
                .shorten(process_of(request.tid), request.ip);
        }
    }
}

/// Is it a command on elements of a map?
fn is_map_operation(request: &Request) -> bool {
    request.nr == libc::SYS_bpf && matches!(request.args[0], 1..=4 | 21 | 24..=27)
}

/// The process that a thread belongs to; the thread's own number if it is gone.
fn process_of(tid: i32) -> i32 {
    let status = std::fs::read_to_string(format!("/proc/{tid}/status")).unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok())
        .unwrap_or(tid)
}

impl Door {
    /// Makes the reaper look at what it has to do.
    pub(crate) fn wake_reaper(&self) {
        // Fails only when the count is full, and then the reaper wakes anyway.
        let _ = rustix::io::write(&self.reaper, &1u64.to_ne_bytes());
    }
}

/// The door holds a descriptor for each object of the tool, and the usual soft limit of 1024 is
/// soon reached by one that attaches by wildcard. The tool runs already, and keeps the limit that
/// it was started with.
fn allow_many_files() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Raising to the hard limit needs no right; should it fail, there are fewer.
    let _ = setrlimit(Resource::Nofile, limit);
}

//! Serves one tool: its threads take the tool's calls and hand them to the implementation of
//! [`Answers`].
//!
//! One thread at a time leads: it waits for the next call, then lets another lead while it answers.
//! There is always one that leads, made when needed. So a call that takes long (attaching to many
//! processes) holds up no other, not even those that the supervisor itself causes when a target is
//! a child of the tool.
//!
//! Changing threads is the most expensive part, though. Most calls name a file that is none of the
//! supervisor's: the leader sends those on to the kernel itself. The leader also answers calls that
//! may be answered at once, and lets another thread lead only if it has to wait.

use std::cell::Cell;
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{Builder, Scope};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use rustix::process::{Resource, getrlimit, setrlimit};

use beeline_uapi::Errno;

use crate::call::{Answer, Call};
use crate::capabilities;
use crate::interception::Interception;
use crate::notify::{Listener, Reply, Request};
use crate::own_action;
use crate::root::Tools;
use crate::tool_call::ToolCall;

/// Takes over the calls of the processes that live on.
pub(crate) type Fallback = dyn Fn() + Send + Sync;

/// The time between two looks at whether the session is used, once the tool has ended.
const LOOK_FOR_USE: Duration = Duration::from_millis(500);

/// The number of threads remembered to have made eBPF calls.
const MOST_CALLERS: usize = 1024;

/// The number of threads kept for the next call; more come and go with need.
const SPARE_THREADS: usize = 16;

/// Answers a tool's calls.
pub trait Answers: Sync + Sized {
    /// Answers a call of this kind. Several threads may ask at a time.
    ///
    /// # Errors
    ///
    /// The errno with which the call fails.
    fn answer(&self, call: &Call<'_>, asked: ToolCall) -> Answer;

    /// Returns true for a frequent call that the supervisor does not answer. Waits for nothing but
    /// the page that holds the path.
    fn is_plainly_kernels(&self, call: &Call<'_>, asked: ToolCall) -> bool;

    /// Returns true if the answer to such a call may be available at once.
    ///
    /// The leading thread begins the call. It must [let others lead](Call::let_others_lead) before
    /// it waits for anything but the tool's memory.
    fn is_short(&self, request: &Request) -> bool;

    /// Gives the tool its answer.
    ///
    /// `let_lead` must be called before waiting for anything after that, as with
    /// [`Call::let_others_lead`].
    fn deliver(&self, listener: &Listener, request: &Request, answer: Answer, let_lead: &dyn Fn());

    /// Records that a process makes eBPF calls; called once for each of its threads that does.
    fn found_tool(&self, pid: i32);

    /// Returns whether a process that the tool has started may still use an object of the session.
    fn is_in_use(&self) -> bool;

    /// Does the work beside the calls, in a thread of its own, until [`Self::stop`].
    fn tend(&self);

    /// Ends [`Self::tend`]: there are no more calls.
    fn stop(&self);

    /// Releases the tool's objects, which are no longer needed.
    fn clear(&self);
}

/// The threads of the supervisor.
pub(crate) struct Server<D> {
    listener: Listener,
    answers: D,
    interception: Interception,
    /// The tool's process id.
    tool: i32,
    /// True if the tool has made eBPF calls itself, and not only started processes that do.
    tool_has_called: AtomicBool,
    /// The threads that make eBPF calls.
    callers: Mutex<HashSet<i32>>,
    /// Their processes.
    tools: Tools,
    /// Held by the thread that waits for the next call.
    lead: Mutex<()>,
    /// The number of threads that lead or wait to lead.
    free: AtomicUsize,
}

impl<D: Answers> Server<D> {
    pub(crate) fn new(
        listener: Listener,
        interception: Interception,
        answers: D,
        tool: i32,
    ) -> Self {
        allow_many_files();
        Server {
            listener,
            interception,
            answers,
            tool,
            tool_has_called: AtomicBool::new(false),
            callers: Mutex::default(),
            tools: Tools::default(),
            lead: Mutex::new(()),
            free: AtomicUsize::new(1),
        }
    }

    /// Serves until the last process under the filter is gone, or the rest has been left to
    /// `fallback`. Everything that the processes had is released by then.
    pub(crate) fn run(&self, fallback: Option<&Fallback>) {
        std::thread::scope(|outer| {
            let reaper = Builder::new().name("beeline-reaper".into());
            let reaper = reaper.spawn_scoped(outer, || self.answers.tend());
            std::thread::scope(|scope| self.work(scope));
            // This comes before any operation that may stop the processes that are left: some of
            // them wait for an answer.
            if let Some(fallback) = fallback
                && self.listener.has_callers()
            {
                fallback();
            }
            self.listener.stop();
            self.answers.stop();
            // Without a reaper, or if it panicked, objects stay until here. That does the tool no
            // harm.
            let _ = reaper.map(|thread| thread.join());
        });
        self.answers.clear();
    }

    /// Stops taking calls once the tool has ended and no process that it has started uses the
    /// session.
    ///
    /// If the tool only started the processes that make the calls, as a script does, they may still
    /// use the session later.
    pub(crate) fn end_with_its_use(&self) {
        let is_in_use =
            || !self.tool_has_called.load(Ordering::Acquire) || self.answers.is_in_use();
        while is_in_use() && !self.listener.is_stopped_within(LOOK_FOR_USE) {}
        self.listener.stop();
    }

    fn note_caller(&self, request: &Request) {
        if !matches!(request.nr, libc::SYS_bpf | libc::SYS_perf_event_open) {
            return;
        }
        let mut callers = self.callers.lock();
        if !callers.insert(request.tid) {
            return;
        }
        // Thread ids are reused, and it does no harm to ask again.
        if callers.len() > MOST_CALLERS {
            callers.clear();
        }
        drop(callers);
        let process = request.process();
        if process == self.tool {
            self.tool_has_called.store(true, Ordering::Release);
        }
        self.tools.found(process);
        self.answers.found_tool(process);
    }

    /// Answers a process that asks whether it is root.
    fn name_caller(&self, request: &Request) -> Reply {
        match self.tools.takes_for_root(request.process()) {
            true => Reply::Value(0),
            false => Reply::Continue,
        }
    }

    /// Takes calls and answers them until there are none, or enough other threads do.
    fn work<'scope, 'env>(&'scope self, scope: &'scope Scope<'scope, 'env>) {
        let mut lead = self.lead();
        while let Some(request) = self.receive() {
            let still_leading = self.serve(&request, lead, scope);
            lead = match still_leading {
                Some(lead) => lead,
                None if self.stays() => self.lead(),
                None => return,
            };
        }
        self.free.fetch_sub(1, Ordering::AcqRel);
    }

    /// Returns whether a thread that has answered a call is kept for another one. A thread that
    /// goes is never counted among the free ones: otherwise the thread that gives up the lead would
    /// count on it to take over.
    fn stays(&self) -> bool {
        let more = |free| (free < SPARE_THREADS).then_some(free + 1);
        let (set, fetch) = (Ordering::AcqRel, Ordering::Acquire);
        self.free.fetch_update(set, fetch, more).is_ok()
    }

    /// Waits to lead.
    fn lead(&self) -> Lead<'_> {
        self.lead.lock()
    }

    fn add_worker<'scope, 'env>(&'scope self, scope: &'scope Scope<'scope, 'env>) {
        self.free.fetch_add(1, Ordering::AcqRel);
        let started = Builder::new()
            .name("beeline-calls".into())
            .spawn_scoped(scope, move || self.work(scope));
        if started.is_err() {
            // No thread could be started: the next call waits until this one is answered.
            self.free.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Returns the next call that needs a thread; `None` when there are no more.
    fn receive(&self) -> Option<Request> {
        loop {
            let request = self.listener.receive()?;
            let call = self.call(&request, &|| ());
            let own = match request.nr {
                libc::SYS_geteuid => Some(Ok(self.name_caller(&request))),
                libc::SYS_capget if self.tools.takes_for_root(request.process()) => {
                    Some(capabilities::all(&call))
                }
                libc::SYS_capset if self.tools.takes_for_root(request.process()) => {
                    Some(capabilities::real(&call))
                }
                libc::SYS_capget | libc::SYS_capset => Some(Ok(request.pass())),
                libc::SYS_rt_sigaction => Some(own_action::exchange(&call)),
                _ => None,
            };
            if let Some(answer) = own {
                self.listener.answer(request.id, answer);
                continue;
            }
            let look = || self.answers.is_plainly_kernels(&call, request.asked());
            if !catch_unwind(AssertUnwindSafe(look)).unwrap_or(false) {
                return Some(request);
            }
            let answer = self.interception.pass(&request);
            self.listener.answer(request.id, answer);
        }
    }

    fn call<'a>(&'a self, request: &'a Request, let_lead: &'a dyn Fn()) -> Call<'a> {
        Call::new(&self.listener, request, let_lead)
    }

    /// Answers a call. Returns the lead unless another thread has it now.
    fn serve<'scope, 'env>(
        &'scope self,
        request: &Request,
        lead: Lead<'scope>,
        scope: &'scope Scope<'scope, 'env>,
    ) -> Option<Lead<'scope>> {
        let lead = Cell::new(Some(lead));
        let let_lead = || {
            let Some(lead) = lead.take() else { return };
            drop(lead);
            if self.free.fetch_sub(1, Ordering::AcqRel) == 1 {
                self.add_worker(scope);
            }
        };
        self.note_caller(request);
        let call = self.call(request, &let_lead);
        if !self.answers.is_short(request) {
            call.let_others_lead();
        }
        // A fault in a handler or the backend fails the call, and must not leave the tool waiting
        // forever.
        let answer = catch_unwind(AssertUnwindSafe(|| {
            self.answers.answer(&call, request.asked())
        }))
        .unwrap_or(Err(Errno(libc::EIO)));
        let answer = match answer {
            Ok(Reply::Continue) => self.interception.pass(request),
            answer => answer,
        };
        self.answers
            .deliver(&self.listener, request, answer, &let_lead);
        lead.take()
    }
}

/// The right to wait for the next call.
type Lead<'a> = MutexGuard<'a, ()>;

/// Raises the limit of open files.
///
/// The supervisor holds a descriptor for each object of the tool, and a tool that attaches by
/// wildcard soon reaches the usual soft limit of 1024. The tool runs already and keeps the limit
/// that it was started with.
fn allow_many_files() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Raising to the hard limit needs no right. If it fails, there are fewer descriptors.
    let _ = setrlimit(Resource::Nofile, limit);
}

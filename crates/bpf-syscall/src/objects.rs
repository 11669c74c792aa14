//! The objects that a tool's descriptors stand for.
//!
//! Each is counted by `Arc`: the table of descriptors holds one count for as long as the tool has a
//! descriptor, other objects hold more (an event its program, a link its event), and a call that is
//! being served holds one for its time. The last count releases the backend's object, by [`Held`].

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use beeline_kernel::attach as events;
use beeline_runtime::Charge;
use beeline_runtime::backend::{AttachPoint, Backend, CallContext, Id, Info, MapSpec};
use beeline_supervisor::keys::errno;
use beeline_uapi::{AttachType, Errno, LinkType, MapType, ProgramType};
use parking_lot::Mutex;

use crate::claims::{Claim, Claims};
use crate::fds::Descriptors;
use crate::host_kernel;
use crate::map_types::is_ring_buffer;
use crate::members::ObjectElements;
use crate::semaphores::SemaphoreUse;
use crate::tracepoints::Tracepoint;

/// Any object with a descriptor.
#[derive(Clone)]
pub(crate) enum Object {
    Map(Arc<Map>),
    Program(Arc<ProgramObject>),
    Btf(Arc<Btf>),
    /// A perf event that programs are attached to.
    Event(Arc<Event>),
    /// A perf event that programs write to.
    Ring(Arc<Ring>),
    Link(Arc<Link>),
}

impl Object {
    /// Returns the wakeup of an object that a tool can wait for: rings of both kinds.
    pub(crate) fn wakeup(&self) -> Option<(Id, &Wakeup)> {
        match self {
            Object::Ring(ring) => Some((ring.held.id, &ring.wakeup)),
            Object::Map(map) if is_ring_buffer(map.spec.map_type) => {
                Some((map.held.id, &map.wakeup))
            }
            _ => None,
        }
    }
}

/// Gives numbers to the objects that the backend does not number: BTF, events, links.
pub(crate) struct Numbers {
    last: AtomicU32,
}

impl Numbers {
    pub(crate) fn next(&self) -> u32 {
        self.last.fetch_add(1, Ordering::Relaxed) + 1
    }
}

impl Default for Numbers {
    fn default() -> Self {
        Self {
            last: AtomicU32::new(Btf::KERNELS),
        }
    }
}

/// An object of the backend. Dropping this releases it.
pub(crate) struct Held {
    backend: Arc<dyn Backend>,
    pub(crate) id: Id,
}

impl Held {
    pub(crate) fn new(backend: &Arc<dyn Backend>, id: Id) -> Self {
        Held {
            backend: Arc::clone(backend),
            id,
        }
    }

    pub(crate) fn backend(&self) -> &dyn Backend {
        &*self.backend
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.backend.release(self.id);
    }
}

pub(crate) struct Map {
    pub(crate) held: Held,
    pub(crate) spec: MapSpec,
    /// The type information: the BTF, and the types of key and value in it.
    pub(crate) btf: Option<(Arc<Btf>, u32, u32)>,
    /// It exists in the kernel only: its descriptors are the kernel's, for the tool to work on.
    pub(crate) is_kernels: bool,
    pub(crate) frozen: AtomicBool,
    /// True once the tool has asked for a writable mapping.
    pub(crate) was_mapped_writable: AtomicBool,
    /// The objects that the elements of a map of objects keep alive.
    pub(crate) elements: ObjectElements,
    /// The number of descriptors that the tool has of it, as far as the table knows.
    pub(crate) uses: AtomicUsize,
    pub(crate) wakeup: Wakeup,
}

impl Map {
    /// Returns a new map of the session's.
    pub(crate) fn new(held: Held, spec: MapSpec) -> Self {
        Self {
            held,
            spec,
            btf: None,
            is_kernels: false,
            frozen: AtomicBool::new(false),
            was_mapped_writable: AtomicBool::new(false),
            elements: Default::default(),
            uses: Default::default(),
            wakeup: Default::default(),
        }
    }

    /// Returns whether its descriptors are its memory. A program array's are not: it matters when
    /// the last one is closed, and that shows on other descriptors.
    pub(crate) fn is_file(&self) -> bool {
        self.spec.map_type != MapType::PROG_ARRAY
    }

    pub(crate) fn is_frozen(&self) -> bool {
        self.frozen.load(Ordering::Acquire)
    }
}

pub(crate) struct ProgramObject {
    pub(crate) held: Held,
    pub(crate) name: String,
    pub(crate) prog_type: ProgramType,
    pub(crate) expected_attach_type: AttachType,
    /// The type in the kernel's BTF that it attaches to.
    pub(crate) attach_btf_id: u32,
    pub(crate) sleepable: bool,
    pub(crate) gpl: bool,
    pub(crate) btf: Option<Arc<Btf>>,
    /// The maps that it uses, which the tool may ask for by their ids as long as it lives.
    pub(crate) maps: Mutex<Vec<Arc<Map>>>,
    /// The `struct bpf_func_info` and `struct bpf_line_info` records, as the tool gave them.
    pub(crate) func_info: Vec<u8>,
    pub(crate) line_info: Vec<u8>,
    pub(crate) _charge: Charge,
    /// The time of loading, in nanoseconds since the machine started.
    pub(crate) loaded: u64,
    /// The user that loaded it.
    pub(crate) uid: u32,
}

impl ProgramObject {
    /// Returns the bytes from its context's start up to the furthest that any path of it looks at.
    pub(crate) fn context_end(&self) -> u32 {
        match self.held.backend().info(self.held.id) {
            Ok(Info::Program { context_end, .. }) => context_end,
            _ => 0,
        }
    }
}

pub(crate) struct Btf {
    /// The supervisor's own number; the backend has no BTF.
    pub(crate) id: u32,
    source: BtfSource,
    /// The charge for BTF that a tool has loaded.
    pub(crate) charge: Charge,
}

enum BtfSource {
    Tool(Arc<[u8]>),
    /// Some megabytes, read on first use.
    Kernel(OnceLock<Arc<[u8]>>),
}

impl Btf {
    /// The number of the kernel's own BTF, which is the first everywhere: tools go through all
    /// numbers to find it.
    pub(crate) const KERNELS: u32 = 1;
    const KERNELS_FILE: &str = "/sys/kernel/btf/vmlinux";

    /// Creates BTF that a tool has loaded.
    pub(crate) fn of_tool(id: u32, data: Vec<u8>) -> Self {
        let source = BtfSource::Tool(data.into());
        let charge = Charge::default();
        Self { id, source, charge }
    }

    /// Returns the running kernel's; `None` if it has none.
    pub(crate) fn of_kernel() -> Option<Self> {
        let is_there = std::fs::exists(Self::KERNELS_FILE).unwrap_or(false);
        is_there.then_some(Self {
            id: Self::KERNELS,
            source: BtfSource::Kernel(OnceLock::new()),
            charge: Charge::default(),
        })
    }

    pub(crate) fn is_kernels(&self) -> bool {
        matches!(self.source, BtfSource::Kernel(_))
    }

    pub(crate) fn data(&self) -> &Arc<[u8]> {
        let read = || std::fs::read(Self::KERNELS_FILE).unwrap_or_default().into();
        match &self.source {
            BtfSource::Tool(data) => data,
            BtfSource::Kernel(data) => data.get_or_init(read),
        }
    }

    /// Returns the name. Only the kernel's BTF has one.
    pub(crate) fn name(&self) -> &'static str {
        match self.source {
            BtfSource::Tool(_) => "",
            BtfSource::Kernel(_) => "vmlinux",
        }
    }
}

pub(crate) struct Ring {
    pub(crate) held: Held,
    pub(crate) wakeup: Wakeup,
    /// The number of data pages, once the tool has mapped it.
    pages: Mutex<Option<u32>>,
}

impl Ring {
    pub(crate) fn new(held: Held) -> Self {
        Ring {
            held,
            wakeup: Wakeup::default(),
            pages: Mutex::new(None),
        }
    }

    /// Calls `resize` the first time; after that the size is settled, and another is EINVAL.
    pub(crate) fn set_pages(
        &self,
        wanted: u32,
        resize: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let mut pages = self.pages.lock();
        match *pages {
            Some(settled) if settled != wanted => Err(Errno::EINVAL),
            Some(_) => Ok(()),
            None => {
                resize()?;
                *pages = Some(wanted);
                Ok(())
            }
        }
    }
}

/// The descriptor that the tool's epoll waits on in place of the object's. It lives as long as the
/// object, because epoll knows it by its number in this process.
#[derive(Default)]
pub(crate) struct Wakeup(OnceLock<OwnedFd>);

impl Wakeup {
    /// Returns the eventfd of `id`, which is requested once.
    pub(crate) fn get(&self, backend: &dyn Backend, id: Id) -> Result<&OwnedFd, Errno> {
        if let Some(fd) = self.0.get() {
            return Ok(fd);
        }
        let fd = backend.wakeup(id)?;
        Ok(self.0.get_or_init(|| fd))
    }
}

/// A link. Its program runs while it lives.
pub(crate) struct Link {
    /// The supervisor's own number: a disabled event has no link in the backend.
    pub(crate) id: u32,
    pub(crate) to: LinkTo,
    pub(crate) program: Arc<ProgramObject>,
    /// The value that `bpf_get_attach_cookie` returns.
    pub(crate) cookie: u64,
}

/// The destination of a link.
pub(crate) enum LinkTo {
    Event(Arc<Event>),
    /// A place that the program itself or the attaching call names.
    Place {
        point: AttachPoint,
        _held: Vec<Held>,
        _claim: Option<Claim>,
        _semaphores: SemaphoreUse,
    },
    /// A place in the host's kernel.
    Kernel(KernelLink),
}

/// The kernel's own link.
pub(crate) struct KernelLink {
    backend: Arc<dyn Backend>,
    kind: LinkType,
    /// Taken when it is dropped.
    fd: Option<OwnedFd>,
}

impl KernelLink {
    pub(crate) fn new(backend: &Arc<dyn Backend>, fd: OwnedFd) -> Result<Self, Errno> {
        let facts = beeline_kernel::link::facts(fd.as_fd()).map_err(errno)?;
        Ok(Self {
            backend: Arc::clone(backend),
            kind: facts.kind(),
            fd: Some(fd),
        })
    }

    /// Does something with the kernel's descriptor.
    pub(crate) fn with<T>(
        &self,
        work: impl FnOnce(BorrowedFd<'_>) -> io::Result<T>,
    ) -> Result<T, Errno> {
        let fd = self.fd.as_ref().ok_or(Errno::EBADF)?;
        work(fd.as_fd()).map_err(errno)
    }
}

impl Drop for KernelLink {
    fn drop(&mut self) {
        drop(self.fd.take());
        self.backend.kernel_link_closed();
    }
}

impl Link {
    pub(crate) fn link_type(&self) -> LinkType {
        match &self.to {
            LinkTo::Event(_) => LinkType::PERF_EVENT,
            LinkTo::Kernel(link) => link.kind,
            LinkTo::Place { point, .. } if Tracepoint::of_raw(point).is_some() => {
                LinkType::RAW_TRACEPOINT
            }
            LinkTo::Place {
                point: AttachPoint::UprobeMulti { .. },
                ..
            } => LinkType::UPROBE_MULTI,
            LinkTo::Place { .. } => LinkType::TRACING,
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let LinkTo::Event(event) = &self.to {
            event.clear_program();
        }
    }
}

/// A perf event with a place to attach to.
///
/// It is attached in the backend while it has a program, and is enabled or one of the kernel's. On
/// the kernel's, programs run whether or not their event is enabled, as enabling concerns the
/// event's own records.
pub(crate) struct Event {
    /// The supervisor's own number, which `PERF_EVENT_IOC_ID` returns.
    pub(crate) id: u32,
    backend: Arc<dyn Backend>,
    claims: Arc<Claims>,
    point: AttachPoint,
    /// More places of the same kind, which belong to the event.
    more: Vec<AttachPoint>,
    /// True if nothing ever happens at the place, so nothing is attached.
    idle: bool,
    _semaphores: SemaphoreUse,
    state: Mutex<EventState>,
}

struct EventState {
    enabled: bool,
    program: Option<(Arc<ProgramObject>, u64)>,
    /// Empty if there is no program, or if the program runs in the kernel.
    attached: Vec<Held>,
    claim: Option<Claim>,
    /// The kernel's event that runs the program in place of a timer here.
    kernels: Option<OwnedFd>,
}

impl Event {
    pub(crate) fn new(
        backend: &Arc<dyn Backend>,
        claims: &Arc<Claims>,
        id: u32,
        point: AttachPoint,
        enabled: bool,
    ) -> Self {
        let state = Mutex::new(EventState {
            enabled,
            program: None,
            attached: Vec::new(),
            claim: None,
            kernels: None,
        });
        Event {
            id,
            backend: Arc::clone(backend),
            claims: Arc::clone(claims),
            point,
            more: Vec::new(),
            idle: false,
            _semaphores: SemaphoreUse::default(),
            state,
        }
    }

    /// Turns it into an event of a place of the point's kind where nothing ever happens.
    pub(crate) fn idle(self) -> Self {
        Self { idle: true, ..self }
    }

    /// Has it keep the semaphores of its place.
    pub(crate) fn using(self, semaphores: SemaphoreUse) -> Self {
        Self {
            _semaphores: semaphores,
            ..self
        }
    }

    /// Adds places to the event.
    pub(crate) fn with(self, more: Vec<AttachPoint>) -> Self {
        Self { more, ..self }
    }

    pub(crate) fn point(&self) -> &AttachPoint {
        &self.point
    }

    /// Returns its program.
    pub(crate) fn program(&self) -> Option<Arc<ProgramObject>> {
        let state = self.state.lock();
        state
            .program
            .as_ref()
            .map(|(program, _)| Arc::clone(program))
    }

    /// Gives the event its program.
    ///
    /// Fails with EEXIST if it has one, or if another event of the same tracepoint has this
    /// program; with E2BIG if that tracepoint has too many; with EINVAL if the program does not fit
    /// the event; with EACCES if it looks beyond the context.
    ///
    /// `may_use_kernel`: a timer's program may run in the kernel if it belongs there.
    fn set_program(
        &self,
        program: &Arc<ProgramObject>,
        cookie: u64,
        may_use_kernel: bool,
    ) -> Result<(), Errno> {
        self.check_program(program)?;
        let is_timer = matches!(self.point, AttachPoint::Timer { .. });
        if is_timer && may_use_kernel && self.backend.takes_timer_in_kernel(program.held.id) {
            return self.begin_in_kernel(program, cookie);
        }
        let mut state = self.state.lock();
        if state.program.is_some() {
            return Err(Errno::EEXIST);
        }
        let claim = self.claims.claim(program.held.id, &self.point)?;
        if state.enabled || self.runs_disabled() {
            state.attached = self.attach(program, cookie)?;
        }
        state.claim = claim;
        state.program = Some((Arc::clone(program), cookie));
        Ok(())
    }

    /// Calls [`Self::set_program`], once objects that the tool closed before are out of the way.
    pub(crate) fn set_program_after_closes(
        &self,
        fds: &Descriptors,
        program: &Arc<ProgramObject>,
        cookie: u64,
        may_use_kernel: bool,
    ) -> Result<(), Errno> {
        let take = || self.set_program(program, cookie, may_use_kernel);
        match self.point {
            AttachPoint::SystemCall { .. } => fds.after_closes(take),
            // No other event can be in its way.
            _ => take(),
        }
    }

    fn check_program(&self, program: &ProgramObject) -> Result<(), Errno> {
        let fits = match self.point {
            AttachPoint::Uprobe { .. } | AttachPoint::UprobeMulti { .. } => ProgramType::KPROBE,
            AttachPoint::SystemCall {
                context: CallContext::Tracepoint,
                ..
            } => ProgramType::TRACEPOINT,
            // Only programs on user space may sleep.
            AttachPoint::SystemCall { .. } if program.sleepable => return Err(Errno::EINVAL),
            AttachPoint::SystemCall { .. } => ProgramType::KPROBE,
            AttachPoint::Timer { .. } => ProgramType::PERF_EVENT,
        };
        if program.prog_type != fits {
            return Err(Errno::EINVAL);
        }
        let end = Tracepoint::of_point(&self.point).map(|tracepoint| tracepoint.context_end());
        if end.is_some_and(|end| program.context_end() > end) {
            return Err(Errno::EACCES);
        }
        Ok(())
    }

    /// Returns whether its program runs while the event is disabled.
    fn runs_disabled(&self) -> bool {
        matches!(self.point, AttachPoint::SystemCall { .. })
    }

    /// Has the kernel run the program of a timer, as it runs it on other CPUs: it is a profiler's.
    pub(crate) fn move_to_kernel(&self, program: &ProgramObject) -> Result<(), Errno> {
        let mut state = self.state.lock();
        let AttachPoint::Timer { period } = self.point else {
            return Ok(());
        };
        let is_its = |(own, _): &(Arc<ProgramObject>, u64)| own.held.id == program.held.id;
        if state.kernels.is_some() || !state.program.as_ref().is_some_and(is_its) {
            return Ok(());
        }
        // Its maps must not be on both sides.
        state.attached.clear();
        state.kernels = Some(self.clock_in_kernel(period, state.enabled, program)?);
        Ok(())
    }

    /// Gives a timer that has no program yet one that the kernel runs.
    fn begin_in_kernel(&self, program: &Arc<ProgramObject>, cookie: u64) -> Result<(), Errno> {
        let mut state = self.state.lock();
        let AttachPoint::Timer { period } = self.point else {
            return Err(Errno::EINVAL);
        };
        if state.program.is_some() {
            return Err(Errno::EEXIST);
        }
        state.kernels = Some(self.clock_in_kernel(period, state.enabled, program)?);
        state.program = Some((Arc::clone(program), cookie));
        Ok(())
    }

    fn clock_in_kernel(
        &self,
        period: Duration,
        enabled: bool,
        program: &ProgramObject,
    ) -> Result<OwnedFd, Errno> {
        let event = events::clock(0, period, enabled).map_err(errno)?;
        host_kernel::attach(&*self.backend, program, |program| {
            events::set_program(event.as_fd(), program)
        })?;
        Ok(event)
    }

    /// Removes the program again.
    pub(crate) fn clear_program(&self) {
        let mut state = self.state.lock();
        state.kernels = None;
        state.attached.clear();
        state.claim = None;
        state.program = None;
    }

    pub(crate) fn enable(&self) -> Result<(), Errno> {
        let mut state = self.state.lock();
        if let Some(event) = &state.kernels {
            events::enable(event.as_fd(), true).map_err(errno)?;
            state.enabled = true;
            return Ok(());
        }
        if state.attached.is_empty()
            && let Some((program, cookie)) = &state.program
        {
            state.attached = self.attach(program, *cookie)?;
        }
        state.enabled = true;
        Ok(())
    }

    /// Detaches before it returns.
    pub(crate) fn disable(&self) {
        let mut state = self.state.lock();
        if let Some(event) = &state.kernels {
            let _ = events::enable(event.as_fd(), false); // It has been enabled before.
        }
        if !self.runs_disabled() {
            state.attached.clear();
        }
        state.enabled = false;
    }

    fn attach(&self, program: &ProgramObject, with_cookie: u64) -> Result<Vec<Held>, Errno> {
        if self.idle {
            return Ok(Vec::new());
        }
        let points = std::iter::once(&self.point).chain(&self.more);
        let attach = |point| attach(&self.backend, program, point, with_cookie);
        points.map(attach).collect()
    }
}

/// Attaches a program in the backend.
pub(crate) fn attach(
    backend: &Arc<dyn Backend>,
    program: &ProgramObject,
    point: &AttachPoint,
    with_cookie: u64,
) -> Result<Held, Errno> {
    let mut point = point.clone();
    if let AttachPoint::Uprobe { cookie, .. } | AttachPoint::SystemCall { cookie, .. } = &mut point
    {
        *cookie = with_cookie;
    }
    let link = backend.attach(program.held.id, &point)?;
    Ok(Held::new(backend, link))
}

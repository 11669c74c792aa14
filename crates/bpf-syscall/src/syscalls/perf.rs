//! `perf_event_open`, and `ioctl` on the descriptors that it returns.

mod ioctl;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use beeline_runtime::backend::{AttachPoint, Backend, CallContext, Edge};
use beeline_supervisor::attr::{PerfAttr, Sampling};
use beeline_supervisor::{Answer, Call, Reply};
use beeline_uapi::limits::KSYM_NAME_LEN;
use beeline_uapi::perf::*;
use beeline_uapi::{Errno, ProgramType};

use super::descriptors::NewDescriptors;
use crate::claims::Claims;
use crate::event_types::EventTypes;
use crate::fds::Descriptors;
use crate::functions::{self, Leading};
use crate::host_kernel;
use crate::local::Local;
use crate::objects::{Event, Held, Numbers, Object, Ring};
use crate::refused::{NOT_YET, by_kernel_only, event_name};
use crate::semaphores::Semaphores;
use crate::syscall_table::SystemCall;
use crate::tracefs::MOUNTS;
use crate::tracepoints::{KernelIds, Tracepoint};

pub(super) use ioctl::PerfIoctl;

const ALL_FLAGS: u64 =
    PERF_FLAG_FD_NO_GROUP | PERF_FLAG_FD_OUTPUT | PERF_FLAG_PID_CGROUP | PERF_FLAG_FD_CLOEXEC;

/// A `perf_event_open` after its attribute is read.
struct Wanted {
    attr: PerfAttr,
    pid: i32,
    cpu: i32,
    cloexec: bool,
}

/// Opens perf events.
pub(super) struct PerfEvents<'a> {
    call: &'a Call<'a>,
    backend: &'a Arc<dyn Backend>,
    claims: &'a Arc<Claims>,
    semaphores: &'a Arc<Semaphores>,
    fds: &'a Descriptors,
    event_types: &'a EventTypes,
    tracepoint_ids: &'a KernelIds,
    numbers: &'a Numbers,
    kprobe_refused: &'a AtomicBool,
    descriptors: NewDescriptors<'a>,
}

impl<'a> PerfEvents<'a> {
    pub(super) fn new(local: &'a Local, call: &'a Call<'a>) -> Self {
        Self {
            call,
            backend: &local.backend,
            claims: &local.claims,
            semaphores: &local.semaphores,
            fds: &local.fds,
            event_types: &local.event_types,
            tracepoint_ids: &local.tracepoint_ids,
            numbers: &local.numbers,
            kprobe_refused: &local.kprobe_refused,
            descriptors: NewDescriptors::new(local, call),
        }
    }

    /// Answers `perf_event_open(attribute, process, cpu, group, flags)`.
    pub(super) fn open(&self) -> Answer {
        let [attr, pid, cpu, _group, flags, _] = self.call.args;
        if flags & !ALL_FLAGS != 0 {
            return Err(Errno::EINVAL);
        }
        let wanted = Wanted {
            attr: self.perf_attr(attr)?,
            pid: pid as i32,
            cpu: cpu as i32,
            cloexec: flags & PERF_FLAG_FD_CLOEXEC != 0,
        };
        if self.is_plain(&wanted.attr) {
            return Ok(Reply::Continue);
        }
        if flags & PERF_FLAG_PID_CGROUP != 0 {
            return self.in_kernel(|| "perf events of a cgroup".to_owned(), Errno::EINVAL);
        }
        self.check_place(&wanted)?;
        let (kind, config) = (wanted.attr.event_type, wanted.attr.config);
        match kind {
            PERF_TYPE_SOFTWARE if config == PERF_COUNT_SW_BPF_OUTPUT => self.open_ring(&wanted),
            PERF_TYPE_SOFTWARE if config == PERF_COUNT_SW_CPU_CLOCK => self.open_timer(&wanted),
            PERF_TYPE_TRACEPOINT => self.open_tracepoint(&wanted),
            PERF_TYPE_BREAKPOINT => self.in_kernel(|| "watchpoints".to_owned(), Errno::EOPNOTSUPP),
            kind if kind == self.event_types.uprobe => self.open_uprobe(&wanted),
            kind if kind == self.event_types.kprobe => self.open_kprobe(&wanted),
            kind => self.in_kernel(|| event_name(kind, config), Errno::ENOENT),
        }
    }

    /// Returns whether the kernel opens an event as if Beeline were not there: one that counts or
    /// samples, as perf(1) does, and that gets no program. The tool has no program for such events
    /// then; what else may be one of Beeline's timers says itself that it is read.
    fn is_plain(&self, attr: &PerfAttr) -> bool {
        let kind = attr.event_type;
        let is_counter = match (kind, attr.config) {
            (PERF_TYPE_SOFTWARE, PERF_COUNT_SW_BPF_OUTPUT) | (PERF_TYPE_TRACEPOINT, _) => false,
            (PERF_TYPE_SOFTWARE, PERF_COUNT_SW_CPU_CLOCK) => attr.is_read,
            _ => kind != self.event_types.uprobe && kind != self.event_types.kprobe,
        };
        is_counter && !self.fds.has_program_of(ProgramType::PERF_EVENT)
    }

    fn perf_attr(&self, address: u64) -> Result<PerfAttr, Errno> {
        let size_address = address
            .checked_add(PerfAttr::SIZE_AT)
            .ok_or(Errno::EFAULT)?;
        let size = self.call.memory.read_u32(size_address)?;
        let parsed = PerfAttr::len(size)
            .and_then(|len| PerfAttr::parse(&self.call.memory.bytes(address, len)?));
        if parsed == Err(Errno::E2BIG) {
            // Tells the tool the size that is known here.
            self.call.memory.write_u32(size_address, PerfAttr::SIZE)?;
        }
        parsed
    }

    /// Checks the place: everything on one CPU, or one process anywhere; both must exist.
    fn check_place(&self, wanted: &Wanted) -> Result<(), Errno> {
        let Wanted { pid, cpu, .. } = *wanted;
        if pid < -1 || cpu < -1 || (pid == -1 && cpu == -1) {
            return Err(Errno::EINVAL);
        }
        if u32::try_from(cpu).is_ok_and(|cpu| cpu >= self.backend.cpus()) {
            return Err(Errno::EINVAL);
        }
        if pid > 0 && !Path::new(&format!("/proc/{pid}")).exists() {
            return Err(Errno::ESRCH);
        }
        Ok(())
    }

    fn open_ring(&self, wanted: &Wanted) -> Answer {
        let (-1, Ok(cpu)) = (wanted.pid, u32::try_from(wanted.cpu)) else {
            let what = by_kernel_only("perf buffers of one process", NOT_YET);
            return self.unsupported_event(&what, Errno::EOPNOTSUPP);
        };
        let ring = Held::new(self.backend, self.backend.perf_ring_create(cpu)?);
        if !wanted.attr.disabled {
            self.backend.perf_ring_enable(ring.id, true)?;
        }
        self.event_descriptor(Object::Ring(Arc::new(Ring::new(ring))), wanted)
    }

    /// Opens the CPU clock. On the first CPU it is a timer to tools; on each, a profiler. When the
    /// second CPU's event gets the same program, the first one's moves to the kernel, too.
    fn open_timer(&self, wanted: &Wanted) -> Answer {
        if wanted.cpu != 0 || wanted.pid != -1 {
            return self.in_kernel(|| "profile probes".to_owned(), Errno::EOPNOTSUPP);
        }
        let nanoseconds = match wanted.attr.sampling {
            Sampling::Period(period) => Some(period),
            Sampling::Frequency(hertz) => 1_000_000_000u64.checked_div(hertz),
        };
        // The kernel would count without ever running a program.
        let period = nanoseconds
            .filter(|&period| period > 0)
            .map(Duration::from_nanos)
            .ok_or(Errno::EINVAL)?;
        self.open_event(AttachPoint::Timer { period }, wanted)
    }

    fn open_uprobe(&self, wanted: &Wanted) -> Answer {
        if wanted.attr.config1 == 0 {
            return Err(Errno::EINVAL);
        }
        let path = self
            .call
            .memory
            .string(wanted.attr.config1, libc::PATH_MAX as usize)?;
        let own = self.call.process()?;
        let pid = match wanted.pid {
            -1 => None,
            0 => Some(own),
            pid => Some(pid),
        };
        if pid == Some(own) {
            let what = format!(
                "process {own}: the tool cannot trace itself, as it waits for Beeline while a program is attached; \
                 probe another process"
            );
            return self.unsupported_event(&what, Errno::EOPNOTSUPP);
        }
        let point = AttachPoint::Uprobe {
            path: self.call.path_as_seen_here(path)?,
            offset: wanted.attr.config2,
            retprobe: wanted.attr.config & PERF_PROBE_CONFIG_IS_RETPROBE != 0,
            pid,
            cookie: 0,
            semaphore: wanted.attr.config >> PERF_UPROBE_REF_CTR_OFFSET_SHIFT,
        };
        self.open_event(point, wanted)
    }

    /// Opens a tracepoint by its number. Its program runs regardless of the event's process and
    /// CPU, as in the kernel.
    fn open_tracepoint(&self, wanted: &Wanted) -> Answer {
        let id = wanted.attr.config;
        let served = Tracepoint::with_own_id(id).or_else(|| self.tracepoint_ids.find(id));
        let served = served.filter(|_| !self.system_calls_are_kernels());
        if let Some(tracepoint) = served {
            return self.open_event(tracepoint.point(), wanted);
        }
        let (name, errno) = match tracepoint_name(id) {
            Some(name) => (name, Errno::ENOENT),
            None => (format!("tracepoint with id {id}"), Errno::EINVAL),
        };
        self.in_kernel(|| name, errno)
    }

    /// Opens a probe on a function of the kernel's. Functions that are the entries of system calls
    /// are served.
    fn open_kprobe(&self, wanted: &Wanted) -> Answer {
        const LONGEST: usize = KSYM_NAME_LEN - 1;
        let PerfAttr {
            config,
            config1,
            config2,
            ..
        } = wanted.attr;
        let name = match config1 {
            0 => format!("{config2:#x}"),
            name => functions::printable(&self.call.memory.string(name, LONGEST)?),
        };
        let edge = match config & PERF_PROBE_CONFIG_IS_RETPROBE {
            0 => Edge::Enter,
            _ => Edge::Exit,
        };
        let points = match self.system_calls_are_kernels() {
            true => Vec::new(),
            false => kprobe_points(&name, edge),
        };
        let is_idle = points.is_empty() && SystemCall::is_never_called(&name);
        match points.split_first() {
            Some(_) if config2 != 0 => {
                self.in_kernel(|| format!("kprobe:{name}+{config2:#x}"), Errno::ENOENT)
            }
            Some((point, more)) => {
                self.backend.attach_check(point)?;
                let event = self.new_event(point.clone(), wanted).with(more.into());
                self.event_descriptor(Object::Event(Arc::new(event)), wanted)
            }
            None if is_idle => {
                let event = self.new_event(at_call(None, edge, CallContext::Probe), wanted);
                self.event_descriptor(Object::Event(Arc::new(event.idle())), wanted)
            }
            None => {
                let what = || {
                    self.kprobe_refused.store(true, Ordering::Relaxed);
                    format!("kprobe:{name}{}", functions::advice(&name))
                };
                match self.event_types.has_kprobes() {
                    true => self.in_kernel(what, Errno::ENOENT),
                    false => {
                        let what = by_kernel_only(&what(), "this machine's has no kprobes");
                        self.unsupported_event(&what, Errno::ENOENT)
                    }
                }
            }
        }
    }

    fn open_event(&self, point: AttachPoint, wanted: &Wanted) -> Answer {
        self.backend.attach_check(&point)?;
        let semaphores = self.semaphores.take(self.fds, &point)?;
        let event = self.new_event(point, wanted).using(semaphores);
        self.event_descriptor(Object::Event(Arc::new(event)), wanted)
    }

    fn new_event(&self, point: AttachPoint, wanted: &Wanted) -> Event {
        let number = self.numbers.next();
        let enabled = !wanted.attr.disabled;
        Event::new(self.backend, self.claims, number, point, enabled)
    }

    fn event_descriptor(&self, object: Object, wanted: &Wanted) -> Answer {
        match self.descriptors.first(object)? {
            Reply::Descriptor { file, .. } => Ok(Reply::Descriptor {
                file,
                cloexec: wanted.cloexec,
            }),
            other => Ok(other),
        }
    }

    /// Returns whether programs at system calls run in the kernel, which the tool may ask.
    fn system_calls_are_kernels(&self) -> bool {
        host_kernel::runs_system_calls(&**self.backend, self.call.tid)
    }

    /// Has the kernel open an event of its own for the tool, or refuses it where that may not be.
    fn in_kernel(&self, what: impl FnOnce() -> String, errno: Errno) -> Answer {
        match host_kernel::refusal(&**self.backend, self.call.tid) {
            None => Ok(Reply::Continue),
            Some(why) => self.unsupported_event(&by_kernel_only(&what(), &why), errno),
        }
    }

    fn unsupported_event(&self, what: &str, errno: Errno) -> Answer {
        self.backend.unsupported(what);
        Err(errno)
    }
}

/// Returns the system calls that a probe on a function of the kernel's stands for; none if it is
/// not served.
fn kprobe_points(function: &str, edge: Edge) -> Vec<AttachPoint> {
    if let Some(call) = SystemCall::of_function(function) {
        return vec![at_call(Some(call.number), edge, CallContext::Probe)];
    }
    let leading = functions::leading_to(function).into_iter();
    let point = |one: Leading| {
        let context = CallContext::FunctionProbe(one.function);
        at_call(Some(one.number), edge, context)
    };
    leading.map(point).collect()
}

fn at_call(number: Option<u32>, edge: Edge, context: CallContext) -> AttachPoint {
    AttachPoint::SystemCall {
        number,
        edge,
        context,
        cookie: 0,
    }
}

/// Returns the name of the tracepoint with an id for the user, if tracefs has it.
fn tracepoint_name(id: u64) -> Option<String> {
    MOUNTS.into_iter().find_map(|mount| {
        let groups = std::fs::read_dir(Path::new(mount).join("events"))
            .ok()?
            .flatten();
        let mut tracepoints = groups
            .filter_map(|group| std::fs::read_dir(group.path()).ok())
            .flat_map(|group| group.flatten());
        let found = tracepoints.find(|tracepoint| {
            let text = std::fs::read_to_string(tracepoint.path().join("id")).unwrap_or_default();
            text.trim().parse() == Ok(id)
        })?;
        let path = found.path();
        let group = path.parent()?.file_name()?.to_string_lossy().into_owned();
        Some(format!(
            "tracepoint:{group}:{}",
            found.file_name().to_string_lossy()
        ))
    })
}

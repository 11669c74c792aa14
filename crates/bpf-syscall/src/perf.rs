//! `perf_event_open`, and `ioctl` on the descriptors that it returns.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use beeline_runtime::backend::{AttachPoint, CallContext, Edge};
use beeline_supervisor::attr::{PerfAttr, Sampling};
use beeline_supervisor::{Answer, Reply};
use beeline_uapi::Errno;
use beeline_uapi::perf::*;

use crate::functions::{self, Leading};
use crate::local::Handler;
use crate::objects::{Event, Held, Object, Ring};
use crate::syscall_table::SystemCall;
use crate::sysfs::printable;
use crate::tracefs::MOUNTS;
use crate::tracepoints::Tracepoint;

const EINVAL: Errno = Errno(libc::EINVAL);
const ENOENT: Errno = Errno(libc::ENOENT);
const ESRCH: Errno = Errno(libc::ESRCH);
const EOPNOTSUPP: Errno = Errno(libc::EOPNOTSUPP);
const EFAULT: Errno = Errno(libc::EFAULT);

const ALL_FLAGS: u64 =
    PERF_FLAG_FD_NO_GROUP | PERF_FLAG_FD_OUTPUT | PERF_FLAG_PID_CGROUP | PERF_FLAG_FD_CLOEXEC;

/// A bit of a probe's configuration: `PERF_PROBE_CONFIG_IS_RETPROBE`.
const RETPROBE: u64 = 1;

/// A `perf_event_open` after its attribute is read.
struct Wanted {
    attr: PerfAttr,
    pid: i32,
    cpu: i32,
    cloexec: bool,
}

impl Handler<'_> {
    pub(crate) fn perf_event_open(&self) -> Answer {
        let [attr, pid, cpu, _group, flags, _] = self.args;
        if flags & !ALL_FLAGS != 0 {
            return Err(EINVAL);
        }
        let wanted = Wanted {
            attr: self.perf_attr(attr)?,
            pid: pid as i32,
            cpu: cpu as i32,
            cloexec: flags & PERF_FLAG_FD_CLOEXEC != 0,
        };
        if flags & PERF_FLAG_PID_CGROUP != 0 {
            return self.unsupported_event("perf events of a cgroup", EINVAL);
        }
        self.check_place(&wanted)?;
        let (kind, config) = (wanted.attr.event_type, wanted.attr.config);
        match kind {
            PERF_TYPE_SOFTWARE if config == PERF_COUNT_SW_BPF_OUTPUT => self.open_ring(&wanted),
            PERF_TYPE_SOFTWARE if config == PERF_COUNT_SW_CPU_CLOCK => self.open_timer(&wanted),
            PERF_TYPE_SOFTWARE => {
                self.unsupported_event(&format!("software event {config}"), ENOENT)
            }
            PERF_TYPE_TRACEPOINT => self.open_tracepoint(&wanted),
            PERF_TYPE_HARDWARE => {
                self.unsupported_event(&format!("hardware event {config}"), ENOENT)
            }
            PERF_TYPE_BREAKPOINT => self.unsupported_event("watchpoints", EOPNOTSUPP),
            kind if kind == self.local.event_types.uprobe => self.open_uprobe(&wanted),
            kind if kind == self.local.event_types.kprobe => self.open_kprobe(&wanted),
            kind => self.unsupported_event(&format!("perf events of type {kind}"), ENOENT),
        }
    }

    fn perf_attr(&self, address: u64) -> Result<PerfAttr, Errno> {
        let size_address = address.checked_add(PerfAttr::SIZE_AT).ok_or(EFAULT)?;
        let size = self.memory.read_u32(size_address)?;
        let parsed =
            PerfAttr::len(size).and_then(|len| PerfAttr::parse(&self.memory.bytes(address, len)?));
        if parsed == Err(Errno(libc::E2BIG)) {
            // Tells the tool the size that is known here.
            self.memory.write_u32(size_address, PerfAttr::SIZE)?;
        }
        parsed
    }

    /// Checks the place: everything on one CPU, or one process anywhere; both must exist.
    fn check_place(&self, wanted: &Wanted) -> Result<(), Errno> {
        let Wanted { pid, cpu, .. } = *wanted;
        if pid < -1 || cpu < -1 || (pid == -1 && cpu == -1) {
            return Err(EINVAL);
        }
        if u32::try_from(cpu).is_ok_and(|cpu| cpu >= self.local.backend.cpus()) {
            return Err(EINVAL);
        }
        if pid > 0 && !Path::new(&format!("/proc/{pid}")).exists() {
            return Err(ESRCH);
        }
        Ok(())
    }

    fn open_ring(&self, wanted: &Wanted) -> Answer {
        let (-1, Ok(cpu)) = (wanted.pid, u32::try_from(wanted.cpu)) else {
            return self.unsupported_event("perf buffers of one process", EOPNOTSUPP);
        };
        let ring = Held::new(
            &self.local.backend,
            self.local.backend.perf_ring_create(cpu)?,
        );
        self.event_descriptor(Object::Ring(Arc::new(Ring::new(ring))), wanted)
    }

    /// Opens the CPU clock. On the first CPU it is a timer to tools; on each, a profiler.
    fn open_timer(&self, wanted: &Wanted) -> Answer {
        if wanted.cpu != 0 || wanted.pid != -1 {
            return self.unsupported_event("profile probes", EOPNOTSUPP);
        }
        let nanoseconds = match wanted.attr.sampling {
            Sampling::Period(period) => Some(period),
            Sampling::Frequency(hertz) => 1_000_000_000u64.checked_div(hertz),
        };
        // The kernel would count without ever running a program.
        let period = nanoseconds
            .filter(|&period| period > 0)
            .map(Duration::from_nanos)
            .ok_or(EINVAL)?;
        self.open_event(AttachPoint::Timer { period }, wanted)
    }

    fn open_uprobe(&self, wanted: &Wanted) -> Answer {
        const COUNTER_SHIFT: u32 = 32;
        if wanted.attr.config >> COUNTER_SHIFT != 0 {
            return self.unsupported_event("USDT probes with a semaphore", EINVAL);
        }
        if wanted.attr.config1 == 0 {
            return Err(EINVAL);
        }
        let path = self
            .memory
            .string(wanted.attr.config1, libc::PATH_MAX as usize)?;
        let point = AttachPoint::Uprobe {
            path: self.path_as_seen_here(path)?,
            offset: wanted.attr.config2,
            retprobe: wanted.attr.config & RETPROBE != 0,
            pid: match wanted.pid {
                -1 => None,
                0 => Some(self.process()?),
                pid => Some(pid),
            },
            cookie: 0,
        };
        self.open_event(point, wanted)
    }

    /// Opens a tracepoint by its number. Its program runs regardless of the event's process and
    /// CPU, as in the kernel.
    fn open_tracepoint(&self, wanted: &Wanted) -> Answer {
        let id = wanted.attr.config;
        let served = Tracepoint::with_own_id(id).or_else(|| self.local.tracepoint_ids.find(id));
        if let Some(tracepoint) = served {
            return self.open_event(tracepoint.point(), wanted);
        }
        match tracepoint_name(id) {
            Some(name) => self.unsupported_event(&name, ENOENT),
            None => self.unsupported_event(&format!("tracepoint with id {id}"), EINVAL),
        }
    }

    /// Opens a probe on a function of the kernel's. Functions that are the entries of system calls
    /// are served.
    fn open_kprobe(&self, wanted: &Wanted) -> Answer {
        const LONGEST: usize = 511;
        let PerfAttr {
            config,
            config1,
            config2,
            ..
        } = wanted.attr;
        let name = match config1 {
            0 => format!("{config2:#x}"),
            name => printable(Ok(self.memory.string(name, LONGEST)?)),
        };
        let at = |number, context| AttachPoint::SystemCall {
            number,
            edge: match config & RETPROBE {
                0 => Edge::Enter,
                _ => Edge::Exit,
            },
            context,
            cookie: 0,
        };
        let of_function = |one: Leading| {
            let context = CallContext::FunctionProbe(one.function);
            at(Some(one.number), context)
        };
        let points: Vec<_> = match SystemCall::of_function(&name) {
            Some(call) => vec![at(Some(call.number), CallContext::Probe)],
            None => functions::leading_to(&name)
                .into_iter()
                .map(of_function)
                .collect(),
        };
        let is_idle = points.is_empty() && SystemCall::is_never_called(&name);
        match points.split_first() {
            Some(_) if config2 != 0 => {
                self.unsupported_event(&format!("kprobe:{name}+{config2:#x}"), ENOENT)
            }
            Some((point, more)) => {
                self.local.backend.attach_check(point)?;
                let event = self.new_event(point.clone(), wanted).with(more.into());
                self.event_descriptor(Object::Event(Arc::new(event)), wanted)
            }
            None if is_idle => {
                let event = self.new_event(at(None, CallContext::Probe), wanted);
                self.event_descriptor(Object::Event(Arc::new(event.idle())), wanted)
            }
            None => {
                let advice = functions::advice(&name);
                self.unsupported_event(&format!("kprobe:{name}{advice}"), ENOENT)
            }
        }
    }

    fn open_event(&self, point: AttachPoint, wanted: &Wanted) -> Answer {
        self.local.backend.attach_check(&point)?;
        let event = self.new_event(point, wanted);
        self.event_descriptor(Object::Event(Arc::new(event)), wanted)
    }

    fn new_event(&self, point: AttachPoint, wanted: &Wanted) -> Event {
        let number = self.local.fds.new_number();
        let (backend, claims) = (&self.local.backend, &self.local.claims);
        Event::new(backend, claims, number, point, !wanted.attr.disabled)
    }

    fn event_descriptor(&self, object: Object, wanted: &Wanted) -> Answer {
        match self.descriptor(object)? {
            Reply::Descriptor { file, .. } => Ok(Reply::Descriptor {
                file,
                cloexec: wanted.cloexec,
            }),
            other => Ok(other),
        }
    }

    fn unsupported_event(&self, what: &str, errno: Errno) -> Answer {
        self.local.backend.unsupported(what);
        Err(errno)
    }

    /// Answers `ioctl(descriptor, command, argument)` with a command of perf events.
    pub(crate) fn ioctl(&self) -> Answer {
        let [fd, command, argument, ..] = self.args;
        let command = command as u32;
        match self.local.fds.find(self.tid, fd as i32) {
            Ok(Some(Object::Event(event))) => self.event_ioctl(&event, command, argument),
            Ok(Some(Object::Ring(ring))) => self.ring_ioctl(&ring, command, argument),
            _ => Ok(Reply::Continue),
        }
    }

    fn event_ioctl(&self, event: &Event, command: u32, argument: u64) -> Answer {
        match command {
            ioc::SET_BPF => {
                let program = self.local.fds.program(self.tid, argument as i32)?;
                self.set_program(event, &program, 0)?;
            }
            ioc::ENABLE => event.enable()?,
            ioc::DISABLE => event.disable(),
            ioc::RESET => {}
            ioc::ID => self.write_event_id(argument, event.id)?,
            _ => return Err(not_for_this(command)),
        }
        Ok(Reply::Value(0))
    }

    fn ring_ioctl(&self, ring: &Ring, command: u32, argument: u64) -> Answer {
        let enable = |on| self.local.backend.perf_ring_enable(ring.held.id, on);
        match command {
            ioc::ENABLE => enable(true)?,
            ioc::DISABLE => enable(false)?,
            ioc::PAUSE_OUTPUT => enable(argument == 0)?,
            ioc::RESET => {}
            ioc::ID => self.write_event_id(argument, ring.held.id.0)?,
            _ => return Err(not_for_this(command)),
        }
        Ok(Reply::Value(0))
    }

    fn write_event_id(&self, address: u64, id: u32) -> Result<(), Errno> {
        self.memory.write(address, &u64::from(id).to_ne_bytes())
    }
}

/// Returns the kernel's error for a command that it knows, or for one that it does not.
fn not_for_this(command: u32) -> Errno {
    match command {
        ioc::REFRESH
        | ioc::PERIOD
        | ioc::SET_BPF
        | ioc::SET_OUTPUT
        | ioc::SET_FILTER
        | ioc::PAUSE_OUTPUT
        | ioc::QUERY_BPF
        | ioc::MODIFY_ATTRIBUTES => EINVAL,
        _ => Errno(libc::ENOTTY),
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

//! `BPF_LINK_CREATE` and `BPF_RAW_TRACEPOINT_OPEN`: attach programs for as long as a descriptor
//! lives.

mod elsewhere;
mod uprobe_multi;

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use beeline_btf::Btf;
use beeline_kernel::attach as kernels;
use beeline_runtime::backend::{AttachPoint, Backend, CallContext, Edge};
use beeline_supervisor::attr::BpfAttr;
use beeline_supervisor::{Answer, Call, Memory, Reply};
use beeline_uapi::attr as uapi;
use beeline_uapi::limits::LONGEST_RAW_TRACEPOINT_NAME;
use beeline_uapi::tracepoint::RawSyscallArgs;
use beeline_uapi::{AttachType, Errno, ProgramType};

use super::attr::{LinkCreate, RawTracepointOpen};
use super::descriptors::NewDescriptors;
use crate::claims::Claims;
use crate::fds::ThreadFds;
use crate::functions;
use crate::host_kernel;
use crate::local::Local;
use crate::objects::{KernelLink, Link, LinkTo, Numbers, Object, ProgramObject, attach};
use crate::refused::by_kernel_only;
use crate::semaphores::Semaphores;
use crate::syscall_table::SystemCall;
use crate::tracepoints::Tracepoint;

/// Types of programs that attach to functions of the kernel, or of other programs.
const KERNELS_OWN: [ProgramType; 2] = [ProgramType::EXT, ProgramType::LSM];

/// Types of programs that are attached to perf events.
const OF_EVENTS: [ProgramType; 3] = [
    ProgramType::KPROBE,
    ProgramType::TRACEPOINT,
    ProgramType::PERF_EVENT,
];

/// Attach types of programs for many functions at once.
const MULTI: [AttachType; 4] = [
    AttachType::TRACE_KPROBE_MULTI,
    AttachType::TRACE_KPROBE_SESSION,
    AttachType::TRACE_UPROBE_MULTI,
    AttachType::TRACE_UPROBE_SESSION,
];

/// The bytes of context of both raw tracepoints on system calls.
const RAW_CONTEXT: u32 = size_of::<RawSyscallArgs>() as u32;

/// Returns whether links of a type are to what only a kernel has: cgroups, devices, sockets,
/// iterators. Links of several probes are not among them: tools look whether they are there, and
/// use others where they are not.
fn is_kernels(kind: AttachType) -> bool {
    let is_probes = matches!(
        kind,
        AttachType::PERF_EVENT
            | AttachType::TRACE_RAW_TP
            | AttachType::TRACE_FENTRY
            | AttachType::TRACE_FEXIT
            | AttachType::MODIFY_RETURN
            | AttachType::TRACE_KPROBE_MULTI
            | AttachType::TRACE_KPROBE_SESSION
            | AttachType::TRACE_UPROBE_MULTI
            | AttachType::TRACE_UPROBE_SESSION
    );
    kind.name().is_some() && !is_probes
}

/// Links programs to places.
pub(super) struct Links<'a> {
    memory: Memory<'a>,
    backend: &'a Arc<dyn Backend>,
    fds: ThreadFds<'a>,
    claims: &'a Arc<Claims>,
    semaphores: &'a Arc<Semaphores>,
    numbers: &'a Numbers,
    descriptors: NewDescriptors<'a>,
}

impl<'a> Links<'a> {
    pub(super) fn new(local: &'a Local, call: &'a Call<'a>) -> Self {
        Self {
            memory: call.memory,
            backend: &local.backend,
            fds: local.fds.of(call.tid),
            claims: &local.claims,
            semaphores: &local.semaphores,
            numbers: &local.numbers,
            descriptors: NewDescriptors::new(local, call),
        }
    }

    /// Carries out `BPF_LINK_CREATE`.
    pub(super) fn create(&self, call: &Call<'_>, attr: &BpfAttr) -> Answer {
        let wanted = LinkCreate::parse(attr)?;
        let program = self.fds.program(wanted.prog_fd)?;
        match wanted.attach_type {
            // A program for many places can be attached in no other way.
            kind if MULTI.contains(&program.expected_attach_type)
                && kind != program.expected_attach_type =>
            {
                Err(Errno::EINVAL)
            }
            AttachType::PERF_EVENT
                if wanted.flags == 0 && OF_EVENTS.contains(&program.prog_type) =>
            {
                self.link_event(call, program, &wanted)
            }
            kind @ (AttachType::TRACE_RAW_TP
            | AttachType::TRACE_FENTRY
            | AttachType::TRACE_FEXIT
            | AttachType::MODIFY_RETURN)
                if program.prog_type == ProgramType::TRACING
                    && program.expected_attach_type == kind =>
            {
                let names_other_target = wanted.target_fd != 0 || wanted.target_btf_id != 0;
                if kind != AttachType::TRACE_RAW_TP && names_other_target {
                    return Err(Errno::EINVAL);
                }
                self.link_traced(program, wanted.tracing_cookie)
            }
            kind if is_kernels(kind) => self.link_elsewhere(call, attr, program),
            AttachType::TRACE_UPROBE_MULTI if program.prog_type == ProgramType::KPROBE => {
                self.link_uprobes(call, program, &wanted.uprobes)
            }
            // This includes links of many kprobes (BPF_TRACE_KPROBE_MULTI) and sessions of uprobes:
            // tools that probe for them conclude that this kernel has none.
            _ => Err(Errno::EINVAL),
        }
    }

    fn link_event(
        &self,
        call: &Call<'_>,
        program: Arc<ProgramObject>,
        wanted: &LinkCreate,
    ) -> Answer {
        let is_kernels = self.fds.find(wanted.target_fd)?.is_none();
        if is_kernels && host_kernel::refusal(&**self.backend, self.fds.tid).is_none() {
            self.fds.table.move_timers_to_kernel(&program)?;
            let event = host_kernel::tools_event(call, wanted.target_fd)?;
            return self.link_in_kernel(program, wanted.cookie, |program| {
                kernels::link_to_event(program, event.as_fd(), wanted.cookie)
            });
        }
        let event = self.fds.event(wanted.target_fd)?;
        let may_use_kernel = host_kernel::refusal(&**self.backend, self.fds.tid).is_none();
        event.set_program_after_closes(self.fds.table, &program, wanted.cookie, may_use_kernel)?;
        let link = Link {
            id: self.numbers.next(),
            to: LinkTo::Event(event),
            program,
            cookie: wanted.cookie,
        };
        self.descriptors.first(Object::Link(Arc::new(link)))
    }

    /// Carries out `BPF_LINK_DETACH`, which most kinds of links do not have.
    pub(super) fn detach(&self, attr: &BpfAttr) -> Answer {
        let wanted: uapi::LinkDetach = attr.ends_at(size_of::<uapi::LinkDetach>())?.view();
        match self.fds.find(wanted.link_fd)? {
            Some(Object::Link(link)) => match &link.to {
                LinkTo::Kernel(link) => link.with(beeline_kernel::link::detach)?,
                LinkTo::Event(_) | LinkTo::Place { .. } => return Err(Errno::EOPNOTSUPP),
            },
            _ => return Err(Errno::EINVAL),
        }
        Ok(Reply::Value(0))
    }

    /// Carries out `BPF_RAW_TRACEPOINT_OPEN`.
    pub(super) fn open_raw_tracepoint(&self, attr: &BpfAttr) -> Answer {
        let wanted = RawTracepointOpen::parse(attr)?;
        let program = self.fds.program(wanted.prog_fd)?;
        match program.prog_type {
            kind if kind == ProgramType::TRACING || KERNELS_OWN.contains(&kind) => {
                // The place to attach to was given when the program was loaded.
                if wanted.name != 0 {
                    return Err(Errno::EINVAL);
                }
                self.link_traced(program, wanted.cookie)
            }
            ProgramType::RAW_TRACEPOINT => {
                let name = functions::printable(
                    &self
                        .memory
                        .string(wanted.name, LONGEST_RAW_TRACEPOINT_NAME)?,
                );
                self.link_raw_tracepoint(program, &name, wanted.cookie)
            }
            _ => Err(Errno::EINVAL),
        }
    }

    /// Links a program that attaches to a type in the kernel's BTF.
    fn link_traced(&self, program: Arc<ProgramObject>, cookie: u64) -> Answer {
        let in_kernel = |program, what: &str| {
            self.link_in_kernel_or_refuse(program, what, cookie, |program| {
                kernels::raw_tracepoint(program, None, cookie)
            })
        };
        let Some(name) = self.attach_name(&program) else {
            return in_kernel(program, "kernel tracing programs");
        };
        let (edge, kind) = match program.expected_attach_type {
            AttachType::TRACE_RAW_TP => {
                let name = name.strip_prefix("btf_trace_").unwrap_or(&name);
                return self.link_raw_tracepoint(program, name, cookie);
            }
            AttachType::TRACE_FENTRY => (Edge::Enter, "fentry"),
            AttachType::MODIFY_RETURN => (Edge::Enter, "fmod_ret"),
            AttachType::TRACE_FEXIT => (Edge::Exit, "fexit"),
            _ => return in_kernel(program, "kernel tracing programs"),
        };
        let at = |number, context| AttachPoint::SystemCall {
            number: Some(number),
            edge,
            context,
            cookie: 0,
        };
        if self.system_calls_are_kernels() {
            return in_kernel(program, &format!("{kind}:{name}"));
        }
        if let Some(call) = SystemCall::of_function(&name) {
            let point = at(call.number, CallContext::Trampoline);
            return self.link_places(program, vec![point], cookie);
        }
        let points: Vec<_> = functions::leading_to(&name)
            .into_iter()
            // Programs may not change the return values of these.
            .filter(|_| program.expected_attach_type != AttachType::MODIFY_RETURN)
            .map(|one| at(one.number, CallContext::FunctionTrampoline(one.function)))
            .collect();
        if points.is_empty() {
            let what = format!("{kind}:{name}{}", functions::advice(&name));
            return in_kernel(program, &what);
        }
        self.link_places(program, points, cookie)
    }

    /// Links a program to a raw tracepoint: ENOENT for all tracepoints but those on all system
    /// calls; EINVAL if the program looks beyond the tracepoint's arguments.
    fn link_raw_tracepoint(&self, program: Arc<ProgramObject>, name: &str, cookie: u64) -> Answer {
        let here = (!self.system_calls_are_kernels()).then_some("raw_syscalls");
        let Some(tracepoint) = here.and_then(|group| Tracepoint::named(group, name)) else {
            let c_name = CString::new(name).map_err(|_| Errno::EINVAL)?;
            // A program with a type in the kernel's BTF has its place from there.
            let is_raw = program.prog_type == ProgramType::RAW_TRACEPOINT;
            let name_there = is_raw.then_some(c_name.as_c_str());
            let what = format!("rawtracepoint:{name}");
            return self.link_in_kernel_or_refuse(program, &what, cookie, |program| {
                kernels::raw_tracepoint(program, name_there, cookie)
            });
        };
        if program.prog_type == ProgramType::RAW_TRACEPOINT && program.context_end() > RAW_CONTEXT {
            return Err(Errno::EINVAL);
        }
        let point = AttachPoint::SystemCall {
            number: None,
            edge: tracepoint.edge,
            context: CallContext::RawTracepoint,
            cookie: 0,
        };
        self.link_places(program, vec![point], cookie)
    }

    /// Returns whether programs at system calls run in the kernel, which the tool may ask.
    fn system_calls_are_kernels(&self) -> bool {
        host_kernel::runs_system_calls(&**self.backend, self.fds.tid)
    }

    /// Links a program to a place, or to several of the same kind that belong together.
    fn link_places(
        &self,
        program: Arc<ProgramObject>,
        points: Vec<AttachPoint>,
        cookie: u64,
    ) -> Answer {
        let point = points.first().cloned().ok_or(Errno::EINVAL)?;
        self.backend.attach_check(&point)?;
        let take = || self.claims.claim(program.held.id, &point);
        let claim = self.fds.table.after_closes(take)?;
        let semaphores = self.semaphores.take(self.fds.table, &point)?;
        let attach = |point| attach(self.backend, &program, point, cookie);
        let held = points.iter().map(attach).collect::<Result<_, _>>()?;
        let to = LinkTo::Place {
            point,
            _held: held,
            _claim: claim,
            _semaphores: semaphores,
        };
        let link = Link {
            id: self.numbers.next(),
            to,
            program,
            cookie,
        };
        self.descriptors.first(Object::Link(Arc::new(link)))
    }

    /// Returns the name of the type in the kernel's BTF that a program was loaded for.
    fn attach_name(&self, program: &ProgramObject) -> Option<String> {
        let kernel = self.fds.table.kernels_btf()?;
        let types = Btf::parse(kernel.data())?;
        let name = types.get(program.attach_btf_id)?.name;
        Some(String::from_utf8_lossy(name).into_owned())
    }

    /// Links a program to a place in the host's kernel, or refuses it where that may not be.
    fn link_in_kernel_or_refuse(
        &self,
        program: Arc<ProgramObject>,
        what: &str,
        cookie: u64,
        link: impl Fn(BorrowedFd<'_>) -> io::Result<OwnedFd>,
    ) -> Answer {
        let Some(why) = host_kernel::refusal(&**self.backend, self.fds.tid) else {
            return self.link_in_kernel(program, cookie, link);
        };
        self.backend.unsupported(&by_kernel_only(what, &why));
        Err(Errno::ENOENT)
    }

    fn link_in_kernel(
        &self,
        program: Arc<ProgramObject>,
        cookie: u64,
        link: impl Fn(BorrowedFd<'_>) -> io::Result<OwnedFd>,
    ) -> Answer {
        let link =
            host_kernel::attach_after_closes((&**self.backend, self.fds.table), &program, link)?;
        let link = Link {
            id: self.numbers.next(),
            to: LinkTo::Kernel(KernelLink::new(self.backend, link)?),
            program,
            cookie,
        };
        self.descriptors.first(Object::Link(Arc::new(link)))
    }
}

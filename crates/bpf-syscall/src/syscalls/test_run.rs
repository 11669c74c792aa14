//! `BPF_PROG_TEST_RUN` (`net/bpf/test_run.c`).

mod io;
mod skb;
mod xdp;

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use beeline_runtime::PacketResult;
use beeline_runtime::backend::Backend;
use beeline_runtime::packet::Packet;
use beeline_supervisor::attr::BpfAttr;
use beeline_supervisor::{Answer, Call, Reply};
use beeline_uapi::limits::MAX_BPF_FUNC_ARGS;
use beeline_uapi::{AttachType, Errno, ProgramType, flags};

use super::attr::TestRun;
use crate::fds::ThreadFds;
use crate::host_kernel;
use crate::local::Local;
use crate::objects::ProgramObject;
use crate::reclaim::Reaper;
use crate::refused::{NOT_YET, by_kernel_only};
use io::Io;

/// The bytes of context of a raw tracepoint: its arguments.
const CONTEXT_LIMIT: u32 = MAX_BPF_FUNC_ARGS * 8;

/// Flags of test runs that are made in the kernel only.
const ONLY_KERNELS: u32 = flags::TEST_XDP_LIVE_FRAMES | flags::TEST_SKB_CHECKSUM_COMPLETE;

/// Runs programs for their results.
pub(super) struct TestRuns<'a> {
    call: &'a Call<'a>,
    backend: &'a Arc<dyn Backend>,
    fds: ThreadFds<'a>,
    reaper: &'a Reaper,
}

impl<'a> TestRuns<'a> {
    pub(super) fn new(local: &'a Local, call: &'a Call<'a>) -> Self {
        Self {
            call,
            backend: &local.backend,
            fds: local.fds.of(call.tid),
            reaper: &local.reaper,
        }
    }

    /// Carries out `BPF_PROG_TEST_RUN`.
    pub(super) fn run(&self, attr: &BpfAttr) -> Answer {
        let wanted = TestRun::parse(attr)?;
        let program = self.fds.program(wanted.prog_fd)?;
        let is_kernels = !self.backend.runs_here(program.held.id)
            || has_kernel_test_runs(&program)
            || wanted.flags & ONLY_KERNELS != 0
            // The tool wants to know that it is that CPU.
            || program.prog_type == ProgramType::RAW_TRACEPOINT
                && wanted.flags & flags::TEST_RUN_ON_CPU != 0;
        if is_kernels && host_kernel::refusal(&**self.backend, self.call.tid).is_none() {
            return self.in_kernel(wanted.prog_fd, &program);
        }
        let io = Io::new(self.call, &wanted);
        match program.prog_type {
            ProgramType::RAW_TRACEPOINT | ProgramType::SYSCALL => {
                self.plain(&wanted, &program, &io)
            }
            ProgramType::XDP => self.xdp(&wanted, &program, &io),
            ProgramType::SCHED_CLS
            | ProgramType::SCHED_ACT
            | ProgramType::SOCKET_FILTER
            | ProgramType::CGROUP_SKB
            | ProgramType::LWT_IN
            | ProgramType::LWT_OUT
            | ProgramType::LWT_XMIT => self.skb(&wanted, &program, &io),
            ProgramType::FLOW_DISSECTOR => self.flow_dissector(&wanted, &program, &io),
            prog_type => {
                if has_kernel_test_runs(&program) {
                    let name = prog_type.name().unwrap_or("unknown");
                    let what = format!("test runs of programs of type {name}");
                    self.backend.unsupported(&by_kernel_only(&what, NOT_YET));
                }
                Err(Errno::ENOTSUPP)
            }
        }
    }

    /// Has the tool make the call, for the kernel's program: it then runs for the tool's own thread,
    /// with its memory, its network namespace and its signals.
    fn in_kernel(&self, fd: i32, program: &ProgramObject) -> Answer {
        let loaded = self.backend.program_in_kernel(program.held.id)?;
        self.fds
            .make_kernels((self.call, self.reaper), fd, loaded.as_fd())?;
        Ok(Reply::Continue)
    }

    /// Runs a program that has no packet once.
    fn plain(&self, wanted: &TestRun, program: &ProgramObject, io: &Io<'_>) -> Answer {
        let on_cpu = wanted.flags & flags::TEST_RUN_ON_CPU != 0;
        let limit = if program.prog_type == ProgramType::SYSCALL {
            u32::from(u16::MAX)
        } else {
            CONTEXT_LIMIT
        };
        let is_too_long = wanted.context_in.len > limit;
        if wanted.has_packet() || is_too_long || (!on_cpu && wanted.cpu != 0) {
            return Err(Errno::EINVAL);
        }
        let is_raw = program.prog_type == ProgramType::RAW_TRACEPOINT;
        if is_raw && wanted.context_in.len < program.context_end() {
            return Err(Errno::EINVAL);
        }
        let context = io.read(&wanted.context_in)?;
        let result = self.backend.program_test_run(program.held.id, &context)?;
        io.put_result(result as u32)?;
        Ok(Reply::Value(0))
    }

    /// Runs a program on a packet as often as wanted. Other programs run in between: the runs are
    /// asked for in parts that take a moment.
    ///
    /// Returns the average duration with the last result.
    ///
    /// # Errors
    ///
    /// `EINTR` if a signal has ended the call, and those of [`Backend::packet_test_run`].
    fn on_packet(
        &self,
        program: &ProgramObject,
        mut packet: Packet,
        repeat: u32,
    ) -> Result<PacketResult, Errno> {
        const MOMENT: Duration = Duration::from_millis(5);
        let repeat = repeat.max(1);
        let (mut left, mut part) = (repeat, 1);
        let mut duration = Duration::ZERO;
        loop {
            let now = part.min(left);
            let result = self.backend.packet_test_run(program.held.id, packet, now)?;
            duration += result.duration;
            left -= now;
            if left == 0 {
                return Ok(PacketResult {
                    duration: duration / repeat,
                    ..result
                });
            }
            if result.duration < MOMENT {
                part = part.saturating_mul(2);
            } else {
                part = (part / 2).max(1);
            }
            if self.is_interrupted() {
                return Err(Errno::EINTR);
            }
            packet = result.packet;
        }
    }

    /// Returns whether the call has ended, or a signal waits for its end.
    fn is_interrupted(&self) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.call.tid));
        !self.call.listener.waits(self.call.id) || status.is_ok_and(|status| has_signal(&status))
    }
}

/// Returns whether a signal is pending by `/proc/PID/status` that the thread does not block.
fn has_signal(status: &str) -> bool {
    let set = |name: &str| {
        let mut lines = status.lines();
        let text = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        text.and_then(|text| u64::from_str_radix(text.trim(), 16).ok())
            .unwrap_or(0)
    };
    (set("SigPnd") | set("ShdPnd")) & !set("SigBlk") != 0
}

/// True for a program of another type that the kernel makes test runs of.
fn has_kernel_test_runs(program: &ProgramObject) -> bool {
    match program.prog_type {
        ProgramType::SK_LOOKUP | ProgramType::NETFILTER | ProgramType::STRUCT_OPS => true,
        ProgramType::TRACING => matches!(
            program.expected_attach_type,
            AttachType::TRACE_FENTRY | AttachType::TRACE_FEXIT | AttachType::MODIFY_RETURN
        ),
        _ => false,
    }
}

/// Returns whether the machine has a network device of this number.
fn has_device(ifindex: u32) -> bool {
    use rustix::net::{AddressFamily, SocketType, netdevice, socket};
    socket(AddressFamily::INET, SocketType::DGRAM, None)
        .is_ok_and(|socket| netdevice::index_to_name(socket, ifindex).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocked_signals_end_no_call() {
        let status = |pending: &str, shared: &str, blocked: &str| {
            format!(
                "Name:\tx\nSigQ:\t0/1\nSigPnd:\t{pending}\nShdPnd:\t{shared}\nSigBlk:\t{blocked}\n"
            )
        };
        assert!(!has_signal(&status("0", "0", "0")));
        assert!(has_signal(&status("0000000000002000", "0", "0")));
        assert!(has_signal(&status(
            "0",
            "0000000000004000",
            "0000000000002000"
        )));
        assert!(!has_signal(&status(
            "0",
            "0000000000002000",
            "0000000000002000"
        )));
        assert!(!has_signal(""));
    }
}

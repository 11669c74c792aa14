//! Processes that put themselves under a seccomp filter. The filter may kill them for a system call
//! of Beeline's, so they are let go before it is installed.

use std::sync::atomic::Ordering::SeqCst;

use beeline_agent::abi::PtRegs;
use beeline_agent::abi::syscalls::Request;
use beeline_inject::{Confinement, Process, Registers};
use libc::sock_filter;

use super::serve_upcalls::{UpcallServer, thread_that_asks};
use super::target_table::SharedTarget;
use crate::arch::before_call;
use crate::confinement;
use crate::detach;
use crate::error::Error;
use crate::liveness::SessionId;

impl UpcallServer {
    /// Lets a process go if its filter would not let Beeline's own calls pass.
    ///
    /// The thread that asks then makes its call again, at an address where nothing of Beeline's is
    /// left.
    pub(super) fn before_filter(&self, pid: i32, target: &SharedTarget, request: &Request) {
        let tracees = &self.tracees;
        let process = target.lock().process().clone();
        if process.pid() != pid || tracees.admission.check_if_confining(pid).is_err() {
            return;
        }
        let Some(regs) = registers_at(&process, request.address.load(SeqCst)) else {
            return;
        };
        let Some(further) = Further::of(&process, &regs) else {
            return;
        };
        let Err(why) = further.check() else {
            confinement::note_seen(pid);
            return;
        };
        tracees.admission.confine(pid);
        let name = target.lock().name();
        let outcome = self.let_go(&process, target, request, &regs);
        if process.is_alive() {
            tracees.diagnostics.confining(pid, &name, &why, &outcome);
        }
    }

    fn let_go(
        &self,
        process: &Process,
        target: &SharedTarget,
        request: &Request,
        regs: &PtRegs,
    ) -> Result<(), Error> {
        let pid = process.pid();
        let tid = thread_that_asks(process, request)?;
        let own = SessionId::own();
        let outcome = {
            // The lock keeps others from attaching to it meanwhile.
            let _target = target.lock();
            let present = detach::presences(process)?;
            let mut ours = present.iter().filter(|presence| presence.session == own);
            ours.try_for_each(|presence| {
                let to = |now: &Registers| before_call(now, regs);
                presence.remove_around(process, tid, to).map(drop)
            })
        };
        self.tracees.targets.bury_one(pid, target.clone());
        outcome
    }
}

/// Returns the registers of a call that a thread says it is about to make. The claim affects only
/// that thread.
fn registers_at(process: &Process, address: u64) -> Option<PtRegs> {
    let mut bytes = [0; size_of::<PtRegs>()];
    process.read_memory(address, &mut bytes).ok()?;
    // SAFETY: `PtRegs` consists of integers, for which any bytes are valid.
    Some(unsafe { bytes.as_ptr().cast::<PtRegs>().read_unaligned() })
}

/// The confinement that a process is about to enter.
enum Further {
    /// Strict mode.
    Strict,
    Filter(Vec<sock_filter>),
}

impl Further {
    /// Returns what a call installs; `None` if the kernel would not take it.
    fn of(process: &Process, regs: &PtRegs) -> Option<Self> {
        let is_prctl = regs.call_number() == libc::SYS_prctl as u64;
        let [first, second, third, ..] = regs.call_arguments();
        // `prctl` counts the modes from 1, as the kernel names them; `seccomp` has operations.
        let is_strict = match is_prctl {
            true => second == u64::from(libc::SECCOMP_MODE_STRICT),
            // With flags or a filter it is libseccomp's question whether there is such a call.
            false => first == u64::from(libc::SECCOMP_SET_MODE_STRICT) && (second, third) == (0, 0),
        };
        let is_filter = match is_prctl {
            true => second == u64::from(libc::SECCOMP_MODE_FILTER),
            false => first == u64::from(libc::SECCOMP_SET_MODE_FILTER),
        };
        match (is_strict, is_filter) {
            (true, _) => Some(Self::Strict),
            (_, true) => confinement::filter_at(process, third).map(Self::Filter),
            _ => None,
        }
    }

    /// Fails if it would harm a process that does something for Beeline.
    fn check(self) -> Result<(), Confinement> {
        match self {
            Self::Strict => Err(Confinement::Strict),
            Self::Filter(filter) => confinement::check_further(filter),
        }
    }
}

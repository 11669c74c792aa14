//! `BPF_PROG_LOAD` and the other commands that make or run programs.

use std::mem::offset_of;
use std::sync::Arc;

use beeline_runtime::fast_path::Prefetch;
use beeline_supervisor::{Answer, Call, Reply};
use beeline_uapi::attr;
use beeline_uapi::fields::u32_at;
use beeline_vm_protocol::info::Kind;

use super::descriptors::Descriptors;
use super::forward::{BpfCall, Forward};
use super::refused::Refusals;
use crate::Guest;
use crate::changes::Changes;

/// The offset in the attribute of `BPF_PROG_LOAD` of the network device that is to carry the
/// program.
const PROG_IFINDEX: usize = offset_of!(attr::ProgLoad, prog_ifindex);

/// Loads programs, opens those of others, and runs them once.
pub(super) struct Programs<'a> {
    descriptors: Descriptors<'a>,
    forward: Forward<'a>,
    refusals: Refusals<'a>,
    changes: &'a Arc<Changes>,
    board: &'a Prefetch,
}

impl<'a> Programs<'a> {
    pub(super) fn new(guest: &'a Guest, call: &'a Call<'a>) -> Self {
        Self {
            descriptors: Descriptors::new(guest, call),
            forward: Forward::new(guest, call),
            refusals: Refusals::new(guest),
            changes: &guest.changes,
            board: &guest.prefetch,
        }
    }

    /// Answers `BPF_PROG_LOAD`.
    pub(super) fn load(&self, bpf: &BpfCall<'_>) -> Answer {
        self.refusals
            .object_of_device(u32_at(bpf.attr, PROG_IFINDEX))?;
        self.open(bpf)
    }

    /// Answers `BPF_PROG_GET_FD_BY_ID`.
    pub(super) fn open(&self, bpf: &BpfCall<'_>) -> Answer {
        let program = self.forward.make(bpf, Kind::Program)?;
        self.descriptors.give(Arc::new(program))
    }

    /// Answers `BPF_PROG_TEST_RUN`.
    pub(super) fn test_run(&self, bpf: &BpfCall<'_>) -> Answer {
        // The program may change maps.
        let run = self.changes.begin_run();
        self.board.hide_all();
        let taken = self.forward.take(bpf)?;
        let done = self.forward.ask(&taken)?;
        drop(run);
        self.forward.give_back(&taken, &done).map(Reply::Value)
    }

    /// Answers `BPF_ENABLE_STATS`, whose descriptor keeps the statistics on programs enabled.
    pub(super) fn enable_stats(&self, bpf: &BpfCall<'_>) -> Answer {
        let statistics = self.forward.make(bpf, Kind::Other)?;
        self.descriptors.give(Arc::new(statistics))
    }
}

//! `BPF_LINK_CREATE`, `BPF_RAW_TRACEPOINT_OPEN` and `BPF_LINK_GET_FD_BY_ID`: programs that are
//! attached.
//!
//! The layout of `BPF_LINK_CREATE` depends on the attach type. Types without one are refused
//! ([`super::refused`]).

use std::mem::offset_of;
use std::sync::Arc;

use beeline_supervisor::{Answer, Call};
use beeline_uapi::AttachType;
use beeline_uapi::attr;
use beeline_uapi::fields::u32_at;
use beeline_vm_protocol::info::Kind;

use super::attr::Taken;
use super::descriptors::Descriptors;
use super::forward::{BpfCall, Forward};
use crate::Guest;
use crate::objects::Object;

/// Offsets in the attribute of `BPF_LINK_CREATE`: the attach type, and an iterator's information.
const ATTACH_TYPE: usize = offset_of!(attr::LinkCreate, attach_type);
const ITER_INFO: u32 = offset_of!(attr::LinkCreateIter, iter_info) as u32;

/// Attaches programs by links, and opens the links of others.
pub(super) struct Links<'a> {
    descriptors: Descriptors<'a>,
    forward: Forward<'a>,
}

impl<'a> Links<'a> {
    pub(super) fn new(guest: &'a Guest, call: &'a Call<'a>) -> Self {
        Self {
            descriptors: Descriptors::new(guest, call),
            forward: Forward::new(guest, call),
        }
    }

    /// Answers `BPF_LINK_CREATE`.
    pub(super) fn create(&self, bpf: &BpfCall<'_>) -> Answer {
        let mut taken = self.forward.take(bpf)?;
        if AttachType(u32_at(bpf.attr, ATTACH_TYPE)) == AttachType::TRACE_ITER {
            taken.message.iterated = self.iterated(&taken);
        }
        self.give(self.forward.make_of(&taken, Kind::Link)?)
    }

    /// Answers `BPF_RAW_TRACEPOINT_OPEN`.
    pub(super) fn open_raw_tracepoint(&self, bpf: &BpfCall<'_>) -> Answer {
        self.give(self.forward.make(bpf, Kind::Link)?)
    }

    /// Answers `BPF_LINK_GET_FD_BY_ID`.
    pub(super) fn open(&self, bpf: &BpfCall<'_>) -> Answer {
        let mut link = self.forward.make(bpf, Kind::Link)?;
        link.is_first = false;
        self.give(link)
    }

    /// Returns the handle of the map at the start of an iterator's information; 0 for none. The
    /// program decides whether there is one, and the guest knows the program.
    fn iterated(&self, taken: &Taken) -> u32 {
        let mut parts = taken.message.parts.iter();
        let info = parts.find(|part| part.at == ITER_INFO && part.data.len() >= 4);
        let object = info.map(|info| self.descriptors.handle_of(u32_at(&info.data, 0)));
        object.and_then(Result::ok).unwrap_or(0)
    }

    fn give(&self, link: Object) -> Answer {
        self.descriptors.give(Arc::new(link))
    }
}

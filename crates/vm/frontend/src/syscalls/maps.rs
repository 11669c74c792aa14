//! `BPF_MAP_CREATE` and `BPF_MAP_GET_FD_BY_ID`: descriptors of maps, and what their calls depend
//! on.

use std::mem::offset_of;
use std::sync::Arc;

use beeline_supervisor::{Answer, Call, Mode};
use beeline_uapi::Errno;
use beeline_uapi::attr;
use beeline_uapi::fields::u32_at;
use beeline_uapi::info::MapInfo;
use beeline_vm_protocol::info::Kind;
use beeline_vm_protocol::layout::MapFacts;

use super::descriptors::Descriptors;
use super::forward::{BpfCall, Forward};
use super::kernel::Kernel;
use super::refused::Refusals;
use crate::Guest;

/// Offsets in the attribute of `BPF_MAP_CREATE`: its flags, and the network device that is to carry
/// the map.
const MAP_FLAGS: usize = offset_of!(attr::MapCreate, map_flags);
const MAP_IFINDEX: usize = offset_of!(attr::MapCreate, map_ifindex);
/// The offset of the flags of `BPF_MAP_GET_FD_BY_ID`.
const OPEN_FLAGS: usize = offset_of!(attr::GetId, open_flags);
/// The bytes of `struct bpf_map_info` that have the facts.
const MAP_INFO: usize = offset_of!(MapInfo, map_extra);

/// Creates maps, and opens those of others.
pub(super) struct Maps<'a> {
    descriptors: Descriptors<'a>,
    forward: Forward<'a>,
    kernel: Kernel<'a>,
    refusals: Refusals<'a>,
}

impl<'a> Maps<'a> {
    pub(super) fn new(guest: &'a Guest, call: &'a Call<'a>) -> Self {
        Self {
            descriptors: Descriptors::new(guest, call),
            forward: Forward::new(guest, call),
            kernel: Kernel::new(guest, call),
            refusals: Refusals::new(guest),
        }
    }

    /// Answers `BPF_MAP_CREATE`.
    pub(super) fn create(&self, bpf: &BpfCall<'_>) -> Answer {
        self.refusals
            .object_of_device(u32_at(bpf.attr, MAP_IFINDEX))?;
        let mut map = self.forward.make(bpf, Kind::Map)?;
        map.facts = Some(MapFacts::of_attr(bpf.attr));
        map.mode = Mode::of_map_flags(u32_at(bpf.attr, MAP_FLAGS))?;
        self.descriptors.give(Arc::new(map))
    }

    /// Answers `BPF_MAP_GET_FD_BY_ID`.
    pub(super) fn open(&self, bpf: &BpfCall<'_>) -> Answer {
        let mut map = self.forward.make(bpf, Kind::Map)?;
        map.facts = Some(self.facts(map.handle)?);
        map.mode = Mode::of_flags(u32_at(bpf.attr, OPEN_FLAGS))?;
        self.descriptors.give(Arc::new(map))
    }

    /// Returns the facts of a map that the tool has not made.
    fn facts(&self, handle: u32) -> Result<MapFacts, Errno> {
        Ok(MapFacts::of_info(&self.kernel.info(handle, MAP_INFO)?))
    }
}

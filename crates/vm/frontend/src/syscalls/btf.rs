//! `BPF_BTF_LOAD`, `BPF_BTF_GET_FD_BY_ID` and information on BTF objects: types.
//!
//! Types never change, and tools ask more than once for those of the kernel itself, which are some
//! megabytes. So each answer crosses the wire once.

use std::collections::HashMap;
use std::mem::offset_of;
use std::sync::Arc;

use beeline_supervisor::{Answer, Call};
use beeline_uapi::attr::{GetId, Info};
use beeline_uapi::fields::u32_at;
use beeline_uapi::{Errno, offset_behind};
use beeline_vm_protocol::content;
use beeline_vm_protocol::info::Kind;
use beeline_vm_protocol::layout::INSIDE;
use beeline_vm_protocol::messages::{Bpf, BpfDone, Part};
use parking_lot::Mutex;

use super::descriptors::Descriptors;
use super::forward::{BpfCall, Forward};
use super::kernel::Kernel;
use crate::Guest;
use crate::connection::EPROTO;
use crate::kept::Kept;

/// The offset of the number in the attribute of `BPF_BTF_GET_FD_BY_ID`.
const ID: usize = offset_of!(GetId, start_id);
/// The number of the kernel's own types, which it makes before all others.
const OF_KERNEL: u32 = 1;
/// The name under which these are kept.
const TYPES: &str = "types";
/// The most bytes of all answers that are kept.
const MOST: usize = 64 << 20;

/// The answers, by the number of a BTF object and the request.
#[derive(Default)]
pub(crate) struct Types(Mutex<Known>);

#[derive(Default)]
struct Known {
    answers: HashMap<(u32, Vec<u8>), BpfDone>,
    bytes: usize,
}

/// Loads and opens BTF objects, and remembers what the guest tells of them.
pub(super) struct BtfObjects<'a> {
    descriptors: Descriptors<'a>,
    forward: Forward<'a>,
    kernel: Kernel<'a>,
    types: &'a Types,
    kept: &'a Kept,
}

impl<'a> BtfObjects<'a> {
    pub(super) fn new(guest: &'a Guest, call: &'a Call<'a>) -> Self {
        Self {
            descriptors: Descriptors::new(guest, call),
            forward: Forward::new(guest, call),
            kernel: Kernel::new(guest, call),
            types: &guest.types,
            kept: &guest.kept,
        }
    }

    /// Answers `BPF_BTF_LOAD`.
    pub(super) fn load(&self, bpf: &BpfCall<'_>) -> Answer {
        let btf = self.forward.make(bpf, Kind::Btf)?;
        self.descriptors.give(Arc::new(btf))
    }

    /// Answers `BPF_BTF_GET_FD_BY_ID`.
    pub(super) fn open(&self, bpf: &BpfCall<'_>) -> Answer {
        let mut btf = self.forward.make(bpf, Kind::Btf)?;
        btf.types = Some(u32_at(bpf.attr, ID));
        self.descriptors.give(Arc::new(btf))
    }

    /// Asks for information on a BTF object, once for each form of the request. `id` is the guest's
    /// number of the object. It is no other's as long as there is any descriptor of the object, and
    /// is reused only when four thousand million others have been made.
    pub(super) fn ask(&self, id: u32, message: Bpf) -> Result<BpfDone, Errno> {
        let key = (id, asked(&message));
        if let Some(answer) = self.types.0.lock().answers.get(&key) {
            return Ok(answer.clone());
        }
        let answer = self.ask_for_other_types(id, message)?;
        let bytes = answer.parts.iter().map(|part| part.data.len()).sum();
        let mut kept = self.types.0.lock();
        if answer.errno == 0 && kept.bytes.saturating_add(bytes) <= MOST {
            kept.bytes += bytes;
            kept.answers.insert(key, answer.clone());
        }
        Ok(answer)
    }

    /// Asks for types that differ from the kept content, if these are large.
    fn ask_for_other_types(&self, id: u32, mut message: Bpf) -> Result<BpfDone, Errno> {
        let is_large = |part: &&Part| {
            id == OF_KERNEL && part.at == INSIDE && part.room as usize >= content::WORTHWHILE
        };
        let large = message.parts.iter().find(is_large);
        let Some(room) = large.map(|part| part.room as usize) else {
            return self.kernel.bpf(message);
        };
        let guess = self.kept.guess(TYPES);
        let guess = guess.filter(|guess| guess.content.len() <= room);
        message.held = guess.as_ref().map_or(Vec::new(), |guess| guess.sum.into());
        let mut answer = self.kernel.bpf(message)?;
        match (answer.same, guess) {
            (true, Some(guess)) => answer.parts.push(Part {
                at: INSIDE,
                data: guess.content,
                room: 0,
            }),
            (true, None) => return Err(EPROTO),
            (false, _) => {
                let types = answer.parts.iter().find(|part| part.at == INSIDE);
                if let Some(types) = types.filter(|_| answer.errno == 0) {
                    self.kept.keep(TYPES, &types.data);
                }
            }
        }
        Ok(answer)
    }
}

/// Returns all of a request but the handle.
fn asked(message: &Bpf) -> Vec<u8> {
    const HANDLE: usize = offset_behind!(Info, bpf_fd);
    let mut bytes = message.attr.get(HANDLE..).unwrap_or_default().to_vec();
    for part in &message.parts {
        bytes.extend(part.at.to_ne_bytes());
        bytes.extend(part.room.to_ne_bytes());
        bytes.extend((part.data.len() as u64).to_ne_bytes());
        bytes.extend(&part.data);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use beeline_vm_protocol::messages::Part;

    #[test]
    fn requests_differ_by_all_but_the_handle() {
        let request = |handle: u8, room, data: &[u8]| Bpf {
            attr: vec![handle, 0, 0, 0, 24, 0, 0, 0],
            parts: vec![Part {
                at: 8,
                data: data.to_vec(),
                room,
            }],
            ..Bpf::default()
        };
        let one = asked(&request(1, 24, &[7; 24]));
        assert_eq!(one, asked(&request(2, 24, &[7; 24])));
        for other in [request(1, 23, &[7; 24]), request(1, 24, &[7; 23])] {
            assert_ne!(one, asked(&other));
        }
    }
}

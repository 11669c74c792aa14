//! `BPF_PROG_QUERY`: the programs at a place. The kernel knows them by its own numbers, and the tool
//! those of the session's by Beeline's.

use std::mem::offset_of;

use beeline_kernel::link::{self, LinkSpec, Options};
use beeline_supervisor::attr::BpfAttr;
use beeline_supervisor::keys::errno;
use beeline_supervisor::{Answer, Reply};
use beeline_uapi::attr::ProgQuery;
use beeline_uapi::fields::u32_at;
use beeline_uapi::info::LinkInfo;
use beeline_uapi::{Errno, offset_behind};

use super::Attachments;
use crate::host_kernel;
use crate::objects::{LinkTo, Object};

/// The most programs that are asked for at once. The kernel has fewer at a place.
const MOST: u32 = 1024;

impl Attachments<'_> {
    /// Carries out `BPF_PROG_QUERY`.
    pub(in crate::syscalls) fn query(&self, attr: &BpfAttr) -> Answer {
        let wanted: ProgQuery = attr.ends_at(offset_behind!(ProgQuery, revision))?.view();
        let place = self.place(wanted.attach_type)?;
        let file = place.file(self.call, wanted.target_fd)?;
        let spec = LinkSpec {
            attach_type: wanted.attach_type,
            target: place.target(wanted.target_fd, file.as_ref()),
            flags: wanted.query_flags,
            options: Options::Plain,
        };
        let addresses = [
            wanted.prog_ids,
            wanted.prog_attach_flags,
            wanted.link_ids,
            wanted.link_attach_flags,
        ];
        let arrays = addresses.map(|address| address != 0);
        let room = wanted.prog_cnt.min(MOST);
        let ask = || Ok(link::query(&spec, arrays, room));
        let (mut found, outcome) = host_kernel::in_network_of(self.call.tid, ask).map_err(errno)?;
        let outcome = outcome.map_err(errno);
        if outcome.is_err() && outcome != Err(Errno::ENOSPC) {
            return outcome.map(|()| Reply::Value(0));
        }
        let [programs, _, links, _] = &mut found.arrays;
        self.with_sessions_numbers(programs.as_mut(), |id| {
            self.backend.program_by_kernels_id(id).map(|id| id.0)
        });
        self.with_sessions_numbers(links.as_mut(), |id| self.link_by_kernels_id(id));
        let shown = found.count.min(room) as usize * size_of::<u32>();
        for (array, address) in found.arrays.iter().zip(addresses) {
            if let Some(array) = array {
                self.call.memory.write(address, &array[..shown])?;
            }
        }
        let put = |at: usize, value| self.attr.put_u32(at as u64, value);
        put(offset_of!(ProgQuery, attach_flags), found.flags)?;
        put(offset_of!(ProgQuery, prog_cnt), found.count)?;
        if attr.size >= offset_behind!(ProgQuery, revision) {
            let at = offset_of!(ProgQuery, revision);
            put(at, found.revision as u32)?;
            put(at + size_of::<u32>(), (found.revision >> u32::BITS) as u32)?;
        }
        outcome.map(|()| Reply::Value(0))
    }

    /// Replaces the kernel's numbers of what is the session's. Others stay.
    fn with_sessions_numbers(
        &self,
        numbers: Option<&mut Vec<u8>>,
        known: impl Fn(u32) -> Option<u32>,
    ) {
        let numbers = numbers.map(Vec::as_mut_slice).unwrap_or_default();
        for number in numbers.chunks_exact_mut(size_of::<u32>()) {
            let id = u32_at(number, 0);
            if let Some(sessions) = Some(id).filter(|&id| id != 0).and_then(&known) {
                number.copy_from_slice(&sessions.to_ne_bytes());
            }
        }
    }

    fn link_by_kernels_id(&self, id: u32) -> Option<u32> {
        let number = |object: &Object| {
            let Object::Link(link) = object else {
                return None;
            };
            let LinkTo::Kernel(kernels) = &link.to else {
                return None;
            };
            let facts = kernels.with(link::facts).ok()?;
            let is_it = u32_at(&facts.info, offset_of!(LinkInfo, id)) == id;
            is_it.then_some(link.id)
        };
        self.fds.table.next(0, &[], number).map(|(id, _)| id)
    }
}

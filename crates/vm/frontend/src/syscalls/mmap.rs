//! `mmap` on rings and arrays.
//!
//! A descriptor is a socket until the tool maps it, and the memory file from then on. Where the
//! guest's memory can be seen from here, its own pages are mapped over the file's
//! ([`crate::sharing`]).

use std::sync::Arc;

use beeline_inject::{MapFlags, Mapping, ProtFlags, Stopped};
use beeline_supervisor::{Answer, Call, Reply};
use beeline_uapi::Errno;
use beeline_vm_memory::Place;

use super::descriptors::Descriptors;
use super::memory_files::MemoryFiles;
use crate::Guest;
use crate::connection::Connection;
use crate::memory::{Memory, PAGE, Shape};
use crate::objects::{Hold, Object};
use crate::sharing::{Sharing, open, part};

const ENOTSUPP: Errno = Errno::ENOTSUPP;
const EINVAL: Errno = Errno(libc::EINVAL);
/// `MAP_NORESERVE`: mappings with it do not come to the supervisor
/// (`beeline_supervisor::seccomp_filter`).
const OURS: MapFlags = MapFlags::NORESERVE;

/// Maps the memory of objects into the tool.
pub(super) struct Mmap<'a> {
    call: &'a Call<'a>,
    descriptors: Descriptors<'a>,
    files: MemoryFiles<'a>,
    connection: &'a Connection,
    sharing: Option<&'a Sharing>,
}

impl<'a> Mmap<'a> {
    pub(super) fn new(guest: &'a Guest, call: &'a Call<'a>) -> Self {
        Self {
            call,
            descriptors: Descriptors::new(guest, call),
            files: MemoryFiles::new(guest, call),
            connection: &guest.connection,
            sharing: guest.sharing.as_deref(),
        }
    }

    /// Answers `mmap(address, length, protection, flags, descriptor, offset)`, shared and of a
    /// file. The kernel maps the memory file.
    pub(super) fn map(&self) -> Answer {
        let [_, length, _, _, fd, offset] = self.call.args;
        let Some(object) = self.descriptors.find(fd as i32) else {
            return Ok(Reply::Continue);
        };
        let shape = shape(&object, length, offset)?;
        let length = usize::try_from(length).map_err(|_| EINVAL)?;
        let end = usize::try_from(offset)
            .ok()
            .and_then(|offset| offset.checked_add(length));
        if end.is_none_or(|end| end > shape.len()) {
            return Err(EINVAL);
        }
        let memory = self.files.memory_of(&object, shape)?;
        self.files
            .become_file(fd as i32, &object, memory.opened()?, Hold::Memory)?;
        match (self.sharing, &memory.shared) {
            (Some(sharing), Some(places)) => self.map_places(sharing, &memory, places),
            _ => Ok(Reply::Continue),
        }
    }

    /// Carries out the tool's `mmap` of an object that lies in the guest's memory.
    fn map_places(&self, sharing: &Sharing, memory: &Arc<Memory>, places: &[Place]) -> Answer {
        let [_, length, protection, _, _, offset] = self.call.args;
        let pid = self.call.process()?;
        let process = open(pid).map_err(|error| self.not_mapped(&error))?;
        let places = part(places, offset, length.next_multiple_of(PAGE as u64));
        // Held until everything is mapped, so that a tear-down comes after it.
        let _added = sharing.add(memory)?;
        let (listener, id) = (self.call.listener.clone(), self.call.id);
        let answer = move || {
            // If this fails, the thread has been killed.
            listener.answer(id, Ok(Reply::Continue));
        };
        let stopped = process.stop_behind_call(self.call.tid, answer);
        let mut stopped = stopped.map_err(|error| self.not_mapped(&error))?;
        let Some(start) = returned(&stopped, self.call.tid) else {
            return Ok(Reply::Answered);
        };
        let writable = protection & libc::PROT_WRITE as u64 != 0;
        if let Err(error) = stopped.map_files(&mappings(&places, start, writable)) {
            self.not_mapped(&error);
            // An obstacle to these makes the tool's thread fail as well.
            let _ = stopped.munmap(start, length);
            let _ = stopped.set_result(self.call.tid, (-i64::from(libc::ENOMEM)) as u64);
        }
        Ok(Reply::Answered)
    }

    fn not_mapped(&self, error: &beeline_inject::Error) -> Errno {
        self.connection
            .say(&format!("the guest's memory is not mapped: {error}"));
        Errno(libc::ENOMEM)
    }
}

/// Returns the result of the call of a thread that was held behind it; `None` if that is an error.
fn returned(stopped: &Stopped, tid: i32) -> Option<u64> {
    let mut threads = stopped.threads().iter();
    let thread = threads.find(|thread| thread.tid() == tid)?;
    let result = thread.registers().result();
    (result as i64 > 0).then_some(result)
}

fn mappings(places: &[Place], start: u64, writable: bool) -> Vec<Mapping<'_>> {
    let mut protection = ProtFlags::READ;
    protection.set(ProtFlags::WRITE, writable);
    let mut address = start;
    let mut mappings = Vec::with_capacity(places.len());
    for place in places {
        mappings.push(Mapping {
            file: place.file(writable),
            offset: place.offset,
            len: place.len,
            protection,
            flags: MapFlags::SHARED | MapFlags::FIXED | OURS,
            address,
        });
        address += place.len;
    }
    mappings
}

/// Returns the layout of an object's memory, given the mapping that the tool asks for.
fn shape(object: &Object, length: u64, offset: u64) -> Result<Shape, Errno> {
    if let Some(facts) = object.facts {
        if facts.is_ring() {
            let data = facts.max_entries as usize;
            return Ok(Shape::Ring { data });
        }
        if facts.is_mappable_array() {
            let value = (facts.value_size as usize).next_multiple_of(8);
            let bytes = value.checked_mul(facts.max_entries as usize);
            let bytes = bytes.ok_or(EINVAL)?;
            return Ok(Shape::Array { bytes });
        }
        return Err(ENOTSUPP);
    }
    // The tool's mapping decides a perf ring's size: a control page and 2^n of data.
    let page = PAGE as u64;
    let pages = (length / page).saturating_sub(1);
    if !object.is_ring || offset != 0 || !length.is_multiple_of(page) || !pages.is_power_of_two() {
        return Err(EINVAL);
    }
    Ok(Shape::Perf {
        data: (pages * page) as usize,
    })
}

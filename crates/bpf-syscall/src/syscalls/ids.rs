//! `BPF_*_GET_NEXT_ID` and `BPF_*_GET_FD_BY_ID`: objects by their ids.

use beeline_supervisor::attr::BpfAttr;
use beeline_supervisor::bpffs::BpfFs;
use beeline_supervisor::{Answer, Call, Mode, Reply};
use beeline_uapi::Errno;

use super::attr::{GetFdById, GetNextId};
use super::descriptors::NewDescriptors;
use super::tool_attr::ToolAttr;
use crate::fds::Descriptors;
use crate::local::Local;
use crate::members::Members;
use crate::objects::Object;
use crate::pinned::Pinned;
use crate::reclaim::{Reclaim, is_open_in};

/// A kind of objects that have ids.
#[derive(Clone, Copy)]
pub(super) enum Numbered {
    Map,
    Program,
    Link,
    Btf,
}

impl Numbered {
    /// Returns the id of an object of this kind.
    fn id(self, object: &Object) -> Option<u32> {
        match (self, object) {
            (Self::Map, Object::Map(map)) => Some(map.held.id.0),
            (Self::Program, Object::Program(program)) => Some(program.held.id.0),
            (Self::Link, Object::Link(link)) => Some(link.id),
            (Self::Btf, Object::Btf(btf)) => Some(btf.id),
            _ => None,
        }
    }

    /// Returns the end of the last field of the command that opens an object of this kind.
    fn last_field_end(self) -> usize {
        match self {
            Self::Map => GetFdById::OPEN_FLAGS_END,
            Self::Program | Self::Link | Self::Btf => GetFdById::ID_END,
        }
    }
}

/// Finds objects by their ids.
pub(super) struct Ids<'a> {
    attr: ToolAttr<'a>,
    table: &'a Descriptors,
    bpffs: &'a BpfFs<Pinned>,
    members: &'a Members,
    descriptors: NewDescriptors<'a>,
    reclaim: Reclaim<'a>,
    tid: i32,
}

impl<'a> Ids<'a> {
    pub(super) fn new(local: &'a Local, call: &'a Call<'a>) -> Self {
        Self {
            attr: ToolAttr::of(call),
            table: &local.fds,
            bpffs: &local.bpffs,
            members: &local.members,
            descriptors: NewDescriptors::new(local, call),
            reclaim: Reclaim::new(local, call),
            tid: call.tid,
        }
    }

    /// Returns the smallest id greater than the one given.
    pub(super) fn next(&self, attr: &BpfAttr, kind: Numbered) -> Answer {
        let wanted = GetNextId::parse(attr)?;
        if wanted.start_id >= i32::MAX as u32 {
            return Err(Errno::EINVAL);
        }
        let (next, _) = self.next_object(wanted.start_id, kind)?;
        self.attr.put_u32(GetNextId::NEXT_ID, next)?;
        Ok(Reply::Value(0))
    }

    /// Returns a new descriptor of the object with an id.
    pub(super) fn open(&self, attr: &BpfAttr, kind: Numbered) -> Answer {
        let wanted = GetFdById::parse(attr, kind.last_field_end())?;
        let mode = Mode::of_flags(wanted.open_flags)?;
        let before = wanted.id.checked_sub(1).ok_or(Errno::ENOENT)?;
        let (found, object) = self.next_object(before, kind)?;
        if found != wanted.id {
            return Err(Errno::ENOENT);
        }
        self.descriptors.another(object, mode)
    }

    /// Returns the next object that the tool can reach by a descriptor, by a pinned name or as an
    /// element of a map.
    fn next_object(&self, after: u32, kind: Numbered) -> Result<(u32, Object), Errno> {
        // Fails only if closed objects cannot be told, which then stay.
        let _ = self.table.reap_closed();
        let found = self.known_after(after, kind)?;
        let file = self.table.file_of(&found.1);
        if file.is_none_or(|file| is_open_in(self.tid, file, &self.table.stand_ins())) {
            return Ok(found);
        }
        // Nothing has told if it is closed.
        drop(found);
        self.reclaim.release_closed();
        self.known_after(after, kind)
    }

    fn known_after(&self, after: u32, kind: Numbered) -> Result<(u32, Object), Errno> {
        let pinned = self.bpffs.pinned().into_iter();
        let mut others: Vec<_> = pinned.map(|pin| pin.object).collect();
        others.extend(self.members.alive());
        self.table
            .next(after, &others, |object| kind.id(object))
            .ok_or(Errno::ENOENT)
    }
}

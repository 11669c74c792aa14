//! Converts a tool's `union bpf_attr` to and from the wire.
//!
//! The table of [`beeline_vm_protocol::layout`] describes the parts of an attribute. The answer's
//! parts are written to the tool's memory.

use std::sync::Arc;

use beeline_supervisor::Memory;
use beeline_uapi::{AttachType, Command, Errno, MapType};
use beeline_vm_protocol::info::{INFO_BYTES, Kind, buffers};
use beeline_vm_protocol::instructions::{array_len, replace_objects};
use beeline_vm_protocol::layout::{
    ATTR_BYTES, BUFFER_BYTES, Buffer, Flow, Holds, INSIDE, Layout, Len, MapFacts, long_at,
    number_at, put_long, put_number,
};
use beeline_vm_protocol::messages::{Bpf, BpfDone, Part};

use crate::Handler;
use crate::objects::Object;

const EINVAL: Errno = Errno(libc::EINVAL);
const EBADF: Errno = Errno(libc::EBADF);
const E2BIG: Errno = Errno(libc::E2BIG);
/// For `BPF_LINK_CREATE`: offsets in the attribute, and the attach type of iterators.
const ATTACH_TYPE: usize = 8;
const ITER_INFO: u32 = 16;
/// The longest name of a function to attach to.
const NAME: usize = 512;

/// A command on its way to the guest.
pub(super) struct Taken {
    pub(super) message: Bpf,
    /// The destinations of the answer's parts.
    destinations: Vec<Destination>,
    layout: Layout,
}

struct Destination {
    at: u32,
    address: u64,
    room: usize,
}

impl Taken {
    /// Takes the attribute of `command` apart, which is as long as the tool passed it. `first` is
    /// the object that its first descriptor names, if the command has a descriptor there.
    pub(super) fn new(
        call: &Handler<'_>,
        command: Command,
        layout: Layout,
        mut attr: Vec<u8>,
        first: Option<&Arc<Object>>,
    ) -> Result<Self, Errno> {
        let is_set =
            |bytes: Option<&[u8]>| bytes.is_some_and(|bytes| bytes.iter().any(|byte| *byte != 0));
        if is_set(attr.get(ATTR_BYTES..)) {
            return Err(E2BIG);
        }
        if is_set(attr.get(layout.size..)) {
            return Err(EINVAL);
        }
        // The kernel takes missing bytes for zeros.
        attr.truncate(layout.size);
        let passed = attr.clone();
        for (place, object) in layout.objects.iter().enumerate() {
            let fd = number_at(&passed, object.at);
            let handle = match (object.when.holds(&passed, fd), first) {
                (false, _) => 0,
                (true, Some(first)) if place == 0 => first.handle,
                (true, _) => call.handle_of(fd)?,
            };
            put_number(&mut attr, object.at, handle);
        }
        let mut taken = Self {
            message: Bpf {
                command: command.0,
                attr,
                parts: Vec::new(),
                ..Bpf::default()
            },
            destinations: Vec::new(),
            layout,
        };
        let facts = first.and_then(|object| object.facts);
        for buffer in layout.buffers {
            taken.take(call, &passed, buffer, facts.as_ref())?;
        }
        if command == Command::LINK_CREATE
            && AttachType(number_at(&passed, ATTACH_TYPE)) == AttachType::TRACE_ITER
        {
            taken.name_iterated(call);
        }
        if let (Command::OBJ_GET_INFO_BY_FD, Some(object)) = (command, first) {
            taken.take_inside(object.kind)?;
        }
        Ok(taken)
    }

    fn take(
        &mut self,
        call: &Handler<'_>,
        passed: &[u8],
        buffer: &Buffer,
        facts: Option<&MapFacts>,
    ) -> Result<(), Errno> {
        let address = long_at(passed, buffer.at);
        if address == 0 || buffer.at + 8 > passed.len() {
            return Ok(());
        }
        put_long(&mut self.message.attr, buffer.at, 0);
        let cpus = call.guest.welcome().possible_cpus;
        let map = facts.map(|facts| (facts, cpus));
        let mut len = buffer.len.bytes(passed, map).ok_or(E2BIG)?;
        if buffer.holds == Holds::Objects {
            let insns = self.instructions();
            len = len.max(insns.map_or(0, |insns| array_len(insns) * 4));
        }
        let mut data = match (buffer.flow, buffer.len) {
            (Flow::Out, _) => Vec::new(),
            // Only Bloom filters read the value of a look-up.
            (Flow::InOut, Len::Value)
                if facts.is_none_or(|facts| facts.map_type != MapType::BLOOM_FILTER) =>
            {
                Vec::new()
            }
            (_, Len::Text(limit)) => {
                let mut text = call.memory.string(address, limit)?;
                text.push(0);
                text
            }
            _ => call.memory.bytes(address, len)?,
        };
        match buffer.holds {
            Holds::Bytes => {}
            Holds::Instructions => replace_objects(&mut data, |fd| call.handle_of(fd))?,
            // Entries that no instruction names may hold anything.
            Holds::Objects => replace_each(&mut data, 4, |fd| Ok(call.handle_of(fd).unwrap_or(0)))?,
            Holds::Texts => data = texts(call, &data)?,
            Holds::Element => {
                if facts.is_some_and(MapFacts::holds_objects) {
                    replace_each(&mut data, 4, |fd| call.handle_of(fd))?;
                }
            }
        }
        let room = match buffer.flow {
            Flow::In => 0,
            _ => len,
        };
        self.push(buffer.at as u32, address, data, room);
        Ok(())
    }

    /// Names the map at the start of an iterator's information. The program decides whether there
    /// is one, and the guest knows the program.
    fn name_iterated(&mut self, call: &Handler<'_>) {
        let mut parts = self.message.parts.iter();
        let info = parts.find(|part| part.at == ITER_INFO && part.data.len() >= 4);
        let object = info.and_then(|info| call.handle_of(number_at(&info.data, 0)).ok());
        self.message.iterated = object.unwrap_or(0);
    }

    /// Takes the pointers in the structure that describes an object.
    fn take_inside(&mut self, kind: Kind) -> Result<(), Errno> {
        let Some(info) = self.message.parts.first_mut() else {
            return Ok(());
        };
        if info.data.iter().skip(INFO_BYTES).any(|&byte| byte != 0) {
            return Err(E2BIG);
        }
        info.data.truncate(INFO_BYTES);
        let passed = info.data.clone();
        for buffer in buffers(kind, &passed) {
            if let Some(field) = info.data.get_mut(buffer.at..buffer.at + 8) {
                field.fill(0);
            }
        }
        for buffer in buffers(kind, &passed) {
            let address = long_at(&passed, buffer.at);
            let len = buffer.len.bytes(&passed, None).ok_or(E2BIG)?;
            if address != 0 && len > 0 {
                self.push(INSIDE | buffer.at as u32, address, Vec::new(), len);
            }
        }
        Ok(())
    }

    fn push(&mut self, at: u32, address: u64, data: Vec<u8>, room: usize) {
        self.message.parts.push(Part {
            at,
            data,
            room: room as u32,
        });
        self.destinations.push(Destination { at, address, room });
    }

    /// Returns the instructions of a program to be loaded, as taken so far.
    fn instructions(&self) -> Option<&[u8]> {
        let part = self.message.parts.iter().find(|part| part.at == 8)?;
        Some(&part.data)
    }

    /// Returns the approximate number of bytes that are sent.
    pub(super) fn len(&self) -> usize {
        let parts = self.message.parts.iter();
        self.message.attr.len() + parts.map(|part| part.data.len()).sum::<usize>()
    }

    /// Writes what the kernel wrote, even if the command failed, because a log gives the reason.
    /// `attr` is the address of the tool's attribute.
    pub(super) fn give_back(
        &self,
        memory: &Memory<'_>,
        attr: u64,
        done: &BpfDone,
    ) -> Result<(), Errno> {
        for destination in &self.destinations {
            let part = done.parts.iter().find(|part| part.at == destination.at);
            let Some(part) = part else { continue };
            let mut data = part.data.clone();
            data.truncate(destination.room);
            if Command(self.message.command) == Command::OBJ_GET_INFO_BY_FD
                && destination.at & INSIDE == 0
            {
                self.point_again(&mut data);
            }
            memory.write(destination.address, &data)?;
        }
        let size = self.message.attr.len();
        for &(at, len) in self.layout.written {
            let (Some(field), true) = (done.attr.get(at..at + len), at + len <= size) else {
                continue;
            };
            let address = attr.checked_add(at as u64);
            memory.write(address.ok_or(Errno(libc::EFAULT))?, field)?;
        }
        Ok(())
    }

    /// Restores the tool's own addresses in the structure.
    fn point_again(&self, info: &mut [u8]) {
        for destination in &self.destinations {
            if destination.at & INSIDE != 0 {
                let at = (destination.at & !INSIDE) as usize;
                put_long(info, at, destination.address);
            }
        }
    }
}

/// Replaces the first word of each piece of `size` bytes.
fn replace_each(
    data: &mut [u8],
    size: usize,
    mut other: impl FnMut(u32) -> Result<u32, Errno>,
) -> Result<(), Errno> {
    for piece in data.chunks_exact_mut(size) {
        let object = other(number_at(piece, 0))?;
        put_number(piece, 0, object);
    }
    Ok(())
}

/// Returns the texts that an array of addresses points to, one behind the other.
fn texts(call: &Handler<'_>, addresses: &[u8]) -> Result<Vec<u8>, Errno> {
    let mut texts = Vec::new();
    for address in addresses.chunks_exact(8) {
        texts.extend(call.memory.string(long_at(address, 0), NAME)?);
        texts.push(0);
        if texts.len() > BUFFER_BYTES {
            return Err(E2BIG);
        }
    }
    Ok(texts)
}

impl Handler<'_> {
    /// Returns the guest's handle of the object behind a descriptor of the tool: EBADF if there is
    /// none, EINVAL if it is something else.
    pub(super) fn handle_of(&self, fd: u32) -> Result<u32, Errno> {
        let object = self.object(fd as i32)?;
        Ok(object.handle)
    }

    /// Returns the guest's object behind a descriptor of the tool.
    pub(super) fn object(&self, fd: i32) -> Result<Arc<Object>, Errno> {
        if fd < 0 {
            return Err(EBADF);
        }
        let found = self.guest.objects.find(self.tid, fd)?;
        found.ok_or(EINVAL)
    }
}

//! Converts a tool's `union bpf_attr` to and from the wire.
//!
//! The table of [`beeline_vm_protocol::layout`] describes the parts of an attribute. The answer's
//! parts are written to the tool's memory.

use std::mem::offset_of;

use beeline_supervisor::{Call, Memory};
use beeline_uapi::attr::ProgLoad;
use beeline_uapi::fields::{put_u32, put_u64, u32_at, u64_at};
use beeline_uapi::limits::KSYM_NAME_LEN;
use beeline_uapi::{Command, Errno, MapType};
use beeline_vm_protocol::info::{INFO_BYTES, Kind, buffers};
use beeline_vm_protocol::instructions::{array_len, replace_objects};
use beeline_vm_protocol::layout::{
    ATTR_BYTES, BUFFER_BYTES, Buffer, Flow, Holds, INSIDE, Layout, Len, MapFacts,
};
use beeline_vm_protocol::messages::{Bpf, BpfDone, Part};

use super::descriptors::Descriptors;
use super::forward::BpfCall;
use crate::Guest;
use crate::connection::Connection;

const EINVAL: Errno = Errno(libc::EINVAL);
const E2BIG: Errno = Errno(libc::E2BIG);
/// The part of a program's instructions.
const INSNS: u32 = offset_of!(ProgLoad, insns) as u32;
/// The longest name of a function to attach to.
const NAME: usize = KSYM_NAME_LEN;

/// Takes the attributes of a call apart, with the tool's memory and descriptors that they name.
#[derive(Clone, Copy)]
pub(super) struct Attributes<'a> {
    call: &'a Call<'a>,
    descriptors: Descriptors<'a>,
    connection: &'a Connection,
}

/// A command on its way to the guest.
pub(super) struct Taken {
    pub(super) message: Bpf,
    pub(super) layout: Layout,
    /// The destinations of the answer's parts.
    destinations: Vec<Destination>,
}

struct Destination {
    at: u32,
    address: u64,
    room: usize,
}

impl<'a> Attributes<'a> {
    pub(super) fn new(guest: &'a Guest, call: &'a Call<'a>) -> Self {
        Self {
            call,
            descriptors: Descriptors::new(guest, call),
            connection: &guest.connection,
        }
    }

    /// Takes the attribute of a command apart.
    pub(super) fn take(&self, bpf: &BpfCall<'_>) -> Result<Taken, Errno> {
        let BpfCall {
            command,
            layout,
            attr: passed,
            first,
        } = *bpf;
        let is_set =
            |bytes: Option<&[u8]>| bytes.is_some_and(|bytes| bytes.iter().any(|byte| *byte != 0));
        if is_set(passed.get(ATTR_BYTES..)) {
            return Err(E2BIG);
        }
        if is_set(passed.get(layout.size..)) {
            return Err(EINVAL);
        }
        // The kernel takes missing bytes for zeros.
        let passed = passed.get(..layout.size).unwrap_or(passed);
        let mut attr = passed.to_vec();
        for (place, object) in layout.objects.iter().enumerate() {
            let fd = u32_at(passed, object.at);
            let handle = match (object.when.holds(passed, fd), first) {
                (false, _) => 0,
                (true, Some(first)) if place == 0 => first.handle,
                (true, _) => self.descriptors.handle_of(fd)?,
            };
            put_u32(&mut attr, object.at, handle);
        }
        let mut taken = Taken {
            message: Bpf {
                command: command.0,
                attr,
                parts: Vec::new(),
                ..Bpf::default()
            },
            layout,
            destinations: Vec::new(),
        };
        let facts = first.and_then(|object| object.facts);
        for buffer in layout.buffers {
            self.take_buffer(&mut taken, passed, buffer, facts.as_ref())?;
        }
        Ok(taken)
    }

    fn take_buffer(
        &self,
        taken: &mut Taken,
        passed: &[u8],
        buffer: &Buffer,
        facts: Option<&MapFacts>,
    ) -> Result<(), Errno> {
        let address = u64_at(passed, buffer.at);
        if address == 0 || buffer.at + 8 > passed.len() {
            return Ok(());
        }
        put_u64(&mut taken.message.attr, buffer.at, 0);
        let cpus = self.connection.welcome().possible_cpus;
        let map = facts.map(|facts| (facts, cpus));
        let mut len = buffer.len.bytes(passed, map).ok_or(E2BIG)?;
        if buffer.holds == Holds::Objects {
            let insns = taken.instructions();
            len = len.max(insns.map_or(0, |insns| array_len(insns) * 4));
        }
        let mut data = self.read(address, len, buffer, facts)?;
        let handle_of = |fd| self.descriptors.handle_of(fd);
        match buffer.holds {
            Holds::Bytes => {}
            Holds::Instructions => replace_objects(&mut data, handle_of)?,
            // Entries that no instruction names may hold anything.
            Holds::Objects => replace_each(&mut data, 4, |fd| Ok(handle_of(fd).unwrap_or(0)))?,
            Holds::Texts => data = self.texts(&data)?,
            Holds::Element => {
                if facts.is_some_and(MapFacts::holds_objects) {
                    replace_each(&mut data, 4, handle_of)?;
                }
            }
        }
        let room = match buffer.flow {
            Flow::In => 0,
            _ => len,
        };
        taken.push(buffer.at as u32, address, data, room);
        Ok(())
    }

    /// Reads a buffer of the tool's, if the kernel reads it.
    fn read(
        &self,
        address: u64,
        len: usize,
        buffer: &Buffer,
        facts: Option<&MapFacts>,
    ) -> Result<Vec<u8>, Errno> {
        let memory = &self.call.memory;
        match (buffer.flow, buffer.len) {
            (Flow::Out, _) => Ok(Vec::new()),
            // Only Bloom filters read the value of a look-up.
            (Flow::InOut, Len::Value)
                if facts.is_none_or(|facts| facts.map_type != MapType::BLOOM_FILTER) =>
            {
                Ok(Vec::new())
            }
            (_, Len::Text(limit)) => {
                let mut text = memory.string(address, limit)?;
                text.push(0);
                Ok(text)
            }
            _ => memory.bytes(address, len),
        }
    }

    /// Returns the texts that an array of addresses points to, one behind the other.
    fn texts(&self, addresses: &[u8]) -> Result<Vec<u8>, Errno> {
        let mut texts = Vec::new();
        for address in addresses.chunks_exact(8) {
            texts.extend(self.call.memory.string(u64_at(address, 0), NAME)?);
            texts.push(0);
            if texts.len() > BUFFER_BYTES {
                return Err(E2BIG);
            }
        }
        Ok(texts)
    }
}

impl Taken {
    /// Takes the pointers in the structure that describes an object.
    pub(super) fn take_inside(&mut self, kind: Kind) -> Result<(), Errno> {
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
            let address = u64_at(&passed, buffer.at);
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
        let part = self.message.parts.iter().find(|part| part.at == INSNS)?;
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
                put_u64(info, at, destination.address);
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
        let object = other(u32_at(piece, 0))?;
        put_u32(piece, 0, object);
    }
    Ok(())
}

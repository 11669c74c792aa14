//! A `bpf(2)` call that a host has sent: put together with descriptors and buffers of the proxy's
//! own, made, and taken apart again.
//!
//! Nothing that the host says is used as an address or as a descriptor. Where the table has a
//! pointer there is null or a buffer of the proxy's, as long as the table says; where it has a
//! descriptor there is one of the connection's objects.

use std::mem::offset_of;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use beeline_uapi::fields::{put_u32, put_u64, u32_at};
use beeline_uapi::{Command, MapType, attr};
use beeline_vm_protocol::info::Kind;
use beeline_vm_protocol::instructions;
use beeline_vm_protocol::layout::{ATTR_BYTES, Buffer, Flow, Holds, Layout, Len, MapFacts};
use beeline_vm_protocol::messages::{Bpf, Part};
use rustix::io::Errno;

use crate::handles::{Handles, Object, returned_fd};
use crate::refusal::Refusal;
use crate::sys::{self, Attr};

/// A call with everything that it needs.
#[derive(Debug)]
pub struct Call {
    command: Command,
    layout: Layout,
    attr: Attr,
    /// The size that the tool gave.
    size: usize,
    buffers: Vec<Given>,
    /// The objects that the attribute and the buffers name: they stay open until the call is over.
    named: Vec<Arc<Object>>,
    map: Option<MapFacts>,
    /// The handle of the object that an iterator may go over.
    iterated: u32,
    cpus: u32,
}

/// A buffer.
#[derive(Debug)]
struct Given {
    field: Buffer,
    bytes: Vec<u8>,
    /// The number of its bytes that may be returned.
    room: usize,
    /// Texts that `bytes` points to.
    _texts: Vec<u8>,
}

/// The outcome in the kernel.
#[derive(Debug)]
pub struct Outcome {
    /// The returned value, or the error.
    pub returned: Result<Returned, Errno>,
    /// The attribute, without pointers and descriptors.
    pub attr: Vec<u8>,
    /// The buffers that it wrote.
    pub parts: Vec<Part>,
}

/// The result of a call.
#[derive(Debug)]
pub enum Returned {
    /// A number.
    Value(u64),
    /// A descriptor.
    Made(OwnedFd),
}

fn invalid(why: impl Into<String>) -> Refusal {
    Refusal::new(libc::EINVAL, why)
}

impl Call {
    /// Puts the call together. `cpus` is the number of possible CPUs.
    ///
    /// # Errors
    ///
    /// `E2BIG` if unknown fields are set or a buffer is too long, `EINVAL` for a buffer that the
    /// command does not have or that has another length, `ENAMETOOLONG` for a text that is too
    /// long, `EBADF` for an unknown handle, `EOPNOTSUPP` for numbers that the kernel would take for
    /// descriptors of the guest's.
    pub fn new(
        request: Bpf,
        layout: Layout,
        handles: &Handles,
        cpus: u32,
    ) -> Result<Self, Refusal> {
        let size = request.attr.len().min(ATTR_BYTES);
        let rest = request.attr.get(layout.size..).unwrap_or_default();
        if rest.iter().any(|byte| *byte != 0) {
            let why = format!("{}: fields that are not known here are set", layout.name);
            return Err(Refusal::new(libc::E2BIG, why));
        }
        let mut call = Self {
            command: Command(request.command),
            attr: Attr::new(&request.attr),
            layout,
            size,
            buffers: Vec::new(),
            named: Vec::new(),
            map: None,
            iterated: request.iterated,
            cpus,
        };
        for field in layout.buffers {
            put_u64(call.attr.bytes_mut(), field.at, 0);
        }
        call.put_objects(handles)?;
        if call.command == Command::TASK_FD_QUERY {
            // The process that has the descriptor, whatever the host says.
            let pid = offset_of!(attr::TaskFdQuery, pid);
            put_u32(call.attr.bytes_mut(), pid, std::process::id());
        }
        let mut parts = request.parts;
        call.in_order(&mut parts);
        for part in parts {
            call.put_buffer(part, handles)?;
        }
        Ok(call)
    }

    /// Sorts the parts. The instructions come first, since they determine the length of the array
    /// of descriptors.
    fn in_order(&self, parts: &mut [Part]) {
        parts.sort_by_key(|part| part.at);
    }

    fn put_objects(&mut self, handles: &Handles) -> Result<(), Refusal> {
        // The flags that say what is a descriptor are read before any field changes.
        let before = self.attr.clone();
        for (place, object) in self.layout.objects.iter().enumerate() {
            let handle = u32_at(before.bytes(), object.at);
            if !object.when.holds(before.bytes(), handle) {
                continue;
            }
            let fd = if handle == 0 {
                -1
            } else {
                let object = handles.get(handle)?;
                if place == 0 {
                    self.map = object.facts;
                }
                let fd = object.fd.as_raw_fd();
                self.named.push(object);
                fd
            };
            put_u32(self.attr.bytes_mut(), object.at, fd as u32);
        }
        Ok(())
    }

    fn put_buffer(&mut self, part: Part, handles: &Handles) -> Result<(), Refusal> {
        let at = part.at as usize;
        let Some(field) = self.layout.buffers.iter().find(|field| field.at == at) else {
            let why = format!("{} has no pointer at {at}", self.layout.name);
            return Err(invalid(why));
        };
        if at + 8 > self.size || self.buffers.iter().any(|given| given.field.at == at) {
            return Err(invalid("a buffer for a field that is not there"));
        }
        let len = self.len(field)?;
        let mut texts = Vec::new();
        let mut bytes = part.data;
        match (field.flow, field.len, field.holds) {
            (Flow::In, Len::Text(_), _) => {
                if bytes.len() > len {
                    return Err(Refusal::new(libc::ENAMETOOLONG, ""));
                }
                bytes.push(0);
            }
            (Flow::In, _, Holds::Texts) => {
                texts = bytes;
                bytes = pointers(&mut texts, len / 8)?;
            }
            (Flow::In, ..) => expect(&self.layout, at, bytes.len(), len)?,
            (Flow::Out, ..) => bytes = vec![0; len],
            (Flow::InOut, ..) if bytes.is_empty() => bytes = vec![0; len],
            (Flow::InOut, ..) => expect(&self.layout, at, bytes.len(), len)?,
        }
        self.name_objects(field, &mut bytes, handles)?;
        let room = match field.flow {
            Flow::In => 0,
            Flow::Out | Flow::InOut => len.min(part.room as usize),
        };
        self.buffers.push(Given {
            field: *field,
            bytes,
            room,
            _texts: texts,
        });
        Ok(())
    }

    fn len(&self, field: &Buffer) -> Result<usize, Refusal> {
        let attr = self.attr.bytes();
        let map = self.map.as_ref().map(|map| (map, self.cpus));
        let len = field.len.bytes(attr, map).ok_or_else(|| {
            let why = format!(
                "{}: the buffer at {} is too long, or its map is none",
                self.layout.name, field.at
            );
            Refusal::new(libc::E2BIG, why)
        })?;
        if field.holds == Holds::Objects && len == 0 {
            let insns = self.buffers.iter();
            let mut insns = insns.filter(|given| given.field.holds == Holds::Instructions);
            return Ok(insns
                .next()
                .map_or(0, |given| 4 * instructions::array_len(&given.bytes)));
        }
        Ok(len)
    }

    /// Puts descriptors in the places of handles.
    fn name_objects(
        &mut self,
        field: &Buffer,
        bytes: &mut [u8],
        handles: &Handles,
    ) -> Result<(), Refusal> {
        let named = &mut self.named;
        let fd = |handle: u32| -> Result<u32, Refusal> {
            if handle == 0 {
                return Ok(u32::MAX);
            }
            let object = handles.get(handle)?;
            let fd = object.fd.as_raw_fd();
            named.push(object);
            Ok(fd as u32)
        };
        match field.holds {
            Holds::Instructions => instructions::replace_objects(bytes, fd),
            Holds::Objects => each(bytes, fd),
            Holds::Element => match &self.map {
                Some(map) if map.holds_objects() => each(bytes, fd),
                Some(map) if takes_descriptors(map) => Err(Refusal::new(
                    libc::EOPNOTSUPP,
                    "elements of such a map are descriptors of the guest's, which a host has none of",
                )),
                _ => Ok(()),
            },
            Holds::Bytes if self.command == Command::LINK_CREATE && field.at == ITERATED => {
                let program = offset_of!(attr::LinkCreate, prog_fd);
                let program = u32_at(self.attr.bytes(), program);
                let mut objects = named.iter();
                let program = objects.find(|object| object.fd.as_raw_fd() as u32 == program);
                let iterator = program.and_then(|program| program.place.clone());
                let iterated = (self.iterated, handles);
                name_iterated(iterator.as_deref(), bytes, iterated, named)
            }
            Holds::Bytes | Holds::Texts => Ok(()),
        }
    }

    /// Checks that every buffer is as long as the kernel takes it to be. For fuzzing: a failure is
    /// a bug in this file.
    pub(crate) fn check(&self) {
        for given in &self.buffers {
            let expected = match given.field.len {
                // A zero was added.
                Len::Text(_) => given.bytes.len(),
                _ => self.len(&given.field).unwrap_or(usize::MAX),
            };
            assert_eq!(given.bytes.len(), expected, "{:?}", given.field);
            assert!(given.room <= given.bytes.len());
        }
    }

    /// Makes the call.
    pub fn make(mut self) -> Outcome {
        // An empty buffer stays null: where a length of 0 means that it is unknown, the kernel
        // writes as much as it has.
        let buffers = self.buffers.iter_mut();
        for given in buffers.filter(|given| !given.bytes.is_empty()) {
            self.attr.point(given.field.at, &mut given.bytes);
        }
        // SAFETY: the table says which fields are addresses. All of them are null or have just been
        // set to a buffer, which is as long as the table says that the command reads and writes; no
        // other code has it. Fields that the table does not know are 0.
        let returned = unsafe { sys::bpf(self.command, &mut self.attr, self.size) };
        let returned = returned.map(|value| match self.layout.makes {
            // SAFETY: the command returns a descriptor, and this call is its only owner.
            true => Returned::Made(unsafe { returned_fd(value) }),
            false => Returned::Value(value),
        });
        let attr = self.attr_for_host();
        let parts = self.parts(returned.as_ref().err().copied());
        Outcome {
            returned,
            attr,
            parts,
        }
    }

    fn attr_for_host(&mut self) -> Vec<u8> {
        for field in self.layout.buffers {
            put_u64(self.attr.bytes_mut(), field.at, 0);
        }
        for object in self.layout.objects {
            put_u32(self.attr.bytes_mut(), object.at, 0);
        }
        self.attr.bytes()[..self.size].to_vec()
    }

    /// Returns the buffers that the kernel wrote, as far as it did.
    fn parts(self, error: Option<Errno>) -> Vec<Part> {
        let partly = is_log(self.command) || self.command == Command::PROG_TEST_RUN;
        let is_written = match error {
            None => true,
            // A name that is longer than the room is returned as far as there is any.
            Some(error) if self.command == Command::TASK_FD_QUERY => error == Errno::NOSPC,
            // This is how batches end.
            Some(error) => error == Errno::NOENT && !is_element(self.command),
        };
        if !partly && !is_written {
            return Vec::new();
        }
        let (attr, map, cpus) = (self.attr, self.map, self.cpus);
        let written = self.buffers.into_iter().filter(|given| given.room > 0);
        let written = written.map(|mut given| {
            let count = match given.field.len {
                // The count is now that of the existing elements.
                len @ (Len::Keys(_) | Len::Values(_)) => {
                    let map = map.as_ref().map(|map| (map, cpus));
                    len.bytes(attr.bytes(), map).unwrap_or(0)
                }
                Len::Count(_) if is_text(self.command) => {
                    let end = given.bytes.iter().position(|byte| *byte == 0);
                    end.map_or(given.room, |end| end + 1)
                }
                _ => given.room,
            };
            given.bytes.truncate(count.min(given.room));
            Part {
                at: given.field.at as u32,
                data: given.bytes,
                room: 0,
            }
        });
        written
            .filter(|part| part.data != [0] || !is_log(self.command))
            .collect()
    }

    /// Returns the attribute, with descriptors in it.
    pub fn attr(&self) -> &[u8] {
        self.attr.bytes()
    }

    /// Returns the bytes behind a field.
    pub fn buffer(&self, at: usize) -> Option<&[u8]> {
        let mut buffers = self.buffers.iter();
        let given = buffers.find(|given| given.field.at == at)?;
        Some(&given.bytes)
    }

    /// Returns the texts behind a field, one after the other, each with a zero.
    pub fn texts(&self, at: usize) -> Option<&[u8]> {
        let mut buffers = self.buffers.iter();
        let given = buffers.find(|given| given.field.at == at)?;
        Some(&given._texts)
    }

    /// Puts another text behind a field.
    pub fn set_text(&mut self, at: usize, text: &[u8]) {
        let mut buffers = self.buffers.iter_mut();
        if let Some(given) = buffers.find(|given| given.field.at == at) {
            given.bytes = text.to_vec();
            given.bytes.push(0);
        }
    }

    /// Returns the object that a field of the attribute names.
    pub fn object(&self, fd: u32) -> Option<&Arc<Object>> {
        let mut named = self.named.iter();
        named.find(|object| object.fd.as_raw_fd() as u32 == fd)
    }

    /// Returns the kind of object that the call makes.
    pub fn kind(&self) -> Kind {
        match self.command {
            Command::MAP_CREATE | Command::MAP_GET_FD_BY_ID => Kind::Map,
            Command::PROG_LOAD | Command::PROG_GET_FD_BY_ID => Kind::Program,
            Command::BTF_LOAD | Command::BTF_GET_FD_BY_ID => Kind::Btf,
            Command::LINK_CREATE | Command::LINK_GET_FD_BY_ID | Command::RAW_TRACEPOINT_OPEN => {
                Kind::Link
            }
            _ => Kind::Other,
        }
    }
}

fn is_element(command: Command) -> bool {
    (Command::MAP_LOOKUP_ELEM..=Command::MAP_GET_NEXT_KEY).contains(&command)
        || command == Command::MAP_LOOKUP_AND_DELETE_ELEM
}

/// The offset in `BPF_LINK_CREATE` of the pointer to the object that an iterator goes over.
const ITERATED: usize = offset_of!(attr::LinkCreateIter, iter_info);

/// Names the objects in `union bpf_iter_link_info`, which begins differently for each iterator.
fn name_iterated(
    iterator: Option<&str>,
    info: &mut [u8],
    (iterated, handles): (u32, &Handles),
    named: &mut Vec<Arc<Object>>,
) -> Result<(), Refusal> {
    let descriptors = match iterator {
        Some("iter:bpf_map_elem" | "iter:bpf_sk_storage_map" | "iter:sockmap") => {
            let map = handles.of_kind(iterated, Kind::Map)?;
            put_u32(info, 0, map.fd.as_raw_fd() as u32);
            named.push(map);
            &[][..]
        }
        // `cgroup_fd`, and `pid_fd`.
        Some("iter:cgroup") => &[4],
        Some("iter:task" | "iter:task_file" | "iter:task_vma") => &[8],
        // It is unknown which part of it the kernel takes for a descriptor.
        _ => &[0, 4, 8],
    };
    if descriptors.iter().any(|at| u32_at(info, *at) != 0) {
        let why =
            "an iterator cannot be given a descriptor of the guest's by a host, which has none";
        return Err(Refusal::new(libc::EOPNOTSUPP, why));
    }
    Ok(())
}

/// True for a call that writes a text that ends with a zero, as much of it as there is room for.
fn is_text(command: Command) -> bool {
    is_log(command) || command == Command::TASK_FD_QUERY
}

/// True for a call that writes a log.
fn is_log(command: Command) -> bool {
    matches!(command, Command::PROG_LOAD | Command::BTF_LOAD)
}

fn expect(layout: &Layout, at: usize, is: usize, should: usize) -> Result<(), Refusal> {
    if is != should {
        let why = format!("{}: {is} bytes at {at} in place of {should}", layout.name);
        return Err(invalid(why));
    }
    Ok(())
}

fn each(
    bytes: &mut [u8],
    mut other: impl FnMut(u32) -> Result<u32, Refusal>,
) -> Result<(), Refusal> {
    for word in bytes.chunks_exact_mut(4) {
        let object = other(u32_at(word, 0))?;
        put_u32(word, 0, object);
    }
    Ok(())
}

/// Returns the addresses of this many texts, each with a zero at its end.
fn pointers(texts: &mut [u8], count: usize) -> Result<Vec<u8>, Refusal> {
    let ends = texts.iter().filter(|byte| **byte == 0).count();
    if ends != count || texts.last().is_some_and(|last| *last != 0) {
        return Err(invalid(format!("{ends} texts in place of {count}")));
    }
    let mut start = texts.as_mut_ptr().expose_provenance() as u64;
    let mut pointers = Vec::with_capacity(count * 8);
    for text in texts.split_inclusive(|byte| *byte == 0) {
        pointers.extend(start.to_ne_bytes());
        start += text.len() as u64;
    }
    Ok(pointers)
}

/// True if the map's keys or values, or parts of them, are descriptors. For maps of objects that
/// the protocol knows, see [`MapFacts::holds_objects`].
fn takes_descriptors(map: &MapFacts) -> bool {
    matches!(
        map.map_type,
        MapType::CGROUP_ARRAY
            | MapType::DEVMAP
            | MapType::SOCKMAP
            | MapType::CPUMAP
            | MapType::XSKMAP
            | MapType::SOCKHASH
            | MapType::REUSEPORT_SOCKARRAY
            | MapType::SK_STORAGE
            | MapType::DEVMAP_HASH
            | MapType::STRUCT_OPS
            | MapType::INODE_STORAGE
            | MapType::TASK_STORAGE
            | MapType::CGRP_STORAGE
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A number that the kernel took for a descriptor would be one of the proxy's, or of another
    /// host.
    #[test]
    fn no_number_of_a_host_becomes_a_descriptor() {
        let handles = Handles::default();
        let name = |iterator, words: [u32; 3]| {
            let mut info: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            name_iterated(iterator, &mut info, (0, &handles), &mut Vec::new())
        };
        let map = [
            "iter:bpf_map_elem",
            "iter:bpf_sk_storage_map",
            "iter:sockmap",
        ];
        for iterator in map {
            assert_eq!(
                name(Some(iterator), [5, 0, 0]).unwrap_err().errno,
                libc::EBADF
            );
        }
        assert!(name(Some("iter:cgroup"), [1, 0, 0]).is_ok());
        assert!(name(Some("iter:cgroup"), [1, 5, 0]).is_err());
        assert!(name(Some("iter:task_vma"), [7, 8, 0]).is_ok());
        assert!(name(Some("iter:task_vma"), [7, 8, 5]).is_err());
        for unknown in [None, Some("iter:module:#9"), Some("program:unknown")] {
            assert!(name(unknown, [0; 3]).is_ok());
            for at in 0..3 {
                let mut words = [0; 3];
                words[at] = 5;
                assert!(name(unknown, words).is_err(), "{unknown:?} {at}");
            }
        }
    }
}

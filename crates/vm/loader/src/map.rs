//! Maps in the guest.

use std::collections::BTreeMap;
use std::sync::Arc;

use beeline_object::{Contents, MapDefinition};
use beeline_uapi::flags::RDONLY_PROG;
use beeline_uapi::perf::PERF_MAX_STACK_DEPTH;
use beeline_uapi::{Command, MapType, attr, attr_offset as at, offset_behind};
use beeline_vm_protocol::layout::MapFacts;
use beeline_vm_protocol::messages::guest_message::Body as Said;
use beeline_vm_protocol::messages::host_message::Body as Asked;
use beeline_vm_protocol::messages::{BpfDone, Iterate, Part, Welcome};

use crate::error::Error;
use crate::handle::{Answer, Attr, Handle, Line, given, room};

/// Bytes of an address in a stack trace, and frames where the file leaves that open
/// (`kernel.perf_event_max_stack`).
const FRAME: u32 = 8;
const FRAMES: u32 = PERF_MAX_STACK_DEPTH;
/// The number of elements of one answer.
const STEP: u32 = 4096;

/// Keys and values of a map.
pub type Elements = BTreeMap<Vec<u8>, Vec<u8>>;

/// A map in the guest.
#[derive(Debug)]
pub struct Map {
    pub(crate) handle: Handle,
    pub(crate) definition: MapDefinition,
    facts: MapFacts,
    cpus: u32,
}

impl Map {
    /// Makes the map with its initial content, except for maps and programs.
    pub(crate) fn new(
        line: &Arc<Line>,
        definition: &MapDefinition,
        types: Option<&Handle>,
    ) -> Result<Self, Error> {
        let map = Self::empty(line, definition, types)?;
        if let Contents::Value(value) = &definition.contents {
            map.put(&0u32.to_ne_bytes(), value)?;
            if definition.flags & RDONLY_PROG != 0 {
                let attr = Attr::new(offset_behind!(attr::Element, map_fd))
                    .with(at!(Element.map_fd), map.handle.number)
                    .bytes();
                map.told(line.bpf(Command::MAP_FREEZE, attr, Vec::new()))?;
            }
        }
        Ok(map)
    }

    fn empty(
        line: &Arc<Line>,
        definition: &MapDefinition,
        types: Option<&Handle>,
    ) -> Result<Self, Error> {
        let inner = definition.inner.as_deref();
        let inner = inner.map(|inner| Self::empty(line, inner, types));
        let inner = inner.transpose()?;
        let welcome = line.client.welcome();
        let facts = facts(definition, welcome);
        let attr = || {
            Attr::new(offset_behind!(attr::MapCreate, map_token_fd))
                .with(at!(MapCreate.map_type), facts.map_type.0)
                .with(at!(MapCreate.key_size), facts.key_size)
                .with(at!(MapCreate.value_size), facts.value_size)
                .with(at!(MapCreate.max_entries), facts.max_entries)
                .with(at!(MapCreate.map_flags), facts.flags)
                .with(
                    at!(MapCreate.inner_map_fd),
                    inner.as_ref().map_or(0, |map| map.handle.number),
                )
                .with_name(at!(MapCreate.map_name), &definition.name)
                .with_long(at!(MapCreate.map_extra), definition.map_extra)
        };
        let make = |attr: Attr| line.make(Command::MAP_CREATE, attr.bytes(), Vec::new());
        let mut made = None;
        if let Some(types) = types.filter(|_| definition.value_type != 0) {
            let attr = attr()
                .with(at!(MapCreate.btf_fd), types.number)
                .with(at!(MapCreate.btf_key_type_id), definition.key_type)
                .with(at!(MapCreate.btf_value_type_id), definition.value_type);
            // Not every type of map takes types; such a map does without, as with libbpf.
            made = make(attr)?.ok();
        }
        let made = match made {
            Some(made) => Ok(made),
            None => make(attr())?,
        };
        let handle = made.map_err(|refusal| Error::Map {
            name: definition.name.clone(),
            refusal,
        })?;
        Ok(Self {
            handle,
            definition: definition.clone(),
            facts,
            cpus: welcome.possible_cpus,
        })
    }

    /// Returns its variable's name, or that of the section with the variables that it holds.
    pub fn name(&self) -> &str {
        &self.definition.name
    }

    /// Returns its description in the object, with the types of keys and values.
    pub fn definition(&self) -> &MapDefinition {
        &self.definition
    }

    /// Returns the size of a key in bytes.
    pub fn key_len(&self) -> usize {
        self.facts.key_size as usize
    }

    /// Returns the size of a value in bytes as [`Self::get`] returns it. For per-CPU maps that is
    /// the values of all possible CPUs one behind the other, each in whole 8 bytes.
    pub fn value_len(&self) -> usize {
        self.facts.value_len(self.cpus)
    }

    /// Returns the distance in bytes from one CPU's value to the next one's, if there is one for
    /// each.
    pub fn stride(&self) -> Option<usize> {
        let per_cpu = matches!(
            self.facts.map_type,
            MapType::PERCPU_HASH | MapType::PERCPU_ARRAY | MapType::LRU_PERCPU_HASH
        );
        per_cpu.then(|| (self.facts.value_size as usize).next_multiple_of(8))
    }

    /// True if it is a ring that programs write records to.
    pub fn is_ring(&self) -> bool {
        self.facts.is_ring() || self.facts.map_type == MapType::PERF_EVENT_ARRAY
    }

    /// True if it is one ring, and not one for each CPU.
    pub(crate) fn ring_is_one(&self) -> bool {
        self.facts.is_ring()
    }

    pub(crate) fn ring_bytes(&self) -> u64 {
        self.facts.max_entries.into()
    }

    /// True if it has elements that can be watched. That excludes rings, maps of objects, queues,
    /// and maps that cannot change.
    pub fn can_change(&self) -> bool {
        let has_elements = matches!(
            self.facts.map_type,
            MapType::HASH
                | MapType::ARRAY
                | MapType::PERCPU_HASH
                | MapType::PERCPU_ARRAY
                | MapType::LRU_HASH
                | MapType::LRU_PERCPU_HASH
                | MapType::LPM_TRIE
        );
        has_elements && self.facts.flags & RDONLY_PROG == 0
    }

    /// Returns the value of a key; `None` if there is no such element.
    ///
    /// # Errors
    ///
    /// [`Error::Length`] if the key is not as long as the map's. [`Error::Map`] if the guest
    /// refuses. [`Error::Lost`] and [`Error::Nonsense`] if it does not answer as it should.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.check("key", key.len(), self.key_len())?;
        let parts = vec![
            given(at!(Element.key), key),
            room(at!(Element.value), self.value_len()),
        ];
        let done = self.bpf(Command::MAP_LOOKUP_ELEM, parts)?;
        let mut parts = match done {
            Err(refusal) if refusal.errno == libc::ENOENT => return Ok(None),
            done => self.told(Ok(done))?.parts.into_iter(),
        };
        match parts.find(|part| part.at as usize == at!(Element.value)) {
            Some(part) if part.data.len() == self.value_len() => Ok(Some(part.data)),
            _ => Err(Error::Nonsense("a value of another length")),
        }
    }

    /// Stores a value under a key.
    ///
    /// # Errors
    ///
    /// [`Error::Length`] if the key or the value is not as long as the map's. [`Error::Map`] if the
    /// guest refuses. [`Error::Lost`] and [`Error::Nonsense`] if it does not answer as it should.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.check("key", key.len(), self.key_len())?;
        self.check("value", value.len(), self.value_len())?;
        let parts = vec![
            given(at!(Element.key), key),
            given(at!(Element.value), value),
        ];
        let done = self.bpf(Command::MAP_UPDATE_ELEM, parts);
        self.told(done).map(drop)
    }

    /// Deletes an element. Returns whether it was there.
    ///
    /// # Errors
    ///
    /// [`Error::Length`] if the key is not as long as the map's. [`Error::Map`] if the guest
    /// refuses. [`Error::Lost`] and [`Error::Nonsense`] if it does not answer as it should.
    pub fn delete(&self, key: &[u8]) -> Result<bool, Error> {
        self.check("key", key.len(), self.key_len())?;
        match self.bpf(Command::MAP_DELETE_ELEM, vec![given(at!(Element.key), key)])? {
            Err(refusal) if refusal.errno == libc::ENOENT => Ok(false),
            done => self.told(Ok(done)).map(|_| true),
        }
    }

    /// Returns all elements. One that comes or goes meanwhile may be missing.
    ///
    /// # Errors
    ///
    /// [`Error::Map`] if the guest refuses. [`Error::Lost`] and [`Error::Nonsense`] if it does not
    /// answer as it should.
    pub fn elements(&self) -> Result<Elements, Error> {
        let mut elements = Elements::new();
        let (mut last, mut seen) = (Vec::new(), 0);
        loop {
            let request = Asked::Iterate(Iterate {
                handle: self.handle.number,
                after: last,
                count: STEP,
            });
            let iterated = match self.told(self.handle.line.ask(request))? {
                Said::Iterated(iterated) => iterated,
                _ => return Err(Error::Nonsense("an answer to another question")),
            };
            let (key, value) = (self.key_len().max(1), self.value_len().max(1));
            let count = iterated.keys.len() / key;
            if iterated.keys.len() != count * key || iterated.values.len() != count * value {
                return Err(Error::Nonsense("keys and values of other lengths"));
            }
            if count > STEP as usize {
                return Err(Error::Nonsense("more elements than it was asked for"));
            }
            let pairs = iterated.keys.chunks(key).zip(iterated.values.chunks(value));
            elements.extend(pairs.map(|(key, value)| (key.to_vec(), value.to_vec())));
            seen += count;
            // The iteration through a hash that changes may begin again, and would never end.
            if iterated.end || count == 0 || seen > 2 * self.facts.max_entries as usize {
                return Ok(elements);
            }
            last = iterated.keys[(count - 1) * key..].to_vec();
        }
    }

    fn bpf(&self, command: Command, parts: Vec<Part>) -> Answer<BpfDone> {
        let attr = Attr::new(size_of::<attr::Element>())
            .with(at!(Element.map_fd), self.handle.number)
            .bytes();
        self.handle.line.bpf(command, attr, parts)
    }

    fn told<T>(&self, answer: Answer<T>) -> Result<T, Error> {
        answer?.map_err(|refusal| Error::Map {
            name: self.name().to_owned(),
            refusal,
        })
    }

    fn check(&self, what: &'static str, is: usize, should: usize) -> Result<(), Error> {
        match is == should {
            true => Ok(()),
            false => Err(Error::Length {
                map: self.name().to_owned(),
                what,
                is,
                should,
            }),
        }
    }
}

/// Returns what libbpf requests from the kernel where the file leaves it open.
fn facts(definition: &MapDefinition, welcome: &Welcome) -> MapFacts {
    let number = |given: u32, otherwise: u32| if given == 0 { otherwise } else { given };
    let map_type = definition.map_type;
    let (key, value) = match map_type {
        MapType::PROG_ARRAY | MapType::PERF_EVENT_ARRAY | MapType::ARRAY_OF_MAPS => (4, 4),
        MapType::HASH_OF_MAPS => (0, 4),
        MapType::STACK_TRACE => (4, FRAME * FRAMES),
        _ => (0, 0),
    };
    MapFacts {
        map_type,
        key_size: number(definition.key_size, key),
        value_size: number(definition.value_size, value),
        max_entries: definition.entries(welcome.possible_cpus, welcome.page_size.max(4096)),
        flags: definition.flags,
    }
}

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use beeline_maps::{Caller, Map};
use beeline_uapi::{Errno, MapType, flags};

use super::View;
use crate::backend::{Id, MapSpec, SpecialFields};
use crate::budget::Budget;
use crate::domain::Domain;
use crate::map::MapObject;

mod copies;
mod sums;
mod unions;

const CPUS: u32 = 3;
/// As many as there are keys, so that no map is ever full.
const KEYS: u32 = 12;
const DOMAINS: u32 = 3;

fn spec(map_type: MapType, value_size: u32) -> MapSpec {
    MapSpec {
        map_type,
        key_size: 4,
        value_size,
        max_entries: KEYS,
        flags: 0,
        map_extra: 0,
        name: "test".to_owned(),
        inner: None,
        fields: SpecialFields::default(),
        value_type: None,
    }
}

fn map(spec: &MapSpec) -> MapObject {
    MapObject::new(Id(1), spec, None, CPUS, &Budget::default()).expect("the spec is right")
}

/// A map with three shards, and one that is whole.
struct Pair {
    divided: MapObject,
    whole: MapObject,
    /// Those of the further shards.
    domains: Vec<Arc<Domain>>,
}

impl Pair {
    fn new(spec: &MapSpec, view: View) -> Self {
        let divided = map(spec);
        divided.see_as(&view).expect("such a map has this view");
        let domains: Vec<_> = (1..DOMAINS).map(Domain::for_test).collect();
        for domain in &domains {
            divided.shard_of(domain).expect("there is room");
        }
        let whole = map(spec);
        Self {
            divided,
            whole,
            domains,
        }
    }

    /// Returns the handle that programs of a domain have.
    fn of_domain(&self, domain: u32) -> Map {
        match domain {
            0 => *self.divided.here(),
            _ => {
                let domain = &self.domains[domain as usize - 1];
                *self.divided.shard_of(domain).unwrap().here()
            }
        }
    }

    /// Ends all processes of a domain. Others come, and make a new one.
    fn retire(&mut self, domain: u32) {
        let domain = &mut self.domains[domain as usize - 1];
        assert_eq!(self.divided.retire(domain.id), Ok(()));
        *domain = Domain::for_test(domain.id.0 + DOMAINS);
        self.divided.shard_of(domain).expect("there is room");
    }

    fn is_array(&self) -> bool {
        [MapType::ARRAY, MapType::PERCPU_ARRAY].contains(&self.whole.spec.map_type)
    }

    /// Runs an operation of the tool's on both, and compares what it returns and leaves in `room`.
    #[track_caller]
    fn compare<T>(&self, room: usize, work: impl Fn(&MapObject, &mut [u8]) -> T)
    where
        T: PartialEq + std::fmt::Debug,
    {
        let (mut one, mut other) = (vec![0; room], vec![0; room]);
        let divided = work(&self.divided, &mut one);
        assert_eq!(divided, work(&self.whole, &mut other));
        assert_eq!(one, other);
    }

    /// Does one thing to one element, as the tool.
    fn operate(&self, random: &mut Random, key: u32) {
        let (key, len) = (key.to_ne_bytes(), self.whole.here().value_len());
        match random.below(4) {
            0 => self.compare(len, |map, value| map.lookup(&key, value, 0)),
            1 => {
                let flags = random.below(4).into();
                let value = value_of(&self.whole, |_, _| random.next());
                self.compare(0, |map, _| map.update(&key, &value, flags));
            }
            2 => self.compare(0, |map, _| map.delete(&key)),
            _ => self.compare(len, |map, value| map.lookup_and_delete(&key, value, 0)),
        }
    }

    /// Reads all in batches of random sizes.
    fn read_all(&self, random: &mut Random, delete: bool) -> Elements {
        let mut all = Elements::new();
        let mut cursor = 0;
        loop {
            let room = random.below(5) + 1;
            let divided = read(&self.divided, cursor, room, delete);
            assert_eq!(divided, read(&self.whole, cursor, room, delete));
            match divided {
                Ok((batch, elements)) => {
                    let count = all.len() + elements.len();
                    all.extend(elements);
                    assert_eq!(all.len(), count, "an element was met twice");
                    match batch.next {
                        Some(next) => cursor = next,
                        None => return all,
                    }
                }
                Err(error) => assert_eq!(error, Errno::ENOSPC),
            }
        }
    }

    /// Compares all that can be read.
    fn compare_all(&self, random: &mut Random) {
        let elements = self.read_all(random, false);
        let keys: BTreeSet<_> = elements.into_keys().collect();
        assert_eq!(keys_of(&self.divided), keys);
        assert_eq!(keys_of(&self.whole), keys);
    }
}

type Elements = BTreeMap<Vec<u8>, Vec<u8>>;

fn read(
    map: &MapObject,
    cursor: u32,
    room: u32,
    delete: bool,
) -> Result<(beeline_maps::Batch, Elements), Errno> {
    let len = map.here().value_len();
    let (mut keys, mut values) = (vec![0; 4 * room as usize], vec![0; len * room as usize]);
    let batch = map.read_batch(cursor, (&mut keys, &mut values), delete)?;
    let elements = keys.chunks(4).zip(values.chunks(len));
    let elements: Elements = elements
        .take(batch.count as usize)
        .map(|(key, value)| (key.to_vec(), value.to_vec()))
        .collect();
    assert_eq!(elements.len(), batch.count as usize);
    Ok((batch, elements))
}

/// Goes through the keys, of which none may come twice.
fn keys_of(map: &MapObject) -> BTreeSet<Vec<u8>> {
    let mut keys = BTreeSet::new();
    let mut last: Option<Vec<u8>> = None;
    loop {
        let mut next = vec![0; 4];
        match map.next_key(last.as_deref(), &mut next) {
            Ok(()) => assert!(keys.insert(next.clone()), "a key was met twice"),
            Err(error) => {
                assert_eq!(error, Errno::ENOENT);
                return keys;
            }
        }
        last = Some(next);
    }
}

/// Makes a value as the system calls see it; `word` gives each CPU's words.
fn value_of(map: &MapObject, mut word: impl FnMut(u32, usize) -> u64) -> Vec<u8> {
    let size = map.spec.value_size as usize;
    let stride = size.next_multiple_of(8);
    let mut value = vec![0; map.here().value_len()];
    for (cpu, value) in (0..).zip(value.chunks_mut(stride)) {
        for (n, bytes) in value[..size].chunks_mut(8).enumerate() {
            let word = word(cpu, n).to_le_bytes();
            bytes.copy_from_slice(&word[..bytes.len()]);
        }
    }
    value
}

fn program(cpu: u32) -> Caller {
    Caller {
        owner: 7,
        cpu,
        relax: |_| true,
        context: 0,
    }
}

/// Adds to the words of a program's value, which is made if it is not there.
fn add(map: &Map, key: u32, cpu: u32, amounts: &[u64]) {
    let key = key.to_ne_bytes();
    // SAFETY: keys have 4 bytes.
    let found = unsafe { map.lookup(key.as_ptr(), cpu) };
    if found.is_null() {
        // SAFETY: keys have 4 bytes, and the maps of these tests values of as many words.
        let made = unsafe { map.update(key.as_ptr(), amounts.as_ptr().cast(), 1, &program(cpu)) };
        assert_eq!(made, Ok(()));
        return;
    }
    for (n, amount) in amounts.iter().enumerate() {
        // SAFETY: a value has as many words, 8-aligned, and nothing else uses it.
        unsafe {
            let word = found.cast::<u64>().add(n);
            word.write(word.read().wrapping_add(*amount));
        }
    }
}

/// Numbers that are the same in each run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: u32) -> u32 {
        ((self.next() >> 32) % u64::from(end)) as u32
    }
}

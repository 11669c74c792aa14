//! The map types as data, for tests that treat each the same way.

use beeline_maps::{Caller, Map, Spec, ringbuf::Ring};
use beeline_uapi::{Errno, MapType};

use super::{Consumer, Ours, caller, children::random, spec, stacks};

/// The operations on a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Elements are added and removed by their keys, until the map is full.
    Keyed,
    /// As `Keyed`, but a full map makes room.
    Evicting,
    /// All elements are always there.
    Indexed,
    /// Push, pop and peek.
    Pile,
    /// Push and peek.
    Filter,
    /// Records to one consumer.
    Records,
    /// Stacks by their hash.
    Stacks,
}

/// A map to test with.
#[derive(Debug, Clone, Copy)]
pub struct Subject {
    pub name: &'static str,
    pub family: Family,
    pub spec: Spec,
}

/// Bytes of a value.
pub const VALUE: usize = 16;
/// Bytes of a ring buffer's data.
pub const RING: u32 = 4096;
/// Frames of a stack.
pub const FRAMES: usize = 8;

/// One map of each type, with room for `entries` elements where that can be chosen.
pub fn subjects(entries: u32) -> Vec<Subject> {
    let of = |name, family, spec| Subject { name, family, spec };
    let value = VALUE as u32;
    let sized = |map_type, key| spec(map_type, key, value, entries);
    let mut trie = sized(MapType::LPM_TRIE, 8);
    trie.flags = beeline_uapi::flags::NO_PREALLOC;
    let ring = spec(MapType::RINGBUF, 0, 0, RING);
    let stacks = spec(MapType::STACK_TRACE, 4, FRAMES as u32 * 8, entries);
    vec![
        of("hash", Family::Keyed, sized(MapType::HASH, 8)),
        of("percpu_hash", Family::Keyed, sized(MapType::PERCPU_HASH, 8)),
        of("lru_hash", Family::Evicting, sized(MapType::LRU_HASH, 8)),
        of(
            "lru_percpu_hash",
            Family::Evicting,
            sized(MapType::LRU_PERCPU_HASH, 8),
        ),
        of("lpm_trie", Family::Keyed, trie),
        of("array", Family::Indexed, sized(MapType::ARRAY, 4)),
        of(
            "percpu_array",
            Family::Indexed,
            sized(MapType::PERCPU_ARRAY, 4),
        ),
        of("queue", Family::Pile, sized(MapType::QUEUE, 0)),
        of("stack", Family::Pile, sized(MapType::STACK, 0)),
        of(
            "bloom_filter",
            Family::Filter,
            sized(MapType::BLOOM_FILTER, 0),
        ),
        of("ringbuf", Family::Records, ring),
        of("stack_trace", Family::Stacks, stacks),
    ]
}

/// Returns a value that can be told from a torn one: a number, twice.
pub fn value(number: u64) -> [u8; VALUE] {
    let mut bytes = [0; VALUE];
    for (byte, from) in bytes.iter_mut().zip(number.to_ne_bytes().iter().cycle()) {
        *byte = *from;
    }
    bytes
}

/// Returns the number of a value, if the value is whole.
pub fn number(value: &[u8]) -> Option<u64> {
    let (first, rest) = value.split_first_chunk::<8>()?;
    rest.iter()
        .zip(first.iter().cycle())
        .all(|(a, b)| a == b)
        .then(|| u64::from_ne_bytes(*first))
}

impl Subject {
    /// Returns the key with this number.
    pub fn key(&self, number: u64) -> [u8; 8] {
        match self.spec.map_type {
            // A prefix of all 32 bits, in network order.
            MapType::LPM_TRIE => (32 | u64::from((number as u32).to_be()) << 32).to_ne_bytes(),
            _ => number.to_ne_bytes(),
        }
    }

    /// Updates as a program does.
    pub fn set(
        &self,
        map: &Map,
        number: u64,
        value: u64,
        flags: u64,
        me: &Caller,
    ) -> Result<(), Errno> {
        let (key, value) = (self.key(number), self::value(value));
        // SAFETY: all keys have at most 8 bytes, and all values 16.
        unsafe { map.update(key.as_ptr(), value.as_ptr(), flags, me) }
    }

    /// Looks up as a program does.
    pub fn find(&self, map: &Map, number: u64, me: &Caller) -> *mut u8 {
        // SAFETY: all keys have at most 8 bytes.
        unsafe { map.lookup(self.key(number).as_ptr(), me.cpu) }
    }

    /// Deletes as a program does.
    pub fn remove(&self, map: &Map, number: u64, me: &Caller) -> Result<(), Errno> {
        // SAFETY: all keys have at most 8 bytes.
        unsafe { map.delete(self.key(number).as_ptr(), me) }
    }

    /// Performs an operation on one of the first `keys` elements. Allocates nothing.
    pub fn step(&self, map: &Map, keys: u64, state: &mut u64, me: &Caller) -> Result<(), Errno> {
        let (what, at) = (random(state) % 8, random(state) % keys);
        match self.family {
            Family::Keyed | Family::Evicting if what < 3 => self.remove(map, at, me),
            Family::Keyed | Family::Evicting if what == 3 => {
                self.find(map, at, me);
                Ok(())
            }
            Family::Keyed | Family::Evicting | Family::Indexed => self.set(map, at, at, 0, me),
            Family::Pile if what < 4 => map.update_copy(&[], &value(at), what & 2, me),
            Family::Pile if what < 7 => map.lookup_and_delete(&[], &mut [0; VALUE], 0, me),
            Family::Pile => map.lookup_copy(&[], &mut [0; VALUE], 0, me),
            Family::Filter if what < 4 => map.update_copy(&[], &value(at), 0, me),
            Family::Filter => map.lookup_copy(&[], &mut value(at), 0, me),
            Family::Stacks => stacks(map).id_of(&[at; FRAMES], 1 << 10, me).map(drop),
            Family::Records => self.produce(map, at, what == 0, me),
        }
    }

    fn produce(&self, map: &Map, number: u64, discard: bool, me: &Caller) -> Result<(), Errno> {
        let ring = Ring::of(map).ok_or(Errno::EINVAL)?;
        let record = ring.reserve(VALUE as u64, 0, me)?;
        for word in 0..VALUE / 8 {
            // SAFETY: the record has VALUE bytes, 8-aligned.
            unsafe { record.cast::<u64>().add(word).write_volatile(number) };
        }
        ring.commit(record, discard, 0);
        Ok(())
    }

    /// Asserts that an idle map is whole: its contents are not torn and can be found, and it has
    /// room for exactly its number of entries.
    pub fn assert_whole(&self, ours: &Ours) {
        let me = caller(100, 0);
        match self.family {
            Family::Keyed | Family::Evicting => self.assert_keyed_whole(ours, &me),
            Family::Pile => self.assert_pile_whole(ours, &me),
            Family::Records => self.assert_ring_whole(ours, &me),
            Family::Stacks => self.assert_stacks_whole(ours, &me),
            Family::Indexed | Family::Filter => {}
        }
    }

    fn assert_keyed_whole(&self, ours: &Ours, me: &Caller) {
        let name = self.name;
        let keys = ours.keys();
        let mut sorted = keys.clone();
        sorted.sort();
        sorted.dedup();
        assert_eq!(sorted.len(), keys.len(), "{name}: a key is there twice");
        for key in &keys {
            assert!(
                ours.get(key, 0).is_some(),
                "{name}: {key:?} is listed, and not found"
            );
        }
        let room = self.spec.max_entries as usize;
        for fresh in 1_000_000..1_000_000 + 2 * room as u64 {
            match self.set(&ours.map, fresh, fresh, 0, me) {
                Ok(()) => {}
                Err(error) => {
                    let is_full = (error, self.family) == (self.full(), Family::Keyed);
                    assert!(is_full, "{name}: {error:?} while it is filled");
                    break;
                }
            }
        }
        let keys = ours.keys();
        assert_eq!(keys.len(), room, "{name}: elements were lost or doubled");
        for key in keys {
            assert_eq!(ours.map.delete_key(&key, me), Ok(()), "{name}");
        }
        assert!(ours.keys().is_empty(), "{name}");
    }

    /// Returns the error of a full map.
    fn full(&self) -> Errno {
        match self.spec.map_type {
            MapType::LPM_TRIE => Errno(libc::ENOSPC),
            _ => Errno::E2BIG,
        }
    }

    fn assert_pile_whole(&self, ours: &Ours, me: &Caller) {
        let (name, map) = (self.name, &ours.map);
        let room = self.spec.max_entries as usize;
        let pop = || {
            let mut out = [0; VALUE];
            let popped = map.lookup_and_delete(&[], &mut out, 0, me);
            popped.map(|()| number(&out))
        };
        for _ in 0..=room {
            match pop() {
                // An element that was being written when its writer died may be torn, if it is
                // there at all.
                Ok(_) => {}
                Err(error) => assert_eq!(error, Errno::ENOENT, "{name}"),
            }
        }
        assert_eq!(
            pop(),
            Err(Errno::ENOENT),
            "{name}: more elements than it has room for"
        );
        let pushed = (0..=room as u64).filter(|i| map.update_copy(&[], &value(*i), 0, me).is_ok());
        assert_eq!(pushed.count(), room, "{name}: room was lost");
        for i in 0..room as u64 {
            let expected = if self.spec.map_type == MapType::QUEUE {
                i
            } else {
                room as u64 - 1 - i
            };
            assert_eq!(pop(), Ok(Some(expected)), "{name}: another order");
        }
    }

    fn assert_ring_whole(&self, ours: &Ours, me: &Caller) {
        let ring = Ring::of(&ours.map).expect("a ring");
        let mut consumer = Consumer::new(&ours.memory, RING.into());
        consumer.consume(&mut |record| {
            assert!(number(record).is_some(), "a torn record: {record:?}");
        });
        assert_eq!(ring.query(0), 0, "the consumer is stuck");
        let len = VALUE as u32 + 8;
        for i in 0..RING / len {
            assert_eq!(
                self.produce(&ours.map, i.into(), false, me),
                Ok(()),
                "room was lost"
            );
        }
        let mut next = 0;
        consumer.consume(&mut |record| {
            assert_eq!(number(record), Some(next));
            next += 1;
        });
        assert_eq!(next, u64::from(RING / len));
    }

    fn assert_stacks_whole(&self, ours: &Ours, me: &Caller) {
        for key in ours.keys() {
            let mut out = [0; FRAMES * 8];
            if ours.map.lookup_copy(&key, &mut out, 0, me).is_ok() {
                assert!(number(&out).is_some(), "a torn stack: {out:?}");
            }
        }
        let id = stacks(&ours.map)
            .id_of(&[7; FRAMES], 1 << 10, me)
            .expect("a place");
        let mut out = [0; FRAMES * 8];
        assert_eq!(
            ours.map.lookup_copy(&id.to_ne_bytes(), &mut out, 0, me),
            Ok(())
        );
        assert_eq!(number(&out), Some(7));
    }
}

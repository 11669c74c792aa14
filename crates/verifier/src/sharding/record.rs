//! The facts about each map that the last pass over a program collects.

use std::collections::BTreeSet;

use super::value::{Key, MapSet, Offset, Place};
use super::{Reason, Word};

/// More words than this in one value are not told apart.
const MOST_WORDS: u64 = 16384;

/// The use of one map.
#[derive(Debug, Clone, Default)]
pub(super) struct Record {
    /// Its contents decide about something else.
    pub leak: Option<Reason>,
    /// It is changed other than by adding.
    pub write: Option<Reason>,
    /// It is changed.
    pub change: Option<Reason>,
    /// It is used in a way that this analysis does not understand.
    pub ruin: Option<Reason>,
    /// Programs change its elements by pointers to them, not only by helpers that take a copy.
    pub in_place: Option<Reason>,
    /// Programs send events through it, and nothing else.
    pub stream: Option<Reason>,
    /// The words to which something is added.
    pub words: BTreeSet<Word>,
    /// The places of the id in every key so far; `None` if no key was used.
    pub ids: Option<BTreeSet<u32>>,
    /// A use without the id in the key.
    pub no_id: Option<Reason>,
}

/// The uses of all maps, and the instruction at which they are being collected.
#[derive(Debug)]
pub(super) struct Records {
    pub all: Vec<Record>,
    pub at: usize,
}

fn set(reason: &mut Option<Reason>, why: &'static str, at: usize) {
    reason.get_or_insert(Reason { why, insn: at });
}

impl Records {
    pub fn new(maps: usize) -> Self {
        Self {
            all: vec![Record::default(); maps],
            at: 0,
        }
    }

    pub fn leak(&mut self, maps: MapSet, why: &'static str) {
        for map in maps.iter() {
            set(&mut self.all[map].leak, why, self.at);
        }
    }

    pub fn write(&mut self, map: usize, why: &'static str) {
        set(&mut self.all[map].write, why, self.at);
        self.change(map);
    }

    pub fn change(&mut self, map: usize) {
        set(&mut self.all[map].change, "a program changes it", self.at);
    }

    pub fn in_place(&mut self, map: usize) {
        let why = "a program changes elements in place";
        set(&mut self.all[map].in_place, why, self.at);
    }

    /// Gives up on pointers into these maps' elements.
    pub fn escape(&mut self, maps: MapSet, why: &'static str) {
        for map in maps.iter() {
            self.write(map, why);
            set(&mut self.all[map].in_place, why, self.at);
            set(&mut self.all[map].leak, why, self.at);
        }
    }

    /// Gives up on these maps.
    pub fn ruin(&mut self, maps: MapSet, why: &'static str) {
        for map in maps.iter() {
            set(&mut self.all[map].ruin, why, self.at);
        }
    }

    pub fn stream(&mut self, map: usize) {
        set(
            &mut self.all[map].stream,
            "a program sends events through it",
            self.at,
        );
    }

    /// Takes note of a key with ids at these places.
    pub fn key(&mut self, map: usize, ids: Vec<u32>) {
        let record = &mut self.all[map];
        let ids: BTreeSet<u32> = ids.into_iter().collect();
        let kept: BTreeSet<u32> = match &record.ids {
            Some(before) => before.intersection(&ids).copied().collect(),
            None => ids,
        };
        if kept.is_empty() {
            set(
                &mut record.no_id,
                "keys do not all contain the thread's or process's id",
                self.at,
            );
        }
        record.ids = Some(kept);
    }

    /// Takes note of words to which something is added.
    pub fn add(&mut self, map: usize, value_size: u32, offset: Offset, size: u8) {
        self.change(map);
        let (base, stride) = match offset {
            Offset::At(at) => (at, 0),
            Offset::Some { base, stride, .. } => (base, stride),
        };
        let bytes = u64::from(size);
        let aligned = base.rem_euclid(i64::from(size)) == 0 && stride % bytes == 0;
        if !aligned || bytes < 4 {
            return self.write(map, "a program adds to parts of a word");
        }
        if stride == 0 {
            let Ok(offset) = u32::try_from(base) else {
                return self.write(map, "a program adds outside a value");
            };
            self.all[map].words.insert(Word { offset, size });
            return;
        }
        let first = base.rem_euclid(stride as i64) as u64;
        if u64::from(value_size) / stride > MOST_WORDS {
            return self.write(map, "a program adds to too many words");
        }
        let mut at = first;
        while at + bytes <= u64::from(value_size) {
            self.all[map].words.insert(Word {
                offset: at as u32,
                size,
            });
            at += stride;
        }
    }
}

/// The element that a program addresses directly.
pub(super) fn direct(map: usize) -> Place {
    let key: Key = Key::new(vec![(0, 0, super::value::Piece::Direct)]);
    Place {
        map,
        site: None,
        key: Some(key),
    }
}

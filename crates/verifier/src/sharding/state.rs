//! The abstract state before an instruction.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

use super::value::*;

/// An element that a program looked up, of which it is known that it is there, or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fact {
    pub place: Place,
    pub exists: bool,
}

/// A branch on an element's existence whose ways have not met yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Open {
    pub branch: usize,
    pub place: Place,
    pub effect: Effect,
}

/// The additions to the element on a way: offset, size and addend, in order; `None` if there are
/// several possibilities.
pub(super) type Effect = Option<Vec<(u32, u8, Addend)>>;

/// The former contents of bytes of the stack of which nothing is known now.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Lost {
    pub taint: MapSet,
    pub elements: MapSet,
    pub handles: MapSet,
    /// The instructions at which something got lost.
    pub sites: BTreeSet<usize>,
}

impl Lost {
    fn add(&mut self, value: &Value, at: usize) {
        self.taint = self.taint.with(value.all_taint());
        self.elements = self.elements.with(value.all_elements());
        self.handles = self.handles.with(value.all_handles());
        self.sites.insert(at);
    }

    fn value(&self) -> Value {
        Value {
            taint: self.taint,
            elements: self.elements,
            handles: self.handles,
            ..Value::unknown(Def::Stale)
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct State {
    pub regs: [Value; 11],
    /// Values in the stack by offset, with their lengths; none overlap.
    pub slots: BTreeMap<i32, (u32, Value)>,
    pub lost: Lost,
    pub facts: Vec<Fact>,
    pub open: Vec<Open>,
}

impl State {
    /// Returns the state at the start of a function.
    pub fn entry() -> Self {
        let mut regs = std::array::from_fn(|reg| Value::unknown(Def::Entry(reg as u8)));
        regs[10] = Value::new(Kind::Frame(Some(0)));
        Self {
            regs,
            slots: BTreeMap::new(),
            lost: Lost::default(),
            facts: Vec::new(),
            open: Vec::new(),
        }
    }

    pub fn reg(&self, reg: u8) -> &Value {
        &self.regs[usize::from(reg)]
    }

    pub fn set(&mut self, reg: u8, value: Value) {
        self.regs[usize::from(reg)] = value;
    }

    /// Returns the slots that overlap with bytes of the stack.
    pub fn overlapping(&self, bytes: Range<i32>) -> impl Iterator<Item = (i32, u32, &Value)> {
        // No slot is longer than the stack.
        let from = bytes.start.saturating_sub(512);
        let slots = self.slots.range(from..bytes.end.max(from));
        slots
            .filter(move |(at, (len, _))| **at + *len as i32 > bytes.start)
            .map(|(at, (len, value))| (*at, *len, value))
    }

    /// Returns everything that bytes of the stack may depend on, or be, as one value.
    pub fn within(&self, bytes: Range<i32>) -> Value {
        let mut all = Value::unknown(Def::Stale);
        let mut next = bytes.start;
        let mut gap = false;
        for (at, len, value) in self.overlapping(bytes.clone()) {
            gap |= at > next;
            next = at + len as i32;
            all = all.mix(value, Def::Stale);
        }
        if gap || next < bytes.end {
            all = all.mix(&self.lost.value(), Def::Stale);
        }
        all
    }

    /// Returns the same of the whole stack.
    pub fn stack(&self) -> Value {
        let slots = self.slots.values();
        slots.fold(self.lost.value(), |all, (_, value)| {
            all.mix(value, Def::Stale)
        })
    }

    pub fn write(&mut self, start: i32, len: u32, value: Value, at: usize) {
        self.clear(start..start + len as i32, at);
        self.slots.insert(start, (len, value));
    }

    fn clear(&mut self, bytes: Range<i32>, at: usize) {
        let hit: Vec<(i32, u32)> = self
            .overlapping(bytes.clone())
            .map(|(start, len, _)| (start, len))
            .collect();
        for (start, len) in hit {
            let removed = self.slots.remove(&start);
            let is_inside = start >= bytes.start && start + len as i32 <= bytes.end;
            if let (false, Some((_, value))) = (is_inside, removed) {
                self.lost.add(&value, at);
            }
        }
    }

    /// Writes `value` somewhere into the stack.
    pub fn smear(&mut self, value: &Value, at: usize) {
        self.lost.add(value, at);
        for (_, value) in std::mem::take(&mut self.slots).values() {
            self.lost.add(value, at);
        }
    }

    /// Returns the value of a load.
    pub fn read(&self, start: i32, len: u32, def: Def) -> Value {
        match self.slots.get(&start) {
            Some((8, value)) if len == 8 => return value.clone(),
            Some((stored, value)) if len < 8 && *stored >= len && *stored <= 8 => {
                let whole = *stored == len;
                let low = match &value.kind {
                    Kind::Const(number) => Some(Kind::Const(number & ((1 << (8 * len)) - 1))),
                    Kind::Id(Id::Both) if len == 4 => Some(Kind::Id(Id::One(OneId::Thread))),
                    Kind::Id(Id::One(_)) if len == 4 => Some(value.kind.clone()),
                    Kind::Sum(sum) if whole && u32::from(sum.size) == len => Some(sum.named(def)),
                    _ => None,
                };
                if let Some(kind) = low {
                    return Value {
                        kind,
                        ..value.clone()
                    };
                }
            }
            _ => {}
        }
        self.within(start..start + len as i32).blurred(def)
    }

    /// Returns the content of bytes as a key, if it is known.
    pub fn key(&self, start: i32, len: u32) -> Option<Key> {
        let mut next = start;
        let mut pieces = Vec::new();
        for (at, length, value) in self.overlapping(start..start + len as i32) {
            if at > next {
                return None;
            }
            pieces.push((at - start, length, value.piece()?));
            next = at + length as i32;
        }
        (next >= start + len as i32).then(|| Rc::new(pieces))
    }

    /// Returns the places in a key of ids of the current thread or process.
    pub fn ids(&self, start: i32, len: u32) -> Vec<u32> {
        let mut ids = Vec::new();
        for (at, length, value) in self.overlapping(start..start + len as i32) {
            let Kind::Id(id) = value.kind else { continue };
            let found: &[i32] = match (id, length) {
                (Id::Both, 8) => &[0, 4],
                (Id::Both, 4) | (Id::One(_), 4 | 8) => &[0],
                (Id::High(_), 8) => &[4],
                _ => &[],
            };
            let inside = found.iter().map(|offset| at + offset - start);
            ids.extend(inside.filter_map(|at| {
                let at = u32::try_from(at).ok()?;
                (at + 4 <= len).then_some(at)
            }));
        }
        ids
    }

    /// Returns whether the element is known to exist, or not to.
    pub fn exists(&self, place: &Place) -> Option<bool> {
        let fact = self.facts.iter().find(|fact| fact.place.is(place));
        fact.map(|fact| fact.exists)
    }

    pub fn learn(&mut self, place: &Place, exists: bool) {
        self.facts.retain(|fact| !fact.place.is(place));
        self.facts.push(Fact {
            place: place.clone(),
            exists,
        });
    }

    /// Forgets what is missing in a map: an element was created, and its key may be the same as
    /// others that look different.
    pub fn create_any(&mut self, map: usize) {
        self.facts
            .retain(|fact| fact.place.map != map || fact.exists);
        for value in self.values() {
            if let Kind::Element { place, null, .. } = &mut value.kind
                && place.map == map
                && *null == Null::Missing
            {
                *null = Null::WasMissing;
            }
        }
    }

    fn values(&mut self) -> impl Iterator<Item = &mut Value> {
        let slots = self.slots.values_mut().map(|(_, value)| value);
        self.regs.iter_mut().chain(slots)
    }

    /// Says whether a pointer of which it was unknown is null, in each place where it is held.
    pub fn settle(&mut self, found: &Place, is_null: bool) {
        for value in self.values() {
            let Kind::Element {
                place,
                offset: Offset::At(0),
                null,
            } = &mut value.kind
            else {
                continue;
            };
            if *null == Null::Never || place.site.is_none() || place.site != found.site {
                continue;
            }
            if is_null {
                value.kind = Kind::Const(0);
            } else {
                *null = Null::Never;
            }
        }
    }

    /// Makes values of this instruction's earlier runs stale.
    pub fn forget(&mut self, is_old: impl Fn(Def) -> bool + Copy) {
        self.values().for_each(|value| value.forget(is_old));
        for Fact { place, .. } in &mut self.facts {
            place.forget(is_old);
        }
        self.facts
            .retain(|fact| fact.place.site.is_some() || fact.place.key.is_some());
        for open in &mut self.open {
            open.place.forget(is_old);
            let old = |(_, _, addend): &(u32, u8, Addend)| matches!(*addend, Addend::Def(def) if is_old(def));
            if open
                .effect
                .as_ref()
                .is_some_and(|effect| effect.iter().any(old))
            {
                open.effect = None;
            }
        }
    }

    /// Makes everything that was chosen by an element's existence depend on its map.
    ///
    /// `within` are the instructions on the ways that meet now.
    pub fn close(&mut self, open: &Open, within: impl Fn(usize) -> bool) {
        let made = |def: Def| match def.site() {
            Some(Site::At(at)) => within(at),
            Some(Site::Entry) => false,
            None => true,
        };
        let taint = MapSet::one(open.place.map);
        for value in self.values() {
            if value.is_made(made, &open.place) {
                value.taint = value.taint.with(taint);
            }
        }
        if self.lost.sites.iter().any(|&site| within(site)) {
            self.lost.taint = self.lost.taint.with(taint);
        }
        self.open.retain(|other| other.branch != open.branch);
    }

    /// Joins a state that comes from another way to `at`. `closing` are the maps by whose elements
    /// the way was chosen. Returns whether anything changed.
    pub fn join(&mut self, mut other: Self, at: usize, closing: MapSet) -> bool {
        let before = self.clone();
        for reg in 0..10u8 {
            let place = Where::Reg(reg);
            let joined = join_values(
                self,
                &other,
                self.reg(reg),
                other.reg(reg),
                at,
                place,
                closing,
            );
            self.set(reg, joined);
        }
        self.join_slots(&mut other, at, closing);
        self.facts.retain(|fact| other.facts.contains(fact));
        self.join_open(&other);
        *self != before
    }

    fn join_slots(&mut self, other: &mut Self, at: usize, closing: MapSet) {
        let slots = std::mem::take(&mut self.slots);
        let mut lost = std::mem::take(&mut self.lost);
        let mut kept = BTreeMap::new();
        for (start, (len, value)) in slots {
            match other.slots.get(&start) {
                Some((len2, value2)) if *len2 == len => {
                    let place = Where::Slot(start);
                    let joined = join_values(self, other, &value, value2, at, place, closing);
                    kept.insert(start, (len, joined));
                    other.slots.remove(&start);
                }
                _ => lost.add(&value, at),
            }
        }
        for (_, value) in other.slots.values() {
            lost.add(value, at);
        }
        lost.taint = lost.taint.with(other.lost.taint);
        lost.elements = lost.elements.with(other.lost.elements);
        lost.handles = lost.handles.with(other.lost.handles);
        lost.sites.extend(&other.lost.sites);
        if lost.sites.contains(&at) {
            lost.taint = lost.taint.with(closing);
        }
        (self.slots, self.lost) = (kept, lost);
    }

    /// Joins the branches that are open. One that is open on one way only stays open.
    fn join_open(&mut self, other: &Self) {
        for open in &other.open {
            match self.open.iter_mut().find(|own| own.branch == open.branch) {
                Some(own) => {
                    if own.effect != open.effect {
                        own.effect = None;
                    }
                    own.place = own.place.common(&open.place);
                }
                None => self.open.push(open.clone()),
            }
        }
        self.open.sort_by_key(|open| open.branch);
    }
}

fn join_values(
    one: &State,
    two: &State,
    a: &Value,
    b: &Value,
    at: usize,
    place: Where,
    closing: MapSet,
) -> Value {
    if let Some(sum) = first_addend(one, a, b).or_else(|| first_addend(two, b, a)) {
        return sum;
    }
    let mut joined = a.join(b, Def::Join(at, place));
    if !a.is_same(b) {
        joined.taint = joined.taint.with(closing);
    }
    joined
}

/// Joins a word with something added to it with that addend alone, for an element that is missing.
///
/// A missing element stands for zeros: so both are the word and the addend.
fn first_addend(state: &State, first: &Value, sum: &Value) -> Option<Value> {
    let (Kind::Const(first_number), Kind::Sum(it)) = (&first.kind, &sum.kind) else {
        return None;
    };
    let mask = if it.size == 4 {
        u64::from(u32::MAX)
    } else {
        u64::MAX
    };
    let same = matches!(it.plus, Addend::Const(plus) if plus & mask == first_number & mask);
    let missing = state.exists(&it.place) == Some(false);
    let kind = Kind::Sum(Sum {
        def: Def::Stale,
        ..it.clone()
    });
    (same && missing).then(|| Value {
        kind,
        taint: sum.taint.with(first.taint),
        elements: sum.elements.with(first.elements),
        handles: sum.handles.with(first.handles),
        zeros: 0,
    })
}
